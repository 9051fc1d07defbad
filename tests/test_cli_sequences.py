"""The commands of sentences and classes, on small real models: what is printed and drawn, bad input, wrong models."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitcap
from vitcap import checkpoint
from vitcap.cli import main
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy, Sample
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier

SENTENCES = ["the cat sleeps", "a dog", "the dog eats the bone"]
CLASSES = [["n01", "tench"], ["n02", "goldfish, red"], ["n03", "crane"], ["n04", "crane"]]


def save(kind: str, folder: Path, *, attention: str = "additive", position: str | None = None) -> Path:
    """A model with random weights, large ones, so that inputs make a difference."""
    torch.manual_seed(1)
    parts: dict = {}
    scale: dict = {}
    if kind == "translate":
        sources = Tokenizer.train(SENTENCES, kind="space", min_count=1)
        parts |= {"source_tokenizer": sources}
        encoder = {"_target_": "vitcap.models.text.RnnTextEncoder", "width": 16, "embed_width": 8}
        if position is not None:
            encoder = {"_target_": "vitcap.models.text.TransformerTextEncoder", "width": 16, "depth": 1, "heads": 2}
            encoder |= {"position": position, "max_length": 6}
        encoder |= {"vocab_size": sources.vocab_size}
    else:
        preprocess = Preprocess(size=(16, 16))
        parts |= {"preprocess": preprocess}
        scale = {"mean": preprocess.mean, "std": preprocess.std}
        encoder = {"_target_": "vitcap.models.vit.VisionTransformer", "image_size": 16, "patch_size": 8}
        encoder |= {"width": 16, "depth": 1, "heads": 2}
    built = checkpoint.build(encoder)
    if kind == "classify":
        head = {"_target_": "vitcap.models.classifier.ImageClassifier", "classes": len(CLASSES)}
        parts |= {"head": head, "classes": CLASSES}
        model: torch.nn.Module = ImageClassifier(built, classes=len(CLASSES), **scale)
    else:
        targets = Tokenizer.train(["le chat dort", "un chien mange l' os"], kind="space", min_count=1)
        decoder = {"_target_": "vitcap.models.rnn_decoder.RnnDecoder", "memory_width": 16, "width": 16}
        decoder |= {"vocab_size": targets.vocab_size, "embed_width": 8, "attention_width": 8, "attention": attention}
        search = {"_target_": "vitcap.decoding.Greedy", "max_length": 8}
        parts |= {"decoder": decoder, "tokenizer": targets, "decode": search}
        model = CaptionModel(built, checkpoint.build(decoder), **scale)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    description = checkpoint.describe(kind=kind, encoder=encoder, **parts)
    return checkpoint.write(folder / kind / "model.safetensors", model, description)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """A model file of each kind."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: str(save(kind, folder)) for kind in ("caption", "translate", "classify")}


@pytest.fixture
def photos(tmp_path) -> list[str]:
    """Four pictures of noise."""
    names = []
    for index in range(4):
        noise = np.random.default_rng(index).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        names.append(str(tmp_path / f"p{index}.png"))
        Image.fromarray(noise).save(names[-1])
    return names


class Typed(io.StringIO):
    """Standard input at a terminal; notes what has been printed whenever a line is asked for."""

    def __init__(self, text: str, printed: io.StringIO) -> None:
        super().__init__(text)
        self.printed, self.seen = printed, []  # type: ignore[var-annotated]

    def isatty(self) -> bool:
        return True

    def __next__(self) -> str:
        self.seen.append(self.printed.getvalue().count("\n"))
        return super().__next__()


# translate


def test_sentence_tab_translation(files, capsys):
    assert main(["translate", *SENTENCES, "--model", files["translate"]]) == 0
    out, err = capsys.readouterr()
    expected = [c.text for c in vitcap.load(files["translate"]).translate(SENTENCES)]
    assert len(set(expected)) > 1
    assert out.splitlines() == [f"{s}\t{t}" for s, t in zip(SENTENCES, expected, strict=True)]
    assert err == ""


@pytest.mark.parametrize("dash", [[], ["-"]])
@pytest.mark.parametrize("size", ["1", "2", "64"])
def test_standard_input_a_sentence_a_line(files, monkeypatch, capsys, dash, size):
    main(["translate", *SENTENCES, "--model", files["translate"]])
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(SENTENCES)))
    assert main(["translate", *dash, "--model", files["translate"], "--batch-size", size]) == 0
    assert capsys.readouterr() == (expected, "")


