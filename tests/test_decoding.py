"""Searches against enumeration and a plain-Python beam search, on a table model that sees the whole prefix."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from vitcap.decoding import Beam, Greedy, Sample, constrain, sample
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.types import BOS, EOS, PAD, UNK, Memory

SIZE = 100_003


@dataclass(frozen=True)
class TableState:
    """code (B, G): the prefix as a number; image (B,)."""

    image: Tensor
    code: Tensor

    def select(self, index: Tensor) -> TableState:
        return replace(self, code=self.code.gather(1, index))

    def keep(self, rows: Tensor) -> TableState:
        return TableState(self.image[rows], self.code[rows])


class Table:
    """Random logits for every (image, prefix); attention (L = 2, H = 1, N = 3) = (image, prefix, layer).

    end: added to the logit of EOS. rows: number of images in each call of `step`.
    """

    def __init__(self, vocab: int, seed: int = 0, end: float = 0.0) -> None:
        self.vocab = vocab
        self.table = 2 * torch.randn(SIZE, vocab, generator=torch.Generator().manual_seed(seed))
        self.table[:, EOS] += end
        self.rows: list[int] = []
        self.known: dict[tuple[int, tuple[int, ...]], list[float]] = {}

    def start(self, memory: Memory, groups: int = 1) -> TableState:
        image = memory.tokens[:, 0, 0].long()
        return TableState(image, torch.zeros(len(image), groups, dtype=torch.long))

    def logits(self, image: Tensor, code: Tensor) -> Tensor:
        return self.table[(code * 31 + image[:, None]) % SIZE]

    def step(self, tokens: Tensor, state: TableState, need_attention: bool = False):  # type: ignore[no-untyped-def]
        self.rows.append(len(tokens))
        code = state.code * self.vocab + tokens
        image = state.image[:, None].expand_as(code)
        seen = torch.stack([torch.stack([image, code, torch.full_like(code, n)], -1) for n in range(2)], 2)
        return (
            self.logits(state.image, code),
            seen[:, :, :, None] if need_attention else None,
            replace(state, code=code),
        )

    def log_probs(self, image: int, prefix: tuple[int, ...]) -> list[float]:
        if (image, prefix) not in self.known:
            logits = self.logits(torch.tensor([image]), torch.tensor([[self.code(prefix)]]))[0, 0]
            self.known[image, prefix] = logits.log_softmax(-1).tolist()
        return self.known[image, prefix]

    def code(self, prefix: tuple[int, ...]) -> int:
        code = 0
        for token in (BOS, *prefix):
            code = code * self.vocab + token
        return code


def pictures(*images: int) -> Memory:
    return Memory(torch.tensor(images, dtype=torch.float32)[:, None, None])


def allowed(search, vocab: int, prefix: tuple[int, ...]) -> list[int]:
    """The rules once more, in plain Python."""
    tokens = [t for t in range(vocab) if t not in (PAD, BOS, *search.forbid)]
    tokens = [t for t in tokens if t != EOS or len(prefix) >= search.min_length]
    n = search.no_repeat_ngram
    grams = {prefix[i : i + n] for i in range(len(prefix) - n + 1)} if n else set()
    return [t for t in tokens if (*prefix, t)[-n:] not in grams] or tokens


def every_sequence(search, model: Table, image: int, prefix=(), total=0.0):
    """(finished, sum of log-probabilities, tokens) of all sequences that the rules allow."""
    if prefix and (prefix[-1] == EOS or len(prefix) == search.max_length):
        yield prefix[-1] == EOS, total, prefix
        return
    own = model.log_probs(image, prefix)
    for token in allowed(search, model.vocab, prefix):
        yield from every_sequence(search, model, image, (*prefix, token), total + own[token])


def ranked(found, search) -> list[tuple[float, bool, tuple[int, ...]]]:
    scored = [(total / len(tokens) ** search.length_penalty, finished, tokens) for finished, total, tokens in found]
    return sorted(scored, key=lambda item: (not item[1], -item[0]))


def plain_beam(search: Beam, model: Table, image: int) -> list[tuple[float, bool, tuple[int, ...]]]:
    """Beam search of one image as a textbook has it: no bound, stops when patience * beams sequences have ended."""
    live, ended = [(0.0, ())], []
    for _ in range(search.max_length):
        grown = [
            (total + model.log_probs(image, prefix)[token], (*prefix, token))
            for total, prefix in live
            for token in allowed(search, model.vocab, prefix)
        ]
        grown = sorted(grown, reverse=True)
        ended += [(True, total, tokens) for total, tokens in grown[: search.beams] if tokens[-1] == EOS]
        live = [item for item in grown if item[1][-1] != EOS][: search.beams]
        if len(ended) >= search.patience * search.beams or not live:
            break
    return ranked(ended + [(False, total, tokens) for total, tokens in live], search)[: search.n_best]


def check(out, image: int, expected, model: Table) -> None:
    """Image `image` of a result: tokens, scores, flags, log-probabilities, attention."""
    for k, (score, finished, tokens) in enumerate(expected):
        length = len(tokens)
        assert out.tokens[image, k].tolist() == [*tokens, *[PAD] * (out.tokens.shape[-1] - length)]
        assert out.scores[image, k].item() == pytest.approx(score, abs=1e-5)
        assert out.finished[image, k].item() == finished
        own = [model.log_probs(image, tokens[:t])[token] for t, token in enumerate(tokens)]
        torch.testing.assert_close(out.log_probs[image, k, :length], torch.tensor(own), atol=1e-5, rtol=0)
        assert not out.log_probs[image, k, length:].any()
        if out.attention is not None:
            prefixes = [[[[image, model.code(tokens[:t]), n]] for n in range(2)] for t in range(length)]
            assert out.attention[image, k, :length].tolist() == prefixes
            assert not out.attention[image, k, length:].any()


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("min_length", "ngram"), [(0, 0), (2, 0), (0, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize(("vocab", "forbid"), [(5, ()), (6, (UNK,))])
def test_wide_beam_is_enumeration(length_penalty, min_length, ngram, vocab, forbid):
    rules = {"max_length": 4, "min_length": min_length, "no_repeat_ngram": ngram, "forbid": forbid}
    search = Beam(beams=48, n_best=48, length_penalty=length_penalty, **rules)
    model = Table(vocab)
    out = search(model, pictures(0, 1, 2), need_attention=True)
    for image in range(3):
        expected = ranked(every_sequence(search, model, image), search)
        assert len(expected) <= 48
        check(out, image, expected, model)
        assert out.scores[image, len(expected) :].eq(-math.inf).all()
        assert not out.tokens[image, len(expected) :].any()
        best = replace(search, n_best=2)(model, pictures(0, 1, 2))  # the bound stops this one early
        check(best, image, expected[:2], model)


@pytest.mark.parametrize("patience", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.5])
@pytest.mark.parametrize(("beams", "n_best"), [(1, 1), (2, 1), (3, 3), (5, 2)])
def test_beam_is_plain_beam(patience, length_penalty, beams, n_best):
    """With patience=inf the plain search runs to the end, so equality also shows that the bound is sound."""
    search = Beam(beams=beams, n_best=n_best, length_penalty=length_penalty, patience=patience, max_length=7)
    for seed, end in ((0, 0.0), (1, 2.0), (2, -3.0)):
        model = Table(8, seed=seed, end=end)
        out = search(model, pictures(*range(6)), need_attention=True)
        for image in range(6):
            check(out, image, plain_beam(search, model, image), model)


@pytest.mark.parametrize("rules", [{}, {"min_length": 4}, {"no_repeat_ngram": 1}, {"forbid": (UNK, 4, 5)}])
def test_one_beam_is_greedy(rules):
    model = Table(9, end=1.0)
    greedy = Greedy(max_length=8, **rules)(model, pictures(*range(20)), need_attention=True)
    assert len(set((greedy.tokens != PAD).sum(-1).flatten().tolist())) > 1
    for length_penalty in (0.0, 0.7, 2.0):
        beam = Beam(beams=1, max_length=8, length_penalty=length_penalty, **rules)
        out = beam(model, pictures(*range(20)), need_attention=True)
        for name in ("tokens", "log_probs", "finished", "attention"):
            assert torch.equal(getattr(out, name), getattr(greedy, name)), name
    torch.testing.assert_close(greedy.scores, greedy.log_probs.sum(-1))


class Scripted:
    """Two beams over three steps, a, b and c, whose maps say the step and the beam that made them: a0, a1, b0, ..."""

    CHANCES = (
        ({4: 0.6, 5: 0.4},),  # both beams come of the one start
        ({6: 0.5, 7: 0.4, 8: 0.1}, {6: 0.5, 7: 0.5}),  # 0.30 and 0.24 of beam 0, at most 0.20 of beam 1
        ({8: 0.6, 9: 0.4}, {9: 1.0}),  # 0.24 of beam 1 before 0.18 of beam 0
    )

    def __init__(self) -> None:
        self.at = -1

    def start(self, memory: Memory, groups: int = 1) -> TableState:
        return TableState(torch.zeros(1, dtype=torch.long), torch.zeros(1, groups, dtype=torch.long))

    def step(self, tokens: Tensor, state: TableState, need_attention: bool = False):  # type: ignore[no-untyped-def]
        self.at += 1
        logits = torch.full((1, tokens.shape[1], 10), -math.inf)
        maps = torch.zeros(1, tokens.shape[1], 1, 1, 6)
        for beam, chances in enumerate(self.CHANCES[self.at]):
            for token, chance in chances.items():
                logits[0, beam, token] = math.log(chance)
            maps[0, beam, 0, 0, 2 * self.at + beam] = 1
        return logits, maps, state


def test_maps_of_a_beam_are_those_of_the_beams_that_it_came_through():
    """A worked trace: parents [0, 0], [0, 0], [1, 0]; the map of a step is the one of the beam that it went on from, so
    that the first sequence has a0, b0, c1 and the second a0, b0, c0."""
    search = Beam(beams=2, n_best=2, max_length=3, length_penalty=0, forbid=())
    out = search(Scripted(), pictures(0), need_attention=True)
    assert out.tokens.tolist() == [[[4, 7, 9], [4, 6, 8]]]
    torch.testing.assert_close(out.scores, torch.tensor([[0.24, 0.18]]).log())
    assert out.attention is not None
    assert out.attention.sum(-1).eq(1).all()
    names = ["a0", "a1", "b0", "b1", "c0", "c1"]
    traces = [[names[place] for place in line] for line in out.attention[0, :, :, 0, 0].argmax(-1).tolist()]
    assert traces == [["a0", "b0", "c1"], ["a0", "b0", "c0"]]


def test_exhaustive_beam_is_never_below_greedy():
    model = Table(6)
    greedy = Greedy(max_length=4)(model, pictures(*range(30)))
    beam = Beam(beams=64, max_length=4, length_penalty=0)(model, pictures(*range(30)))
    both = greedy.finished & beam.finished
    assert both.any()
    assert (beam.scores >= greedy.scores - 1e-6)[both].all()
    assert (beam.scores > greedy.scores + 1e-3)[both].any()


@pytest.mark.parametrize("search", [Greedy(max_length=12), Beam(max_length=12, n_best=2), Beam(max_length=12, beams=5)])
def test_batch_equals_one_at_a_time(search):
    model = Table(12, end=1.5)
    together = search(model, pictures(*range(16)), need_attention=True)
    lengths = set()
    for image in range(16):
        alone = search(model, pictures(image), need_attention=True)
        length = alone.tokens.shape[-1]
        lengths.add(length)
        assert torch.equal(together.tokens[image, :, :length], alone.tokens[0])
        assert not together.tokens[image, :, length:].any()
        assert torch.equal(together.attention[image, :, :length], alone.attention[0])
        torch.testing.assert_close(together.scores[image], alone.scores[0])
        torch.testing.assert_close(together.log_probs[image, :, :length], alone.log_probs[0])
    assert len(lengths) > 2


@pytest.mark.parametrize("search", [Greedy(max_length=12), Beam(max_length=12), Sample(max_length=12, samples=2)])
def test_images_that_are_done_leave_the_batch(search):
    model = Table(12, end=2.5)
    search(model, pictures(*range(32)), generator=torch.Generator().manual_seed(0))
    assert model.rows == sorted(model.rows, reverse=True)
    assert model.rows[0] == 32
    assert model.rows[-1] < 16


@pytest.mark.parametrize("search", [Greedy(), Beam(n_best=3), Beam(n_best=2, length_penalty=0), Sample(samples=3)])
@pytest.mark.parametrize("how", ["forbid", "unreachable", "min_length"])
def test_never_empty_without_end(search, how):
    model = Table(7)
    search = replace(search, max_length=6)
    if how == "unreachable":
        model.table[:, EOS] = -math.inf
    else:
        search = replace(search, **({"forbid": (EOS,)} if how == "forbid" else {"min_length": 6}))
    out = search(model, pictures(0, 1), generator=torch.Generator().manual_seed(0), need_attention=True)
    assert not out.finished.any()
    assert out.tokens.shape[-1] == 6
    assert (out.tokens >= UNK).all()
    assert out.scores.isfinite().all()
    assert (out.scores.diff(dim=1) <= 0).all()
    assert (out.attention[..., 1] > 0).all()


def test_a_finished_beam_comes_before_a_better_cut_one():
    model = Table(5)
    model.table[:] = torch.tensor([-math.inf, -math.inf, -20.0, 0.0, 0.0])
    model.table[model.code(()) * 31, EOS] = 0.0  # an end is likely at the first step only
    search = Beam(max_length=5, beams=3, n_best=3, forbid=(), length_penalty=1)
    out = search(model, pictures(0))
    assert out.finished[0].tolist() == [True, False, False]
    assert out.tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD, PAD]
    assert out.scores[0].tolist() == pytest.approx([-math.log(3), *[-(math.log(3) + 4 * math.log(2)) / 5] * 2])


def test_beams_without_a_continuation_are_dropped():
    model = Table(6)
    model.table[:] = torch.tensor([0.0, *[-math.inf] * 5])  # the model itself says PAD only
    model.table[model.code(()) * 31, EOS:] = torch.tensor([-1.0, 0.0, 0.0, 0.0])
    out = Beam(max_length=5, n_best=3, patience=math.inf)(model, pictures(0))
    assert out.tokens[0].tolist() == [[EOS], [PAD], [PAD]]
    assert out.finished[0].tolist() == [True, False, False]
    assert out.log_probs.isfinite().all()


def test_constrain_is_the_plain_rule_and_pure():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 9, (4, 3, 7), generator=generator)
    logits = torch.randn(4, 3, 9, generator=generator)
    before = logits.clone()
    for n, min_length, forbid in itertools.product((0, 1, 2, 3), (0, 8), ((), (UNK, 5))):
        search = Greedy(no_repeat_ngram=n, min_length=min_length, forbid=forbid)
        out = constrain(logits, tokens, min_length=min_length, no_repeat_ngram=n, forbid=forbid)
        for b, g in itertools.product(range(4), range(3)):
            left = allowed(search, 9, tuple(tokens[b, g].tolist()))
            assert out[b, g].isfinite().nonzero().flatten().tolist() == left
            assert torch.equal(out[b, g, left], logits[b, g, left])
    assert torch.equal(logits, before)
    assert constrain(before, tokens, in_place=True) is before


@pytest.mark.parametrize("search", [Greedy(), Beam(n_best=3), Sample(samples=4)])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_twice(search, n):
    search = replace(search, max_length=15, no_repeat_ngram=n)
    out = search(Table(20, end=-4), pictures(*range(6)), generator=torch.Generator().manual_seed(0))
    assert (out.tokens != PAD).sum(-1).float().mean() > 8
    for sequence in out.tokens.flatten(0, 1).tolist():
        words = [t for t in sequence if t != PAD]
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        assert len(grams) == len(set(grams))


def distance(counts: Tensor, expected: Tensor) -> float:
    """Chi-square statistic in standard deviations above its mean; expected counts below 5 are pooled."""
    assert not counts[expected == 0].any()
    small = expected < 5
    counts = torch.cat((counts[~small], counts[small].sum()[None])).double()
    expected = torch.cat((expected[~small], expected[small].sum()[None])).double()
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 7}, {"top_p": 0.8}, {"top_p": 0.999}])
@pytest.mark.parametrize("vocab", [30, 700])
def test_sample_follows_the_distribution(options, vocab):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(vocab, generator=generator)
    logits[5] = -math.inf
    draws = sample(logits.expand(10_000, vocab), generator=generator, **options)
    # The definition, sorted out in double precision.
    probs, order = (logits.double() / options.get("temperature", 1.0)).softmax(-1).sort(descending=True)
    probs[options.get("top_k", vocab) :] = 0
    probs[(probs.cumsum(-1) - probs) >= options.get("top_p", 1.0)] = 0
    expected = torch.zeros(vocab, dtype=torch.double).scatter(0, order, probs / probs.sum())
    assert distance(draws.bincount(minlength=vocab), 10_000 * expected) < 4


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}])
@pytest.mark.parametrize("draw", [0.0, 1.0])
def test_sample_at_both_ends_of_the_uniform_numbers(monkeypatch, options, draw):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, draw))
    logits = torch.tensor([-math.inf, 2.0, 1.0, -math.inf, 1.5, -math.inf])
    last = {0.0: 1, 1.0: 2 if options else 4}[draw]  # 2 is the least probable, 4 the last in the order of ids
    assert sample(logits[None], **options).tolist() == [last]


def test_top_k_and_top_p_together_renormalise():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(20_000, 4)
    draws = sample(logits, top_k=2, top_p=0.5, generator=torch.Generator().manual_seed(0))
    assert not draws.any()  # of the two kept, the first has 4/7 of the mass
    draws = sample(logits, top_k=2, top_p=0.6, generator=torch.Generator().manual_seed(0))
    assert distance(draws.bincount(minlength=4), 20_000 * torch.tensor([4 / 7, 3 / 7, 0, 0])) < 4


def test_sampled_sequences_follow_the_model():
    search = Sample(max_length=3, samples=8000, forbid=())
    model = Table(5)
    model.table[:, [PAD, BOS]] = -math.inf
    out = search(model, pictures(0), generator=torch.Generator().manual_seed(0), need_attention=True)
    sequences = {tokens: total for _, total, tokens in every_sequence(search, model, 0)}
    drawn = [tuple(t for t in row if t != PAD) for row in out.tokens[0].tolist()]
    counts = torch.tensor([drawn.count(tokens) for tokens in sequences])
    assert counts.sum() == 8000
    assert distance(counts, 8000 * torch.tensor([*sequences.values()]).exp()) < 4
    assert (out.scores.diff(dim=1) <= 0).all()
    kept = drawn[::800]
    fields = ("tokens", "log_probs", "scores", "finished", "attention")
    few = replace(out, **{name: getattr(out, name)[:, ::800] for name in fields})
    check(few, 0, [(sequences[tokens], tokens[-1] == EOS, tokens) for tokens in kept], model)


def test_seeds():
    search, model = Sample(max_length=10, samples=3), Table(30)
    first, again, other = (search(model, pictures(0, 1), generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.tokens[..., :5], other.tokens[..., :5])


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}, {"top_k": 5, "top_p": 1e-6}])
def test_sampling_at_its_limit_is_greedy(options):
    model = Table(30, end=1.0)
    greedy = Greedy(max_length=10)(model, pictures(*range(5)), need_attention=True)
    out = Sample(max_length=10, samples=2, **options)(model, pictures(*range(5)), need_attention=True)
    for name in ("tokens", "log_probs", "scores", "finished", "attention"):
        expected = getattr(greedy, name)
        assert torch.equal(getattr(out, name), expected.expand(-1, 2, *expected.shape[2:])), name


@pytest.mark.parametrize(
    "search", [Greedy(max_length=9), Beam(max_length=9, n_best=3), Sample(max_length=9, samples=3)]
)
@pytest.mark.parametrize("kind", [TransformerDecoder, RnnDecoder])
def test_log_probs_and_attention_equal_teacher_forcing(search, kind):
    torch.manual_seed(0)
    decoder = kind(vocab_size=12, memory_width=8, width=16).eval()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    memory = Memory(torch.randn(5, 7, 8), mask=torch.arange(7) < torch.tensor([7, 3, 5, 7, 1])[:, None])
    out = search(decoder, memory, generator=torch.Generator().manual_seed(0), need_attention=True)
    with torch.no_grad():
        forced = decoder(memory, torch.nn.functional.pad(out.tokens, (1, 0), value=BOS)[..., :-1], need_attention=True)
    real = out.tokens != PAD
    own = forced.logits.log_softmax(-1).gather(-1, out.tokens[..., None]).squeeze(-1)
    torch.testing.assert_close(out.log_probs[real], own[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.attention[real], forced.attention[real], atol=1e-5, rtol=1e-5)
    assert not out.tokens.is_inference()
    assert search(decoder, memory, generator=torch.Generator().manual_seed(0)).attention is None


@pytest.mark.parametrize("search", [Greedy(), Beam(), Sample()])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_logits(search, value):
    model = Table(9, end=-9)
    model.table[(model.code(()) * 31 + 1) % SIZE, 5] = value
    with pytest.raises(ValueError, match=r"images \[1\] at step 0 are NaN or infinite"):
        search(model, pictures(0, 1))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Greedy, {"max_length": 0}, "max_length=0 .* 1"),
        (Greedy, {"max_length": 3, "min_length": 5}, "min_length=5 .* max_length=3"),
        (Greedy, {"min_length": -1}, "min_length=-1"),
        (Greedy, {"no_repeat_ngram": -1}, "no_repeat_ngram=-1 .* 0"),
        (Greedy, {"forbid": (-3,)}, "forbid"),
        (Beam, {"beams": 0}, "beams=0 .* 1"),
        (Beam, {"beams": 2, "n_best": 3}, "n_best=3 .* beams=2"),
        (Beam, {"n_best": 0}, "n_best=0 .* beams=3"),
        (Beam, {"length_penalty": -0.5}, "length_penalty=-0.5 .* 0"),
        (Beam, {"patience": 0.5}, "patience=0.5 .* 1"),
        (Sample, {"temperature": 0.0}, "temperature=0.0 .* 1e-6"),
        (Sample, {"temperature": -1.0}, "temperature=-1.0 .* 0 or more"),
        (Sample, {"top_k": -1}, "top_k=-1 .* 0"),
        (Sample, {"top_p": 0.0}, "top_p=0.0 .* 0 .* 1"),
        (Sample, {"top_p": 1.5}, "top_p=1.5 .* 0 .* 1"),
        (Sample, {"samples": 0}, "samples=0 .* 1"),
    ],
)
def test_bad_options(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize("kind", [Greedy, Beam, Sample])
def test_errors_of_the_call(kind):
    model = Table(7)
    with pytest.raises(ValueError, match=r"forbid=\(9,\), but the vocabulary has 7"):
        kind(forbid=(9,))(model, pictures(0))
    with pytest.raises(ValueError, match="leaves no token"):
        kind(forbid=(2, 3, 4, 5, 6))(model, pictures(0))
    with pytest.raises(ValueError, match="no image"):
        kind()(model, pictures())
    decoder = TransformerDecoder(vocab_size=12, memory_width=8, width=16, max_length=10)
    with pytest.raises(ValueError, match="training mode"):
        kind()(decoder, Memory(torch.zeros(1, 3, 8)))
    with pytest.raises(ValueError, match="max_length=20, but the decoder ends at 10"):
        kind()(decoder.eval(), Memory(torch.zeros(1, 3, 8)))


@pytest.mark.parametrize("search", [Greedy, Beam, Sample])
def test_options_that_are_no_numbers_are_named(search):
    with pytest.raises(ValueError, match="max_length=x must be 0 or more"):
        search(max_length="x")
