"""Self-critical training: the reward against pycocoevalcap, the gradient against enumeration, training as a whole."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import TINY
from omegaconf import OmegaConf
from pycocoevalcap.cider.cider_scorer import CiderScorer
from torch import Tensor

import vitcap
from vitcap import run
from vitcap.decoding import Greedy
from vitcap.metrics.reward import END, CiderReward
from vitcap.models.captioner import CaptionModel
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.tasks.losses import caption_loss
from vitcap.tasks.self_critical import SelfCriticalTask
from vitcap.types import BOS, EOS, PAD, UNK, Batch, Generated

# the reward

WORDS = ["a", "the", "dog", "cat", "bird", "runs", "sleeps", "on", "in", "under", "green", "red", "grass", "tree"]


def sentences(count: int, seed: int) -> list[str]:
    """Captions of 1 to 9 words, some words more frequent than others."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(1, 10))) for _ in range(count)]


def references(images: int = 12) -> dict[int, list[str]]:
    captions = iter(sentences(4 * images, seed=0))
    return {100 + i: [next(captions) for _ in range(2 + i % 3)] for i in range(images)}


def by_pycocoevalcap(gold: dict[int, list[str]], told: dict[int, str]) -> dict[int, float]:
    """CIDEr-D of captions of some of the images, the document frequencies being those of all."""
    scorer = CiderScorer()
    for id_, captions in gold.items():
        scorer += (told.get(id_, "none"), captions)
    scores = scorer.compute_score()[1]
    return {id_: score for id_, score in zip(gold, scores, strict=True) if id_ in told}


@pytest.mark.parametrize("end_token", [True, False])
def test_the_reward_is_cider_d_with_the_frequencies_of_all_training_references(end_token: bool) -> None:
    gold, samples = references(), 3
    reward = CiderReward({k: [f"{c.capitalize()}." for c in v] for k, v in gold.items()}, end_token=end_token)
    ids = [103, 111, 100, 107]
    drawn = np.array(sentences(len(ids) * samples, seed=1), dtype=object).reshape(len(ids), samples)
    drawn[1, 0], drawn[2, 1] = "", gold[100][1]
    finished = np.random.default_rng(2).random(drawn.shape) < 0.6
    found = reward(ids, drawn.tolist(), finished.tolist())
    assert found.shape == (4, 3)

    end = f" {END}" if end_token else ""
    wanted = np.empty_like(found)
    for k in range(samples):
        told = {id_: text + end * bool(done) for id_, text, done in zip(ids, drawn[:, k], finished[:, k], strict=True)}
        scores = by_pycocoevalcap({id_: [c + end for c in captions] for id_, captions in gold.items()}, told)
        wanted[:, k] = [scores[id_] for id_ in ids]
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    assert found.std() > 0.3, "captions differ in what they are worth"


def test_a_caption_that_breaks_off_lacks_the_end_and_is_worth_less() -> None:
    gold = {1: ["a dog in a park"], 2: ["a cat on a mat", "the cat sleeps"], 3: ["two birds in a tree"]}
    with_end, without = CiderReward(gold), CiderReward(gold, end_token=False)
    told = [["a dog in a park", "a dog in a park", "a dog in a", "a dog in a"]]
    whole, cut, short, short_cut = with_end([1], told, [[True, False, True, False]])[0]
    assert whole == pytest.approx(10.0)
    assert cut < whole
    assert short_cut < cut
    assert short < whole
    plain = without([1], told, [[True, False, True, False]])[0]
    assert plain[0] == plain[1] == pytest.approx(10.0)
    assert plain[2] == plain[3]
    nothing = with_end([1], [["", ""]], [[True, False]])[0]  # the end alone is a word of every reference: no weight
    assert nothing.tolist() == [0.0, 0.0]


