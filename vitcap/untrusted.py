"""What a model file may ask for: it may come from anybody, and says itself how large a model is to be built from it.

Nothing that is built reads other files, writes, or uses the network, and no size is believed that the file's own bytes
do not bear out.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Search
from vitcap.models.weights import not_finite

LARGEST = 10_000_000
"""Largest whole number in the config of a model: a vocabulary or a side in pixels is far below."""
MOST_PIXELS = 2**24
"""Most pixels of a model's input."""
LONGEST, MOST_BEAMS = 10_000, 1_000
SPARE = 2**28
"""Numbers that a model may allocate beyond those of its file: parts that are built and dropped, buffers."""
ELSEWHERE = ("weights", "pretrained", "head_weights")
"""Options that would read another file, or the network."""

_FACTORIES = {
    getattr(torch, name)
    for name in (
        *("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "logspace"),
        *("eye", "empty_strided", "normal", "tril_indices", "triu_indices"),
    )
}


class CheckpointError(ValueError):
    """A file that is no usable model; the message names it and says what it is."""


def one_line(text: str) -> str:
    """At most a line of the message of another library."""
    return " ".join(text.split())[:300]


def build(part: dict[str, Any], **more: Any) -> Any:
    """Instance of `_target_`, a model of vitcap.models or a search of vitcap.decoding; other entries, and `more`, are
    arguments."""
    if not isinstance(part, dict):
        raise CheckpointError(f"refused to build {str(part)[:80]!r}: a _target_ and its options are wanted")
    target = str(part.get("_target_", ""))
    module, _, name = target.rpartition(".")
    if not module.startswith("vitcap.models.") and module != "vitcap.decoding":
        raise CheckpointError(f"refused to build {target!r}: a model file may only name models and searches of vitcap")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise CheckpointError(f"this version of vitcap has no {target!r}: the model needs another version") from None
    own = isinstance(made, type) and made.__module__.startswith(("vitcap.models.", "vitcap.decoding"))
    if not own or not issubclass(made, (nn.Module, Search)):  # modules import classes of others, too
        raise CheckpointError(f"refused to build {target!r}: it is no model and no search")
    try:
        return made(**{key: value for key, value in part.items() if key != "_target_"}, **more)
    except Exception as error:  # values of any kind may make a constructor raise anything
        reason = str(error) if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{target} cannot be built from the model's config: {one_line(reason)}") from None


def plain(description: Any) -> Any:
    """A description, if it is JSON. Raises CheckpointError for tensors, circles, and lists in lists without end."""
    try:
        return json.loads(json.dumps(description))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the description of the model is no plain JSON ({str(error)[:80]})") from None


def check_weights(weights: Mapping[Any, Any]) -> None:
    """Raises CheckpointError unless these are dense tensors by name, of finite numbers."""
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"weights[{name!r}] is {type(tensor).__name__}, where a tensor is wanted")
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
            kind = f"{tensor.dtype} on {tensor.device}, {tensor.layout}"
            raise CheckpointError(f"{name} is no plain tensor of numbers ({kind})")
        if tensor.numel() > tensor.untyped_storage().nbytes():  # one number may stand for any count of them
            raise CheckpointError(f"{name} is {tuple(tensor.shape)}, and the file holds fewer numbers")
        if bad := not_finite(name, tensor):
            raise CheckpointError(f"{bad}; take a checkpoint from before training failed")


def check_parts(description: Mapping[str, Any], *, tensors: int) -> None:
    """Raises CheckpointError for a config that would read other files or the network, or is larger than any model.

    tensors: how many the file holds.
    """
    for part in ("encoder", "decoder", "head"):
        config = description.get(part, {})
        if not isinstance(config, dict):
            raise CheckpointError(f"{part} is {type(config).__name__}, where its options are wanted")
        for option, value in config.items():
            if option in ELSEWHERE and value:
                raise CheckpointError(f"{part}.{option}={value!r}: a model file brings its own weights")
            numbers = value if isinstance(value, list) else [value]
            if any(isinstance(n, int | float) and not abs(n) <= LARGEST for n in numbers):
                raise CheckpointError(f"{part}.{option}={str(value)[:40]}: at most {LARGEST} is believed")
        if isinstance(depth := config.get("depth"), int) and depth > tensors:
            raise CheckpointError(f"{part}.depth={depth}, and the file holds {tensors} tensors")
        sides = config.get("image_size")
        sides = [sides, sides] if isinstance(sides, int) else sides
        if isinstance(sides, list) and all(isinstance(n, int) for n in sides) and math.prod(sides) > MOST_PIXELS:
            raise CheckpointError(f"{part}.image_size={sides}: at most {MOST_PIXELS} pixels are believed")


class Within(TorchFunctionMode):
    """Building a model from a file of so many bytes: CheckpointError before more is allocated than they bear out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.limit = self.left = 2 * size + SPARE  # eight times what a file of float32 holds

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES:
            kept = {k: v for k, v in kwargs.items() if k not in ("device", "out", "pin_memory", "generator")}
            self.left -= max(func(*args, **kept, device="meta").numel(), 2**14)  # a module is more than its numbers
            if self.left < 0:
                raise CheckpointError(f"its config asks for more than {self.limit} numbers, its weights are far fewer")
        return func(*args, **kwargs)


def check_words(description: Mapping[str, Any]) -> None:
    """Raises CheckpointError for tokenizers that are none, or know another number of words than the model."""
    for name, part in (("tokenizer", "decoder"), ("source_tokenizer", "encoder")):
        if name not in description:
            continue
        try:
            size = Tokenizer.from_json(description[name]).vocab_size
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from None
        if size != (wanted := description[part].get("vocab_size")):
            raise CheckpointError(f"{name} has {size} tokens, {part}.vocab_size is {wanted}: they are of two models")


def check_classes(description: Mapping[str, Any]) -> None:
    """Raises CheckpointError for class names that are none, or more or fewer than the model's classes."""
    if (classes := description.get("classes")) is None:
        return
    pairs = isinstance(classes, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in classes
    )
    wanted = description["head"].get("classes")
    if not pairs or len(classes) != wanted:
        raise CheckpointError(f"classes: a name, and one for people, of each of {wanted} classes are wanted")


def preprocessing(description: Mapping[str, Any], encoder: Any) -> Preprocess | None:
    """How a file wants pictures prepared, None if it reads none. Raises CheckpointError where that cannot be, or is not
    the size that the encoder reads."""
    if "preprocess" not in description:
        return None
    try:
        made = Preprocess.from_dict(description["preprocess"])
        size = tuple(encoder.preprocess["size"])
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise CheckpointError(f"preprocess: {error}") from None
    if tuple(made.size) != size:
        raise CheckpointError(f"preprocess.size is {list(made.size)}, the encoder reads pictures of {list(size)}")
    return made
