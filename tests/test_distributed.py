"""Several processes: the same scores and the same loss curve as one, and an end with a message where one is lost.

Processes that only evaluate are forked, which is fast; those that train are started by torchrun, marked slow.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY

from vitcap import launch, processes, run
from vitcap.classifier import Classifier
from vitcap.data.coco import CocoSource
from vitcap.data.loader import EpochBatches
from vitcap.data.pictures import CaptionData
from vitcap.data.shapes import ShapesSource, export_coco
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Sample
from vitcap.evaluation.captions import evaluate_captions
from vitcap.evaluation.classes import evaluate_classes, predict_split
from vitcap.evaluation.sentences import evaluate_sentences
from vitcap.types import Batch

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _child(action: Callable[..., Any], rank: int, world: int, port: int, timeout: float, pipe: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        processes.start(rank, world, timeout=timedelta(seconds=timeout))
        pipe.send(("ok", action()))
    except Exception as error:
        pipe.send((type(error).__name__, str(error)))
    pipe.close()
    os._exit(0)  # without the exit handlers of the tests


def together(world: int, action: Callable[[], Any], *, timeout: float = 60.0) -> list[tuple[str, Any] | None]:
    """What `action` returns, or (name, text) of its error, in each of so many forked processes; None of a lost one."""
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes, children = [], []
    for rank in range(world):
        mine, its = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(action, rank, world, port, timeout, its))
        child.start()
        its.close()
        pipes.append(mine)
        children.append(child)
    found: list[tuple[str, Any] | None] = []
    for pipe, child in zip(pipes, children, strict=True):
        try:
            found.append(pipe.recv() if pipe.poll(90) else None)
        except EOFError:
            found.append(None)
        child.kill()
        child.join()
    return found


# What each process gets


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 5, 24, 29])
def test_shares_hold_every_record_once_and_are_the_batches_of_one_process(size, world):
    def batches(share, **options):
        made = EpochBatches(size, 4, seed=3, share=share, **options)
        made.set_epoch(2)
        found = [[index for _, index in batch] for batch in made]
        assert len(found) == len(made)
        return found

    whole = batches((0, 1), shuffle=True)
    split = [batches((rank, world), shuffle=True) for rank in range(world)]
    for number, batch in enumerate(whole):  # a global batch is split, and no other record is in it
        parts = [own[number] for own in split]
        assert sorted(index for part in parts for index in part) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    whole = batches((0, 1), shuffle=False)
    dealt = [batches((rank, world), shuffle=False) for rank in range(world)]
    assert {number * world + rank: b for rank, own in enumerate(dealt) for number, b in enumerate(own)} == dict(
        enumerate(whole)
    )
    even = [batches((rank, world), shuffle=False, even=True) for rank in range(world)]
    assert len({len(own) for own in even}) == 1
    assert sorted(b for own in even for b in own if b) == sorted(whole)


# What they tell each other


def _talk() -> dict[str, Any]:
    rank, world = processes.share()
    number = torch.tensor(float(rank), requires_grad=True)
    terms = {"words": (number * 1.0, rank), "pictures": (None, 0) if rank == 0 else (number + 1.0, 2)}
    means = processes.weigh(**terms)  # type: ignore[arg-type]
    means["words"][0].backward() if rank else None
    return {
        "gathered": processes.gather(f"p{rank}"),
        "collected": processes.collect({n: n * n for n in range(rank, 5, world)}),
        "any": (processes.any_of(rank == 1), processes.any_of(False)),
        "first": processes.first(lambda: f"from {processes.share()[0]}"),
        "means": {name: (float(shown), count) for name, (_, shown, count) in means.items()},
        "parts": [float(mean) for mean, _, _ in means.values()],
        "number": processes.in_all(2),
    }


def test_processes_gather_collect_agree_and_weigh():
    found = together(3, _talk)
    assert [kind for kind, _ in found] == ["ok"] * 3
    values = [value for _, value in found]
    for value in values:
        assert value["gathered"] == ["p0", "p1", "p2"]
        assert value["collected"] == [0, 1, 4, 9, 16]
        assert value["any"] == (True, False)
        assert value["first"] == "from 0"
        # words: means 0, 1, 2 over 0, 1, 2 items; pictures: 2 and 3, over two each.
        assert value["means"] == {"words": (pytest.approx(5 / 3), 3), "pictures": (2.5, 4)}
    assert [value["number"] for value in values] == [6, 7, 8]
    # The average over processes of what each differentiates is the mean over all items.
    assert np.mean([value["parts"] for value in values], axis=0) == pytest.approx([5 / 3, 2.5])


def test_of_one_process_everything_is_as_it_was():
    mean = torch.tensor(2.0, requires_grad=True)
    same, shown, count = processes.weigh(loss=(mean, 3))["loss"]
    assert same is mean
    assert (float(shown), count) == (2.0, 3)
    assert processes.share() == (0, 1)
    assert processes.first(lambda: 4) == 4
    with pytest.raises(KeyError):  # an error is the error
        processes.first(lambda: {}["x"])


def _fail_first() -> Any:
    def work() -> None:
        raise ValueError("no such folder")

    return processes.first(work)


def test_an_error_of_the_first_process_is_its_own_and_ends_the_others():
    assert together(3, _fail_first) == [
        ("ValueError", "no such folder"),
        ("FirstFailed", "no such folder"),
        ("FirstFailed", "no such folder"),
    ]


def _twice() -> Any:
    return processes.collect({3: "x"})


def test_the_same_work_done_twice_is_found():
    assert together(2, _twice) == [("AssertionError", "two processes have done the same")] * 2


def _leave_one() -> Any:
    if processes.share()[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return processes.gather(1)


def _hang_one() -> Any:
    if processes.share()[0] == 1:
        time.sleep(8)
    return processes.gather(1)


@pytest.mark.parametrize("action", [_leave_one, _hang_one], ids=["killed", "hangs"])
def test_a_process_that_is_killed_or_hangs_ends_the_others_with_a_message(action):
    begin = time.monotonic()
    found = together(2, action, timeout=3.0)[:1]
    assert found[0] is not None
    assert found[0][0] == "Lost"
    assert re.match(r"process 0 of 2 \(counted from 0\) lost another one, which ended or hangs", found[0][1])
    assert action is _hang_one or time.monotonic() - begin < 30


# Evaluation: bit-equal for any number of processes


class Table(Classifier):
    """A classifier that says what is in a table: logits by record id."""

    def __init__(self, logits: dict[Any, list[float]], classes: int) -> None:
        super().__init__(torch.nn.Identity(), [(str(c), str(c)) for c in range(classes)], Preprocess(size=(8, 8)))  # type: ignore[arg-type]
        self.table = logits

    def logits(self, batch: Batch) -> torch.Tensor:
        return torch.tensor([self.table[id_] for id_ in batch.ids])


def _files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Untrained models and data of every kind; eleven records in batches of two, or of four."""
    from hydra import compose, initialize_config_dir

    small = [o for o in TINY if "decoder" not in o and "val_size" not in o]
    words = [o for o in TINY if "val_size" not in o]
    digits = ("model=seq2seq", "data=digits", "data.source.train_size=60", "data.source.val_size=11")
    kinds = {
        "caption": (*words, "data.source.val_size=11", "data.eval_batch_size=2"),
        "classify": (
            "model=vit_classify",
            "task=classification",
            *small,
            "data.source.val_size=11",
            "data.eval_batch_size=2",
        ),
        "translate": (*digits, "model.encoder.width=16", "data.eval_batch_size=4"),
    }
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return {kind: run.build(compose("config", overrides=list(options))) for kind, options in kinds.items()}


