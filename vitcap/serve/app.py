"""The web application: its page, and the same for programs in JSON."""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from vitcap import __version__
from vitcap.serve.asked import OPTIONS, Served, read_options
from vitcap.serve.desk import Desk
from vitcap.serve.guard import Guard
from vitcap.serve.limits import MOST_BEAMS, MOST_N_BEST, Limits, Refused, Room
from vitcap.serve.upload import read_upload
from vitcap.serve.work import work
from vitcap.viz.viewer import compose

log = logging.getLogger(__name__)


def make_app(
    models: Sequence[Served],
    limits: Limits | None = None,
    *,
    only_loopback: bool = True,
    names: Iterable[str] = (),
) -> ASGIApp:
    """The application that serves one or two models. only_loopback, names: see `Guard`."""
    limits = limits or Limits()
    desk, room = Desk(work, limits), Room(limits.held)
    page, policy = make_page(models, limits)

    async def ask(request: Request, view: bool) -> Response:
        with room.share() as share:
            try:
                picture, options = await read_upload(request, limits, share)
                asked = read_options(picture, options, models, view=view)
                body, waited = await _unless_gone(request, desk.do(asked))
            except ClientDisconnect:
                return Response(status_code=499)  # which nobody reads
            timing = {"Server-Timing": f"wait;dur={1000 * waited:.0f}"}
            return Response(body, media_type="application/json", headers=timing)

    async def caption(request: Request) -> Response:
        return await ask(request, view=False)

    async def view(request: Request) -> Response:
        return await ask(request, view=True)

    async def index(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    async def listed(request: Request) -> Response:
        return JSONResponse({"models": [model.facts for model in models], "options": sorted(OPTIONS)})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__, "waiting": desk.waiting})

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        desk.start()
        try:
            yield
        finally:
            desk.stop()

    routes = [
        Route("/", index),
        Route("/api/caption", caption, methods=["POST"]),
        Route("/api/view", view, methods=["POST"]),
        Route("/api/models", listed),
        Route("/healthz", health),
    ]
    handlers: dict[Any, Any] = {Refused: _refused, HTTPException: _http_error, Exception: _failure}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=running)
    app.router.redirect_slashes = False
    return Guard(app, only_loopback=only_loopback, names=names)


def make_page(models: Sequence[Served], limits: Limits) -> tuple[str, str]:
    """The page, which is the viewer's with a form before it, and the content security policy of its answer."""
    folder = files("vitcap.serve")
    start, style, script = (folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in _PAGE)
    values = {
        "models": " and ".join(html.escape(model.name) for model in models),
        "max_upload": str(limits.max_upload),
        "megabytes": f"{limits.max_upload / 2**20:g}",
        "most_beams": str(MOST_BEAMS),
        "most_n_best": str(MOST_N_BEST),
    }
    for name, value in values.items():
        start = start.replace(f"{{{{{name}}}}}", value)
    more = " blob:; connect-src 'self'; form-action 'none'; base-uri 'none'"
    page, policy = compose("vitcap", [], start=start, style=style, script=script, policy=more)
    return page, f"{policy}; frame-ancestors 'none'"


_PAGE = ("html", "css", "js")


async def _unless_gone(request: Request, work: Any) -> Any:
    """What a coroutine gives, unless the client leaves before: ClientDisconnect, and the coroutine is cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


async def _refused(request: Request, error: Refused) -> Response:
    return JSONResponse({"error": error.message}, error.status, error.headers)


_SENTENCES = {
    404: "there is no such page; there are /, /api/caption, /api/models and /healthz",
    405: "this address takes another method; /api/caption wants POST",
}


async def _http_error(request: Request, error: HTTPException) -> Response:
    text = _SENTENCES.get(error.status_code, str(error.detail))
    return JSONResponse({"error": text}, error.status_code, error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "the server failed on this request; its log says why"}, 500)
