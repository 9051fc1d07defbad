"""What the README says works: its commands, files, options with their defaults, and example data."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from PIL import Image, ImageDraw

from vitcap import cli, run
from vitcap.command import shorthand

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

CAPTIONS = {
    "dog.jpg": ["a brown dog runs on the beach", "a dog by the sea"],
    "boat.jpg": ["a white boat on a lake"],
    "cat.jpg": ["a cat asleep on a chair"],
    "bike.jpg": ["a red bike leaning on a wall"],
}
"""What every example data set of the README says, commas left out."""

TINY = (
    *("model.encoder.image_size=32", "model.encoder.patch_size=16", "model.encoder.width=16", "model.encoder.depth=1"),
    *("model.encoder.heads=2", "model.decoder.width=16", "model.decoder.depth=1", "model.decoder.heads=2"),
    *("data.batch_size=1", "trainer.max_steps=2", "trainer.accelerator=cpu", "overlays=1", "save_every=1"),
)

MODELS = ("runs/mine", "runs/translation", "runs/shapes_classify")
"""What the commands of the command line load."""


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str = README) -> list[str]:
    """Every single command of the bash blocks, comments and continuation lines resolved."""
    lines = "\n".join(blocks("bash", text)).replace("\\\n", " ").splitlines()
    words = [shlex.join(shlex.split(part, comments=True)) for line in lines for part in line.split("&&")]
    return [line for line in words if line]


def inline_code() -> list[str]:
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", prose)


def config(*overrides: str, name: str = "config") -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, overrides=list(overrides))


def recipe(target: str) -> list[str]:
    """Lines of a make target, its variables as the README writes them."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, f"no make target {target}"
    demo = re.search(r"^DEMO \?= (.*)", MAKEFILE, re.MULTILINE)[1]
    return [line.strip().replace("$(BIN)/", "").replace("$(DEMO)", demo) for line in found[1].splitlines()]


# --- commands ---


DOCS = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
IN_TABLES = "\n".join(f"```bash\n{code}\n```" for code in re.findall(r"`(python scripts/[^`\n]+)`", DOCS))


@pytest.mark.parametrize(
    "command",
    [c for c in commands(f"{README}\n{DOCS}\n{IN_TABLES}") if re.match(r"python scripts/(train|evaluate)\.py", c)],
)
def test_script_commands_compose_and_leave_nothing_open(command):
    _, script, *overrides = shlex.split(command)
    assert (ROOT / script).is_file()
    overrides = shorthand(overrides) if script.endswith("evaluate.py") else overrides
    cfg = config(*overrides, name={"train": "config", "evaluate": "evaluate"}[Path(script).stem])
    assert not OmegaConf.missing_keys(cfg)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("vitcap ")])
def test_vitcap_commands_parse(command, monkeypatch):
    parsed = []
    for module in cli.COMMANDS.values():
        monkeypatch.setattr(module, "run", lambda arguments: parsed.append(arguments) or 0)
    assert cli.main(shlex.split(command)[1:]) == 0
    assert not hasattr(parsed[0], "model") or parsed[0].model in MODELS


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("python scripts/prepare.py")])
def test_prepare_commands_parse(command, monkeypatch):
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "scripts" / "prepare.py")
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    parsed = []
    monkeypatch.setattr(prepare, "shapes", parsed.append)
    assert prepare.main(shlex.split(command)[2:]) == 0
    assert parsed[0].out == Path("runs/shapes_coco")


def test_other_commands_are_make_targets_their_recipes_or_installations():
    rest = [c for c in commands() if not re.match(r"vitcap |python scripts/", c)]
    makes = [c.split()[1:] for c in rest if c.startswith("make ")]
    assert makes == [["demo"], ["test"]]
    done = [*recipe("demo"), *recipe("test")]
    # The pip lines do what make does, in every step.
    assert set(done) <= set(commands())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    known = [re.split(r"[<>=\[]", item)[0] for items in (project["dependencies"], *extras.values()) for item in items]
    venv = re.search(r"^VENV := (.*)", MAKEFILE, re.MULTILINE)[1]
    allowed = {
        f"python3.11 -m venv {venv}",
        f"source {venv}/bin/activate",
        "pip install -e .",
        "make demo",
        "make test",
    }
    allowed |= {shlex.join(["pip", "install", "-e", f".[{extra}]"]) for extra in extras}
    allowed |= {f"pip install {name}" for name in known}
    assert set(rest) - allowed - set(done) == set()


