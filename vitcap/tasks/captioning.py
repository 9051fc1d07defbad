"""Training of models that write sentences by cross-entropy, and their scores on the validation split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitcap.decoding import constrain, sample
from vitcap.memory import Halving
from vitcap.models.captioner import CaptionModel
from vitcap.processes import collect, first, in_all, share, weigh
from vitcap.tasks.base import TrainingTask
from vitcap.tasks.losses import caption_loss, doubly_stochastic_penalty, reinforce_loss
from vitcap.types import PAD, Batch, Generated, Memory, require_number

Id = int | str


class CaptionTask(TrainingTask):
    """A CaptionModel in training.

    model: what is trained. search: decoding of the validation captions. decode: token ids -> text.
    judge: scores, by name, of id -> caption.
    lr, encoder_lr, weight_decay, betas, warmup, label_smoothing: see TrainingTask.
    freeze_encoder_epochs: the encoder's trainable part stays as it is for so many epochs.
    scheduled_sampling: share (0..1) of the words fed to the decoder that are drawn from its own predictions (Bengio et
    al. 2015). It grows from 0 in the first epoch over scheduled_epochs epochs; with 0 of them it is there at once.
    doubly_stochastic: weight of the penalty for places never looked at (Xu et al. 2015 have 1), 0 for none.
    reinforce, entropy: weights of the two terms of hard attention (section 4.1 there); soft attention has none.
    """

    shared = TrainingTask.shared | {"search", "decode", "judge"}

    def __init__(
        self,
        model: CaptionModel,
        *,
        search: Callable[..., Generated],
        decode: Callable[[Sequence[int]], str],
        judge: Callable[[Mapping[Id, str]], dict[str, float]],
        lr: float = 5e-4,
        encoder_lr: float | None = None,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
        warmup: float = 0.05,
        label_smoothing: float = 0.1,
        freeze_encoder_epochs: int = 0,
        scheduled_sampling: float = 0.0,
        scheduled_epochs: int = 5,
        doubly_stochastic: float = 0.0,
        reinforce: float = 1.0,
        entropy: float = 0.01,
    ) -> None:
        super().__init__(
            model,
            lr=lr,
            encoder_lr=encoder_lr,
            weight_decay=weight_decay,
            betas=betas,
            warmup=warmup,
            label_smoothing=label_smoothing,
        )
        weights = {"doubly_stochastic": doubly_stochastic, "reinforce": reinforce, "entropy": entropy}
        for name, value in weights.items():
            require_number(f"task.{name}", value, 0)
        require_number("task.scheduled_sampling", scheduled_sampling, 0, 1)
        require_number("task.scheduled_epochs", scheduled_epochs, 0, whole=True)
        require_number("task.freeze_encoder_epochs", freeze_encoder_epochs, 0, whole=True)
        self.search, self.decode, self.judge = search, decode, judge
        self.freeze_encoder_epochs = freeze_encoder_epochs
        self.scheduled_sampling, self.scheduled_epochs = scheduled_sampling, scheduled_epochs
        self._trainable = [p for p in model.encoder.parameters() if p.requires_grad]
        decoder: Any = model.decoder
        if doubly_stochastic and (getattr(decoder, "hard", False) or getattr(decoder, "attention", decoder) is None):
            raise ValueError(
                f"task.doubly_stochastic={doubly_stochastic} needs soft attention: set model.decoder.attention, "
                "model.decoder.hard=false, or task.doubly_stochastic=0"
            )
        self.doubly_stochastic, self.reinforce, self.entropy = doubly_stochastic, reinforce, entropy
        self.baseline: float | None = None
        self.captions: dict[Id, str] = {}
        self.fitting = Halving("validation")
        self._found: dict[int, list[tuple[float, int, dict[Id, str]]]] = {}

    def require_finite(self, loss: Tensor, batch: Batch) -> None:
        """Tell of the likely cause (see `not_finite`) unless the loss is a number."""
        if bool(torch.isfinite(loss)):
            return
        wrong = [name for name, p in self.model.named_parameters() if not torch.isfinite(p).all()]
        records = f"records {', '.join(map(str, batch.ids[:3]))}, ..."
        cause = f"weights are not finite ({wrong[0]})" if wrong else records
        self.not_finite(
            f"the loss is {float(loss.detach())} at step {self.global_step} ({cause}): lower task.lr, lengthen "
            "task.warmup, or set trainer.precision=32-true"
        )

    def _fed(self, memory: Memory, captions: Tensor) -> Tensor:
        """Captions as the decoder reads them: in scheduled sampling some words are its own."""
        share = self.scheduled_sampling
        if self.current_epoch < self.scheduled_epochs:
            share *= self.current_epoch / self.scheduled_epochs
        if not share:
            return captions
        # In parallel (Mihaylova and Martins 2019; Duckworth et al. 2019): what a first pass draws replaces words of the
        # second. One word after the other, as Bengio et al. (2015) have it, would take a pass for each.
        inputs = captions[:, :, :-1]
        with torch.no_grad():
            logits = self.model.decoder(memory, inputs).logits
            drawn = sample(constrain(logits, inputs, forbid=(), in_place=True))  # what is never said is never fed
        own = (torch.rand(drawn.shape, device=drawn.device) < share) & (captions[:, :, 1:] != PAD)
        return torch.cat((captions[:, :, :1], torch.where(own, drawn, captions[:, :, 1:])), dim=2)

    @property
    def _terms(self) -> list[str]:
        """Names of what `_means` gives."""
        hard = ["choice", "entropy", "likelihood"] if getattr(self.model.decoder, "hard", False) else []
        return ["loss", *(["doubly_stochastic"] if self.doubly_stochastic else []), *hard]

    def _means(self, batch: Batch) -> dict[str, tuple[Tensor | None, int]]:
        """Mean of each term of the loss over a batch, and the number of words or captions that it is over."""
        assert batch.captions is not None
        targets = batch.captions[:, :, 1:]
        memory = self.model.encode(batch)
        fed = self._fed(memory, batch.captions)
        output = self.model.decoder(memory, fed[:, :, :-1], self.doubly_stochastic > 0)
        loss, tokens = caption_loss(output.logits, targets, label_smoothing=self.label_smoothing)
        means: dict[str, tuple[Tensor | None, int]] = {"loss": (loss, tokens)}
        if self.doubly_stochastic:
            means["doubly_stochastic"] = (doubly_stochastic_penalty(output.attention, targets, memory.mask), tokens)
        if output.choice_log_prob is not None:
            choice, entropy, likelihood = reinforce_loss(output, targets, baseline=self.baseline or 0.0)
            captions = int((targets != PAD).any(-1).sum())
            means |= {"choice": (choice, tokens), "entropy": (entropy, tokens), "likelihood": (likelihood, captions)}
        return means

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of all captions of all images of the batch, and what the kind of attention adds to it: means
        over all words of the batch, however many processes share it."""
        nothing = share()[1] > 1 and batch.captions is None
        means = weigh(**(dict.fromkeys(self._terms, (None, 0)) if nothing else self._means(batch)))
        loss, shown, tokens = means["loss"]
        self.log("train/loss", shown, batch_size=tokens, prog_bar=True, on_step=True, on_epoch=True)
        if self.doubly_stochastic:
            self.log("train/doubly_stochastic", means["doubly_stochastic"][1], batch_size=tokens)
            loss = loss + self.doubly_stochastic * means["doubly_stochastic"][0]
        if "choice" in means:
            choice, entropy, likelihood = means["choice"][0], means["entropy"], float(means["likelihood"][1])
            if self.baseline is None:  # the first batch only tells what a caption's likelihood is like
                choice = 0.0 * choice
            if math.isfinite(likelihood):
                self.baseline = 0.9 * (likelihood if self.baseline is None else self.baseline) + 0.1 * likelihood
            self.log("train/places_entropy", -entropy[1], batch_size=tokens)
            loss = loss + self.reinforce * choice + self.entropy * entropy[0]
        self.require_finite(loss, batch)
        return loss + self.no_loss() if nothing else loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The baseline belongs to the state of training."""
        checkpoint["baseline"] = self.baseline

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The baseline of the run that goes on."""
        self.baseline = checkpoint.get("baseline")

    def on_train_start(self) -> None:
        """Dropout on, whatever the model did before; and a run that goes on inside an epoch has no start of one."""
        self.model.train()
        self.on_train_epoch_start()

    def on_train_epoch_start(self) -> None:
        """Freeze or free the encoder's trainable part."""
        for parameter in self._trainable:
            parameter.requires_grad_(self.current_epoch >= self.freeze_encoder_epochs)

    def on_validation_epoch_start(self) -> None:
        """Forget the captions of the last time."""
        self.captions, self._found = {}, {}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss without smoothing, and free-running captions."""
        if len(batch):  # of several processes some have a batch less
            self._found[in_all(batch_idx)] = self.fitting(self._judge, batch)

    def _judge(self, batch: Batch) -> tuple[float, int, dict[Id, str]]:
        """Mean loss, the number of words that it is over, and the captions of a batch."""
        assert batch.captions is not None
        memory = self.model.encode(batch)
        logits = self.model.decoder(memory, batch.captions[:, :, :-1]).logits
        loss, tokens = caption_loss(logits, batch.captions[:, :, 1:])
        best = self.search(self.model.decoder, memory).tokens[:, 0].tolist()
        return float(loss), tokens, {id_: self.decode(words) for id_, words in zip(batch.ids, best, strict=True)}

    def on_validation_epoch_end(self) -> None:
        """Scores of the whole split, the same in every process and for any number of them."""
        found = [part for parts in collect(self._found) for part in parts]
        self.captions = {id_: caption for _, _, captions in found for id_, caption in captions.items()}
        if self.trainer.sanity_checking or not found:
            return
        words = sum(count for _, count, _ in found)
        loss = math.fsum(mean * count for mean, count, _ in found) / max(words, 1)
        for name, value in {"loss": loss, **first(lambda: self.judge(self.captions))}.items():
            self.log(f"val/{name}", value, batch_size=len(self.captions), prog_bar=name == "CIDEr-D")
