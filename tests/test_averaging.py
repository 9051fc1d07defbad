"""The mean of two models' weights, and models that are written as they were scored."""

from __future__ import annotations

import json

import pytest
import torch
from test_checkpoint import description, model
from test_evaluate import SCENES, captioner, fails  # noqa: F401
from torch.testing import assert_close

import vitcap
from vitcap import checkpoint
from vitcap.averaging import average
from vitcap.command import evaluate
from vitcap.models.storage import pack, unpack


@pytest.fixture
def further(captioner, tmp_path):  # noqa: F811
    """A second model of the same build, with other weights."""
    door = vitcap.load(captioner)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in door.model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return door.save(tmp_path / "further.safetensors")


def scored(config, out, *overrides):
    return evaluate(config("data=shapes", *SCENES, f"out={out}", *overrides, name="evaluate"))


def test_the_model_between_two_is_scored_and_written(captioner, further, config, tmp_path):  # noqa: F811
    given = (
        f"checkpoint={further}",
        f"average={captioner}",
        "share=0.25",
        "save=fp32",
        "decode=beam",
        "decode.beams=2",
    )
    report = scored(config, tmp_path / "between", *given)
    assert report["facts"]["averaged"] == {"with": str(captioner), "share": 0.25}
    first, second = (vitcap.load(path).model.state_dict() for path in (captioner, further))
    door = vitcap.load(tmp_path / "between")
    for name, tensor in door.model.state_dict().items():
        wanted = 0.75 * first[name] + 0.25 * second[name] if tensor.is_floating_point() else second[name]
        assert_close(tensor, wanted, rtol=1e-6, atol=1e-6)
    facts = door.description["facts"]
    assert facts["scores"] == report["scores"]
    assert facts["evaluation"]["averaged"]["share"] == 0.25
    assert (type(door.search).__name__, door.search.beams) == ("Beam", 2)
    # What is in the file scores what it says.
    again = scored(config, tmp_path / "again", f"checkpoint={tmp_path / 'between'}")
    assert again["scores"] == report["scores"]
    for share, end in ((0, captioner), (1, further)):
        ends = scored(
            config, tmp_path / f"end{share}", f"checkpoint={further}", f"average={captioner}", f"share={share}"
        )
        assert ends["scores"] == scored(config, tmp_path / "one", f"checkpoint={end}")["scores"]


def test_a_weight_of_two_names_is_moved_once_and_none_is_left_out(tmp_path):
    """A .ckpt has the output matrix under its own name, too, which is the word vectors'."""
    own, other = model(), model(seed=1)
    file, further = checkpoint.write(tmp_path / "own.safetensors", own, description()), tmp_path / "other.ckpt"
    weights = other.state_dict()
    assert weights["decoder.out.weight"].data_ptr() == weights["decoder.embed.weight"].data_ptr()
    torch.save({"state_dict": weights, "vitcap": description()}, further)
    average(door := vitcap.load(file), str(file), str(further), 0.25)
    for name, tensor in own.state_dict().items():
        assert_close(door.model.state_dict()[name], 0.25 * tensor + 0.75 * weights[name], msg=name)
    del weights["decoder.embed.weight"]
    torch.save({"state_dict": weights, "vitcap": description()}, further)
    with pytest.raises(ValueError, match=r"decoder\.embed\.weight has another shape in .*, or is in one of them alone"):
        average(vitcap.load(file), str(file), str(further), 0.25)


def test_scores_of_a_model_in_eight_bits_are_those_of_its_file(captioner, config, tmp_path):  # noqa: F811
    report = scored(config, tmp_path / "small", f"checkpoint={captioner}", "save=int8")
    file = tmp_path / "small" / "model.safetensors"
    assert file.stat().st_size < 0.5 * captioner.stat().st_size
    rounded = unpack(pack(vitcap.load(captioner).model.state_dict(), "int8"))
    assert_close(vitcap.load(file).model.state_dict(), rounded, rtol=0, atol=0)
    captions = [tmp_path / name / "captions.json" for name in ("small", "again")]
    scored(config, tmp_path / "again", f"checkpoint={file}")
    first, second = (json.loads(path.read_text(encoding="utf-8")) for path in captions)
    assert first == second
    assert report["facts"]["storage"] == "int8"


def test_models_that_do_not_fit_together_are_refused(captioner, further, config, tmp_path, capsys):  # noqa: F811
    door = vitcap.load(captioner)
    door.description["preprocess"] |= {"mode": "letterbox"}
    other = door.save(tmp_path / "other.safetensors")
    given = (f"checkpoint={further}", "data=shapes", *SCENES, f"out={tmp_path / 'o'}")
    told = fails(config(*given, f"average={other}", name="evaluate"), capsys)
    assert told.startswith(f"vitcap: error: average={other}: its preprocess is not that of {further}")
    assert "share=0.3 goes with average=" in fails(config(*given, "share=0.3", name="evaluate"), capsys)
    assert "share=2: a number from 0 to 1" in fails(
        config(*given, f"average={captioner}", "share=2", name="evaluate"), capsys
    )
    assert "save=int4: one of fp32, fp16, int8 is wanted" in fails(config(*given, "save=int4", name="evaluate"), capsys)
    told = fails(config(*given, f"average={further}", name="evaluate"), capsys)
    assert f"average={further}: the model that is scored itself" in told
    told = fails(config("results=a.json", "annotations=b.json", "share=0.5", name="evaluate"), capsys)
    assert "share=0.5 goes with checkpoint=RUN, not with results=" in told
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_scored(
    captioner,  # noqa: F811
    config,
    tmp_path,
    capsys,
    monkeypatch,
):
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != str(tmp_path / "out"))
    monkeypatch.setattr("vitcap.scoring.score_split", None)
    told = fails(
        config(f"checkpoint={captioner}", "data=shapes", *SCENES, f"out={tmp_path / 'out'}", name="evaluate"), capsys
    )
    assert told.startswith(f"vitcap: error: out={tmp_path / 'out'}: nothing can be written there")


def test_a_trained_model_is_not_written_over(captioner, config, capsys):  # noqa: F811
    before = captioner.read_bytes()
    given = (f"checkpoint={captioner}", "data=shapes", *SCENES, f"out={captioner.parent}", "save=fp16")
    assert "model.safetensors is there already; choose another out=" in fails(config(*given, name="evaluate"), capsys)
    assert captioner.read_bytes() == before
