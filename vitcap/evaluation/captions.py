"""A captioner against a split: captions, scores and per-image scores on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vitcap import processes
from vitcap.captioner import Captioner
from vitcap.data.pictures import CaptionData
from vitcap.data.sentences import SentenceData
from vitcap.evaluation.judging import truth_judge
from vitcap.evaluation.report import Java, describe_search, headline, preflight, write_json
from vitcap.metrics.captions import score, write_results
from vitcap.metrics.results import SERVER_IMAGES, write_server_zip
from vitcap.writer import Caption, Search, Writer

Id = int | str
TRUTHS = {
    "true_seen": "captions true in every claim, combinations seen in training",
    "true_held_out": "captions true in every claim, combinations held out",
    "coverage": "objects of a scene that the caption names",
}


def write_split(
    captioner: Writer,
    data: CaptionData | SentenceData,
    split: str,
    *,
    search: Search,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[Id, Caption]:
    """What a captioner or translator writes for every readable record of a split, in its order; the others are added
    to `data.bad`.

    search: as of vitcap.decoding. seed: of a sampling search. progress: called with (done, total) records.
    Several processes take the batches in turn, and all get all captions: the same as of one, sampled ones too.
    """
    loader = data.loader(split, share=processes.share())
    total, world = len(data.records(split)), processes.share()[1]
    found: dict[int, list[tuple[Id, Caption]]] = {}
    done = 0
    for batch in loader:
        # A generator for each batch: what it draws does not depend on what was drawn before, nor on who did.
        generator = torch.Generator(captioner.device).manual_seed((seed + loader.number * 1_000_000_007) % 2**63)
        said = captioner.write(batch, search=search, generator=generator)
        found[loader.number] = list(zip(batch.ids, said, strict=True))
        done += len(batch)
        if progress is not None:
            progress(min(done * world, total), total)
    pairs = [pair for part in processes.collect(found) for pair in part]
    for bad in processes.gather(loader.bad):
        data.bad[split].update(bad)
    data.require_all(split, (id_ for id_, _ in pairs))
    if not pairs:
        first = next(iter(data.bad[split].values()), "the split is empty")
        raise ValueError(f"data={data.source.name}, split {split}: no record can be read ({first})")
    return dict(pairs)


def evaluate_captions(
    captioner: Captioner,
    data: CaptionData,
    split: str,
    *,
    search: Search,
    out: Path,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    meteor: Java = False,
    spice: Java = False,
    novel: bool = False,
    archive: str | Path | None = None,
    algorithm: str = "vitcap",
) -> tuple[str, dict[str, Any]]:
    """Score a captioner on a split and write `captions.json` (COCO results format), `scores.json`, `per_image.json`.

    search, seed, progress: see `write_split`. facts: further facts for scores.json. meteor, spice: see `preflight`.
    novel: also count the captions that no training caption of the data equals. archive: also pack the captions into
    this zip for COCO's server, as those of `algorithm`.

    Scores equal what the reference programs print for captions.json. Returns the score card as text and the content of
    scores.json, which states how every figure was obtained. Raises ValueError if no image can be read.
    Of several processes the first scores and writes, and the others return nothing.
    """
    preflight(meteor=meteor, spice=spice)
    server = None if archive is None else _server_split(archive, len(data.records(split)), algorithm)
    captions = write_split(captioner, data, split, search=search, seed=seed, progress=progress)
    if not processes.is_first():
        return "", {}
    texts = {id_: caption.text for id_, caption in captions.items()}
    out.mkdir(parents=True, exist_ok=True)
    write_results(out / "captions.json", texts)  # before scoring: captions are never lost to a failing metric
    if archive is not None and server is not None:
        write_server_zip(archive, texts, split=server, algorithm=algorithm)
    references = {r.image_id: list(r.captions) for r in data.records(split) if r.image_id in texts}
    training = (caption for record in data.records("train") for caption in record.captions) if novel else None
    options: dict[str, Any] = {"meteor": meteor, "spice": spice, "training": training, "seed": seed}
    card = score(texts, references, as_lines=True, **options)
    judge = truth_judge(data.source)
    truth = judge(texts) if judge is not None else {}
    report: dict[str, Any] = {
        "scores": card.corpus,
        "truth": truth,
        "facts": {
            "data": data.source.name,
            "split": split,
            "images": len(texts),
            "unreadable_images": len(data.bad[split]),
            "preprocessing": {} if data.preprocess is None else data.preprocess.to_dict(),
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
    write_json(out / "scores.json", report)
    write_json(out / "per_image.json", {"facts": report["facts"], "images": per_image})
    lines = [headline(report["facts"], f"{len(texts)} images"), card.table()]
    lines += [f"{100 * value:6.1f} %  {TRUTHS.get(name, name)}" for name, value in truth.items()]
    lines += [f"for the COCO server: {archive}, {server}"] if server is not None else []
    return "\n".join(lines), report


def _server_split(archive: str | Path, images: int, algorithm: str) -> str:
    """The split of COCO's server that has so many images; asked before the captions are written, not after it."""
    if not re.fullmatch(r"[A-Za-z0-9.-]+", algorithm):
        raise ValueError(f"algorithm={algorithm}: letters, digits, dots and hyphens are wanted, as in a file name")
    for split, count in SERVER_IMAGES.items():
        if images == count:
            return split
    wanted = " or ".join(f"{count:,} of {split}" for split, count in SERVER_IMAGES.items())
    raise ValueError(
        f"zip={archive}: the COCO server wants a caption for all {wanted}; this split has {images:,} images"
    )
