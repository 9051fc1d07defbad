"""Bars on a terminal and lines in a log."""

from __future__ import annotations

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from conftest import TINY
from rich.console import Console

from vitcap import run
from vitcap.progress import bar
from vitcap.tasks import bars, callbacks
from vitcap.tasks.bars import Bars
from vitcap.tasks.callbacks import Progress


class Screen(io.StringIO):
    """Standard output or error of somebody who watches."""

    def isatty(self) -> bool:
        return True


def seen(screen: io.StringIO) -> str:
    """What was written, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())


@pytest.fixture
def console():
    return Console(force_terminal=True, file=io.StringIO(), width=120, color_system=None)


def test_a_log_has_lines(capsys):
    shown = bar("features")
    for done in range(1, 6):
        shown(done, 5)
    told = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in told] == ["features: 1/5", "features: 5/5"]


def test_a_terminal_has_a_bar_and_a_line_that_stays(console, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shown = bar("features", console=console)
    for done in (0, 10, 20, 40):
        shown(done, 40)
        now[0] += 1.0
        if done == 20:
            assert Bars._shown is not None
            Bars._shown._bars.refresh()
    text = seen(console.file)
    assert "20/40" in text
    assert "10/s  0:02 gone, 0:02 left" in text
    assert text.splitlines()[-1] == "features: 40/40, 13/s, 0:03"
    assert Bars._shown is None
    assert console.file.getvalue().count("\x1b[?25l") == console.file.getvalue().count("\x1b[?25h") == 1  # the cursor


def test_a_bar_that_broke_off_goes_with_the_next_and_at_the_end(console):
    other = Console(force_terminal=True, file=io.StringIO(), width=80, color_system=None)
    bar("one", console=console)(1, 10)
    first = Bars._shown
    bar("two", console=other)(1, 10)
    assert first is not Bars._shown
    assert "\x1b[?25h" in console.file.getvalue()  # the cursor is there again
    Bars.close()
    assert Bars._shown is None
    assert "\x1b[?25h" in other.file.getvalue()


def test_what_is_printed_and_logged_meanwhile_stays_above_the_bar(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    handler = logging.StreamHandler(screen)
    logging.getLogger().addHandler(handler)
    try:
        shown = Bars(Console(file=screen, force_terminal=True, width=80, color_system=None))
        shown.add("epoch", 3)
        print("printed [bold] :smile:")
        logging.getLogger("vitcap.test").warning("logged")
        assert sys.stdout is not screen
        shown.stop()
        assert handler.stream is screen
    finally:
        logging.getLogger().removeHandler(handler)
        Bars.close()
    assert sys.stdout is screen
    lines = [line.strip() for line in re.split(r"[\r\n]+", seen(screen))]
    assert "printed [bold] :smile:" in lines
    assert "logged" in lines


def test_standard_output_that_goes_to_a_file_stays_in_it(monkeypatch):
    """A bar on standard error takes nothing of what is printed for a pipe."""
    out, error = io.StringIO(), Screen()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    shown = bar("scoring")
    shown(1, 3)
    print("a line for the pipe")
    shown(3, 3)
    assert out.getvalue() == "a line for the pipe\n"
    assert "a line" not in error.getvalue()
    assert "scoring: 3/3" in seen(error)


def test_training_on_a_terminal(config, tmp_path, monkeypatch, console):
    made = []

    def progress(**options):
        made.append(Progress(console=console, **options))
        return made[-1]

    monkeypatch.setattr(run, "Progress", progress)
    shown = []
    show = Bars.show
    monkeypatch.setattr(Bars, "show", lambda self, *rest: (shown.append(rest[1:]), show(self, *rest)))
    run.train(config(*TINY, "trainer.max_epochs=2", f"out={tmp_path}", "trainer.accelerator=cpu"))
    assert [done for done, _ in shown] == [1, 2, 3, 4, 5, 1, 1, 2, 3, 4, 5, 1]  # five batches, then one of validation
    lines = [line for line in seen(console.file).splitlines() if "scored in" in line]
    assert len(lines) == 2
    for number, line in enumerate(lines):
        assert re.search(rf"epoch {number + 1}/2 scored in \d+ s: val loss \d\.\d{{3}}  BLEU-4 .*CIDEr-D", line)
    assert Bars._shown is None
    assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex("\x1b[?25l")


def test_a_bar_tells_loss_speed_and_time_left(console, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = Progress(console=console)
    trainer = SimpleNamespace(
        global_step=0, current_epoch=0, max_epochs=3, num_training_batches=10, estimated_stepping_batches=30,
        callback_metrics={"train/loss_step": 2.5},
    )  # fmt: skip
    progress.on_train_start(trainer, None)
    for batch in range(4):
        now[0] += 2.0
        trainer.global_step += 1
        progress.on_train_batch_end(trainer, None, None, [None] * 8, batch)
    progress._bars._bars.refresh()
    progress.on_exception(trainer, None, KeyboardInterrupt())
    text = seen(console.file)
    assert "epoch 1/3" in text
    assert "4/10 loss 2.500  4/s  0:08 gone, 0:52 left" in text
    assert Bars._shown is None


def test_training_in_a_log_has_the_lines_of_a_log(config, tmp_path, capsys):
    run.train(config(*TINY, "trainer.max_epochs=1", f"out={tmp_path}", "trainer.accelerator=cpu"))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert re.search(r"^epoch 1/1 scored in \d+ s: val loss ", told, re.M)


def test_clock():
    assert [bars.clock(seconds) for seconds in (0.4, 65, 3599.6, 90061)] == ["0:00", "1:05", "1:00:00", "25:01:01"]
