"""Training and evaluation of every kind of model as a whole, at toy size: sentences, hard attention, classes."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY
from hydra.errors import InstantiationException
from PIL import Image

import vitcap
from vitcap import run
from vitcap.classifier import Classifier
from vitcap.data.sentences import SentenceData
from vitcap.data.sequences import LENGTH_BINS, DigitsSource
from vitcap.tasks.captioning import CaptionTask
from vitcap.tasks.classification import ClassifyTask
from vitcap.tasks.losses import caption_loss
from vitcap.translator import Translator
from vitcap.types import PAD

DIGITS = [
    "data=digits",
    "data.source.task=copy",
    "data.source.min_length=2",
    "data.source.max_length=5",
    "data.source.train_size=160",
    "data.source.val_size=12",
    "data.source.test_size=6",
    "data.max_length=14",
]
SHORT = ["trainer.max_epochs=2", "task.lr=0.02", "overlays=0", "data.batch_size=16", "ema=null"]
ENCODERS = {
    "text_rnn": ["model.encoder.width=16", "model.encoder.embed_width=16"],
    "text_transformer": ["model.encoder.width=16", "model.encoder.depth=1", "model.encoder.heads=2"],
}
RECURRENT = ["model.decoder.width=16", "model.decoder.embed_width=16", "model.decoder.attention_width=16"]
DECODERS = {
    "bahdanau": RECURRENT,
    "rnn": [*RECURRENT, "model.decoder.attention=scaled_dot", "model.decoder.dropout=0.1"],
    "transformer": [
        "model.decoder.width=16",
        "model.decoder.depth=1",
        "model.decoder.heads=2",
        "model.decoder.max_length=50",
    ],
}


def seq2seq(encoder: str = "text_rnn", decoder: str = "bahdanau") -> list[str]:
    """Overrides of a tiny model of sentences."""
    parts = [f"model/encoder={encoder}", f"model/decoder={decoder}"]
    return ["model=seq2seq", *parts, *ENCODERS[encoder], *DECODERS[decoder]]


def val_loss(model, data) -> float:
    """Cross-entropy of the val split, in nats a token."""
    model.eval()
    total = count = 0.0
    with torch.no_grad():
        for batch in data.loader("val"):
            loss, tokens = caption_loss(model(batch).logits, batch.captions[:, :, 1:])
            total, count = total + float(loss) * tokens, count + tokens
    return total / count


def outputs(path: Path, sentences: list[str]) -> list[tuple[str, float]]:
    return [(c.text, c.score) for c in vitcap.load(path).translate(sentences)]


CASES = [(encoder, decoder, ()) for encoder in ENCODERS for decoder in DECODERS]
CASES.append(("text_rnn", "bahdanau", ("model.decoder.attention=none",)))


@pytest.mark.parametrize(("encoder", "decoder", "more"), CASES)
def test_every_model_of_sentences_learns_and_is_found_again(encoder, decoder, more, config, tmp_path):
    out = tmp_path / "run"
    cfg = config(*seq2seq(encoder, decoder), *DIGITS, *SHORT, *more, "overlays=2", f"out={out}")
    untrained = run.build(cfg)
    before = val_loss(untrained.model, untrained.data)
    report = run.train(cfg)
    translator = vitcap.load(out)
    assert isinstance(translator, Translator)
    assert val_loss(translator.model, untrained.data) < 0.93 * before

    assert json.loads((out / "scores.json").read_text()) == report
    assert set(report["scores"]) == {"exact", "BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"}
    facts = report["facts"]
    assert (facts["data"], facts["split"], facts["sentences"]) == ("digits", "val", 12)
    assert facts["decoding"]["search"] == "greedy"
    assert translator.description["facts"]["scores"] == report["scores"]
    attends = not more
    assert (report["alignment"] is not None) == attends
    sheets = sorted(p.name for p in (out / "overlays").glob("*.png")) if (out / "overlays").exists() else []
    written = {row["id"]: row["output"] for row in csv.DictReader((out / "translations.tsv").open(), delimiter="\t")}
    first = [f"{id_}.png" for id_ in list(written)[:2] if written[id_]]
    assert sheets == (first if attends else [])

    sentences = [record.source for record in untrained.data.records("val")]
    found = outputs(out / "model.safetensors", sentences)
    assert [text for text, _ in found] == list(written.values())
    assert found == outputs(out / "checkpoints" / "best.ckpt", sentences)
    again = run.evaluate(config(f"checkpoint={out}", *DIGITS, f"out={tmp_path / 'e'}", name="evaluate"))
    for part in ("scores", "by_length", "alignment"):
        assert again[part] == report[part]


def test_length_and_alignment_of_translations(config, tmp_path):
    sizes = ["data=translation", "data.source.train_size=48", "data.source.val_size=8", "data.source.test_size=8"]
    out = tmp_path / "run"
    report = run.train(config(*seq2seq(), *sizes, *SHORT, "trainer.max_epochs=1", f"out={out}"))
    bins = [(row["low"], row["high"], row["count"]) for row in report["by_length"]]
    assert bins == [(low, high, 2) for low, high in LENGTH_BINS]  # the source draws as many of each
    alignment = report["alignment"]
    data = SentenceData(lambda: run.build(config(*seq2seq(), *sizes)).data.source)
    words = sum(len(record.targets[0].split()) for record in data.records("val"))
    assert (alignment["sentences"], alignment["words"]) == (8, words)
    assert 0 <= alignment["AER"] <= 1
    assert Image.open(out / "lengths.png").width > 300
    longer = ["decode=beam", "decode.beams=2", "split=test"]
    again = run.evaluate(config(f"checkpoint={out}", *sizes, *longer, f"out={tmp_path / 'e'}", name="evaluate"))
    assert (again["facts"]["split"], again["facts"]["decoding"]["beams"]) == ("test", 2)


def test_digits_longer_than_in_training_have_a_split_of_their_own(config, tmp_path):
    out = tmp_path / "run"
    run.train(config(*seq2seq("text_transformer"), *DIGITS, *SHORT, "trainer.max_epochs=1", f"out={out}"))
    again = run.evaluate(
        config(f"checkpoint={out}", *DIGITS, "split=long", f"out={tmp_path / 'e'}", name="evaluate"),
    )
    assert {(row["low"] > 5, row["high"] <= 10) for row in again["by_length"]} == {(True, True)}
    assert again["alignment"]["words"] == sum(
        len(r.source.split())
        for r in DigitsSource(task="copy", min_length=2, max_length=5, train_size=160, val_size=12, test_size=6).split(
            "long"
        )
    )


PAIRS = [
    ("The cat sleeps .", "Le chat dort .", "0-0 1-1 2-2 3-3"),
    ("The dog sleeps .", "Le chien dort .", "0-0 1-1 2-2 3-3"),
    ("The cat , the dog !", "Le chat , le chien !", "0-0 1-1 2-2 3-3 4-4 5-5"),
    ("The dog eats .", "Le chien mange .", "0-0 1-1 2-2 3-3"),
]


def held_out() -> list[str]:
    """The source sentences of val."""
    return [f"{source} 99" for source, _, _ in PAIRS]


def write_pairs(root: Path, *, repeat: int = 12) -> Path:
    """Pairs with punctuation, which the word tokenizer drops, and links that count it."""
    root.mkdir()
    rows = [(f"{source} {i}", f"{target} {i}", links) for i in range(repeat) for source, target, links in PAIRS]
    text = "\n".join("\t".join(row) for row in rows)
    (root / "train.tsv").write_text(text, encoding="utf-8")
    held = [(source, f"{target} 99", links) for source, (_, target, links) in zip(held_out(), PAIRS, strict=True)]
    (root / "val.tsv").write_text("\n".join("\t".join(row) for row in held), encoding="utf-8")
    return root


@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
def test_parallel_text_of_ones_own(tokenizer, config, tmp_path, monkeypatch):
    root = write_pairs(tmp_path / "my text")
    data = ["data=pairs", f"data.root='{root}'", f"data.tokenizer={tokenizer}", "data.vocab_size=300"]
    out = tmp_path / "run"
    cfg = config(
        *seq2seq(), *data, *SHORT, "overlays=3", f"trainer.max_epochs={12 if tokenizer == 'word' else 1}", f"out={out}"
    )
    report = run.train(cfg)
    assert report["facts"]["data"] == "pairs"
    if tokenizer == "word":
        assert report["scores"]["BLEU-1"] > 0.4
    # Of the 4 + 4 + 6 + 4 words and the four numbers the word tokenizer drops the five marks; bpe keeps all.
    assert report["alignment"]["words"] == (17 if tokenizer == "word" else 22)
    names = sorted(path.name for path in (out / "overlays").glob("*.png"))
    assert names == ["val.tsv-1.png", "val.tsv-2.png", "val.tsv-3.png"]
    ids = [row["id"] for row in csv.DictReader((out / "translations.tsv").open(encoding="utf-8"), delimiter="\t")]
    assert ids == [f"val.tsv:{line}" for line in range(1, 5)]

    # The model's own vocabularies count, whatever the training text that lies beside the text it is scored on.
    (root / "train.tsv").write_text("zebra yak zebra yak\tzèbre yack zèbre yack\n", encoding="utf-8")
    translator, read, write = vitcap.load(out), [], Translator.write
    monkeypatch.setattr(Translator, "write", lambda self, batch, **o: (read.append(batch), write(self, batch, **o))[1])
    again = run.evaluate(config(f"checkpoint={out}", *data[:2], f"out={tmp_path / 'e'}", name="evaluate"))
    assert again["scores"] == report["scores"]
    assert again["alignment"] == report["alignment"]
    for sentence, source in zip(held_out(), read[0].source, strict=True):
        assert source[source != PAD].tolist() == translator.encode(sentence).tolist()


def test_alignment_leaves_out_what_the_decoder_cannot_read_to_the_end(config, tmp_path):
    root = write_pairs(tmp_path / "text", repeat=3)
    with open(root / "val.tsv", "a", encoding="utf-8") as file:
        file.write("\nThe cat sleeps " + "long " * 30 + "\tLe chat dort " + "longtemps " * 30 + "\t0-0")
    data = ["data=pairs", f"data.root={root}", "data.max_length=8", "decode.max_length=8", "data.min_count=1"]
    model = [
        *seq2seq("text_transformer", "transformer"),
        "model.decoder.max_length=8",
        "validation_decode.max_length=8",
    ]
    out = tmp_path / "run"
    report = run.train(config(*model, *data, *SHORT, "trainer.max_epochs=1", "overlays=5", f"out={out}"))
    assert (report["facts"]["sentences"], report["alignment"]["sentences"]) == (5, 4)
    wider = ["data=pairs", f"data.root={root}", "data.max_length=50"]
    again = run.evaluate(config(f"checkpoint={out}", *wider, f"out={tmp_path / 'e'}", name="evaluate"))
    assert again["alignment"] == report["alignment"]


# hard attention on pictures

HARD = ["model/encoder=cnn", "model.encoder.channels=[8,8,16]", "model.encoder.width=16", "model/decoder=rnn"]
HARD += [*RECURRENT, "model.decoder.hard=true"]
SCENES = [o for o in TINY if o.startswith(("data.source", "overlays"))]


def test_hard_attention_on_pictures(config, tmp_path):
    out = tmp_path / "run"
    options = ["data.batch_size=8", "task.reinforce=0.5", "task.entropy=0.1", "task.lr=0.02", "ema=null"]
    options += ["trainer.log_every_n_steps=1"]
    cfg = config(*HARD, *SCENES, *options, "trainer.max_epochs=2", "overlays=1", f"out={out}")
    untrained = run.build(cfg)
    before = val_loss(untrained.model, untrained.data)
    run.train(cfg)
    captioner = vitcap.load(out)
    assert val_loss(captioner.model, untrained.data) < 0.9 * before
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    entropy = [float(row["train/places_entropy"]) for row in rows if row.get("train/places_entropy")]
    assert len(entropy) == 10
    assert 0 < max(entropy) <= np.log(64) + 1e-4
    photo = untrained.data.records("val")[0].open()
    attention = captioner.caption(photo, need_attention=True).attention
    assert attention.shape[3] == 64
    assert set(np.unique(attention)) == {0.0, 1.0}, "one place at a time"
    assert len(list((out / "overlays").glob("*.png"))) == 1


def test_the_doubly_stochastic_penalty_reaches_training(config, tmp_path):
    soft = [o for o in HARD if "hard" not in o]
    options = ["data.batch_size=8", "task.doubly_stochastic=1.0", "trainer.log_every_n_steps=1"]
    run.train(config(*soft, *SCENES, *options, "trainer.max_epochs=1", f"out={tmp_path}"))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    penalty = [float(row["train/doubly_stochastic"]) for row in rows if row.get("train/doubly_stochastic")]
    assert len(penalty) == 5
    assert min(penalty) > 0
    with pytest.raises(ValueError, match=r"task\.doubly_stochastic=1.0 needs soft attention"):
        run.train(config(*HARD, *SCENES, *options, f"out={tmp_path / 'hard'}"))


# classes

VIT = [o for o in TINY if o.startswith("model.encoder")]


def write_folder(root: Path, *, names: tuple[str, ...] = ("blue", "green", "red"), count: int = 8) -> Path:
    """{train,val}/CLASS/N.png: pictures in the colour of their class, and some noise."""
    colours = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
    random = np.random.default_rng(0)
    for split, size in (("train", count), ("val", 4)):
        for name in names:
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(size):
                noise = random.integers(-25, 26, (40, 40, 3))
                Image.fromarray((np.array(colours[name]) + noise).clip(0, 255).astype(np.uint8)).save(
                    folder / f"{i}.png"
                )
    return root


def test_classes_of_drawn_scenes(config, tmp_path):
    out = tmp_path / "run"
    data = ["data.source.train_size=160", "data.source.val_size=24"]
    options = ["trainer.max_epochs=1", "task.lr=0.003", "ema=null", "overlays=0", "data.batch_size=16"]
    cfg = config("model=vit_classify", *VIT, *data, *options, f"out={out}")
    before = run.build(cfg).door().logits
    report = run.train(cfg)
    classifier = vitcap.load(out)
    assert isinstance(classifier, Classifier)
    assert report["facts"]["split"] == "val"
    assert {path.name for path in out.iterdir()} >= {"predictions.csv", "per_class.json", "confusion.png"}

    loaded = run.build(cfg).data
    loaded.preprocess = classifier.preprocess
    losses = []
    for logits in (before, classifier.logits):
        batches = [(logits(batch), batch.labels) for batch in loaded.loader("val")]
        losses.append(float(sum(torch.nn.functional.cross_entropy(x, y, reduction="sum") for x, y in batches)) / 24)
    assert losses[1] < losses[0]
    assert report["scores"]["NLL"] == pytest.approx(losses[1], abs=1e-4)
    rows = list(csv.DictReader((out / "predictions.csv").open()))
    right = sum(row["class"] == row["predicted"] for row in rows)
    assert report["scores"]["top-1"] == pytest.approx(right / 24)
    again = run.evaluate(config(f"checkpoint={out}", *data, f"out={tmp_path / 'e'}", name="evaluate"))
    assert again["scores"] == pytest.approx(report["scores"], abs=1e-12)


def test_classes_of_folders(config, tmp_path):
    root, out = write_folder(tmp_path / "pictures"), tmp_path / "run"
    data = ["data=imagenet", f"data.root={root}"]
    options = ["trainer.max_epochs=8", "task.lr=0.01", "ema=null", "data.batch_size=8", "data.on_bad=skip"]
    (root / "val" / "red" / "0.png").write_bytes(b"no picture")
    report = run.train(config("model=vit_classify", *VIT, *data, *options, f"out={out}"))
    assert report["scores"]["top-1"] == 1.0, "colours are easy"
    assert report["facts"]["unreadable_images"] == 1
    classifier = vitcap.load(out)
    assert classifier.classes == ("blue", "green", "red")
    assert classifier.classify(Image.new("RGB", (90, 50), (230, 20, 30)))[0].name == "red"
    pictures = sorted((root / "val").rglob("[1-3].png"))
    found = [p[0].name for p in classifier.classify(pictures)]
    assert found == [path.parent.name for path in pictures]

    # Other folders of the same classes: two of three, in another order, under the model's own numbers.
    other = write_folder(tmp_path / "others", names=("red", "blue"))
    again = run.evaluate(
        config(f"checkpoint={out}", "data=imagenet", f"data.root={other}", f"out={tmp_path / 'e'}", name="evaluate")
    )
    assert again["scores"]["top-1"] == 1.0
    for split in ("train", "val"):
        (other / split / "zebra").mkdir()
    Image.new("RGB", (8, 8)).save(other / "val" / "zebra" / "1.png")
    with pytest.raises(ValueError, match="not one of the 3 classes"):
        run.evaluate(config(f"checkpoint={out}", "data=imagenet", f"data.root={other}", name="evaluate"))


# resuming

TO_RESUME = {
    "sentences": ([*seq2seq(), *DIGITS, "data.source.train_size=40", "data.batch_size=8"], CaptionTask),
    "hard attention": ([*HARD, *SCENES, "data.batch_size=8", "model.decoder.dropout=0.2"], CaptionTask),
    "classes": (
        ["model=vit_classify", *VIT, *SCENES, "data.batch_size=8", "model.encoder.dropout=0.1", "task.mixup=0.2"],
        ClassifyTask,
    ),
}


@pytest.mark.parametrize("kind", TO_RESUME)
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(kind, config, tmp_path, monkeypatch):
    overrides, task = TO_RESUME[kind]
    common = [*overrides, "overlays=0", "trainer.max_epochs=2", "save_every=1", "ema=0.9"]  # 2 x 5 steps
    whole_report = run.train(config(*common, f"out={tmp_path / 'whole'}"))
    step = task.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 7:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(task, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.train(config(*common, f"out={tmp_path / 'parts'}"))
    monkeypatch.setattr(task, "training_step", step)
    torch.manual_seed(123)
    report = run.train(config(*common, f"out={tmp_path / 'parts'}", "resume=true"))

    whole, parts = (
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "parts")
    )
    assert whole["global_step"] == parts["global_step"] == 10
    for key in ("state_dict", "current_model_state"):
        for name, tensor in whole[key].items():
            assert torch.equal(tensor, parts[key][name]), (key, name)
    assert whole.get("baseline") == parts.get("baseline")
    assert (whole.get("baseline") is not None) == (kind == "hard attention")
    assert report["scores"] == whole_report["scores"]


def test_what_cannot_be_resumed_from_is_named(config, tmp_path):
    out = tmp_path / "run"
    common = [*seq2seq(), *SHORT, "trainer.max_epochs=1"]
    run.train(config(*common, *DIGITS, f"out={out}"))
    root = write_pairs(tmp_path / "text", repeat=2)
    with pytest.raises(ValueError, match=r"of another model \((source )?vocabulary differs\)"):
        run.train(config(*common, "data=pairs", f"data.root={root}", f"resume={out}", f"out={tmp_path / 'other'}"))


# wrong pairings

WRONG = {
    "pictures for a model of sentences": (["model=seq2seq", "data=shapes"], "RnnTextEncoder reads sentences: choose"),
    "sentences for a model of pictures": (["data=digits"], "VisionTransformer reads pictures: choose other data"),
    "sentences for a classifier": (["model=vit_classify", "data=digits"], "data=digits has no classes"),
    "captions for a classifier": (["model=vit_classify", "data=table", "data.root={captions}"], "has no classes"),
    "classes for a captioner": (["data=imagenet", "data.root={folder}"], "data=image_folder has no captions"),
    "an encoder of pictures": (["model=seq2seq", "model/encoder=cnn"], "ConvEncoder reads pictures: choose other data"),
    "the task of a classifier": (["task=classification", *SCENES], "made to caption wants task=captioning"),
    "the task of a captioner": (["model=vit_classify", "task=captioning", *SCENES], "wants task=classification"),
    "a short decoder": (
        ["model=seq2seq", "model/decoder=transformer", "data.max_length=60"],
        r"model\.decoder\.max_length=\d+ is too short for data\.max_length=60",
    ),
    "a short encoder": (
        ["model=seq2seq", "model/encoder=text_transformer", "model.encoder.position=learned", "data.max_length=120"],
        r"model\.encoder\.max_length=100 is too short for data\.max_length=120",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_parts_that_do_not_go_together_are_one_clear_error(case, config, tmp_path, capsys):
    overrides, message = WRONG[case]
    folder, captions = write_folder(tmp_path / "pictures", count=2), tmp_path / "captions"
    captions.mkdir()
    Image.new("RGB", (8, 8)).save(captions / "a.png")
    Image.new("RGB", (8, 8)).save(captions / "b.png")
    (captions / "t.csv").write_text("image,split,caption\na.png,train,a cat\nb.png,val,a cat\n")
    places = {"folder": folder, "captions": captions}
    cfg = config(*(o.format(**places) for o in overrides), "data.train_limit=4", "data.val_limit=2", f"out={tmp_path}")
    with pytest.raises(SystemExit) as stop:
        run.command(run.train, cfg)
    assert stop.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitcap: error:")]
    assert len(lines) == 1
    assert re.search(message, lines[0]), lines[0]


def test_a_model_and_data_of_other_kinds_are_one_clear_error_in_evaluation(config, tmp_path):
    sentences, classes, out = tmp_path / "s", tmp_path / "c", f"out={tmp_path / 'e'}"
    run.train(config(*seq2seq(), *DIGITS, *SHORT, "trainer.max_epochs=1", f"out={sentences}"))
    root = write_folder(tmp_path / "pictures", count=2)
    data = ["data=imagenet", f"data.root={root}"]
    run.train(config("model=vit_classify", *VIT, *data, *SHORT, "trainer.max_epochs=1", f"out={classes}"))
    for checkpoint, overrides, message in (
        (sentences, [], r"a model of sentences .*, which data=shapes are not"),
        (classes, ["data=digits"], "a model of pictures, which data=digits are not"),
        (classes, ["data.source.train_size=4"], r"the classes of data=shapes .* are not those of .*blue, green, red"),
    ):
        with pytest.raises(ValueError, match=message):
            run.evaluate(config(f"checkpoint={checkpoint}", *overrides, out, name="evaluate"))
    assert not (tmp_path / "e").exists(), "nothing is written before the check"


def test_sentences_too_short_for_bleu_4_are_chosen_by_their_loss(config, tmp_path):
    short = [*DIGITS, "data.source.max_length=3", "data.source.train_size=40"]
    cfg = config(*seq2seq(), *short, f"out={tmp_path}")
    assert run.build_task(cfg, run.build(cfg))[1:] == ("val/loss", "min")
    cfg = config(*seq2seq(), *DIGITS, f"out={tmp_path}")
    assert run.build_task(cfg, run.build(cfg))[1:] == ("val/BLEU-4", "max")


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        ("text_rnn", ["model.decoder.width=0"], r"^model\.decoder: width=0: a whole number of at least 1"),
        ("text_rnn", ["model.decoder.embed_width=0"], r"^model\.decoder: embed_width=0: a whole number"),
        ("text_rnn", ["model.decoder.width=12.5"], r"^model\.decoder: width=12\.5: a whole number"),
        ("text_rnn", ["model.decoder.width=wide"], r"^model\.decoder: width=wide: a whole number"),
        ("text_rnn", ["model.decoder.attention_width=0"], r"^model\.decoder: attention_width=0: a whole number"),
        ("text_rnn", ["model.encoder.depth=0"], r"^model\.encoder: depth=0: a whole number"),
        ("text_transformer", ["model.encoder.heads=3"], r"^model\.encoder: width 16 is not a multiple of 3 heads$"),
        ("text_transformer", ["model.encoder.heads=0"], r"^model\.encoder: heads=0: a whole number"),
        ("text_transformer", ["model.encoder.depth=0"], r"^model\.encoder: depth=0: a whole number"),
        ("text_transformer", ["model.encoder.mlp_ratio=0"], r"^model\.encoder: a hidden layer of 0 \(mlp_ratio"),
    ],
)
def test_sizes_of_no_model_name_part_and_option(part, options, message, config):
    with pytest.raises(ValueError, match=message):
        run.build(config(*seq2seq(part), *DIGITS, *options))


@pytest.mark.parametrize("option", ["depth=0", "heads=0"])
def test_sizes_of_no_transformer_decoder(option, config):
    name = option.partition("=")[0]
    with pytest.raises(ValueError, match=rf"^model\.decoder: {name}=0: a whole number of at least 1"):
        run.build(config(*seq2seq(decoder="transformer"), *DIGITS, f"model.decoder.{option}"))


def test_a_model_that_computes_something_else_is_no_start(config, tmp_path):
    """Heads, alignment functions and missing layers do not show in the shapes of the weights that are there."""
    model = [*seq2seq("text_transformer", "transformer"), *DIGITS, *SHORT]
    out = tmp_path / "start"
    run.train(config(*model, "trainer.max_steps=2", f"out={out}"))
    run.build(config(*model, f"init={out}", "model.decoder.dropout=0.3"))
    for option, message in (
        (
            "model.decoder.heads=4",
            r"there decoder\.heads is 2, here 4: give the same model options \(model\.decoder\.heads=2\)$",
        ),
        ("model.encoder.heads=4", r"there encoder\.heads is 2, here 4: give the same"),
        ("model.decoder.depth=2", r"there decoder\.depth is 1, here 2: give the same"),
    ):
        with pytest.raises(ValueError, match=rf"^init=.*: {message}"):
            run.build(config(*model, f"init={out}", option))
        if "heads" in option:
            with pytest.raises(ValueError, match=r"of another model \(there model\..*heads is 2, here 4\); resume"):
                run.train(config(*model, option, "resume=true", f"out={out}"))
    with pytest.raises(ValueError, match=r"a model made to translate, but this one is to caption; choose out="):
        run.train(config(*TINY, "resume=true", f"out={out}"))
    other = ["data=translation", "data.source.train_size=20", "data.source.val_size=4", "data.source.test_size=4"]
    with pytest.raises(ValueError, match=r"^init=.*its vocabulary lacks 100 % of the words of data=translation"):
        run.build(config(*seq2seq("text_transformer", "transformer"), *other, f"init={out}"))


def test_self_critical_training_without_a_start(config, tmp_path):
    with pytest.raises(ValueError, match=r"^task=self_critical starts from a model .*: give init=RUN$"):
        run.train(config(*seq2seq(), *DIGITS, *SHORT, "task=self_critical", f"out={tmp_path}"))


def test_classes_that_are_too_few(config, tmp_path):
    root = write_folder(tmp_path, names=("red",))
    with pytest.raises(ValueError, match=r"^data=image_folder: 1 class \('red'\), and a classifier tells at least 2"):
        run.build(config("model=vit_classify", *VIT, "data=imagenet", f"data.root={root}"))
    with pytest.raises(InstantiationException, match=r"model\.head\.dropout=2: a number from 0 to 1"):
        run.build(config("model=vit_classify", *VIT, *SCENES, "model.head.dropout=2"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"compare: error: a run is named twice"),
        (["{"], r"1.scores\.json: damaged \(.*\); score the run again"),
        (["[]"], r"1.scores\.json: no scores by length"),
        (['{"by_length": [{"low": 1}]}'], r"1.scores\.json: no facts or no lengths in it; score the run again"),
        (["SAME"], r"0 and 1 were scored on different sentences"),
    ],
)
def test_runs_that_do_not_compare(files, message, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "scripts"))
    import compare

    row = {"low": 1, "high": 2, "count": 1, "exact": 0.5, "bleu": 0.5}
    good = json.dumps({"by_length": [row], "facts": {"data": "pairs", "split": "val"}})
    for number, text in enumerate([good, *files]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "scores.json").write_text(good if text == "SAME" else text)
        lines = f"id\tsource\toutput\ttarget\n1\ta {number}\tb\tc\n"
        (tmp_path / str(number) / "translations.tsv").write_text(lines)
    runs = [str(tmp_path / str(number)) for number in ((0, 1) if files else (0, 0))]
    assert compare.main([*runs, "--out", str(tmp_path / "f.png")]) == 2
    out, err = capsys.readouterr()
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert out == ""