def evaluate(made: Any, out: Path, search: Any = None) -> tuple[str, dict[str, Any]]:
    door = made.door(search)
    if made.kind == "classify":
        return evaluate_classes(door, made.data, "val", out=out)
    score = evaluate_captions if made.kind == "caption" else evaluate_sentences
    return score(door, made.data, "val", search=search, out=out, seed=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["caption", "classify", "translate"])
def test_scores_are_bit_equal_for_one_to_seven_processes(kind, parts, tmp_path):
    search = Sample(max_length=6) if kind != "classify" else None  # also what is drawn at random
    text, report = evaluate(parts[kind], tmp_path / "one", search)
    alone = _files(tmp_path / "one")
    assert len(alone) >= 3
    for world in (2, 3, 4, 7):  # eleven records: shares are uneven, and of seven processes some have none
        out = tmp_path / str(world)
        found = together(world, lambda out=out: evaluate(parts[kind], out, search))
        assert found[0] == ("ok", (text, report))
        assert found[1:] == [("ok", ("", {}))] * (world - 1)  # they print and write nothing
        assert _files(out) == alone


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ten_samples_of_which_six_are_right_are_six_of_ten(world, parts):
    """Worked example C3.14: a sampler that pads to equal shares would count two twice, 8 of 12."""
    made = parts["classify"]
    data, classes = made.data, made.model.classes
    data.eval_batch_size, records = 1, data.records("val")
    data._records["val"] = records[:10]
    try:
        labels = {r.image_id: r.label for r in records[:10]}
        right = dict(zip(labels, (1, 1, 1, 0, 0, 1, 0, 1, 1, 0), strict=True))
        table = {
            id_: [float(c == (label if right[id_] else (label + 1) % classes)) for c in range(classes)]
            for id_, label in labels.items()
        }
        door = Table(table, classes)

        def work() -> tuple[tuple[Any, ...], float]:
            found = predict_split(door, data, "val")
            return found.ids, float((found.rank == 0).mean())

        for kind, value in [("ok", work())] if world == 1 else together(world, work):
            assert (kind, value) == ("ok", (tuple(labels), 0.6))
    finally:
        data.eval_batch_size, data._records["val"] = 2, records


