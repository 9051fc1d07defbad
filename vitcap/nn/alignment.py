"""Alignment functions of recurrent decoders: how well a decoder state fits each memory token, and what it then reads.

Letters: B images or sentences, G sequences of each, N memory tokens, Q width of the query, M of the memory, A of the
keys, D of the values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def _weigh(scores: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (B, G, N) and values (B, N, D) -> context (B, G, D), weights (B, G, N)."""
    # Half-precision softmax would lose the tails; doubles keep their precision.
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if mask is None:
        weights = scores.softmax(-1)
    else:
        if mask.dtype != torch.bool:
            raise ValueError(f"memory mask must be boolean (True = may attend), got {mask.dtype}")
        if mask.shape != values.shape[:2]:
            raise ValueError(f"mask {tuple(mask.shape)} does not fit a memory of {tuple(values.shape[:2])} tokens")
        mask = mask[:, None]
        # The lowest finite number, not -inf: a row of -inf has NaN gradients even when its result is thrown away.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
    return weights.to(values.dtype) @ values, weights


class AdditiveAttention(nn.Module):
    """Scores v' tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2). width: A, of the hidden layer that scores."""

    def __init__(self, *, query_width: int, memory_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width)
        self.key = nn.Linear(memory_width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """query: (B, G, Q); keys: (B, N, A), `self.key(memory)`, projected once; values: (B, N, D); mask: (B, N)
        boolean, True = may attend. Returns context (B, G, D) and weights (B, G, N); both are zero, with zero gradient,
        where there is nothing to attend to."""
        scores = self.score(torch.tanh(self.query(query)[:, :, None] + keys[:, None])).squeeze(-1)
        return _weigh(scores, values, mask)


class DotAttention(nn.Module):
    """Scores q' k (Luong et al. 2015, equation 8, "dot"); scaled: q' k / sqrt(A) (Vaswani et al. 2017, equation 1)."""

    def __init__(self, *, query_width: int, memory_width: int, scaled: bool = False) -> None:
        super().__init__()
        if query_width != memory_width:
            raise ValueError(
                f"a dot product needs one width, but the query has {query_width} and the memory {memory_width}: "
                "use 'general' or 'additive'"
            )
        self.key: nn.Module = nn.Identity()
        self.factor = 1.0 / math.sqrt(memory_width) if scaled else 1.0

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As AdditiveAttention.forward, with A = Q."""
        return _weigh((query * self.factor) @ keys.transpose(1, 2), values, mask)


class GeneralAttention(DotAttention):
    """Scores q' W k (Luong et al. 2015, equation 8, "general"): a bilinear form, for any two widths."""

    def __init__(self, *, query_width: int, memory_width: int) -> None:
        super().__init__(query_width=query_width, memory_width=query_width)
        self.key = nn.Linear(memory_width, query_width, bias=False)


ALIGNMENTS = ("additive", "dot", "scaled_dot", "general")


def make_alignment(kind: str, *, query_width: int, memory_width: int, width: int) -> nn.Module:
    """Alignment function by name (one of ALIGNMENTS). query_width: Q; memory_width: M; width: A of "additive".

    All have `key(memory (B, N, M)) -> keys (B, N, A)` and `forward(query, keys, values, mask=)`. Raises ValueError for
    an unknown name, and for a dot product of two widths.
    """
    match kind:
        case "additive":
            return AdditiveAttention(query_width=query_width, memory_width=memory_width, width=width)
        case "dot" | "scaled_dot":
            return DotAttention(query_width=query_width, memory_width=memory_width, scaled=kind == "scaled_dot")
        case "general":
            return GeneralAttention(query_width=query_width, memory_width=memory_width)
    raise ValueError(f"unknown alignment function {kind!r}; choose one of {', '.join(ALIGNMENTS)}")
