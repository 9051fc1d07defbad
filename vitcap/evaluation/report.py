"""What all evaluations share: facts in plain types, files, and a look whether Java's programs can start. No torch."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcap.files import whole
from vitcap.metrics import java

if TYPE_CHECKING:
    from vitcap.writer import Search

log = logging.getLogger(__name__)

Java = bool | Mapping[str, Any] | None


def describe_search(search: Search) -> dict[str, Any]:
    """Name and settings of a decoding, in plain JSON types."""
    return {"search": type(search).__name__.lower(), **json.loads(json.dumps(asdict(search)))}  # type: ignore[call-overload]


def headline(facts: dict[str, Any], count: str) -> str:
    """Data, split, how much of it, and the decoding if there is one, on a line after an empty one."""
    decoding = ", ".join(f"{name} {value}" for name, value in facts.get("decoding", {}).items())
    return f"\n{facts['data']}, split {facts['split']}, {count}" + (f", decoding: {decoding}" if decoding else "")


def write_json(path: Path, content: Any) -> None:
    """Readable JSON in UTF-8; NaN, which JSON does not have, is an error."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    with whole(path) as part:
        part.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def preflight(*, meteor: Java = False, spice: Java = False) -> None:
    """Warn in one line of METEOR or SPICE that cannot start: before an hour of captions, not after it.

    True, or options of vitcap.metrics.java.meteor and spice (java, folder, limit, ...); ValueError for unknown ones.
    """
    for option, wanted, program in (("meteor", meteor, java.meteor), ("spice", spice, java.spice)):
        if wanted is None or wanted is False:
            continue
        known = [n for n, p in inspect.signature(program).parameters.items() if p.kind is p.KEYWORD_ONLY]
        options = {} if wanted is True else wanted
        if not isinstance(options, Mapping) or (unknown := sorted(set(options) - set(known))):
            what = f"has no {', '.join(unknown)}" if isinstance(options, Mapping) else f"cannot be {options}"
            raise ValueError(f"{option} {what}: true, false or {{{', '.join(f'{name}: ...' for name in known)}}}")
        try:
            java.preflight(option.upper(), folder=options.get("folder"), java=options.get("java"))
        except java.JavaUnavailable as error:
            what = "" if str(error).startswith(option.upper()) else f"{option.upper()}: "
            log.warning("%s%s; all other scores will come", what, error)
