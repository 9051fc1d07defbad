"""The one image loader: any picture file to an upright RGB picture, or one error that says what the file really is.

Training, evaluation, captioning and overlays all read pictures here, so that a picture looks the same to all of them.
"""

from __future__ import annotations

import io
import logging
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2", ".avif", ".heic", ".heif"}
)
"""File name endings, in lower case, that `find_images` takes for pictures."""

MAX_PIXELS = 64_000_000
"""Largest picture that is decoded: 256 MB as Pillow stores it, and more than full-frame cameras record."""

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "PPM", "TGA", "JPEG2000", "AVIF", "HEIF")
"""Formats that are decoded, in Pillow's names (MPO, of phones, is a kind of JPEG). Others stay closed, whatever
Pillow could do: for PostScript it starts Ghostscript, which runs the program that such a file is."""

# `load_image` has its own limit, and says so in one line.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_JUNK = {"__MACOSX", "Thumbs.db"}
_HEIF = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIGNATURES = (
    (b"%PDF", "a PDF document"),
    (b"%!PS", "a PostScript document"),
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\xff\xd8\xff", "a damaged JPEG picture"),
    (b"\x89PNG", "a damaged PNG picture"),
    (b"GIF8", "a damaged GIF picture"),
)


class ImageError(ValueError):
    """A file that cannot be used as a picture; the message names the file and says what it is."""


@dataclass(frozen=True)
class Encoded:
    """A picture file in memory. name: what messages call it; content: the bytes of the file."""

    name: str
    content: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name


