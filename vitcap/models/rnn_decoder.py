"""Recurrent decoder with soft, hard or no attention (Xu et al. 2015, "Show, Attend and Tell"; Bahdanau et al. 2015).

Letters: B images, G sequences per image, T tokens, N memory tokens, M width of the memory, E of the word vectors,
D of the recurrent state, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcap.models.decoder import StepDecoder, select_groups
from vitcap.nn.alignment import make_alignment
from vitcap.types import PAD, DecoderOutput, Memory, require_sizes

GATES = ("channel", "scalar", "none")
INITIALS = ("mean", "pooled")


@dataclass(frozen=True)
class RnnState:
    """The memory, once per image: keys (B, N, A) or None without attention, values (B, N, M), mask (B, N) or None.
    soft (B,): images that read the expected value in place of a drawn one, or None. hidden and cell: (B, G, D)."""

    keys: Tensor | None
    values: Tensor
    mask: Tensor | None
    soft: Tensor | None
    hidden: Tensor
    cell: Tensor

    def select(self, index: Tensor) -> RnnState:
        """index (B, G'): sequences to go on with."""
        return replace(self, hidden=select_groups(self.hidden, index), cell=select_groups(self.cell, index))

    def keep(self, rows: Tensor) -> RnnState:
        """rows (B',): images to go on with."""
        keys, mask, soft = (None if x is None else x[rows] for x in (self.keys, self.mask, self.soft))
        return RnnState(keys, self.values[rows], mask, soft, self.hidden[rows], self.cell[rows])


@dataclass(frozen=True)
class Look:
    """What one step read: context (B, G, M), before the gate; weights (B, G, N) that formed it; of hard attention in
    training, log-probability of the places drawn, and entropy, both (B, G)."""

    context: Tensor
    weights: Tensor | None = None
    log_prob: Tensor | None = None
    entropy: Tensor | None = None


class RnnDecoder(StepDecoder):
    """LSTM that reads the memory at every step; deep output (Xu et al. 2015, equation 7).

    vocab_size: V. memory_width: M. width: D. embed_width: E. attention_width: of the hidden layer of "additive".
    dropout: on word vectors and before the output layers.
    attention: alignment function, one of vitcap.nn.alignment.ALIGNMENTS; "none": the fixed context vector that
        attention replaced, memory.pooled (the mean token where there is none) at every step (Cho et al. 2014).
    hard: read one place instead of the mean of all (section 4.1). In training it is drawn from the weights with
        torch's global generator, but an image reads the expected value with probability `soft_share` (0.5 in the
        paper); gradients reach the weights of a drawn place through `choice_log_prob` only, and `entropy` is that of
        the weights. In evaluation the likeliest place is read. The attention returned is what formed the context:
        one-hot where one place was read.
    gate: factor on the context from the previous state, sigmoid(W h + b): "scalar" (section 4.2.1), "channel" (one for
        each of the M channels, as published implementations have it), or "none".
    initial: the state starts from the mean token ("mean", section 3.1.2), or from memory.pooled ("pooled"; the mean
        token where there is none).
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
        attention: str = "additive",
        hard: bool = False,
        soft_share: float = 0.5,
        gate: str = "channel",
        initial: str = "mean",
    ) -> None:
        super().__init__()
        require_sizes(width=width, embed_width=embed_width, attention_width=attention_width)
        for name, value, choices in (("gate", gate, GATES), ("initial", initial, INITIALS)):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if hard and attention == "none":
            raise ValueError("hard=True draws from attention weights, but attention='none' has none")
        if not 0.0 <= soft_share <= 1.0:
            raise ValueError(f"soft_share must be in 0..1, got {soft_share}")
        self.vocab_size, self.memory_width = vocab_size, memory_width
        self.hard, self.soft_share, self.initial = hard, soft_share, initial
        self.embed = nn.Embedding(vocab_size, embed_width, padding_idx=PAD)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.init_hidden = nn.Linear(memory_width, width)
        self.init_cell = nn.Linear(memory_width, width)
        sizes = {"query_width": width, "memory_width": memory_width, "width": attention_width}
        self.attention: Any = None if attention == "none" else make_alignment(attention, **sizes)
        self.gate = None if gate == "none" else nn.Linear(width, memory_width if gate == "channel" else 1)
        self.cell = nn.LSTMCell(embed_width + memory_width, width)
        self.hidden_out = nn.Linear(width, embed_width)
        self.context_out = nn.Linear(memory_width, embed_width, bias=False)
        self.out = nn.Linear(embed_width, vocab_size)
        self.drop = nn.Dropout(dropout)

    def start(self, memory: Memory, groups: int = 1) -> RnnState:
        """Initial state tanh(W x + b); attention keys are projected once; the images of `soft_share` are drawn."""
        tokens, mask, pooled, keys, soft = memory.tokens, memory.mask, memory.pooled, None, None
        for x in (tokens, pooled):
            if x is not None and x.shape[-1] != self.memory_width:
                raise ValueError(f"memory of width {x.shape[-1]} for a decoder built for {self.memory_width}")
        mean = tokens.mean(1)
        if mask is not None:
            share = mask[..., None].to(tokens.dtype)
            mean = (tokens * share).sum(1) / share.sum(1).clamp(min=1)
        whole = mean if pooled is None else pooled
        first = whole if self.initial == "pooled" else mean
        hidden, cell = torch.tanh(self.init_hidden(first)), torch.tanh(self.init_cell(first))
        hidden, cell = (x[:, None].expand(-1, groups, -1) for x in (hidden, cell))
        if self.attention is None:
            tokens, mask = whole[:, None], None
        else:
            keys = self.attention.key(tokens)
        if self.hard and self.training:
            soft = torch.rand(len(tokens), device=tokens.device) < self.soft_share
        return RnnState(keys, tokens, mask, soft, hidden, cell)

    def _look(self, hidden: Tensor, state: RnnState) -> Look:
        """hidden (B, G, D): the previous state."""
        if self.attention is None:
            return Look(state.values.expand(-1, hidden.shape[1], -1))
        context, weights = self.attention(hidden, state.keys, state.values, mask=state.mask)
        if not self.hard:
            return Look(context, weights)
        some = weights.detach().sum(-1, keepdim=True) > 0  # False where everything is masked
        if state.soft is None:
            place = weights.argmax(-1, keepdim=True)
        else:
            shares = weights.detach().masked_fill(~some, 1.0).flatten(0, 1)
            place = torch.multinomial(shares, 1).unflatten(0, some.shape[:2])
        chosen = torch.zeros_like(weights).scatter(-1, place, some.to(weights.dtype))
        if state.soft is None:
            return Look(chosen.to(state.values.dtype) @ state.values, chosen)
        logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        used = torch.where(state.soft[:, None, None], weights, chosen)
        drawn = some.squeeze(-1) & ~state.soft[:, None]
        log_prob = logs.gather(-1, place).squeeze(-1).where(drawn, 0.0)
        return Look(used.to(state.values.dtype) @ state.values, used, log_prob, -(weights * logs).sum(-1))

    def _gated(self, context: Tensor, hidden: Tensor) -> Tensor:
        return context if self.gate is None else torch.sigmoid(self.gate(hidden)) * context

    def _deep_output(self, word: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Equation 7: word (..., E), state (..., D) and context (..., M) together choose the next word, (..., V)."""
        return self.out(self.drop(torch.tanh(word + self.hidden_out(self.drop(hidden)) + self.context_out(context))))

    def step(
        self, tokens: Tensor, state: RnnState, need_attention: bool = False
    ) -> tuple[Tensor, Tensor | None, RnnState]:
        """tokens (B, G) -> logits (B, G, V), attention (B, G, 1, 1, N) or None, next state."""
        word = self.drop(self.embed(tokens))
        look = self._look(state.hidden, state)
        context = self._gated(look.context, state.hidden)
        shape = tokens.shape
        hidden, cell = self.cell(
            torch.cat((word, context), dim=-1).flatten(0, 1),
            (state.hidden.flatten(0, 1), state.cell.flatten(0, 1)),
        )
        hidden, cell = hidden.unflatten(0, shape), cell.unflatten(0, shape)
        attention = look.weights[:, :, None, None] if need_attention and look.weights is not None else None
        return self._deep_output(word, hidden, context), attention, replace(state, hidden=hidden, cell=cell)

    def forward(self, memory: Memory, captions: Tensor, need_attention: bool = False) -> DecoderOutput:
        """captions (B, G, T) -> logits (B, G, T, V), equal to the loop of steps: what needs no earlier step (the words'
        part of the LSTM input) and what no later step needs (the output layers) is computed for all steps at once."""
        shape = captions.shape[:2]
        state = self.start(memory, shape[1])
        word = self.drop(self.embed(captions))
        of_word, of_context = self.cell.weight_ih.split((word.shape[-1], self.memory_width), dim=1)
        inputs = F.linear(word.permute(2, 0, 1, 3).flatten(1, 2), of_word, self.cell.bias_ih + self.cell.bias_hh)
        hidden, cell = state.hidden, state.cell.flatten(0, 1)
        looks, hiddens, contexts = [], [], []
        for x in inputs:
            look = self._look(hidden, state)
            context = self._gated(look.context, hidden)
            gates = (
                x + F.linear(context.flatten(0, 1), of_context) + F.linear(hidden.flatten(0, 1), self.cell.weight_hh)
            )
            i, f, new, o = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(new)
            hidden = (torch.sigmoid(o) * torch.tanh(cell)).unflatten(0, shape)
            looks.append(look)
            hiddens.append(hidden)
            contexts.append(context)
        logits = self._deep_output(word, torch.stack(hiddens, dim=2), torch.stack(contexts, dim=2))

        def all_steps(parts: list[Tensor | None]) -> Tensor | None:
            found = [part for part in parts if part is not None]
            return torch.stack(found, dim=2) if found else None

        attention = all_steps([look.weights for look in looks]) if need_attention else None
        return DecoderOutput(
            logits,
            None if attention is None else attention[:, :, :, None, None],
            choice_log_prob=all_steps([look.log_prob for look in looks]),
            entropy=all_steps([look.entropy for look in looks]),
        )
