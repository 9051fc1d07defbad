"""The packaged models: there, small, whole by themselves, with a card; and they are what commands use by default."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from PIL import Image

import vitcap
from vitcap import checkpoint, pretrained, run
from vitcap.captioner import Captioner
from vitcap.cli import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def captioner():
    return vitcap.load()


def test_there_is_a_default_and_all_have_cards():
    names = pretrained.names()
    assert names[0] == pretrained.DEFAULT
    for name in names:
        card = pretrained.card(name)
        assert card.startswith(f"# {name}\n")
        for told in ("Training data", "Scores", "Limits", "Licence", "conf/experiment/"):
            assert told in card, (name, told)
    assert sum(pretrained.path(name).stat().st_size for name in names) <= 40_000_000


def test_the_card_states_the_scores_of_the_file():
    saved = checkpoint.read(pretrained.DEFAULT)
    scores, card = saved.description["facts"]["scores"], pretrained.card()
    for metric in ("BLEU-4", "CIDEr-D"):
        assert f"| {metric} | {100 * scores[metric]:.1f} |" in card


def test_an_unknown_name_tells_the_known_ones():
    with pytest.raises(FileNotFoundError, match="nothing: no packaged model; there are flickr8k"):
        pretrained.path("nothing")
    with pytest.raises(checkpoint.CheckpointError, match=r"no such file.*or a packaged model \(flickr8k"):
        vitcap.load("nothing")


def test_a_model_of_that_name_comes_first_and_a_data_folder_does_not(captioner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("flickr8k").mkdir()
    assert vitcap.load("flickr8k").fingerprint == captioner.fingerprint
    Path("flickr8k/model.safetensors").write_bytes(b"none")
    with pytest.raises(checkpoint.CheckpointError, match=r"flickr8k/model\.safetensors: neither a safetensors file"):
        vitcap.load("flickr8k")
    assert vitcap.load().fingerprint == captioner.fingerprint


def test_it_captions_without_network_and_other_packages(captioner, tmp_path, monkeypatch):
    """The encoder's first weights, a package of their own, are not looked up again."""
    assert isinstance(captioner, Captioner)
    assert captioner.preprocess.mode == "squash"  # as its training pictures were
    Image.new("RGB", (300, 200), (30, 120, 40)).save(tmp_path / "photo.jpg")
    code = (
        "import socket, sys, importlib.util\n"
        "def refuse(*a, **k): raise RuntimeError('network')\n"
        "socket.socket.connect = refuse\n"
        "found = importlib.util.find_spec\n"
        "def without(name, *a): return None if name.startswith('efficientnet') else found(name, *a)\n"
        "importlib.util.find_spec = without\n"
        "from vitcap.cli import main\n"
        "sys.exit(main(['caption', 'photo.jpg']))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    path, _, text = done.stdout.rstrip("\n").partition("\t")
    assert path == "photo.jpg"
    assert len(text.split()) > 2
    assert text == str(captioner.caption(tmp_path / "photo.jpg"))


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    name, size, told = capsys.readouterr().out.splitlines()[0].split("\t")
    assert name == pretrained.DEFAULT
    assert size.endswith(" MB")
    assert told.endswith("(default)")
    assert len(told) > 40
    assert main(["models", name]) == 0
    assert capsys.readouterr().out.startswith(f"# {name}\n")
    assert main(["models", "nothing"]) == 2
    assert "nothing: no packaged model; there are flickr8k" in capsys.readouterr().err


def test_overlay_and_viewer_take_it_too(captioner, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (300, 200), (200, 180, 140)).save("photo.jpg")
    assert main(["overlay", "photo.jpg", "--out", "overlays"]) == 0
    assert Path("overlays/photo.png").is_file()
    assert main(["viewer", "photo.jpg", "--methods", "attention"]) == 0
    page = Path("attention.html").read_text(encoding="utf-8")
    assert captioner.caption("photo.jpg").words[0].text in page
    assert "flickr8k" in page


@pytest.mark.slow
def test_it_scores_what_its_card_says(data_root, tmp_path):
    """All 1,000 dev pictures, by the command of the card."""
    (command,) = [line for line in pretrained.card().splitlines() if line.startswith("python scripts/evaluate.py")]
    overrides = shlex.split(command)[2:]
    overrides = [f"data.root={data_root}/flickr8k" if o.startswith("data.root=") else o for o in overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        report = run.evaluate(compose("evaluate", overrides=[*overrides, f"out={tmp_path}"]))
    stated = checkpoint.read(pretrained.DEFAULT).description["facts"]["scores"]
    assert report["scores"] == pytest.approx({name: stated[name] for name in report["scores"]}, abs=2e-3)
    assert len(report["scores"]) == 6  # all but METEOR, which needs Java
    assert report["facts"]["images"] == 1000
