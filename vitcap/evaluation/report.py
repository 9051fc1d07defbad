"""What all evaluations write: scores with the facts of how they were obtained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitcap.writer import Search


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
    path.write_text(text + "\n", encoding="utf-8")
