"""Who may ask: programs of this computer and the server's own page, and no page of another site. What browsers may do
with the answers."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """The application behind two checks, and with headers of security on all its answers.

    Host must name this computer, or one of `names`: a page of another site whose name is made to lead here (DNS
    rebinding) is told by it. Where `only_loopback`, the loopback addresses are meant, else any address (which no name
    can be rebound to) and the name of this computer. Origin, which browsers send with what pages post, must be the
    server itself.
    """

    def __init__(self, app: ASGIApp, *, only_loopback: bool = True, names: Iterable[str] = ()) -> None:
        self.app, self.only_loopback = app, only_loopback
        own = () if only_loopback else (socket.gethostname(), f"{socket.gethostname()}.local")
        self.names = {name.lower().rstrip(".") for name in ("localhost", *own, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        problem = self.problem(scope["method"], headers)
        if problem is None:
            await self.app(scope, receive, send_safely)
            return
        status, text = problem
        body = json.dumps({"error": text}).encode()
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send_safely({"type": "http.response.start", "status": status, "headers": fields})
        await send_safely({"type": "http.response.body", "body": body})

    def problem(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Status and sentence for a request that is not for this server, or comes from a page of another site."""
        host = headers.get("host", "")
        if not self._is_own(host):
            return 421, f"Host {host[:80]!r}: is no name of this server; vitcap serve --allow-host NAME adds one"
        if method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and _netloc(origin) != host.lower():
                return 403, f"Origin {origin[:80]!r}: pages of other sites may not use this server"
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return 403, "pages of other sites may not use this server"
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.only_loopback


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