def test_options_of_vitcap_that_the_prose_names_are_there(capsys):
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
    shown = set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))
    named = {code.partition(" ")[0] for code in inline_code() if code.startswith("--")}
    assert len(named) > 8
    assert named <= shown


# --- options ---


def option_rows() -> list[tuple[tuple[str, ...], str, str]]:
    """(overrides, key, default) of each row of the table of options."""
    table = README.partition("## Options that matter")[2].partition("\n## ")[0]
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
        assert last in OmegaConf.to_container(node), key
        value = OmegaConf.to_container(node, resolve=False)[last]
        assert default == (value if isinstance(value, str) else json.dumps(value)), key


def test_the_demo_draws_as_many_scenes_as_the_readme_states():
    source = config().data.source
    assert f"draws {source.train_size:,} scenes" in README
    assert f"{source.val_size:,} validation scenes" in README


def test_settings_in_the_prose_name_real_keys_and_choices():
    """Inline code such as `model/encoder=timm` or `data.cache_flip=true`: the group's file or the key exists."""
    bases = [(), ("data=table", "model/encoder=timm", "model/decoder=rnn", "decode=sample"), ("data=flickr",)]
    bases += [("model=seq2seq",), ("model=vit_classify",), ("data=imagenet",)]
    composed = [config(*base) for base in bases] + [config("data=imagenet", name="evaluate")]
    keys: set[str] = set()
    for one in composed:
        stack = [("", OmegaConf.to_container(one))]
        while stack:
            prefix, node = stack.pop()
            for key, value in node.items():
                keys.add(prefix + key)
                if isinstance(value, dict):
                    stack.append((f"{prefix}{key}.", value))
    seen = 0
    for code in inline_code():
        match = re.fullmatch(r"'?\"?([a-z_/@.]+)=([^ ]*|'.*'|\{.*\}).*", code)
        if not match:
            continue
        key, values = match[1].split("@")[0], match[2].strip("'\"")
        seen += 1
        if (ROOT / "conf" / key).is_dir() and key != "model":
            wanted = [v for v in values.split("|") if v and v != "..."]
            assert all((ROOT / "conf" / key / f"{value}.yaml").is_file() for value in wanted), code
        else:
            assert key in keys, code
    assert seen > 15


def test_the_flickr8k_scores_were_made_with_the_beams_that_the_readme_states():
    stated = int(re.search(r"with (\d+) beams", README)[1])
    for name, more in (("flickr8k_vit", ["model.encoder.weights=FILE"]), ("flickr8k_hybrid", [])):
        assert config(f"experiment={name}", "data.root=FOLDER", *more).decode.beams == stated


# --- files ---