def test_the_fingerprint_is_that_of_the_document_frequencies() -> None:
    gold = references()
    same = CiderReward(dict(reversed(gold.items())))  # the order of the images is not part of it
    changed = copy.deepcopy(gold)
    changed[105][0] += " today"
    more = {**gold, 1: ["a dog"]}
    prints = [CiderReward(r).fingerprint for r in (gold, changed, more)]
    prints.append(CiderReward(gold, end_token=False).fingerprint)
    assert same.fingerprint == prints[0]
    assert len(set(prints)) == 4


def test_references_that_give_no_reward_are_named() -> None:
    with pytest.raises(ValueError, match=r"^1 training images: the reward, CIDEr-D, needs at least two$"):
        CiderReward({1: ["a dog"]})
    with pytest.raises(ValueError, match=r"^1 training images have no captions to be rewarded by, first 'b'$"):
        CiderReward({"a": ["a dog"], "b": []})
    with pytest.raises(ValueError, match=r"^image 9 is none of the 2 that the reward knows$"):
        CiderReward({1: ["a dog"], 2: ["a cat"]})([1, 9], [["a"], ["a"]], [[True], [True]])


# the gradient

V, DOG, CAT = 6, 4, 5
NAMES = {UNK: "it", DOG: "dog", CAT: "cat"}
GOLD = {0: ["dog cat", "dog"], 1: ["cat dog", "cat cat"], 2: ["it dog"]}


def decode(ids: Sequence[int]) -> str:
    return " ".join(NAMES[i] for i in itertools.takewhile(lambda i: i != EOS, ids) if i != PAD)


def transformer(dropout: float = 0.0) -> TransformerDecoder:
    return TransformerDecoder(vocab_size=V, memory_width=8, width=8, depth=1, heads=2, max_length=9, dropout=dropout)


def rnn(dropout: float = 0.0) -> RnnDecoder:
    return RnnDecoder(vocab_size=V, memory_width=8, width=8, embed_width=8, attention_width=8, dropout=dropout)


DECODERS = {"transformer": transformer, "rnn": rnn}


def make_task(decoder: str = "transformer", dropout: float = 0.0, **options: object) -> SelfCriticalTask:
    torch.manual_seed(0)
    encoder = RnnTextEncoder(vocab_size=9, width=8, embed_width=8, dropout=dropout)
    model = CaptionModel(encoder, DECODERS[decoder](dropout))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    parts = {"search": Greedy(max_length=4), "decode": decode, "judge": lambda captions: {}, "references": GOLD}
    task = SelfCriticalTask(model, **parts, **{"sample_length": 2, **options})  # type: ignore[arg-type]
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    task.on_train_start()
    return task


def batch(ids: tuple[int, ...] = (0,)) -> Batch:
    source = torch.tensor([[4, 5, 6], [5, 7, 8], [8, 8, 4]])[list(ids)]
    gold = {0: [BOS, DOG, CAT, EOS], 1: [BOS, CAT, EOS, PAD], 2: [BOS, UNK, DOG, EOS]}
    return Batch(ids=ids, source=source, captions=torch.tensor([[gold[i]] for i in ids]))


def all_sequences() -> list[tuple[int, int]]:
    """Everything that can be said in two tokens."""
    return [(EOS, PAD), *itertools.product((UNK, DOG, CAT), (EOS, UNK, DOG, CAT))]


def log_probs(task: SelfCriticalTask) -> Tensor:
    """Of all sequences, for the first image, by one step after the other; differentiable."""
    memory, found = task.model.encode(batch()), []
    for tokens in all_sequences():
        state, word, total = task.model.decoder.start(memory), torch.tensor([[BOS]]), torch.zeros(())
        for token in tokens:
            if token == PAD:
                break
            logits, _, state = task.model.decoder.step(word, state)
            some = logits[0, 0, [EOS, UNK, DOG, CAT]] / task.drawing.temperature
            total = total + some.log_softmax(0)[[EOS, UNK, DOG, CAT].index(token)]
            word = torch.tensor([[token]])
        found.append(total)
    return torch.stack(found)


def rewards(task: SelfCriticalTask) -> Tensor:
    told = [task.reward([0], [[decode(s)]], [[EOS in s]])[0, 0] for s in all_sequences()]
    return torch.tensor(told, dtype=torch.float32)


