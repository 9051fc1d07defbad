"""The server: a real one on a free port, asked by programs, by rude clients, and by a browser."""
# ruff: noqa: F811

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image
from test_explain import captioner, picture
from test_viewer import Page, chrome  # noqa: F401

from vitcap import cli
from vitcap.cli import serve
from vitcap.data.images import Encoded, ImageError, load_image, origin
from vitcap.decoding import Beam, Greedy, Sample
from vitcap.explain import explain
from vitcap.serve import app as serve_app
from vitcap.serve.app import make_app
from vitcap.serve.guard import Guard
from vitcap.serve.limits import Limits, Refused, Room
from vitcap.serve.server import listen, make_server, url_of
from vitcap.serve.upload import Form, plain_name
from vitcap.serve.work import served, work
from vitcap.viz.viewer import viewer_entry

DOCS = Path(__file__).resolve().parents[1] / "docs" / "serve.md"


def png(seed=0, width=31, height=20):
    file = io.BytesIO()
    picture(width, height, seed).save(file, "PNG")
    return file.getvalue()


def form(content=None, name="dog.png", boundary="xYx", **fields):
    """(body, content type) of a multipart form."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    ]
    if content is not None:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        parts.append(f"{head}Content-Type: image/png\r\n\r\n".encode() + content + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


class Running:
    """A server in a thread of this process."""

    def __init__(self, models, limits, **options):
        self.limits = limits
        self.listener = listen("127.0.0.1", 0)
        self.url = url_of(self.listener)
        self.port = self.listener.getsockname()[1]
        self.server = make_server(make_app(models, limits, **options), limits)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    @property
    def connections(self):
        return len(self.server.server_state.connections)

    def ask(self, path="/api/caption", body=None, kind="image/png", headers=None, verb=None, **options):
        """(status, headers, JSON or text) of one request; options go into the query."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        fields = ({"Content-Type": kind} if body is not None and kind else {}) | (headers or {})
        target = path + (f"?{urlencode(options)}" if options else "")
        connection.request(verb or ("GET" if body is None else "POST"), target, body, fields)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        found = json.loads(text) if answer.headers["content-type"] == "application/json" else text
        return answer.status, answer.headers, found

    def upload(self, content, name="dog.png", path="/api/caption", **fields):
        return self.ask(path, *form(content, name, **fields))

    def raw(self, data=b""):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.sendall(data)
        return connection

    def close(self):
        self.server.should_exit = True
        self.thread.join(20)
        self.listener.close()
        assert not self.thread.is_alive()


@contextmanager
def running(models, **options):
    names = ("only_loopback", "names")
    known = {name: options.pop(name) for name in names if name in options}
    server = Running(models, Limits(**options), **known)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def models():
    return [served("one", captioner("transformer")), served("two", captioner("rnn"))]


@pytest.fixture(scope="module")
def doors():
    """The same models again, for what is wanted of the answers: a model works in one thread at a time."""
    return [captioner("transformer"), captioner("rnn")]


@pytest.fixture(scope="module")
def server(models):
    with running(models, max_upload=2**20) as one:
        yield one


def read_all(connection):
    """What comes until the other side closes."""
    got = b""
    try:
        while chunk := connection.recv(65536):
            got += chunk
    except ConnectionResetError:
        pass
    connection.close()
    return got


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not get there"
        time.sleep(0.01)


# What the answers say.


@pytest.mark.parametrize("way", ["form", "bytes", "octets"])
def test_the_caption_is_the_model_s_own(server, models, way, doors):
    content = png(3)
    if way == "form":
        status, headers, found = server.upload(content, n_best=3, beams=4, length_penalty=0.2)
    else:
        kind = {"bytes": "image/png", "octets": "application/octet-stream"}[way]
        status, headers, found = server.ask(body=content, kind=kind, n_best=3, beams=4, length_penalty=0.2)
    assert status == 200
    assert re.fullmatch(r"wait;dur=\d+", headers["server-timing"])
    search = Beam(beams=4, n_best=3, length_penalty=0.2, max_length=9, no_repeat_ngram=2)
    wanted = doors[0].caption(picture(seed=3), search=search)
    ranked = (wanted, *wanted.alternatives)
    assert [one["caption"] for one in found["n_best"]] == [one.text for one in ranked]
    for got, one in zip(found["n_best"], ranked, strict=True):
        assert got["joint_probability"] == pytest.approx(np.exp(sum(one.log_probs)), rel=1e-4)
        assert got["probability"] == pytest.approx(np.exp(np.mean(one.log_probs)), rel=1e-4)
        assert got["score"] == pytest.approx(one.score, rel=1e-4)
        assert [word["text"] for word in got["words"]] == [word.text for word in one.words]
        chances = [np.exp(sum(one.log_probs[word.start : word.stop])) for word in one.words]
        assert [word["probability"] for word in got["words"]] == pytest.approx(chances, rel=1e-4)
    assert found["caption"] == wanted.text
    assert found["finished"] == wanted.finished
    assert found["picture"] == {"name": "dog.png" if way == "form" else "picture", "width": 31, "height": 20}
    assert found["model"] == models[0].facts
    assert found["decoding"]["search"] == "beam"
    assert "attention" not in found
    assert 0 < found["seconds"] < 10


def test_another_model_and_no_options(server, doors):
    status, _, found = server.ask(body=png(1), model="two")
    assert (status, found["caption"]) == (200, doors[1].caption(picture(seed=1)).text)
    assert found["model"]["name"] == "two"
    assert found["decoding"]["search"] == "greedy"
    assert len(found["n_best"]) == 1


