"""The report of grounding for people: a table, and a picture of lift by method, layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from vitcap.evaluation.grounding_report import ENOUGH
from vitcap.evaluation.grounding_work import OTHER, RANDOM
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
LEGEND = {
    "lift": "share of the map on the object over the object's share of the picture; 1 is a map that looks nowhere",
    "mean lift": "the same word by word, then the mean, which small objects rule",
    "on object": "% of the map that lies on the object",
    "pointing": "% of words whose map is highest on the object (pointing game)",
    "near": "likewise, or at most a few pixels beside it",
    "rank": "% of the highest pixels, as many as the object has, that are the object's",
    "box IoU": "overlap of the box around the high part of the map with the object's, % of both together",
    "IoU > .5": "% of words where that is above half",
    "mean IoU": "mean overlap of what is above the map's mean with the object, and of the rest with the rest, %",
    "empty": "% of maps without any mass on the picture",
}
"""What the columns are."""
_SUMMARY = ("lift", "correctness", "pointing", "iou")
_TITLES = {
    "nouns": "nouns, against the objects that they name",
    "any object": "the same nouns, against all objects of the picture",
    "attributes": "words of attributes, against the objects that are so",
    "function words": "function words (a, of, on, ...), against all objects; about 1 if they look nowhere",
}
_SHOWN_CATEGORIES = 25


def summary(report: dict[str, Any], where: object) -> str:
    """The report in some 25 lines: nouns under each method, the shown view beside its controls, and what the columns
    are. where: the folder of the tables with all of it."""
    facts, verdict, nouns = report["facts"], report["verdict"], report["words"]["nouns"]
    shown, controls = verdict["shown"], list(verdict["gain_over"])
    methods = [row for row in nouns if row not in (shown, *controls) and not row.startswith((OTHER, RANDOM))]
    rows = {row: nouns[row] for row in (shown, *controls, *methods)}
    lines = [headline(facts, f"{facts['pictures']} pictures"), f"captions: {facts['protocol']}; {facts['regions']}", ""]
    lines += [f"{_TITLES['nouns']} ({nouns[shown]['words']} words; [95 % intervals])", *_rows(rows, _SUMMARY)]
    if shown in (functions := report["words"]["function words"]):
        lines.append(f"function words under {shown}: lift {_cell(functions[shown]['lift'], 1, 2, limits=True).strip()}")
    wide = max(len(_COLUMNS[name][0]) for name in _SUMMARY)
    lines += ["", *(f"  {_COLUMNS[name][0]:<{wide}}  {LEGEND[_COLUMNS[name][0]]}" for name in _SUMMARY)]
    lines += ["", *_ends(report)]
    return "\n".join([*lines, f"all words, layers, heads and categories: {where}/grounding.txt"])


def table(report: dict[str, Any]) -> str:
    """The report as text; figures in per cent but for lifts, intervals of 95 % by resampling pictures."""
    facts = report["facts"]
    lines = [headline(facts, f"{facts['pictures']} pictures"), f"captions: {facts['protocol']}; {facts['regions']}"]
    for group, title in _TITLES.items():
        if rows := report["words"][group]:
            lines += ["", f"{title} ({next(iter(rows.values()))['words']} words)", *_rows(rows)]
    wide = max(map(len, LEGEND))
    lines += ["", "columns", *(f"  {name:<{wide}}  {what}" for name, what in LEGEND.items())]
    lines += ["", *_views(report["layers_heads"])]
    lines += ["best by lift on nouns:", *(_place(one) for one in report["best"][:6]), "", *_f1(report), ""]
    lines += [*_box_accuracy(report["box_accuracy"]), "", *_hallucination(report), ""]
    lines += [*_categories(report["categories"], report["verdict"]["shown"]), ""]
    return "\n".join([*lines, *_ends(report)])


def _ends(report: dict[str, Any]) -> list[str]:
    """What was left out, and the verdict."""
    facts, verdict = report["facts"], report["verdict"]
    left = ", ".join(f"{count} {what}" for what, count in facts["left_out"].items() if count)
    lines = [f"left out: {left}"] if left else []
    lines += [f"not available: {name} ({reason})" for name, reason in facts["unavailable"].items()]
    if worse := [control for control in verdict["gain_over"] if control not in verdict["better_than"]]:
        lines.append(f"{verdict['shown']} puts no more of its map on the named objects than: {'; '.join(worse)}")
    return [*lines, verdict["text"]]


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


def _rows(rows: dict[str, Any], names: Sequence[str] = tuple(_COLUMNS)) -> list[str]:
    columns = {name: _COLUMNS[name] for name in names if name in next(iter(rows.values()))}
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


def _box_accuracy(rows: dict[str, Any]) -> list[str]:
    wide = max(map(len, rows))
    lines = ["nouns whose box overlaps the object's by more than half (IoU > .5)"]
    lines.append("  " + " " * wide + f"{'mean of categories':>22}{'of all words':>22}")
    for row, found in rows.items():
        cells = (_cell(found[name], 100, 1, limits=True).rjust(22) for name in ("by_class", "by_word"))
        lines.append(f"  {row:<{wide}}" + "".join(cells))
    return lines


def _hallucination(report: dict[str, Any]) -> list[str]:
    rows = report["hallucination"]
    first = next(iter(rows.values()))
    chair = (f"{name} {_cell(first[name], 100, 1, limits=True).strip()}" for name in ("CHAIR_i", "CHAIR_s"))
    wide = max(map(len, rows))
    lines = [
        f"objects that captions mention: {first['mentions']}; absent {first['absent']}, told of but not annotated "
        f"{first['told']}; {', '.join(chair)}",
        f"  {'peak of the map on the object':<{wide}}{'grounded':>11}{'ungrounded':>12}{'of the present':>22}",
    ]
    for row, found in rows.items():
        counts = f"{_number(found['grounded']):>11}{_number(found['ungrounded']):>12}"
        share = _cell(found["grounded_given_present"], 100, 1, limits=True)
        lines.append(f"  {row:<{wide}}{counts}{share:>22}")
    return lines


def _categories(categories: dict[str, Any], shown: str) -> list[str]:
    """The shown view (own) beside a uniform map and random weights."""
    names = list(categories)[:_SHOWN_CATEGORIES]
    wide = max([len("category"), *map(len, names)])
    rows = {"own": shown, "uniform": "uniform", "random": RANDOM + shown}
    trio = "".join(f"{name:>8}" for name in rows)
    lines = [
        f"categories under {shown}, beside a uniform map (lift 1) and random weights",
        f"  with intervals where at least {ENOUGH} pictures name an object of the category",
        " " * (wide + 16) + f"{'lift: own':>21}{'lift: random':>21}{'pointing':>24}{'box IoU':>24}",
        f"  {'category':<{wide}}{'words':>7}{'absent':>7}" + " " * 42 + trio * 2,
    ]
    for name in names:
        one = categories[name]
        line = f"  {name:<{wide}}{one['words']:>7}{one['absent']:>7}"
        if maps := one["maps"]:
            line += "".join(_cell(maps[rows[row]]["lift"], 1, 2, limits=True).rjust(21) for row in ("own", "random"))
            for figure in ("pointing", "iou"):
                line += "".join(f"{_cell(maps[row][figure], 100, 1, limits=False).strip():>8}" for row in rows.values())
        lines.append(line)
    rest = len(categories) - len(names)
    return [*lines, f"  and {rest} more in grounding.json"] if rest else lines


def _number(count: float) -> str:
    """A count; of baselines with equal peaks, an expected one."""
    return f"{count:.1f}" if isinstance(count, float) else str(count)
