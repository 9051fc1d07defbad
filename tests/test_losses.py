"""Losses of caption training against explicit loops, and what training does with them."""

from __future__ import annotations

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from vitcap.decoding import Greedy
from vitcap.models.captioner import CaptionModel
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.tasks.captioning import CaptionTask
from vitcap.tasks.losses import caption_loss, doubly_stochastic_penalty, reinforce_loss
from vitcap.types import BOS, EOS, PAD, Batch, DecoderOutput

V, N = 9, 5
# Two images, three captions of up to four tokens: one is cut, one is short, one is missing.
TARGETS = torch.tensor(
    [
        [[4, 5, 6, 7], [8, EOS, PAD, PAD], [PAD, PAD, PAD, PAD]],
        [[4, 4, EOS, PAD], [5, EOS, PAD, PAD], [6, 7, 8, EOS]],
    ]
)
WORDS = int((TARGETS != PAD).sum())


def places() -> list[tuple[int, int, int]]:
    """Every (image, caption, step) that holds a word."""
    b, g, t = TARGETS.shape
    return [(i, j, k) for i in range(b) for j in range(g) for k in range(t) if TARGETS[i, j, k] != PAD]


def random_logits(seed: int = 0) -> Tensor:
    return torch.randn(*TARGETS.shape, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_attention(layers: int = 2, heads: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(*TARGETS.shape, layers, heads, N, generator=generator, dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_a_mean_over_words(smoothing: float) -> None:
    logits = random_logits()
    loss, tokens = caption_loss(logits, TARGETS, label_smoothing=smoothing)
    total = 0.0
    for i, j, k in places():
        logs = logits[i, j, k].log_softmax(-1)
        total += -(1 - smoothing) * logs[TARGETS[i, j, k]] - smoothing * logs.mean()
    assert tokens == WORDS == 15
    assert loss.item() == pytest.approx(float(total) / WORDS, rel=1e-6)


# doubly stochastic attention


def penalty_by_loops(attention: Tensor, sizes: tuple[int, int] = (N, N)) -> float:
    """sizes: places of the memory of each image; what is behind them is padding."""
    total = 0.0
    for i in range(TARGETS.shape[0]):
        for j in range(TARGETS.shape[1]):
            steps = [k for k in range(TARGETS.shape[2]) if TARGETS[i, j, k] != PAD]
            if not steps:
                continue
            for place in range(sizes[i]):
                seen = sum(float(attention[i, j, k, :, :, place].mean()) for k in steps)
                total += (1 - seen) ** 2
    return total / WORDS


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3)])
def test_the_doubly_stochastic_penalty_is_its_loop(layers: int, heads: int) -> None:
    attention = random_attention(layers, heads)
    assert float(doubly_stochastic_penalty(attention, TARGETS)) == pytest.approx(penalty_by_loops(attention), rel=1e-9)


def test_what_stands_after_the_end_does_not_count() -> None:
    attention = random_attention()
    noisy = torch.where((TARGETS == PAD)[..., None, None, None], attention + 7.0, attention)
    torch.testing.assert_close(
        doubly_stochastic_penalty(noisy, TARGETS), doubly_stochastic_penalty(attention, TARGETS), rtol=1e-12, atol=0
    )


def test_captions_that_look_everywhere_once_have_no_penalty_and_staring_has_most() -> None:
    targets = torch.tensor([[[4, 5, 6, 7, EOS]]])
    sweep = torch.eye(N)[None, None, :, None, None]  # word t looks at place t
    stare = torch.zeros(1, 1, N, 1, 1, N)
    stare[..., 2] = 1.0
    assert float(doubly_stochastic_penalty(sweep, targets)) == 0.0
    # Place 2 has seen all five words, the others none: (1 - 5)^2 + 4 over five words.
    assert float(doubly_stochastic_penalty(stare, targets)) == pytest.approx(20 / 5)


def test_padding_of_the_memory_is_no_place_that_was_missed() -> None:
    attention = random_attention() * (torch.arange(N) < 2)
    mask = torch.arange(N).expand(len(TARGETS), N) < 2
    found = float(doubly_stochastic_penalty(attention, TARGETS, mask))
    assert found == pytest.approx(penalty_by_loops(attention, (2, 2)), rel=1e-9)


# REINFORCE


def hard_output(seed: int = 0) -> DecoderOutput:
    generator = torch.Generator().manual_seed(seed)
    log_prob = -torch.rand(*TARGETS.shape, generator=generator, dtype=torch.float64)
    entropy = torch.rand(*TARGETS.shape, generator=generator, dtype=torch.float64)
    return DecoderOutput(random_logits(seed), choice_log_prob=log_prob.requires_grad_(), entropy=entropy)


def likelihoods(logits: Tensor) -> dict[tuple[int, int], float]:
    """log p(y | s) of every caption that is there, in nats."""
    sums: dict[tuple[int, int], float] = {}
    for i, j, k in places():
        sums[i, j] = sums.get((i, j), 0.0) + float(logits[i, j, k].log_softmax(-1)[TARGETS[i, j, k]])
    return sums


