"""ONNX graphs in fewer bytes: each weight once, in float16 or in whole numbers of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitcap.models.storage import SCALE, STORAGES, pack

_READERS = {"MatMul": 1, "Gemm": 1, "Conv": 1, "Gather": 0, "GatherND": 0}
"""Operator -> its input that is a weight. Constants that others read (positions, masks) are left as they are."""
_SMALL = 1024
"""Numbers of a constant that is not worth packing."""


def compress(model: Any, weights: str = "fp32") -> None:
    """Store the weights of an onnx.ModelProto anew, in place; a runtime unpacks them once, when it loads the file.

    weights: "fp32", "fp16" or "int8", by the rules of `vitcap.models.storage.pack`. Unpacking is part of the graph: a
    Cast, and for int8 a product with the scales of the output channels, which every runtime computes in advance, so
    that computing stays in float32 and costs no more than before. Raises ValueError for another storage.
    """
    if weights not in STORAGES:
        raise ValueError(f"weights={weights!r}: one of {', '.join(STORAGES)} is wanted")
    _strip(model)
    _share(model)
    if weights != "fp32":
        _pack(model, weights)


def _strip(model: Any) -> None:
    """Without what the exporter notes about where each operator comes from, which is most of a small file."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _large(model: Any) -> Iterator[tuple[Any, NDArray[np.float32]]]:
    from onnx import TensorProto, numpy_helper

    for tensor in list(model.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims, dtype=int) >= _SMALL:
            yield tensor, numpy_helper.to_array(tensor)


def _share(model: Any) -> None:
    """Weights that are there twice, as they are or transposed (tied embeddings), once."""
    from onnx import helper

    seen: dict[bytes, str] = {}
    added = []
    for tensor, array in _large(model):
        if (same := seen.get(_key(array))) is not None:
            _rename(model, tensor.name, same)
        elif array.ndim == 2 and (turned := seen.get(_key(array.T))) is not None:
            added.append(helper.make_node("Transpose", [turned], [tensor.name], perm=[1, 0]))
        else:
            seen[_key(array)] = tensor.name
            continue
        model.graph.initializer.remove(tensor)
    _first(model, added)


def _key(array: NDArray[np.float32]) -> bytes:
    return repr(array.shape).encode() + np.ascontiguousarray(array).tobytes()


def _rename(model: Any, old: str, new: str) -> None:
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def _pack(model: Any, weights: str) -> None:
    from onnx import TensorProto, helper, numpy_helper

    added = []
    for tensor, array in _large(model):
        if (axis := _channels(model, tensor.name)) is None:
            continue
        name, rows = tensor.name, np.moveaxis(array, axis, 0)
        packed = pack({name: torch.from_numpy(np.array(rows, order="C"))}, weights)
        codes, scale = packed[name].numpy(), packed.get(name + SCALE)
        if codes.dtype == np.float32:
            continue
        model.graph.initializer.remove(tensor)
        stored = np.ascontiguousarray(np.moveaxis(codes, 0, axis))
        model.graph.initializer.append(numpy_helper.from_array(stored, f"{name}.{weights}"))
        whole = name if scale is None else f"{name}.codes"
        added.append(helper.make_node("Cast", [f"{name}.{weights}"], [whole], to=TensorProto.FLOAT))
        if scale is not None:
            shape = [-1 if i == axis else 1 for i in range(array.ndim)]
            model.graph.initializer.append(numpy_helper.from_array(scale.numpy().reshape(shape), name + SCALE))
            added.append(helper.make_node("Mul", [whole, name + SCALE], [name]))
    _first(model, added)


def _channels(model: Any, name: str) -> int | None:
    """The axis of a weight that counts output channels (rows, of a table); None for what is no weight."""
    for node in model.graph.node:
        place = _READERS.get(node.op_type)
        if place is not None and len(node.input) > place and node.input[place] == name:
            turned = any(a.name == "transB" and a.i for a in node.attribute)
            return 1 if node.op_type == "MatMul" or (node.op_type == "Gemm" and not turned) else 0
    return None


def _first(model: Any, nodes: list[Any]) -> None:
    """Put nodes before all others."""
    rest = [type(node).FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
