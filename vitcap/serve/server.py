"""The application on a port."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys

import uvicorn
from starlette.types import ASGIApp

from vitcap.serve.connection import connection_class
from vitcap.serve.limits import Limits

_BIND = {
    errno.EADDRINUSE: "another program uses it; choose another, or 0 for any that is free",
    errno.EACCES: "not allowed; choose one above 1023, or 0 for any that is free",
    errno.EADDRNOTAVAIL: "this computer has no such address; leave --host out to be reached from this computer only",
}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free. Raises ValueError in one line where it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ValueError(f"--host {host}: there is no such address; 127.0.0.1 is this computer") from None
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two programs share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        option = f"--host {host}" if error.errno == errno.EADDRNOTAVAIL else f"--port {port}"
        raise ValueError(f"{option}: {_BIND.get(error.errno or 0, error.strerror)}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The address for a browser on this computer."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """uvicorn with the application; it runs on sockets that `listen` gives, until it is told to end."""
    for name in ("python_multipart", "multipart"):  # they warn of what clients send
        logging.getLogger(name).setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        http=connection_class(limits),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32 * 1024,
    )
    return uvicorn.Server(config)


def run(app: ASGIApp, listener: socket.socket, limits: Limits) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    try:
        make_server(app, limits).run(sockets=[listener])
    except KeyboardInterrupt:
        print("vitcap: stopped", file=sys.stderr)
