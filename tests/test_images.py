import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitcap.data.images import ImageError, find_images, load_image, to_rgb

RED, WHITE = (220, 30, 30), (255, 255, 255)


def corner_picture(size=(80, 48)):
    """White with a red block at the top left, so that any turn shows."""
    image = Image.new("RGB", size, WHITE)
    image.paste(RED, (0, 0, 16, 16))
    return image


def save(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turn_is_applied_once(tmp_path, suffix, orientation):
    # the stored picture is made by the inverse turn, independent of the loader's table
    inverse = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a.transpose(1, 0, 2), 2),
        8: lambda a: np.rot90(a, -1),
    }
    upright = np.asarray(corner_picture())
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(inverse[orientation](upright)))
    path = save(tmp_path, stored, f"photo.{suffix}", exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    loaded = load_image(path)
    assert loaded.size == (80, 48)
    assert np.abs(np.asarray(loaded).astype(int)[2:12, 2:12] - RED).max() < 12
    assert np.asarray(loaded)[24:, 24:].min() > 240
    assert ImageOps.exif_transpose(loaded).size == (80, 48)  # a second program must not turn it again
    if suffix == "jpg":
        assert load_image(path, exif=False).size == stored.size


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_refuse_the_picture(tmp_path):
    path = save(tmp_path, corner_picture(), "photo.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    assert load_image(path).size == (80, 48)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "HSV"])
def test_opaque_modes_show_the_same_picture(tmp_path, mode):
    black_and_white = corner_picture().convert("L").point(lambda value: 255 * (value > 128)).convert("RGB")
    image = black_and_white.convert(mode)
    if mode == "HSV":
        loaded = to_rgb(image)
    else:
        loaded = load_image(save(tmp_path, image, "photo.tif" if mode in ("CMYK", "YCbCr") else "photo.png"))
    assert loaded.mode == "RGB"
    assert np.abs(np.asarray(loaded).astype(int) - np.asarray(black_and_white)).max() <= 1


@pytest.mark.parametrize("background", [WHITE, (10, 200, 30)])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_transparency_shows_the_background(tmp_path, mode, background):
    """Left half clear with black stored below it, right half opaque grey 90."""
    image = Image.new("RGBA", (8, 4), (0, 0, 0, 0))
    image.paste((90, 90, 90, 255), (4, 0, 8, 4))
    options = {}
    if mode in ("RGB", "L"):  # one colour is named transparent
        image, options = image.convert("RGB").convert(mode), {"transparency": (0, 0, 0) if mode == "RGB" else 0}
    elif mode == "P":  # one opacity per palette entry
        image = Image.fromarray(np.asarray(image)[..., 3] // 255, "P")
        image.putpalette([0, 0, 0, 90, 90, 90])
        options = {"transparency": bytes([0, 255])}
    else:
        image = image.convert(mode)
    pixels = np.asarray(load_image(save(tmp_path, image, "clear.png", **options), background=background))
    assert (pixels[:, :4] == background).all()
    assert (pixels[:, 4:] == 90).all()


def test_half_transparent_is_blended():
    blended = to_rgb(Image.new("RGBA", (2, 2), (0, 0, 0, 128)))
    assert np.asarray(blended)[0, 0].tolist() == [127] * 3


@pytest.mark.parametrize("name", ["ramp.png", "ramp.tif"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path, name):
    ramp = np.tile(np.linspace(0, 65535, 256).astype(np.uint16), (4, 1))
    pixels = np.asarray(load_image(save(tmp_path, Image.fromarray(ramp), name)))
    assert (pixels[0, :, 1] == np.arange(256)).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.linspace(0, 1, 256, dtype=np.float32), np.arange(256)),
        (np.linspace(0, 255, 256, dtype=np.float32), np.arange(256)),
        (np.linspace(0, 65535, 256).astype(np.int32), np.arange(256)),
    ],
)
def test_32_bit_pictures_follow_the_documented_rule(tmp_path, values, expected):
    pixels = np.asarray(load_image(save(tmp_path, Image.fromarray(np.tile(values, (4, 1))), "ramp.tif")))
    assert (pixels[0, :, 0] == expected).all()


@pytest.mark.parametrize("value", [-1.0, 1000.0, float("nan"), float("inf")])
def test_float_out_of_range_is_refused_with_its_range(tmp_path, value):
    path = save(tmp_path, Image.fromarray(np.array([[0.0, value]], dtype=np.float32)), "depth.tif")
    with pytest.raises(ImageError, match=r"depth\.tif: mode F with values .*rescale"):
        load_image(path)


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 0, 255))]
    for name in ("moving.gif", "moving.png"):
        path = save(tmp_path, frames[0], name, save_all=True, append_images=frames[1:])
        assert np.asarray(load_image(path))[0, 0].tolist() == list(RED)


