"""Every command of the README and of the pages under docs/ runs, with the example files of its page, tiny and short;
the site builds, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pages
import pytest
from pages import DOCS, PAGES, ROOT, commands, config, inline_code

from vitcap import cli, pretrained

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

ALL = {name: commands(text) for name, text in PAGES.items()}
RUNS = r"(python scripts/(train|evaluate|prepare|compare)\.py|vitcap) "
SLOW = r"meteor=true|spice=true|trainer\.(devices|strategy|num_nodes)=|--multirun| -m "
"""Java and several processes: run by test_java.py, test_distributed.py and test_run.py, and here only composed."""
OWN_TESTS = r"vitcap export .*--to onnx|python mine_onnx/"
"""Commands that the tests of what they do run, since that takes longer: test_export.py."""

_SHOWN = pages.example_files(PAGES["train.md"], "my_photos")
_MARKS = {"coco": "annotations/", "karpathy": "dataset", "flickr": "Flickr", "table": "captions.csv"}
EXAMPLES = {form: {n: text for n, text in _SHOWN.items() if n.startswith(mark)} for form, mark in _MARKS.items()}
"""Format -> its example files by name."""


class Desk:
    """A folder with all that the commands name. A run that a command reads is trained first, as some page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: set[str] = set()

    @staticmethod
    def target(command: str) -> str:
        """The folder that a command writes."""
        given = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
        out = re.findall(r"--out (runs/\w+)", command)
        return out[0] if out else given.get("out", f"runs/{given.get('experiment')}")

    def need(self, run: str) -> None:
        """Do the command that makes a folder, if a page has one and the folder is not there."""
        if not (self.folder / run).exists():
            makes = [c for found in ALL.values() for c in found if c.startswith("python scripts/")]
            makes = [c for c in makes if self.target(c) == run and "resume=true" not in c and not re.search(SLOW, c)]
            for command in makes[:1]:
                self.run(command)

    def run(self, command: str) -> None:
        if command in self.done:
            return
        self.done.add(command)
        form = (re.findall(r"data=(coco|karpathy|flickr)", command) or ["table"])[0]
        for run in re.findall(r"runs/\w+", command):
            if run != self.target(command) or "resume=true" in command:
                self.need(run)
        shutil.rmtree(self.folder / "my_photos", ignore_errors=True)
        pages.write_example(self.folder / "my_photos", EXAMPLES[form])
        pages.run_command(command)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    for name in ("photo.jpg", "holiday/beach.jpg"):
        pages.draw(folder / name, 1, (64, 48))
    pages.write_example(folder / "FOLDER", EXAMPLES["flickr"])
    for index, name in enumerate(("train/n01440764", "train/n01443537", "val/n01440764", "val/n01443537")):
        pages.draw(folder / "FOLDER" / name / "1.jpg", index)
    for name in re.findall(r"^my_classes/\S+", PAGES["train.md"], re.MULTILINE):
        pages.draw(folder / name, int(Path(name).stem))
    for name, content in pages.example_files(PAGES["train.md"], "my_text").items():
        (folder / "my_text").mkdir(exist_ok=True)
        (folder / "my_text" / name).write_text(content, encoding="utf-8")
    captions = [{"image_id": i, "caption": c} for i in (1, 2) for c in pages.CAPTIONS["dog.jpg"]]
    told = {"images": [{"id": 1}, {"id": 2}], "annotations": captions}
    (folder / "captions_val2017.json").write_text(json.dumps(told), encoding="utf-8")
    results = [{"image_id": i, "caption": "a dog on a beach"} for i in (1, 2)]
    (folder / "captions.json").write_text(json.dumps(results), encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    yield Desk(folder)
    os.chdir(before)


RUNNABLE = [(page, command) for page, found in ALL.items() for command in found if re.match(RUNS, command)]
RUNNABLE = [(page, command) for page, command in RUNNABLE if not re.search(OWN_TESTS, command)]


def serve(command: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the command does up to serving, on a free port and with small models; what is served: test_serve.py."""
    server = pytest.importorskip("vitcap.serve.server")
    served = []
    monkeypatch.setattr(server, "run", lambda app, *_: served.append(app))
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    desk.need("runs/mine")
    words = re.sub(r"runs/\w+", "runs/mine", command).split()
    models = [] if "--model" in words else ["--model", "runs/mine"]
    assert cli.main([*words[1:], *models, "--port", "0"]) == 0
    assert len(served) == 1


@pytest.mark.parametrize(("page", "command"), RUNNABLE, ids=[f"{page}: {command}" for page, command in RUNNABLE])
def test_commands_run(page, command, desk, monkeypatch):
    if re.search(SLOW, command):
        pages.check_composes(command)
        return
    if command.startswith("vitcap serve"):
        serve(command, desk, monkeypatch)
        return
    looks = re.match(r"vitcap (caption|overlay|viewer|verify) ", command) and "--model" not in command
    if looks and command != "vitcap caption photo.jpg":
        desk.need("runs/mine")  # in place of the packaged model, which is slow for maps by gradients
        model = desk.folder / "runs" / "mine" / "model.safetensors"
        monkeypatch.setattr(pretrained, "path", lambda name=pretrained.DEFAULT: model)
    if re.search("(ground|faithful)=true", command) and command not in desk.done:
        # A model that has hardly trained is told so, in the end.
        with pytest.raises(ValueError, match=r"names an object of its picture|is not better than"):
            desk.run(command)
        return
    desk.run(command)


IN_TABLES = [code for text in PAGES.values() for code in inline_code(text) if code.startswith("python scripts/")]
ELSEWHERE = [  # several processes, sweeps, W&B: test_distributed.py, test_run*.py
    shlex.join(shlex.split(line, comments=True))
    for text in PAGES.values()
    for block in (*pages.blocks("bash", text), *pages.blocks("sh", text))
    for line in block.replace("\\\n", " ").splitlines()
    if re.search(r"^(?!python).*scripts/(train|evaluate)\.py|scripts/train\.py .*(-m |wandb=)", line)
]


@pytest.mark.parametrize("command", sorted({c for c in IN_TABLES if re.match(RUNS, c)} - {*ELSEWHERE}))
def test_commands_in_tables_run(command, desk):
    desk.run(command)


@pytest.mark.parametrize("command", sorted({*IN_TABLES, *ELSEWHERE}))
def test_other_script_commands_compose_and_leave_nothing_open(command):
    (name,) = re.findall(r"scripts/(\w+)\.py", command)
    assert (ROOT / "scripts" / f"{name}.py").is_file()
    if name in ("train", "evaluate"):
        pages.check_composes(command)


def test_benchmark_commands_parse():
    found = [c for names in ALL.values() for c in names if "scripts/benchmark.py" in c]
    assert len(found) > 3
    for command in found:
        words = shlex.split(command)
        pages.script("benchmark").parse(words[words.index("scripts/benchmark.py") + 1 :])


def recipe(target: str) -> list[str]:
    """Lines of a make target, its variables as the pages write them."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, f"no make target {target}"
    demo = re.search(r"^DEMO \?= (.*)", MAKEFILE, re.MULTILINE)[1]
    return [line.strip().replace("$(BIN)/", "").replace("$(DEMO)", demo) for line in found[1].splitlines()]


def test_what_make_does_stands_in_full_on_the_page_of_the_installation():
    assert {*recipe("demo"), *recipe("test")} <= set(ALL["install.md"])


def test_other_commands_are_make_targets_or_installations():
    done = {*recipe("demo"), *recipe("test")}
    items = [item for items in (PROJECT["dependencies"], *EXTRAS.values()) for item in items]
    known = {re.split(r"[<>=\[]", item)[0] for item in items}
    known |= {"jupyterlab"}
    for page, found in ALL.items():
        for command in found:
            words = shlex.split(command.partition(" |")[0])
            if words[:2] == ["pip", "install"]:
                for word in words[2:]:
                    extras = re.fullmatch(r"(?:\.|vitcap)\[([a-z,]+)\]", word)
                    assert word in {"-e", ".", *known} or (extras and set(extras[1].split(",")) <= set(EXTRAS)), command
            elif words[0] == "make":
                assert recipe(words[1]), command
            elif (
                not re.match(rf"python scripts/|vitcap |torchrun |srun |curl |{OWN_TESTS}", command)
                and command not in done
            ):
                assert re.search(r"^(python3\.11 -m venv|source) \.venv|VITCAP_DATA=\S+ python scripts/", command), (
                    page,
                    command,
                )


def test_options_of_vitcap_that_the_prose_names_are_there(capsys):
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
    shown = set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))
    named = {code.split()[0].split("=")[0] for text in PAGES.values() for code in inline_code(text) if code[:2] == "--"}
    named -= {"--help", "--version", "--ntasks-per-node", "--kill-on-bad-exit", "--threads", "--dtype", "--multirun"}
    assert len(named) > 8
    assert named <= shown