def test_the_terms_of_hard_attention_are_their_loops() -> None:
    output, baseline = hard_output(), -5.0
    assert output.choice_log_prob is not None
    assert output.entropy is not None
    chosen, entropy, likelihood = reinforce_loss(output, TARGETS, baseline=baseline)
    worth, drawn = likelihoods(output.logits), output.choice_log_prob.tolist()
    expected = sum(-(worth[i, j] - baseline) * drawn[i][j][k] for i, j, k in places())
    assert chosen.item() == pytest.approx(expected / WORDS, rel=1e-6)
    assert float(entropy) == pytest.approx(-sum(float(output.entropy[at]) for at in places()) / WORDS, rel=1e-9)
    assert float(likelihood) == pytest.approx(sum(worth.values()) / len(worth), rel=1e-6)
    assert len(worth) == 5, "a missing caption is none"


def test_the_gradient_reaches_the_drawn_places_and_not_the_words() -> None:
    output, baseline = hard_output(), -5.0
    assert output.choice_log_prob is not None
    output.logits.requires_grad_()
    reinforce_loss(output, TARGETS, baseline=baseline)[0].backward()
    assert output.logits.grad is None
    worth = likelihoods(output.logits.detach())
    for i, j, k in torch.cartesian_prod(*map(torch.arange, TARGETS.shape)).tolist():
        wanted = -(worth[i, j] - baseline) / WORDS if TARGETS[i, j, k] != PAD else 0.0
        assert output.choice_log_prob.grad is not None
        assert float(output.choice_log_prob.grad[i, j, k]) == pytest.approx(wanted, rel=1e-6)


def test_half_precision_logits_are_summed_in_single() -> None:
    exact = hard_output()
    half = DecoderOutput(exact.logits.bfloat16(), choice_log_prob=exact.choice_log_prob, entropy=exact.entropy)
    near = reinforce_loss(half, TARGETS, baseline=0.0)[2]
    assert near.dtype == torch.float32
    same = DecoderOutput(half.logits.double(), choice_log_prob=exact.choice_log_prob, entropy=exact.entropy)
    assert float(near) == pytest.approx(float(reinforce_loss(same, TARGETS, baseline=0.0)[2]), rel=1e-5)


# the task


def decoder(**options: object) -> RnnDecoder:
    sizes = {"vocab_size": V, "memory_width": 8, "width": 8, "embed_width": 8, "attention_width": 8, "dropout": 0.0}
    return RnnDecoder(**{**sizes, **options})  # type: ignore[arg-type]


def make_task(part: nn.Module | None = None, **options: object) -> CaptionTask:
    torch.manual_seed(0)
    model = CaptionModel(RnnTextEncoder(vocab_size=V, width=8, embed_width=8, dropout=0.0), part or decoder())
    living = {"search": Greedy(max_length=4), "decode": str, "judge": lambda captions: {"count": float(len(captions))}}
    options = {"label_smoothing": 0.0, **options}
    return CaptionTask(model, **living, **options)  # type: ignore[arg-type]


def batch() -> Batch:
    """Two sentences with the captions TARGETS."""
    start = torch.full((*TARGETS.shape[:2], 1), BOS)
    start[0, 2] = PAD
    source = torch.tensor([[4, 5, 6, 7, 8], [5, 6, PAD, PAD, PAD]])
    return Batch(ids=(0, 1), source=source, captions=torch.cat((start, TARGETS), dim=2))


