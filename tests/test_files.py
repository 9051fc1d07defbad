"""Files that are whole or not there at all; links and pipes as the system has them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from vitcap.files import whole


def test_a_file_is_replaced_at_the_end_and_not_before(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    with whole(file) as part:
        part.write_text("one")
        assert not file.exists()
    with pytest.raises(KeyError), whole(file) as part:
        raise KeyError(part.write_text("two"))
    assert file.read_text() == "one"
    assert os.listdir(file.parent) == ["a.txt"]


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "a.txt", tmp_path / "link.txt"
    link.symlink_to(file)
    for text in ("one", "two"):  # where it leads nowhere, too
        with whole(link) as part:
            part.write_text(text)
        assert (link.is_symlink(), file.read_text()) == (True, text)
    assert sorted(os.listdir(tmp_path)) == ["far", "link.txt"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with whole(pipe) as part:
        part.write_text("through it")
    reader.join(timeout=10)
    assert read == ["through it"]
    assert pipe.is_fifo()
    with whole("/dev/null") as part:
        part.write_text("nothing")
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_is_told_with_the_final_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space left on the disk: free some") as caught, whole(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []


def test_a_folder_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught, whole(tmp_path):
        raise AssertionError
    assert caught.value.filename == str(tmp_path)
    assert os.listdir(tmp_path) == []


def test_errors_name_what_was_asked_for_and_not_the_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(PermissionError) as caught, whole(tmp_path / "a.txt") as part:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(part))
    assert caught.value.filename == str(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError) as lacking, whole(tmp_path / "a.txt"):
        (tmp_path / "other").read_text()
    assert lacking.value.filename == str(tmp_path / "other")


def test_a_disk_that_is_read_only_is_told_with_the_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)  # which there fails even for files that do not exist
    with pytest.raises(OSError, match=r"a\.json") as caught, whole(tmp_path / "a.json") as part:
        refuse(part)
    assert caught.value.filename == str(tmp_path / "a.json")
    assert caught.value.errno == errno.EROFS


def test_names_as_long_as_a_file_system_takes_them(tmp_path):
    file = tmp_path / ("x" * 251 + ".txt")
    for text in ("one", "two"):
        with whole(file) as part:
            part.write_text(text)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(file.name, "two")]
