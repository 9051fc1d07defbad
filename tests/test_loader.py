"""Loading of batches: order as a function of seed and epoch, padding, choice of captions, resuming, bad pictures."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

from vitcap.data.images import ImageError
from vitcap.data.loader import BadRecord, BatchLoader, CaptionDataset, EpochBatches, Sample, collate
from vitcap.data.records import CaptionRecord
from vitcap.data.tokenizer import Tokenizer
from vitcap.types import BOS, EOS, PAD, Batch

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TOKENIZER = Tokenizer.train([" ".join(WORDS)], min_count=1)


def grey(value: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (value, value, value))


class Drawn:
    """A picture drawn in one shade; picklable, as workers need it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self) -> Image.Image:
        return grey(self.value)


def noisy(image: Image.Image, generator: torch.Generator) -> Tensor:
    """The shade and one random number, so that both the picture and its random draw can be read off a batch."""
    shade = torch.full((1, 2, 2), image.getpixel((0, 0))[0])  # type: ignore[index]
    return torch.cat((shade, torch.randint(256, (2, 2, 2), generator=generator))).to(torch.uint8)


def records(count: int, captions: int = 1) -> list[CaptionRecord]:
    return [
        CaptionRecord(i, Drawn(i), tuple(" ".join(WORDS[c % 10 :][: 1 + i % 3]) for c in range(captions)))
        for i in range(count)
    ]


def loader(count: int = 11, *, batch_size: int = 3, shuffle: bool = True, workers: int = 0, **options) -> BatchLoader:  # type: ignore[no-untyped-def]
    dataset = CaptionDataset(records(count, 4), TOKENIZER, transform=noisy, captions_per_image=2, **options)
    batches = EpochBatches(count, batch_size, shuffle=shuffle, seed=options.get("seed", 0))
    return BatchLoader(dataset, batches, num_workers=workers, persistent_workers=workers > 0)


def epoch(loader: BatchLoader, number: int) -> list[Batch]:
    loader.batches.set_epoch(number)
    return list(loader)


def same(first: list[Batch], second: list[Batch]) -> None:
    assert [b.ids for b in first] == [b.ids for b in second]
    for a, b in zip(first, second, strict=True):
        assert_close(a.images, b.images, rtol=0, atol=0)
        assert_close(a.captions, b.captions, rtol=0, atol=0)


def test_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, number: int) -> list[list[tuple[int, int]]]:
        batches = EpochBatches(10, 4, shuffle=True, seed=seed)
        batches.set_epoch(number)
        return list(batches)

    first = order(7, 2)
    torch.manual_seed(123)  # the global generator has no part in it
    assert order(7, 2) == first
    assert [len(b) for b in first] == [4, 4, 2]
    assert sorted(i for batch in first for _, i in batch) == list(range(10))
    assert all(number == 2 for batch in first for number, _ in batch)
    orders = [[i for b in order(s, e) for _, i in b] for s, e in ((7, 2), (7, 3), (8, 2), (20240131, 2), (-1, 0))]
    assert len({tuple(o) for o in orders}) == len(orders)
    plain = EpochBatches(5, 2, shuffle=False)
    assert [[i for _, i in b] for b in plain] == [[0, 1], [2, 3], [4]]


def test_length_of_an_epoch() -> None:
    assert len(EpochBatches(10, 4, shuffle=True)) == 3
    assert len(EpochBatches(10, 4, shuffle=True)) == len(list(EpochBatches(10, 4, shuffle=True))) == 3
    assert [len(b) for b in EpochBatches(3, 4, shuffle=True)] == [3]
    assert list(EpochBatches(0, 4, shuffle=True)) == []
    with pytest.raises(ValueError, match="batch size must be at least 1, got 0"):
        EpochBatches(3, 0, shuffle=True)


@pytest.mark.parametrize("start", range(5))
def test_starting_in_the_middle_gives_the_tail(start: int) -> None:
    whole, tail = (EpochBatches(10, 2, shuffle=True, seed=3) for _ in range(2))
    for batches in (whole, tail):
        batches.set_epoch(4)
    tail.start = start
    assert list(tail) == list(whole)[start:]


