"""Training from shards: each process and worker reads its own stretch of them from front to back.

The order of an epoch is decided in the main process, before anything is read: the shards in random order are one long
tape, which processes and their workers share out in stretches that differ by less than a batch, each sample in one of
them; a stretch is mixed by a buffer of so many samples. So an epoch holds every sample once for any number of
processes, workers and shards, every process takes equally many steps, and a resumed run knows what is left. What a
sample is, is read by webdataset; its own splitting by whole shards would give processes different numbers of steps.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from vitcap.data.loader import BadRecord, CaptionDataset, EpochBatches, Sample
from vitcap.data.records import CaptionRecord
from vitcap.data.shards_sample import ShardSample, read_samples
from vitcap.data.shards_urls import ShardError, stem
from vitcap.processes import Share


class TapePlace(NamedTuple):
    """A sample to hand out. number: what its random choices depend on, beside the epoch; no two in one have the same.

    tape: its place in the epoch's reading order. record: in the order of the index. reads: (tape, record) of what is to
    be read, and kept, before it; they come in the order of the tape.
    """

    epoch: int
    number: int
    tape: int
    record: int
    reads: tuple[tuple[int, int], ...]


class TapeBatches(EpochBatches):
    """Batch sampler of shards: as EpochBatches shuffled, and its order suits streams.

    counts: samples of each shard. buffer: samples that a worker draws from, 1 for none. resample: shards are drawn with
    replacement for each worker anew; an epoch is then `size` samples, of which some come twice and some not at all.
    share, workers: processes, and workers of each, that read together; a step is split between the processes.
    """

    def __init__(
        self,
        counts: Sequence[int],
        batch_size: int,
        *,
        seed: int = 0,
        share: Share = (0, 1),
        workers: int = 1,
        buffer: int = 1000,
        resample: bool = False,
        size: int | None = None,
    ) -> None:
        super().__init__(sum(counts) if size is None else size, batch_size, shuffle=True, seed=seed, share=share)
        self.counts, self.workers, self.buffer, self.resample = counts, max(workers, 1), buffer, resample
        self.starts = [0, *accumulate(counts)]
        self.layout = {"processes": share[1], "workers": self.workers, "batch_size": batch_size}
        self.layout |= {"samples": self.size, "buffer": buffer}

    def _local(self, step: int, rank: int) -> int:
        """Samples that a process takes in a step."""
        return len(range(rank, min(self.batch_size, self.size - step * self.batch_size), self.share[1]))

    def _stretch(self, lane: int) -> tuple[int, int]:
        """(start, samples) on the tape of a worker; lane: its number among those of all processes."""
        steps, full = len(self), self.size // self.batch_size
        sizes = []
        for rank in range(lane // self.workers + 1):
            for worker in range(self.workers):
                count = len(range(worker, full, self.workers)) * len(range(rank, self.batch_size, self.share[1]))
                last = steps > full and (steps - 1) % self.workers == worker
                sizes.append(count + (self._local(steps - 1, rank) if last else 0))
        return sum(sizes[:lane]), sizes[lane]

    def _pieces(self, lane: int) -> tuple[list[int], list[int]]:
        """Of a worker's stretch, the ends on it and the first indices of the pieces that it is made of."""
        start, count = self._stretch(lane)
        firsts, lengths = [], []
        if self.resample:
            draw = random.Random(f"{self.seed}/{self.epoch}/shards/{lane}")
            filled = [number for number, samples in enumerate(self.counts) if samples]
            while count > 0:
                shard = draw.choice(filled)
                firsts.append(self.starts[shard])
                lengths.append(min(self.counts[shard], count))
                count -= lengths[-1]
        else:
            order = list(range(len(self.counts)))
            random.Random(f"{self.seed}/{self.epoch}/shards").shuffle(order)
            at = 0
            for shard in order:
                low, high = max(start, at), min(start + count, at + self.counts[shard])
                if low < high:
                    firsts.append(self.starts[shard] + low - at)
                    lengths.append(high - low)
                at += self.counts[shard]
        return list(accumulate(lengths)), firsts

    def _lane(self, lane: int, skip: int) -> Iterator[TapePlace]:
        """What a worker hands out, but for the first so many."""
        start, count = self._stretch(lane)
        ends, firsts = self._pieces(lane)

        def index(place: int) -> int:
            piece = bisect_right(ends, place)
            return firsts[piece] + place - (ends[piece - 1] if piece else 0)

        draw = random.Random(f"{self.seed}/{self.epoch}/buffer/{lane}")
        held: list[int] = []
        read = 0
        for number in range(count):
            fresh = range(read, min(count, read + max(self.buffer, 1) - len(held)))
            held += fresh
            read = fresh.stop if fresh else read
            reads: Sequence[int] = sorted(held) if number == skip else fresh
            chosen = draw.randrange(len(held))
            held[chosen], held[-1] = held[-1], held[chosen]
            place = held.pop()
            if number >= skip:
                tape, found = start + place, index(place)
                fetched = tuple((start + p, index(p)) for p in reads)
                yield TapePlace(self.epoch, tape if self.resample else found, tape, found, fetched)

    def __iter__(self) -> Iterator[list[Any]]:
        rank, skips = self.share[0], [0] * self.workers
        for step in range(self.start):
            skips[step % self.workers] += self._local(step, rank)
        lanes = [self._lane(rank * self.workers + worker, skip) for worker, skip in enumerate(skips)]
        for step in range(self.start, len(self)):
            # The loader hands its batches to its workers in turn, so that each has one lane.
            yield [next(lanes[step % self.workers]) for _ in range(self._local(step, rank))]


