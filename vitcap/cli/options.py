"""Options that several commands share, and what they mean: the model, the search."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from vitcap import pretrained

_SEARCH = ("max_length", "min_length", "no_repeat_ngram", "beams", "length_penalty", "temperature", "top_k", "top_p")

MOST = 1000
"""Most captions of a picture, and most beams: memory grows with them."""


class UsageError(ValueError):
    """A command line that cannot be carried out."""


def number(kind: type, low: float, high: float = math.inf, *, above: bool = False) -> Callable[[str], Any]:
    """A parser of numbers in low..high; `above` leaves `low` out."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (low < value if above else low <= value) or value > high or math.isinf(value):
            noun = "whole number" if kind is int else "number"
            limits = f"above {low}" if above else f"of at least {low}"
            raise argparse.ArgumentTypeError(
                f"{text!r}: a {noun} {limits}" + (f" and at most {high}" if high < math.inf else "") + " is wanted"
            )
        return value

    return parse


def indices(text: str) -> list[int]:
    """A parser of numbers joined by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers such as 0 or 0,2 are wanted") from None


def add_model(parser: argparse.ArgumentParser, more: str = "", *, captions: bool = True) -> None:
    """Pictures and the model that reads them. more: what else may be named. captions: see `add_loading`."""
    photos = f"photos, and folders to look for photos in; after --, names may begin with a dash{more}"
    parser.add_argument("photos", nargs="+", metavar="PHOTO_OR_FOLDER", help=photos)
    add_loading(parser, captions=captions)
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no notes; errors are still shown")


def add_loading(parser: argparse.ArgumentParser, *, captions: bool = True) -> None:
    """The model and where it computes; read by `load`. captions: whether the packaged captioner will do."""
    what = "model.safetensors, .ckpt or run folder"
    if captions:
        what += f", or the name of a packaged model (`vitcap models` lists them; default: {pretrained.DEFAULT})"
    parser.add_argument("--model", metavar="FILE", required=not captions, help=what)
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, mps; chosen by itself if left out")


def add_search(parser: argparse.ArgumentParser, what: str = "caption") -> None:
    """How captions, or sentences of another name, are searched for; read by `build_search`."""
    group = parser.add_argument_group("search", "what is left out is taken from the model")
    whole, positive = number(int, 0), number(int, 1)
    beams = "width of the beam search; 1 is greedy search"
    group.add_argument("--beams", type=number(int, 1, MOST), metavar="N", help=beams)
    group.add_argument("--max-length", type=positive, metavar="N", help=f"most tokens of a {what}")
    group.add_argument("--min-length", type=whole, metavar="N", help=f"fewest tokens of a {what}")
    group.add_argument("--length-penalty", type=number(float, 0, 10), metavar="X", help=f"0 favours short {what}s")
    group.add_argument("--no-repeat-ngram", type=whole, metavar="N", help="no N tokens in a row twice; 0 is off")
    group.add_argument("--sample", action="store_true", help=f"draw {what}s at random, without a beam search")
    group.add_argument("--temperature", type=number(float, 0, above=True), metavar="X", help="below 1 is bolder")
    group.add_argument("--top-k", type=whole, metavar="N", help="draw from the N likeliest tokens; 0 is all")
    group.add_argument("--top-p", type=number(float, 0, 1, above=True), metavar="X", help="nucleus sampling")
    group.add_argument(
        "--seed", type=number(int, 0, 2**63 - 1), metavar="N", help=f"equal seeds and batches draw equal {what}s"
    )


def add_rollout(parser: argparse.ArgumentParser) -> None:
    """How the method rollout is made; read by `rollout_options`."""
    heads = "how rollout makes one matrix of a layer's heads: mean (default), max or min"
    parser.add_argument("--fusion", choices=("mean", "max", "min"), help=heads)
    share = "share of the lowest attention that rollout leaves out, 0 (default) to below 1"
    parser.add_argument("--discard", type=number(float, 0, 1), metavar="X", help=share)


def rollout_options(arguments: argparse.Namespace, methods: Any) -> dict[str, Any]:
    """Options of `explain` for the method rollout. methods: those that are drawn, None where they are not chosen."""
    given = {name: value for name in ("fusion", "discard") if (value := getattr(arguments, name)) is not None}
    if given and methods != "all" and "rollout" not in (methods or ()):
        raise UsageError(f"--{next(iter(given))} is for the method rollout, which is not drawn here")
    return {"rollout": given} if given else {}


def search_options(arguments: argparse.Namespace) -> list[str]:
    """Names of the options of `add_search` that are given."""
    names = (*_SEARCH, "sample", "seed")
    return [name for name in names if getattr(arguments, name) not in (None, False)]


def build_search(arguments: argparse.Namespace, default: Any, n_best: int = 1) -> Any:
    """The search that the options ask for, completed from the model's own; None if they ask for nothing."""
    from vitcap.decoding import Beam, Greedy, Sample

    given = {name: value for name in _SEARCH if (value := getattr(arguments, name)) is not None}
    for name in ("temperature", "top_k", "top_p", "seed"):
        if getattr(arguments, name) is not None and not arguments.sample:
            raise UsageError(f"--{name.replace('_', '-')} is for random captions: add --sample")
    if not given and not arguments.sample and n_best == 1:
        return None
    if arguments.sample:
        kind: Any = Sample
    elif arguments.beams is not None or n_best > 1:
        kind = Greedy if arguments.beams == 1 else Beam
    else:
        kind = type(default) if is_dataclass(default) else Beam
    known = {field.name for field in fields(kind)}
    values = {name: getattr(default, name) for name in known if hasattr(default, name)} | given
    if kind is Greedy:
        values.pop("beams", None)
        if n_best > 1:
            raise UsageError(f"--n-best {n_best} needs --beams {n_best} or more, or --sample")
    if kind is Beam and n_best > values.get("beams", Beam().beams):
        if arguments.beams is not None:
            raise UsageError(f"--n-best {n_best} needs --beams {n_best} or more")
        values["beams"] = n_best
    if unknown := sorted(set(values) - known):
        option = unknown[0].replace("_", "-")
        raise UsageError(f"--{option} does not apply to {kind.__name__.lower()} search")
    return kind(**values | {name: n_best for name in ("n_best", "samples") if name in known})


def load(arguments: argparse.Namespace, *wanted: str) -> Any:
    """The model that --model names, or the packaged captioner, on the wanted device.

    wanted: what it must be made to do, one of them: caption, translate or classify (none: caption); UsageError for a
    model of another kind.
    """
    import torch

    import vitcap

    name = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise UsageError(f"--device {name}: there is no such device; cpu or cuda is wanted") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {name}: torch finds no CUDA device on this computer; use --device cpu")
    model = vitcap.load(arguments.model, device=name)
    wanted = wanted or ("caption",)
    if not any(hasattr(model, kind) for kind in wanted):
        kind = next(kind for kind in ("caption", "translate", "classify") if hasattr(model, kind))
        raise UsageError(
            f"{arguments.model}: a model made to {kind}, not to {' or '.join(wanted)}; use `vitcap {kind}`"
        )
    return model


def model_name(arguments: argparse.Namespace) -> str:
    """What --model names; the packaged captioner where it is left out."""
    return arguments.model if arguments.model is not None else pretrained.DEFAULT


def output_folder(name: str, option: str = "--out") -> Path:
    """The folder that an option names, which is made where it is missing; UsageError where it cannot be."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {name}: this folder cannot be made ({error.strerror}); name another") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {name}: nothing may be written in this folder; name another")
    return folder