@pytest.mark.parametrize("method", [None, "grad-cam", "relevance"])
def test_maps_are_those_of_explain_and_say_where_they_lie(server, method, doors):
    options = {} if method is None else {"method": method}
    _, _, found = server.ask(body=png(5, 64, 40), attention="true", **options)
    record = explain(doors[0], picture(64, 40, seed=5), methods=(method or "attention",))
    assert found["attention"]["method"] == (method or "attention")
    for name, wanted in (("grid", record.grid), ("box", record.grid_window), ("seen", record.window)):
        assert found["attention"][name] == pytest.approx(list(wanted))
    for index, got in enumerate(found["attention"]["maps"]):
        wanted = record.map(index)
        np.testing.assert_allclose(got, wanted, atol=2e-5 * abs(wanted).max() + 1e-7)
    assert len(found["attention"]["maps"]) == len(record.words) > 0


def test_draws_can_be_asked_for_again(server, doors):
    search = {"sample": "true", "temperature": 3, "n_best": 4, "model": "one"}
    _, _, found = server.ask(body=png(2), **search)
    assert found["decoding"]["search"] == "sample"
    _, _, again = server.ask(body=png(2), **search, seed=found["seed"])
    assert again["n_best"] == found["n_best"]
    texts = {server.ask(body=png(2), **search, seed=seed)[2]["caption"] for seed in range(4)}
    assert len(texts) > 1
    wanted = doors[0].caption(
        picture(seed=2), search=Sample(temperature=3, samples=4, max_length=9, no_repeat_ngram=2), seed=found["seed"]
    )
    assert found["caption"] == wanted.text


def test_a_given_caption_is_read(server, doors):
    _, _, found = server.ask(body=png(2), caption="a green zebra", attention="true")
    record = explain(doors[0], picture(seed=2), caption="a green zebra")
    assert found["caption"] == "a green zebra"
    assert found["unknown_words"] == ["zebra"]
    assert [w["log_prob"] for w in found["words"]] == pytest.approx([w.log_prob for w in record.words], rel=1e-4)
    np.testing.assert_allclose(found["attention"]["maps"][1], record.map(1), atol=1e-5)


def test_the_page_gets_what_the_viewer_draws(server, models, doors):
    status, _, found = server.upload(png(5), name="x.png", path="/api/view", n_best=2)
    assert status == 200
    search = Beam(beams=3, n_best=2, max_length=9, no_repeat_ngram=2)
    own = [door.caption(picture(seed=5), search=search) for door in doors]
    file = Encoded("x.png", png(5))
    records = [explain(door, file, caption=one, methods="all") for door, one in zip(doors, own, strict=True)]
    wanted = viewer_entry(records, None, ["one", "two"], {})
    assert {key: found["photo"][key] for key in ("name", "image", "thumb", "boxes")} == {
        key: wanted[key] for key in ("name", "image", "thumb", "boxes")
    }
    for got, record, model, expected in zip(found["photo"]["records"], records, models, wanted["records"], strict=True):
        assert got["name"] == model.name
        assert [method["name"] for method in got["methods"]] == list(record.maps)
        assert {key: got[key] for key in ("text", "grid", "window", "cells", "shown")} == {
            key: json.loads(json.dumps(expected[key])) for key in ("text", "grid", "window", "cells", "shown")
        }
        assert [word["text"] for word in got["words"]] == [word["text"] for word in expected["words"]]
        assert [word["p"] for word in got["words"]] == pytest.approx(
            [word["p"] for word in expected["words"]], rel=1e-4
        )
        for one, other in zip(got["methods"], expected["methods"], strict=True):
            codes = [np.frombuffer(base64.b64decode(method["codes"]), np.uint8).astype(int) for method in (one, other)]
            assert abs(codes[0] - codes[1]).max() <= 1
        assert got["methods"][0]["about"].startswith("Cross-attention weights")
        assert dict(map(tuple, got["facts"]))["words"] == "generated"
    for answer, one in zip(found["answers"], own, strict=True):
        assert [other["caption"] for other in answer["n_best"]] == [one.text, *(o.text for o in one.alternatives)]


def test_models_and_health_are_told(server, models):
    assert server.ask("/api/models")[2]["models"] == [model.facts for model in models]
    assert models[0].facts["grid"] == [2, 3]
    status, _, found = server.ask("/healthz")
    assert (status, found["status"], found["waiting"]) == (200, "ok", 0)