class TapeDataset(CaptionDataset):
    """Samples of shards, read forward as TapeBatches says; any other place is found by reading its shard anew.

    shards: where they are. counts: samples of each. The others: see CaptionDataset.
    Samples of a shard that cannot be read are BadRecords, as pictures that cannot be decoded are, and samples without a
    caption or, where there is no tokenizer, without a class.
    """

    def __init__(self, shards: Sequence[str], counts: Sequence[int], tokenizer: Any, **options: Any) -> None:
        super().__init__((), tokenizer, **options)
        self.shards, self.starts = shards, [0, *accumulate(counts)]
        self._epoch = -1
        self._rewind()

    def _rewind(self) -> None:
        self._held: dict[int, ShardSample | BadRecord] = {}
        self._lost: dict[int, str] = {}
        self._stream: Iterator[ShardSample] = iter(())
        self._shard = self._next = -1

    def __len__(self) -> int:
        return self.starts[-1]

    def __getstate__(self) -> dict[str, Any]:
        """For workers that are spawned: a reader that is open is not handed over."""
        return self.__dict__ | {"_stream": iter(()), "_shard": -1, "_held": {}}

    def __getitem__(self, place: Any) -> Sample | BadRecord:
        if place[0] != self._epoch:
            self._rewind()
            self._epoch = place[0]
        if isinstance(place, TapePlace):
            for tape, index in place.reads:
                self._held[tape] = self._read(index)
            found = self._held.pop(place.tape)
        else:
            found = self._read(place[1])
        if isinstance(found, BadRecord):
            return found
        wanted, there = ("class", found.label is not None) if self.tokenizer is None else ("caption", found.captions)
        if not there and not found.error:
            return BadRecord(found.id, f"{found.id}: has no {wanted}")
        return self.sample(CaptionRecord(found.id, found.open, found.captions, found.label), place[:2])

    def _read(self, index: int) -> ShardSample | BadRecord:
        shard = bisect_right(self.starts, index) - 1
        offset = index - self.starts[shard]
        where = self.shards[shard]
        if shard not in self._lost:
            try:
                if shard != self._shard or offset < self._next:
                    self._stream, self._shard, self._next = read_samples(where), shard, 0
                while self._next <= offset:
                    sample = next(self._stream)
                    self._next += 1
                return sample
            except StopIteration:
                self._lose(
                    shard, f"{where}: ends after {self._next} samples, and {self._count(shard)} are known to be in it"
                )
            except ShardError as error:
                self._lose(shard, str(error))
        return BadRecord(stem(where), self._lost[shard])

    def _count(self, shard: int) -> int:
        return self.starts[shard + 1] - self.starts[shard]

    def _lose(self, shard: int, reason: str) -> None:
        left = self._count(shard) - max(self._next, 0)
        self._lost[shard] = f"{reason}; {left} of its samples are left out"
