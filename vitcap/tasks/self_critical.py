"""Self-critical training: captions drawn from the model itself, rewarded by CIDEr-D (Rennie et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcap.decoding import Greedy, Sample, constrain
from vitcap.metrics.reward import CiderReward
from vitcap.models.captioner import CaptionModel
from vitcap.processes import share, weigh
from vitcap.tasks.captioning import CaptionTask, Id
from vitcap.tasks.losses import caption_loss
from vitcap.types import BOS, PAD, Batch, Generated, Memory, require_number

PATIENCE = 50
BASELINES = ("mean", "greedy")


class _NothingDrawn(Exception):
    """No caption can be drawn where the logits are not finite."""


class SelfCriticalTask(CaptionTask):
    """A trained CaptionModel in self-critical training.

    search, decode, judge, lr, encoder_lr, weight_decay, betas, warmup, freeze_encoder_epochs: see CaptionTask.
    references: captions of every training image. samples: K captions drawn of each image. baseline: what a reward is
    compared with: "mean" of the image's other samples (Luo 2020, arXiv:2003.09971), or that of its "greedy" caption
    (Rennie et al. 2017). temperature: of the drawing. sample_length: most tokens of a drawn caption.
    end_token: see CiderReward. cross_entropy: share (0..1) of the usual cross-entropy, with label_smoothing, in the
    loss.

    The K captions of an image share one encoder pass. The decoder's dropout is off, so that the captions are drawn from
    the very distribution whose gradient is taken; the encoder's is on, since drawing and gradient read the same memory.
    The loss is a mean over the drawn words, as the cross-entropy is one over the given ones: times their number it has
    the gradient of minus the expected reward, summed over captions.
    Logs train/reward and train/baseline. Raises ValueError for options out of range, for a loss that is not finite, for
    a training image without references, and where the reward stays at 0.
    """

    shared = CaptionTask.shared | {"reward"}

    def __init__(
        self,
        model: CaptionModel,
        *,
        references: Mapping[Id, Sequence[str]],
        search: Callable[..., Generated],
        decode: Callable[[Sequence[int]], str],
        judge: Callable[[Mapping[Id, str]], dict[str, float]],
        lr: float = 5e-5,
        encoder_lr: float | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.98),
        warmup: float = 0.02,
        label_smoothing: float = 0.0,
        freeze_encoder_epochs: int = 0,
        samples: int = 5,
        baseline: str = "mean",
        temperature: float = 1.0,
        sample_length: int = 25,
        end_token: bool = True,
        cross_entropy: float = 0.0,
    ) -> None:
        super().__init__(
            model,
            search=search,
            decode=decode,
            judge=judge,
            lr=lr,
            encoder_lr=encoder_lr,
            weight_decay=weight_decay,
            betas=betas,
            warmup=warmup,
            label_smoothing=label_smoothing,
            freeze_encoder_epochs=freeze_encoder_epochs,
        )
        if baseline not in BASELINES:
            raise ValueError(f"task.baseline={baseline}: choose one of {', '.join(BASELINES)}")
        require_number("task.samples", samples, 2 if baseline == "mean" else 1, whole=True)
        require_number("task.cross_entropy", cross_entropy, 0, 1)
        require_number("task.temperature", temperature, 1e-6)
        if getattr(model.decoder, "hard", False):
            raise ValueError("self-critical training draws words, not places: set model.decoder.hard=false")
        limit: Any = getattr(model.decoder, "max_length", None)
        require_number("task.sample_length", sample_length, 1, math.inf if limit is None else limit, whole=True)
        self.greedy = Greedy(max_length=sample_length, forbid=()) if baseline == "greedy" else None
        # Nothing is forbidden, or the drawn captions would not be those of the distribution that is trained.
        self.drawing = Sample(samples=samples, temperature=temperature, max_length=sample_length, forbid=())
        self.mix = cross_entropy
        self.reward = CiderReward(references, end_token=end_token)
        self.barren = 0

    def facts(self) -> dict[str, Any]:
        """What the reward was, for the model file."""
        reward = {"metric": "CIDEr-D", "end_token": self.reward.end_token, "idf": self.reward.fingerprint}
        return {"reward": {**reward, "images": len(self.reward.references)}}

    def _rewards(self, batch: Batch, memory: Memory, search: Any) -> tuple[Tensor, Tensor]:
        """Drawn captions (B, K, T) and their rewards (B, K)."""
        try:
            found = search(self.model.decoder, memory)
        except ValueError as error:  # its options are checked, so the logits are not finite
            raise _NothingDrawn from error
        captions = [[self.decode(row) for row in rows] for rows in found.tokens.tolist()]
        rewards = self.reward(batch.ids, captions, found.finished.tolist())
        return found.tokens, torch.tensor(rewards, dtype=torch.float32, device=found.tokens.device)

    @property
    def _terms(self) -> list[str]:
        return ["policy", "reward", "baseline", *(["usual"] if self.mix else [])]

    def _means(self, batch: Batch) -> dict[str, tuple[Tensor | None, int]]:
        try:
            return self._drawn_means(batch)
        except _NothingDrawn:
            return {name: (self.no_loss() + math.nan, 1) for name in self._terms}

    def _drawn_means(self, batch: Batch) -> dict[str, tuple[Tensor | None, int]]:
        memory = self.model.encode(batch)
        still = replace(memory, tokens=memory.tokens.detach())
        tokens, rewards = self._rewards(batch, still, self.drawing)
        if self.greedy is not None:
            baseline = self._rewards(batch, still, self.greedy)[1]
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
        inputs = F.pad(tokens[:, :, :-1], (1, 0), value=BOS)
        # The distribution that was drawn from: with the temperature, and without what is never said.
        logits = constrain(self.model.decoder(memory, inputs).logits.float(), inputs, forbid=(), in_place=True)
        known = tokens != PAD
        logits = logits.flatten(0, 2) / self.drawing.temperature
        log_probs = -F.cross_entropy(logits, tokens.flatten(), ignore_index=PAD, reduction="none")
        gain = (rewards - baseline)[..., None] * log_probs.view_as(tokens)
        words = known.sum()
        means: dict[str, tuple[Tensor | None, int]] = {
            "policy": (-(gain * known).sum() / words, int(words)),
            "reward": (rewards.mean(), len(batch)),
            "baseline": (baseline.mean(), len(batch)),
        }
        if self.mix:
            assert batch.captions is not None
            gold = self.model.decoder(memory, batch.captions[:, :, :-1]).logits
            means["usual"] = caption_loss(gold, batch.captions[:, :, 1:], label_smoothing=self.label_smoothing)
        return means

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Policy gradient (REINFORCE) with a baseline; see the class. Means are over the batch, however many processes
        share it."""
        self._set_modes()
        nothing = share()[1] > 1 and not len(batch)
        means = weigh(**(dict.fromkeys(self._terms, (None, 0)) if nothing else self._means(batch)))
        (loss, shown, _), (_, reward, count) = means["policy"], means["reward"]
        self._watch(reward)
        if self.mix:
            usual, told, _ = means["usual"]
            loss, shown = (1 - self.mix) * loss + self.mix * usual, (1 - self.mix) * shown + self.mix * told
        self.require_finite(loss, batch)
        for name, value in (("loss", shown), ("reward", reward), ("baseline", means["baseline"][1])):
            self.log(f"train/{name}", value, batch_size=count, prog_bar=True, on_step=True, on_epoch=True)
        return loss + self.no_loss() if nothing else loss

    def _watch(self, reward: Tensor) -> None:
        """Without any reward (none is below 0) there is no gradient, only time that passes."""
        self.barren = 0 if float(reward) else self.barren + 1
        if self.barren >= PATIENCE:
            raise ValueError(
                f"the reward has been 0 for {PATIENCE} steps, so nothing is learnt: start from a model trained by "
                "cross-entropy (init=RUN), and check that the captions are of the training images"
            )

    def on_train_start(self) -> None:
        """Only the encoder is in training mode."""
        super().on_train_start()
        self._set_modes()

    def _set_modes(self) -> None:
        self.model.eval()
        self.model.encoder.train()
