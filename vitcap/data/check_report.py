"""What a check of data found: errors, warnings and facts, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LEVELS = ("error", "warning", "fact")


@dataclass(frozen=True)
class Finding:
    """level: "error" (training would stop, or its scores be wrong), "warning" (worth a look) or "fact".

    what: in words. count: how many. names: of all of them, where they have names. split: where; "" for all the data.
    """

    level: str
    what: str
    count: int
    names: tuple[str, ...] = ()
    split: str = ""

    def line(self, first: int = 3) -> str:
        """A line, with the first names."""
        names = ", ".join(_line(name) for name in self.names[:first]) + (", ..." if len(self.names) > first else "")
        return f"{self.split and self.split + ': '}{self.count:,} {_line(self.what)}{names and f' ({names})'}"

    def text(self, first: int) -> str:
        """A line, and one for each of the first names."""
        names = [f"    {_line(name)}" for name in self.names[:first]]
        names += [f"    and {len(self.names) - first} more"] if len(self.names) > first else []
        return "\n".join([f"  {self.split and self.split + ': '}{self.count:,} {_line(self.what)}", *names])


@dataclass
class Report:
    """Findings about data. data: where it lies. format: how it was read. splits: split -> its figures.

    facts: figures of all the data, plain JSON types, a word or two the key.
    """

    data: str
    format: str
    findings: list[Finding] = field(default_factory=list)
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(
        self, level: str, what: str, names: Sequence[str] = (), *, count: int | None = None, split: str = ""
    ) -> None:
        """Note what was found, if there is any of it. count: where there are no names."""
        assert level in LEVELS
        if count := len(names) if count is None else count:
            self.findings.append(Finding(level, what, count, tuple(names), split))

    def of(self, level: str) -> list[Finding]:
        """The findings of a level."""
        return [finding for finding in self.findings if finding.level == level]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.of("error")

    def to_dict(self) -> dict[str, Any]:
        """Everything, all names included, as plain JSON types."""
        findings = [{**vars(finding), "names": list(finding.names)} for finding in self.findings]
        own = {"data": self.data, "format": self.format, "ok": self.ok}
        return own | {"splits": self.splits, "facts": self.facts, "findings": findings}

    def text(self, first: int = 5) -> str:
        """For people: grouped, with the count of each and the first names of it."""
        lines = [f"{self.data}: {self.format}"]
        for split, of in self.splits.items():
            told = ", ".join(f"{_figure(value)} {name}" for name, value in of.items() if _short(value))
            lines.append(f"  {split}: {told or 'nothing could be read'}")
        figures = [f"  {name}: {_figure(value)}" for name, value in self.facts.items() if _short(value)]
        for level in LEVELS:
            found = [finding.text(first) for finding in self.of(level)] + (figures if level == "fact" else [])
            lines += [f"{level}s", *found] if found else []
        errors, warnings = (len(self.of(level)) for level in LEVELS[:2])
        lines.append(
            f"{_plural(errors, 'error')}, {_plural(warnings, 'warning')}" if errors + warnings else "no problem"
        )
        return "\n".join(lines)


def _short(value: Any) -> bool:
    return not isinstance(value, dict | list)  # tables are for the JSON


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _line(text: str) -> str:
    return " ".join(text.split())