def gradient(task: SelfCriticalTask, value: Tensor) -> Tensor:
    return torch.cat(
        [
            g.flatten()
            for g in torch.autograd.grad(value, list(task.model.parameters()), allow_unused=True)
            if g is not None
        ]
    )


def exact(task: SelfCriticalTask) -> Tensor:
    """Gradient of minus the expected reward of a caption of the first image."""
    return gradient(task, -(log_probs(task).exp() * rewards(task)).sum())


def drawing_of(*sequences: tuple[int, ...]) -> object:
    """What stands for the drawing: always these captions of each image."""
    tokens = torch.tensor([sequences])

    def search(decoder: object, memory: object) -> Generated:
        zeros = torch.zeros(tokens.shape[:2])
        return Generated(tokens, torch.zeros(tokens.shape), zeros, (tokens == EOS).any(-1))

    search.temperature = None  # type: ignore[attr-defined]
    return search


def estimate(task: SelfCriticalTask, monkeypatch: pytest.MonkeyPatch, samples: int) -> Tensor:
    """Expectation of the gradient of a step, over everything that may be drawn, for one caption."""
    probabilities, total = log_probs(task).exp().tolist(), torch.zeros(())
    assert sum(probabilities) == pytest.approx(1.0)
    temperature = task.drawing.temperature
    for chosen in itertools.product(range(len(probabilities)), repeat=samples):
        drawn = [all_sequences()[i] for i in chosen]
        search = drawing_of(*drawn)
        search.temperature = temperature  # type: ignore[attr-defined]
        monkeypatch.setattr(task, "drawing", search)
        words = sum(token != PAD for sequence in drawn for token in sequence)
        loss = task.training_step(batch(), 0) * words / samples
        total = total + float(np.prod([probabilities[i] for i in chosen])) * gradient(task, loss)
    return total


