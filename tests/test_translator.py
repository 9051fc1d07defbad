"""Models of sentences ready for use: translation, alignment, their files, their scores, their pictures."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitcap
from vitcap import checkpoint
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.sentences import SentenceData
from vitcap.data.sequences import SequenceRecord
from vitcap.data.tokenizer import Tokenizer
from vitcap.decoding import Beam, Greedy, Sample
from vitcap.drawing import alignment_page, draw_alignments
from vitcap.evaluation.captions import write_split
from vitcap.evaluation.judging import sentence_judge
from vitcap.evaluation.sentences import align_split, evaluate_sentences
from vitcap.models.captioner import CaptionModel
from vitcap.record import Word
from vitcap.translator import Translator
from vitcap.types import BOS, EOS, Batch
from vitcap.writer import Caption

SOURCES = ["the cat sleeps", "a dog eats the bone", "the small cat eats", "a bone", "the dog sleeps in the house"]
TARGETS = ["le chat dort", "un chien mange l' os", "le petit chat mange", "un os", "le chien dort dans la maison"]
RECURRENT = {"_target_": "vitcap.models.rnn_decoder.RnnDecoder", "width": 16, "embed_width": 8, "attention_width": 8}
DECODERS: dict[str, dict[str, Any]] = {
    "attention": RECURRENT,
    "no attention": RECURRENT | {"attention": "none", "initial": "pooled"},
    "transformer": {"_target_": "vitcap.models.transformer_decoder.TransformerDecoder", "width": 16, "depth": 2}
    | {"heads": 2, "max_length": 12},
}


def make(kind: str = "attention", *, tokenizer: str = "space") -> Translator:
    """A small translator with random weights."""
    sizes = {"kind": tokenizer, "min_count": 1, "vocab_size": 280}
    sources, targets = Tokenizer.train(SOURCES, **sizes), Tokenizer.train(TARGETS, **sizes)
    encoder = {"_target_": "vitcap.models.text.RnnTextEncoder", "width": 16, "embed_width": 8}
    encoder |= {"vocab_size": sources.vocab_size}
    decoder = DECODERS[kind] | {"memory_width": 16, "vocab_size": targets.vocab_size}
    description = checkpoint.describe(
        kind="translate",
        encoder=encoder,
        decoder=decoder,
        tokenizer=targets,
        source_tokenizer=sources,
        decode={"_target_": "vitcap.decoding.Greedy", "max_length": 9},
        facts={"data": "test"},
    )
    torch.manual_seed(3)
    model = CaptionModel(checkpoint.build(encoder), checkpoint.build(decoder))
    with torch.no_grad():  # surer of itself than random weights are, so that sentences differ
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return Translator(model, sources, targets, search=Greedy(max_length=9), description=description)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make()


# translation


def test_a_sentence_alone_and_in_any_batch(translator: Translator) -> None:
    alone = [translator.translate(sentence, need_attention=True) for sentence in SOURCES]
    assert len({caption.text for caption in alone}) > 1
    for size in (1, 2, 64):
        for one, found in zip(alone, translator.translate(SOURCES, batch_size=size, need_attention=True), strict=True):
            assert (found.text, found.tokens) == (one.text, one.tokens)
            assert found.log_probs == pytest.approx(one.log_probs, abs=1e-5)
            assert one.attention is not None
            assert found.attention is not None
            width = one.attention.shape[-1]
            np.testing.assert_allclose(found.attention[..., :width], one.attention, atol=1e-6)
            assert not found.attention[..., width:].any(), "nothing of the padding is seen"
    assert translator.translate([]) == []


@pytest.mark.parametrize("kind", DECODERS)
def test_log_probabilities_are_those_of_the_model(kind: str) -> None:
    translator = make(kind)
    for sentence in SOURCES:
        found = translator.translate(sentence, search=Beam(beams=3, max_length=9))
        captions = torch.tensor([[[BOS, *found.tokens]]])
        with torch.no_grad():
            source = torch.tensor([translator.source_tokenizer.encode(sentence)])
            logits = translator.model(Batch(ids=(0,), source=source, captions=captions)).logits[0, 0]
        wanted = [logits[t].log_softmax(-1)[token].item() for t, token in enumerate(found.tokens)]
        assert found.log_probs == pytest.approx(wanted, abs=1e-4)
        assert found.finished == (found.tokens[-1] == EOS)
        assert found.text == translator.tokenizer.decode(found.tokens)


def test_attention_is_over_the_words_of_the_source(translator: Translator) -> None:
    found = translator.translate(SOURCES[1], need_attention=True)
    assert found.attention is not None
    assert found.attention.shape == (len(found.tokens), 1, 1, 5)
    assert found.attention.sum(-1) == pytest.approx(1.0, abs=1e-5)
    assert translator.translate(SOURCES[1]).attention is None
    assert make("transformer").translate(SOURCES[1], need_attention=True).attention.shape[1:] == (2, 2, 5)  # type: ignore[union-attr]
    assert make("no attention").translate(SOURCES[1], need_attention=True).attention is None


def test_n_best(translator: Translator) -> None:
    found = translator.translate(SOURCES[0], n_best=3)
    ranked = [found, *found.alternatives]
    assert len(ranked) == len({caption.tokens for caption in ranked}) == 3
    assert [c.score for c in ranked] == sorted((c.score for c in ranked), reverse=True)
    with pytest.raises(ValueError, match="n_best=2 needs a beam search"):
        translator.translate(SOURCES[0], n_best=2, search=Sample())
    for option in ("n_best", "batch_size"):
        with pytest.raises(ValueError, match=f"{option}=0: must be at least 1"):
            translator.translate(SOURCES, **{option: 0})


def test_sampling_is_seeded(translator: Translator) -> None:
    search = Sample(max_length=9, temperature=2.0)
    texts = [[c.text for c in translator.translate(SOURCES, search=search, seed=seed)] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("sentence", ["", "   ", "\t\n"])
def test_a_sentence_without_words_is_quoted(translator: Translator, sentence: str) -> None:
    for act in (lambda: translator.translate(sentence), lambda: translator.translate([SOURCES[0], sentence])):
        with pytest.raises(ValueError, match="no word is left of the sentence") as error:
            act()
        assert repr(sentence) in str(error.value)


def test_unknown_words_are_read_as_such(translator: Translator) -> None:
    assert translator.source_words("the zebra sleeps") == ["the", "<unk>", "sleeps"]
    assert translator.translate("the zebra sleeps").text == translator.translate("the yak sleeps").text


# alignment


@pytest.mark.parametrize("kind", ["attention", "transformer"])
def test_reading_a_translation_attends_as_writing_it_did(kind: str) -> None:
    translator = make(kind)
    written = [translator.translate(sentence, need_attention=True) for sentence in SOURCES]
    read = translator.align(SOURCES, [caption.text for caption in written], batch_size=2)
    for sentence, caption, weights in zip(SOURCES, written, read, strict=True):
        assert caption.attention is not None
        words = len(caption.words)
        assert weights.shape == (words, len(sentence.split()))
        np.testing.assert_allclose(weights, caption.attention[:words].mean((1, 2)), atol=1e-5)


def test_pieces_of_words_are_summed_on_one_side_and_averaged_on_the_other() -> None:
    translator = make(tokenizer="bpe")
    source, target = "the catty dog", "le chaton mange"
    ids, words = translator.source_tokenizer.encode(source), translator.tokenizer.encode(target)
    with torch.no_grad():
        batch = Batch(ids=(0,), source=torch.tensor([ids]), captions=torch.tensor([[[BOS, *words, EOS]]]))
        attention = translator.model(batch, need_attention=True).attention[0, 0, :, 0, 0].double().numpy()
    columns = [(start, stop) for _, start, stop in translator.source_tokenizer.words(ids)]
    rows = [(start, stop) for _, start, stop in translator.tokenizer.words(words)]
    assert len(columns) == len(rows) == 3
    assert max(stop - start for start, stop in columns) > 1
    expected = np.zeros((3, 3))
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            for t in range(top, bottom):
                expected[i, j] += sum(attention[t, s] for s in range(left, right)) / (bottom - top)
    np.testing.assert_allclose(translator.align([source], [target])[0], expected, atol=1e-6)
    assert translator.source_words(source) == ["the", "catty", "dog"]


def test_no_alignment_without_attention() -> None:
    with pytest.raises(ValueError, match="this model has no attention"):
        make("no attention").align(SOURCES[:1], TARGETS[:1])


def test_links_are_renumbered_for_the_words_that_are_left() -> None:
    words = make(tokenizer="word")
    source, target = "The cat , sleeps .", "Le chat dort, et/ou mange !"
    #          words:  0   1      2            0  1    2     3  4  5
    links = {(0, 0), (1, 1), (2, 2), (3, 2), (4, 5), (3, 3)}
    assert words.relink(links, source, target) == {(0, 0), (1, 1), (2, 2), (2, 3), (2, 4)}
    for kind in ("space", "bpe"):
        assert make(tokenizer=kind).relink(links, source, target) == links
    assert words.relink(links - {(4, 5)}, source, target) == words.relink(links, source, target)
    assert make(tokenizer="bpe").relink({(0, 0)}, "the\u00a0cat", "le chat") is None


# files


@pytest.mark.parametrize("kind", DECODERS)
def test_a_model_file_is_complete(kind: str, tmp_path: Path) -> None:
    translator = make(kind)
    file = translator.save(tmp_path / "model.safetensors")
    loaded = vitcap.load(tmp_path)
    assert isinstance(loaded, Translator)
    assert loaded.search == Greedy(max_length=9)
    assert loaded.description == translator.description
    assert loaded.source_tokenizer.to_json() == translator.source_tokenizer.to_json()
    for one, other in zip(translator.translate(SOURCES), loaded.translate(SOURCES), strict=True):
        assert (one.text, one.score) == (other.text, other.score)
    assert Translator.load(file).translate(SOURCES[0]).text == loaded.translate(SOURCES[0]).text


def test_models_of_another_kind_are_refused_in_one_line(tmp_path: Path) -> None:
    file = make().save(tmp_path / "model.safetensors")
    for door, wanted in ((Captioner, "caption"), (Classifier, "classify")):
        with pytest.raises(checkpoint.CheckpointError) as error:
            door.load(file)
        assert str(error.value) == f"{file}: a model made to translate, where one that can {wanted} is wanted"


@pytest.mark.parametrize("part", ["source_tokenizer", "tokenizer", "decode"])
def test_a_description_that_lacks_a_part(part: str, tmp_path: Path) -> None:
    translator = make()
    lacking = {key: value for key, value in translator.description.items() if key != part}
    file = checkpoint.write(tmp_path / "m.safetensors", translator.model, lacking)
    with pytest.raises(checkpoint.CheckpointError, match=f"m.safetensors: the model's description lacks {part}$"):
        vitcap.load(file)
    file = checkpoint.write(tmp_path / "m.safetensors", translator.model, translator.description | {"kind": "sing"})
    with pytest.raises(checkpoint.CheckpointError, match="a model of an unknown kind, 'sing'"):
        vitcap.load(file)


# evaluation

GOLD = [
    SequenceRecord(11, "a b", ("x y",), frozenset({(0, 0), (1, 1)})),
    SequenceRecord(12, "a b c", ("x y z", "z y x"), frozenset({(0, 0), (1, 1), (2, 2)})),
    SequenceRecord(13, "c b a a b", ("z y x x y",), frozenset({(4, 4)})),
    SequenceRecord(14, "b c", ("y z",), None),
]
SAID = {11: "x y", 12: "z y x", 13: "z y x x z", 14: ""}


def data(records: Sequence[SequenceRecord] = GOLD, **options: Any) -> SentenceData:
    def source() -> SimpleNamespace:
        return SimpleNamespace(name="given", split=lambda name: list(records))

    return SentenceData(source, eval_batch_size=3, **options)


class Oracle(Translator):
    """Says what it is told to, attends to the word at the same place, and knows how to be cut."""

    def __init__(self, made: SentenceData, said: dict[Any, str], *, attends: bool = True) -> None:
        sizes = {"width": 8, "embed_width": 8}
        encoder = checkpoint.build(
            {"_target_": "vitcap.models.text.RnnTextEncoder", "vocab_size": made.source_tokenizer.vocab_size, **sizes}
        )
        decoder = {"_target_": RECURRENT["_target_"], "vocab_size": made.tokenizer.vocab_size, "memory_width": 8}
        decoder |= {"attention": "additive" if attends else "none"}
        super().__init__(
            CaptionModel(encoder, checkpoint.build(decoder | sizes)), made.source_tokenizer, made.tokenizer
        )
        self.said, self.attends, self.asked = said, attends, []  # type: ignore[var-annotated]

    def write(self, batch: Batch, **options: Any) -> list[Caption]:
        self.asked.append((batch.ids, options["search"]))
        return [self.one(self.said[id_]) for id_ in batch.ids]

    def one(self, text: str) -> Caption:
        words = tuple(Word(word, i, i + 1, -0.5) for i, word in enumerate(text.split()))
        ids = (*self.tokenizer.encode(text), EOS)
        attention = np.eye(len(ids))[:, None, None] if self.attends else None
        return Caption(text, words, ids, (-0.5,) * len(ids), -0.5, bool(text), attention=attention)

    def align(self, sources: Sequence[str], targets: Sequence[str], **_: Any) -> list[Any]:
        if not self.attends:
            return super().align(sources, targets)
        return [np.eye(len(t.split()), len(s.split())) for s, t in zip(sources, targets, strict=True)]


def bleu_by_counting(pairs: list[tuple[str, list[str]]]) -> list[float]:
    """BLEU-1 to BLEU-4 of a corpus (Papineni et al. 2002) by loops, for corpora where every order has a match."""
    match, total = [0] * 4, [0] * 4
    said = wanted = 0
    for text, references in pairs:
        words = text.split()
        said += len(words)
        wanted += min((abs(len(r.split()) - len(words)), len(r.split())) for r in references)[1]
        for n in range(1, 5):
            grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
            total[n - 1] += len(grams)
            for gram in set(grams):
                most = max(
                    sum(tuple(r.split()[i : i + n]) == gram for i in range(len(r.split()) - n + 1)) for r in references
                )
                match[n - 1] += min(grams.count(gram), most)
    penalty = min(1.0, math.exp(1 - wanted / said))
    shares = [m / t for m, t in zip(match, total, strict=True)]
    return [penalty * math.prod(shares[:n]) ** (1 / n) for n in range(1, 5)]


def test_scores_by_hand() -> None:
    made = data()
    scores = sentence_judge(made, "val")(SAID)
    assert scores["exact"] == 2 / 4, "the second of two targets is as good as the first"
    expected = bleu_by_counting([(SAID[r.id], list(r.targets)) for r in GOLD])  # type: ignore[index]
    assert [scores[f"BLEU-{n}"] for n in range(1, 5)] == pytest.approx(expected, rel=1e-6)
    assert sentence_judge(made, "val")({11: "x y"})["exact"] == 1.0


def test_targets_are_compared_as_the_tokenizer_leaves_them() -> None:
    records = [SequenceRecord(1, "A b", ("Le Chat, dort!",)), SequenceRecord(2, "a c", ("le  chien",))]
    words = data(records, tokenizer="word")
    assert sentence_judge(words, "val")({1: "le chat dort", 2: "le chien"})["exact"] == 1.0
    assert sentence_judge(data(records), "val")({1: "le chat dort", 2: "le chien"})["exact"] == 0.5


def test_everything_of_an_evaluation(tmp_path: Path) -> None:
    made = data()
    oracle = Oracle(made, SAID)
    search = Beam(beams=2, max_length=9)
    seen: list[tuple[int, int]] = []
    options = {"search": search, "seed": 5, "facts": {"note": 1}, "progress": lambda *place: seen.append(place)}
    text, report = evaluate_sentences(oracle, made, "val", out=tmp_path / "new", **options)
    assert json.loads((tmp_path / "new" / "scores.json").read_text()) == report
    assert report["scores"] == sentence_judge(made, "val")(SAID)
    # Links by place: (0, 0), (1, 1) | the same and (2, 2) | five, of which one is known and no other; 14 has none.
    links, hits, sure = 2 + 3 + 5, 2 + 3 + 1, 2 + 3 + 1
    assert report["alignment"] == {
        "AER": pytest.approx(1 - 2 * hits / (links + sure)),
        "precision": pytest.approx(hits / links),
        "recall": pytest.approx(hits / sure),
        "sentences": 3,
        "words": 10,
    }
    rows = {(row["low"], row["high"]): row for row in report["by_length"]}
    assert sum(row["count"] for row in rows.values()) == 4
    assert rows[(2, 2)]["count"] == 2
    assert rows[(2, 2)]["exact"] == 0.5
    facts = report["facts"]
    assert (facts["sentences"], facts["unreadable_sentences"], facts["cut_by_maximum_length"]) == (4, 0, 1)
    assert (facts["seed"], facts["note"], facts["decoding"]["beams"]) == (5, 1, 2)
    table = list(csv.DictReader((tmp_path / "new" / "translations.tsv").open(), delimiter="\t"))
    assert [row["output"] for row in table] == [SAID[r.id] for r in GOLD]  # type: ignore[index]
    assert [row["target"] for row in table] == [r.targets[0] for r in GOLD]
    assert Image.open(tmp_path / "new" / "lengths.png").size[0] > 300
    assert seen == [(3, 4), (4, 4)]
    assert [ids for ids, _ in oracle.asked] == [(11, 12, 13), (14,)]
    assert {asked for _, asked in oracle.asked} == {search}
    assert "given, split val, 4 sentences" in text
    assert "  exact      50.0\n" in text
    assert "alignment of 10 target words" in text


def test_output_with_line_breaks_stays_on_its_line(tmp_path: Path) -> None:
    made = data()
    evaluate_sentences(Oracle(made, SAID | {11: "x\n\ty"}), made, "val", search=Greedy(), out=tmp_path)
    lines = (tmp_path / "translations.tsv").read_text().splitlines()
    assert len(lines) == 5
    assert lines[1] == "11\ta b\tx y\tx y"


def test_no_alignment_where_there_is_none_to_know_or_none_to_give(tmp_path: Path) -> None:
    made = data()
    assert align_split(Oracle(made, SAID, attends=False), made, "val", SAID) is None
    bare = data([SequenceRecord(r.id, r.source, r.targets) for r in GOLD])
    assert align_split(Oracle(bare, SAID), bare, "val", SAID) is None
    assert evaluate_sentences(Oracle(bare, SAID), bare, "val", search=Greedy(), out=tmp_path)[1]["alignment"] is None
    assert align_split(Oracle(made, SAID), made, "val", {11: "x y"}) == {
        "AER": 0.0, "precision": 1.0, "recall": 1.0, "sentences": 1, "words": 2
    }  # fmt: skip


def test_pairs_that_are_cut_are_not_aligned() -> None:
    made = data(max_length=6)  # four words of a target and the two marks
    found = align_split(Oracle(made, SAID), made, "val", SAID)
    assert found is not None
    assert (found["sentences"], found["words"]) == (2, 5)


def test_links_follow_the_words_of_the_tokenizer() -> None:
    records = [SequenceRecord(1, "A , b", ("X , y",), frozenset({(0, 0), (1, 1), (2, 2)}))]
    made = data(records, tokenizer="word")
    oracle = Oracle(made, {1: "x y"})
    oracle.align = lambda sources, targets: [np.eye(2)]  # type: ignore[method-assign, assignment]
    found = align_split(oracle, made, "val", {1: "x y"})
    assert found is not None
    assert (found["AER"], found["words"]) == (0.0, 2)


def test_sentences_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    records = [*GOLD[:1], SequenceRecord("t.tsv:2", "...", ("x",))]
    made = data(records, tokenizer="word", on_bad="skip")
    found = write_split(Oracle(made, SAID), made, "val", search=Greedy())
    assert list(found) == [11]
    assert list(made.bad["val"]) == ["t.tsv:2"]
    _, report = evaluate_sentences(Oracle(made, SAID), made, "val", search=Greedy(), out=tmp_path)
    assert (report["facts"]["sentences"], report["facts"]["unreadable_sentences"]) == (1, 1)
    train, nothing = data(records, tokenizer="word"), data(records[1:], tokenizer="word", on_bad="skip")
    nothing.tokenizer, nothing.source_tokenizer = train.tokenizer, train.source_tokenizer
    with pytest.raises(ValueError, match="data=given, split val: no record can be read"):
        evaluate_sentences(Oracle(train, {}), nothing, "val", search=Greedy(), out=tmp_path)


# drawing


def test_the_page_of_a_translation(translator: Translator) -> None:
    found = translator.translate(SOURCES[1], need_attention=True)
    page, lines = alignment_page(translator, SOURCES[1], found, links={(0, 0)})
    assert lines[0] == f"translation: {found.text}"
    assert lines[1] == f"source: {SOURCES[1]}"
    assert len(lines) == 2 + len(found.words)
    best = int(found.attention[0, 0, 0].argmax())  # type: ignore[index]
    assert lines[2].startswith(f"{found.words[0].text} (word 1): ")
    assert f"{SOURCES[1].split()[best]} (word {best + 1})" in lines[2] or "flat" in lines[2]
    assert "known: a (word 1)" in lines[2]
    assert page.width > 300
    with pytest.raises(ValueError, match="no attention"):
        alignment_page(translator, SOURCES[1], translator.translate(SOURCES[1]))
    with pytest.raises(ValueError, match="gave no words for 'a dog eats the bone'"):
        alignment_page(translator, SOURCES[1], Oracle(data(), {}).one(""))


class Telling(Oracle):
    def translate(self, sentences: str, **_: Any) -> Caption:  # type: ignore[override]
        return self.one(self.said[sentences])


def test_sheets_of_a_split(tmp_path: Path) -> None:
    records = [
        SequenceRecord("val.tsv:1", "a b", ("x y",), frozenset({(0, 0)})),
        SequenceRecord("val.tsv-1", "a b c", ("x y z",), frozenset({(1, 1)})),
        SequenceRecord("../evil", "c b", ("z y",), None),
        SequenceRecord("empty", "c c", ("z z",), None),
        SequenceRecord("more", "b b", ("y y",), None),
    ]
    made = data(records)
    said = {"a b": "x y", "a b c": "z y x", "c b": "z y", "c c": "", "b b": "y y"}
    files = draw_alignments(Telling(made, said), made, tmp_path / "sheets", count=4)
    assert [file.name for file in files] == ["val.tsv-1.png", "val.tsv-1-2.png", "..-evil.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sheets"]
    assert "known: a (word 1)" in files[0].with_name("val.tsv-1.txt").read_text()
    assert "known" not in files[1].with_name("val.tsv-1-2.txt").read_text(), "known links are of the target"
    with Image.open(files[0]) as page:
        assert page.text["Title"] == "x y"  # type: ignore[attr-defined]
    assert draw_alignments(Telling(made, said, attends=False), made, tmp_path / "none", count=4) == []
    assert not (tmp_path / "none").exists()


def test_links_of_a_sheet_follow_the_words_of_the_tokenizer(tmp_path: Path) -> None:
    records = [SequenceRecord(1, "A , b", ("X , y",), frozenset({(0, 0), (1, 1), (2, 2)}))]
    made = data(records, tokenizer="word")
    (file,) = draw_alignments(Telling(made, {"A , b": "x y"}), made, tmp_path, count=1)
    lines = (tmp_path / f"{file.stem}.txt").read_text().splitlines()
    assert lines[3].endswith("known: b (word 2)")


def test_aligning_lists_that_do_not_fit() -> None:
    translator = make()
    with pytest.raises(ValueError, match=r"as many of each, are wanted; got 2 and 1$"):
        translator.align(["a", "b"], ["c"])
    with pytest.raises(ValueError, match=r"got a text and a text$"):
        translator.align("a", "c")
    with pytest.raises(ValueError, match=r"^batch_size=0: must be at least 1$"):
        translator.align(["a"], ["c"], batch_size=0)
