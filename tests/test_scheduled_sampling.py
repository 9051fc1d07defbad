"""Scheduled sampling: what the decoder is fed, when, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch
from conftest import TINY
from torch import Tensor, nn

from vitcap import run
from vitcap.decoding import Greedy
from vitcap.models.captioner import CaptionModel
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.tasks.captioning import CaptionTask
from vitcap.tasks.losses import caption_loss
from vitcap.types import BOS, EOS, PAD, UNK, Batch, DecoderOutput

V, T = 9, 7
SIZES = {"vocab_size": V, "memory_width": 8, "width": 8}


def transformer(**options: object) -> TransformerDecoder:
    return TransformerDecoder(**SIZES, depth=1, heads=2, dropout=0.0, **options)  # type: ignore[arg-type]


def rnn(**options: object) -> RnnDecoder:
    return RnnDecoder(**SIZES, embed_width=8, attention_width=8, dropout=0.0, **options)  # type: ignore[arg-type]


def batch(images: int = 64) -> Batch:
    """Two captions of an image: 1 to 5 words each, of the words 4 to 8; now and then one is missing."""
    generator = torch.Generator().manual_seed(0)
    captions = torch.randint(4, V, (images, 2, T), generator=generator)
    length = torch.randint(1, T - 1, (images, 2, 1), generator=generator)
    place = torch.arange(T)
    captions = (
        captions.masked_fill(place == 0, BOS).masked_fill(place == length + 1, EOS).masked_fill(place > length + 1, PAD)
    )
    captions[::9, 1] = PAD
    source = torch.randint(4, V, (images, 4), generator=generator)
    return Batch(ids=tuple(range(images)), source=source, captions=captions)


class Recording(nn.Module):
    """A decoder that notes its inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.fed: list[Tensor] = []

    def forward(self, memory: object, captions: Tensor, need_attention: bool = False) -> DecoderOutput:
        self.fed.append(captions.clone())
        return self.inner(memory, captions, need_attention)


def make_task(inner: nn.Module | None = None, *, epoch: int = 0, **options: object) -> CaptionTask:
    torch.manual_seed(0)
    encoder = RnnTextEncoder(vocab_size=V, width=8, embed_width=8, dropout=0.0)
    model = CaptionModel(encoder, Recording(inner or transformer()))
    parts = {"search": Greedy(max_length=4), "decode": str, "judge": lambda captions: {}}
    task = CaptionTask(model, **parts, **{"label_smoothing": 0.0, **options})  # type: ignore[arg-type]
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    # The epoch is a property, and the trainer's; here it is given.
    task.__class__ = type("AtEpoch", (CaptionTask,), {"current_epoch": epoch})
    return task


def share_of_changed(fed: Tensor, captions: Tensor) -> float:
    """Of the words whose target counts, after BOS."""
    words = captions[:, :, 1:-1] != PAD
    return float((fed[:, :, 1:] != captions[:, :, 1:-1])[words].float().mean())


def always(token: int) -> nn.Module:
    """A decoder that is sure of one word."""
    decoder = transformer()
    decoder.out = nn.Linear(8, V)
    with torch.no_grad():
        decoder.out.weight.zero_()
        decoder.out.bias.copy_(torch.full((V,), -50.0).index_fill(0, torch.tensor(token), 0.0))
    return decoder


@pytest.mark.parametrize(
    ("epoch", "epochs", "wanted"),
    [
        (0, 4, 0.0),
        (1, 4, 0.15),
        (2, 4, 0.3),
        (3, 4, 0.45),
        (4, 4, 0.6),
        (9, 4, 0.6),
        (0, 0, 0.6),
        (0, 1, 0.0),
        (1, 1, 0.6),
    ],
)
def test_the_share_grows_by_epoch(epoch: int, epochs: int, wanted: float) -> None:
    given = batch(600)
    captions = given.captions.masked_fill(given.captions > UNK, 4)
    task = make_task(always(5), epoch=epoch, scheduled_sampling=0.6, scheduled_epochs=epochs)
    task.training_step(Batch(given.ids, source=given.source, captions=captions), 0)
    assert share_of_changed(task.model.decoder.fed[-1], captions) == pytest.approx(wanted, abs=0.04 if wanted else 0.0)
    assert len(task.model.decoder.fed) == (2 if wanted else 1), "plain training has one pass"


@pytest.mark.parametrize("kind", [transformer, rnn])
@pytest.mark.parametrize(
    "options", [{}, {"scheduled_sampling": 0.0, "scheduled_epochs": 0}, {"scheduled_sampling": 0.9}]
)
def test_a_share_of_zero_is_plain_training(kind, options: dict[str, object]) -> None:
    """The last one is in its first epoch."""
    task = make_task(kind(), **options)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loss = task.training_step(batch(), 0)
    assert torch.equal(torch.get_rng_state(), before), "nothing is drawn"
    plain, _ = caption_loss(task.model(batch()).logits, batch().captions[:, :, 1:])
    assert loss.item() == plain.item()
    assert torch.equal(task.model.decoder.fed[0], batch().captions[:, :, :-1])


