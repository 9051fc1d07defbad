"""The report of grounding for people: a table, and a picture of lift by method, layer and head."""

from __future__ import annotations

from typing import Any

from PIL import Image

from vitcap.evaluation.report import headline
from vitcap.viz.bars import bars_and_tables

_COLUMNS = {
    "lift": ("lift", 1, 2),
    "mean_lift": ("mean lift", 1, 2),
    "correctness": ("on object", 100, 1),
    "pointing": ("pointing", 100, 1),
    "near": ("near", 100, 1),
    "rank_accuracy": ("rank", 100, 1),
    "iou": ("box IoU", 100, 1),
    "box_hit": ("IoU > .5", 100, 1),
    "mean_iou": ("mean IoU", 100, 1),
    "empty": ("empty", 100, 1),
}
_TITLES = {
    "nouns": "nouns, against the objects that they name",
    "any object": "the same nouns, against all objects of the picture",
    "attributes": "words of attributes, against the objects that are so",
    "function words": "function words (a, of, on, ...), against all objects; about 1 if they look nowhere",
}
_SHOWN_CATEGORIES = 25


def table(report: dict[str, Any]) -> str:
    """The report as text; figures in per cent but for lifts, intervals of 95 % by resampling pictures."""
    facts = report["facts"]
    lines = [headline(facts, f"{facts['pictures']} pictures"), f"captions: {facts['protocol']}; {facts['regions']}"]
    for group, title in _TITLES.items():
        if rows := report["words"][group]:
            lines += ["", f"{title} ({next(iter(rows.values()))['words']} words)", *_rows(rows)]
    lines += ["", *_views(report["layers_heads"])]
    lines += ["best by lift on nouns:", *(_place(one) for one in report["best"][:6]), "", *_f1(report), ""]
    lines += [*_hallucination(report), "", *_categories(report["categories"]), ""]
    left = ", ".join(f"{count} {what}" for what, count in facts["left_out"].items() if count)
    lines += [f"left out: {left}"] if left else []
    lines += [f"not available: {name} ({reason})" for name, reason in facts["unavailable"].items()]
    verdict = report["verdict"]
    if worse := [control for control in verdict["gain_over"] if control not in verdict["better_than"]]:
        lines.append(f"{verdict['shown']} puts no more of its map on the named objects than: {'; '.join(worse)}")
    return "\n".join([*lines, verdict["text"]])


def picture(report: dict[str, Any]) -> Image.Image:
    """Lift on nouns of every row with its interval, and of every layer and head."""
    rows = report["words"]["nouns"]
    bars = {row: tuple(found["lift"][key] for key in ("value", "low", "high")) for row, found in rows.items()}
    tables = {
        f"{method}, {group}: lift by layer and head": groups[group]["lift"]
        for method, groups in report["layers_heads"].items()
        for group in ("nouns", "function words")
        if group in groups
    }
    facts = report["facts"]
    title = f"Lift on nouns (line: uniform): {facts['data']}, {facts['split']}, {facts['pictures']} pictures"
    return bars_and_tables(title, bars, tables)


def _rows(rows: dict[str, Any]) -> list[str]:
    columns = {name: at for name, at in _COLUMNS.items() if name in next(iter(rows.values()))}
    wide = max(map(len, rows))
    lines = [
        "  "
        + " " * wide
        + "".join(f"{title:>20}" if i < 1 else f"{title:>11}" for i, (title, _, _) in enumerate(columns.values()))
    ]
    for row, figures in rows.items():
        cells = [
            _cell(figures[name], times, digits, limits=i < 1)
            for i, (name, (_, times, digits)) in enumerate(columns.items())
        ]
        lines.append(f"  {row:<{wide}}" + "".join(cells))
    return lines


