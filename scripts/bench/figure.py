"""Log-log curves against the length, with guide lines of slope 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Points = Sequence[tuple[float, float]]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart also by the colour-blind (Okabe and Ito 2008)."""


@dataclass(frozen=True)
class Panel:
    """label: of the vertical axis. curves: name -> (N, value) points; a name that ends in DASHED is drawn in the colour
    of the name without it. guides: exponent -> a point that the line N^exponent goes through."""

    title: str
    label: str
    curves: Mapping[str, Points]
    guides: Mapping[int, tuple[float, float]]


DASHED = " and backward"


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write a PNG. Raises ModuleNotFoundError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * len(panels), 5.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    bases = list(dict.fromkeys(name.removesuffix(DASHED) for name in names))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        lengths = sorted({n for points in panel.curves.values() for n, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for name, points in panel.curves.items():
            dashed = name.endswith(DASHED)
            axes.plot(
                *zip(*[(n, y) for n, y in points if y > 0], strict=True),
                color=COLOURS[bases.index(name.removesuffix(DASHED))],
                linestyle="--" if dashed else "-",
                marker="s" if dashed else "o",
                markersize=4.5,
                label=name,
            )
        low, high = axes.get_ylim()
        for exponent, (n, y) in panel.guides.items():
            line = [y * (length / n) ** exponent for length in lengths]
            axes.plot(lengths, line, color="0.55", linestyle=":", linewidth=1.2, zorder=0)
            inside = [(x, v) for x, v in zip(lengths, line, strict=True) if low < v < high]
            x, v = inside[(len(inside) - 1) // 2] if inside else (lengths[0], line[0])
            text = "~ N" if exponent == 1 else f"~ N$^{exponent}$"
            axes.annotate(text, (x, v), (4, -9), textcoords="offset points", fontsize=9, color="0.35")
        axes.set_ylim(low, high)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=45, fontsize=9)
        axes.minorticks_off()
        axes.grid(color="0.9", linewidth=0.6)
        axes.set(title=panel.title, xlabel="length N (tokens)", ylabel=panel.label)
        axes.legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def curves(rows: Sequence[Mapping], key: str, scale: float) -> dict[str, list[tuple[float, float]]]:
    """Name -> (N, value) points of rows whose case has an "N" and perhaps a "pass". key: "median_s" or "peak_bytes"."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row[key] is not None:
            name = row["candidate"] + (DASHED if "backward" in row["case"].get("pass", "") else "")
            found.setdefault(name, []).append((row["case"]["N"], row[key] * scale))
    return found
