"""`vitcap verify`: whether the attention that is shown is the model's own, in numbers."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcap.cli.options import UsageError, add_model, load, output_folder
from vitcap.cli.pictures import picture_paths
from vitcap.data.images import ImageError
from vitcap.files import whole

if TYPE_CHECKING:  # it imports torch, for which --help need not wait
    from vitcap.explain.verify import LayerCheck, Verification

LEGEND = """
output    largest |output of the layer as the model computes it - explicit weights times values|, same input
row sums  largest |sum of a row of weights - 1|
map       largest |weights as they are handed to the drawing - weights of the layer|, same input
drift     the same against the model's own pass, whose input differs by rounding in the layers before; no limit
prefix    share of the attention that goes to class token and registers, which are no place in the picture
replay    maps and log-probabilities that a search gathered step by step - those of one pass over its caption
limits    the tolerance; for outputs, logits and log-probabilities times the largest of them where that is above 1
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap verify`."""
    add_model(parser, more="; of a model that translates: sentences")
    parser.add_argument("--json", metavar="FILE", help="also write all numbers to a new file")


def run(arguments: argparse.Namespace) -> int:
    """Check on photos that the attention shown is what the model computed.

    Of a translation model, sentences take the place of photos. Prints a table of layers and a verdict for each photo;
    the exit status is 0 if all numbers are within the tolerance, and 1 if not.
    """
    target = None if arguments.json is None else Path(arguments.json)
    if target is not None and target.exists():
        raise UsageError(f"{target} is there already: name another --json, or remove it")
    if target is not None:
        output_folder(str(target.parent), "--json")  # now, and not after the work
    note = (lambda text: None) if arguments.quiet else (lambda text: print(f"vitcap: {text}", file=sys.stderr))
    door = load(arguments, "caption", "translate", "classify")
    if hasattr(door, "translate"):
        items = list(dict.fromkeys(arguments.photos))
        if files := [item for item in items if os.path.exists(item)]:
            raise UsageError(f"{files[0]}: a file, and {arguments.model} translates; give sentences")
    else:
        items = picture_paths(arguments.photos, note)
    from vitcap.explain.verify import verify

    found, unread = [], 0
    for item in items:
        try:
            result = verify(door, item)
        except ImageError as error:
            unread += 1
            print(f"vitcap: skipped {error}", file=sys.stderr)
            continue
        found.append(result)
        print("\n".join(lines(result)), flush=True)
    if found and not arguments.quiet:
        print(LEGEND.rstrip())
    if target is not None:
        report = {"model": arguments.model, "checked": [_finite(result.to_dict()) for result in found]}
        text = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
        with whole(target) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")  # \udcff is JSON, too
    if unread:
        print(f"vitcap: {unread} of {len(items)} pictures could not be read", file=sys.stderr)
    return 0 if found and not unread and all(result.ok for result in found) else 1


def lines(result: Verification) -> Iterator[str]:
    """The table of one picture, and the verdict."""
    places = f"{result.prefix} of {result.places} places are prefix tokens"
    yield f"{result.source}: {result.dtype} on {result.device}, tolerance {result.tolerance:g}, {places}"
    names = [layer.name for layer in result.layers]
    wide = max(map(len, [*names, "logits, end to end"]))
    if names:
        yield f"  {'layer':{wide}}  {'output':>8}  {'row sums':>8}  {'map':>8}  {'drift':>8}  {'prefix':>7}"
    for layer in result.layers:
        yield f"  {layer.name:{wide}}  " + "  ".join(_cells(layer, result.prefix))
    yield f"  {'logits, end to end':{wide}}  {_number(result.logit_error)}"
    if result.replays:
        yield f"  {'replay of maps':{wide}}  {'map':>8}  {'log-prob':>8}"
    for one in result.replays:
        numbers = f"{_number(one.map_error)}  {_number(one.log_prob_error)}"
        yield f"  {f'{one.search} {one.rank}':{wide}}  {numbers}  {one.text}"
    yield from (f"  note: {text}" for text in result.notes)
    problems = result.problems()
    yield from (f"  FAILED: {text}" for text in problems)
    yield "  verdict: " + ("NOT within the tolerance" if problems else "all within the tolerance")


def _cells(layer: LayerCheck, prefix: int) -> list[str]:
    numbers = [_number(x) for x in (layer.path_error, layer.row_error, layer.map_error, layer.drift)]
    return [*numbers, f"{f'{layer.prefix:.1%}' if prefix and layer.prefix is not None else '-':>7}"]


def _number(x: float | None) -> str:
    return f"{'-' if x is None else f'{x:.1e}' if x else '0':>8}"


def _finite(value: Any) -> Any:
    """NaN and infinity, which JSON does not know, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
