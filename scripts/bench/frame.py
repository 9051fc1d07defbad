"""The frame of every group: candidates, a check that they agree, interleaved timing, peak memory, statements."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.memory import peak
from vitcap.machine import keep_freed_memory, release_freed_memory

Call = Callable[[], Any]


@dataclass(frozen=True)
class Options:
    """device, dtype: where tensors live and their type. threads: of torch. quick: small sizes and few rounds.

    A comparison takes `rounds` rounds, but stops after the third once it has taken `budget` seconds; in a round each
    candidate is called for at least `min_time` seconds.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    quick: bool = False
    rounds: int = 9
    min_time: float = 0.1
    budget: float = 10.0

    @classmethod
    def of(
        cls,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
        quick: bool = False,
        tune: bool = False,
    ) -> Options:
        """Checked, and put into force: the threads of torch and, with `tune`, what vitcap's own commands set for
        memory allocation (otherwise every large tensor would be mapped and page-faulted in anew)."""
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda, but torch finds no CUDA device here; leave the option out to use the CPU")
        if threads is not None:
            if threads < 1:
                raise ValueError(f"--threads must be at least 1, got {threads}")
            torch.set_num_threads(threads)
        if tune:
            keep_freed_memory()
        options = cls(device, dtype, torch.get_num_threads(), quick)
        return replace(options, rounds=3, min_time=0.02, budget=3.0) if quick else options


@dataclass(frozen=True)
class Candidate:
    """Something to be measured.

    setup: makes the inputs and returns the call that is measured, which returns its outputs. warm: the same for small
    inputs. Both must be picklable (functions of a module, functools.partial of them), because memory is measured in
    another process; without `warm` it is not measured. peer: what the others are compared with.
    """

    name: str
    setup: Callable[[], Call]
    warm: Callable[[], Call] | None = None
    peer: bool = False


@dataclass(frozen=True)
class Measurement:
    """One candidate in one case, such as {"N": 1024}.

    seconds: of one call, one entry a round. ratio: how many times as fast as `best_peer`, the median over the rounds of
    the ratios within a round. peak_bytes: peak memory above the inputs, outputs included. difference: largest
    difference from the outputs that these should equal. other_cores: how many cores the other processes of the machine
    kept busy meanwhile, on average, None where that is not known; above a few tenths the times are not to be trusted.
    """

    case: dict[str, Any]
    candidate: str
    peer: bool
    seconds: list[float]
    ratio: float | None = None
    best_peer: str | None = None
    peak_bytes: int | None = None
    difference: float | None = None
    other_cores: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        cuts = statistics.quantiles(self.seconds, n=4, method="inclusive") if len(self.seconds) > 1 else self.seconds
        return cuts[0], cuts[-1]

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.case.values()))} {self.candidate} {1e3 * self.median:.3g} ms"


@dataclass(frozen=True)
class Statement:
    """Something that the measurements show, or that could not be measured and why. value against limit: `holds`."""

    text: str
    value: float | None = None
    limit: float | None = None
    holds: bool | None = None

    def __str__(self) -> str:
        verdict = {True: " - holds", False: " - DOES NOT HOLD", None: ""}[self.holds]
        return self.text + ("" if self.value is None else f": {self.value:.3g}") + verdict


def compare(
    case: Mapping[str, Any],
    candidates: Sequence[Candidate],
    options: Options,
    *,
    tolerance: float | None = None,
    alike: Sequence[str] | None = None,
) -> Iterator[Measurement]:
    """Measure the candidates side by side, after a first call of each, not timed, in which the outputs of those named
    in `alike` (default: all) must agree within `tolerance`, see `difference` (None: no check)."""
    calls = [_synchronised(candidate.setup(), options.device) for candidate in candidates]
    expected, by = None, ""
    differences: list[float | None] = []
    for candidate, call in zip(candidates, calls, strict=True):
        outputs, apart = call(), None
        if tolerance is not None and (alike is None or candidate.name in alike):
            if by:
                apart = difference(expected, outputs)
            else:
                expected, by = outputs, candidate.name
            if apart is not None and not apart <= tolerance:
                raise ValueError(
                    f"{candidate.name} and {by} differ by {apart:.3g} at {dict(case)}, more than the tolerance "
                    f"{tolerance:g}; nothing was timed"
                )
        differences.append(apart)
        del outputs
    del expected
    before = _others()
    seconds = interleaved(calls, options)
    after = _others()
    others = None if before is None or after is None else max(after[0] - before[0], 0.0) / (after[1] - before[1])
    del calls
    gc.collect()
    release_freed_memory()

    peers = [i for i, candidate in enumerate(candidates) if candidate.peer]
    best = min(peers, key=lambda i: statistics.median(seconds[i])) if peers else None
    for i, candidate in enumerate(candidates):
        ratio, name = None, None
        if best is not None:
            ratio = statistics.median(b / own for b, own in zip(seconds[best], seconds[i], strict=True))
            name = candidates[best].name
        space = None
        if candidate.warm is not None:
            space = peak(candidate.setup, candidate.warm, device=options.device, threads=options.threads)
        yield Measurement(
            dict(case), candidate.name, candidate.peer, seconds[i], ratio, name, space, differences[i], others
        )


def _synchronised(call: Call, device: str) -> Call:
    if device != "cuda":
        return call

    def wait() -> Any:
        outputs = call()
        torch.cuda.synchronize()
        return outputs

    return wait


def _others() -> tuple[float, float] | None:
    """CPU seconds that all processes but this one and its children have used, and the time; from /proc/stat."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting for a disk
    return busy - sum(os.times()[:4]), time.perf_counter()


def interleaved(calls: Sequence[Call], options: Options) -> list[list[float]]:
    """Seconds a call, one list for each of `calls`: in every round all take their turn, in rotating order, so that what
    else happens on the machine hits them alike. They have been called once before."""
    seconds: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    for turn in range(options.rounds):
        if turn >= 3 and time.perf_counter() - start > options.budget:
            break
        for i in range(len(calls)):
            i = (i + turn) % len(calls)
            seconds[i].append(_sample(calls[i], options.min_time))
    return seconds


def _sample(call: Call, min_time: float) -> float:
    times, begin = 0, time.perf_counter()
    while True:
        call()
        times += 1
        if (passed := time.perf_counter() - begin) >= min_time:
            return passed / times


def difference(expected: Any, found: Any) -> float:
    """Largest absolute difference of two alike structures, that of tensors relative to the largest expected entry.

    Structures: numbers, texts (equal or infinitely far), arrays, tensors, and lists and tuples of these.
    """
    if isinstance(expected, torch.Tensor):
        if expected.shape != found.shape:
            return float("inf")
        scale = max(float(expected.detach().abs().max()), torch.finfo(torch.float32).tiny)
        return float((expected.detach().double() - found.detach().double()).abs().max()) / scale
    if isinstance(expected, str):
        return 0.0 if expected == found else float("inf")
    if isinstance(expected, list | tuple):
        if len(expected) != len(found):
            return float("inf")
        return max((difference(a, b) for a, b in zip(expected, found, strict=True)), default=0.0)
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    return float(np.abs(expected - found).max(initial=0.0)) if expected.shape == found.shape else float("inf")
