"""Many picture files inspected at a time, with the results kept so that the next time is quick."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import IO

import PIL

from vitcap.data.inspection import Inspection, Inspector
from vitcap.files import whole

log = logging.getLogger(__name__)

_CHUNK = 16  # files that a process is asked for at a time
_HEAD = {"inspections": 1, "pillow": PIL.__version__}  # what another version found may not hold for this one
_Stamp = tuple[int, int]


def results_file(root: str | os.PathLike[str]) -> Path | None:
    """Where the results for a data folder are kept: below $VITCAP_CACHE, $XDG_CACHE_HOME/vitcap or ~/.cache/vitcap.

    Not in the data, which others may own. None where there is no home folder.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    root = Path(root).resolve()
    name = re.sub(r"[^A-Za-z0-9_-]", "_", root.name)[:40] or "root"
    key = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    return Path(os.environ.get("VITCAP_CACHE") or Path(cache, "vitcap")) / "check" / f"{name}-{key}.jsonl"


class Results:
    """Inspections of earlier checks in a file of JSON lines, valid while size and time of change of a picture last.

    Each is written as soon as it is there, so that an interrupted check goes on. What could not be read is never kept:
    a right that is given, or a package that is installed, changes no file.
    file: None keeps nothing. fresh: forget what is there. Raises ValueError for a file that holds something else.
    """

    def __init__(self, file: str | os.PathLike[str] | None, *, fresh: bool = False) -> None:
        self.file = None if file is None else Path(file)
        self._known: dict[str, tuple[_Stamp, dict[str, object]]] = {}
        self._out: IO[str] | None = None
        lines = self._load(fresh)
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if lines is None or lines > 2 * len(self._known) + 100:  # new, of another version, or mostly outdated
                kept = ([path, *stamp, facts] for path, (stamp, facts) in self._known.items())
                with whole(self.file) as part:
                    part.write_text("".join(json.dumps(row) + "\n" for row in (_HEAD, *kept)), encoding="ascii")
            self._out = self.file.open("a", encoding="ascii")
        except OSError as error:
            log.warning("%s: results of the data check are not kept (%s)", self.file, error.strerror)

    def _load(self, fresh: bool) -> int | None:
        """Lines read; None where the file is to be begun anew."""
        if self.file is None or not self.file.is_file():
            return None
        lines = 0
        with self.file.open(encoding="ascii", errors="replace") as file:
            head = file.readline()
            if head.strip() and not head.startswith('{"inspections"'):
                raise ValueError(f"{self.file}: holds something else than results of a data check; name another file")
            if fresh or head.strip() != json.dumps(_HEAD):
                return None
            for line in file:
                lines += 1
                try:
                    path, size, changed, facts = json.loads(line)
                    Inspection(**facts)
                except (ValueError, TypeError):  # cut off, or two checks wrote at a time
                    continue
                self._known[path] = ((size, changed), facts)
        return lines

    def get(self, path: Path, stamp: _Stamp | None) -> Inspection | None:
        """What is known of a file in this state."""
        known = self._known.get(os.path.abspath(path))
        return Inspection(**known[1]) if known and known[0] == stamp else None  # type: ignore[arg-type]

    def add(self, path: Path, stamp: _Stamp | None, found: Inspection) -> None:
        """Keep what was found."""
        if self._out is not None and stamp is not None and not found.error:
            try:
                print(json.dumps([os.path.abspath(path), *stamp, asdict(found)]), file=self._out, flush=True)
            except OSError as error:
                log.warning("%s: further results of the data check are not kept (%s)", self.file, error.strerror)
                self._out = None

    def close(self) -> None:
        """Close the file."""
        if self._out is not None:
            self._out.close()


def survey(
    paths: Iterable[Path],
    *,
    jobs: int | None = None,
    results: Results | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Path, Inspection]]:
    """(path, inspection) of every file, those that `results` knows first, the others in order as processes decode them.

    jobs: processes; as many as there are cores if left out. progress: called with the files done. Raises OSError where
    no process can be started.
    """
    results = results or Results(None)
    todo: list[tuple[Path, _Stamp | None]] = []
    done = 0
    for path in paths:
        if found := results.get(path, stamp := _stamp(path)):
            done += 1
            yield path, found
        else:
            todo.append((path, stamp))
    if progress is not None and done:
        progress(done)
    jobs = max(1, min(jobs or cores(), -(-len(todo) // _CHUNK)))
    own, inspectors = threading.local(), []

    def look(chunk: list[tuple[Path, _Stamp | None]]) -> list[Inspection]:
        if not hasattr(own, "inspector"):
            own.inspector = Inspector()
            inspectors.append(own.inspector)
        return [own.inspector(path) for path, _ in chunk]

    rest = iter(todo)
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting: deque[tuple[list[tuple[Path, _Stamp | None]], Future[list[Inspection]]]] = deque()
        while True:
            while len(waiting) < 4 * jobs and (chunk := list(islice(rest, _CHUNK))):
                waiting.append((chunk, pool.submit(look, chunk)))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            for (path, stamp), found in zip(chunk, future.result(), strict=True):
                results.add(path, stamp, found)
                done += 1
                yield path, found
            if progress is not None:
                progress(done)
    finally:
        pool.shutdown(cancel_futures=True)
        for inspector in inspectors:
            inspector.close()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stamp(path: Path) -> _Stamp | None:
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    return state.st_size, state.st_mtime_ns
