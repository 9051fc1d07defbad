"""A run that goes on from a checkpoint with a damaged state of training ends in one line that names it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY

from vitcap import run
from vitcap.memory import is_out_of_memory
from vitcap.tasks.captioning import CaptionTask
from vitcap.tasks.resuming import check_moments


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of one epoch, and its last checkpoint."""
    from conftest import CONF
    from hydra import compose, initialize_config_dir

    out = tmp_path_factory.mktemp("runs") / "toy"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        run.train(compose("config", overrides=[*TINY, f"out={out}", "data.source.train_size=16"]))
    return out, torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)


def first(state: dict[str, Any]) -> dict[str, Any]:
    return state["optimizer_states"][0]["state"][0]


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "shapes": (
        lambda s: first(s).update(exp_avg=torch.zeros(3, 5)),
        r"exp_avg of the optimiser has the shape \(3, 5\)",
    ),
    "not finite": (lambda s: first(s)["exp_avg_sq"].fill_(float("nan")), "exp_avg_sq of the optimiser is not finite"),
    "lacking": (lambda s: first(s).pop("exp_avg"), "KeyError: 'exp_avg'"),
    "no optimiser": (lambda s: s["optimizer_states"].clear(), "no state of optimiser or schedule, after 2 steps"),
    "no schedule": (lambda s: s["lr_schedulers"].clear(), "no state of optimiser or schedule, after 2 steps"),
    "groups": (lambda s: s["optimizer_states"][0]["param_groups"].pop(), "parameter groups"),
    "keys": (lambda s: s["optimizer_states"].__setitem__(0, {"a": 1}), "KeyError: 'param_groups'"),
    "kind": (lambda s: s["optimizer_states"].__setitem__(0, None), "AttributeError"),
    "schedule": (lambda s: s["lr_schedulers"][0].update(last_epoch="x"), "TypeError"),
    "loops": (lambda s: s["loops"].pop("fit_loop"), "KeyError: 'fit_loop'"),
    "callbacks": (lambda s: s["callbacks"].update(SkipBadSteps={"a": 1}), "KeyError: 'skipped'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_is_one_line(name: str, stopped: Any, config: Any, tmp_path: Path, capsys: Any) -> None:
    out, state = stopped
    damage, message = DAMAGES[name]
    damage(state := copy.deepcopy(state))
    file = tmp_path / "last.ckpt"
    torch.save(state, file)
    options = (*TINY, "data.source.train_size=16", f"out={out}", "trainer.max_epochs=2", f"resume={file}")
    with pytest.raises(SystemExit):
        run.command(run.train, config(*options))
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"vitcap: error: {file}: the state of training is damaged, and cannot be resumed from (")
    assert told.endswith(f"; init={file} starts anew from its weights")
    assert re.search(message, told)


@pytest.mark.parametrize("error", [ValueError("data"), RuntimeError("out of memory"), KeyError("later")])
def test_other_errors_stay_what_they_are(
    error: Exception, stopped: Any, config: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Of the first batch, or, of an entry that is not there, of the second."""
    out, _ = stopped
    step = CaptionTask.training_step

    def failing(self: Any, batch: Any, batch_idx: int) -> Any:
        if isinstance(error, KeyError) and batch_idx < 1:
            return step(self, batch, batch_idx)
        raise error

    monkeypatch.setattr(CaptionTask, "training_step", failing)
    options = (*TINY, "data.source.train_size=16", f"out={tmp_path}", "trainer.max_epochs=2")
    with pytest.raises(type(error)) as caught:
        run.train(config(*options, f"resume={out / 'checkpoints' / 'last.ckpt'}"))
    assert caught.value is error or is_out_of_memory(error)


def test_options_that_do_not_fit_are_not_laid_on_the_checkpoint(stopped: Any, config: Any, tmp_path: Path) -> None:
    out, _ = stopped
    options = (*TINY, "data.source.train_size=16", f"out={tmp_path}", "trainer.max_epochs=2", "+task.layer_decay=2")
    with pytest.raises(ValueError, match="layer_decay") as caught:
        run.train(config(*options, f"resume={out / 'checkpoints' / 'last.ckpt'}"))
    assert "damaged" not in str(caught.value)


def test_moments_of_a_sound_optimiser_pass() -> None:
    weights = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]
    for optimizer in (torch.optim.AdamW(weights), torch.optim.SGD(weights, momentum=0.9), torch.optim.SGD(weights)):
        sum((weight**2).sum() for weight in weights).backward()  # type: ignore[union-attr]
        optimizer.step()
        check_moments(optimizer)