def test_format_comes_from_the_bytes(tmp_path):
    buffer = io.BytesIO()
    corner_picture().save(buffer, "PNG")
    (tmp_path / "png named.jpg").write_bytes(buffer.getvalue())
    assert (np.asarray(load_image(tmp_path / "png named.jpg")) == np.asarray(corner_picture())).all()


def png(chunks):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)


def header(width, height):
    return b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)


ROWS = zlib.compress(b"\0" * 4 * 7)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "0 bytes"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs pointer"),
        (b"just some notes", "text, not a picture"),
        (b"<?xml version='1.0'?><svg></svg>", "SVG"),
        (b"%PDF-1.7 \x00\x01", "PDF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0heicmif1", "HEIC"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isom", "video"),
        (bytes(range(64)), "not a picture"),
        (png([header(2, 4), (b"iCCP", b"x\0\0" + zlib.compress(bytes(3_000_000))), (b"IDAT", ROWS)]), "PNG"),
        (png([header(2, 4), (b"zTXt", b"x\0\0" + zlib.compress(bytes(3_000_000))), (b"IDAT", ROWS)]), "PNG"),
        (png([header(60_000, 60_000), (b"IDAT", ROWS)]), "more pixels"),
        (png([header(9_000, 9_000), (b"IDAT", ROWS)]), "9000x9000 pixels is over the limit"),
    ],
)
def test_what_is_no_picture_is_named(tmp_path, monkeypatch, content, what):
    path = tmp_path / "photo one.jpg"
    path.write_bytes(content)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as if it were not installed
    with pytest.raises(ImageError, match=what) as caught:
        load_image(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cut.jpg", "cut.png", "cut.gif", "cut.webp", "cut.bmp", "cut.tif"])
def test_cut_pictures_are_refused(tmp_path, name):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    path = save(tmp_path, noise, name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match=r"cut\."):
        load_image(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ImageError, match=r"gone\.jpg: does not exist"):
        load_image(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match="is a folder"):
        load_image(tmp_path)


def test_pixel_limit_shrinks_jpeg_and_refuses_the_rest(tmp_path):
    image = corner_picture((800, 480))
    shrunk = load_image(save(tmp_path, image, "big.jpg"), max_pixels=100_000)
    assert shrunk.size == (400, 240)
    assert load_image(tmp_path / "big.jpg", max_pixels=20_000).size == (100, 60)
    with pytest.raises(ImageError, match="800x480 pixels is over the limit of 100000"):
        load_image(save(tmp_path, image, "big.png"), max_pixels=100_000)


def test_find_images(tmp_path):
    for name in ("b.JPG", "a b=c'é.png", "notes.txt", ".hidden.jpg", "._b.jpg", "Thumbs.db", "图片.webp"):
        (tmp_path / name).write_bytes(b"x")
    for folder in ("sub", ".ipynb_checkpoints", "__MACOSX"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.jpeg").write_bytes(b"x")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path, target_is_directory=True)
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["a b=c'é.png", "b.JPG", "sub/c.jpeg", "图片.webp"]
    assert find_images(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    with pytest.raises(FileNotFoundError, match="gone"):
        find_images(tmp_path / "gone")


def test_a_picture_over_the_limit_gives_one_error_and_no_warning(tmp_path):
    Image.new("1", (10000, 9500)).save(tmp_path / "large.png")
    code = "import sys; from vitcap.data.images import load_image; load_image(sys.argv[1])"
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "large.png"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert "large.png: 10000x9500 pixels is over the limit" in ran.stderr
    assert "Warning" not in ran.stderr
