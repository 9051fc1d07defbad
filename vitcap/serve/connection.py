"""HTTP connections that cannot be held open for nothing: what uvicorn's own leave to a proxy in front of it."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitcap.serve.limits import Limits


def connection_class(limits: Limits) -> type[H11Protocol]:
    """A protocol of uvicorn with time limits, and one on the number of connections.

    A connection is cut that is not in the middle of a request and sends none, whole up to the end of its head, within
    `timeout`; and one whose other side does not read the answer for as long. What is sent in place of a request that
    is none, or over the number of connections, is JSON like all other errors.
    """

    class Connection(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()
            if len(self.connections) > limits.connections:
                self._say(503, "too many connections are open; try again in a few seconds", "Retry-After: 5\r\n")

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head, self._stuck):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._serving and self._head is not None:
                self._head.cancel()
                self._head = None

        def on_response_complete(self) -> None:
            self._await_head()
            super().on_response_complete()
            if self._serving and self._head is not None:  # the next request was there already
                self._head.cancel()
                self._head = None

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stuck is None:
                self._stuck = self.loop.call_later(limits.timeout, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._say(400, "this is no HTTP request that can be read")
            else:  # an answer is on its way already
                self.transport.close()

        @property
        def _serving(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _await_head(self) -> None:
            if self._head is None:
                self._head = self.loop.call_later(limits.timeout, self.transport.abort)

        def _say(self, status: int, message: str, headers: str = "") -> None:
            body = json.dumps({"error": message})
            head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(f"{head}{headers}Connection: close\r\n\r\n{body}".encode())
            self.transport.close()

    return Connection
