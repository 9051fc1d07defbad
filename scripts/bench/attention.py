"""Attention: the formula, which holds the N x N weights, against the fused kernel, which never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import figure
from bench.frame import Candidate, Measurement, Options, Statement, compare
from vitcap.nn.attention import attend

PACKAGES = ("vitcap",)
METHOD = "attend(q, k, v) with q, k, v of shape (1, 4, N, 64), no mask; backward: gradients for q, k and v"
HEADS, HEAD_WIDTH = 4, 64
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
QUICK_LENGTHS = (256, 1024, 4096, 16384)
SPECIFICATION_BYTES = 4 * 2**30
"""The specification is left out where its two N x N matrices (scores, weights) and their two gradients take more."""
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
"""Of outputs and gradients, relative to their largest entry."""
LINEAR = 1.3


def setup(*, fused: bool, n: int, backward: bool, device: str, dtype: str) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, n, HEAD_WIDTH)
    q, k, v, grad = (torch.randn(shape, generator=generator).to(device, getattr(torch, dtype)) for _ in range(4))
    if not backward:
        return lambda: attend(q, k, v, fused=fused)[0]
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def step() -> list[torch.Tensor]:
        out = attend(q, k, v, fused=fused)[0]
        return [out.detach(), *torch.autograd.grad(out, inputs, grad)]

    return step


def bearable(n: int) -> bool:
    return 4 * HEADS * n * n * 4 <= SPECIFICATION_BYTES


def measure(options: Options, *, lengths: Sequence[int] | None = None) -> Iterator[Measurement | Statement]:
    """lengths: ascending values of N. Quick runs leave the backward pass out."""
    lengths = lengths or (QUICK_LENGTHS if options.quick else LENGTHS)
    peaks: dict[tuple[str, int], int] = {}
    for way in ("forward",) if options.quick else ("forward", "forward + backward"):
        for n in lengths:
            candidates = []
            for name, fused in (("specification", False), ("fused", True)):
                if not fused and not bearable(n):
                    continue
                make = partial(
                    setup, fused=fused, backward=way != "forward", device=options.device, dtype=options.dtype
                )
                candidates.append(Candidate(name, partial(make, n=n), partial(make, n=64), peer=not fused))
            for result in compare({"pass": way, "N": n}, candidates, options, tolerance=TOLERANCE[options.dtype]):
                if result.candidate == "fused":
                    peaks[way, n] = result.peak_bytes or 0
                yield result
    if left := [n for n in lengths if not bearable(n)]:
        yield Statement(
            f"the specification is left out at N = {', '.join(f'{n:,}' for n in left)}, where its N x N matrices and "
            f"their gradients take more than {SPECIFICATION_BYTES // 2**30} GiB"
        )
    for way in dict.fromkeys(way for way, _ in peaks):
        yield from linear(way, {n: space for (name, n), space in peaks.items() if name == way})


def linear(way: str, peaks: Mapping[int, int]) -> Iterator[Statement]:
    """Linear in N: four times the length takes at most LINEAR * 4 times the memory, at the greatest length measured."""
    n = max(peaks)
    if n % 4 == 0 and peaks.get(n // 4, 0) > 0:
        ratio = peaks[n] / (4 * peaks[n // 4])
        text = f"{way}, fused: peak at N = {n:,} / (4 x peak at N = {n // 4:,}), to be at most {LINEAR}"
        yield Statement(text, ratio, LINEAR, ratio <= LINEAR)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    panels = []
    for title, label, key, scale in (
        ("time", "time of one call (ms)", "median_s", 1e3),
        ("peak memory", "peak memory above the inputs (MiB)", "peak_bytes", 2**-20),
    ):
        curves = figure.curves(rows, key, scale)
        guides = {2: curves["specification"][-1], 1: curves["fused"][-1]}
        if key == "median_s":
            guides = {2: curves["fused"][-1]}  # either path computes N x N scores
        below = {exponent: (n, y / 1.8) for exponent, (n, y) in guides.items()}
        panels.append(figure.Panel(title, label, curves, below))
    figure.draw(path, f"Attention over N tokens, {HEADS} heads of width {HEAD_WIDTH}", panels)
