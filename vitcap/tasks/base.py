"""What all training tasks share: the model, the optimiser's options, and copies for averaged weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import lightning as L
import torch
from torch import Tensor, nn

from vitcap.tasks.optim import make_optimizer, parameter_groups
from vitcap.types import require_number


class TrainingTask(L.LightningModule):
    """A model with an `encoder` in training by AdamW, with linear warm-up and cosine decay per step.

    lr, encoder_lr: peak learning rates of the rest and of the encoder's trainable part; encoder_lr None = lr.
    weight_decay, betas: of AdamW. warmup: share of all steps, 0..1. label_smoothing: 0..1 (Szegedy et al. 2016).
    layer_decay: in (0, 1], see tasks.optim.layer_scales; 1 for none. Raises ValueError for options out of range.
    """

    rest = "decoder"
    """Name of what is not the encoder, in the logged learning rates."""
    shared = frozenset({"_trainer", "tell_bad_loss"})
    """Names of what copies share."""
    tell_bad_loss: Callable[[str], None] | None = None
    """Told of a loss that is not finite, whose step it then leaves out: see SkipBadSteps."""
    step_left_out = False
    """Whether the last optimiser step was left out."""

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        encoder_lr: float | None,
        weight_decay: float,
        betas: tuple[float, float],
        warmup: float,
        label_smoothing: float,
        layer_decay: float = 1.0,
    ) -> None:
        super().__init__()
        encoder_lr = lr if encoder_lr is None else encoder_lr
        for name, value in (("lr", lr), ("encoder_lr", encoder_lr), ("weight_decay", weight_decay)):
            require_number(f"task.{name}", value, 0)
        for name, value in (("warmup", warmup), ("label_smoothing", label_smoothing), ("layer_decay", layer_decay)):
            require_number(f"task.{name}", value, 0, 1)
        if layer_decay == 0:
            raise ValueError("task.layer_decay=0 would stop every layer but the last: 1 is for none")
        if len(betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas):
            raise ValueError(f"task.betas={list(betas)}: two numbers of at least 0 and below 1 are wanted")
        self.model: Any = model
        self.lr, self.encoder_lr, self.layer_decay = lr, encoder_lr, layer_decay
        self.weight_decay, self.betas, self.warmup = weight_decay, (betas[0], betas[1]), warmup
        self.label_smoothing = label_smoothing

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copies (for averaged weights) are of everything but what is `shared`."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for key, value in self.__dict__.items():
            twin.__dict__[key] = value if key in self.shared else copy.deepcopy(value, memo)
        return twin

    def not_finite(self, reason: str) -> None:
        """A loss is not finite: the step is left out, or, where nobody watches over the steps, ValueError."""
        if self.tell_bad_loss is None:
            raise ValueError(reason)
        self.tell_bad_loss(reason)

    def log(self, name: str, value: Any, **options: Any) -> None:  # type: ignore[override]
        """As Lightning's, but a figure of a step that is no number is left out: the mean of the epoch would be none."""
        if not name.startswith("train/") or bool(torch.as_tensor(value).isfinite()):
            super().log(name, value, **options)

    def no_loss(self) -> Tensor:
        """The loss of a process that has no record of a batch: 0, and of one weight, for the others wait for it."""
        return 0.0 * next(p for p in reversed(list(self.model.parameters())) if p.requires_grad).sum()

    def configure_optimizers(self) -> Any:
        """AdamW in groups, linear warm-up and cosine decay per step."""
        total = int(self.trainer.estimated_stepping_batches)
        groups = parameter_groups(
            self.model,
            encoder=self.model.encoder,
            lr=self.lr,
            encoder_lr=self.encoder_lr,
            weight_decay=self.weight_decay,
            layer_decay=self.layer_decay,
            rest=self.rest,
        )
        optimizer, schedule = make_optimizer(
            groups, betas=self.betas, warmup=max(round(self.warmup * total), 1), total=total
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
