"""A model as ONNX graphs: the encoder, the start of a decoder, one cached step of it.

Letters: B pictures, G sequences (beams) of each, N memory tokens, D their width, T cached tokens, L layers, H heads,
H' key/value heads, K width of a head, V vocabulary, C classes.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from vitcap.models.classifier import ImageClassifier
from vitcap.models.rnn_decoder import RnnDecoder, RnnState
from vitcap.models.transformer_decoder import TransformerDecoder, TransformerState
from vitcap.nn.position import LearnedPosition, Position
from vitcap.types import Memory

OPSET = 18
"""Version of the ONNX operators: that of ONNX 1.13 (2022), so that older runtimes read the files, too."""


class _Table(Position):
    """A learned table without the check of its end, which depends on values and so is in no graph."""

    def __init__(self, learned: LearnedPosition) -> None:
        super().__init__()
        self.table = learned.table

    def add(self, x: Tensor, coordinates: Tensor) -> Tensor:
        return x + self.table[tuple(coordinates.long().unbind(-1))]


def exportable(model: Any) -> Any:
    """A copy of a model, in float32 on the CPU, that can be traced."""
    model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LearnedPosition):
                setattr(module, name, _Table(child))
    return model


def flat(state: Any) -> dict[str, Tensor]:
    """The tensors of a decoder's state by name: memory_* are once per picture, state_* once per sequence."""
    if isinstance(state, TransformerState):
        parts = {
            f"{kind}_{name}_{layer}": tensor
            for kind, pairs in (("memory", state.memory), ("state", state.cache or ()))
            for layer, pair in enumerate(pairs)
            for name, tensor in zip(("key", "value"), pair, strict=True)
        }
    else:
        parts = {"memory_key": state.keys, "memory_value": state.values}
        parts |= {"state_hidden": state.hidden, "state_cell": state.cell}
    return {name: tensor for name, tensor in parts.items() if tensor is not None}


def unflat(parts: dict[str, Tensor], groups: int) -> Any:
    """Inverse of `flat`, without a mask. groups: G."""
    if "state_hidden" in parts:
        names = ("memory_key", "memory_value", "state_hidden", "state_cell")
        keys, values, hidden, cell = (parts.get(name) for name in names)
        return RnnState(keys, values, None, None, hidden, cell)  # type: ignore[arg-type]
    layers = range(sum(name.startswith("memory_key_") for name in parts))
    memory, cache = (
        tuple((parts[f"{kind}_key_{layer}"], parts[f"{kind}_value_{layer}"]) for layer in layers)
        for kind in ("memory", "state")
    )
    return TransformerState(memory, None, groups, cache, cache[0][0].shape[3])


class _Graph(nn.Module):
    """A function of some inputs that computes with a model's weights, as a module that can be traced."""

    def __init__(self, model: nn.Module, run: Callable[..., tuple[Tensor | None, ...]]) -> None:
        super().__init__()
        self.model, self.run = model.eval(), run

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        # Copies, as an output that is an input as it stands would have two names.
        return tuple(x.clone() for x in self.run(*inputs) if x is not None)


@dataclass(frozen=True)
class Plan:
    """One graph to be traced: a module, example inputs by name, names of the outputs."""

    graph: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]


def plans(model: Any) -> dict[str, Plan]:
    """The graphs of a model that `exportable` has given, by file name without .onnx.

    Raises ValueError for a model that reads sentences, or a decoder that has no graph.
    """
    encoder = model.encoder
    if not hasattr(encoder, "preprocess"):
        raise ValueError("a model that translates sentences has no ONNX form; --to safetensors and --to hub take it")
    images = torch.zeros(2, 3, *encoder.preprocess["size"], dtype=torch.uint8)
    if isinstance(model, ImageClassifier):
        classify = _Graph(model, lambda images: (model.classify(encoder(model.normalise(images))),))
        return {"classifier": Plan(classify, {"images": images}, ["logits"])}
    decoder = model.decoder
    if not isinstance(decoder, TransformerDecoder | RnnDecoder):
        raise ValueError(f"a decoder {type(decoder).__name__} has no ONNX form; --to safetensors and --to hub take it")
    fixed = isinstance(decoder, RnnDecoder) and (decoder.attention is None or decoder.initial == "pooled")

    def encode(images: Tensor) -> tuple[Tensor | None, ...]:
        memory = encoder(model.normalise(images))
        return memory.tokens, memory.pooled if fixed else None

    def start(memory: Tensor, pooled: Tensor | None = None) -> tuple[Tensor, ...]:
        return tuple(flat(decoder.start(Memory(memory, pooled=pooled))).values())

    def step(tokens: Tensor, *parts: Tensor) -> tuple[Tensor | None, ...]:
        state = unflat(dict(zip(names, parts, strict=True)), tokens.shape[1])
        logits, attention, state = decoder.step(tokens, state, True)
        return logits, attention, *(x for name, x in flat(state).items() if name.startswith("state_"))

    with torch.no_grad():
        memory, pooled = encode(images)
        assert memory is not None
        tokens = torch.zeros(2, 3, dtype=torch.long)
        before = decoder.start(Memory(memory, pooled=pooled), 3)
        state: Any = before
        for _ in range(2):  # a size of 1 in the example would be taken for one that is always 1
            _, attention, state = decoder.step(tokens, state, True)
    given = {"memory": memory} | ({} if pooled is None else {"pooled": pooled})
    parts, names = flat(state), list(flat(state))
    after = [name.replace("state_", "next_") for name in names if name.startswith("state_")]
    return {
        "encoder": Plan(_Graph(model, encode), {"images": images}, list(given)),
        "decoder_start": Plan(_Graph(decoder, start), given, list(flat(before))),
        "decoder_step": Plan(
            _Graph(decoder, step),
            {"tokens": tokens, **parts},
            ["logits", *([] if attention is None else ["attention"]), *after],
        ),
    }


def axes(name: str, ndim: int) -> dict[int, str]:
    """The open sizes of an input: batch, beams and length, by axis."""
    open_sizes = {0: "batch"}
    if name == "tokens" or name.startswith("state_"):
        open_sizes[1] = "beams"
        if ndim == 5:  # (B, G, H', T, K)
            open_sizes[3] = "length"
    return open_sizes


def trace(plan: Plan) -> Any:
    """The onnx.ModelProto of a plan, with named open sizes."""
    shapes = [axes(name, x.ndim) for name, x in plan.inputs.items()]
    sizes = {name: Dim(name) for name in ("batch", "beams", "length")}
    with _quiet():
        program = torch.export.export(
            plan.graph,
            ([x.clone() for x in plan.inputs.values()],),  # a view would be traced as one
            dynamic_shapes=([{axis: sizes[name] for axis, name in one.items()} for one in shapes],),
            strict=False,
        )
        made = torch.onnx.export(
            program,
            (),
            input_names=list(plan.inputs),
            output_names=plan.outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    model = made.model_proto
    symbols = {
        value.type.tensor_type.shape.dim[axis].dim_param: name
        for value, one in zip(model.graph.input, shapes, strict=True)
        for axis, name in one.items()
    }
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\bs\d+\b", lambda found: symbols.get(found[0], found[0]), dim.dim_param)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter prints and warns of."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
