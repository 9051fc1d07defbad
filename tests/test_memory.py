"""Batches that do not fit the memory are halved: with stand-ins that fail above a size, as CPU and GPU fail."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch
from conftest import TINY
from PIL import Image

import vitcap
from vitcap import run
from vitcap.classifier import Classifier
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Sample
from vitcap.memory import Halving, NotEnoughMemory, is_out_of_memory
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.models.vit import VisionTransformer
from vitcap.types import Batch

FAILURES = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 65536 bytes."),
    RuntimeError("MPS backend out of memory (MPS allocated: 1.0 GB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
)


def batch(size: int) -> Batch:
    images = torch.arange(float(size))[:, None, None, None].expand(size, 3, 2, 2)
    return Batch(tuple(range(size)), images=images, captions=torch.arange(size)[:, None, None], labels=None)


class Limited:
    """Work that fails above a number of records, and keeps the sizes that it was asked for."""

    def __init__(self, most: int, failure: BaseException) -> None:
        self.most, self.failure, self.sizes = most, failure, list[int]()

    def __call__(self, part: Batch) -> tuple[Any, ...]:
        self.sizes.append(len(part))
        if len(part) > self.most:
            raise self.failure
        assert part.images is not None
        assert part.captions is not None
        assert part.images[:, 0, 0, 0].tolist() == part.captions[:, 0, 0].tolist() == list(part.ids)
        return part.ids


@pytest.mark.parametrize("failure", [FAILURES[0], FAILURES[1]], ids=["GPU", "CPU"])
def test_batches_are_halved_until_they_fit_and_no_record_is_lost(failure, caplog):
    work, fitting = Limited(3, failure), Halving("captioning")
    with caplog.at_level(logging.WARNING, "vitcap"):
        assert sum(fitting(work, batch(13)), ()) == tuple(range(13))
        assert work.sizes == [13, 7, 4, 2, 2, 2, 2, 2, 2, 1]
        work.sizes.clear()
        assert sum(fitting(work, batch(5)), ()) == tuple(range(5))  # what fits is remembered
        assert work.sizes == [2, 2, 1]
    assert [r.getMessage() for r in caplog.records] == [
        "captioning: 13 records at a time do not fit the memory: half as many from now on"
    ]


def test_what_is_done_is_not_done_again():
    work, fitting = Limited(4, FAILURES[0]), Halving("captioning")
    fitting(work, batch(8))
    work.most = 2  # another program takes memory
    work.sizes.clear()
    assert sum(fitting(work, batch(8)), ()) == tuple(range(8))
    assert work.sizes == [4, 2, 2, 2, 2]


def test_one_record_too_much_and_other_errors_are_told():
    with pytest.raises(NotEnoughMemory, match=r"^captioning, one record at a time: not enough memory \(CUDA out of"):
        Halving("captioning")(Limited(0, FAILURES[0]), batch(4))
    fitting, work = Halving("captioning"), Limited(1, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fitting(work, batch(4))
    assert work.sizes == [4]
    assert all(is_out_of_memory(failure) for failure in FAILURES)
    assert not is_out_of_memory(ValueError("out of memory"))
    assert Halving("nothing")(Limited(3, FAILURES[0]), batch(0)) == [()]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    from hydra import compose, initialize_config_dir
    from test_run import ROOT

    out = tmp_path_factory.mktemp("runs") / "toy"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return out, run.train(compose("config", overrides=[*TINY, f"out={out}", "data.check=off"]))


def limit(monkeypatch: pytest.MonkeyPatch, kind: Any, most: int) -> list[int]:
    """Let a model's passes, of `kind` (class, method), fail for batches of more records."""
    passes, sizes = getattr(*kind), list[int]()

    def limited(self: Any, given: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(given))
        if len(given) > most:
            raise FAILURES[len(sizes) % 3]
        return passes(self, given, *arguments, **options)

    monkeypatch.setattr(*kind, limited)
    return sizes