# What is wrong.


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"beams": "21"}, "beams='21': a whole number of at least 1 and at most 20"),
        ({"beams": "many"}, "beams='many'"),
        ({"beams": "9" * 900}, "beams='999"),
        ({"n_best": "0"}, "n_best='0'"),
        ({"n_best": "4", "beams": "2"}, "n_best 4 needs beams 4"),
        ({"max_length": "99"}, "max_length=99: one writes at most 24 tokens"),
        ({"max_length": "101"}, "max_length='101'"),
        ({"min_length": "30"}, "min_length=30 must be between"),
        ({"temperature": "2"}, "temperature is for random captions: add sample=true"),
        ({"temperature": "nan", "sample": "true"}, "temperature='nan'"),
        ({"temperature": "1e-9", "sample": "true"}, "must be at least 1e-6"),
        ({"beams": "3", "sample": "true"}, "beams does not apply to sample search"),
        ({"sample": "yes"}, "sample='yes': true or false"),
        ({"model": "three"}, "there is no such model here; one, two"),
        ({"method": "relevance"}, "add attention=true"),
        ({"method": "magic", "attention": "true"}, "there is no such method; it has attention"),
        ({"caption": "xyz"}, "none of its words"),
        ({"caption": " "}, "caption=empty"),
        ({"caption": "a b", "beams": "2"}, "beams: is for captions that the model writes"),
        ({"caption": "a " * 40}, "reads at most 24"),
        ({"caption": "a" * 1001}, "longer than 1000 characters"),
        ({"bems": "2"}, "bems: no such option; there are beams"),
        ({f"o{i}": "" for i in range(40)}, "more than 32 options"),
    ],
)
def test_bad_options_are_one_sentence(server, options, wrong):
    for status, headers, found in (server.ask(body=png(), **options), server.upload(png(), **options)):
        assert status == 400
        assert wrong in found["error"] or "more than 32 fields" in found["error"]
        assert headers["content-type"] == "application/json"
        assert "\n" not in found["error"]
        assert "--" not in found["error"]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "an empty file"),
        (b"%PDF-1.7 ...", "a PDF document, not a picture"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git-lfs pointer"),
        (b"<html>sorry</html>", "an HTML page"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (png()[:60], "damaged or cut PNG"),
        (b"%!PS-Adobe-3.0\n", "PostScript"),
        (b"\x89PNG\r\n\x1a\nnonsense", "a damaged PNG"),
        (b"\0" * 50, "not a picture"),
    ],
)
def test_what_is_no_picture_is_named(server, content, wrong):
    for status, _, found in (server.ask(body=content), server.upload(content, "x.png")):
        assert (status, wrong in found["error"]) == (422, True), found
        assert "0x" not in found["error"]
        assert "/" not in found["error"].replace("multipart/form-data", "").replace("image/jpeg", "")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_too_many_pixels_are_refused_before_they_are_decoded(server):
    bomb = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < 50_000
    status, _, found = server.ask(body=bomb.getvalue())
    assert status == 422
    assert "12000x12000 pixels is over the limit" in found["error"]


@pytest.mark.parametrize(
    ("body", "kind", "status", "wrong"),
    [
        (b"x", "text/plain", 415, "content type 'text/plain'"),
        (b"x", "application/x-www-form-urlencoded", 415, "multipart/form-data"),
        (b"x", None, 415, "content type 'none'"),
        (b"x", "multipart/form-data", 400, "without a boundary"),
        (b"x", f"multipart/form-data; boundary={'b' * 999}", 400, "without a boundary"),
        (b"nonsense", "multipart/form-data; boundary=xYx", 400, "no multipart form"),
        (b"", "multipart/form-data; boundary=xYx", 400, "end is missing"),
        (form(png())[0][:-9], "multipart/form-data; boundary=xYx", 400, "end is missing"),
        (form(png())[0][:40], "multipart/form-data; boundary=xYx", 400, "end is missing"),
        (form(beams="2")[0], "multipart/form-data; boundary=xYx", 400, "the form has no file"),
        (form(png())[0].replace(b'name="image"; ', b""), "multipart/form-data; boundary=xYx", 400, "has no name"),
        (form(png())[0][:-9] + form(png())[0], "multipart/form-data; boundary=xYx", 400, "two files"),
        (form(b"x" * 9000)[0].replace(b"xxx\r\n", b"xxx\r\n--xYx\r\nX-Y: " + b"z" * 5000), None, 400, "header"),
        (form(beams="2", caption="a" * 5000)[0], "multipart/form-data; boundary=xYx", 400, "caption: longer than"),
    ],
)
def test_bodies_that_are_no_upload(server, body, kind, status, wrong):
    kind = "multipart/form-data; boundary=xYx" if kind is None and b"X-Y" in body else kind
    got, _, found = server.ask(body=body, kind=kind)
    assert got == status
    assert wrong in found["error"]


def test_an_option_counts_once(server):
    body, kind = form(png(), beams="2")
    assert "beams: given twice" in server.ask("/api/caption?beams=3", body, kind)[2]["error"]
    assert "beams: given twice" in server.ask("/api/caption?beams=3&beams=3", png())[2]["error"]
    status, _, found = server.ask(body=png(), headers={"Content-Encoding": "gzip"})
    assert (status, "Content-Encoding" in found["error"]) == (415, True)


def test_other_addresses_and_methods(server):
    for path in ("/api/nothing", "/favicon.ico", "/page.css", "/app.py", "/api/caption/", "/docs", "//etc/passwd"):
        status, _, found = server.ask(path)
        assert (status, "there is no such page" in found["error"]) == (404, True)
    assert server.ask("/api/caption")[0] == 405
    assert server.ask("/", b"x")[0] == 405
    assert server.ask("/api/caption", verb="DELETE")[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../../etc/passwd",
        "/etc/passwd",
    ],
)
def test_no_path_leads_to_a_file(server, path):
    got = read_all(server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()))
    assert got.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in got
    text = b"GET /api/models?model=../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b"root:" not in read_all(server.raw(text))


def test_names_of_files_are_only_names(server):
    for given, wanted in (
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\dog.png", "dog.png"),
        ("<script>alert(1)</script>.png", "script>.png"),
        ("a\x00b\x1b[31m.png", "a\ufffdb\ufffd[31m.png"),
        ("..", "picture"),
        ("", "picture"),
        ("x" * 300, "x" * 100),
        ("日本 犬.png", "日本 犬.png"),
    ):
        assert plain_name(given) == wanted
    status, _, found = server.upload(png(), name="../../etc/пёс.png")
    assert (status, found["picture"]["name"]) == (200, "пёс.png")


