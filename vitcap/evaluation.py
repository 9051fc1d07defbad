"""A captioner against a split: captions, scores, per-image scores and overlays on disk."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vitcap.captioner import Caption, Captioner, Search
from vitcap.data.module import CaptionData
from vitcap.data.records import Source
from vitcap.metrics.captions import Scores, score, write_results
from vitcap.tasks.callbacks import clock

Id = int | str


def judge_of(source: Source) -> Callable[[Mapping[Id, str]], dict[str, float]] | None:
    """For drawn scenes: shares (0..1) of captions that are true in every claim, by what training has shown.

    true_seen: scenes whose (colour, shape) pairs all occur in training; true_held_out: scenes with a pair that does
    not; coverage: mean share of a scene's objects that the caption truly names. None for photographs.
    """
    truth: Any = getattr(source, "truth", None)
    held_out: Any = getattr(source, "held_out", None)
    if truth is None or held_out is None:
        return None

    def judge(captions: Mapping[Id, str]) -> dict[str, float]:
        shares: dict[str, list[float]] = {}
        for id_, caption in captions.items():
            verdict = truth(id_, caption)
            shares.setdefault("true_held_out" if held_out(id_) else "true_seen", []).append(float(verdict.ok))
            shares.setdefault("coverage", []).append(verdict.coverage)
        return {name: sum(values) / len(values) for name, values in sorted(shares.items())}

    return judge


def caption_split(
    captioner: Captioner,
    data: CaptionData,
    split: str,
    *,
    search: Search,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[Id, Caption]:
    """Caption of every readable image of a split, in its order; the others are added to `data.bad`.

    search: as of vitcap.decoding. seed: of a sampling search. progress: called with (done, total) images.
    """
    loader = data.loader(split)
    generator = torch.Generator(captioner.device).manual_seed(seed)
    captions: dict[Id, Caption] = {}
    for batch in loader:
        with torch.inference_mode():
            memory = captioner.model.encode(batch.to(captioner.device))
            found = search(captioner.model.decoder, memory, generator=generator)
        captions.update(zip(batch.ids, captioner.read_captions(found), strict=True))
        if progress is not None:
            progress(len(captions), len(data.records(split)))
    data.bad[split].update(loader.bad)
    return captions


def evaluate(
    captioner: Captioner,
    data: CaptionData,
    split: str,
    *,
    search: Search,
    out: Path,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Scores, dict[str, Any]]:
    """Score a captioner on a split and write `captions.json` (COCO results format), `scores.json`, `per_image.json`.

    search, seed, progress: see `caption_split`. facts: further facts for scores.json. Returns the score card and the
    content of scores.json, which states how every figure was obtained. Raises ValueError if no image can be read.
    """
    captions = caption_split(captioner, data, split, search=search, seed=seed, progress=progress)
    texts = {id_: caption.text for id_, caption in captions.items()}
    out.mkdir(parents=True, exist_ok=True)
    write_results(out / "captions.json", texts)  # before scoring: captions are never lost to a failing metric
    references = {r.image_id: list(r.captions) for r in data.records(split) if r.image_id in texts}
    card = score(texts, references)
    judge = judge_of(data.source)
    truth = judge(texts) if judge is not None else {}
    report = {
        "scores": card.corpus,
        "truth": truth,
        "facts": {
            "data": data.source.name,
            "split": split,
            "images": len(texts),
            "unreadable_images": len(data.bad[split]),
            "decoding": describe_search(search),
            "seed": seed,
            **card.facts,
            **(facts or {}),
        },
    }
    per_image = {
        str(id_): {"caption": texts[id_], "score": captions[id_].score, **values}
        for id_, values in card.per_image.items()
    }
    for name, content in (("scores.json", report), ("per_image.json", {"facts": report["facts"], "images": per_image})):
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        (out / name).write_text(text + "\n", encoding="utf-8")
    return card, report


def describe_search(search: Search) -> dict[str, Any]:
    """Name and settings of a decoding, in plain JSON types."""
    return {"search": type(search).__name__.lower(), **json.loads(json.dumps(asdict(search)))}  # type: ignore[call-overload]


def show(table: str, report: dict[str, Any]) -> None:
    """Print a score card, with the truth of drawn scenes below it."""
    facts = report["facts"]
    decoding = ", ".join(f"{name} {value}" for name, value in facts["decoding"].items())
    print(f"\n{facts['data']}, split {facts['split']}, {facts['images']} images, decoding: {decoding}")
    print(table)
    names = {
        "true_seen": "captions true in every claim, combinations seen in training",
        "true_held_out": "captions true in every claim, combinations held out",
        "coverage": "objects of a scene that the caption names",
    }
    for name, value in report["truth"].items():
        print(f"{100 * value:6.1f} %  {names.get(name, name)}")


def bar(label: str) -> Callable[[int, int], None]:
    """A function of (done, total) that shows the progress of a long loop on standard error: a line that is renewed on a
    terminal, one every few seconds in a log."""
    state = {"last": 0.0, "begin": time.monotonic(), "done": 0}

    def update(done: int, total: int) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if done <= state["done"]:  # the next loop of the same kind
            state["begin"] = now
        state["done"] = done
        if done < total and now - state["last"] < (0.2 if terminal else 10.0):
            return
        state["last"] = now
        spent = now - state["begin"]
        text = f"{label}: {done}/{total}, {done / max(spent, 1e-6):.0f}/s, {clock(spent)}"
        end = "\n" if done >= total or not terminal else ""
        print(("\r" if terminal else "") + text, end=end, file=sys.stderr, flush=True)

    return update
