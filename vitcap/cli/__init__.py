"""The command line: `vitcap caption` writes captions, `vitcap overlay` draws where the model looked, `vitcap viewer`
makes a page of it, `vitcap verify` checks it, `vitcap translate` writes translations, `vitcap classify` names classes,
`vitcap check` finds what is wrong with data, `vitcap models` lists the packaged models, `vitcap serve` is a web page of
all that, `vitcap report` makes the page about a run again, `vitcap export` writes a model for other programs.

One module a command: `add_options(parser)` declares its options, `run(arguments)` carries it out and returns the exit
status. Exit status: 0 all well, 1 some pictures or sentences failed or the run broke off, 2 the command line or a file
that it names is wrong. Errors take one line on stderr; --debug adds the traceback.
"""

from __future__ import annotations

import argparse
import codecs
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vitcap.cli import caption, check, classify, export, models, overlay, report, serve, translate, verify, viewer

COMMANDS = {
    "caption": caption,
    "overlay": overlay,
    "viewer": viewer,
    "translate": translate,
    "classify": classify,
    "verify": verify,
    "check": check,
    "models": models,
    "export": export,
    "serve": serve,
    "report": report,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"vitcap: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import vitcap

        print(f"vitcap {vitcap.__version__}")
        sys.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. argv: the arguments after the program's name."""
    summary = "Captions of pictures, and where the model looked for every word; translations; classes of pictures."
    parser = _Parser(prog="vitcap", description=summary)
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, module in COMMANDS.items():
        summary = (module.run.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        command.set_defaults(run=module.run)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        module.add_options(command)
    arguments = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):  # file names and captions are text of any language, whatever the locale
        codecs.register_error("vitcap", _as_bytes)
        sys.stdout.reconfigure(encoding="utf-8", errors="vitcap")
    try:
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("vitcap: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if arguments.debug:
            raise
        print(f"vitcap: error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError | OSError) else 1


def _as_bytes(error: UnicodeError) -> tuple[str | bytes, int]:
    """The bytes of a file name in no encoding as they are; other halves of UTF-16 pairs, which are none, escaped."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def one_line(error: BaseException) -> str:
    """What went wrong and what to do, on one line."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split()) or type(error).__name__
    if "out of memory" in text.lower():
        return f"out of memory; use a smaller --batch-size, or --device cpu ({text})"
    if isinstance(error, ValueError | OSError):
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"
