"""The picture and the options of a request, read from its body as it comes; nothing is written to disk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from vitcap.data.images import Encoded
from vitcap.serve.limits import FORM, MOST_TEXT, Limits, Refused, Share

Options = dict[str, str]

_MOST_FIELDS = 32
_WANTED = "send a picture file as multipart/form-data, or its bytes with a content type such as image/jpeg"


async def read_upload(request: Request, limits: Limits, share: Share) -> tuple[Encoded, Options]:
    """The picture file of a request, and its options, of the query and of the form.

    Raises Refused: 400 for a form that is none or has no file, 408 for a body that takes too long, 413 for one that is
    too large, told by its bytes whatever its header says, 415 for a content type that is no picture's.
    """
    options = _query(request)
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "Content-Encoding: send the picture file as it is, without a further compression")
    if kind == b"multipart/form-data":
        form = Form(parameters.get(b"boundary", b""), limits)
        await _read(request, limits.max_upload + FORM, limits, share, form.write)
        picture, given = form.finish()
        if twice := sorted(set(given) & set(options)):
            raise Refused(400, f"{twice[0]}: given twice, in the query and in the form")
        return picture, options | given
    if not kind.startswith(b"image/") and kind != b"application/octet-stream":
        named = kind.decode("latin-1")[:80] or "none"
        raise Refused(415, f"content type {named!r}: {_WANTED}")
    content = bytearray()
    await _read(request, limits.max_upload, limits, share, content.extend)
    return _encoded("picture", content), options


async def _read(request: Request, most: int, limits: Limits, share: Share, write: Callable[[bytes], object]) -> None:
    """Hand a body on piece by piece, as long as it stays within its limits."""
    stated = request.headers.get("content-length", "")
    if re.fullmatch(r"[0-9]{1,18}", stated) and int(stated) > most:
        raise too_large(limits)
    size = 0
    try:
        async with asyncio.timeout(limits.timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise too_large(limits)
                share.take(len(chunk))
                write(chunk)
    except TimeoutError:
        told = f"the body took longer than {limits.timeout:g} seconds; send a smaller picture, or over a faster line"
        raise Refused(408, told, {"Connection": "close"}) from None


def too_large(limits: Limits) -> Refused:
    """That a picture file is over the limit."""
    return Refused(413, f"larger than the limit of {limits.max_upload / 2**20:g} MB; make the picture smaller")


def _query(request: Request) -> Options:
    try:
        pairs = parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(400, f"the query has more than {_MOST_FIELDS} options") from None
    options: Options = {}
    for name, value in pairs:
        _add(options, name, value)
    return options


def _add(options: Options, name: str, value: str) -> None:
    if name in options:
        raise Refused(400, f"{name[:40]}: given twice")
    if len(value) > MOST_TEXT:
        raise Refused(400, f"{name[:40]}: longer than {MOST_TEXT} characters")
    options[name] = value


def _encoded(name: str, content: bytearray) -> Encoded:
    if not content:
        raise Refused(422, f"{name}: an empty file (0 bytes); {_WANTED}")
    return Encoded(name, bytes(content))


def plain_name(text: str) -> str:
    """What a file that a client names is called: the last part of the path, without what no screen shows."""
    name = re.split(r"[/\\]", text)[-1]
    name = "".join(letter if letter.isprintable() else "\ufffd" for letter in name).strip()
    return name[:100] if name.strip(".") else "picture"


class Form:
    """A multipart form as it comes in: one file, of any field name, and short fields.

    boundary: of its content type. Raises Refused where it breaks the form or a limit.
    """

    def __init__(self, boundary: bytes, limits: Limits) -> None:
        if not 0 < len(boundary) <= 200:
            raise Refused(400, "multipart/form-data without a boundary: let the HTTP library write the content type")
        self.limits = limits
        self.file: bytearray | None = None
        self.file_name, self.options = "picture", Options()
        self.ended, self.parts, self.header = False, 0, (bytearray(), bytearray())
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end")
        calls = {f"on_{name}": getattr(self, f"_{name}") for name in (*names, "headers_finished", "end")}
        self.parser = MultipartParser(boundary, calls)  # type: ignore[arg-type]

    def write(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        try:
            self.parser.write(chunk)
        except FormParserError as error:
            raise Refused(400, f"the body is no multipart form ({' '.join(str(error).split())[:120]})") from None

    def finish(self) -> tuple[Encoded, Options]:
        """The file and the fields, once the body is there."""
        if not self.ended:
            raise Refused(400, "the form ends before its last boundary: its end is missing")
        if self.file is None:
            raise Refused(400, f"the form has no file; {_WANTED}")
        return _encoded(self.file_name, self.file), self.options

    def _part_begin(self) -> None:
        self.parts += 1
        if self.parts > _MOST_FIELDS:
            raise Refused(400, f"the form has more than {_MOST_FIELDS} fields")
        self.disposition, self.field = b"", bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._more(self.header[0], data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._more(self.header[1], data[start:end])

    def _more(self, header: bytearray, data: bytes) -> None:
        header += data
        if len(header) > 4096:
            raise Refused(400, "a header of the form is longer than 4096 bytes")

    def _header_end(self) -> None:
        name, value = self.header
        if name.lower() == b"content-disposition":
            self.disposition = bytes(value)
        self.header = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, parameters = parse_options_header(self.disposition)
        if b"name" not in parameters:
            raise Refused(400, "a part of the form has no name")
        self.name = parameters[b"name"].decode("utf-8", "replace")
        self.is_file = b"filename" in parameters
        if self.is_file:
            if self.file is not None:
                raise Refused(400, "the form has two files; send one picture at a time")
            self.file, self.file_name = bytearray(), plain_name(parameters[b"filename"].decode("utf-8", "replace"))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if not self.is_file:
            self.field += data[start:end]
            if len(self.field) > 4 * MOST_TEXT:
                raise Refused(400, f"{self.name[:40]}: longer than {MOST_TEXT} characters")
            return
        assert self.file is not None
        self.file += data[start:end]
        if len(self.file) > self.limits.max_upload:
            raise too_large(self.limits)

    def _part_end(self) -> None:
        if not self.is_file:
            _add(self.options, self.name, self.field.decode("utf-8", "replace"))

    def _end(self) -> None:
        self.ended = True