def test_one_process_fills_the_feature_cache_and_all_read_it(tmp_path):
    source = ShapesSource(train_size=5, val_size=3)
    for split in ("train", "val"):
        export_coco(source, tmp_path / "coco", split)
    (tmp_path / "coco" / "val").joinpath(sorted(p.name for p in (tmp_path / "coco" / "val").iterdir())[0]).write_bytes(
        b""
    )

    def work() -> tuple[int, list[Any], list[float]]:
        made = CaptionData(
            CocoSource, str(tmp_path / "coco"), cache=str(tmp_path / "cache"), min_count=1, on_bad="skip"
        )
        made.fit_to(Preprocess(size=(8, 8)).to_dict())
        seen = []

        def extract(images: torch.Tensor) -> torch.Tensor:
            seen.append(len(images))
            time.sleep(0.5)  # the others have to wait
            return images.float().mean((2, 3))[:, None] / 255

        made.cache_features(("train", "val"), fingerprint="abc", extract=extract)
        (batch,) = made.loader("val")
        return sum(seen), list(batch.ids), batch.features.flatten().tolist()

    found = together(3, work)
    assert [value[0] for _, value in found] == [5 + 2, 0, 0]
    assert len(found[0][1][1]) == 2
    assert found[0][1][1:] == found[1][1][1:] == found[2][1][1:]


def test_a_record_that_is_left_out_is_found(parts):
    data = parts["classify"].data
    ids = [record.image_id for record in data.records("val")]
    data.require_all("val", ids)
    for wrong in (ids[:-1], [*ids, ids[0]], [*ids[:-1], ids[0]]):
        with pytest.raises(AssertionError, match="left out or counted twice"):
            data.require_all("val", wrong)


# How processes are started


def test_devices_start_the_script_again_under_torchrun(config, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.append((program, arguments)))
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "trainer.devices=3"])
    launch.relaunch(config(*TINY))
    assert started == []
    launch.relaunch(config(*TINY, "trainer.devices=3"))
    assert started[0][1][1:] == (
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"),
        *("scripts/train.py", "trainer.devices=3"),
    )


