"""What the README and the pages state of files, data and results is so. Their commands: test_docs.py."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path

import pages
import pytest
from hydra.utils import instantiate
from pages import CAPTIONS, PAGES, ROOT, commands, config, inline_code

import vitcap
from vitcap import cli, run

README = PAGES["README.md"]

TINY = (
    *("model.encoder.image_size=32", "model.encoder.patch_size=16", "model.encoder.width=16", "model.encoder.depth=1"),
    *("model.encoder.heads=2", "model.decoder.width=16", "model.decoder.depth=1", "model.decoder.heads=2"),
    *("data.batch_size=1", "trainer.max_steps=2", "trainer.accelerator=cpu", "overlays=1", "save_every=1"),
)


# --- files and links ---


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.*)", pages.prose(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "notebooks/README.md"])
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
    assert re.findall(r"TODO\S*|FIXME|XXX", text) == []


def test_the_readme_leads_to_every_page():
    linked = set(re.findall(r"\]\(docs/(\w+\.md)", README))
    assert {name for name in PAGES if name not in ("README.md", "index.md")} <= linked


def test_files_that_the_design_names_exist():
    tree = pages.section(PAGES["design.md"], "## Where lies what")
    named = [line.split()[0] for line in pages.blocks("text", tree)[0].splitlines()]
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


# --- example data ---


def examples() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Format -> (overrides of its command, its example files by name)."""
    found = {}
    for part in re.split(r"^(?=### )", pages.section(PAGES["train.md"], "## Formats"), flags=re.MULTILINE):
        for command in commands(part):
            overrides = shlex.split(command)[2:]
            if "data.root=my_photos" in overrides:
                form = next(o for o in overrides if o.startswith("data=")).removeprefix("data=")
                found[form] = (overrides, pages.example_files(part, "my_photos"))
    return found


def variants() -> dict[str, tuple[list[str], dict[str, str]]]:
    """The examples, the table in each of its forms by itself."""
    found = examples()
    overrides, files = found.pop("table")
    for name, content in files.items():
        found[Path(name).suffix[1:]] = (overrides, {name: content})
    # "TSV (the same with tabs)"
    rows = [re.sub(r'"(.*)"', r"\1", line) for line in files["captions.csv"].splitlines()]
    tabs = "".join("\t".join(row.split(",", 2)) + "\n" for row in rows)
    found["tsv"] = (overrides, {"captions.tsv": tabs})
    return found


@pytest.mark.parametrize("form", ["coco", "karpathy", "flickr", "csv", "tsv", "jsonl"])
def test_example_data_is_read_by_the_command_beside_it(form, tmp_path, monkeypatch):
    overrides, files = variants()[form]
    pages.write_example(tmp_path / "my_photos", files)
    monkeypatch.chdir(tmp_path)
    data = instantiate(config(*overrides).data)
    captions, splits = {}, {}
    for split in data.source.splits():
        for record in data.records(split):
            assert record.open().size == (48, 40)
            captions[record.image.name] = [caption.replace(",", "") for caption in record.captions]
            splits.setdefault(split, []).append(record.image.name)
    wanted = {name: CAPTIONS[name] for name in CAPTIONS if form != "flickr" or name != "bike.jpg"}
    if form == "coco":  # which picture val_fraction takes is no matter here
        assert (len(splits["train"]), len(splits["val"])) == (len(captions) - 1, 1)
    else:
        assert splits["train"] == ["dog.jpg", "boat.jpg"]
        assert splits["val"][0] == "cat.jpg"
    assert captions == wanted
    assert data.tokenizer.vocab_size > 4


def test_the_readme_shows_the_table_of_the_page():
    (name,) = pages.example_files(README, "my_photos")
    assert pages.example_files(README, "my_photos")[name] == examples()["table"][1][name]