def logged(task: CaptionTask, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    seen: dict[str, float] = {}
    monkeypatch.setattr(task, "log", lambda name, value, **_: seen.update({name: value.item()}))
    return seen


def test_the_penalty_is_added_with_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(doubly_stochastic=0.7)
    seen = logged(task, monkeypatch)
    loss = task.training_step(batch(), 0)
    output = task.model(batch(), need_attention=True)
    known = TARGETS != PAD
    plain = F.cross_entropy(output.logits[known], TARGETS[known])
    penalty = penalty_by_loops(output.attention.detach().double(), (5, 2))  # the second sentence has two words
    assert loss.item() == pytest.approx(plain.item() + 0.7 * penalty, rel=1e-5)
    assert seen == {
        "train/loss": pytest.approx(plain.item(), rel=1e-5),
        "train/doubly_stochastic": pytest.approx(penalty, rel=1e-5),
    }


def test_training_on_the_penalty_spreads_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(doubly_stochastic=1.0)
    logged(task, monkeypatch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.02)

    def penalty() -> float:
        attention = task.model(batch(), need_attention=True).attention
        return penalty_by_loops(attention.detach().double(), (5, 2))

    with torch.no_grad():
        task.model.decoder.attention.score.weight *= 40  # stares at one place
    before = penalty()
    for _ in range(25):
        optimizer.zero_grad()
        task.training_step(batch(), 0).backward()
        optimizer.step()
    assert penalty() < 0.8 * before


def test_the_baseline_is_a_moving_average_that_the_first_batch_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(decoder(hard=True, soft_share=0.0), reinforce=0.5, entropy=0.2)
    seen = logged(task, monkeypatch)
    task.model.train()
    baseline = None
    for step in range(4):
        torch.manual_seed(step)  # the same places are drawn again below
        loss = task.training_step(batch(), step)
        torch.manual_seed(step)
        output = task.model(batch())
        assert output.choice_log_prob is not None
        worth = likelihoods(output.logits.detach())
        mean = sum(worth.values()) / len(worth)
        known = TARGETS != PAD
        expected = F.cross_entropy(output.logits[known], TARGETS[known]) - 0.2 * output.entropy[known].sum() / WORDS
        if baseline is None:
            baseline = mean  # and the first batch teaches nothing about places
        else:
            drawn = output.choice_log_prob.tolist()
            advantage = sum((worth[i, j] - baseline) * drawn[i][j][k] for i, j, k in places())
            expected = expected - 0.5 * advantage / WORDS
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
        baseline = 0.9 * baseline + 0.1 * mean
        assert task.baseline == pytest.approx(baseline, rel=1e-5)
        assert seen["train/places_entropy"] == pytest.approx(output.entropy[known].sum().item() / WORDS, rel=1e-5)
        with torch.no_grad():  # another model in the next step
            task.model.decoder.out.bias += 0.3 * torch.randn(V, generator=torch.Generator().manual_seed(step))


def test_hard_attention_learns_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word to say is at one of five places, the same always: only REINFORCE can find which."""

    class Given(nn.Module):
        width = 8

        def forward(self, source: Tensor, need_attention: bool = False) -> object:
            from vitcap.types import Memory

            words = F.one_hot(source, V).float()[..., :8]
            marks = torch.zeros(*source.shape, 8)
            marks[:, 3, 0] = 3.0  # what the place looks like
            return Memory(words * 2 + marks, mask=source != PAD)

    torch.manual_seed(0)
    task = make_task(decoder(hard=True, soft_share=0.0, gate="none"), reinforce=1.0, entropy=0.02)
    task.model.encoder = Given()
    logged(task, monkeypatch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(0)
    task.model.train()

    def draw(count: int) -> Batch:
        source = torch.randint(4, 8, (count, 5), generator=generator)
        captions = torch.stack((torch.full((count,), BOS), source[:, 3], torch.full((count,), EOS)), dim=1)[:, None]
        return Batch(ids=tuple(range(count)), source=source, captions=captions)

    for step in range(100):
        optimizer.zero_grad()
        task.training_step(draw(32), step).backward()
        optimizer.step()
    task.model.eval()
    attention = task.model(draw(64), need_attention=True).attention
    assert attention[:, 0, 0, 0, 0].argmax(-1).eq(3).float().mean() > 0.9


class OneBatch(L.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Batch]:
        return DataLoader([batch()] * 3, batch_size=None)  # type: ignore[arg-type]


def trainer(folder: object, **options: object) -> L.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return L.Trainer(default_root_dir=folder, enable_checkpointing=False, **quiet, **options)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
def test_the_baseline_goes_on_with_a_resumed_run(tmp_path: object) -> None:
    task = make_task(decoder(hard=True))
    first = trainer(tmp_path, max_epochs=1)
    first.fit(task, datamodule=OneBatch())
    assert task.baseline is not None
    file = f"{tmp_path}/last.ckpt"
    first.save_checkpoint(file)
    assert torch.load(file, weights_only=True)["baseline"] == task.baseline

    seen: list[float | None] = []
    again = make_task(decoder(hard=True))
    start = again.on_train_start
    again.on_train_start = lambda: (seen.append(again.baseline), start())  # type: ignore[method-assign, assignment]
    trainer(tmp_path, max_epochs=2).fit(again, datamodule=OneBatch(), ckpt_path=file, weights_only=True)
    assert seen == [task.baseline]
    soft = make_task()
    other = trainer(tmp_path, max_epochs=1)
    other.fit(soft, datamodule=OneBatch())
    other.save_checkpoint(file)
    assert torch.load(file, weights_only=True)["baseline"] is None


def test_the_penalty_needs_soft_attention() -> None:
    for part in (decoder(hard=True), decoder(attention="none")):
        with pytest.raises(ValueError, match=r"task\.doubly_stochastic=1\.0 needs soft attention: set model\.decoder"):
            make_task(part, doubly_stochastic=1.0)
        make_task(part)
    small = TransformerDecoder(vocab_size=V, memory_width=8, width=8, depth=1, heads=2, dropout=0.0)
    task = make_task(small, doubly_stochastic=1.0)
    assert task.doubly_stochastic == 1.0


@pytest.mark.parametrize("option", ["doubly_stochastic", "reinforce", "entropy"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "1", None])
def test_weights_out_of_range_are_named(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"task\.{option}={value}: a number of at least 0 is wanted"):
        make_task(**{option: value})
