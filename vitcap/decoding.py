"""Search: from a decoder's next-token logits to captions.

`Greedy`, `Beam` and `Sample` are small frozen dataclasses, called as `search(decoder, memory) -> Generated`. They own
every rule about captions (lengths, forbidden tokens, repetition); decoders know none of them.

Letters: B images, G sequences per image (beams, samples), K sequences returned per image, T tokens, V vocabulary,
L decoder layers, H heads, N memory tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vitcap.types import BOS, EOS, PAD, UNK, Decoder, Generated, Memory

NEVER = -math.inf
Random = torch.Generator | None
Trace = list[tuple[Tensor, Tensor]]  # per step: images still in the batch (B',), their attention (B', G, L, H, N)


def constrain(
    logits: Tensor,
    tokens: Tensor,
    *,
    min_length: int = 0,
    no_repeat_ngram: int = 0,
    forbid: Sequence[int] = (UNK,),
    in_place: bool = False,
) -> Tensor:
    """Logits (..., V) with -inf where the rules rule a token out; a copy, which costs time, unless `in_place`.

    tokens: (..., t) the sequences so far, without BOS. PAD and BOS are always ruled out.
    min_length: no EOS before that many tokens. forbid: token ids that are never produced.
    no_repeat_ngram: n > 0 rules out every token that would complete an n-gram the sequence already has (Paulus et al.
        2018, section 2.5, for n = 3). Where that would leave no token at all, it gives way to the other rules.
    """
    out = logits if in_place else logits.clone()
    _require(max(forbid, default=0) < out.shape[-1], f"forbid={forbid}, but the vocabulary has {out.shape[-1]} tokens")
    out.index_fill_(-1, torch.tensor([PAD, BOS, *forbid], device=out.device), NEVER)
    length, n = tokens.shape[-1], no_repeat_ngram
    if length < min_length:
        out[..., EOS] = NEVER
    if 0 < n <= length:
        windows = tokens.unfold(-1, n, 1)  # (..., t - n + 1, n)
        repeats = (windows[..., :-1] == tokens[..., None, length - n + 1 :]).all(-1)
        last = windows[..., -1].where(repeats, PAD)
        before = out.gather(-1, last)
        dead = out.scatter_(-1, last, NEVER).amax(-1, keepdim=True) == NEVER
        out.scatter_(-1, last, before.where(dead, NEVER))
    return out


def sample(
    logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, generator: Random = None
) -> Tensor:
    """Draws one token for each row of logits (..., V) -> (...) int64, by inverting the cumulative distribution.

    Logits are divided by `temperature`; then only the `top_k` most probable tokens stay (0 = all; Fan et al. 2018);
    then only the smallest set of most probable ones whose mass reaches `top_p` (nucleus; Holtzman et al. 2020).
    generator: source of the uniform numbers, None = torch's global one.
    """
    probs = (logits.float() / temperature).softmax(-1)
    vocab, order = probs.shape[-1], None
    if top_k:
        probs, order = probs.topk(min(top_k, vocab))
    elif top_p < 1:
        most = probs.topk(min(256, vocab))  # nearly always enough, and far cheaper than a sort
        probs, order = most if (most.values.sum(-1) >= top_p).all() else probs.sort(descending=True)
    mass = probs.cumsum(-1)
    # Only after top_k must the rest be normalised again: elsewhere the whole vocabulary has mass 1, up to rounding.
    target = top_p * mass[..., -1:] if top_k or top_p == 1 else mass[..., -1:].clamp(max=top_p)
    last = torch.searchsorted(mass, target).clamp(max=mass.shape[-1] - 1)  # the prefix 0..last stays; NaN has no place
    device = logits.device if generator is None else generator.device
    draw = torch.rand(last.shape, generator=generator, device=device).to(logits.device)
    # right=True never lands on a token of probability 0; the limit guards against draw * mass being rounded up.
    chosen = torch.searchsorted(mass, draw * mass.gather(-1, last), right=True).minimum(last)
    return (chosen if order is None else order.gather(-1, chosen)).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Rules that all searches share.

    max_length: most tokens of a sequence, EOS counted: the number of decoder steps.
    min_length: fewest tokens before EOS. no_repeat_ngram, forbid: see `constrain`.
    All log-probabilities are the model's own: log-softmax of its logits, before any rule or temperature.
    Memory is never repeated per sequence, and images that are done leave the batch.
    Errors: ValueError for options out of range, NaN or infinite logits, and rules that leave no token.
    """

    max_length: int = 20
    min_length: int = 0
    no_repeat_ngram: int = 0
    forbid: tuple[int, ...] = (UNK,)

    def __post_init__(self) -> None:
        for name, x in vars(self).items():
            _require(name == "forbid" or (isinstance(x, int | float) and x >= 0), f"{name}={x} must be 0 or more")
        object.__setattr__(self, "forbid", tuple(int(token) for token in self.forbid))
        _require(self.max_length >= 1, f"max_length={self.max_length} must be at least 1")
        low, high = self.min_length, self.max_length
        _require(0 <= low <= high, f"min_length={low} must be between 0 and max_length={high}")
        _require(min(self.forbid, default=0) >= 0, f"forbid={self.forbid} must hold token ids of 0 or more")

    @torch.no_grad()  # not inference_mode: self-critical training feeds the tokens to a pass with gradients
    def __call__(
        self, decoder: Decoder, memory: Memory, *, generator: Random = None, need_attention: bool = False
    ) -> Generated:
        """Captions for every image of the memory. generator: for `Sample`; equal seeds, batches: equal captions."""
        _require(not getattr(decoder, "training", False), "the decoder is in training mode: call .eval() first")
        _require(len(memory.tokens) > 0, "the memory holds no image: nothing to search")
        limit = getattr(decoder, "max_length", None) or math.inf
        _require(self.max_length <= limit, f"max_length={self.max_length}, but the decoder ends at {limit}")
        return self._search(decoder, memory, generator, need_attention)

    def _search(self, decoder: Decoder, memory: Memory, generator: Random, need_attention: bool) -> Generated:
        raise NotImplementedError

    def _allowed(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities (B, G, V), -inf for tokens that the rules forbid after `tokens` (B, G, t)."""
        own, low, n = logits.log_softmax(-1, dtype=torch.float32), self.min_length, self.no_repeat_ngram
        return constrain(own, tokens, min_length=low, no_repeat_ngram=n, forbid=self.forbid, in_place=True)

    def _check(self, best: Tensor, rows: Tensor, step: int) -> None:
        """best (B', G): log-probability of the likeliest allowed token; rows (B',): the images."""
        wrong = rows[best.isnan().any(1)].tolist()
        _require(not wrong, f"logits of images {wrong} at step {step} are NaN or infinite: check weights and input")
        _require(
            bool((best > NEVER).all()), f"forbid={self.forbid} leaves no token that the model can say, step {step}"
        )

    def _roll_out(
        self, decoder: Decoder, memory: Memory, groups: int, pick: Callable[[Tensor], Tensor], need_attention: bool
    ) -> Generated:
        """`groups` independent sequences per image; pick: allowed log-probabilities (B, G, V) -> tokens (B, G)."""
        rows = torch.arange(len(memory.tokens), device=memory.tokens.device)
        tokens = rows.new_full((len(rows), groups, self.max_length), PAD)
        log_probs = torch.zeros_like(tokens, dtype=torch.float32)
        word = torch.full_like(tokens[:, :, 0], BOS)
        ended = torch.zeros_like(word, dtype=torch.bool)
        state, trace = decoder.start(memory, groups), Trace()
        for step in range(self.max_length):
            logits, attention, state = decoder.step(word, state, need_attention)
            allowed = self._allowed(logits, tokens[rows, :, :step])
            self._check(allowed.amax(-1).masked_fill(ended, 0), rows, step)
            word = pick(allowed)
            log_probs[rows, :, step] = allowed.gather(-1, word[..., None]).squeeze(-1).masked_fill(ended, 0)
            tokens[rows, :, step] = word = word.masked_fill(ended, PAD)
            if attention is not None:
                trace.append((rows, attention))
            ended = ended | (word == EOS)
            left = _survivors(ended.all(1))
            if left is not None:
                if not len(left):
                    break
                rows, word, ended, state = rows[left], word[left], ended[left], state.keep(left)
        scores, order = log_probs.sum(-1).sort(descending=True, stable=True)
        slots = order[..., None].expand(tokens.shape)
        return _generated(tokens.gather(1, slots), log_probs.gather(1, slots), scores, trace, slots)


@dataclass(frozen=True, kw_only=True)
class Greedy(Search):
    """The likeliest token at every step. K = 1; the score is the sum of log-probabilities."""

    def _search(self, decoder: Decoder, memory: Memory, generator: Random, need_attention: bool) -> Generated:
        return self._roll_out(decoder, memory, 1, lambda allowed: allowed.argmax(-1), need_attention)


@dataclass(frozen=True, kw_only=True)
class Sample(Search):
    """Random sequences, see `sample`. K = samples, best first; the score is the model's sum of log-probabilities."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(1e-6 <= self.temperature < math.inf, f"temperature={self.temperature} must be at least 1e-6")
        _require(0 < self.top_p <= 1, f"top_p={self.top_p} must be above 0 and at most 1")
        _require(self.samples >= 1, f"samples={self.samples} must be at least 1")

    def _search(self, decoder: Decoder, memory: Memory, generator: Random, need_attention: bool) -> Generated:
        pick = partial(sample, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, generator=generator)
        return self._roll_out(decoder, memory, self.samples, pick, need_attention)


@dataclass(frozen=True, kw_only=True)
class Beam(Search):
    """Beam search, score = sum of log-probabilities / length ** length_penalty, the length counting EOS.

    beams: unfinished sequences kept per image. n_best: sequences returned, K.
    length_penalty: 0 = plain log-probability, which favours short captions; 1 = mean per token. The default is
        the upper end of the 0.6 .. 0.7 recommended by Wu et al. 2016 (section 7), who take (5 + length) / 6 for length.
    patience: an image is done once patience * beams sequences have ended (Kasai et al. 2022; 1 = the usual rule,
        inf = only the bound below). beams=1 is then greedy search.

    Of the 2 * beams best continuations of an image, those that end with EOS and rank among the first `beams` join the
    n_best best ended ones; the best `beams` others go on. An image is also done when nothing can change any more: sums
    of log-probabilities only fall, so a live sequence with sum s scores at most s / max_length ** length_penalty in the
    end (exact for length_penalty 0); done once that does not beat the worst of n_best ended ones. Sequences cut by
    max_length take the places that no ended one takes, after them, marked as not finished. If fewer than n_best
    sequences exist at all, the rest are rows of PAD with score -inf.
    """

    beams: int = 3
    length_penalty: float = 0.7
    n_best: int = 1
    patience: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.beams >= 1, f"beams={self.beams} must be at least 1")
        _require(1 <= self.n_best <= self.beams, f"n_best={self.n_best} must be between 1 and beams={self.beams}")
        _require(0 <= self.length_penalty < math.inf, f"length_penalty={self.length_penalty} must be 0 or more")
        _require(self.patience >= 1, f"patience={self.patience} must be at least 1")

    def _search(self, decoder: Decoder, memory: Memory, generator: Random, need_attention: bool) -> Generated:
        rows = torch.arange(len(memory.tokens), device=memory.tokens.device)
        # An entry of a path is slot * V + token: the token, and the beam whose step emitted it (for its attention).
        path = rows.new_full((len(rows), 1, self.max_length), PAD)
        log_probs = torch.zeros_like(path, dtype=torch.float32)
        word, scores = torch.full_like(path[:, :, 0], BOS), log_probs[:, :, 0]
        ended_scores = scores.new_full((len(rows), self.n_best), NEVER)
        ended_path, ended_log_probs = path.repeat(1, self.n_best, 1), log_probs.repeat(1, self.n_best, 1)
        count, done = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
        longest = self.max_length**self.length_penalty
        state, trace = decoder.start(memory, 1), Trace()
        for step in range(self.max_length):
            logits, attention, state = decoder.step(word, state, need_attention)
            if attention is not None:
                trace.append((rows, attention))
            vocab, width = logits.shape[-1], 2 * self.beams
            top, token = self._allowed(logits, path[:, :, :step] % vocab).topk(min(width, vocab))
            best, index = (scores[..., None] + top).flatten(1).topk(min(width, top[0].numel()))
            self._check(best[:, :1].maximum(ended_scores[rows, :1]).masked_fill(done[:, None], 0), rows, step)
            slot, token = index // top.shape[-1], token.flatten(1).gather(1, index)
            grown, values = _take(path, slot), _take(log_probs, slot)
            grown[..., step], values[..., step] = slot * vocab + token, top.flatten(1).gather(1, index)
            ends = token == EOS
            new = (best / (step + 1) ** self.length_penalty).masked_fill(~ends | done[:, None], NEVER)[:, : self.beams]
            if (new > NEVER).any():
                count += (new > NEVER).sum(1)
                ended_scores[rows], order = torch.cat((ended_scores[rows], new), 1).topk(self.n_best)
                for pool, more in ((ended_path, grown), (ended_log_probs, values)):
                    pool[rows] = _take(torch.cat((pool[rows], more[:, : self.beams]), 1), order)
            scores, live = best.masked_fill(ends, NEVER).topk(min(self.beams, best.shape[1]))
            path, log_probs, word, slot = (_take(x, live) for x in (grown, values, token, slot))
            done = done | (scores[:, 0] / longest <= ended_scores[rows, -1]) | (count >= self.patience * self.beams)
            left = _survivors(done)
            if left is not None:
                rows, count, done = rows[left], count[left], done[left]
                scores, path, log_probs, word, slot = (x[left] for x in (scores, path, log_probs, word, slot))
                if not len(left):
                    break
                state = state.keep(left)
            state = state.select(slot)
        cut = scores / longest  # a stable sort keeps the ended sequences in their order, and before these
        order = (torch.cat((ended_scores[rows], cut), 1) == NEVER).sort(dim=1, stable=True).indices[:, : self.n_best]
        for pool, more in ((ended_scores, cut), (ended_path, path), (ended_log_probs, log_probs)):
            pool[rows] = _take(torch.cat((pool[rows], more), 1), order)
        absent = ended_scores[..., None] == NEVER
        ended_path, ended_log_probs = ended_path.masked_fill(absent, PAD), ended_log_probs.masked_fill(absent, 0)
        return _generated(ended_path % vocab, ended_log_probs, ended_scores, trace, ended_path // vocab)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (B, G, ...), index (B, G') -> (B, G', ...): sequence index[b, g] of image b."""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def _survivors(done: Tensor) -> Tensor | None:
    """done (B,) -> images to go on with; None = all, for dropping copies the state: not worth it below a quarter."""
    count = int(done.sum())
    return (~done).nonzero().squeeze(1) if count and 4 * count >= len(done) else None


def _generated(tokens: Tensor, log_probs: Tensor, scores: Tensor, trace: Trace, slots: Tensor) -> Generated:
    """Cuts (B, K, T) buffers to the longest sequence; slots (B, K, T): the group whose step emitted each token."""
    length = int((tokens != PAD).sum(-1).max())
    tokens, slots, attention = tokens[..., :length], slots[..., :length], None
    if trace:
        attention = trace[0][1].new_zeros(*tokens.shape, *trace[0][1].shape[2:])
        for step, (rows, weights) in enumerate(trace[:length]):
            attention[rows, :, step] = _take(weights, slots[rows, :, step])
        attention.masked_fill_((tokens == PAD)[..., None, None, None], 0)
    return Generated(tokens, log_probs[..., :length], scores, (tokens == EOS).any(-1), attention)