def test_the_parallel_text_is_read_by_the_command_below_it(tmp_path, monkeypatch):
    ((name, content),) = pages.example_files(PAGES["train.md"], "my_text").items()
    (command,) = [c for c in commands(PAGES["train.md"]) if "data.root=my_text" in c]
    (tmp_path / "my_text").mkdir()
    (tmp_path / "my_text" / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = instantiate(config(*shlex.split(command)[2:]).data)
    pairs = {r.source: r.targets[0] for split in ("train", "val") for r in data.records(split)}
    assert pairs == dict(line.split("\t") for line in content.splitlines()[1:])
    assert len(data.records("val")) == 1


# --- what comes out ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which runs/mine was trained for two steps, tiny, on the table example."""
    folder = tmp_path_factory.mktemp("readme")
    overrides, files = variants()["csv"]
    pages.write_example(folder / "my_photos", files)
    for name in ("photo.jpg", "holiday/beach.jpg"):
        pages.draw(folder / name, 1, (64, 48))
    # The encoder of the command is replaced by a tiny one.
    kept = [item for item in overrides if not item.startswith(("model", "trainer.", "experiment="))]
    with contextlib.chdir(folder):
        report = run.train(config(*kept, *TINY))
    assert report["facts"]["steps"] == 2
    return folder


@pytest.fixture
def tiny_default(trained, monkeypatch):
    """runs/mine is the model that is used where none is named."""
    model = trained / "runs" / "mine" / "model.safetensors"
    monkeypatch.setattr("vitcap.pretrained.path", lambda name=None: model)
    monkeypatch.chdir(trained)


def test_a_run_writes_the_files_of_the_table(trained):
    table = pages.section(PAGES["train.md"], "## What a run writes")
    names = [n for line in table.splitlines() if line.startswith("| `") for n in re.findall(r"`([^` ]+)`", line)]
    assert {"model.safetensors", "scores.json", "overlays/", "best.ckpt"} <= set(names)
    out = trained / "runs" / "mine"
    for name in names:
        assert (out / name).exists() or (out / "checkpoints" / name).exists(), name


def test_caption_and_overlay_write_what_the_readme_states(tiny_default, capsys):
    mine = [c for c in commands(README) if re.match(r"vitcap (caption|overlay) ", c) and "--model" not in c]
    assert len(mine) == 3
    for command in mine:
        assert cli.main(shlex.split(command)[1:]) == 0, command
    assert capsys.readouterr().out.startswith("photo.jpg\t")
    lines = [json.loads(line) for line in Path("best3.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["image"] for line in lines] == ["photo.jpg", "holiday/beach.jpg"]
    stated = {"image", "caption", "score", "finished", "tokens", "n_best"}
    assert stated <= set(lines[0])
    assert stated <= set(inline_code(README))
    assert len(lines[0]["n_best"]) == 3
    assert Path("overlays/photo.png").is_file()
    assert "`overlays/photo.png`" in README


def test_python_example_of_the_readme_runs(tiny_default, capsys):
    (code,) = pages.blocks("python", README)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    out = capsys.readouterr().out.splitlines()
    caption = names["caption"]
    assert out[0] == f"{caption} {caption.score}"
    assert len(caption.alternatives) == 2
    assert out[-1] == str((len(caption.tokens), 1, 2, 4))  # one layer, two heads, a grid of 2 x 2


def test_python_example_of_the_api_runs(tiny_default, capsys):
    (code,) = pages.blocks("python", PAGES["api.md"])
    names: dict[str, object] = {}
    exec(compile(code, "api.md", "exec"), names)
    words = names["caption"].words
    assert len(capsys.readouterr().out.splitlines()) == 3 + len(words)
    assert [word.text for word in names["record"].words] == [word.text for word in words]
    assert Path("overlays/photo.png").is_file()


def test_what_the_api_lists_is_there():
    for name in re.findall(r"^::: (\S+)", PAGES["api.md"], re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        owner = __import__(module, fromlist=["x"]) if module != "vitcap" else vitcap
        assert hasattr(owner, attribute), name


def test_evaluation_states_the_facts(trained, monkeypatch):
    monkeypatch.chdir(trained)
    text = PAGES["evaluate.md"]
    mine = [c for c in commands(text) if c.startswith("python scripts/evaluate.py checkpoint=runs/mine")]
    assert len(mine) == 2
    listed = re.search(r"`scores\.json` states under `facts`(.*?)\. Scores", text, re.DOTALL)[1]
    named = set(re.findall(r"`([a-z0-9_]+)`", listed))
    assert len(named) > 8
    for number, command in enumerate(mine):
        overrides = shlex.split(command)[2:]
        report = run.evaluate(config(*overrides, f"out=runs/scores{number}", name="evaluate"))
        assert named <= set(report["facts"])
        assert json.loads(Path(f"runs/scores{number}/scores.json").read_text(encoding="utf-8")) == report
