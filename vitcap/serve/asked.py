"""What a request asks of the models: its options, checked, and the search that they mean."""

from __future__ import annotations

import argparse
import re
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitcap.captioner import Captioner
from vitcap.cli.options import build_search, number
from vitcap.data.images import Encoded
from vitcap.decoding import Sample
from vitcap.explain.methods import CAPTION_METHODS
from vitcap.serve.limits import MOST_BEAMS, MOST_LENGTH, MOST_N_BEST, Refused
from vitcap.writer import Search


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: true or false is wanted")
    return text == "true"


def _text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("empty: a text is wanted")
    return text


SEARCH: dict[str, Callable[[str], Any]] = {
    "beams": number(int, 1, MOST_BEAMS),
    "length_penalty": number(float, 0, 10),
    "max_length": number(int, 1, MOST_LENGTH),
    "min_length": number(int, 0, MOST_LENGTH),
    "no_repeat_ngram": number(int, 0, MOST_LENGTH),
    "sample": _flag,
    "temperature": number(float, 0, 100, above=True),
    "top_k": number(int, 0, 10**6),
    "top_p": number(float, 0, 1, above=True),
    "seed": number(int, 0, 2**63 - 1),
    "n_best": number(int, 1, MOST_N_BEST),
}
"""Options of the search, named as those of `vitcap caption`, with their limits."""
OPTIONS = SEARCH | {"model": _text, "caption": _text, "attention": _flag, "method": _text}


@dataclass(frozen=True)
class Served:
    """A model that is served. name: what requests call it; facts: what is told of it, in plain JSON types."""

    name: str
    door: Captioner
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Asked:
    """A picture, the models that are to read it, and how.

    searches: of each model, and n_best: captions that they give; seed: of a sampling search. caption: a text that is
    read in place of being written. methods: of the maps that are wanted; None for none. view: whether the answer is for
    the page, with the photo.
    """

    picture: Encoded
    models: tuple[Served, ...]
    searches: tuple[Search, ...]
    n_best: int
    seed: int | None
    caption: str | None
    methods: tuple[str, ...] | str | None
    view: bool

    @property
    def kind(self) -> Hashable:
        """Equal for asks whose pictures may share a batch; None where what is drawn depends on the place in it."""
        if self.caption is not None or any(isinstance(search, Sample) for search in self.searches):
            return None
        return tuple(id(model) for model in self.models), self.searches, self.n_best, self.methods, self.view


def read_options(picture: Encoded, options: Mapping[str, str], models: Sequence[Served], *, view: bool) -> Asked:
    """What a request asks for. view: for the page: of all models where it names none, with all methods.

    Raises Refused (400) that names the option.
    """
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in OPTIONS or (view and name in ("attention", "method")):
            raise Refused(400, f"{name[:40]}: no such option; there are {', '.join(OPTIONS)}")
        try:
            values[name] = OPTIONS[name](text)
        except argparse.ArgumentTypeError as error:
            raise Refused(400, f"{name}={error}") from None
    caption, n_best = values.get("caption"), values.get("n_best", 1)
    if caption is not None and (search := [name for name in options if name in SEARCH]):
        raise Refused(400, f"{search[0]}: is for captions that the model writes; caption gives one")
    chosen = _models(models, values.get("model"), every=view)
    searches = tuple(_search(model, values, n_best) for model in chosen)
    seed = values.get("seed")
    if seed is None and any(isinstance(search, Sample) for search in searches):
        seed = secrets.randbelow(2**31)  # which the answer tells, so that it can be asked for again
    return Asked(picture, chosen, searches, n_best, seed, caption, "all" if view else _methods(values, chosen), view)


def _models(models: Sequence[Served], name: str | None, *, every: bool) -> tuple[Served, ...]:
    if name is None:
        return tuple(models) if every else (models[0],)
    if named := [model for model in models if model.name == name]:
        return (named[0],)
    raise Refused(400, f"model={name[:80]!r}: there is no such model here; {', '.join(m.name for m in models)}")


def _methods(values: Mapping[str, Any], chosen: Sequence[Served]) -> tuple[str, ...] | None:
    """Names of the maps that are wanted; the first of them is shown."""
    method = values.get("method")
    if method is None:
        return (chosen[0].facts["shown"],) if values.get("attention") else None
    if not values.get("attention"):
        raise Refused(400, "method: is for maps; add attention=true")
    have = chosen[0].facts["methods"]
    if method not in have:
        lacks = "this model lacks it" if method in CAPTION_METHODS else "there is no such method"
        raise Refused(400, f"method={method[:40]!r}: {lacks}; it has {', '.join(have)}")
    return (method,)


def _search(model: Served, values: Mapping[str, Any], n_best: int) -> Search:
    names = [name for name in SEARCH if name not in ("sample", "n_best")]
    arguments = argparse.Namespace(**{name: values.get(name) for name in names}, sample=values.get("sample", False))
    if (length := values.get("max_length")) is not None and length > model.facts["max_length"]:
        raise Refused(400, f"max_length={length}: {model.name} writes at most {model.facts['max_length']} tokens")
    try:
        return build_search(arguments, model.door.search, n_best) or model.door.search
    except ValueError as error:  # it names the options of the command line
        told = re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), str(error))
        raise Refused(400, told.replace("add sample", "add sample=true")) from None
