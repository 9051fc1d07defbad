"""Transformer caption decoder: masked parallel pass for training, KV cache for decoding.

Letters: B images, G sequences per image, T tokens, N memory tokens, D width, V vocabulary, L layers, H heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitcap.models.decoder import StepDecoder, select_groups
from vitcap.nn.blocks import DecoderBlock, init_transformer
from vitcap.nn.position import line, make_position
from vitcap.types import PAD, DecoderOutput, Memory, require_sizes

KeyValue = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TransformerState:
    """memory: per layer keys and values (B, H, N, K), once per image. cache: per layer (B, G, H', t, K), or None at
    the start. mask: (B, N) or None. length: t, tokens already read."""

    memory: tuple[KeyValue, ...]
    mask: Tensor | None
    groups: int
    cache: tuple[KeyValue, ...] | None = None
    length: int = 0

    def select(self, index: Tensor) -> TransformerState:
        """index (B, G'): sequences to go on with; the memory stays where it is."""
        cache = self.cache and tuple((select_groups(k, index), select_groups(v, index)) for k, v in self.cache)
        return replace(self, cache=cache, groups=index.shape[1])

    def keep(self, rows: Tensor) -> TransformerState:
        """rows (B',): images to go on with."""
        return replace(
            self,
            memory=tuple((k[rows], v[rows]) for k, v in self.memory),
            mask=None if self.mask is None else self.mask[rows],
            cache=self.cache and tuple((k[rows], v[rows]) for k, v in self.cache),
        )


class TransformerDecoder(StepDecoder):
    """Decoder of Vaswani et al. 2017 (section 3) over image or text memory.

    vocab_size: V. memory_width: width of the memory tokens. width, depth, heads, mlp_ratio: D, L, H, hidden / D.
    kv_heads: fewer key/value heads in self-attention (grouped-query). dropout: on embeddings and branches.
    max_length: longest input of a learned position table, BOS included; the other schemes know no limit.
    position: one of vitcap.nn.position.POSITIONS. norm: "pre" (with a final norm) or "post". activation: "gelu", or
    "relu" as in the paper. scale_embedding: word vectors times sqrt(D) (section 3.4).
    tie: output weights = embedding weights (Press and Wolf 2017).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        memory_width: int,
        width: int = 256,
        depth: int = 3,
        heads: int = 4,
        kv_heads: int | None = None,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        max_length: int = 40,
        position: str = "learned",
        norm: str = "pre",
        activation: str = "gelu",
        scale_embedding: bool = False,
        tie: bool = True,
    ) -> None:
        super().__init__()
        require_sizes(width=width, depth=depth, heads=heads, max_length=max_length)
        self.vocab_size, self.depth = vocab_size, depth
        self.max_length = max_length if position == "learned" else None
        self.scale = math.sqrt(width) if scale_embedding else 1.0
        self.embed = nn.Embedding(vocab_size, width, padding_idx=PAD)
        self.position = make_position(position, width=width, heads=heads, size=max_length)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(
                width,
                heads,
                memory_width=memory_width,
                kv_heads=kv_heads,
                mlp_ratio=mlp_ratio,
                dropout=dropout,
                norm=norm,
                activation=activation,
                position=self.position,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.out = nn.Linear(width, vocab_size)
        self.apply(init_transformer)
        if tie:
            self.out.weight = self.embed.weight

    def start(self, memory: Memory, groups: int = 1) -> TransformerState:
        """Projects the memory once per layer."""
        projected = tuple(block.cross_attn.project_memory(memory.tokens) for block in self.blocks)  # type: ignore[operator, union-attr]
        return TransformerState(projected, memory.mask, groups)

    def _run(
        self, tokens: Tensor, state: TransformerState, need_attention: bool
    ) -> tuple[Tensor, Tensor | None, TransformerState]:
        """tokens (B, G, T) after state.length earlier ones -> logits (B, G, T, V), attention (B, G, T, L, H, N)."""
        length = tokens.shape[2]
        coordinates = line(length, start=state.length, device=tokens.device)
        before = line(state.length, device=tokens.device) if state.length else None
        x = self.drop(self.position.add(self.embed(tokens) * self.scale, coordinates))
        attentions, caches = [], []
        for layer, block in enumerate(self.blocks):
            past = None
            if state.cache is not None:
                k, v = state.cache[layer]
                past = (k.flatten(0, 1), v.flatten(0, 1))
            x, weights, (k, v) = block(
                x,
                state.memory[layer],
                memory_mask=state.mask,
                past=past,
                coordinates=coordinates,
                past_coordinates=before,
                need_weights=need_attention,
            )
            attentions.append(weights)
            shape = tokens.shape[:2]
            caches.append((k.unflatten(0, shape), v.unflatten(0, shape)))
        # (B, G, H, T, N) per layer -> (B, G, T, L, H, N)
        attention = torch.stack(attentions, dim=2).permute(0, 1, 4, 2, 3, 5) if need_attention else None
        state = replace(state, cache=tuple(caches), length=state.length + length)
        return self.out(self.norm(x)), attention, state

    def step(
        self, tokens: Tensor, state: TransformerState, need_attention: bool = False
    ) -> tuple[Tensor, Tensor | None, TransformerState]:
        """tokens (B, G) -> logits (B, G, V), attention (B, G, L, H, N) or None, next state."""
        logits, attention, state = self._run(tokens[:, :, None], state, need_attention)
        return logits[:, :, 0], None if attention is None else attention[:, :, 0], state

    def forward(self, memory: Memory, captions: Tensor, need_attention: bool = False) -> DecoderOutput:
        """captions (B, G, T) -> logits (B, G, T, V): all steps in one masked pass, equal to the loop of steps."""
        logits, attention, _ = self._run(captions, self.start(memory, captions.shape[1]), need_attention)
        return DecoderOutput(logits, attention)
