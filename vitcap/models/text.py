"""Text encoders: a source sentence as memory without a grid.

Letters: B sentences, S tokens, D width, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vitcap.nn.blocks import EncoderBlock, init_transformer
from vitcap.nn.position import line, make_position
from vitcap.types import PAD, Memory, require_sizes


class RnnTextEncoder(nn.Module):
    """Bidirectional LSTM (Bahdanau et al. 2015, section 3.2, with LSTM cells): token s is read from both sides.

    vocab_size: of the source. width: D, half of it in each direction. embed_width: of the word vectors. depth: layers.
    dropout: on word vectors, between layers and on the output.
    """

    def __init__(
        self, *, vocab_size: int, width: int = 256, embed_width: int = 256, depth: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__()
        require_sizes(width=width, embed_width=embed_width, depth=depth)
        if width < 2 or width % 2:
            raise ValueError(f"width {width} cannot be shared by 2 directions: it must be even")
        self.width = width
        self.embed = nn.Embedding(vocab_size, embed_width, padding_idx=PAD)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.drop = nn.Dropout(dropout)
        between = dropout if depth > 1 else 0.0
        self.rnn = nn.LSTM(
            embed_width, width // 2, num_layers=depth, dropout=between, batch_first=True, bidirectional=True
        )

    def forward(self, source: Tensor, need_attention: bool = False) -> Memory:
        """source (B, S) ids, PAD after the end -> memory; pooled (B, D) = last forward and first backward state.

        Padding changes nothing. A sentence without tokens has a memory of zeros that is masked everywhere. Raises
        ValueError for PAD before a token, and for need_attention.
        """
        if need_attention:
            raise ValueError("a recurrent encoder has no self-attention, so there are no attention maps to give")
        mask = source != PAD
        gaps = (mask[:, 1:] & ~mask[:, :-1]).any(1)
        lengths, gap = torch.stack((mask.sum(1), gaps.long())).cpu()
        if gap.any():
            raise ValueError(f"row {int(gap.argmax())} of the source has PAD before a token: PAD stands after the end")
        words = self.drop(self.embed(source))
        # A packed sequence cannot be empty: such a row reads one PAD, and what comes of it is zeroed.
        packed = pack_padded_sequence(words, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        packed, (last, _) = self.rnn(packed)
        tokens, _ = pad_packed_sequence(packed, batch_first=True, total_length=source.shape[1])
        tokens, pooled = self.drop(tokens) * mask[..., None], torch.cat((last[-2], last[-1]), dim=-1)
        return Memory(tokens, mask=mask, pooled=self.drop(pooled) * mask[:, :1])


class TransformerTextEncoder(nn.Module):
    """Encoder of Vaswani et al. 2017 (section 3).

    vocab_size: of the source. width, depth, heads, mlp_ratio: D, layers, H, hidden width / D. dropout: on embeddings
    and branches. max_length: longest source of a learned position table; the other schemes know no limit.
    position: one of vitcap.nn.position.POSITIONS. norm: "pre" (with a final norm) or "post". activation: "gelu", or
    "relu" as in the paper. scale_embedding: word vectors times sqrt(D) (section 3.4).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        width: int = 256,
        depth: int = 3,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        max_length: int = 40,
        position: str = "learned",
        norm: str = "pre",
        activation: str = "gelu",
        scale_embedding: bool = False,
    ) -> None:
        super().__init__()
        require_sizes(width=width, depth=depth, heads=heads, max_length=max_length)
        self.width = width
        self.scale = math.sqrt(width) if scale_embedding else 1.0
        self.embed = nn.Embedding(vocab_size, width, padding_idx=PAD)
        self.position = make_position(position, width=width, heads=heads, size=max_length)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                width,
                heads,
                mlp_ratio=mlp_ratio,
                dropout=dropout,
                norm=norm,
                activation=activation,
                eps=1e-5,
                position=self.position,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.apply(init_transformer)

    def forward(self, source: Tensor, need_attention: bool = False) -> Memory:
        """source (B, S) ids, PAD after the end -> memory; pooled (B, D) = mean of the tokens that are not PAD; the
        attention (B, H, S, S) of every block when asked. Raises ValueError beyond a learned position table."""
        mask = source != PAD
        coordinates = line(source.shape[1], device=source.device)
        x = self.drop(self.position.add(self.embed(source) * self.scale, coordinates))
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask=mask, coordinates=coordinates, need_weights=need_attention)
            maps.append(weights)
        x = self.norm(x)
        share = mask[..., None].to(x.dtype)
        pooled = (x * share).sum(1) / share.sum(1).clamp(min=1)
        return Memory(x, mask=mask, pooled=pooled, attentions=tuple(maps) if need_attention else None)
