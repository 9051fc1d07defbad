"""The record: what it accepts, how it is viewed, and that it comes back from disk as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitcap.record import AttentionRecord, View, Word


def make(**changed):
    rng = np.random.default_rng(0)
    maps = {
        "attention": rng.dirichlet(np.ones(7), (3, 2, 4)).astype(np.float32),
        "rollout": rng.dirichlet(np.ones(7), (3, 1, 1)).astype(np.float32),
    }
    given = {
        "words": (Word("snow", 0, 1, -0.5), Word("flakes", 1, 3, -0.25)),
        "text": "snow flakes",
        "maps": maps,
        "shown": View("attention", layers=(-1,)),
        "grid": (2, 3),
        "prefix": 1,
        "photo": rng.integers(0, 256, (4, 6, 3), dtype=np.uint8),
        "size": (60, 40),
        "window": (10.0, 0.0, 50.0, 40.0),
        "cells": (4.0, -6.0, 52.5, 34.0),
        "transforms": ({"name": "crop", "box": [10, 0, 50, 40]},),
        "source": "a.jpg",
        "facts": {"seed": 0},
    }
    return AttentionRecord(**given | changed)


def test_a_record_comes_back_from_disk_as_it_was(tmp_path):
    record = make()
    files = record.save(tmp_path / "deep" / "a.b")
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == sorted(p.name for p in files)
    for name in ("a.b.npz", "a.b.json"):
        again = AttentionRecord.load(tmp_path / "deep" / name)
        assert again.words == record.words
        assert again.shown == record.shown
        assert list(again.maps) == list(record.maps)
        assert all((again.maps[m] == record.maps[m]).all() for m in record.maps)
        assert (again.photo == record.photo).all()
        assert again.photo.dtype == np.uint8
        rest = ("text", "grid", "prefix", "places", "size", "window", "cells", "transforms", "source", "facts")
        assert all(getattr(again, name) == getattr(record, name) for name in rest)


def test_cells_lie_in_the_window_unless_the_record_says_where(tmp_path):
    assert make().grid_window == (4.0, -6.0, 52.5, 34.0)
    plain = make(cells=None)
    assert plain.grid_window == plain.window == (10.0, 0.0, 50.0, 40.0)
    again = AttentionRecord.load(plain.save(tmp_path / "a")[1])
    assert (again.cells, again.grid_window) == (None, plain.window)


def test_map_follows_the_view_and_leaves_prefix_places_out():
    record = make()
    expected = record.maps["attention"][1:3, -1].mean((0, 1))[1:].reshape(2, 3)
    np.testing.assert_allclose(record.map(1), expected, atol=1e-7)
    view = record.view("attention", layers=0, heads=[1, 3])
    np.testing.assert_allclose(record.map(0, view), record.maps["attention"][0, 0, [1, 3]].mean(0)[1:].reshape(2, 3))
    assert record.view() == record.shown
    assert record.view(heads=2) == View("attention", None, (2,))
    assert record.view("rollout") == View("rollout")


def test_what_does_not_fit_is_one_clear_error(tmp_path):
    with pytest.raises(ValueError, match=r"maps of attention have the shape \(3, 2, 4, 7\).* 10 places"):
        make(grid=(3, 3))
    with pytest.raises(ValueError, match="at least 4 tokens"):
        make(words=(Word("x", 3, 4, 0.0),))
    with pytest.raises(ValueError, match="'lrp': the record has attention, rollout"):
        make(shown=View("lrp"))
    with pytest.raises(ValueError, match="'lrp': this record has attention, rollout"):
        make().view("lrp")
    with pytest.raises(FileNotFoundError):
        AttentionRecord.load(tmp_path / "none.npz")
    npz, sidecar = make().save(tmp_path / "a")
    npz.write_bytes(npz.read_bytes()[:200])
    with pytest.raises(ValueError, match="a: no attention record that can be read"):
        AttentionRecord.load(npz)
    make().save(tmp_path / "a")
    sidecar.write_text("{}")
    with pytest.raises(ValueError, match="KeyError: 'methods'"):
        AttentionRecord.load(npz)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"grid": (2.0, 3.0)}, r"grid \(2.0, 3.0\): \(rows, columns\)"),
        ({"grid": (6,)}, "grid"),
        ({"grid": (-1, -6)}, "grid"),
        ({"prefix": -1}, "prefix -1: a count"),
        ({"size": (0, 0)}, r"size \(0, 0\)"),
        ({"size": ("a", "b")}, "size"),
        ({"window": (10.0, 10.0, 0.0, 0.0)}, "window"),
        ({"window": (float("nan"),) * 4}, "window"),
        ({"cells": (1.0,)}, "cells"),
        ({"text": None}, "text None: a text"),
        ({"source": 7}, "source 7"),
        ({"facts": []}, "facts"),
        ({"words": (Word("a", -3, -1, 0.0),)}, r"span of 'a' \(-3, -1\)"),
        ({"words": (Word("a", 1, 1, 0.0),)}, "span of 'a'"),
        ({"words": (Word(5, 0, 1, 0.0),)}, "word 5: a text"),
        ({"words": (Word("a", 0, 1, 5000.0),)}, "log-probability of 'a' 5000.0"),
        ({"words": (Word("a", 0, 1, float("nan")),)}, "log-probability"),
        ({"photo": np.zeros((4, 6, 3))}, "photo 'float64"),
        ({"photo": np.zeros((0, 6, 3), dtype=np.uint8)}, "photo"),
        ({"shown": View("attention", layers=(9,))}, r"shown layers \(9,\): some of 0 to 1"),
        ({"shown": View("attention", heads=())}, "shown heads"),
        ({"maps": {"attention": np.zeros((3, 2, 4, 7), dtype=complex)}}, "maps of attention dtype"),
        ({"maps": {"attention": np.zeros((3, 0, 4, 7))}}, "maps of attention"),
    ],
)
def test_a_record_that_nobody_could_draw_is_refused_by_its_field(changed, message):
    with pytest.raises(ValueError, match=message):
        make(**changed)


@pytest.mark.parametrize("damage", ["empty", "text", "deep", "list", "format", "nan"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, damage):
    npz, sidecar = make().save(tmp_path / "a")
    rest = json.loads(sidecar.read_text(encoding="utf-8"))
    match damage:
        case "empty":
            npz.write_bytes(b"")
        case "text":
            npz.write_bytes(b"no archive")
        case "deep":
            sidecar.write_text("[" * 100_000, encoding="utf-8")
        case "list":
            sidecar.write_text("[1]", encoding="utf-8")
        case "format":
            sidecar.write_text(json.dumps(rest | {"format": 2}), encoding="utf-8")
        case "nan":
            record = make()
            make(maps={name: values * np.nan for name, values in record.maps.items()}).save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"a: no attention record that can be read \(\.npz and \.json\): \S"):
        AttentionRecord.load(npz)
