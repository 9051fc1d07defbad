"""Descriptions in picture files, read back by Pillow and by hand: only they change, and no pixel."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageSequence, IptcImagePlugin
from test_caption_folder import draw, model, run  # noqa: F401 (fixture)

from vitcap.cli import metadata
from vitcap.cli.metadata import describe, described

pyexiv2 = pytest.importorskip("pyexiv2")

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
TEXT = 'a dog, "Bello", собака 犬 <b>&amp;</b>'
ESCAPED = TEXT.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def noise(seed, size=(48, 32)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


@pytest.fixture
def photo(tmp_path):
    """A JPEG with EXIF, a colour profile, IPTC and XMP of its own."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0112], exif[0x010E] = "Maker", 6, "exif words"
    exif.get_ifd(0x8769)[0x9003] = "2024:01:02 03:04:05"
    path = tmp_path / "photo.jpg"
    noise(0).save(path, exif=exif, icc_profile=PROFILE, comment=b"a comment", dpi=(72, 72))
    with pyexiv2.Image(str(path)) as image:
        image.modify_iptc({"Iptc.Application2.Keywords": ["sea", "dog"], "Iptc.Application2.City": "Brest"})
        image.modify_xmp({"Xmp.dc.title": {'lang="x-default"': "Title"}, "Xmp.xmp.Rating": "4"})
    return path


def segments(content):
    """The parts of a JPEG file: [(marker, bytes)] before the scan, and everything from the scan on."""
    place, found = 2, []
    while content[place + 1] != 0xDA:
        size = struct.unpack(">H", content[place + 2 : place + 4])[0]
        found.append((content[place + 1], content[place + 4 : place + 2 + size]))
        place += 2 + size
    return found, content[place:]


def chunks(content):
    """The chunks of a PNG file: [(name, bytes)]."""
    place, found = 8, []
    while place < len(content):
        size, name = struct.unpack(">I4s", content[place : place + 8])
        found.append((name, content[place + 8 : place + 8 + size]))
        place += 12 + size
    return found


def iptc(path):
    with Image.open(path) as image:
        return IptcImagePlugin.getiptcinfo(image) or {}


def xmp(path):
    packet = Path(path).read_bytes()
    description = re.search(rb"<dc:description>(.*?)</dc:description>", packet, re.DOTALL)
    return [] if description is None else re.findall(r'xml:lang="([^"]*)">(.*?)</rdf:li>', description[1].decode())


def test_only_the_description_of_a_jpeg_changes(photo):
    os.chmod(photo, 0o640)
    os.utime(photo, ns=(10**18, 10**18 + 7))
    before, fields = photo.read_bytes(), iptc(photo)
    with Image.open(photo) as image:
        info, exif = dict(image.info), dict(image.getexif()) | dict(image.getexif().get_ifd(0x8769))
    assert not described(str(photo))
    assert describe(str(photo), TEXT)
    assert described(str(photo))
    after = photo.read_bytes()
    (old, scan), (new, new_scan) = segments(before), segments(after)
    assert scan == new_scan
    ours = (0xE1, 0xED)  # EXIF and XMP; Photoshop, which holds IPTC
    assert [part for part in old if part[0] not in ours] == [part for part in new if part[0] not in ours]
    with Image.open(photo) as image:
        assert image.info["exif"] == info["exif"]
        assert dict(image.getexif()) | dict(image.getexif().get_ifd(0x8769)) == exif
        assert image.info["icc_profile"] == info["icc_profile"]
    found = iptc(photo)
    assert found.pop((2, 120)) == TEXT.encode()
    assert found.pop((1, 90)) == b"\x1b%G", "the mark of UTF-8"
    assert found == fields == {(2, 25): [b"sea", b"dog"], (2, 90): b"Brest"}
    assert xmp(photo) == [("x-default", ESCAPED)]
    assert b">Title<" in after
    assert b'xmp:Rating="4"' in after
    status = photo.stat()
    assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o640, 10**18 + 7)
    assert list(photo.parent.iterdir()) == [photo]
    assert describe(str(photo), TEXT)
    assert photo.read_bytes() == after, "nothing to do"


