"""Java programs as child processes: which Java there is, and a run that always ends.

A program runs in a process group of its own. The group is killed at the time limit and whenever the block ends, and the
process is always reaped. What it says on its error stream goes to a file, so that no pipe fills up, and its last words
are part of the error message. The locale is English and UTF-8, whatever the surroundings say: with a decimal comma
numbers could not be read, and in the locale "C" Java does not find a jar in a folder whose name is not ASCII.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LOCALE = [
    *("-Duser.language=en", "-Duser.country=US", "-Duser.language.format=en", "-Duser.country.format=US"),
    *("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"),
]
"""Options of every program; they win over JAVA_TOOL_OPTIONS and JDK_JAVA_OPTIONS."""


class JavaUnavailable(RuntimeError):
    """A Java program cannot start here; the message says what is missing and how to get it."""


class JavaFailed(RuntimeError):
    """A Java program started but gave no usable answer; the message holds its last words."""


def find_java(java: str | Path | None = None) -> tuple[str, str, int]:
    """The command of Java, its version as it states it ("17.0.15", "1.8.0_292") and the main part of that (17, 8).

    java: the command; default: the one of JAVA_HOME, else `java` on the path. Raises JavaUnavailable if there is none
    or it does not answer.
    """
    home = os.environ.get("JAVA_HOME")
    wanted = [str(java)] if java else [str(Path(home) / "bin" / "java"), "java"] if home else ["java"]
    path = next(filter(None, map(shutil.which, wanted)), None)
    if path is None:
        raise JavaUnavailable(
            f"no Java found (looked for {' and '.join(wanted)}); install a Java runtime, for example the Debian "
            "package default-jre-headless, or name the command with java=..."
        )
    try:
        done = subprocess.run([path, "-version"], capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaUnavailable(f"{path} -version: {error}") from None
    said = (done.stderr + done.stdout).decode("utf-8", "replace")
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    if done.returncode or found is None:
        raise JavaUnavailable(f"{path} -version gave no version (exit code {done.returncode}): {_last_words(said)}")
    return path, found[1], int(found[2])


@contextlib.contextmanager
def running(name: str, command: list[str], *, limit: float, talk: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A program for the length of a block; leaving the block ends it and all that it started.

    name: for messages. limit: seconds. talk: its input and output are pipes to the block; else it has no input, and its
    output is kept with its errors. An OSError, ValueError, LookupError or TypeError in the block (a broken pipe, an
    answer that is none) becomes JavaFailed.
    """
    if not limit > 0:
        raise ValueError(f"limit={limit}: a number of seconds above 0 is wanted")
    surroundings = os.environ | {"LC_ALL": "C.UTF-8"}
    if "_JAVA_OPTIONS" in surroundings:  # stronger than the command line
        surroundings["_JAVA_OPTIONS"] = " ".join([surroundings["_JAVA_OPTIONS"], *LOCALE])
    late = threading.Event()
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talk else errors,
                stderr=errors,
                env=surroundings,
                start_new_session=True,
            )
        except OSError as error:
            raise JavaUnavailable(f"{name} could not be started: {error}") from None

        def end() -> None:
            late.set()
            _kill(process)

        clock = threading.Timer(limit, end)
        clock.daemon = True
        clock.start()
        try:
            yield process
        except (OSError, ValueError, LookupError, TypeError) as error:
            if not late.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)  # a program that is ending says why
            errors.seek(0)
            said = _last_words(errors.read().decode("utf-8", "replace"))
            if late.is_set():
                why = f"no answer within {limit:g} s; raise its time limit (limit=...) or score fewer captions"
            else:
                code = "" if process.returncode is None else f"; it ended with exit code {process.returncode}"
                why = f"{error}{code}"
            raise JavaFailed(f"{name}: {why}" + (f"; its last words: {said}" if said else "")) from None
        finally:
            clock.cancel()
            _kill(process)
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()


def _last_words(said: str) -> str:
    """The first error and the last line of what a program said, without what Java says of its options."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("Picked up ")]
    first = [line for line in lines if re.search("error|exception", line, re.IGNORECASE)][:1]
    return " / ".join(dict.fromkeys([*first, *lines[-1:]]))[:600]


def say(pipe: IO[bytes] | None, line: str) -> None:
    """Send one line to a program."""
    assert pipe is not None
    pipe.write(line.encode("utf-8", "replace") + b"\n")
    pipe.flush()


def hear(pipe: IO[bytes] | None, wanted: str) -> str:
    """One line of a program's output. wanted: what it should be, for the error if the program has ended."""
    assert pipe is not None
    line = pipe.readline()
    if not line:
        raise ValueError(f"it ended before it gave {wanted}")
    return line.decode("utf-8", "replace").strip()
