"""Recurrent caption decoder with soft attention (Xu et al. 2015, "Show, Attend and Tell").

Letters: B images, G sequences per image, N memory tokens, D width of the recurrent state, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitcap.models.decoder import StepDecoder, select_groups
from vitcap.nn.attention import AdditiveAttention
from vitcap.types import PAD, Memory


@dataclass(frozen=True)
class RnnState:
    """keys (B, N, A), values (B, N, M), mask (B, N) or None: the memory, once per image; hidden and cell: (B, G, D)."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    hidden: Tensor
    cell: Tensor

    def select(self, index: Tensor) -> RnnState:
        """index (B, G'): sequences to go on with."""
        return replace(self, hidden=select_groups(self.hidden, index), cell=select_groups(self.cell, index))

    def keep(self, rows: Tensor) -> RnnState:
        """rows (B',): images to go on with."""
        mask = None if self.mask is None else self.mask[rows]
        return RnnState(self.keys[rows], self.values[rows], mask, self.hidden[rows], self.cell[rows])


class RnnDecoder(StepDecoder):
    """LSTM with soft attention: state from the mean memory token, gated context, deep output (section 3.1.2 and 4.2.1).

    vocab_size: V. memory_width: M. width: D. embed_width: of the word vectors. attention_width: A.
    dropout: on word vectors and before the output layer.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        memory_width: int,
        width: int = 512,
        embed_width: int = 256,
        attention_width: int = 256,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embed = nn.Embedding(vocab_size, embed_width, padding_idx=PAD)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.init_hidden = nn.Linear(memory_width, width)
        self.init_cell = nn.Linear(memory_width, width)
        self.attention = AdditiveAttention(width, memory_width, attention_width)
        self.gate = nn.Linear(width, memory_width)
        self.cell = nn.LSTMCell(embed_width + memory_width, width)
        self.hidden_out = nn.Linear(width, embed_width)
        self.context_out = nn.Linear(memory_width, embed_width, bias=False)
        self.out = nn.Linear(embed_width, vocab_size)
        self.drop = nn.Dropout(dropout)

    def start(self, memory: Memory, groups: int = 1) -> RnnState:
        """Initial state tanh(W mean(memory)) (equation of section 3.1.2); attention keys are projected once."""
        if memory.mask is None:
            mean = memory.tokens.mean(1)
        else:
            mask = memory.mask[..., None].to(memory.tokens.dtype)
            mean = (memory.tokens * mask).sum(1) / mask.sum(1).clamp(min=1)
        hidden, cell = torch.tanh(self.init_hidden(mean)), torch.tanh(self.init_cell(mean))
        hidden, cell = (x[:, None].expand(-1, groups, -1) for x in (hidden, cell))
        return RnnState(self.attention.key(memory.tokens), memory.tokens, memory.mask, hidden, cell)

    def step(
        self, tokens: Tensor, state: RnnState, need_attention: bool = False
    ) -> tuple[Tensor, Tensor | None, RnnState]:
        """tokens (B, G) -> logits (B, G, V), attention (B, G, 1, 1, N) or None, next state."""
        word = self.drop(self.embed(tokens))
        context, weights = self.attention(state.hidden, state.keys, state.values, mask=state.mask)
        context = torch.sigmoid(self.gate(state.hidden)) * context
        shape = tokens.shape
        hidden, cell = self.cell(
            torch.cat((word, context), dim=-1).flatten(0, 1),
            (state.hidden.flatten(0, 1), state.cell.flatten(0, 1)),
        )
        hidden, cell = hidden.unflatten(0, shape), cell.unflatten(0, shape)
        # Deep output (equation 7): word, state and context together choose the next word.
        logits = self.out(self.drop(torch.tanh(word + self.hidden_out(self.drop(hidden)) + self.context_out(context))))
        attention = weights[:, :, None, None] if need_attention else None
        return logits, attention, replace(state, hidden=hidden, cell=cell)