def _cell(figure: dict[str, Any], times: float, digits: int, *, limits: bool) -> str:
    if figure["value"] is None:
        return f"{'-':>20}" if limits else f"{'-':>11}"
    text = f"{times * figure['value']:.{digits}f}"
    if limits and figure["low"] is not None:
        text += f" [{times * figure['low']:.{digits}f}, {times * figure['high']:.{digits}f}]"
    return f"{text:>20}" if limits else f"{text:>11}"


def _views(views: dict[str, Any]) -> list[str]:
    lines = []
    for method, groups in views.items():
        for group in ("nouns", "function words"):
            for figure in ("lift", "pointing") if group == "nouns" else ("lift",):
                if group not in groups:
                    continue
                values = groups[group][figure]
                times, digits = (1, 2) if figure == "lift" else (100, 1)
                heads = [*map(str, range(len(values[0]) - 1)), "mean"]
                lines.append(f"{method}, {group}: {figure} by layer (down) and head (across)")
                lines.append("  layer " + "".join(f"{head:>8}" for head in heads))
                for layer, row in enumerate(values):
                    name = "mean" if layer == len(values) - 1 else str(layer)
                    lines.append(f"  {name:>5} " + "".join(f"{times * value:>8.{digits}f}" for value in row))
                lines.append("")
    return lines


def _place(one: dict[str, Any]) -> str:
    where = [f"{kind} {one[kind]}" for kind in ("layer", "head") if one[kind] is not None]
    named = ", ".join([one["method"], *where]) if where else f"{one['method']}, mean"
    functions = one["function_words_lift"]
    told = "" if functions is None else f"   function words' lift {functions:5.2f}"
    return f"  {named:<34} lift {one['lift']:5.2f}   pointing {100 * one['pointing']:5.1f}{told}"


def _f1(report: dict[str, Any]) -> list[str]:
    names = ("F1_all", "F1_loc", "F1_all_per_sentence", "F1_loc_per_sentence")
    wide = max(map(len, report["f1"]))
    lines = []
    titles = {
        "coco": "box F1, all annotated categories wanted",
        "named": "box F1 as of Zhou et al. 2019, those wanted that people's captions name",
    }
    for variant, title in titles.items():
        rows = {row: found[variant] for row, found in report["f1"].items()}
        lines += [f"{title} ({next(iter(rows.values()))['classes']} categories)"]
        lines += ["  " + " " * wide + "".join(f"{name.replace('_per_sentence', '/sentence'):>18}" for name in names)]
        for row, figures in rows.items():
            lines.append(f"  {row:<{wide}}" + "".join(_cell(figures[n], 100, 1, limits=False).rjust(18) for n in names))
    return lines


def _hallucination(report: dict[str, Any]) -> list[str]:
    rows = report["hallucination"]
    first = next(iter(rows.values()))
    lines = [
        f"objects that captions mention: {first['mentions']}; CHAIR_i {_percent(first['CHAIR_i'])}, "
        f"CHAIR_s {_percent(first['CHAIR_s'])}",
        "  grounded: the peak of the map is on the object",
    ]
    wide = max(map(len, rows))
    for method, found in rows.items():
        lines.append(
            f"  {method:<{wide}}  grounded {found['grounded']}, ungrounded {found['ungrounded']}, absent "
            f"{found['absent']}, told of but not annotated {found['told']}; grounded of the present "
            f"{_percent(found['grounded_given_present'])}"
        )
    return lines


def _categories(categories: dict[str, Any]) -> list[str]:
    names = list(categories)[:_SHOWN_CATEGORIES]
    wide = max((len(name) for name in names), default=0)
    lines = [f"  {'category':<{wide}}   words  absent    lift  pointing  box IoU"]
    for name in names:
        one = categories[name]
        figures = f"{one['lift']:>8.2f}{100 * one['pointing']:>10.1f}{100 * one['iou']:>9.1f}" if one["words"] else ""
        lines.append(f"  {name:<{wide}}{one['words']:>8}{one['absent']:>8}{figures}")
    rest = len(categories) - len(names)
    return [*lines, f"  and {rest} more in grounding.json"] if rest else lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
