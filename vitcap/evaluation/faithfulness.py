"""Which map shows what a model uses: patches are taken away in the order of each, and the orders are ranked by what
happens to the words of a caption, or to the predicted class."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.images import ImageError
from vitcap.data.pictures import CaptionData
from vitcap.evaluation.controls import centre_map, random_weights
from vitcap.evaluation.faithfulness_report import (
    CENTRE,
    FIGURES,
    OCCLUSION,
    OTHER,
    RANDOM,
    UNTRAINED,
    mean,
    summarise,
    table,
)
from vitcap.evaluation.perturbation import BLOCKS, SUBSTRATES, Removal, score_kept
from vitcap.evaluation.report import describe_search, write_json
from vitcap.evaluation.subjects import Subject, Target, choose_views, shown_view
from vitcap.explain.methods import unavailable
from vitcap.metrics.faithfulness import (
    combined,
    curve_area,
    deletion_masks,
    insertion_masks,
    removal_order,
    step_counts,
)
from vitcap.metrics.sharpness import Sharpness, spearman
from vitcap.record import View
from vitcap.types import require_number
from vitcap.writer import Search

Values = dict[str, NDArray[np.float64]]

DRAWS = 2
"""Random orders of each picture."""


def evaluate_faithfulness(
    door: Captioner | Classifier,
    data: CaptionData,
    split: str,
    *,
    out: Path,
    methods: Sequence[str | View] | str = "all",
    seed: int = 0,
    limit: int | None = 100,
    progress: Callable[[int, int], None] | None = None,
    facts: dict[str, Any] | None = None,
    search: Search | None = None,
    steps: int = 8,
    words: int | None = 3,
    substrate: str = "mean",
    noise: float = 0.01,
    probability: bool = True,
    batch_size: int | None = None,
) -> tuple[str, dict[str, Any]]:
    """Rank the methods on a split and write `faithfulness.json`. Returns a table as text, and the content of the file.

    methods: names of vitcap.explain.methods, or Views with layers and heads, or "all" that the model has; the view that
        is shown by default is added. seed: of the choice of pictures and words, of random order, noise and bootstrap.
    limit: pictures, drawn from the split without replacement; None for all. progress: called with (done, total).
    facts: further facts for the file. search: decoding of the captions, None for the model's own. steps: of every
        curve. words: so many words of each caption, drawn without replacement; None for all. Time grows with pictures x
        words x steps x methods. substrate: what stands for a removed patch in deletion and insertion, "mean" or "blur".
    noise: of ROAD, standard deviation in the normalised input. probability: of the class; False: its logit.
    batch_size: pictures at a time, None for what is fast: on a CPU fewer of large ones, which its caches hold.

    Patches are the cells of the model's grid, in its input, each around what it reads. Figures are means over the words
    of a picture, then over pictures; intervals are 95 % bootstrap intervals over pictures. Raises ValueError for
    options out of range, a model without maps, or a split of which no picture can be read.
    """
    for name, value, least in (("limit", limit, 2), ("words", words, 1), ("batch_size", batch_size, 1)):
        if value is not None:  # the maps of another picture are a control, so one picture is not enough
            require_number(name, value, least, whole=True)
    require_number("steps", steps, 2, whole=True)
    require_number("noise", noise, 0)
    out.mkdir(parents=True, exist_ok=True)  # now, and not after an hour
    views = choose_views(door, methods)
    subject = Subject(door, search=search, probability=probability)
    untrained = Subject(random_weights(door, seed), probability=probability)
    pictures, bad = _pictures(door, data, split, limit, seed)
    images = list(pictures.values())
    each: dict[str, dict[str, dict[str, float]]] = {}
    looks: list[dict[str, dict[str, float]]] = []
    levels = []
    for number, (id_, image) in enumerate(pictures.items()):
        generator = np.random.default_rng((seed, number))
        target = _some(subject.see(image, seed), words, generator)
        if target.words:
            other = images[number - 1]
            rows = subject.maps(image, target, views)
            looks.append({name: _look(values) for name, values in rows.items()})
            for control, of, seen in ((UNTRAINED, untrained, image), (OTHER, subject, other)):
                for name, values in of.maps(seen, target, views).items():
                    rows[f"{name}, {control}"] = values
                    looks[-1][name][control] = _agreement(rows[name], values)
            assert door.grid is not None
            with torch.inference_mode():
                normal = door.model.normalise(image[None].to(door.device))[0]
            size = batch_size or (256 if normal.is_cuda else max(4, min(64, 16 * 224**2 // normal[0].numel())))
            options: dict[str, Any] = {"box": door.grid_box, "substrate": substrate, "noise": noise}
            removal = Removal(normal, door.grid, generator=generator, **options)
            each[str(id_)], level = measure(subject, target, removal, rows, steps, generator, size)
            levels.append(level)
        if progress is not None:
            progress(number + 1, len(pictures))
    if not each:
        raise ValueError(
            f"data={data.source.name}, split {split}: no caption has a word, so there is nothing to measure"
        )
    about = {
        "data": data.source.name,
        "split": split,
        "images": len(each),
        "unreadable_images": bad,
        "images_of_split": len(data.records(split)),
        "chosen": "drawn without replacement" if len(pictures) < len(data.records(split)) else "all",
        "f": subject.score,
        "f_of_the_picture": float(np.mean([level[0] for level in levels])),
        "f_of_the_substrate_alone": float(np.mean([level[1] for level in levels])),
        "words_per_image": words if subject.captions and words is not None else "all",
        "patches": "x".join(map(str, door.grid or ())),
        "steps": steps,
        "substrate": SUBSTRATES[substrate],
        "imputation": f"ROAD, on {BLOCKS[-1]} x {BLOCKS[-1]} blocks of each patch, noise {noise}, ends left out",
        "ties": "in a random order of the picture",
        "intervals": "95 %, bootstrap over pictures, 2000 draws",
        "seed": seed,
        **({"decoding": describe_search(search or door.search)} if isinstance(door, Captioner) else {}),
        **(facts or {}),
    }
    report = summarise(each, looks, views, shown_view(door, views), seed=seed)
    report |= {"unavailable": unavailable(door.model), "facts": about}
    write_json(out / "faithfulness.json", report | {"per_image": each})
    return table(report), report


def measure(
    subject: Subject,
    target: Target,
    removal: Removal,
    rows: Values,
    steps: int,
    generator: np.random.Generator,
    batch_size: int,
) -> tuple[dict[str, dict[str, float]], tuple[float, float]]:
    """Figures of every row of maps (W, N) and of the controls, means over the words of one picture; and f, mean over
    the words, of the picture and of the substrate alone."""
    count, n = len(target.words), removal.grid[0] * removal.grid[1]
    draws = [generator.permutation(n) for _ in range(DRAWS)]
    counts = step_counts(n, steps)
    inner, top = counts[(counts > 0) & (counts < n)], max(1, round(n / 4))

    def ask(picture: Callable[..., Tensor], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        return score_kept(lambda images: subject.scores(images, target), picture, kept, batch_size=batch_size)

    alone = ask(removal.on_substrate, np.concatenate([~np.eye(n, dtype=bool), np.ones((1, n), dtype=bool)]))
    centre = np.tile(centre_map(removal.grid).ravel(), (count, 1))
    rows = rows | {CENTRE: centre, OCCLUSION: (alone[-1] - alone[:-1]).T}
    # With each random order its reverse, so that LeRF - MoRF is exactly what it is on average, 0.
    rows |= {
        f"{RANDOM} {i}": np.tile(v, (count, 1)) for i, v in enumerate(x for d in draws for x in (d * 1.0, -1.0 * d))
    }
    masks: tuple[list[Any], list[Any]] = ([], [])
    for values in (one for maps in rows.values() for one in maps):
        most, least = (removal_order(values, least=low, ties=draws[0]) for low in (False, True))
        ends = [deletion_masks(most, counts), insertion_masks(most, counts)]
        ends += [deletion_masks(most, [top]), insertion_masks(most, [top])]
        masks[0].append(np.concatenate(ends))
        masks[1].append(np.concatenate([deletion_masks(most, inner), deletion_masks(least, inner)]))
    on, road = (
        ask(picture, np.concatenate(kept)).reshape(len(rows), count, -1, count)
        for picture, kept in zip((removal.on_substrate, removal.imputed), masks, strict=True)
    )
    figures = {}
    for row, name in enumerate(rows):
        words = []
        for w in range(count):
            deletion, insertion, rest = np.split(on[row, w, :, w], [len(counts), 2 * len(counts)])
            first, last = np.split(road[row, w, :, w], 2)
            full = deletion[0]
            words.append(
                (
                    combined(last, first),
                    first.mean(),
                    last.mean(),
                    curve_area(deletion, counts),
                    curve_area(insertion, counts),
                    full - rest[0],
                    full - rest[1],
                )
            )
        figures[name] = dict(zip(FIGURES, np.mean(words, axis=0).tolist(), strict=True))
    drawn = [figures.pop(name) for name in list(figures) if name.startswith(f"{RANDOM} ")]
    figures[RANDOM] = {key: float(np.mean([one[key] for one in drawn])) for key in FIGURES}
    ends = on[0, 0, [0, len(counts)]].mean(1)
    return figures, (float(ends[0]), float(ends[1]))


def _pictures(
    door: Captioner | Classifier, data: CaptionData, split: str, limit: int | None, seed: int
) -> tuple[dict[int | str, Tensor], int]:
    """id -> (3, H, W) uint8, of some records of a split in its order; and how many cannot be read."""
    records = data.records(split)
    chosen = np.arange(len(records))
    if limit is not None and limit < len(records):
        chosen = np.sort(np.random.default_rng(seed).choice(len(records), limit, replace=False))
    preprocess = data.preprocess if data.preprocess is not None else door.preprocess
    found: dict[int | str, Tensor] = {}
    bad = 0
    for index in chosen.tolist():
        record = records[index]
        try:
            found[record.image_id] = preprocess(record.open())
        except ImageError as error:
            if data.on_bad == "error":
                raise
            data.bad[split][record.image_id] = str(error)
            bad += 1
    if len(found) < 2:
        raise ValueError(
            f"data={data.source.name}, split {split}: {len(found)} pictures can be read; 2 or more are wanted"
        )
    return found, bad


def _some(target: Target, words: int | None, generator: np.random.Generator) -> Target:
    if words is None or words >= len(target.words):
        return target
    chosen = np.sort(generator.choice(len(target.words), words, replace=False))
    return Target(target.ids, tuple(target.words[i] for i in chosen))


def _look(maps: NDArray[np.float64]) -> dict[str, float]:
    """Mean sharpness of the words' maps (W, N), what is below 0 as 0; and the share of maps that are 0 everywhere."""
    whole = [Sharpness.of(one.clip(0)) for one in maps if one.max() > 0]
    look = {key: mean([getattr(s, key) for s in whole]) for key in Sharpness.__dataclass_fields__}
    return {key: math.nan if v is None else v for key, v in look.items()} | {"empty": 1 - len(whole) / len(maps)}


def _agreement(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    found = mean([spearman(x, y) for x, y in zip(a, b, strict=True)])
    return math.nan if found is None else found