def test_collation_pads_with_pad() -> None:
    def sample(id_: str, *captions: tuple[int, ...], label: int | None = 0) -> Sample:
        return Sample(id_, torch.full((3, 2, 2), len(captions), dtype=torch.uint8), None, captions, label)

    batch, bad = collate(
        [
            sample("a", (BOS, 5, EOS), (BOS, 5, 6, 7, EOS), label=2),
            BadRecord("b", "b.jpg: broken"),
            sample("c", (BOS, EOS), label=1),
        ]
    )
    assert batch is not None
    assert batch.ids == ("a", "c")
    assert batch.captions is not None
    assert batch.captions.tolist() == [
        [[BOS, 5, EOS, PAD, PAD], [BOS, 5, 6, 7, EOS]],
        [[BOS, EOS, PAD, PAD, PAD], [PAD] * 5],
    ]
    assert batch.captions.dtype == torch.int64
    assert batch.images is not None
    assert batch.images[:, 0, 0, 0].tolist() == [2, 1]
    assert batch.labels is not None
    assert batch.labels.tolist() == [2, 1]
    assert [b.id for b in bad] == ["b"]
    assert collate([BadRecord("b", "broken")]) == (None, [BadRecord("b", "broken")])
    unlabelled, _ = collate([sample("a", label=None), sample("b", label=1)])
    assert unlabelled is not None
    assert unlabelled.labels is None
    assert unlabelled.captions is None


def test_features_take_the_place_of_pictures() -> None:
    def features(index: int, generator: torch.Generator) -> Tensor:
        return torch.full((2, 3), float(index))

    def no_picture(image: Image.Image, generator: torch.Generator) -> Tensor:
        raise AssertionError("pictures are not opened")

    dataset = CaptionDataset(records(3), TOKENIZER, transform=no_picture, features=features)
    (batch,) = BatchLoader(dataset, EpochBatches(3, 3, shuffle=False))
    assert batch.images is None
    assert batch.features[:, 0, 0].tolist() == [0, 1, 2]


def test_captions_are_marked_cut_and_chosen() -> None:
    """At most captions_per_image of them, drawn anew each epoch without repetition; long ones cut, EOS kept."""
    captions = tuple(WORDS[c] for c in range(5))
    record = CaptionRecord("x", Drawn(0), captions)
    ids = {TOKENIZER.encode(c)[0] for c in captions}
    dataset = CaptionDataset([record], TOKENIZER, transform=noisy, captions_per_image=2)
    chosen = Counter()
    for number in range(200):
        sample = dataset[number, 0]
        assert isinstance(sample, Sample)
        assert dataset[number, 0].captions == sample.captions  # type: ignore[union-attr]
        assert all(c[0] == BOS and c[2] == EOS and c[1] in ids for c in sample.captions)
        assert len({c[1] for c in sample.captions}) == 2
        chosen.update(c[1] for c in sample.captions)
    assert chosen.keys() == ids
    assert all(50 < count < 110 for count in chosen.values())  # 80 expected
    everything = CaptionDataset([record], TOKENIZER, transform=noisy, captions_per_image=5)[3, 0]
    assert isinstance(everything, Sample)
    assert [c[1] for c in everything.captions] == [TOKENIZER.encode(c)[0] for c in captions]

    long = CaptionRecord("x", Drawn(0), ("one two three four five", "one"))
    sample = CaptionDataset([long], TOKENIZER, transform=noisy, max_length=5)[0, 0]
    assert isinstance(sample, Sample)
    assert [len(c) for c in sample.captions] == [5, 3]
    assert sample.captions[0] == (BOS, *TOKENIZER.encode("one two three"), EOS)
    bare = CaptionDataset([long], None, transform=noisy)[0, 0]
    assert isinstance(bare, Sample)
    assert bare.captions == ()


def test_random_draws_depend_on_seed_epoch_and_record_alone() -> None:
    first, second = epoch(loader(seed=20240131), 1), epoch(loader(seed=20240131), 1)
    same(first, second)
    by_id = {id_: image for b in first for id_, image in zip(b.ids, b.images, strict=True)}  # type: ignore[arg-type]
    unshuffled = epoch(loader(seed=20240131, shuffle=False, batch_size=11), 1)[0]
    for id_, image in zip(unshuffled.ids, unshuffled.images, strict=True):  # type: ignore[arg-type]
        assert torch.equal(by_id[id_], image)
        assert image[0, 0, 0] == id_
    for other in (epoch(loader(seed=20240131), 2), epoch(loader(seed=5), 1)):
        mine = {id_: image for b in other for id_, image in zip(b.ids, b.images, strict=True)}  # type: ignore[arg-type]
        assert not any(torch.equal(by_id[i], mine[i]) for i in by_id)


