"""The step interface of caption decoders: `forward` as the loop of `step` is the specification of every fast path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitcap.types import DecoderOutput, Memory, State


def select_groups(x: Tensor, index: Tensor) -> Tensor:
    """x (B, G, ...), index (B, G') -> (B, G', ...): sequence index[b, g] of image b."""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


class StepDecoder(nn.Module):
    """Base of the decoders. Subclasses implement `start` and `step`; they may override `forward` with a parallel pass.

    vocab_size: V. max_length: longest caption (tokens including BOS) the decoder accepts, None for no limit.
    """

    vocab_size: int
    max_length: int | None = None

    def start(self, memory: Memory, groups: int = 1) -> State:
        """State before the first token of `groups` sequences for each of the B images of the memory."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any, need_attention: bool = False) -> tuple[Tensor, Tensor | None, State]:
        """tokens (B, G) -> logits (B, G, V), cross-attention (B, G, L, H, N), None if not asked for or if
        the decoder has none, next state."""
        raise NotImplementedError

    def forward(self, memory: Memory, captions: Tensor, need_attention: bool = False) -> DecoderOutput:
        """captions (B, G, T) input tokens, BOS first -> logits (B, G, T, V), attention (B, G, T, L, H, N) or None."""
        state = self.start(memory, captions.shape[1])
        logits, attentions = [], []
        for t in range(captions.shape[2]):
            out, attention, state = self.step(captions[:, :, t], state, need_attention)
            logits.append(out)
            attentions.append(attention)
        found = [attention for attention in attentions if attention is not None]
        stacked = torch.stack(found, dim=2) if found else None
        return DecoderOutput(torch.stack(logits, dim=2), stacked)