def test_files_that_the_readme_names_exist():
    tree = README.partition("## Where lies what")[2]
    named = [line.split()[0] for line in blocks("text", tree)[0].splitlines()]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(named) > 8
    assert len(links) > 3
    assert [name for name in named + links if not (ROOT / name.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_of_the_docs_lead_somewhere(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_nothing_is_left_to_fill_in(name):
    assert re.findall(r"TODO\S*|FIXME|XXX", (ROOT / name).read_text(encoding="utf-8")) == []


# --- example data ---


def examples() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Format -> (overrides of its command, its example files by name)."""
    section = README.partition("## Train on your own data")[2].partition("\n## ")[0]
    found = {}
    for part in re.split(r"^(?=\*\*)", section, flags=re.MULTILINE):
        files = dict(re.findall(r"`my_photos/([^`]+)`:\n+```\w+\n(.*?)```", part, re.DOTALL))
        for command in commands(part):
            overrides = shlex.split(command)[2:]
            if "data.root=my_photos" in overrides:
                form = next(o for o in overrides if o.startswith("data=")).removeprefix("data=")
                found[form] = (overrides, files)
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


def write_example(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "images").mkdir()
    for index, name in enumerate(CAPTIONS):
        picture = Image.new("RGB", (48, 40), (60 * index, 120, 255 - 60 * index))
        ImageDraw.Draw(picture).ellipse((10, 5, 20 + 5 * index, 30), fill=(255, 255, 255))
        picture.save(folder / "images" / name)


@pytest.mark.parametrize("form", ["coco", "karpathy", "flickr", "csv", "tsv", "jsonl"])
def test_example_data_is_read_by_the_command_beside_it(form, tmp_path, monkeypatch):
    overrides, files = variants()[form]
    write_example(tmp_path / "my_photos", files)
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


def test_the_parallel_text_is_read_by_the_command_below_it(tmp_path, monkeypatch):
    (name, content) = re.search(r"`(my_text/[^`]+)`:\n+```text\n(.*?)```", README, re.DOTALL).groups()
    (command,) = [c for c in commands() if "data.root=my_text" in c]
    (tmp_path / "my_text").mkdir()
    (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    data = instantiate(config(*shlex.split(command)[2:]).data)
    pairs = {r.source: r.targets[0] for split in ("train", "val") for r in data.records(split)}
    assert pairs == dict(line.split("\t") for line in content.splitlines()[1:])
    assert len(data.records("val")) == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which MODELS were trained for two steps, tiny: the first on the table example."""
    folder = tmp_path_factory.mktemp("readme")
    overrides, files = variants()["csv"]
    write_example(folder / "my_photos", files)
    (folder / "holiday").mkdir()
    for name in ("photo.jpg", "holiday/beach.jpg"):
        Image.new("RGB", (64, 48), (90, 140, 200)).save(folder / name)
    # The encoder of the command is replaced by a tiny one.
    kept = [item for item in overrides if not item.startswith(("model", "trainer.", "experiment="))]
    small = ("data.source.train_size=20", "data.source.val_size=10", "trainer.max_steps=2")
    texts = ("experiment=translation", *small, "model.encoder.width=8", "model.decoder.width=8")
    classes = ("model=vit_classify", *small, "model.encoder.width=16", "model.encoder.heads=2", f"out={MODELS[2]}")
    with contextlib.chdir(folder):
        report = run.train(config(*kept, *TINY))
        run.train(config(*texts))
        run.train(config(*classes))
    assert report["facts"]["steps"] == 2
    return folder


def test_a_run_writes_the_files_of_the_table(trained):
    table = README.partition("A run writes into its folder")[2].partition("\n## ")[0]
    names = [n for line in table.splitlines() if line.startswith("| `") for n in re.findall(r"`([^` ]+)`", line)]
    assert {"model.safetensors", "scores.json", "overlays/", "best.ckpt"} <= set(names)
    out = trained / "runs" / "mine"
    for name in names:
        assert (out / name).exists() or (out / "checkpoints" / name).exists(), name


def test_vitcap_commands_run(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    for command in commands():
        if command.startswith("vitcap "):
            assert cli.main(shlex.split(command)[1:]) == 0, command
    assert capsys.readouterr().out.startswith("photo.jpg\t")
    lines = [json.loads(line) for line in Path("captions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["image"] for line in lines] == ["photo.jpg", "holiday/beach.jpg"]
    assert set(lines[0]) == {"image", "caption", "score", "finished", "tokens", "n_best"}
    assert set(lines[0]) <= set(inline_code())
    assert len(lines[0]["n_best"]) == 3
    assert Path("overlays/photo.png").is_file()
    assert "`overlays/photo.png`" in README


def test_python_example_runs(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    out = capsys.readouterr().out.splitlines()
    caption = names["caption"]
    assert out[0] == f"{caption} {caption.score}"
    assert len(caption.alternatives) == 2
    assert out[-1] == str((len(caption.tokens), 1, 2, 4))  # one layer, two heads, a grid of 2 x 2


def test_evaluation_commands_run_and_state_the_facts(trained, monkeypatch):
    monkeypatch.chdir(trained)
    mine = [c for c in commands() if c.startswith("python scripts/evaluate.py checkpoint=runs/mine")]
    assert len(mine) == 2
    listed = re.search(r"`scores\.json` states under `facts`(.*?)\. Scores", README, re.DOTALL)[1]
    named = set(re.findall(r"`([a-z0-9_]+)`", listed))
    assert len(named) > 8
    for number, command in enumerate(mine):
        overrides = shlex.split(command)[2:]
        report = run.evaluate(config(*overrides, f"out=runs/scores{number}", name="evaluate"))
        assert named <= set(report["facts"])
        assert json.loads(Path(f"runs/scores{number}/scores.json").read_text(encoding="utf-8")) == report