@pytest.mark.parametrize("done", [0, 1, 3, 4])
def test_resumed_equals_uninterrupted(done: int) -> None:
    """Stop after some batches, save, load into a new loader: the rest of this epoch and the next are the same."""
    whole = loader()
    expected = [epoch(whole, n) for n in (0, 1, 2)]
    stopped = loader()
    same(epoch(stopped, 0), expected[0])
    stopped.batches.set_epoch(1)
    run: Iterator[Batch] = iter(stopped)
    same([next(run) for _ in range(done)], expected[1][:done])
    state = stopped.state_dict() if done else {"done": 0}

    resumed = loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == {"done": done % 4}  # a save before the first batch forgets nothing
    rest = [] if done == 4 else epoch(resumed, 1)  # at the end of an epoch the next begins
    same(rest, expected[1][done:])
    same(epoch(resumed, 2), expected[2])


def test_workers_give_the_same_batches() -> None:
    """Two epochs, the first resumed in its middle, with the workers kept between them."""
    alone, helped = loader(), loader(workers=2)
    for each in (alone, helped):
        each.load_state_dict({"done": 2})
    before = torch.get_rng_state()
    for number in (0, 1):
        same(epoch(alone, number), epoch(helped, number))
    assert torch.equal(torch.get_rng_state(), before)  # dropout draws from here: loading must not
    run = iter(helped)
    next(run)
    assert helped.state_dict() == {"done": 1}  # what was handed out, not what the workers have read ahead


@pytest.fixture
def broken(tmp_path: Path) -> list[CaptionRecord]:
    """Five picture files; the second is cut, the fifth is a page."""
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for i, path in enumerate(paths):
        grey(10 * i).save(path)
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    paths[4].write_text("<html>not found</html>")
    return [CaptionRecord(f"id{i}", path, ("one",)) for i, path in enumerate(paths)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_picture_is_an_error_that_names_it(broken: list[CaptionRecord], workers: int) -> None:
    dataset = CaptionDataset(broken, TOKENIZER, transform=noisy)
    run = iter(BatchLoader(dataset, EpochBatches(5, 1, shuffle=False), num_workers=workers))
    assert next(run).ids == ("id0",)
    with pytest.raises(ImageError, match=r"1\.png: .*on_bad=skip"):
        next(run)


def test_bad_pictures_can_be_left_out(broken: list[CaptionRecord], caplog: pytest.LogCaptureFixture) -> None:
    """A batch without them, none at all for a batch of nothing else; each told once, and kept for the report."""
    dataset = CaptionDataset(broken, TOKENIZER, transform=noisy)
    batches = BatchLoader(dataset, EpochBatches(5, 2, shuffle=False), on_bad="skip")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [b.ids for b in batches] == [("id0",), ("id2", "id3")]
    assert batches.state_dict() == {"done": 3}  # the empty batch counts: the place in the epoch is the sampler's
    assert [r.message.count("left out") for r in caplog.records] == [1, 1]
    assert set(batches.bad) == {"id1", "id4"}
    assert "HTML" in batches.bad["id4"]
    with pytest.raises(ValueError, match="on_bad must be 'error' or 'skip', got 'ignore'"):
        BatchLoader(dataset, EpochBatches(5, 2, shuffle=False), on_bad="ignore")


def test_a_batch_moves_as_a_whole() -> None:
    batch = epoch(loader(4, batch_size=4), 0)[0]
    moved = batch.to(torch.device("meta"))
    assert moved.ids == batch.ids
    assert {moved.images.device.type, moved.captions.device.type} == {"meta"}  # type: ignore[union-attr]
    assert moved.features is None
    assert len(moved) == 4


def test_training_on_nothing_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"no")
    bad = [CaptionRecord("x", tmp_path / "x.png", ("a cat",))]
    dataset = CaptionDataset(bad, TOKENIZER, transform=noisy)
    with pytest.raises(ValueError, match=r"^none of the 1 training records can be read, the first: .*x\.png"):
        list(BatchLoader(dataset, EpochBatches(1, 3, shuffle=True), on_bad="skip"))
    assert list(BatchLoader(dataset, EpochBatches(1, 3, shuffle=False), on_bad="skip")) == []
