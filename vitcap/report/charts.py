"""The learning curves of a run: what metrics.csv holds, in charts that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vitcap.report.blocks import Chart
from vitcap.viz.svg import line_chart

Curve = Sequence[tuple[float, float]]

TIMES_100 = {
    "CIDEr-D, times 100": ("val/CIDEr-D",),
    "BLEU and ROUGE-L, times 100": ("val/BLEU-1", "val/BLEU-2", "val/BLEU-3", "val/BLEU-4", "val/ROUGE-L"),
    "captions that are true, %": ("val/true_seen", "val/true_held_out", "val/coverage"),
    "sentences without a mistake, %": ("val/exact",),
    "accuracy, %": ("val/top1", "val/top2", "val/top3", "val/top4", "val/top5"),
}
"""Title of a chart -> the columns that it shows, times 100."""
OTHERS = {
    "calibration error": ("val/ece",),
    "reward of the samples": ("train/reward_epoch", "train/baseline_epoch"),
    "penalty for places never looked at": ("train/doubly_stochastic",),
    "entropy of the places": ("train/places_entropy",),
    "steps left out": ("train/skipped_steps",),
}


def charts(curves: Mapping[str, Curve]) -> list[Chart]:
    """Loss, learning rate and scores; a score that was measured once only is no curve."""
    made = [*_loss(curves), *_rates(curves)]
    for title, names in TIMES_100.items():
        made += _chart(title, {n: [(x, 100 * y) for x, y in curves[n]] for n in names if n in curves})
    for title, names in OTHERS.items():
        made += _chart(title, {name: curves[name] for name in names if name in curves})
    return made


def _loss(curves: Mapping[str, Curve]) -> Iterator[Chart]:
    names = {"train/loss_step": "training, steps", "train/loss_epoch": "training, epochs", "val/loss": "validation"}
    lines = {told: curves[name] for name, told in names.items() if name in curves}
    if len(lines.get("training, epochs", ())) == 1:
        del lines["training, epochs"]
    if "train/reward_epoch" in curves and "validation" in lines:  # a reward and a cross-entropy do not compare
        yield from _chart("validation loss (cross-entropy)", {"validation": lines.pop("validation")}, one=True)
    yield from _chart("loss", lines, one=True, faint=("training, steps",) if "training, epochs" in lines else ())


def _rates(curves: Mapping[str, Curve]) -> Iterator[Chart]:
    """Groups without weight decay, and layers of one part, have the rate of others: each different line once."""
    lines: dict[str, Curve] = {}
    for name, points in curves.items():
        if name.startswith("lr-") and not any(list(points) == list(other) for other in lines.values()):
            lines[name.partition("/")[2] or name] = points
    most = sorted(lines, key=lambda name: -max(y for _, y in lines[name]))[:6]
    if len(lines) == 1:
        lines = {"all weights": next(iter(lines.values()))}
        most = list(lines)
    yield from _chart("learning rate", {name: lines[name] for name in lines if name in most}, zero=True)


def _chart(
    title: str, lines: Mapping[str, Curve], *, zero: bool = False, one: bool = False, faint: Sequence[str] = ()
) -> Iterator[Chart]:
    if not one:
        lines = {(name.partition("/")[2] or name).removesuffix("_epoch"): points for name, points in lines.items()}
    if not lines or max(len({x for x, _ in points}) for points in lines.values()) < 2:
        return
    told = "; ".join(
        f"{name} {points[0][1]:.4g} at step {points[0][0]:g}, {points[-1][1]:.4g} at step {points[-1][0]:g}"
        for name, points in lines.items()
    )
    options: dict = {"xlabel": "optimiser step", "alt": f"{title}: {told}", "zero": zero, "faint": faint}
    try:
        yield Chart(title, line_chart(lines, **options), line_chart(lines, page=False, **options), f"{title}: {told}")
    except (ValueError, OverflowError):  # not one finite number, or a span that is none
        return
