"""The report of a run: `report.html`, a page by itself, and `report.md` with its pictures in the folder `report`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcap.files import whole
from vitcap.report.contents import contents
from vitcap.report.examples import examples, rank
from vitcap.report.folder import read_run
from vitcap.report.markdown import write_markdown
from vitcap.report.page import page
from vitcap.types import count_parameters, require_number

log = logging.getLogger(__name__)


def write_report(folder: str | Path, *, door: Any = None, data: Any = None, count: int = 6, trouble: str = "") -> Path:
    """Write the report of a finished run into its folder; returns the path of report.html.

    door, data: the model and the data of the run, for photos, references and what was looked at; None: without them.
    count: of the best examples, and as many worst ones. trouble: what the reader has to know of the report itself.
    Raises FileNotFoundError or ValueError, naming the file, for a folder that holds no scores.
    """
    require_number("report_examples", count, 0, whole=True)
    run = read_run(folder)
    with _as_written(run.path):
        best, worst, ranked = rank(run, count) if run.each and count else ([], [], "")
    shown = [examples(run, best, "best", door=door, data=data), examples(run, worst, "worst", door=door, data=data)]
    parameters = "" if door is None else _parameters(door.model)
    with _as_written(run.path):
        document = contents(run, best=shown[0], worst=shown[1], ranked=ranked, parameters=parameters, trouble=trouble)
    pictures = run.path / "report"
    for old in [*pictures.glob("*.jpg"), *pictures.glob("*.png"), *pictures.glob("*.svg")]:
        old.unlink()
    write_markdown(document, run.path / "report.md", pictures)
    with whole(run.path / "report.html") as part:
        part.write_text(page(document), encoding="utf-8")
    return run.path / "report.html"


def report_after(folder: Path, **options: Any) -> Path | None:
    """The same after training, whose results it must not cost: what goes wrong is told in a line, and gives None."""
    try:
        return write_report(folder, **options)
    except Exception as error:
        told = " ".join(str(error).split()) or type(error).__name__
        log.warning(
            "no report (%s: %s); all results are in %s, `vitcap report` tries again", type(error).__name__, told, folder
        )
        return None


@contextmanager
def _as_written(folder: Path) -> Iterator[None]:
    """What goes wrong inside, over files that hold something else than evaluation writes, as one ValueError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"{folder}: scores.json or a file beside it is not as evaluation writes it ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); score the run again with scripts/evaluate.py"
        ) from error


def _parameters(model: Any) -> str:
    encoder = count_parameters(list(model.encoder.parameters()))
    whole_ = count_parameters(list(model.parameters()))
    return f"{whole_ / 1e6:.2f} million, {encoder / 1e6:.2f} million of them the encoder's"
