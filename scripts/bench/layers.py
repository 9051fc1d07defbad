"""Layers over a sequence: recurrent, convolution, self-attention by its formula and by the fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench import figure
from bench.attention import TOLERANCE, bearable
from bench.frame import Candidate, Measurement, Options, Statement, compare
from vitcap.nn.attention import MultiHeadAttention

PACKAGES = ("vitcap",)
METHOD = "one layer of width 256 on x of shape (1, N, 256), inference"
WIDTH, HEADS, KERNEL = 256, 4, 3
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
QUICK_LENGTHS = (256, 1024, 4096)
CHAIN_LENGTHS = (64, 128, 256)

# Vaswani et al. 2017, table 1: complexity per layer, sequential operations, maximum path length.
TABLE_1 = {
    "recurrent (LSTM)": ("O(N D^2)", "O(N)", "O(N)"),
    "convolution (k = 3)": ("O(k N D^2)", "O(1)", "O(log_k N) if dilated, else O(N / k)"),
    "self-attention, specification": ("O(N^2 D)", "O(1)", "O(1)"),
    "self-attention, fused": ("O(N^2 D)", "O(1)", "O(1)"),
}


def layer(kind: str) -> nn.Module:
    """A new layer, (1, N, D) -> (1, N, D), with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind.startswith("recurrent"):
            return _Lstm(WIDTH, WIDTH, batch_first=True).eval()
        if kind.startswith("convolution"):
            return _Convolution(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2).eval()
        return _SelfAttention(WIDTH, HEADS, fused=kind.endswith("fused")).eval()


class _Lstm(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class _Convolution(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class _SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.attention, self.fused = MultiHeadAttention(width, heads), fused

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, fused=self.fused)[0]


def setup(kind: str, *, n: int, device: str, dtype: str) -> Callable[[], Tensor]:
    made = layer(kind).to(device, getattr(torch, dtype))
    x = torch.randn(1, n, WIDTH, generator=torch.Generator().manual_seed(1)).to(device, getattr(torch, dtype))
    return torch.inference_mode()(partial(made, x))


class Chain(TorchDispatchMode):
    """Counts, for every tensor made while it is active, the longest chain of tensor operations that lead to it.

    Operations on which nothing waits count alike whether they run one after the other or at once, so this is the least
    number of steps on a machine with any number of processors. Views are no work and do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        self._alive: list[Tensor] = []  # so that no later tensor gets the id of an earlier one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        inputs = [self.steps.get(id(x), 0) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        for out in tree_leaves(outputs):
            if isinstance(out, Tensor):
                self.steps[id(out)] = max(inputs, default=0) + (not func.is_view)
                self._alive.append(out)
        return outputs


def chain(kind: str, n: int) -> int:
    """The longest chain of dependent tensor operations in one layer over n tokens.

    In doubles on the CPU and not in inference mode, so that torch computes an LSTM step by step, out of operations that
    can be seen, and not in one.
    """
    made, x = layer(kind).double(), torch.zeros(1, n, WIDTH, dtype=torch.float64)
    with torch.no_grad(), Chain() as found:
        out = made(x)
    return found.steps[id(out)]


def measure(
    options: Options, *, lengths: Sequence[int] | None = None, chains: Sequence[int] = CHAIN_LENGTHS
) -> Iterator[Measurement | Statement]:
    """lengths: ascending values of N. chains: those for which dependent operations are counted."""
    lengths = lengths or (QUICK_LENGTHS if options.quick else LENGTHS)
    for n in lengths:
        make = {kind: partial(setup, kind, device=options.device, dtype=options.dtype) for kind in TABLE_1}
        kinds = [kind for kind in TABLE_1 if bearable(n) or kind != "self-attention, specification"]
        candidates = [Candidate(kind, partial(make[kind], n=n), partial(make[kind], n=64)) for kind in kinds]
        alike = [kind for kind in kinds if kind.startswith("self-attention")]
        yield from compare({"N": n}, candidates, options, tolerance=TOLERANCE[options.dtype], alike=alike)
    if left := [n for n in lengths if not bearable(n)]:
        yield Statement(
            f"self-attention by the specification is left out at N = {', '.join(f'{n:,}' for n in left)}: memory"
        )
    for kind, (work, sequential, path) in TABLE_1.items():
        counted = ", ".join(f"{chain(kind, n):,} at N = {n:,}" for n in chains)
        yield Statement(
            f"{kind}: work {work}; path {path}; sequential operations {sequential}, longest chain counted: {counted}"
        )


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    panels = []
    for title, label, key, scale in (
        ("time", "time of one call (ms)", "median_s", 1e3),
        ("peak memory", "peak memory above the inputs (MiB)", "peak_bytes", 2**-20),
    ):
        curves = figure.curves(rows, key, scale)
        convolution = curves["convolution (k = 3)"][-1]
        quadratic = curves["self-attention, fused" if key == "median_s" else "self-attention, specification"][-1]
        guides = {1: (convolution[0], convolution[1] / 1.8), 2: (quadratic[0], quadratic[1] / 1.8)}
        panels.append(figure.Panel(title, label, curves, guides))
    figure.draw(path, f"One layer of width {WIDTH} over N tokens", panels)