_opened: list[str] | None = None


def _audit(event, arguments):
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


def test_nothing_is_read_from_or_written_to_the_disk(models):
    global _opened
    sys.addaudithook(_audit)
    content = np.random.default_rng(0).integers(0, 256, (1000, 1200, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(content).save(file, "PNG")
    assert len(file.getvalue()) > 3 * 2**20  # more than form parsers keep in memory
    with running(models) as server:
        assert server.upload(file.getvalue(), path="/api/view")[0] == 200  # what is imported late, is now
        _opened = []
        try:
            assert server.upload(file.getvalue(), name="/etc/passwd", path="/api/view")[0] == 200
            assert server.upload(file.getvalue(), attention="true")[0] == 200
            assert server.ask("/")[0] == 200
            assert _opened == []
        finally:
            _opened = None


# Limits.


def test_an_upload_over_the_limit_is_refused_before_it_comes(server):
    connection = server.raw(POST + b"Content-Length: 9000000\r\n\r\n")
    answer = b""
    while b'"}' not in answer:
        answer += connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"larger than the limit of 1 MB" in answer
    connection.close()


@pytest.mark.parametrize("stated", [None, "10"])
def test_an_upload_over_the_limit_is_refused_while_it_comes(server, stated):
    """In pieces without a length; and beyond the length that is stated, which is no request then."""
    kind = "Transfer-Encoding: chunked" if stated is None else f"Content-Length: {stated}"
    connection = server.raw(POST + f"{kind}\r\n\r\n".encode())
    piece = (b"10000\r\n" if stated is None else b"") + b"\0" * 65536 + b"\r\n"
    sent = 0
    connection.settimeout(0.02)
    answer = b""
    while not answer and sent < 10 * 2**20:
        connection.settimeout(5)
        try:
            connection.sendall(piece)
        except (ConnectionResetError, BrokenPipeError):
            break
        sent += len(piece)
        connection.settimeout(0.02)
        try:
            answer = connection.recv(65536)
        except (TimeoutError, ConnectionResetError):
            continue
    connection.close()
    assert sent < 4 * 2**20
    if stated is None:
        assert answer.startswith(b"HTTP/1.1 413 ")
    else:
        assert not answer or answer.startswith((b"HTTP/1.1 422 ", b"HTTP/1.1 400 "))
    assert server.ask("/healthz")[0] == 200


def test_a_picture_of_just_the_limit_is_taken(models):
    content = png()
    with running(models, max_upload=len(content)) as server:
        assert server.ask(body=content)[0] == server.upload(content, beams="2")[0] == 200
        assert server.ask(body=content + b"\0")[0] == 413
        status, _, found = server.upload(content + b"\0")
        assert (status, "larger than the limit" in found["error"]) == (413, True)


@pytest.fixture(scope="module")
def hasty(models):
    with running(models, timeout=0.4, connections=12) as one:
        yield one


def test_a_body_that_trickles_is_cut(hasty):
    connection, began = hasty.raw(POST + b"Content-Length: 5000\r\n\r\n"), time.monotonic()
    stopped = threading.Event()

    def trickle():
        while not stopped.wait(0.05):
            try:
                connection.send(b"x")
            except OSError:
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    answer = read_all(connection)
    stopped.set()
    thread.join()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body took longer than 0.4 seconds" in answer
    assert 0.3 < time.monotonic() - began < 3
    until(lambda: hasty.connections == 0)


@pytest.mark.parametrize("start", [b"", GET, GET + b"\r\n"])
def test_connections_that_send_no_whole_request_are_cut(hasty, start):
    """A head that trickles; also after an answer, on a connection that is kept."""
    connection, began = hasty.raw(start), time.monotonic()
    if start.endswith(b"\r\n\r\n"):
        while b"</html>" not in connection.recv(2**20):
            pass
    connection.settimeout(0.05)
    while time.monotonic() - began < 5:
        try:
            connection.send(b"X: y\r\n" if start else b"")
            if not connection.recv(9):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    assert 0.3 < time.monotonic() - began < 3
    until(lambda: hasty.connections == 0)


def test_a_reader_that_does_not_read_is_cut(hasty):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", hasty.port))
    connection.setblocking(False)
    request = (GET + b"\r\n") * 300  # 15 MB to be read
    connection.send(request)
    until(lambda: hasty.connections == 1)
    until(lambda: hasty.connections == 0, 5)
    connection.close()


def test_the_number_of_connections_is_limited(hasty):
    until(lambda: hasty.connections == 0)
    held = [hasty.raw() for _ in range(12)]
    until(lambda: hasty.connections == 12)
    answer = read_all(hasty.raw(GET + b"\r\n"))
    assert not answer or (answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in answer)
    for connection in held:
        connection.close()
    until(lambda: hasty.connections == 0)
    assert hasty.ask("/healthz")[0] == 200


def test_what_is_no_http_is_one_answer(server):
    for data in (
        b"\x16\x03\x01\x02\x00\x01",
        GET + b"Host: b\r\n\r\n",
        b"GET /" + b"x" * 70_000,
    ):
        answer = read_all(server.raw(data + b"\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "this is no HTTP request that can be read"}


# Many at once.


def test_answers_belong_to_their_own_pictures(models, monkeypatch, doors):
    sizes, active = [], threading.Semaphore(1)

    def counted(asks):
        assert active.acquire(blocking=False), "two at the same time"
        sizes.append(len(asks))
        try:
            return work(asks)
        finally:
            active.release()

    monkeypatch.setattr(serve_app, "work", counted)
    rules = {"max_length": 9, "no_repeat_ngram": 2}
    kinds = (
        ({}, 0, Greedy(**rules)),
        ({"beams": 3}, 0, Beam(beams=3, **rules)),
        ({"model": "two"}, 1, Greedy(**rules)),
        ({"sample": "true", "temperature": 2, "seed": 5}, 0, Sample(temperature=2.0, **rules)),
    )
    wanted = {}
    for seed in range(40):
        _, door, search = kinds[seed % 4]
        wanted[seed] = doors[door].caption(picture(seed=seed), search=search, seed=5).text
    assert len(set(wanted.values())) > 12
    assert sum(doors[0].caption(picture(seed=seed)).text != text for seed, text in wanted.items()) > 20
    with running(models, queue=64, batch=8) as server, ThreadPoolExecutor(40) as pool:
        upload = lambda seed: server.upload(png(seed), f"{seed}.png", **kinds[seed % 4][0])  # noqa: E731
        answers = list(pool.map(upload, range(40)))
    for seed, (status, _, found) in enumerate(answers):
        assert (status, found["picture"]["name"], found["caption"]) == (200, f"{seed}.png", wanted[seed])
    assert sum(sizes) == 40
    assert 1 < max(sizes) <= 8


def test_one_bad_picture_among_many_spoils_none(models, doors):
    asked = []
    for content, beams in ((png(1), 2), (b"no picture", 2), (png(2), 2)):
        asked.append(serve_app.read_options(Encoded("x", content), {"beams": f"{beams}"}, models, view=False))
    assert len({ask.kind for ask in asked}) == 1
    first, bad, second = work(asked)
    assert (bad.status, "text, not a picture" in bad.message) == (422, True)
    search = Beam(beams=2, max_length=9, no_repeat_ngram=2)
    texts = [json.loads(one)["caption"] for one in (first, second)]
    assert texts == [doors[0].caption(picture(seed=seed), search=search).text for seed in (1, 2)]


def test_a_failure_is_the_one_request_s_and_is_logged(models, monkeypatch, caplog):
    real = models[0].door.write

    def write(batch, **options):
        if len(batch) > 1 or bool((batch.images == 255).all()):
            raise RuntimeError("boom /secret/path")
        return real(batch, **options)

    monkeypatch.setattr(models[0].door, "write", write)
    white = io.BytesIO()
    Image.new("RGB", (20, 20), "white").save(white, "PNG")
    with running(models) as server, ThreadPoolExecutor(3) as pool:
        contents = (png(1), white.getvalue(), png(2))
        answers = list(pool.map(lambda content: server.ask(body=content), contents))
    assert [status for status, _, _ in answers] == [200, 500, 200]
    assert answers[1][2] == {"error": "the server failed on this request; its log says why"}
    assert caplog.text.count("RuntimeError: boom") >= 1
    assert "boom" not in json.dumps(answers[1][2])


@contextmanager
def blocked(models, monkeypatch, **options):
    """A server whose model is at work until the event is set; a first request keeps it so."""
    going, free = threading.Event(), threading.Event()

    def slow(asks):
        going.set()
        assert free.wait(20)
        return work(asks)

    monkeypatch.setattr(serve_app, "work", slow)
    with running(models, **options) as server, ThreadPoolExecutor(8) as pool:
        first = pool.submit(server.ask, body=png(9), model="two")
        assert going.wait(10)
        try:
            yield server, pool
        finally:
            free.set()
            assert first.result()[0] == 200


def waiting(server):
    return server.ask("/healthz")[2]["waiting"]


def test_a_full_queue_says_when_to_come_back_and_the_rest_goes_on(models, monkeypatch):
    with blocked(models, monkeypatch, queue=2) as (server, pool):
        two = [pool.submit(server.ask, body=png(seed)) for seed in range(2)]
        until(lambda: waiting(server) == 2)  # and the loop is free while the model works
        status, headers, found = server.ask(body=png(3))
        assert (status, headers["retry-after"]) == (503, "5")
        assert "2 requests wait already" in found["error"]
        assert server.ask("/")[0] == 200
    assert [one.result()[0] for one in two] == [200, 200]


def test_who_waits_too_long_is_told_and_who_leaves_gives_up_the_place(models, monkeypatch):
    with blocked(models, monkeypatch, queue=2, timeout=0.6) as (server, _):
        content = png()
        gone = server.raw(POST + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
        until(lambda: waiting(server) == 1)
        gone.close()
        until(lambda: waiting(server) == 0, 0.5)
        status, headers, found = server.ask(body=content)
        assert (status, headers["retry-after"]) == (503, "5")
        assert "waited 0.6 seconds" in found["error"]
        assert waiting(server) == 0


def test_uploads_together_take_bounded_memory(models, monkeypatch):
    monkeypatch.setattr(Limits, "held", property(lambda self: 100_000))
    content = png() + b"\0" * 60_000
    with blocked(models, monkeypatch) as (server, pool):
        one = pool.submit(server.ask, body=content)
        until(lambda: waiting(server) == 1)
        status, headers, found = server.ask(body=content)
        assert (status, headers["retry-after"]) == (503, "5")
        assert "as many uploads as it has room for" in found["error"]
    assert one.result()[0] == 200
    room = Room(10)
    with room.share() as share:
        share.take(8)
        with pytest.raises(Refused, match="as many uploads"):
            share.take(3)
        assert room.left == 2
    assert room.left == 10


def test_a_form_in_small_pieces_is_the_same_form():
    body, _ = form(png(7), name="a.png", beams="2", caption="a \u00e9")
    for size in (1, 7, 64, len(body)):
        one = Form(b"xYx", Limits())
        for start in range(0, len(body), size):
            one.write(body[start : start + size])
        encoded, options = one.finish()
        assert (encoded.name, encoded.content, options) == ("a.png", png(7), {"beams": "2", "caption": "a \u00e9"})


# Who may ask.


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:8000", 200), ("LOCALHOST.:1", 200), ("127.9.9.9", 200)]
    + [
        (name, 421)
        for name in ("evil.example", "localhost.evil.example", "192.168.0.9", "", "a@localhost@b", "[::", "0.0.0.0")
    ],
)
def test_only_names_of_this_computer_lead_here(server, host, status):
    assert server.ask("/healthz", headers={"Host": host})[0] == status
    assert server.ask(body=png(), headers={"Host": host})[0] == status


def test_names_can_be_added_and_other_addresses_listen_to_any_address():
    def found(host, **options):
        return Guard(None, **options).problem("GET", {"host": host})

    assert found("captions.example.org", names=["Captions.example.org"]) is None
    assert found("192.168.0.9:8000", only_loopback=False) is None
    assert found(f"{socket.gethostname()}:8000", only_loopback=False) is None
    assert found("evil.example", only_loopback=False)[0] == 421


def test_pages_of_other_sites_may_not_post(server):
    own = f"127.0.0.1:{server.port}"
    for fields, status in (
        ({"Origin": f"http://{own}"}, 200),
        ({"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://127.0.0.1:{server.port + 1}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ):
        for path in ("/api/caption", "/api/view"):
            got, headers, found = server.ask(path, png(), headers=fields)
            assert got == status
            assert "access-control-allow-origin" not in headers
            assert status == 200 or "pages of other sites" in found["error"]


def test_all_answers_have_headers_of_security_and_the_page_loads_nothing(server):
    answers = [server.ask(path) for path in ("/", "/api/models", "/nothing")]
    answers += [server.ask(body=b"x"), server.ask("/", headers={"Host": "evil.example"})]
    for _, headers, _ in answers:
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "server" not in headers
    _, headers, page = answers[0]
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http" not in policy
    for tag in ("style", "script"):
        inline = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for word in ("http:", "https:", "//cdn", "<script src", "innerHTML", "eval(", "{{"):
        assert word not in page


def test_names_of_models_are_text_on_the_page(models):
    evil = served("</p><script>alert(1)</script>", models[0].door)
    page, _ = serve_app.make_page([evil], Limits())
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


# Pictures in memory.


def test_bytes_are_read_as_files_are(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(40, 20).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.new("LA", (9, 7), (80, 128)).save(tmp_path / "grey.png")
    for name in ("turned.jpg", "grey.png"):
        path = tmp_path / name
        one, two = load_image(path), load_image(Encoded(name, path.read_bytes()))
        assert one.size == two.size
        assert one.tobytes() == two.tobytes()
        assert origin(path, one.size) == origin(Encoded(name, path.read_bytes()), two.size)
    for content in (b"", b"GIF89a", b"\0" * 9, png()[:50]):
        (tmp_path / "bad").write_bytes(content)
        told = []
        for source in (tmp_path / "bad", Encoded("bad", content)):
            with pytest.raises(ImageError) as error:
                load_image(source)
            told.append(str(error.value).replace(str(tmp_path / "bad"), "bad").partition("(")[0])
        assert told[0] == told[1]


# The command.


def test_the_command_runs_until_ctrl_c_and_says_where(tmp_path):
    model = captioner().save(tmp_path / "tiny.safetensors")
    code = "import sys; from vitcap.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", "--model", str(model), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=DOCS.parents[1], start_new_session=True
    )
    try:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url), process.stderr.read()
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        until(lambda: _healthy(connection), 20)
        port = url.rpartition(":")[2]
        with pytest.raises(ValueError, match=rf"--port {port}: another program uses it; choose another, or 0"):
            listen("127.0.0.1", int(port))
        process.send_signal(signal.SIGINT)  # with a connection open
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "vitcap: stopped\n")


def _healthy(connection):
    connection.request("GET", "/healthz")
    return json.loads(connection.getresponse().read())["status"] == "ok"


def status_of(command):
    try:
        return cli.main(command)
    except SystemExit as error:
        return error.code


def test_mistakes_on_the_command_line_are_one_line(tmp_path, capsys, monkeypatch):
    taken = listen("127.0.0.1", 0)
    for options, wrong in (
        (["--port", str(taken.getsockname()[1])], "another program uses it"),
        (["--port", "70000"], "at most 65535"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: there is no such address"),
        (["--host", "203.0.113.7", "--port", "0"], "--host 203.0.113.7: this computer has no such address"),
        (["--max-upload", "0"], "a number above 0"),
        (["--model", str(tmp_path / "none"), "--port", "0"], "none"),
    ):
        assert status_of(["serve", *options]) == 2
        err = capsys.readouterr().err
        assert wrong in err
        assert err.count("\n") == 1
    taken.close()
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert cli.main(["serve"]) == 2
    told = 'vitcap serve needs starlette, uvicorn, python-multipart: pip install "vitcap[demo]"'
    assert told in capsys.readouterr().err


def test_another_host_is_warned_of(tmp_path, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("vitcap.serve.server.run", lambda app, listener, limits: seen.append((app, limits)))
    monkeypatch.setattr(serve, "load", lambda arguments: captioner())
    opened = []
    monkeypatch.setattr(serve, "_open", opened.append)
    assert cli.main(["serve", "--port", "0", "--open"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    until(lambda: opened == [out.strip()])
    assert seen[0][0].only_loopback
    assert seen[0][1] == Limits()
    assert (
        cli.main(["serve", "--port", "0", "--host", "0.0.0.0", "--max-upload", "0.5", "--allow-host", "c.example"]) == 0
    )
    out, err = capsys.readouterr()
    assert "warning: --host 0.0.0.0: anyone who reaches this address" in err
    assert out.startswith("http://127.0.0.1:")
    assert not seen[1][0].only_loopback
    assert "c.example" in seen[1][0].names
    assert seen[1][1].max_upload == 2**19


def test_models_are_named_shortly_and_apart():
    assert serve.short_names(["/home/me/runs/a/model.safetensors", "/x/b.ckpt"]) == ["a", "b.ckpt"]
    assert serve.short_names(["runs/a", "old/a"]) == ["a", "a (2)"]


# The page that documents it.


def test_the_examples_of_the_docs_run(models, tmp_path, doors):
    text = DOCS.read_text(encoding="utf-8")
    (tmp_path / "photo.jpg").write_bytes(png(1))
    with running(models) as server:
        blocks = re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL)
        programs = [code.replace("http://127.0.0.1:8000", server.url) for kind, code in blocks if kind == "python"]
        curls = [code.replace("http://127.0.0.1:8000", server.url) for kind, code in blocks if "curl" in code]
        assert len(programs) >= 1
        assert len(curls) >= 2
        start = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
        for code in programs:
            done = start([sys.executable, "-c", code])
            assert done.returncode == 0, done.stderr
            assert doors[0].caption(picture(seed=1)).text in done.stdout
        for code in curls if shutil.which("curl") else ():
            done = start(["bash", "-e", "-c", code])
            assert done.returncode == 0, done.stderr
            assert '"error"' not in done.stdout
            assert '"caption"' in done.stdout or '"models"' in done.stdout
    for name in (*serve_app.OPTIONS, "--max-upload", "--timeout", "--queue", "--allow-host", "--model2", "--open"):
        assert f"`{name}" in text, f"docs/serve.md does not say what {name} is"


# In a browser.


@pytest.fixture
def page(chrome, server):
    one = Page(chrome)
    one.size(1280)
    one.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    chrome.get_log("browser")
    chrome.get(server.url)
    return one


def choose(page, path, shown=0):
    page.one("#file").send_keys(str(path))
    page.wait(lambda: page.js("return document.body.dataset.ready") == str(shown))


def texts(page, selector):
    """At one moment: elements that are read one by one may be replaced meanwhile."""
    return page.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())", selector)


def quiet(page):
    return [entry["message"] for entry in page.chrome.get_log("browser") if entry["level"] != "INFO"]


def test_a_photo_is_captioned_and_its_words_show_where_the_model_looked(page, tmp_path, doors):
    from selenium.webdriver import ActionChains

    evil = tmp_path / "<img src=x onerror=document.title=1>.png"
    evil.write_bytes(png(5, 310, 200))
    assert not page.one("#panes").is_displayed()
    assert texts(page, "#status")[0] == "Captions by one and two."
    page.set("input[name=n_best]", 3)
    page.js("""
      window.walked = [];
      const select = Pane.prototype.select;
      Pane.prototype.select = function (word) {
        if (this === page.panes[0]) walked.push(word);
        return select.call(this, word);
      };
    """)
    choose(page, evil)
    page.wait(
        lambda: page.one("#play").get_attribute("aria-pressed") == "false" and page.js("return walked.length > 2")
    )
    search = Beam(beams=3, n_best=3, max_length=9, no_repeat_ngram=2)
    own = [door.caption(picture(310, 200, seed=5), search=search) for door in doors]
    assert texts(page, ".caption") == [one.text for one in own]
    assert all(one.text for one in own)
    walked, count = page.js("return walked"), len(own[0].words)
    assert walked == [walked[0], *range(count), walked[0]]  # word by word, and back to the one that stands out
    style = "const s = getComputedStyle(e); return [s.animationName, parseFloat(s.animationDelay)]"
    for selector in (".pane:first-child .caption span", ".pane:first-child .word"):
        found = page.js(f"return [...document.querySelectorAll(arguments[0])].map((e) => {{ {style} }})", selector)
        assert found == [["come", pytest.approx(0.26 * index)] for index in range(count)]
    assert texts(page, "h2") == ["one", "two"]
    assert page.js("return document.title") == "vitcap"
    assert page.js("return DATA.photos[0].name") == evil.name
    assert not page.all("img[src=x]")

    words = page.all(".pane:first-child .word")
    ActionChains(page.chrome, duration=20).move_to_element(words[0]).perform()
    before = page.pixels()
    ActionChains(page.chrome, duration=20).move_to_element(words[-1]).perform()
    assert abs(page.pixels() - before).max() > 20
    assert page.said().startswith(f"{own[0].words[-1].text}: ")

    rows = page.all(".pane:first-child .best button")
    ranked = (own[0], *own[0].alternatives)
    shown = [row.find_element("css selector", "span").text for row in rows]
    assert shown == [one.text for one in ranked]
    for row, one in zip(rows, ranked, strict=True):
        text = row.find_element("css selector", "small").text
        assert float(text.removesuffix(" %")) == pytest.approx(100 * np.exp(sum(one.log_probs)), rel=0.06)
    rows[1].click()
    page.wait(lambda: texts(page, ".caption")[0] == ranked[1].text)
    assert texts(page, ".caption")[1] == own[1].text
    assert page.one(".pane:first-child .best li:nth-child(2) button").get_attribute("aria-pressed") == "true"
    page.all(".pane:first-child .best button")[0].click()
    page.wait(lambda: texts(page, ".caption")[0] == own[0].text)

    page.set(".pane:first-child select[name=method]", "grad-cam")
    assert "Features of the encoder" in texts(page, ".about")[0]
    assert quiet(page) == []
    loaded = page.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    kinds = {re.sub(r"^http://[^/]*", "", name) for name in loaded if not name.startswith(("data:", "blob:"))}
    assert kinds == {"/api/view"}


def test_the_controls_are_what_the_server_is_asked(page, tmp_path, doors):
    page.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    for seed in (1, 2):
        (tmp_path / f"{seed}.png").write_bytes(png(seed))
    assert not page.one("#again").is_enabled()
    page.set("#kind", "beams")
    page.set("input[name=beams]", 7)
    page.set("input[name=length_penalty]", 2)
    page.set("input[name=n_best]", 2)
    choose(page, f"{tmp_path}/1.png\n{tmp_path}/2.png", shown=1)
    assert len(page.all(".shot")) == 2
    assert page.one("#play").get_attribute("aria-pressed") == "false"  # nothing moves
    search = Beam(beams=7, n_best=2, length_penalty=2.0, max_length=9, no_repeat_ngram=2)
    assert texts(page, ".caption")[0] == doors[0].caption(picture(seed=2), search=search).text
    assert len(page.all(".pane:first-child .best button")) == 2
    page.all(".shot")[0].click()
    page.wait(lambda: texts(page, ".caption")[0] == doors[0].caption(picture(seed=1), search=search).text)
    page.set("#kind", "sample")
    assert page.one("input[name=temperature]").is_displayed()
    assert not page.one("input[name=beams]").is_displayed()
    page.set("input[name=temperature]", 4)
    page.set("input[name=seed]", 11)
    page.set("input[name=n_best]", 1)
    page.one("#again").click()
    drawn = Sample(temperature=4.0, top_p=0.9, max_length=9, no_repeat_ngram=2)
    wanted = doors[0].caption(picture(seed=1), search=drawn, seed=11)
    page.wait(lambda: texts(page, ".caption")[0] == wanted.text)
    assert texts(page, ".best h3")[0] == "Probability of the caption"
    assert len(page.all(".shot")) == 2
    assert quiet(page) == []


def test_a_file_that_is_no_picture_is_told_and_the_page_goes_on(page, tmp_path):
    page.prefer(prefers_reduced_motion="reduce")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7")
    (tmp_path / "big.png").write_bytes(b"\0" * (2**20 + 1))
    (tmp_path / "good.png").write_bytes(png())
    for name, wrong in (("a.pdf", "a PDF document, not a picture"), ("big.png", "larger than this server takes")):
        page.one("#file").send_keys(str(tmp_path / name))
        page.wait(lambda wrong=wrong: wrong in texts(page, "#status")[0])
        assert page.one("#status").get_attribute("class") == "wrong"
        assert texts(page, "#status")[0].count(name) == 1
    choose(page, tmp_path / "good.png")
    page.wait(lambda: texts(page, "#status")[0].startswith("good.png: done in"))


def test_a_photo_can_be_dropped_or_pasted(page):
    page.prefer(prefers_reduced_motion="reduce")
    code = """
      const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], arguments[2], { type: "image/png" }));
      const event = arguments[1] === "drop" ? new DragEvent("drop", { dataTransfer: transfer, cancelable: true })
        : new ClipboardEvent("paste", { clipboardData: transfer });
      document.dispatchEvent(event);
    """
    for place, kind in enumerate(("drop", "paste")):
        page.js(code, base64.b64encode(png(place)).decode(), kind, f"{kind}.png")
        page.wait(lambda place=place: page.js("return document.body.dataset.ready") == str(place))
    assert texts(page, ".shot") == ["drop.png", "paste.png"]


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_nothing_overlaps_on_small_and_large_screens(page, tmp_path, width, scheme):
    page.size(width, 800)
    page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    (tmp_path / "a.png").write_bytes(png(0, 300, 220))
    choose(page, tmp_path / "a.png")
    assert page.js("return document.documentElement.scrollWidth <= innerWidth")
    boxes = page.js("""
      const parts = "header, #drop, #search label:not([hidden]), #again, #status, .pane figure, .side > *";
      return [...document.querySelectorAll(parts)]
        .filter((e) => e.checkVisibility() && e.clientHeight).map((e) => e.getBoundingClientRect().toJSON())
    """)
    assert len(boxes) > 10
    for index, one in enumerate(boxes):
        assert 0 <= one["left"] <= one["right"] <= width + 1
        for other in boxes[index + 1 :]:
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            assert min(across, down) <= 9, (one, other)  # margins of the viewer's caption are negative by 8
