"""What the layers hand to each other: batches, encoder memory, decoder output, generated captions.

Letters used for shapes in the whole package: B images (or sentences) in a batch, G sequences per image (captions in
training, beams in search, samples in self-critical training), T tokens of a caption, N memory tokens (patches and
prefix tokens), D width, V vocabulary, L decoder layers, H heads, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
"""Token ids that every tokenizer, decoder and search of the package agrees on."""


def require_number(name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """ValueError that names the option unless `value` is a finite number in low..high (a whole one if `whole`)."""
    kind = int if whole else (int, float)
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high or value == math.inf:
        limits = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{name}={value}: a {'whole ' if whole else ''}number {limits} is wanted")


def require_sizes(**sizes: object) -> None:
    """ValueError that names the first of the sizes that is no whole number of at least 1."""
    for name, value in sizes.items():
        require_number(name, value, 1, whole=True)


Grid = tuple[int, int]
"""(rows, columns) of the spatial memory tokens."""


@dataclass(frozen=True)
class Batch:
    """One batch of samples; every field but `ids` may be absent.

    ids: record ids, length B.
    images: (B, 3, H, W), uint8 in 0..255, or floating point already normalised.
    features: (B, N, C) output of an encoder's frozen trunk, in place of images.
    captions: (B, G, T) int64: BOS first, EOS last, PAD after; a missing caption is a row of PAD.
    labels: (B,) int64 class indices.
    source: (B, S) int64 source sentence tokens for sequence-to-sequence models, PAD after the end.
    """

    ids: tuple[int | str, ...]
    images: Tensor | None = None
    features: Tensor | None = None
    captions: Tensor | None = None
    labels: Tensor | None = None
    source: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def _map(self, function: Any) -> Batch:
        changed = {f.name: function(v) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, **changed)

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory."""
        return self._map(lambda tensor: tensor.pin_memory())


@dataclass(frozen=True)
class Memory:
    """What a decoder attends to.

    tokens: (B, N, D). Prefix tokens (class, registers), if any, come first: N = prefix + rows * columns.
    mask: (B, N) bool, True = may attend; None = all.
    grid: (rows, columns) of the last rows * columns tokens; None for text.
    pooled: (B, D) one vector for the whole input, for classification; None if the encoder has none.
    attentions: per encoder layer (B, H, N, N), only when asked for.
    """

    tokens: Tensor
    mask: Tensor | None = None
    grid: Grid | None = None
    pooled: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None

    @property
    def prefix(self) -> int:
        """Number of tokens that are no place in the picture (class token, registers)."""
        return self.tokens.shape[1] - self.grid[0] * self.grid[1] if self.grid else 0


@dataclass(frozen=True)
class DecoderOutput:
    """logits: (B, G, T, V). attention: (B, G, T, L, H, N) cross-attention weights, only when asked for, and None from a
    decoder that has no attention.

    Hard attention in training also gives choice_log_prob (B, G, T), of the places it drew (0 where it drew none), and
    entropy (B, G, T), in nats, of the distributions it drew from.
    """

    logits: Tensor
    attention: Tensor | None = None
    choice_log_prob: Tensor | None = None
    entropy: Tensor | None = None


@dataclass(frozen=True)
class Generated:
    """Result of a search: K sequences per image, best first.

    tokens: (B, K, T) int64 without BOS; EOS where the sequence ended, PAD after.
    log_probs: (B, K, T) log-probability of each token under the model, 0 after the end.
    scores: (B, K) what the search ranked by.
    finished: (B, K) bool, False where the maximum length cut the sequence.
    attention: (B, K, T, L, H, N) cross-attention of the step that emitted each token; only when asked for.
    """

    tokens: Tensor
    log_probs: Tensor
    scores: Tensor
    finished: Tensor
    attention: Tensor | None = None


@dataclass(frozen=True)
class DataSpec:
    """Sizes that the data decides, so that no config file has to repeat them.

    vocab_size: of captions or target sentences. source_vocab_size: of source sentences.
    """

    vocab_size: int | None = None
    source_vocab_size: int | None = None


@runtime_checkable
class State(Protocol):
    """Decoding state of G sequences per image; immutable, so that branching and replay are free."""

    def select(self, index: Tensor) -> State:
        """index (B, G') int64 in 0..G-1: the state of those sequences, per image. G' may differ from G."""
        ...

    def keep(self, rows: Tensor) -> State:
        """rows (B',) int64 in 0..B-1: the state of those images only, for dropping finished ones."""
        ...


class Decoder(Protocol):
    """A caption decoder; a torch module."""

    def start(self, memory: Memory, groups: int = 1) -> State:
        """State before the first token of `groups` sequences per image."""
        ...

    def step(self, tokens: Tensor, state: Any, need_attention: bool = False) -> tuple[Tensor, Tensor | None, State]:
        """tokens (B, G) -> logits (B, G, V), attention (B, G, L, H, N) or None, next state. `state` is not changed."""
        ...

    def forward(self, memory: Memory, captions: Tensor, need_attention: bool = False) -> DecoderOutput:
        """Teacher forcing: captions (B, G, T) input tokens -> logits (B, G, T, V) for the token after each."""
        ...


class Encoder(Protocol):
    """An image encoder; a torch module. `forward(images) == head(trunk(images))`."""

    width: int
    """D of the memory tokens."""

    grid_box: tuple[float, float, float, float]
    """The rectangle (x0, y0, x1, y1) in pixels of the input that the grid's cells share out evenly, each around what it
    reads; beyond the input, or short of it, where convolutions move the cells. It may depend on the weights, and take
    a pass to find. Where an encoder lacks it, it is all of the input."""

    def trunk(self, images: Tensor) -> Tensor:
        """The part that never trains: (B, 3, H, W) normalised -> (B, N, C). May be cached on disk."""
        ...

    def head(self, features: Tensor, need_attention: bool = False) -> Memory:
        """The part that may train: trunk output (B, N, C) -> memory."""
        ...


def count_parameters(parameters: Sequence[Any]) -> int:
    """Number of scalars in a list of tensors."""
    return sum(p.numel() for p in parameters)
