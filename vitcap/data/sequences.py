"""Sequences with known answers, made when they are asked for: digits to reverse or copy, and English to French."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from random import Random

from vitcap.data.grammar import EXAMPLE, write_pair
from vitcap.data.phrases import Links
from vitcap.types import require_number

SPLITS = ("train", "val", "test")
TASKS = ("reverse", "copy")
LENGTH_BINS = ((4, 9), (10, 15), (16, 21), (22, 30))
"""Words of the source sentences of TranslationSource, as ranges that hold an equal share of every split."""
_FIRST_ID = {"train": 1, "val": 10_000_001, "test": 20_000_001, "long": 30_000_001}
_MAX_SIZE = 1_000_000
_MAX_DIGITS = 1_000


@dataclass(frozen=True)
class SequenceRecord:
    """One source sequence with its targets.

    id: unique in its source. source, targets: words separated by single blanks; `text.split()` gives the words.
    alignment: links (source word, target word), 0-based, to the first target; None where they are not known.
    """

    id: int | str
    source: str
    targets: tuple[str, ...]
    alignment: Links | None = None


class _Made:
    """What sources without files share: sizes, names of the splits, records with their ids."""

    name: str
    sizes: dict[str, int]

    def __init__(self, root: str | os.PathLike[str] | None, *, seed: int, train: int, val: int, test: int) -> None:
        if root is not None:
            raise ValueError(f"data.root={root}: these sequences are made, not read; leave data.root empty")
        self.seed, self.sizes = seed, {"train": train, "val": val, "test": test}
        for split, size in self.sizes.items():
            require_number(f"data.source.{split}_size", size, 1, _MAX_SIZE, whole=True)
        self._records: dict[str, list[SequenceRecord]] = {}

    def splits(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def split(self, name: str) -> list[SequenceRecord]:
        """The records of a split; ValueError for a name that is not in `splits()`."""
        if name not in self.sizes:
            raise ValueError(f"no split {name!r} in {self.name}: choose one of {', '.join(self.sizes)}")
        if name not in self._records:
            self._records[name] = [
                SequenceRecord(index, source, (target,), links)
                for index, (source, target, links) in zip(count(_FIRST_ID[name]), self._pairs(name), strict=False)
            ]
        return list(self._records[name])

    def _pairs(self, split: str) -> list[tuple[str, str, Links]]:
        raise NotImplementedError


class DigitsSource(_Made):
    """Digits to reverse ("3 1 4" -> "4 1 3") or to copy, with the exact alignment.

    root: must stay empty. task: "reverse" or "copy". min_length, max_length: digits of a sequence, both included; every
    length is drawn equally often, as long as it has sequences left. seed: another seed, other sequences.
    train_size, val_size, test_size: sequences of each split. There is also a split "long", of test_size sequences of
    max_length + 1 to 2 * max_length digits, for what a model does beyond its training lengths.

    No sequence is in two splits. val and test do not depend on train_size, and each takes at most a quarter of the
    sequences of one length, so that a short length is not lost to training. Raises ValueError where more sequences are
    asked for than there are.
    """

    name = "digits"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        task: str = "reverse",
        min_length: int = 4,
        max_length: int = 10,
        train_size: int = 20_000,
        val_size: int = 1_000,
        test_size: int = 1_000,
        seed: int = 0,
    ) -> None:
        super().__init__(root, seed=seed, train=train_size, val=val_size, test=test_size)
        if task not in TASKS:
            raise ValueError(f"data.source.task={task}: choose one of {', '.join(TASKS)}")
        require_number("data.source.min_length", min_length, 1, _MAX_DIGITS, whole=True)
        require_number("data.source.max_length", max_length, 1, _MAX_DIGITS, whole=True)
        if min_length > max_length:
            raise ValueError(f"data.source.min_length={min_length} is above data.source.max_length={max_length}")
        self.task, self.min_length, self.max_length = task, min_length, max_length
        self.sizes["long"] = test_size
        self._lengths: dict[str, list[int]] = {}
        left = {length: 10**length for length in range(min_length, max_length + 1)}
        for split in ("test", "val", "train"):  # in this order, so that train_size changes train alone
            room = left if split == "train" else {n: 10**n // 4 for n in left}
            if (size := self.sizes[split]) > sum(room.values()):
                share = "what val and test leave" if split == "train" else "a quarter of all"
                raise ValueError(
                    f"data.source.{split}_size={size}: there are {sum(room.values())} sequences of {min_length} to "
                    f"{max_length} digits for {split} ({share}); lower the size or raise data.source.max_length"
                )
            self._lengths[split] = _draw_lengths(self._rng(split), size, room)
            left = {n: room_left - self._lengths[split].count(n) for n, room_left in left.items()}
        longer = {n: 10**n for n in range(max_length + 1, 2 * max_length + 1)}
        self._lengths["long"] = _draw_lengths(self._rng("long"), test_size, longer)

    def _rng(self, what: str | int) -> Random:
        return Random(f"{self.seed}/{self.task}/{what}")

    @cached_property
    def _digits(self) -> dict[str, list[str]]:
        """The sequences of every split, drawn without replacement."""
        draws: dict[int, Callable[[], str]] = {}
        for lengths in self._lengths.values():
            for n in set(lengths) - set(draws):
                draws[n] = _without_replacement(self._rng(n), n)
        return {split: [draws[n]() for n in lengths] for split, lengths in self._lengths.items()}

    def _pairs(self, split: str) -> list[tuple[str, str, Links]]:
        return [self._pair(digits) for digits in self._digits[split]]

    def _pair(self, digits: str) -> tuple[str, str, Links]:
        last = len(digits) - 1
        if self.task == "copy":
            return " ".join(digits), " ".join(digits), frozenset((i, i) for i in range(last + 1))
        return " ".join(digits), " ".join(reversed(digits)), frozenset((last - i, i) for i in range(last + 1))


def _draw_lengths(rng: Random, size: int, room: Mapping[int, int]) -> list[int]:
    """`size` lengths, each equally likely as long as fewer than room[length] are drawn."""
    left, lengths = dict(room), []
    open_lengths = [n for n, number in left.items() if number]
    for _ in range(size):
        lengths.append(n := rng.choice(open_lengths))
        left[n] -= 1
        if not left[n]:
            open_lengths.remove(n)
    return lengths


def _without_replacement(rng: Random, length: int) -> Callable[[], str]:
    """Draws strings of `length` digits, none twice."""
    if length <= 4:  # few enough to shuffle them all; drawing again until one is new would take long at the end
        every = rng.sample(range(10**length), 10**length)
        return lambda: f"{every.pop():0{length}d}"
    seen: set[str] = set()

    def draw() -> str:
        while (digits := "".join(rng.choices("0123456789", k=length))) in seen:
            pass
        seen.add(digits)
        return digits

    return draw


class TranslationSource(_Made):
    """English to French with known word alignments: a corpus of its own, written by `grammar`.

    root: must stay empty. seed: another seed, other sentences. train_size, val_size, test_size: sentences of each
    split; no English sentence is in two splits, none occurs twice, and `EXAMPLE` is in none. The splits are drawn in
    the order test, val, train, so train_size changes train alone. Each range of LENGTH_BINS holds an equal share.

    Words are separated by blanks; elided words are words of their own ("l' accord", "n' a pas"). There is no
    punctuation.
    """

    name = "translation"
    length_bins = LENGTH_BINS

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        seed: int = 0,
        train_size: int = 20_000,
        val_size: int = 1_000,
        test_size: int = 1_000,
    ) -> None:
        super().__init__(root, seed=seed, train=train_size, val=val_size, test=test_size)
        self._seen = {EXAMPLE[0]}

    def _pairs(self, split: str) -> list[tuple[str, str, Links]]:
        for earlier in {"train": ("test", "val"), "val": ("test",)}.get(split, ()):
            self.split(earlier)
        rng, pairs = Random(f"{self.seed}/translation/{split}"), []
        for index in range(self.sizes[split]):
            low, high = LENGTH_BINS[index % len(LENGTH_BINS)]
            while True:
                source, target, links = write_pair(rng, low, high)
                if source not in self._seen:
                    break
            self._seen.add(source)
            pairs.append((source, target, links))
        return pairs
