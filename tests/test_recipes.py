"""What the recipes for sequences promise, on sentences that played no part in training or choosing a checkpoint."""

from __future__ import annotations

import pytest
import torch

from vitcap import run

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def trained(config, out, *overrides):
    """scores.json of a recipe on the test split."""
    run.train(config(*overrides, f"out={out}", "overlays=0"))
    data = next(o.replace("experiment=", "data=") for o in overrides if o.startswith("experiment="))
    same = [o for o in overrides if o.startswith("data.")]
    evaluation = config(f"checkpoint={out}", data, *same, "split=test", f"out={out}/test", name="evaluate")
    return run.evaluate(evaluation)


@pytest.mark.parametrize("task", ["reverse", "copy"])
def test_digits_are_exact_and_attention_lies_on_the_diagonal(task, config, tmp_path):
    report = trained(config, tmp_path / "run", "experiment=digits", f"data.source.task={task}")
    assert report["scores"]["exact"] >= 0.99
    # Every digit has one link, on the anti-diagonal to reverse and on the diagonal to copy.
    assert report["alignment"]["precision"] >= 0.95


def test_attention_leads_by_more_the_longer_the_sentence(config, tmp_path):
    attention = trained(config, tmp_path / "a", "experiment=translation")
    fixed = trained(config, tmp_path / "b", "experiment=translation", "model.decoder.attention=none")
    assert fixed["alignment"] is None
    leads = [a["bleu"] - f["bleu"] for a, f in zip(attention["by_length"], fixed["by_length"], strict=True)]
    assert len(leads) == 4
    assert leads == sorted(leads)
    assert leads[0] > 0.3
    assert leads[-1] > 0.7
    assert attention["scores"]["exact"] > 0.6
    assert attention["alignment"]["AER"] < 0.25
