"""What is written of one picture: its caption, how sure the model is of it, the text that a template makes of it."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from string import Formatter
from typing import Any

from vitcap.cli.options import UsageError

FIELDS = ("caption", "probability", "score", "path", "folder", "name", "stem")
"""Fields of a template: the caption, its probability (0..1) and score; the photo's path as given, the name of its
folder, its own name with and without the ending."""


class Template:
    """Text with fields in braces, as `str.format` takes it, such as "a photo of {caption}"; UsageError for another.

    text: None for the caption alone.
    """

    def __init__(self, text: str | None) -> None:
        self.text = text
        if text is None:
            return
        try:
            named = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
            if not (wrong := [name for name in named if name not in FIELDS]):
                text.format(**_values("photo.jpg", {"caption": "a dog", "probability": 0.5, "score": -1.0}))
                return
            problem = f"there is no field {{{wrong[0]}}}"
        except (ValueError, LookupError, TypeError, AttributeError, MemoryError) as error:
            problem = str(error) or "wider than memory"
        raise UsageError(
            f"--template {text!r}: {problem}; fields are {', '.join(f'{{{name}}}' for name in FIELDS)}, "
            "and a brace itself is written twice"
        )

    def __call__(self, row: dict[str, Any]) -> str:
        """The text of a picture with such a row."""
        return row["caption"] if self.text is None else self.text.format(**_values(row["image"], row))


def _values(path: str, row: dict[str, Any]) -> dict[str, Any]:
    folder, name = os.path.split(os.path.abspath(path))
    values = {"path": path, "folder": os.path.basename(folder), "name": name, "stem": os.path.splitext(name)[0]}
    return values | {"caption": row["caption"]} | {key: float(row[key]) for key in ("probability", "score")}


def record(path: str, caption: Any, tokenizer: Any) -> dict[str, Any]:
    """What is known of the caption of one picture, in plain JSON types. Log-probabilities are natural logarithms.

    `probability` is the geometric mean of the probabilities of the caption's tokens, its end included.
    """
    from vitcap.types import EOS  # here, as it imports torch, and `vitcap --help` need not wait for that

    def entry(one: Any) -> dict[str, Any]:
        texts = ["<eos>" if token == EOS else tokenizer.decode([token]) for token in one.tokens]
        return {
            "caption": one.text,
            "probability": round(one.probability, 6),
            "score": round(one.score, 6),
            "finished": one.finished,
            "tokens": [
                {"text": text, "log_prob": round(value, 6)} for text, value in zip(texts, one.log_probs, strict=True)
            ],
        }

    return {"image": path, **entry(caption), "n_best": [entry(one) for one in (caption, *caption.alternatives)]}


def dump(values: dict[str, Any]) -> str:
    """One line of JSON; readable letters, unless a file name has bytes that are no UTF-8."""
    line = json.dumps(values, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(values)
    return line


def spell(search: Any, **others: Any) -> str:
    """A search and other options in one line, by which a later run tells whether it asks for the same."""
    options = {field.name: getattr(search, field.name) for field in fields(search)} | others
    given = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in options.items() if value is not None]
    return " ".join([type(search).__name__.lower(), *given])
