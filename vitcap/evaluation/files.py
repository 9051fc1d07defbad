"""Captions that are written already: a results file against an annotation file, and the archive of COCO's server.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitcap.evaluation.report import preflight, write_json
from vitcap.metrics.results import SERVER_IMAGES, evaluate_files, read_references, read_results, write_server_zip


def evaluate_results(
    results: str | Path,
    annotations: str | Path | None,
    *,
    out: str | Path,
    partial: bool = False,
    archive: str | Path | None = None,
    split: str | None = None,
    algorithm: str = "vitcap",
    meteor: bool | Mapping[str, Any] = False,
    spice: bool | Mapping[str, Any] = False,
    seed: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Score a COCO results file and write `scores.json` and `per_image.json` to `out`.

    partial, seed: see vitcap.metrics. meteor, spice: see `preflight`. archive: also pack the captions into this zip for
    COCO's server, as `split` (val2014, test2014) and `algorithm`; that needs no annotations, scores do. Returns the
    score card as text and the content of scores.json. Raises FileNotFoundError or ValueError, naming file and ids.
    """
    if annotations is None and archive is None:
        raise ValueError(f"results={results}: give annotations=FILE to score it against, or zip=FILE to only pack it")
    if archive is not None and split not in SERVER_IMAGES:
        raise ValueError(f"zip={archive}: give the split of COCO's server, split={' or split='.join(SERVER_IMAGES)}")
    references = None if annotations is None else read_references(annotations)
    texts = read_results(results, references, partial=partial)
    preflight(meteor=meteor, spice=spice)
    lines, out = [], Path(out)
    if archive is not None:
        inside = write_server_zip(archive, texts, split=str(split), algorithm=algorithm, annotations=annotations)
        lines.append(f"for the COCO server: {archive} with {', '.join(inside)}")
    if annotations is None:
        return "\n".join(lines), {"scores": {}, "facts": {"results": str(results), "zip": str(archive)}}
    out.mkdir(parents=True, exist_ok=True)
    card = evaluate_files(results, annotations, partial=partial, meteor=meteor, spice=spice, seed=seed)
    report = {"scores": card.corpus, "facts": {**card.facts, "seed": seed}}
    write_json(out / "scores.json", report)
    each = {str(i): {"caption": texts[i], **values} for i, values in card.per_image.items()}
    write_json(out / "per_image.json", {"facts": report["facts"], "images": each})
    return "\n".join([card.table(), *lines, f"scores: {out}/"]), report
