"""The benchmark script at toy sizes: its frame, its files and what it shows about memory; no time is asserted."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import benchmark  # noqa: E402
from bench import attention, frame, layers, memory, metrics  # noqa: E402

QUICK = frame.Options(threads=1, quick=True, rounds=3, min_time=0.0)
MIB = 2**20


def filled(mib: int):
    """A call that needs `mib` MiB at its worst moment and returns a quarter of that."""
    return partial(_fill, mib)


def _fill(mib: int) -> torch.Tensor:
    torch.ones(mib * MIB // 4)
    return torch.ones(mib * MIB // 16)


def broken():
    raise RuntimeError("no such layer")


def ended():
    import os

    os._exit(9)


def test_peak_memory_is_that_of_the_worst_moment():
    peaks = {mib: memory.peak(partial(filled, mib), partial(filled, 1)) / MIB for mib in (16, 128)}
    assert peaks == {mib: pytest.approx(mib, abs=3) for mib in peaks}


def without_mark(connection) -> None:
    memory._reset_mark = lambda: False
    memory._child(partial(filled, 128), partial(filled, 1), 1, connection)


def test_peak_memory_without_the_kernels_mark():
    """The fallback, taken where /proc/self/clear_refs cannot be written."""
    processes = multiprocessing.get_context("forkserver")
    ours, theirs = processes.Pipe(duplex=False)
    child = processes.Process(target=without_mark, args=(theirs,))
    child.start()
    theirs.close()
    assert ours.recv() / MIB == pytest.approx(128, abs=3)
    child.join()


@pytest.mark.parametrize(("setup", "why"), [(broken, "RuntimeError: no such layer"), (ended, "ended with code 9")])
def test_memory_that_cannot_be_measured_is_one_error(setup, why):
    with pytest.raises(ValueError, match=f"peak memory could not be measured: .*{why}"):
        memory.peak(setup, partial(filled, 1))


def test_rounds_are_interleaved_and_rotate():
    order: list[str] = []
    calls = [partial(order.append, name) for name in "abc"]
    seconds = frame.interleaved(calls, QUICK)
    assert "".join(order) == "abcbcacab"
    assert [len(s) for s in seconds] == [3, 3, 3]
    assert all(s > 0 for each in seconds for s in each)


def test_a_budget_ends_the_rounds_after_the_third():
    seconds = frame.interleaved([lambda: None], frame.Options(rounds=50, min_time=0.0, budget=0.0))
    assert len(seconds[0]) == 3


def test_ratio_is_to_the_fastest_peer_round_by_round(monkeypatch):
    monkeypatch.setattr(
        frame, "interleaved", lambda calls, options: [[4.0, 8.0, 4.0], [2.0, 6.0, 2.0], [1.0, 1.0, 2.0]]
    )
    names = (("slow", True), ("fast", True), ("ours", False))
    candidates = [frame.Candidate(name, lambda: lambda: None, peer=peer) for name, peer in names]
    slow, fast, ours = frame.compare({}, candidates, QUICK)
    assert {m.best_peer for m in (slow, fast, ours)} == {"fast"}
    assert (slow.ratio, fast.ratio, ours.ratio) == (0.5, 1.0, 2.0)
    assert (ours.median, ours.quartiles) == (1.0, (1.0, 1.5))


def test_nothing_is_timed_when_outputs_disagree(monkeypatch):
    monkeypatch.setattr(frame, "interleaved", lambda *_: pytest.fail("timed"))
    x = torch.linspace(1, 2, 5)
    candidates = [frame.Candidate(f"x + {d}", lambda d=d: lambda: x + d) for d in (0.0, 0.1)]
    with pytest.raises(ValueError, match=r"x \+ 0.1 and x \+ 0.0 differ by 0.05 at {'N': 5}, more than .* 0.01"):
        list(frame.compare({"N": 5}, candidates, QUICK, tolerance=0.01))


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        (torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0]), 0.25),  # tensors: relative to the largest entry
        (torch.zeros(2), torch.zeros(3), np.inf),
        ((3.0, np.array([1.0, 2.0])), (3.0, [1.0, 2.5]), 0.5),
        (["a", "b"], ["a", "c"], np.inf),
        (["a"], ["a"], 0.0),
        ([1.0], [1.0, 2.0], np.inf),
    ],
)
def test_difference(expected, found, apart):
    assert frame.difference(expected, found) == pytest.approx(apart)


def test_difference_does_not_overlook_what_is_no_number():
    candidates = [frame.Candidate(str(v), lambda v=v: lambda: torch.tensor([1.0, v])) for v in (1.0, float("nan"))]
    with pytest.raises(ValueError, match=r"nan and 1\.0 differ by nan"):
        list(frame.compare({}, candidates, QUICK, tolerance=0.1))


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_what_other_processes_do_meanwhile_is_told_apart_from_our_own_work():
    """The same work in this process and in another one, over the same counters (of 10 ms)."""
    before = frame._others()
    spin(0.3)
    own = frame._others()[0] - before[0]
    code = "import time\nwhile time.process_time() < 0.6: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        before = frame._others()
        other.stdout.readline()  # it has worked, and is not yet waited for: not counted among our children
        foreign = frame._others()[0] - before[0]
        other.stdin.close()
    assert foreign > 0.4
    assert own >= -0.1  # more than nothing only if the machine is busy


def run(name: str, out: Path, **sizes) -> dict:
    result = benchmark.run_group(name, QUICK, out, command=f"python scripts/benchmark.py {name} --quick", **sizes)
    assert json.loads((out / f"{name}.json").read_text()) == result
    return result


def test_attention_writes_its_table_and_file(tmp_path, capsys):
    result = run("attention", tmp_path, lengths=(32, 128))
    assert set(result) == {
        "group", "title", "command", "method", "device", "device_name", "threads", "dtype", "quick", "versions", "rows",
        "statements",
    }  # fmt: skip
    assert (result["group"], result["device"], result["threads"], result["dtype"]) == ("attention", "cpu", 1, "float32")
    assert result["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert result["versions"]["vitcap"]
    assert [(row["case"]["N"], row["candidate"], row["peer"]) for row in result["rows"]] == [
        (n, name, name == "specification") for n in (32, 128) for name in ("specification", "fused")
    ]
    for row in result["rows"]:
        low, high = row["quartiles_s"]
        assert 0 < low <= row["median_s"] <= high
        assert (row["rounds"], row["best_peer"]) == (3, "specification")
        assert row["ratio_to_best_peer"] > 0
        assert isinstance(row["peak_bytes"], int)
        assert row["other_cores"] is None or row["other_cores"] >= 0
    assert all(0 <= row["difference"] <= 1e-5 for row in result["rows"] if row["candidate"] == "fused")
    (linear,) = result["statements"]
    assert "peak at N = 128" in linear["text"]
    assert linear["holds"] == (linear["value"] <= 1.3)
    table = capsys.readouterr().out
    assert table.count("specification") == table.count("fused  ") == 2
    assert "median ms" in table


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_attention_equals_the_specification_with_gradients(backward, dtype):
    setup = partial(attention.setup, n=80, backward=backward, device="cpu", dtype=dtype)
    expected, found = setup(fused=False)(), setup(fused=True)()
    assert len(expected) == (4 if backward else 1)
    assert frame.difference(expected, found) <= attention.TOLERANCE[dtype]


def test_memory_of_fused_attention_is_linear_and_of_the_specification_quadratic():
    """Four times the length: the specification's memory grows by its N x N matrices, the fused path's by its output."""
    setup = partial(attention.setup, backward=False, device="cpu", dtype="float32")
    warm = {fused: partial(setup, fused=fused, n=64) for fused in (False, True)}
    short, long = 768, 3072
    growth = {}
    for fused in (False, True):
        peaks = [memory.peak(partial(setup, fused=fused, n=n), warm[fused]) for n in (short, long)]
        growth[fused] = (peaks[1] - peaks[0]) / MIB
    matrix = attention.HEADS * 4 * (long**2 - short**2) / MIB  # 135 MiB
    output = attention.HEADS * attention.HEAD_WIDTH * 4 * (long - short) / MIB  # 2.25 MiB
    assert growth[False] >= 1.5 * matrix
    assert growth[True] <= 3 * output + 3


def test_the_specification_is_left_out_where_it_would_not_fit(monkeypatch):
    monkeypatch.setattr(attention, "SPECIFICATION_BYTES", 4 * attention.HEADS * 64 * 64 * 4)
    monkeypatch.setattr(frame, "peak", lambda *_, **__: MIB)
    results = list(attention.measure(QUICK, lengths=(64, 96)))
    rows = [(r.case["N"], r.candidate) for r in results if isinstance(r, frame.Measurement)]
    assert rows == [(64, "specification"), (64, "fused"), (96, "fused")]
    assert "left out at N = 96" in str(results[3])


@pytest.mark.parametrize(("peak", "holds"), [(4 * 1.2, True), (4 * 1.4, False)])
def test_the_statement_about_linear_memory_can_fail(peak, holds):
    (statement,) = attention.linear("forward", {4096: 100, 16384: int(100 * peak)})
    assert statement.holds is holds
    assert statement.value == pytest.approx(peak / 4)


def test_recurrence_is_a_chain_as_long_as_the_sequence_and_the_others_are_not():
    """Vaswani et al. 2017, table 1, column "sequential operations", counted."""
    steps = {kind: [layers.chain(kind, n) for n in (16, 32, 64)] for kind in layers.TABLE_1}
    recurrent = steps.pop("recurrent (LSTM)")
    assert recurrent[1] - recurrent[0] == (recurrent[2] - recurrent[1]) / 2 >= 16
    assert all(each[0] == each[1] == each[2] <= 12 for each in steps.values())


def test_the_chain_of_a_known_computation():
    with torch.no_grad(), layers.Chain() as found:
        x = torch.ones(4)
        a, b = x * 2, x + 1
        c = (a + b).view(2, 2).t()  # three steps: x, a and b at once, their sum; views are free
        d = c @ c
    assert [found.steps[id(t)] for t in (x, a, b, c, d)] == [1, 2, 2, 3, 4]


def test_layers_writes_its_file(tmp_path):
    result = run("layers", tmp_path, lengths=(16,), chains=(4, 8))
    assert [row["candidate"] for row in result["rows"]] == list(layers.TABLE_1)
    assert result["rows"][-1]["difference"] <= 1e-5
    assert [row["difference"] for row in result["rows"][:-1]] == [None] * 3
    assert [statement["text"].partition(":")[0] for statement in result["statements"]] == list(layers.TABLE_1)


def test_metrics_equals_its_peer_and_writes_its_file(tmp_path, monkeypatch):
    pytest.importorskip("pycocoevalcap")
    monkeypatch.delenv("VITCAP_DATA", raising=False)
    monkeypatch.setattr(metrics.shutil, "which", lambda _: None)
    result = run("metrics", tmp_path, images=12)
    assert [row["case"]["metric"] for row in result["rows"]] == [m for m in list(metrics.TARGETS)[:3] for _ in "ab"]
    assert {row["candidate"] for row in result["rows"]} == {"vitcap", "pycocoevalcap"}
    assert all(row["difference"] <= 1e-9 for row in result["rows"] if row["candidate"] == "vitcap")
    assert "needs Java" in result["statements"][-1]["text"]


def test_metrics_reads_coco(data_root):
    captions = metrics.coco(data_root / "coco_caption_eval", 50)
    assert str(captions).startswith("COCO val2017, 50 x 4")
    assert len(captions.tokenized().references) == 50


def test_metrics_without_the_peer_says_what_to_install(monkeypatch):
    monkeypatch.setattr(metrics, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pycocoevalcap is not installed \(pip install -e '.\[bench\]'\)"):
        list(metrics.measure(QUICK, images=5))


def test_generated_captions_are_the_same_every_time_and_have_something_to_tokenise():
    captions = metrics.generated(30)
    assert captions == metrics.generated(30)
    assert {len(r) for r in captions.references} == {5}
    assert captions.tokenized() != captions


@pytest.mark.parametrize("group", [attention, layers])
def test_figures(group, tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    names = ("specification", "fused") if group is attention else layers.TABLE_1
    rows = [
        {"case": {"N": n}, "candidate": name, "median_s": n * 1e-5, "peak_bytes": n * 1000}
        for name in names
        for n in (64, 128, 256)
    ]
    group.draw(rows, tmp_path / "a" / "figure.png")
    with Image.open(tmp_path / "a" / "figure.png") as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 20)) > 50


def test_without_matplotlib_the_figures_are_left_out_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(frame, "peak", lambda *_, **__: MIB)
    run("attention", tmp_path, lengths=(16,))
    assert "no figure: matplotlib" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["attention.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["atention"], "no group 'atention': the groups are attention, layers, metrics"),
        (["layers", "--threads", "0"], "--threads must be at least 1, got 0"),
    ],
)
def test_bad_options_are_one_line(arguments, message, capsys, tmp_path):
    assert benchmark.main([*arguments, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"benchmark.py: {message}\n"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_costs_no_measurement(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(benchmark, "run_group", lambda *_, **__: pytest.fail("measured"))
    assert benchmark.main(["attention", "--out", str(tmp_path / "file")]) == 1
    assert "File exists" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there_is_one_line(capsys):
    assert benchmark.main(["attention", "--device", "cuda"]) == 1
    assert "torch finds no CUDA device" in capsys.readouterr().err


def test_help_lists_the_groups():
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), "--help"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in out for name in benchmark.GROUPS)
    assert {p.stem for p in (SCRIPTS / "bench").glob("*.py")} >= set(benchmark.GROUPS)
