"""Captions of any number of pictures, in order: read ahead in threads, in batches, the same bytes once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vitcap.cli.prefetch import Ready, Twins, read_ahead
from vitcap.cli.rows import record
from vitcap.data.images import load_image


def captions_of(
    captioner: Any,
    paths: Sequence[str],
    *,
    search: Any,
    seed: int | None,
    batch_size: int,
    workers: int,
    twins: Twins,
    min_confidence: float | None = None,
) -> Iterator[tuple[Ready, dict[str, Any]]]:
    """(picture, what is known of its caption, or its error) for each, in order.

    Threads read pictures and prepare them for the model, so that what waits is as small as its input. twins: what was
    said of pictures of the same bytes; it learns of these. min_confidence: rows say `below_confidence`. The others: see
    Captioner.caption; a seed gives each batch the same draws.
    """
    import torch

    from vitcap.types import Batch

    def stack(inputs: Sequence[Any]) -> Batch:
        return Batch(ids=tuple(range(len(inputs))), images=torch.stack(list(inputs)))

    def finish(items: Sequence[Ready]) -> Iterator[tuple[Ready, dict[str, Any]]]:
        inputs = [item.found for item in items if isinstance(item.found, torch.Tensor)]
        options = {"search": search, "n_best": 1, "need_attention": False, "seed": seed}
        found = iter(captioner.write_all(inputs, stack, batch_size=batch_size, **options) if inputs else [])
        for item in items:
            if item.twin_of is not None:
                yield item, _of_twin(item, twins)
                continue
            if isinstance(item.found, Exception):
                row: dict[str, Any] = {"image": item.path, "error": str(item.found)}
            else:
                row = record(item.path, next(found), captioner.tokenizer)
                if min_confidence is not None:
                    row["below_confidence"] = row["probability"] < min_confidence
            twins.keep(item.key, row)
            yield item, row

    items: list[Ready] = []
    count = 0
    prepare = captioner.preprocess
    for item in read_ahead(
        paths, lambda path: prepare(load_image(path)), workers=workers, ahead=batch_size + workers, twins=twins
    ):
        items.append(item)
        count += isinstance(item.found, torch.Tensor)
        if count == batch_size or len(items) == 8 * batch_size:
            yield from finish(items)
            items, count = [], 0
    yield from finish(items)


def _of_twin(item: Ready, twins: Twins) -> dict[str, Any]:
    """The row of the first picture with these bytes, for another of them."""
    assert item.key is not None
    row = twins.row(item.key)
    if "error" in row:
        return {"image": item.path, "error": item.path + row["error"].removeprefix(row["image"])}
    return row | {"image": item.path, "same_as": item.twin_of}
