"""Several runs: Hydra's multirun, each job in a folder of its own, and scripts/compare.py."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import QUICK
from hydra.types import RunMode
from omegaconf import OmegaConf

from vitcap import command
from vitcap.report.compare import score_table

ROOT = Path(__file__).resolve().parents[1]
DOC = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
TINY = (
    *("data.source.train_size=8", "data.source.val_size=4", "data.min_count=1", "data.batch_size=4", "overlays=0"),
    *("model.encoder.width=16", "model.encoder.depth=1", "model.encoder.heads=2", "model.encoder.patch_size=32"),
    *("model.decoder.width=16", "model.decoder.depth=1", "model.decoder.heads=2", "decode.max_length=3"),
    *("trainer.max_steps=1", "trainer.accelerator=cpu", "data.check=off", *QUICK),
)


def shown(start: str) -> str:
    """The command of docs/runs.md that begins so."""
    return next(line for line in DOC.splitlines() if line.startswith(start))


def test_the_sweep_of_the_documentation(tmp_path, monkeypatch, capsys):
    """Three runs, each in its own folder, which the page names; then they are compared."""
    sweep, _, out = shown("python scripts/train.py -m ").partition(" out=")
    given = [sys.executable, *shlex.split(sweep)[1:], *TINY, f"out={tmp_path / out}"]
    made = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    folders = sorted(path.parent for path in (tmp_path / out).glob("*/scores.json"))
    wanted = [f"seed-{seed}" for seed in (0, 1, 2)]
    assert [folder.name for folder in folders] == wanted
    assert f"`{out}/{wanted[0]}`" in DOC
    assert (tmp_path / out / "multirun.yaml").exists()
    for folder, name in zip(folders, wanted, strict=True):
        cfg = OmegaConf.load(folder / "config.yaml")
        assert name == f"seed-{cfg.seed}"
        assert json.loads((folder / "scores.json").read_text())["facts"]["seed"] == cfg.seed
    assert "runs/sweep/*/" in shown("python scripts/compare.py ")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import compare

    assert compare.main([str(folder) for folder in folders]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{folder}" in told for folder in folders)
    assert compare.main([str(folders[0]), "--out", "curves.png"]) == 2
    assert "--out curves.png: only runs that translate have a figure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "argv", "task", "wanted"),
    [
        (RunMode.RUN, ["seed=1", "out=X"], ["seed=1", "out=X"], "X"),
        (RunMode.MULTIRUN, ["-m", "seed=0,1", "out=X"], ["seed=1", "out=X"], "X/seed-1"),
        (
            RunMode.MULTIRUN,
            ["-m", "seed=0,1", "report=false", "out=X"],
            ["seed=1", "report=False", "out=X"],
            "X/seed-1",
        ),
        (RunMode.MULTIRUN, ["-m", "model/encoder=vit,cnn"], ["model/encoder=cnn"], "X/model-encoder-cnn"),
        (RunMode.MULTIRUN, ["-m", "task.lr=choice(0.1,0.2)"], ["task.lr=0.2"], "X/task.lr-0.2"),
        (RunMode.MULTIRUN, ["-m", "out=X${seed}", "seed=0,1"], ["out=X${seed}", "seed=1"], "X"),
        (RunMode.MULTIRUN, ["-m", "seed=1"], ["seed=1"], "X/7"),
        (RunMode.MULTIRUN, ["-m", "data.root=/a b,/c"], ["data.root=/a b"], "X/data.root--a-b_7"),
        (RunMode.MULTIRUN, ["-m", "data.root=/a-b,a-b"], ["data.root=/a-b"], "X/data.root--a-b_7"),
        (RunMode.MULTIRUN, ["-m", "data.root=/a-b,a-b"], ["data.root=a-b"], "X/data.root-a-b"),
        (RunMode.MULTIRUN, ["-m", "init=" + "x" * 200 + ",null"], ["init=" + "x" * 200], "X/7"),
    ],
)
def test_the_folder_of_a_job(mode, argv, task, wanted, monkeypatch):
    job = SimpleNamespace(mode=mode, overrides=SimpleNamespace(task=task), job=SimpleNamespace(num=7))
    monkeypatch.setattr(command, "HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda: job))
    monkeypatch.setattr(sys, "argv", ["train.py", *argv])
    assert command.job_folder(OmegaConf.create({"out": "X"})) == wanted


def _runs(folder: Path, figures: dict[str, np.ndarray], sha: str = "a") -> list[Path]:
    made = []
    for name, each in figures.items():
        (folder / name).mkdir()
        scores = {"CIDEr-D": float(each.mean()), "METEOR": None}
        facts = {"data": "x", "split": "val", "references_sha256": sha if name != "other" else "b"}
        (folder / name / "scores.json").write_text(json.dumps({"scores": scores, "facts": facts}))
        images = {str(i): {"caption": "a", "CIDEr-D": float(value)} for i, value in enumerate(each)}
        (folder / name / "per_image.json").write_text(json.dumps({"images": images}))
        made.append(folder / name)
    return made


def test_runs_are_compared_record_by_record(tmp_path):
    """A small gain on every picture is told from none, although pictures differ far more than that."""
    draw = np.random.default_rng(0)
    base = draw.uniform(0, 5, 200)
    runs = _runs(tmp_path, {"a": base, "b": base + 0.02, "c": base + draw.normal(0, 0.5, 200)})
    text = score_table(runs)
    means = [100 * base.mean(), 100 * (base + 0.02).mean()]
    lines = text.splitlines()
    assert [float(lines[2 + n].split()[1]) for n in (0, 1)] == [pytest.approx(mean, abs=0.06) for mean in means]
    assert lines[2].split()[2] == "-"
    each = [float(line.split()[1]) for line in lines[2:5]]
    assert float(lines[5].split()[-2]) == pytest.approx(np.mean(each), abs=0.1)
    assert float(lines[6].split()[-2]) == pytest.approx(np.std(each, ddof=1), abs=0.1)
    gains = [re.search(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)", line).groups() for line in lines[-2:]]
    assert list(map(float, gains[0])) == [2.0, 2.0, 2.0]
    low, high = map(float, gains[1][1:])
    assert low < 0 < high
    width = 2 * 1.96 * 100 * 0.5 / np.sqrt(200)  # of a normal mean
    assert high - low == pytest.approx(width, rel=0.2)


def test_classifiers_are_compared_by_what_they_got_right(tmp_path):
    for name, right in (("a", 6), ("b", 9)):
        (tmp_path / name).mkdir()
        scores = {"scores": {"top-1": right / 12, "NLL": 1.25}, "facts": {"data": "x", "split": "val"}}
        (tmp_path / name / "scores.json").write_text(json.dumps(scores))
        rows = [f"{i},cat,{'cat' if i < right else 'dog'},0.5" for i in range(12)]
        (tmp_path / name / "predictions.csv").write_text("\n".join(["id,class,predicted,probability", *rows, ""]))
    lines = score_table([tmp_path / "a", tmp_path / "b"]).splitlines()
    assert lines[0] == "x, split val, 12 records; times 100, but for NLL"
    assert [line.split()[-2:] for line in lines[2:4]] == [["50.0", "1.2500"], ["75.0", "1.2500"]]
    assert "b: +25.0 (" in lines[-1]


def test_runs_on_other_records_do_not_compare(tmp_path):
    runs = _runs(tmp_path, {"a": np.ones(20), "other": np.ones(20), "fewer": np.ones(19)})
    for other in runs[1:]:
        with pytest.raises(ValueError, match=f"a and .*{other.name} were scored on different records"):
            score_table([runs[0], other])
    with pytest.raises(ValueError, match="named twice"):
        score_table([runs[0], tmp_path / "." / "a"])