# --- options ---


def option_rows() -> list[tuple[tuple[str, ...], str, str]]:
    """(overrides, key, default) of each row of the table of options."""
    table = pages.section(PAGES["train.md"], "## Options that matter")
    rows, overrides = [], ()
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if cells[0].startswith("with "):
            overrides = tuple(re.findall(r"`([^`]+)`", cells[0]))
        elif line.startswith("| `"):
            rows.append((overrides, cells[0].strip("`"), cells[1].strip("`")))
    return rows


def test_the_table_of_options_names_real_keys_with_their_defaults():
    rows = option_rows()
    assert len(rows) > 30
    configs = {overrides: config(*overrides) for overrides, _, _ in rows}
    for overrides, key, default in rows:
        node = configs[overrides]
        *parents, last = key.split(".")
        for parent in parents:
            node = node[parent]
        found = node._get_node(last)
        assert found is not None, key
        value = found._value()
        assert default == (value if isinstance(value, str) else json.dumps(value)), key


def test_settings_in_the_prose_name_real_keys_and_choices():
    """Inline code such as `model/encoder=timm` or `data.cache_flip=true`: the group's file or the key exists."""
    bases = [(), ("data=table", "model/encoder=timm", "model/decoder=rnn", "decode=sample"), ("data=flickr",)]
    bases += [("model=seq2seq",), ("model=vit_classify",), ("data=imagenet",), ("task=self_critical",)]
    bases += [(f"data={file.stem}",) for file in (ROOT / "conf" / "data").glob("shards*.yaml")]
    composed = [config(*base) for base in bases] + [config("data=imagenet", name="evaluate")]
    keys: set[str] = set()
    for one in composed:
        stack = [("", pages.plain(one))]
        while stack:
            prefix, node = stack.pop()
            for key, value in node.items():
                keys.add(prefix + key)
                if isinstance(value, dict):
                    stack.append((f"{prefix}{key}.", value))
    seen = 0
    for page, text in PAGES.items():
        for code in inline_code(text):
            match = re.fullmatch(r"'?\"?([a-z_/@.]+)=([^ ]*|'.*'|\{.*\}).*", code)
            if not match:
                continue
            key, values = match[1].split("@")[0], match[2].strip("'\"")
            seen += 1
            if (ROOT / "conf" / key).is_dir() and key != "model":
                wanted = [v for v in values.split("|") if v and v not in ("...", "NAME")]
                assert all((ROOT / "conf" / key / f"{value}.yaml").is_file() for value in wanted), (page, code)
            else:
                assert key in keys, (page, code)
    assert seen > 40


def test_the_scenes_and_beams_that_the_pages_state_are_those_of_the_configs():
    source = config().data.source
    assert f"draws {source.train_size:,} scenes" in PAGES["recipes.md"]
    assert f"draws {source.train_size:,} scenes" in PAGES["README.md"]
    assert f"{source.val_size:,} validation scenes" in PAGES["recipes.md"]
    stated = int(re.search(r"with (\d+) beams", PAGES["recipes.md"])[1])
    for name, more in (("flickr8k_vit", ["model.encoder.weights=FILE"]), ("flickr8k_hybrid", [])):
        assert config(f"experiment={name}", "data.root=FOLDER", *more).decode.beams == stated


# --- the site ---


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    told = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert not told.returncode, told.stderr
    return out


def test_the_site_builds_with_strict_links_and_has_every_page(site):
    assert {path.name for path in site.glob("*.html")} >= {f"{path.stem}.html" for path in DOCS.glob("*.md")}
    assert "Caption one picture" in (site / "api.html").read_text(encoding="utf-8")


def test_the_site_loads_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?([^\"' >]+)", path.read_text("utf-8"))
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", path.read_text("utf-8")), path