@pytest.mark.parametrize("kind", [transformer, rnn, lambda: rnn(hard=True)])
def test_starts_and_padding_stay_and_what_is_never_said_is_never_fed(kind) -> None:
    task = make_task(kind(), epoch=5, scheduled_sampling=1.0)
    with torch.no_grad():  # the untrained model would often say them
        task.model.decoder.inner.out.bias[[PAD, BOS]] = 5.0
    task.training_step(batch(200), 0)
    first, fed = task.model.decoder.fed
    gold = batch(200).captions[:, :, :-1]
    assert torch.equal(first, gold)
    assert torch.equal(fed[:, :, 0], gold[:, :, 0])
    assert torch.equal(fed == PAD, gold == PAD)
    assert torch.equal(fed == BOS, gold == BOS)
    assert share_of_changed(fed, batch(200).captions) > 0.5


def test_the_targets_stay_the_given_words() -> None:
    """Against two passes and a loss written out."""
    task = make_task(rnn(), epoch=5, scheduled_sampling=0.5)
    torch.manual_seed(2)
    loss = task.training_step(batch(), 0)
    loss.backward()
    fed = task.model.decoder.fed[-1]
    targets = batch().captions[:, :, 1:]
    logits = task.model.decoder(task.model.encode(batch()), fed).logits
    known = targets != PAD
    wanted = -logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)[known].mean()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert 0.2 < share_of_changed(fed, batch().captions) < 0.6
    mine = [p.grad.clone() for p in task.model.parameters() if p.grad is not None]
    task.zero_grad()
    wanted.backward()  # no gradient through the first pass and its draws
    for a, b in zip(mine, (p.grad for p in task.model.parameters() if p.grad is not None), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-5)


def test_what_is_fed_is_drawn_from_the_model_at_that_place() -> None:
    """A model that always says one word more than it reads: what it is fed is one more than the word before."""

    class Successor(nn.Module):
        def forward(self, memory: object, captions: Tensor, need_attention: bool = False) -> DecoderOutput:
            self.last = captions
            following = torch.where(captions < 4, 4, (captions - 3) % 5 + 4)
            logits = torch.full((*captions.shape, V), -50.0).scatter(-1, following[..., None], 50.0)
            return DecoderOutput(logits.requires_grad_())

    task = make_task(Successor(), epoch=5, scheduled_sampling=1.0)
    task.training_step(batch(), 0)
    gold, fed = task.model.decoder.fed
    before, after = gold[:, :, :-1], fed[:, :, 1:]
    changed = gold[:, :, 1:] != PAD
    wanted = torch.where(before < 4, 4, (before - 3) % 5 + 4)
    assert torch.equal(after[changed], wanted[changed])


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("scheduled_sampling", 1.5, "a number from 0 to 1"),
        ("scheduled_sampling", -0.1, "a number from 0 to 1"),
        ("scheduled_sampling", None, "a number from 0 to 1"),
        ("scheduled_epochs", 1.5, "a whole number of at least 0"),
        ("scheduled_epochs", -1, "a whole number of at least 0"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=rf"^task\.{option}={value}: {wanted} is wanted$"):
        make_task(**{option: value})


def test_a_resumed_run_goes_on_bit_for_bit(config, tmp_path, monkeypatch) -> None:
    common = [*TINY, "trainer.max_epochs=2", "save_every=1", "ema=null", "task.scheduled_sampling=0.5"]
    common += ["task.scheduled_epochs=2", "data.source.train_size=24", "trainer.check_val_every_n_epoch=2"]
    run.train(config(*common, f"out={tmp_path / 'whole'}"))
    step = CaptionTask.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 5:  # inside the second epoch, the first that draws
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(CaptionTask, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.train(config(*common, f"out={tmp_path / 'parts'}"))
    monkeypatch.setattr(CaptionTask, "training_step", step)
    torch.manual_seed(99)
    run.train(config(*common, f"out={tmp_path / 'parts'}", "resume=true"))
    whole, parts = (
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "parts")
    )
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, parts["state_dict"][name]), name
    run.train(config(*common, f"out={tmp_path / 'plain'}", "task.scheduled_sampling=0"))
    plain = torch.load(tmp_path / "plain" / "checkpoints" / "last.ckpt", weights_only=True)
    assert not all(torch.equal(t, plain["state_dict"][name]) for name, t in whole["state_dict"].items())