def test_devices_in_one_process_are_one_clear_error(config, tmp_path):
    with pytest.raises(
        ValueError, match=r"trainer.devices=2, but this is one process: start scripts/train.py, or torch"
    ):
        run.train(config(*TINY, "trainer.devices=2", f"out={tmp_path}"))
    with pytest.raises(ValueError, match=r"give their number, trainer.devices=2, and choose them by .* CUDA_VISIBLE"):
        launch.wanted(config("trainer.devices=[0,3]"))


# Training: one loss curve for any number of processes

EXACT = (
    *("data.source.train_size=45", "data.source.val_size=13", "data.eval_batch_size=4", *TINY[2:]),
    *("trainer.max_epochs=2", "trainer.log_every_n_steps=1", "model.decoder.dropout=0", "trainer.accelerator=cpu"),
)


def start(world: int, *overrides: str, script: str = "scripts/train.py", **environment: str) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    return subprocess.Popen(
        [sys.executable, *launcher, script, *overrides],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(
    world: int, out: Path, *overrides: str, script: str = "scripts/train.py"
) -> tuple[list[float], list[dict[str, float]], dict[str, Any]]:
    """Loss of each step, scores of each validation, and the last checkpoint of a run."""
    done = start(world, *overrides, f"out={out}", script=script)
    _, told = done.communicate(timeout=400)
    assert done.returncode == 0, told
    with open(out / "metrics.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["train/loss_step"]) for row in rows if row.get("train/loss_step")]
    scores = [
        {k: float(v) for k, v in row.items() if k.startswith("val/") and v} for row in rows if row.get("val/loss")
    ]
    return losses, scores, torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)


def assert_same(one: Any, other: Any) -> None:
    assert len(one[0]) == len(other[0]) > 3
    assert other[0] == pytest.approx(one[0], rel=2e-5)
    assert [set(scores) for scores in one[1]] == [set(scores) for scores in other[1]]
    for scores, others in zip(one[1], other[1], strict=True):
        assert others == pytest.approx(scores, rel=1e-4, abs=1e-6)
    for key in {"state_dict", "current_model_state"} & set(one[2]):  # averaged weights, and those in training
        for name, tensor in one[2][key].items():
            torch.testing.assert_close(other[2][key][name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_and_three_processes_train_as_one_and_write_one_run(tmp_path):
    # 45 records in batches of 8: the last batch has 5, so shares are uneven; words are more so.
    alone = train(1, tmp_path / "1", *EXACT)
    for world in (2, 3):
        assert_same(alone, train(world, tmp_path / str(world), *EXACT))
        assert (tmp_path / str(world) / "captions.json").read_bytes() == (tmp_path / "1" / "captions.json").read_bytes()
        names = [{re.sub(r"tfevents.*", "", n) for n in _files(tmp_path / str(w))} for w in (1, world)]
        assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("data.train_limit=41", "task.freeze_encoder_epochs=1"),  # one record is left for the last batch
        ("trainer.accumulate_grad_batches=2", "task.doubly_stochastic=1"),
        ("model=vit_classify", "task=classification", "data.train_limit=41"),
    ],
    ids=["a process without a record, a frozen encoder", "accumulation, a second term", "classification"],
)
def test_other_ways_of_training_are_the_same_too(more, tmp_path):
    options = [o for o in EXACT if "decoder" not in o] if "model=vit_classify" in more else list(EXACT)
    assert_same(train(1, tmp_path / "1", *options, *more), train(3, tmp_path / "3", *options, *more))


@pytest.mark.slow
def test_self_critical_training_is_the_same_too(tmp_path):
    train(1, tmp_path / "start", *EXACT, "task.lr=0.01")
    # Drawn at a temperature near 0 captions are the likeliest ones, so that processes draw the same as one does.
    more = ("task=self_critical", f"init={tmp_path / 'start'}", "task.temperature=1e-6", "task.cross_entropy=0.5")
    assert_same(train(1, tmp_path / "1", *EXACT, *more), train(2, tmp_path / "2", *EXACT, *more))


def processes_of(folder: str) -> list[int]:
    """Workers, not launchers, whose command line names a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(folder.encode() in word for word in words) and b"torch.distributed.run" not in words:
            found.append(int(entry.name))
    return sorted(found)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 200
    while not file.exists():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_run_of_two_processes_goes_on_bit_for_bit(tmp_path):
    options = [o for o in EXACT if "dropout" not in o and "epochs" not in o]
    options += ["model.decoder.dropout=0.2", "save_every=1", "trainer.max_epochs=4"]
    _, _, whole = train(2, tmp_path / "whole", *options)
    last = tmp_path / "parts" / "checkpoints" / "last.ckpt"
    killed = start(2, *options, f"out={tmp_path / 'parts'}")
    wait_for(last, killed)
    for worker in processes_of(str(tmp_path / "parts")):
        os.kill(worker, signal.SIGKILL)
    killed.communicate(timeout=100)
    assert torch.load(last, weights_only=True)["global_step"] < 24
    _, _, parts = train(2, tmp_path / "parts", *options, "resume=true")
    assert whole["global_step"] == parts["global_step"] == 24
    for key in ("state_dict", "current_model_state"):  # averaged weights, and those in training
        for name, tensor in whole[key].items():
            assert torch.equal(tensor, parts[key][name]), (key, name)
    states = [state for state, _ in whole["random_by_process"]]
    assert len(states) == 2
    assert not torch.equal(*states)  # each process drops out at its own places
    assert all(torch.equal(a, b) for a, (b, _) in zip(states, parts["random_by_process"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_process_ends_training_in_time_and_with_a_message(how, tmp_path):
    out = tmp_path / "run"
    run_ = start(2, *EXACT, "trainer.max_epochs=1000", f"out={out}", "save_every=1", "timeout=0.1")
    wait_for(out / "checkpoints" / "last.ckpt", run_)
    workers = processes_of(str(out))
    assert len(workers) == 2
    os.kill(workers[1], how)
    begin = time.monotonic()
    _, told = run_.communicate(timeout=120)
    assert run_.returncode != 0
    assert time.monotonic() - begin < 100
    assert "lost another one, which ended or hangs" in told or "SIGKILL" in told
    assert processes_of(str(out)) == []


@pytest.mark.slow
def test_sharded_weights_train_as_one_process_does(tmp_path):
    common = (*EXACT, "ema=null", "data.train_limit=40")
    alone = train(1, tmp_path / "1", *common)
    assert_same(alone, train(2, tmp_path / "2", *common, "trainer.strategy=fsdp"))
    assert json.loads((tmp_path / "2" / "scores.json").read_text())["scores"]


@pytest.mark.slow
def test_devices_and_slurm_start_processes_that_find_each_other(tmp_path):
    done = start(1, *EXACT, "trainer.max_epochs=1", "trainer.devices=2", f"out={tmp_path / 'devices'}")
    told = done.communicate(timeout=400)
    assert done.returncode == 0, told
    assert told[0].count("trained in") == 1
    # What srun sets for two tasks on one node.
    slurm = {"SLURM_JOB_ID": str(free_port()), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    slurm |= {
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NAME": "train",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [
        start(1, *EXACT, "trainer.max_epochs=1", f"out={tmp_path / 'slurm'}", **slurm, SLURM_PROCID=r, SLURM_LOCALID=r)
        for r in "01"
    ]
    outputs = [task.communicate(timeout=400) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert "trained in" in outputs[0][0]
    assert "trained in" not in outputs[1][0]
    names = [json.loads((tmp_path / n / "scores.json").read_text())["scores"] for n in ("devices", "slurm")]
    assert names[0] == names[1]