def test_captions_are_the_same_in_smaller_batches(captioner, monkeypatch):
    model = vitcap.load(captioner[0])
    pictures = [Image.new("RGB", (40 + 7 * i, 50), (20 * i, 255 - 20 * i, 90)) for i in range(11)]
    whole = model.caption(pictures, need_attention=True)
    sampled = model.caption(pictures[:3], search=Sample(), seed=4, batch_size=3)
    sizes = limit(monkeypatch, (CaptionModel, "encode"), 3)
    parts = model.caption(pictures, need_attention=True)
    assert sizes[:4] == [11, 6, 3, 3]
    for a, b in zip(whole, parts, strict=True):
        assert a.tokens == b.tokens
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-5)
        torch.testing.assert_close(torch.tensor(a.attention), torch.tensor(b.attention), atol=1e-5, rtol=1e-4)
    assert [c.text for c in model.caption(pictures[:3], search=Sample(), seed=4)] == [c.text for c in sampled]


def test_evaluation_and_validation_go_on_with_smaller_batches(captioner, config, tmp_path, monkeypatch, caplog):
    data = ["data.source.train_size=40", "data.source.val_size=12"]
    out, whole = captioner
    sizes = limit(monkeypatch, (CaptionModel, "encode"), 8)
    parts = run.evaluate(config(f"checkpoint={out}", *data, f"out={tmp_path / 'e'}", name="evaluate"))
    assert sizes == [12, 6, 6]
    assert parts["scores"] == pytest.approx(whole["scores"], abs=1e-9)
    again = run.train(config(*TINY, "data.check=off", f"out={tmp_path / 'b'}"))
    assert again["scores"] == pytest.approx(whole["scores"], abs=1e-9)
    curves = [(folder / "metrics.csv").read_text().split("\n") for folder in (out, tmp_path / "b")]
    assert curves[0] == curves[1]


def test_classes_are_the_same_in_smaller_batches(monkeypatch):
    torch.manual_seed(0)
    encoder = VisionTransformer(image_size=16, patch_size=8, width=16, depth=1, heads=2)
    model = ImageClassifier(encoder, classes=4, mean=(0.5,) * 3, std=(0.5,) * 3)
    door = Classifier(model, [(str(i), str(i)) for i in range(4)], Preprocess(size=(16, 16)))
    pictures = [Image.new("RGB", (20, 20), (20 * i, 255 - 20 * i, 90)) for i in range(11)]
    whole = door.classify(pictures)
    sizes = limit(monkeypatch, (ImageClassifier, "forward"), 4)
    parts = door.classify(pictures)
    assert sizes == [11, 6, 3, 3, 3, 2]
    for a, b in zip(whole, parts, strict=True):
        assert [p.index for p in a] == [p.index for p in b]
        assert [p.probability for p in a] == pytest.approx([p.probability for p in b], abs=1e-6)


def test_training_that_does_not_fit_says_what_to_lower(config, tmp_path, monkeypatch, capsys):
    limit(monkeypatch, (CaptionModel, "encode"), 0)
    with pytest.raises(SystemExit) as stop:
        run.command(run.train, config(*TINY, "data.check=off", f"out={tmp_path}"))
    assert stop.value.code == 1
    line = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitcap: error")]
    assert len(line) == 1
    assert line[0].startswith("vitcap: error: not enough memory (")
    assert line[0].endswith("lower data.batch_size=8 and raise trainer.accumulate_grad_batches by as much")


def test_a_part_is_cut_of_every_field():
    from vitcap.memory import _part

    one = Batch((1, 2, 3), *(torch.arange(3 * 4.0).view(3, 2, 2) for _ in range(5)))
    part = _part(one, 1, 2)
    assert part.ids == (2,)
    for field in dataclasses.fields(one)[1:]:
        torch.testing.assert_close(getattr(part, field.name), getattr(one, field.name)[1:2])
