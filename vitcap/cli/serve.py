"""`vitcap serve`: a local web page that captions photos, and the same for programs in JSON."""

from __future__ import annotations

import argparse
import ipaddress
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitcap.cli.options import UsageError, add_loading, load, model_name, number

_NEEDED = {"starlette": "starlette", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap serve`."""
    add_loading(parser)
    parser.add_argument("--model2", metavar="FILE", help="a second model, shown beside the first")
    loopback = "address to listen on (default: %(default)s, which only this computer reaches)"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=loopback)
    port = "port to listen on, 0 for any that is free (default: %(default)s)"
    parser.add_argument("--port", type=number(int, 0, 65535), default=8000, metavar="N", help=port)
    name = "a further name that browsers reach the server by, such as that of a proxy; may be given several times"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=name)
    size = "largest picture file in MB (default: %(default)s)"
    parser.add_argument("--max-upload", type=number(float, 0, 1024, above=True), default=20, metavar="MB", help=size)
    seconds = "seconds that an upload, and a place in the queue, may take (default: %(default)s)"
    parser.add_argument("--timeout", type=number(float, 0, 3600, above=True), default=30, metavar="S", help=seconds)
    queue = "requests that may wait for the model; others are told to come back (default: %(default)s)"
    parser.add_argument("--queue", type=number(int, 1, 10_000), default=32, metavar="N", help=queue)
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(arguments: argparse.Namespace) -> int:
    """Serve a web page that captions photos and shows where the model looked, and a JSON endpoint for programs.

    Prints the address of the page; Ctrl-C ends it.
    """
    if missing := [package for module, package in _NEEDED.items() if find_spec(module) is None]:
        raise UsageError(f'vitcap serve needs {", ".join(missing)}: pip install "vitcap[demo]"')
    from vitcap.serve.app import make_app
    from vitcap.serve.limits import Limits
    from vitcap.serve.server import listen, url_of
    from vitcap.serve.server import run as run_server
    from vitcap.serve.work import served

    limits = Limits(
        max_upload=max(1, round(arguments.max_upload * 2**20)), timeout=arguments.timeout, queue=arguments.queue
    )
    listener = listen(arguments.host, arguments.port)  # first: a port that is taken should not wait for the models
    try:
        doors = [load(arguments)]
        given = [model_name(arguments)]
        if arguments.model2 is not None:
            doors.append(load(argparse.Namespace(model=arguments.model2, device=arguments.device)))
            given.append(arguments.model2)
        models = [served(name, door) for name, door in zip(short_names(given), doors, strict=True)]
        loopback = _is_loopback(listener.getsockname()[0])
        if not loopback:
            told = "anyone who reaches this address can use the server: there is no authentication and no encryption"
            print(f"vitcap: warning: --host {arguments.host}: {told}", file=sys.stderr)
        names = [*arguments.allow_host, *([] if loopback else [arguments.host])]
        app = make_app(models, limits, only_loopback=loopback, names=names)
        url = url_of(listener)
        print(url, flush=True)
        if arguments.open:
            threading.Thread(target=_open, args=(url,), daemon=True).start()
        run_server(app, listener, limits)
    finally:
        listener.close()
    return 0


def short_names(given: list[str]) -> list[str]:
    """What the models are called: their file's name, or their folder's where all files of runs are called alike; never
    a whole path, and never two alike."""
    names = [path.parent.name if path.name == "model.safetensors" else path.name for path in map(Path, given)]
    names = [name or "model" for name in names]
    return [name if name not in names[:place] else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _open(url: str) -> Any:
    import webbrowser

    webbrowser.open(url)