@pytest.mark.parametrize(
    ("decoder", "baseline", "samples", "temperature"),
    [
        ("transformer", "mean", 2, 1.0),
        ("rnn", "mean", 2, 0.6),
        ("transformer", "greedy", 1, 0.6),
        ("rnn", "greedy", 1, 1.0),
        ("rnn", "greedy", 2, 1.0),
    ],
)
def test_the_expected_gradient_of_a_step_is_that_of_the_expected_reward(
    decoder: str, baseline: str, samples: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(decoder, baseline=baseline, samples=samples, temperature=temperature)
    wanted = exact(task)
    assert wanted.norm() > 0.05
    torch.testing.assert_close(estimate(task, monkeypatch, samples), wanted, atol=2e-5, rtol=1e-4)


def test_a_reward_that_all_captions_have_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(baseline="mean", samples=3)
    monkeypatch.setattr(task, "drawing", drawing_of((DOG, CAT), (CAT, EOS), (EOS, PAD)))
    task.drawing.temperature = 1.0
    before = gradient(task, task.training_step(batch(), 0))
    reward = task.reward
    monkeypatch.setattr(task, "reward", lambda *given: reward(*given) + 7.0)
    torch.testing.assert_close(gradient(task, task.training_step(batch(), 0)), before, atol=1e-5, rtol=1e-4)
    monkeypatch.setattr(task, "reward", lambda *given: 0 * reward(*given) + 7.0)
    assert gradient(task, task.training_step(batch(), 0)).abs().max() == 0


def test_what_is_drawn_gives_that_gradient() -> None:
    """The whole step, its own draws included: thousands of captions come near the expectation."""
    task = make_task("rnn", samples=3000)
    torch.manual_seed(1)
    tokens = task.drawing(task.model.decoder, task.model.encode(batch())).tokens
    torch.manual_seed(1)  # draws them again
    found = gradient(task, task.training_step(batch(), 0)) * int((tokens != PAD).sum()) / 3000
    wanted = exact(task)
    assert F.cosine_similarity(found, wanted, dim=0) > 0.98
    assert float(found.norm() / wanted.norm()) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("baseline", ["mean", "greedy"])
def test_the_loss_of_a_step_by_loops(baseline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(baseline=baseline, samples=4, sample_length=5)
    seen: dict[str, float] = {}
    monkeypatch.setattr(task, "log", lambda name, value, **_: seen.update({name: value.item()}))
    torch.manual_seed(3)
    loss = task.training_step(batch((0, 2)), 0)
    torch.manual_seed(3)
    memory = task.model.encode(batch((0, 2)))
    drawn = task.drawing(task.model.decoder, memory)
    worth = [
        [task.reward([i], [[decode(s)]], [[EOS in s]])[0, 0] for s in rows]
        for i, rows in zip((0, 2), drawn.tokens.tolist(), strict=True)
    ]
    best = Greedy(max_length=5, forbid=())(task.model.decoder, memory).tokens[:, 0].tolist()
    total = words = 0.0
    levels = []
    for b, (id_, rows) in enumerate(zip((0, 2), drawn.tokens, strict=True)):
        for k, row in enumerate(rows):
            others = [r for j, r in enumerate(worth[b]) if j != k]
            level = (
                sum(others) / 3
                if baseline == "mean"
                else task.reward([id_], [[decode(best[b])]], [[EOS in best[b]]])[0, 0]
            )
            levels.append(level)
            for step, token in enumerate(row[row != PAD].tolist()):
                inputs = torch.tensor([[[BOS, *row[:step].tolist()]]])
                one = task.model.encode(batch((id_,)))
                logits = task.model.decoder(one, inputs).logits[0, 0, -1, [EOS, UNK, DOG, CAT]]
                total -= (worth[b][k] - level) * logits.log_softmax(0)[[EOS, UNK, DOG, CAT].index(token)].item()
                words += 1
    assert loss.item() == pytest.approx(total / words, rel=1e-4)
    assert seen == pytest.approx(
        {"train/loss": total / words, "train/reward": np.mean(worth), "train/baseline": np.mean(levels)}, rel=1e-4
    )


def test_cross_entropy_is_mixed_in() -> None:
    steps = {}
    for mix in (0.0, 0.3, 1.0):
        task = make_task(cross_entropy=mix, label_smoothing=0.1)
        torch.manual_seed(5)
        steps[mix] = task.training_step(batch((0, 1)), 0).item()
    with torch.no_grad():
        usual, _ = caption_loss(task.model(batch((0, 1))).logits, batch((0, 1)).captions[:, :, 1:], label_smoothing=0.1)
    assert steps[1.0] == pytest.approx(float(usual), rel=1e-5)
    assert steps[0.3] == pytest.approx(0.7 * steps[0.0] + 0.3 * float(usual), rel=1e-5)
    assert abs(steps[0.0] - float(usual)) > 0.1


def test_the_samples_of_an_image_share_one_encoder_pass_and_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"baseline": "greedy"}, {"cross_entropy": 0.5}):
        task = make_task(**options)
        sizes: list[int] = []
        forward = task.model.encoder.forward
        monkeypatch.setattr(
            task.model.encoder, "forward", lambda x, *a, f=forward, s=sizes: (s.append(len(x)), f(x, *a))[1]
        )
        torch.manual_seed(0)
        task.training_step(batch((0, 1, 2)), 0).backward()
        assert sizes == [3]
        assert task.model.encoder.embed.weight.grad.norm() > 0


def test_dropout_is_off_in_the_decoder_and_the_encoders_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("rnn", dropout=0.6)
    seen: list[Tensor] = []
    start = task.model.decoder.start
    monkeypatch.setattr(
        task.model.decoder, "start", lambda memory, *a: (seen.append(memory.tokens), start(memory, *a))[1]
    )
    task.model.train()
    task.training_step(batch(), 0)
    assert not any(module.training for module in task.model.decoder.modules())
    assert all(module.training for module in task.model.encoder.modules())
    drawn, graded = seen  # one encoder pass, one dropout mask: the captions are of the distribution that is trained
    assert torch.equal(drawn, graded)
    task.training_step(batch(), 0)
    assert not torch.equal(seen[2], drawn)


