"""Samples in a shard: the files of one key, as vitcap, img2dataset and others lay them out.

A sample is a picture (KEY.jpg, .png, .webp, ...) and what is said of it, in files of the same key:

KEY.json  an object with `captions` (texts) or `caption` (a text), and perhaps `id`, `file`, `label` (class index)
KEY.txt   one caption, where the JSON has none (img2dataset writes both)
KEY.cls   the class index
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from PIL import Image

from vitcap.data.images import IMAGE_SUFFIXES, Encoded, ImageError, load_image
from vitcap.data.reading import clean_caption, parse_json
from vitcap.data.shards_urls import Again, ShardError, is_remote, library, opened, shard_name, stem

MOST_BYTES = 2**28
"""Larger files in a shard are not read; the sample is a bad record."""
_META = re.compile(r"__[^/]*__($|/)")
_TEXTS = ("txt", "text", "caption")


@dataclass(frozen=True)
class ShardSample:
    """What a shard holds under one key. id: the JSON's, or SHARD/KEY. captions: clean text. label: class index.

    image: the picture file; or (offset, bytes) of it in the shard, where only that was asked for. error: what is wrong
    with the sample, if anything is; captions and label are then not to be trusted.
    """

    key: str
    id: int | str
    image: Encoded | tuple[int, int]
    captions: tuple[str, ...] = ()
    label: int | None = None
    error: str | None = None

    def open(self) -> Image.Image:
        """The upright RGB picture, where its bytes are here. Raises ImageError for a bad sample, too."""
        assert isinstance(self.image, Encoded)
        if self.error is not None:
            raise ImageError(self.error)
        return load_image(self.image)


class _Member(tarfile.TarInfo):
    """An entry whose damaged header is an error, and so is an archive without the mark of its end: tarfile takes both
    for the end, and the samples that come after, or have been cut off, would be missing without a word."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the mark
            raise
        except tarfile.HeaderError as error:
            if tarfile_.offset == 0:  # no archive at all
                raise
            raise tarfile.ReadError(str(error)) from None


def read_samples(where: str, *, pictures: bool = True) -> Iterator[ShardSample]:
    """The samples of a shard, in order; what has no picture is no sample.

    pictures: False gives their place in place of their bytes, which of a plain file are then not read.
    Raises ShardError, naming the shard, where it is no tar archive, is cut, or cannot be fetched.
    """
    try:
        for files in library().tariterators.group_by_keys(_files(where, pictures)):
            if (sample := _parse(files, where)) is not None:
                yield sample
    except ShardError:
        raise
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ShardError(f"{where}: no tar archive that can be read to its end ({reason}); fetch it again") from None
    except ValueError as error:
        raise ShardError(f"{where}: {error.args[0]}") from None


def _files(where: str, pictures: bool) -> Iterator[dict[str, Any]]:
    """Name and content of each file, as webdataset groups them. Content is (offset, bytes) of pictures not asked for,
    and None of files that are too large."""
    with ExitStack() as stack:
        stream = stack.enter_context(opened(where))
        head = stream.read(2)
        source: Any = Again(head, stream)
        mode: Any = "r|*"
        if head == b"\x1f\x8b":
            source, mode = gzip.GzipFile(fileobj=source), "r|"  # tarfile's own does not look at the checksum
        elif not pictures and not is_remote(where):
            stream.seek(0)
            source, mode = stream, "r:"
        try:
            tar = stack.enter_context(tarfile.open(fileobj=source, mode=mode, tarinfo=_Member))
        except tarfile.ReadError:
            if is_remote(where):  # of a command that failed, its exit status says more
                while stream.read(2**16):
                    pass
                stream.close()
            raise
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # or they are all kept
            if not member.isreg() or _META.match(member.name):
                continue
            suffix = member.name.rpartition(".")[2].lower()
            picture = f".{suffix}" in IMAGE_SUFFIXES
            if not picture and suffix not in (*_TEXTS, "json", "cls"):
                continue
            data: Any = (member.offset_data, member.size) if picture and not pictures else None
            if data is None and member.size <= MOST_BYTES:
                data = tar.extractfile(member).read()  # type: ignore[union-attr]
            yield {"fname": member.name, "data": data, "__url__": where}
        if head == b"\x1f\x8b":
            while source.read(2**16):  # the checksum is the last thing in it
                pass


def _parse(files: Mapping[str, Any], where: str) -> ShardSample | None:
    key, shard = files["__key__"], shard_name(where)
    named = {name: data for name, data in files.items() if not name.startswith("__")}
    pictures = [name for name in named if f".{name.rpartition('.')[2]}" in IMAGE_SUFFIXES]
    if not pictures:
        return None
    name, content = f"{shard}/{key}.{pictures[0]}", named[pictures[0]]
    id_: int | str = f"{stem(where)}/{key}"
    image = content if isinstance(content, tuple) else Encoded(name, content or b"")
    last = {name.rpartition(".")[2]: data for name, data in named.items()}
    try:
        if len(pictures) > 1:
            raise ValueError(f"has {len(pictures)} pictures ({', '.join(pictures)}): one for each key is wanted")
        if content is None:
            raise ValueError(f"the picture has more than {MOST_BYTES} bytes")
        about = parse_json(_text(last["json"])) if "json" in last else {}
        if not isinstance(about, dict):
            raise ValueError("the JSON is no object with captions")
        if isinstance(about.get("id"), int | str) and not isinstance(about["id"], bool):
            id_ = about["id"]
        said = about.get("captions") or about.get("caption")
        texts = said if isinstance(said, list) else [] if said is None else [said]
        if not texts:
            texts = [_text(last[name]) for name in _TEXTS if name in last][:1]
        captions = tuple(clean for text in texts if (clean := clean_caption(text)[0]) is not None)
        return ShardSample(key, id_, image, captions, _label(about, last.get("cls")))
    except (ValueError, RecursionError) as error:
        return ShardSample(key, id_, image, error=f"{shard}/{key}: {' '.join(str(error).split())[:200]}")


def _text(data: bytes | None) -> str:
    if data is None:
        raise ValueError("a text that is too large")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("a text that is not UTF-8") from None


def _label(about: Mapping[str, Any], member: bytes | None) -> int | None:
    if member is not None:
        text = _text(member).strip()
        if not (text.isascii() and text.isdecimal() and len(text) < 9):
            raise ValueError(f"the class {text[:40]!r} in .cls is no class index")
        return int(text)
    label = about.get("label")
    return label if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < 10**8 else None