def test_the_compressed_data_of_a_png_stay(tmp_path):
    path = tmp_path / "p.png"
    noise(1).save(path, pnginfo=None, dpi=(72, 72))
    before = chunks(path.read_bytes())
    assert describe(str(path), TEXT)
    after = chunks(path.read_bytes())
    assert [part for part in after if part[0] not in (b"iTXt", b"zTXt")] == before
    assert TEXT.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").encode() in b"".join(
        dict(after).values()
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("p.jpg", {}),
        ("p.png", {}),
        ("p.tif", {}),
        ("p.webp", {}),
        ("p.jp2", {}),
        ("two.mpo", {"save_all": True, "append_images": [noise(3)]}),
        ("two.png", {"save_all": True, "append_images": [noise(3)]}),
        ("two.webp", {"save_all": True, "append_images": [noise(3)], "lossless": True}),
        ("wrong.png", {"format": "JPEG"}),
    ],
)
def test_every_frame_of_every_format_stays(tmp_path, name, options):
    path = tmp_path / name
    try:
        noise(2).save(path, **options)
    except (OSError, KeyError):
        pytest.skip("this Pillow cannot write the format")

    def frames():
        with Image.open(path) as image:
            return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]

    before = frames()
    assert describe(str(path), TEXT)
    for one, other in zip(before, frames(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert described(str(path))
    with pyexiv2.Image(str(path)) as image:
        assert image.read_xmp()["Xmp.dc.description"] == {'lang="x-default"': TEXT}
        has_iptc = image.get_access_mode()["iptc"] is not None
        assert image.read_iptc().get("Iptc.Application2.Caption") == (TEXT if has_iptc else None)
        assert has_iptc is ("webp" not in name)


@pytest.mark.parametrize(
    "there",
    [
        {"iptc": {"Iptc.Application2.Caption": "old words"}},
        {"xmp": {"Xmp.dc.description": {'lang="x-default"': "old words", 'lang="de-DE"': "alte"}}},
        {"xmp": {"Xmp.dc.description": {'lang="de-DE"': "alte"}}},
    ],
)
def test_descriptions_that_are_there_are_kept(photo, there):
    with pyexiv2.Image(str(photo)) as image:
        image.modify_iptc(there.get("iptc", {}))
        image.modify_xmp(there.get("xmp", {}))
    before = photo.read_bytes()
    assert not describe(str(photo), TEXT)
    assert photo.read_bytes() == before
    assert describe(str(photo), "new", overwrite=True)
    assert iptc(photo)[2, 120] == b"new"
    assert dict(xmp(photo)) == {"x-default": "new"} | ({"de-DE": "alte"} if b"alte" in before else {})


def test_iptc_in_another_encoding_is_not_mixed_with_utf8(photo):
    with pyexiv2.Image(str(photo)) as image:
        image.modify_iptc({"Iptc.Application2.City": "Köln"}, encoding="latin-1")
    before = photo.read_bytes()
    with pytest.raises(ValueError, match=r"photo\.jpg: its IPTC texts are not in UTF-8"):
        describe(str(photo), TEXT)
    assert photo.read_bytes() == before
    assert describe(str(photo), "a dog")
    assert iptc(photo)[2, 90] == "Köln".encode("latin-1")
    assert (1, 90) not in iptc(photo), "what is ASCII needs no mark"


def test_a_link_stays_one_and_its_target_is_described(photo):
    link = photo.with_name("link.jpg")
    link.symlink_to(photo.name)
    assert describe(str(link), "a dog")
    assert link.is_symlink()
    assert iptc(photo)[2, 120] == b"a dog"


def test_names_that_are_no_utf8(photo):
    other = photo.rename(os.fsdecode(os.fsencode(photo.parent) + b"/caf\xe9.jpg"))
    assert describe(str(other), "a dog")
    assert iptc(other)[2, 120] == b"a dog"


def test_a_file_that_would_look_otherwise_is_left(photo, monkeypatch):
    before = photo.read_bytes()
    calls = iter([noise(5), noise(6)])
    monkeypatch.setattr(metadata, "load_image", lambda *_, **__: next(calls))
    with pytest.raises(ValueError, match="it would look otherwise, so it was left"):
        describe(str(photo), TEXT)
    assert photo.read_bytes() == before
    assert list(photo.parent.iterdir()) == [photo]


def test_a_file_that_may_not_be_written_is_left(photo, monkeypatch):
    os.chmod(photo, 0o440)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root
    with pytest.raises(ValueError, match=r"photo\.jpg: may not be written \(its mode is 440\)"):
        describe(str(photo), TEXT)


def test_the_command_reports_formats_that_cannot_carry_it(model, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(["in/a.jpg", "in/b.gif", "in/c.bmp", "in/d.png", "in/e.ppm"]):
        draw(name, 20 * index)
    assert run("in", "--write-metadata", "--template", "a photo of {caption}") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 5
    assert "in/b.gif: a description cannot be written into a file of its format; convert it, or use --sidecar" in err
    assert "in/c.bmp: a description cannot be written into BMP files" in err
    assert "in/e.ppm: a description cannot be written into a file of its format" in err
    assert "vitcap: 3 texts or descriptions could not be written" in err
    assert iptc("in/a.jpg")[2, 120] == b"a photo of level 0"
    assert xmp("in/d.png") == [("x-default", "a photo of level 60")]
    captioner = model()
    assert run("in/a.jpg", "in/d.png", "--write-metadata") == 0
    assert captioner.seen == 0
    assert "2 of 2 pictures have their text and are skipped" in capsys.readouterr().err
    assert run("in/a.jpg", "--write-metadata", "--out", "c.jsonl") == 0
    assert "in/a.jpg: has another description, which is kept" in capsys.readouterr().err
    assert run("in/a.jpg", "--write-metadata", "--out", "c.jsonl", "--overwrite") == 0
    assert iptc("in/a.jpg")[2, 120] == b"level 0"


def test_without_pyexiv2_one_line_says_what_to_install(model, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setitem(sys.modules, "pyexiv2", None)
    path = draw(tmp_path / "a.jpg", 1)
    assert run(path, "--write-metadata") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert 'pip install "vitcap[metadata]"' in err
    code = "import sys, vitcap.cli.caption; assert 'pyexiv2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_text_that_is_too_long_for_iptc_changes_nothing(photo):
    before = photo.read_bytes()
    with pytest.raises(ValueError, match=r"photo\.jpg: a text of 2001 bytes, and 2000 is the most"):
        describe(str(photo), "犬" * 667)
    assert photo.read_bytes() == before
    assert describe(str(photo), "犬" * 666)
    assert iptc(photo)[2, 120] == ("犬" * 666).encode()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p.jpg")
    with pytest.raises(ValueError, match=r"p\.jpg: .*no regular file"):
        describe(str(tmp_path / "p.jpg"), "a dog")
    assert not described(str(tmp_path / "p.jpg"))


def test_damaged_files_are_told(tmp_path):
    path = tmp_path / "p.jpg"
    for content in (b"", b"\xff\xd8\xff", b"text"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"p\.jpg: .*description can"):
            describe(str(path), "a dog")
        assert path.read_bytes() == content
        assert not described(str(path))