def load_image(
    path: str | os.PathLike[str] | Encoded,
    *,
    exif: bool = True,
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """Read a picture file as an upright RGB picture.

    path: the file, or its bytes; the format is taken from these, never from the name. Animations give their first
        frame.
    exif: turn the picture as its EXIF orientation says, once (the result carries no orientation). False is only for
        repeating numbers of programs that ignore the tag.
    background: RGB colour, 0..255, on which transparent pictures are composited; white unless told otherwise.
    max_pixels: checked before anything is decoded. JPEG files above it are decoded at 1/2, 1/4 or 1/8 of their size,
        whichever first fits; others are refused. Pillow's own limit (178,956,970 pixels) holds in any case.

    Grey, 1-bit, palette, CMYK and other modes become RGB. 16-bit grey is scaled by 1/257, so that 65535 is white.
    32-bit integers must lie in 0..65535 and are scaled likewise. Floating point must lie in 0..1 (scaled by 255) or in
    0..255 (rounded). HEIC needs the package pillow-heif, which is used if it is installed.

    Raises ImageError for everything that is no such picture: missing, empty, cut, text, HTML, git-lfs pointer, ...
    """
    path = path if isinstance(path, Encoded) else Path(path)
    if isinstance(path, Path) and not os.path.isfile(path):  # Path.is_file raises for names too long for the disk
        what = (
            "is a folder" if os.path.isdir(path) else "is no regular file" if os.path.exists(path) else "does not exist"
        )
        what = "is a link that leads nowhere" if what == "does not exist" and os.path.islink(path) else what
        raise ImageError(f"{path}: {what}; a picture file is wanted")
    kind = None
    try:
        with _open(path) as image:
            kind, (width, height) = image.format, image.size
            fits = (f for f in (1, 2, 4, 8) if -(-width // f) * -(-height // f) <= max_pixels)
            if (factor := next(fits, 8)) > 1:  # draft heeds its first call alone, and does nothing but for JPEG
                image.draft(image.mode, (max(1, width // factor), max(1, height // factor)))
            if image.size[0] * image.size[1] > max_pixels:
                raise ImageError(f"{width}x{height} pixels is over the limit of {max_pixels}; make it smaller")
            image.load()
            return to_rgb(image, exif=exif, background=background)
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{path}: more pixels than can be decoded safely; make it smaller") from None
    except Exception as error:  # damaged files make Pillow raise almost any class, zlib.error and struct.error included
        raise ImageError(f"{path}: {_describe(path, kind, error)}") from error


def to_rgb(image: Image.Image, *, exif: bool = True, background: tuple[int, int, int] = (255, 255, 255)) -> Image.Image:
    """A picture that is already open as upright RGB without metadata, by the rules of `load_image`.

    Raises ImageError for values out of range or a mode that has no conversion to RGB.
    """
    turn = _TURNS.get(_orientation(image)) if exif else None
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        values, clear = np.asarray(image), image.info.get("transparency")  # of 16-bit grey, the value that is clear
        image = Image.fromarray(_to_8_bits(values, image.mode))
        if isinstance(clear, int):
            image = Image.merge("LA", (image, Image.fromarray((values != clear).astype(np.uint8) * 255)))
    clear = image.info.get("transparency")
    if image.mode == "RGB" and isinstance(clear, tuple) and max(clear) > 255:  # 16 bits a channel, of which 8 are read
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in clear)
    if image.has_transparency_data:
        alpha = image.convert("RGBA")
        image = Image.new("RGB", image.size, background)
        image.paste(alpha, mask=alpha.getchannel("A"))
    try:
        image = image.convert("RGB")
    except ValueError as error:
        raise ImageError(f"mode {image.mode} cannot be converted to RGB ({error}); save it as RGB") from error
    image = image.transpose(turn) if turn is not None else image
    image.info = {}  # an orientation left here would make the next program turn the picture again
    return image


@dataclass(frozen=True)
class Origin:
    """What a picture was before `load_image`. size: (width, height) in pixels, turned upright, before any reduction.

    orientation: the EXIF tag, 1..8 (1 also where there is none). turn: the name of Pillow's transposition that made the
    picture upright, such as "ROTATE_270"; None where none was needed.
    """

    size: tuple[int, int]
    orientation: int
    turn: str | None


def origin(source: str | os.PathLike[str] | Encoded | Image.Image, upright: tuple[int, int]) -> Origin:
    """Where a picture that `load_image` or `to_rgb` has read comes from; only the head of the file is read again.

    source: the file, or the open picture that was given. upright: (width, height) of what was made of it.
    """
    if isinstance(source, Image.Image):
        orientation, (width, height) = _orientation(source), source.size
    else:
        with _open(source if isinstance(source, Encoded) else Path(source)) as image:
            orientation, (width, height) = _orientation(image), image.size
    # Some formats state their size turned already; what was read tells.
    if (width - height) * (upright[0] - upright[1]) < 0:
        width, height = height, width
    turn = _TURNS.get(orientation)
    return Origin((width, height), orientation if turn else 1, turn.name if turn else None)


def find_images(path: str | os.PathLike[str]) -> list[Path]:
    """The picture files under a folder and its sub-folders, sorted by path; for a file, that file.

    Taken by `IMAGE_SUFFIXES` in any case. Names that begin with a dot, `__MACOSX` and the like are passed over, as are
    folder links that lead back to a folder already seen. A sub-folder that cannot be listed is logged. Raises
    FileNotFoundError for a path that does not exist, or is empty.
    """
    if not os.fspath(path):
        raise FileNotFoundError("an empty name, where a file or folder is wanted")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not path.is_dir():
        return [path]
    found, seen = [], set()
    for folder, subfolders, names in os.walk(path, followlinks=True, onerror=_unlisted):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not _is_junk(name))
        found += [Path(folder, n) for n in names if not _is_junk(n) and Path(n).suffix.lower() in IMAGE_SUFFIXES]
    return sorted(found)


def _unlisted(error: OSError) -> None:
    log.warning("%s: its pictures are left out (%s)", error.filename, error.strerror)


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name in _JUNK


def _open(path: Path | Encoded) -> Image.Image:
    try:
        return _decoder(path)
    except UnidentifiedImageError:
        if not _is_heif(_head(path)):
            raise
        try:
            import pillow_heif
        except ImportError:
            raise ImageError("a HEIC picture; pip install pillow-heif, or save it as JPEG") from None
        pillow_heif.register_heif_opener()
        return _decoder(path)


def _decoder(path: Path | Encoded) -> Image.Image:
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    if not isinstance(path, Encoded):
        return Image.open(path, formats=formats)
    try:
        return Image.open(io.BytesIO(path.content), formats=formats)
    except UnidentifiedImageError:  # whose message has the address of the buffer
        raise UnidentifiedImageError("cannot identify its format") from None


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(0x0112, 1)
    except Exception:  # a broken EXIF block is no reason to refuse the picture beside it
        return 1


def _to_8_bits(values: np.ndarray, mode: str) -> np.ndarray:
    low, high = values.min(), values.max()
    limits = {"I": (65535,), "F": (1, 255)}.get(mode, (65535,))
    scale = next((255 / limit for limit in limits if low >= 0 and high <= limit), None)  # NaN satisfies neither
    if scale is None:
        wanted = " or ".join(f"0..{limit}" for limit in limits)
        raise ImageError(f"mode {mode} with values {low:g}..{high:g}; {wanted} is wanted: rescale it")
    return np.rint(values.astype(np.float64) * scale).astype(np.uint8)


def _head(path: Path | Encoded) -> bytes:
    if isinstance(path, Encoded):
        return path.content[:512]
    with path.open("rb") as file:
        return file.read(512)


def _is_heif(head: bytes) -> bool:
    return head[4:8] == b"ftyp" and head[8:12] in _HEIF


def _describe(path: Path | Encoded, kind: str | None, error: Exception) -> str:
    """What a file is that Pillow could not read; `kind` is the format if Pillow got that far."""
    if kind is not None:
        return f"a damaged or cut {kind} picture ({error}); fetch it again"
    try:
        head = _head(path)
    except OSError as unreadable:
        return f"cannot be read ({unreadable.strerror})"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head:
        return "an empty file (0 bytes); fetch it again"
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer, not the picture; run git lfs pull"
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page, not a picture; the download failed"
    if b"<svg" in start:
        return "an SVG drawing; convert it to PNG"
    if head[4:8] == b"ftyp":
        return f"a video or picture container ({head[8:12].decode('latin-1')}) that Pillow cannot read"
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return f"{name} ({error})" if "damaged" in name else f"{name}, not a picture"
    if not any(byte < 9 or 13 < byte < 32 for byte in head):
        return f"text, not a picture (it begins {head[:40].decode('utf-8', 'replace')!r})"
    return "not a picture in a format that Pillow can read"
