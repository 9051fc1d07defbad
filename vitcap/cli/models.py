"""`vitcap models`: the models that come with the package."""

from __future__ import annotations

import argparse

from vitcap import pretrained
from vitcap.cli.options import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap models`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the card of this model: data, scores, limits")


def run(arguments: argparse.Namespace) -> int:
    """List the packaged models, or show the card of one.

    Prints a line "name<TAB>megabytes<TAB>what it is" for each; `vitcap caption --model NAME` uses one.
    """
    if arguments.name is not None:
        if arguments.name not in pretrained.names():
            raise UsageError(f"{arguments.name}: no packaged model; there are {', '.join(pretrained.names())}")
        print(pretrained.card(arguments.name).rstrip())
        return 0
    for name in pretrained.names():
        default = " (default)" if name == pretrained.DEFAULT else ""
        megabytes = pretrained.path(name).stat().st_size / 1e6
        print(f"{name}\t{megabytes:.1f} MB\t{summary(pretrained.card(name))}{default}")
    return 0


def summary(card: str) -> str:
    """The first paragraph of a card, on one line."""
    paragraphs = [part for part in card.split("\n\n") if part.strip() and not part.startswith("#")]
    return " ".join(paragraphs[0].split()) if paragraphs else ""
