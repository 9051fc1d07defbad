"""What one picture file is, and a process of its own that looks at files: one that it dies of kills nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from vitcap.data.images import load_image, origin

_READY = "ready"


@dataclass(frozen=True)
class Inspection:
    """What a file turned out to be. error: why it is no picture, "" if it decodes; the rest is then known.

    content: hash of its bytes. pixels: hash of the upright RGB picture as models get it. width, height: upright, in the
    file. mode: Pillow's, as stored. format: as its bytes say. turned: whether an EXIF orientation turned it.
    """

    error: str = ""
    content: str = ""
    pixels: str = ""
    width: int = 0
    height: int = 0
    mode: str = ""
    format: str = ""
    turned: bool = False


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Decode a file by the loader that training uses, and hash it. Whatever it is, nothing is raised."""
    path = Path(path)
    try:
        picture = load_image(path)
        was = origin(path, picture.size)
        with Image.open(path) as head, path.open("rb") as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
            pixels = hashlib.blake2b(f"{picture.size}".encode() + picture.tobytes(), digest_size=16).hexdigest()
            return Inspection("", content, pixels, *was.size, head.mode, head.format or "", was.turn is not None)
    except Exception as error:  # ImageError, and whatever a file that changes meanwhile may cause
        return Inspection(str(error).removeprefix(f"{path}: ") or type(error).__name__)


def serve() -> None:
    """Body of an `Inspector`'s process: JSON lines, a path each on standard input, an inspection each on the output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # a library that prints must not answer
    print(_READY, file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(inspect(json.loads(line)))), file=answers, flush=True)


class Inspector:
    """`inspect` in another process, which is started when needed, and anew when a file has ended it.

    Decoders are C libraries: a file can crash them, and no exception tells. Raises OSError where no process starts.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, path: str | os.PathLike[str]) -> Inspection:
        end = 0
        for _ in range(2):  # once more, as the process may have been ended for another reason
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(os.fspath(path)) + "\n")
                process.stdin.flush()
                if answer := process.stdout.readline():
                    return Inspection(**json.loads(answer))
            except (OSError, ValueError):  # it is gone, or was cut off while it answered
                pass
            self.close()
            end = process.returncode
        why = signal.Signals(-end).name if end < 0 else f"exit status {end}"
        return Inspection(f"it ends the process that decodes it ({why}); remove it")

    def _start(self) -> subprocess.Popen[str]:
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # decoders write their warnings there
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            encoding="ascii",
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            self.close()
            raise OSError(f"no process that decodes pictures can be started (exit status {process.returncode})")
        return process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