def test_empty_lines_are_told_and_counted_and_shift_nothing(files, monkeypatch, capsys):
    lines = [SENTENCES[0], "", SENTENCES[1], "   ", SENTENCES[2]]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    assert main(["translate", "--model", files["translate"]]) == 1
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == [SENTENCES[0], "", SENTENCES[1], "", SENTENCES[2]]
    assert [len(row) for row in rows] == [2] * 5
    assert [bool(row[1]) for row in rows] == [True, False, True, False, True]
    good = vitcap.load(files["translate"]).translate(SENTENCES)
    assert [row[1] for row in rows if row[1]] == [c.text for c in good]
    assert err.splitlines() == [
        "vitcap: sentence 2: no word is left of the sentence ''",
        "vitcap: sentence 4: no word is left of the sentence '   '",
        "vitcap: 2 of 5 sentences could not be translated",
    ]


def test_no_input_is_no_error(files, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["translate", "--model", files["translate"]]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_sentence_that_is_too_long_fails_alone(tmp_path, monkeypatch, capsys):
    file = save("translate", tmp_path, position="learned")
    lines = [SENTENCES[0], "the cat " * 4, SENTENCES[1]]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert main(["translate", "--model", str(file)]) == 1
    out, err = capsys.readouterr()
    assert [bool(line.split("\t")[1]) for line in out.splitlines()] == [True, False, True]
    assert "sentence 2: position 7 is beyond the learned table of 6" in err
    assert err.count("\n") == 2


def test_tabs_and_line_breaks_inside_a_sentence_stay_out_of_the_columns(files, capsys):
    assert main(["translate", "the\tcat\nsleeps", "the cat sleeps", "--model", files["translate"]]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_other_translations_are_more_columns(files, capsys):
    options = ["--n-best", "3", "--max-length", "6", "--length-penalty", "0"]
    assert main(["translate", *SENTENCES, "--model", files["translate"], *options]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    search = Beam(beams=3, n_best=3, max_length=6, length_penalty=0)
    for row, found in zip(rows, vitcap.load(files["translate"]).translate(SENTENCES, search=search), strict=True):
        assert row[1:] == [found.text, *(other.text for other in found.alternatives)]
        assert len(row) == 4


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ([], None),
        (["--beams", "1", "--min-length", "2"], Greedy(max_length=8, min_length=2)),
        (["--beams", "2"], Beam(beams=2, max_length=8)),
        (["--sample", "--top-k", "3", "--seed", "7"], Sample(max_length=8, top_k=3)),
    ],
)
def test_search_options_are_those_of_captions(files, monkeypatch, options, search):
    translator, seen = vitcap.load(files["translate"]), []
    real = translator.translate
    monkeypatch.setattr(translator, "translate", lambda *a, **kw: (seen.append(kw), real(*a, **kw))[1])
    monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": translator)
    assert main(["translate", SENTENCES[0], "--model", "m", *options]) == 0
    assert seen == [
        {"batch_size": 1, "search": search, "seed": 7 if "--seed" in options else None, "need_attention": False}
    ]


def test_who_types_a_sentence_has_its_translation_before_the_next(files, monkeypatch):
    printed = io.StringIO()
    typed = Typed("\n".join(SENTENCES), printed)
    monkeypatch.setattr(sys, "stdin", typed)
    monkeypatch.setattr(sys, "stdout", printed)
    assert main(["translate", "--model", files["translate"]]) == 0
    assert typed.seen == [0, 1, 2, 3]


def test_alignments_are_drawn_and_numbered_as_the_sentences_are(files, tmp_path, capsys):
    out = tmp_path / "new" / "sheets"
    given = [SENTENCES[0], "", SENTENCES[2]]
    assert main(["translate", *given, "--model", files["translate"], "--out", str(out)]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["0001.png", "0001.txt", "0003.png", "0003.txt"]
    translator = vitcap.load(files["translate"])
    printed = capsys.readouterr().out.splitlines()
    for number in (1, 3):
        sentence = given[number - 1]
        found = translator.translate(sentence)
        lines = (out / f"000{number}.txt").read_text(encoding="utf-8").splitlines()
        assert lines[:2] == [f"translation: {found.text}", f"source: {sentence}"]
        assert [line.split(" ")[0] for line in lines[2:]] == [word.text for word in found.words]
        assert printed[number - 1] == f"{sentence}\t{found.text}"
        with Image.open(out / f"000{number}.png") as page:
            assert page.text["Description"] == "\n".join(lines)


def test_a_translation_without_words_has_no_picture(files, tmp_path, monkeypatch, capsys):
    translator = vitcap.load(files["translate"])
    with torch.no_grad():
        translator.model.decoder.out.bias[2] += 1000.0  # always the end
    monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": translator)
    assert main(["translate", SENTENCES[0], "--model", "m", "--out", str(tmp_path / "o")]) == 0
    out, err = capsys.readouterr()
    assert out == f"{SENTENCES[0]}\t\n"
    assert err == "vitcap: sentence 1: the model gave no words, so there is no alignment to draw\n"
    assert not list((tmp_path / "o").iterdir())


def test_a_model_without_attention_has_nothing_to_draw(tmp_path, capsys):
    file = str(save("translate", tmp_path, attention="none"))
    assert main(["translate", SENTENCES[0], "--model", file]) == 0
    assert main(["translate", SENTENCES[0], "--model", file, "--out", str(tmp_path / "o")]) == 2
    assert capsys.readouterr().err == ("vitcap: error: this model has no attention, so there is no alignment to draw\n")


def test_bytes_of_any_kind_in_a_pipe(files):
    """A byte order mark, accents, a byte that is no UTF-8, Windows line ends, in a locale that knows ASCII only."""
    given = b"\xef\xbb\xbfthe cat sleeps\r\nthe caf\xc3\xa9 \xe9\r\n"
    command = [sys.executable, "-c", "import sys; from vitcap.cli import main; sys.exit(main())"]
    command += ["translate", "--model", files["translate"]]
    environment = {"PATH": "", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(vitcap.__file__).parents[1])
    run = subprocess.run(command, input=given, capture_output=True, env=environment, check=False)
    assert run.returncode == 0
    assert run.stderr == b"vitcap: 1 of 2 sentences have words that the model does not know: caf\\xe9, \\ufffd\n"
    first, second = run.stdout.splitlines()
    assert first.startswith(b"the cat sleeps\t")
    assert first.split(b"\t")[1].decode() == vitcap.load(files["translate"]).translate("the cat sleeps").text
    assert second.startswith(b"the caf\xc3\xa9 \xe9\t")


# classify


def test_path_tab_classes_and_their_probabilities(files, photos, capsys):
    assert main(["classify", *photos, "--model", files["classify"], "--batch-size", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    classifier = vitcap.load(files["classify"])
    lines = out.splitlines()
    assert len(lines) == 4
    for path, line in zip(photos, lines, strict=True):
        shown = ", ".join(f"{p.name} {p.probability:.4f}" for p in classifier.classify(path))
        assert line == f"{path}\t{shown}"
    assert sum(
        float(part.rpartition(" ")[2]) for part in lines[0].split("\t")[1].split(", ") if part != "goldfish"
    ) == (pytest.approx(1.0, abs=3e-4))
    assert main(["classify", photos[0], "--model", files["classify"], "--top", "1"]) == 0
    best = classifier.classify(photos[0])[0]
    assert capsys.readouterr().out == f"{photos[0]}\t{best.name} {best.probability:.4f}\n"


def test_records_of_pictures(files, photos, tmp_path, capsys):
    out = tmp_path / "new" / "classes.jsonl"
    command = ["classify", *photos[:2], "--model", files["classify"], "--out", str(out), "--top", "2"]
    assert main(command) == 0
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    classifier = vitcap.load(files["classify"])
    assert [record["image"] for record in records] == photos[:2]
    for path, record in zip(photos, records, strict=False):
        expected = classifier.classify(path, top=2)
        assert [(c["name"], c["index"]) for c in record["classes"]] == [(p.name, p.index) for p in expected]
        assert [c["probability"] for c in record["classes"]] == pytest.approx(
            [p.probability for p in expected], abs=1e-5
        )
    assert capsys.readouterr() == ("", "")
    before = out.read_bytes()
    assert main(command) == 2
    assert capsys.readouterr().err == f"vitcap: error: {out} is there already: name another --out, or remove it\n"
    assert out.read_bytes() == before


def test_unreadable_pictures_are_reported_and_skipped(files, photos, tmp_path, capsys):
    Path(photos[1]).write_bytes(b"<html>not found</html>")
    given = [*photos, str(tmp_path / "nothing.png")]
    assert main(["classify", *given, "--model", files["classify"], "--batch-size", "2"]) == 1
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == [photos[0], *photos[2:]]
    lines = err.splitlines()
    assert lines[0].startswith(f"vitcap: skipped {photos[1]}: an HTML page")
    assert lines[1].startswith(f"vitcap: skipped {tmp_path / 'nothing.png'}: does not exist")
    assert lines[2:] == ["vitcap: 2 of 5 pictures could not be read"]
    file = tmp_path / "c.jsonl"
    assert main(["classify", *given, "--model", files["classify"], "--out", str(file)]) == 1
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [record["image"] for record in records] == given
    assert ["classes" in record for record in records] == [True, False, True, True, False]
    assert "HTML page" in records[1]["error"]


def test_folders_and_pictures_given_twice(files, photos, tmp_path, capsys):
    assert main(["classify", photos[2], str(tmp_path), "--model", files["classify"], "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == [photos[2], photos[0], photos[1], photos[3]]
    assert err == "vitcap: 1 pictures were given more than once and are taken once\n"
    assert main(["classify", photos[2], str(tmp_path), "--model", files["classify"], "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_overlay_draws_the_likeliest_classes(files, photos, tmp_path, capsys):
    out = tmp_path / "o"
    command = ["overlay", photos[0], "--model", files["classify"], "--out", str(out)]
    assert main([*command, "--top-classes", "2", "--format", "sheet,maps", "--method", "relevance"]) == 0
    first, second = vitcap.load(files["classify"]).classify(photos[0], top=2)
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == [
        "p0.png",
        f"p0.01-{first.name.replace(', ', '-')}.png",
        f"p0.02-{second.name.replace(', ', '-')}.png",
    ]
    lines = (out / "p0.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"class: {first.name}"
    assert lines[1].startswith("Gradient-weighted relevance")
    assert [line.partition(":")[0] for line in lines[2:]] == [first.name, second.name]
    for wrong, message in [(["--caption", "x"], "--caption is for"), (["--seed", "1"], "--seed is for")]:
        assert main([*command, *wrong]) == 2
        assert f"{message} models that write captions" in capsys.readouterr().err


# what both have in common


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        *(("caption", wrong) for wrong in ("translate", "classify")),
        ("overlay", "translate"),
        *(("translate", wrong) for wrong in ("caption", "classify")),
        *(("classify", wrong) for wrong in ("caption", "translate")),
    ],
)
def test_a_model_of_another_kind_is_one_clear_line(files, photos, tmp_path, capsys, command, wrong):
    out = ["--out", str(tmp_path / "o")] if command == "overlay" else []
    assert main([command, photos[0], "--model", files[wrong], *out]) == 2
    wanted = "caption or classify" if command == "overlay" else command
    assert capsys.readouterr() == (
        "",
        f"vitcap: error: {files[wrong]}: a model made to {wrong}, not to {wanted}; use `vitcap {wrong}`\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "x", "--beams", "0"], "--beams: '0': a whole number of at least 1"),
        (["translate", "x", "--n-best", "0"], "--n-best: '0'"),
        (["translate", "x", "--model", "m", "--top", "3"], "unrecognized arguments: --top 3"),
        (["classify"], "PHOTO_OR_FOLDER"),
        (["classify", "x.jpg", "--top", "0"], "--top: '0': a whole number of at least 1"),
        (["classify", "x.jpg", "--model", "m", "--beams", "2"], "unrecognized arguments: --beams 2"),
    ],
)
def test_usage_errors_take_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("vitcap: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "1"], "--seed is for random captions: add --sample"),
        (["--beams", "2", "--n-best", "3"], "--n-best 3 needs --beams 3 or more"),
        (["--min-length", "9"], "min_length=9 must be between 0 and max_length=8"),
        (["--device", "toaster"], "--device toaster: there is no such device"),
    ],
)
def test_options_that_contradict_each_other(files, options, message, capsys):
    assert main(["translate", SENTENCES[0], "--model", files["translate"], *options]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", [["translate", "x", "--out", "o"], ["classify", "x.jpg", "--out", "o"]])
def test_without_a_model(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(command)
    assert error.value.code == 2
    assert "the following arguments are required: --model" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_help_needs_no_heavy_library():
    heavy = "{'torch', 'lightning', 'hydra', 'timm', 'torchvision', 'tokenizers'} & set(sys.modules)"
    code = "import sys, vitcap.cli\nfor name in ('translate', 'classify'):\n try: vitcap.cli.main([name, '--help'])\n"
    code += f" except SystemExit: pass\nassert not {heavy}, {heavy}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Translate sentences, or the lines of standard input." in run.stdout
    assert "Name the classes of photos, or of all photos in folders." in run.stdout


def test_words_that_the_model_does_not_know_are_told(files, capsys):
    given = ["the zebra sleeps", "a dog", "yak zebra"]
    assert main(["translate", *given, "--model", files["translate"]]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == given
    assert err == "vitcap: 2 of 3 sentences have words that the model does not know: zebra, yak\n"


def test_a_length_that_the_decoder_does_not_reach_is_one_error(files, monkeypatch, capsys):
    translator = vitcap.load(files["translate"])
    translator.model.decoder.max_length = 10
    monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": translator)
    assert main(["translate", *SENTENCES, "--model", "m", "--max-length", "500"]) == 2
    assert capsys.readouterr() == ("", "vitcap: error: --max-length 500: the model's decoder ends at 10\n")


def test_an_alignment_that_is_too_large_to_draw_costs_no_translation(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vitcap.viz.alignment._PIXELS", 10)
    assert main(["translate", *SENTENCES[:2], "--model", files["translate"], "--out", str(tmp_path / "o")]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert [line.partition(", ")[0] for line in err.splitlines()] == [
        f"vitcap: sentence {n}: not drawn" for n in (1, 2)
    ]