# what stops it


def test_a_reward_that_stays_at_zero_stops_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    worth = iter([0.0] * 49 + [1.0] + [0.0] * 100)
    monkeypatch.setattr(task, "reward", lambda ids, told, done: np.full((len(ids), 5), next(worth)))
    for _ in range(99):  # a single reward starts the count anew
        task.training_step(batch(), 0)
    with pytest.raises(ValueError, match=r"^the reward has been 0 for 50 steps, .*\(init=RUN\).*training images$"):
        task.training_step(batch(), 0)


def test_a_loss_that_is_not_finite_stops_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    with torch.no_grad():
        task.model.decoder.out.bias[DOG] = float("nan")
    with pytest.raises(
        ValueError, match=r"^the loss is nan at step 0 \(weights are not finite \(decoder\.out\.bias\)\): lower"
    ):
        task.training_step(batch(), 0)
    task = make_task()
    monkeypatch.setattr(task, "reward", lambda *_: np.full((1, 5), np.inf))
    with pytest.raises(ValueError, match=r"^the loss is nan at step 0 \(records 0, \.\.\.\): lower task\.lr"):
        task.training_step(batch(), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "max"}, "task.baseline=max: choose one of mean, greedy"),
        ({"samples": 1}, "task.samples=1: a whole number of at least 2 is wanted"),
        ({"samples": 0, "baseline": "greedy"}, "task.samples=0: a whole number of at least 1 is wanted"),
        ({"cross_entropy": 1.5}, "task.cross_entropy=1.5: a number from 0 to 1 is wanted"),
        ({"sample_length": 10}, "task.sample_length=10: a whole number from 1 to 9 is wanted"),
        ({"temperature": 0.0}, "task.temperature=0.0: a number of at least 1e-06 is wanted"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_task(**options)


def test_hard_attention_is_refused() -> None:
    hard = RnnDecoder(vocab_size=V, memory_width=8, width=8, embed_width=8, attention_width=8, hard=True)
    model = CaptionModel(RnnTextEncoder(vocab_size=9, width=8, embed_width=8), hard)
    live = {"search": Greedy(max_length=4), "decode": decode, "judge": lambda captions: {}}
    with pytest.raises(ValueError, match=r"draws words, not places: set model\.decoder\.hard=false$"):
        SelfCriticalTask(model, references=GOLD, **live)


def test_the_config_has_every_option_but_the_live_parts(config) -> None:
    node = OmegaConf.to_container(config("task=self_critical").task)
    parameters = inspect.signature(SelfCriticalTask).parameters.values()
    live = {"self", "model", "references", "search", "decode", "judge"}
    wanted = {
        p.name: list(p.default) if isinstance(p.default, tuple) else p.default for p in parameters if p.name not in live
    }
    assert {key: value for key, value in node.items() if not key.startswith("_")} == wanted


def test_copies_for_averaged_weights_share_the_reward_and_not_the_model() -> None:
    task = make_task(baseline="greedy")
    twin = copy.deepcopy(task)
    assert twin.reward is task.reward
    assert twin.decode is task.decode
    assert twin.model is not task.model
    with torch.no_grad():
        task.model.decoder.out.bias += 1
    assert not torch.equal(twin.model.decoder.out.bias, task.model.decoder.out.bias)


# as a whole

SIZES = [*TINY, "data.source.train_size=96", "data.batch_size=16", "ema=0.9"]
SECOND = [*SIZES, "task=self_critical", "task.lr=0.001", "task.sample_length=16"]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A tiny model that cross-entropy has taught a little."""
    from conftest import CONF
    from hydra import compose, initialize_config_dir

    out = tmp_path_factory.mktemp("runs") / "start"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(
            "config",
            overrides=[
                *SIZES,
                f"out={out}",
                "trainer.max_epochs=12",
                "task.lr=0.004",
                "trainer.check_val_every_n_epoch=12",
            ],
        )
    run.train(cfg)
    return out


def column(out, name: str) -> Iterator[float]:
    lines = (out / "metrics.csv").read_text().splitlines()
    at = lines[0].split(",").index(name)
    return (float(line.split(",")[at]) for line in lines[1:] if line.split(",")[at])


def test_self_critical_training_raises_the_reward_and_says_what_it_was(start, config, tmp_path) -> None:
    cfg = config(
        *SECOND, f"init={start}", f"out={tmp_path}", "trainer.max_epochs=5", "trainer.check_val_every_n_epoch=5"
    )
    run.train(cfg)
    rewards = list(column(tmp_path, "train/reward_epoch"))
    assert len(rewards) == 5
    assert rewards[-1] > 1.1 * rewards[0]

    facts = vitcap.load(tmp_path).description["facts"]
    gold = run.build(cfg).data.references("train")
    wanted = {"metric": "CIDEr-D", "end_token": True, "idf": CiderReward(gold).fingerprint, "images": 96}
    assert facts["reward"] == wanted
    assert facts["init"] == str(start)
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["vitcap"]["facts"]["reward"] == wanted
    json.dumps(facts)


def test_resumed_training_equals_uninterrupted_training_bit_for_bit(start, config, tmp_path, monkeypatch) -> None:
    common = [*SECOND, f"init={start}", "data.source.train_size=48", "trainer.max_epochs=2", "save_every=1"]
    common += ["trainer.check_val_every_n_epoch=2", "task.baseline=greedy", "task.cross_entropy=0.2"]
    run.train(config(*common, f"out={tmp_path / 'whole'}"))
    step = SelfCriticalTask.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 4:  # inside the second epoch
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(SelfCriticalTask, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.train(config(*common, f"out={tmp_path / 'parts'}"))
    monkeypatch.setattr(SelfCriticalTask, "training_step", step)
    torch.manual_seed(123)
    run.train(config(*common, f"out={tmp_path / 'parts'}", "resume=true"))

    whole, parts = (
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "parts")
    )
    assert whole["global_step"] == parts["global_step"] == 6
    for key in ("state_dict", "current_model_state"):
        for name, tensor in whole[key].items():
            assert torch.equal(tensor, parts[key][name]), (key, name)


def test_models_that_cannot_be_started_from(start, config, tmp_path) -> None:
    sentences = ["model=seq2seq", "data=digits", "data.source.train_size=20", "data.source.val_size=4"]
    with pytest.raises(ValueError, match=r"^init=.*: a model made to caption, but this one is to translate$"):
        run.build(config(*sentences, f"init={start}"))
    narrow = [*SECOND, f"init={start}", f"out={tmp_path}", "model.decoder.width=16"]
    with pytest.raises(
        ValueError, match=r"^init=.*: there decoder.width is \d+, here 16: give the same .*\(model.decoder.width=\d+\)$"
    ):
        run.train(config(*narrow))
    for option in ("model.decoder.position=alibi", "model.decoder.norm=post"):  # no shape tells these apart
        key = option.partition("=")[0].removeprefix("model.")
        with pytest.raises(ValueError, match=f"^init=.*: there {key} is "):
            run.build(config(*SECOND, f"init={start}", option))
    with pytest.raises(ValueError, match=r"nowhere: no such file; name a model"):
        run.build(config(*SECOND, f"init={tmp_path / 'nowhere'}"))


def test_the_vocabulary_is_that_of_the_model(start, config) -> None:
    """Other captions, other words: what the model cannot say is unknown, and no row of its table moves."""
    parts = run.build(config(*SECOND, f"init={start}", "data.source.train_size=8", "data.source.seed=5"))
    assert parts.data.tokenizer.to_json() == vitcap.load(start).tokenizer.to_json()
    own = run.build(config(*SECOND, "data.source.train_size=8", "data.source.seed=5"))
    assert own.data.tokenizer.vocab_size != parts.data.tokenizer.vocab_size
