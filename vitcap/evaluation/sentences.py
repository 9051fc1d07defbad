"""A translator against a split: its sentences, scores by length, and how well its attention aligns words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitcap import processes
from vitcap.data.sentences import SentenceData
from vitcap.evaluation.captions import write_split
from vitcap.evaluation.judging import sentence_judge
from vitcap.evaluation.report import describe_search, headline, write_json
from vitcap.files import whole
from vitcap.metrics.alignment import alignment_scores, links_from_attention, scores_by_length
from vitcap.translator import NoAttention, Translator
from vitcap.viz.curves import length_curves
from vitcap.writer import Search

Id = int | str


def evaluate_sentences(
    translator: Translator,
    data: SentenceData,
    split: str,
    *,
    search: Search,
    out: Path,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Score a translator on a split and write `translations.tsv`, `scores.json`, `lengths.png`.

    search, seed, progress: see `write_split`. facts: further facts for scores.json. Returns the score card as text and
    the content of scores.json: scores of the whole split, `by_length`, and, for a model with attention and data with
    known alignments, `alignment`. Of several processes the first scores and writes, and the others return nothing.
    """
    found = write_split(translator, data, split, search=search, seed=seed, progress=progress)
    if not processes.is_first():
        return "", {}
    texts = {id_: caption.text for id_, caption in found.items()}
    clean = data.tokenizer.clean
    records = [record for record in data.records(split) if record.id in texts]
    out.mkdir(parents=True, exist_ok=True)
    with whole(out / "translations.tsv") as part, open(part, "w", encoding="utf-8") as file:
        file.write("id\tsource\toutput\ttarget\n")
        for record in records:
            output = " ".join(texts[record.id].split())  # a byte-level tokenizer can spell tabs and line breaks
            file.write(f"{record.id}\t{record.source}\t{output}\t{record.targets[0]}\n")
    scores = sentence_judge(data, split)(texts)
    by_length = scores_by_length(
        [record.source for record in records],
        [texts[record.id] for record in records],
        [[clean(target) for target in record.targets] for record in records],
        bins=getattr(data.source, "length_bins", None),
    )
    unfinished = sum(not caption.finished for caption in found.values())
    report = {
        "scores": scores,
        "by_length": [asdict(row) for row in by_length],
        "alignment": align_split(translator, data, split, texts),
        "facts": {
            "data": data.source.name,
            "split": split,
            "sentences": len(texts),
            "unreadable_sentences": len(data.bad[split]),
            "cut_by_maximum_length": unfinished,
            "cut_sources": sum(len(translator.source_tokenizer.encode(r.source)) > data.max_length for r in records),
            "decoding": describe_search(search),
            "seed": seed,
            **(facts or {}),
        },
    }
    write_json(out / "scores.json", report)
    bins = [(row.low, row.high, row.exact, row.count) for row in by_length]
    # Without any match BLEU is no 0, but a number so small that a scale for it would be nonsense.
    bleu = [(row.low, row.high, round(row.bleu, 6), row.count) for row in by_length]
    chart = length_curves({"exact": bins, "BLEU-4": bleu}, ylabel="share of 1", title=f"{data.source.name}, {split}")
    with whole(out / "lengths.png") as part:
        chart.save(part, "PNG")
    return _table(report), report


def align_split(
    translator: Translator, data: SentenceData, split: str, texts: Mapping[Id, str]
) -> dict[str, float | int] | None:
    """Attention against the known alignments of a split, while the targets are read: each target word linked to the
    source word it attends to most. None without attention, or where no alignment is known. Pairs that the data, or a
    decoder with a position table, would cut are left out.

    AER, precision, recall: see vitcap.metrics.alignment. precision is the share of words whose strongest attention is
    on a known link; for reversed digits, on the anti-diagonal.
    """
    longest = data.max_length - 2
    if (table := getattr(translator.model.decoder, "max_length", None)) is not None:
        longest = min(longest, table - 1)  # it reads the start token, too
    known, links = [], []
    for record in data.records(split):
        if record.id in texts and record.alignment is not None:
            source, target = record.source, record.targets[0]
            sure = translator.relink(record.alignment, source, target)
            fits = len(translator.encode(source)) <= data.max_length and len(data.tokenizer.encode(target)) <= longest
            if sure is not None and fits:
                known.append(record)
                links.append(sure)
    try:
        weights = translator.align([r.source for r in known], [r.targets[0] for r in known])
    except NoAttention:
        return None
    if not known:
        return None
    result = alignment_scores([links_from_attention(w) for w in weights], links)
    return {
        "AER": result.error_rate,
        "precision": result.precision,
        "recall": result.recall,
        "sentences": len(known),
        "words": sum(len(w) for w in weights),
    }


def _table(report: dict[str, Any]) -> str:
    scores, alignment = report["scores"], report["alignment"]
    lines = [headline(report["facts"], f"{report['facts']['sentences']} sentences")]
    lines += [f"  {name:<8} {100 * value:6.1f}" for name, value in scores.items()]
    lines += ["", "  source words   sentences    exact   BLEU-4"]
    for row in report["by_length"]:
        span = f"{row['low']}-{row['high']}"
        lines.append(f"  {span:<12} {row['count']:>11} {100 * row['exact']:>8.1f} {100 * row['bleu']:>8.1f}")
    if alignment is not None:
        lines += [
            "",
            f"alignment of {alignment['words']} target words, each with the source word it attends to most: error rate "
            f"{100 * alignment['AER']:.1f} %, precision {100 * alignment['precision']:.1f} %, "
            f"recall {100 * alignment['recall']:.1f} %",
        ]
    return "\n".join(lines)
