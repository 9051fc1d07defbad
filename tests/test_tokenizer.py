"""Captions to ids and back: vocabularies counted by hand, byte-level round trips of any text."""

from __future__ import annotations

import json
import pickle
import random
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vitcap.data.tokenizer import KINDS, SPECIAL, Tokenizer
from vitcap.types import BOS, EOS, PAD, UNK

CAPTIONS = [
    "A dog runs on the grass.",
    "a dog sits; a cat runs",
    "The cat's bowl, the dog's bed!",
    "Two dogs play on the grass",
    "a man in a t-shirt & jeans",
]
FAST = settings(max_examples=60, deadline=None, derandomize=True, database=None)
ANY = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=40)


def bpe(captions: list[str] = CAPTIONS, size: int = 320) -> Tokenizer:
    return Tokenizer.train(captions, kind="bpe", vocab_size=size)


def word(captions: list[str] = CAPTIONS, **options: int) -> Tokenizer:
    return Tokenizer.train(captions, kind="word", **{"min_count": 1, **options})  # type: ignore[arg-type]


BPE, WORD = bpe(), word()
"""Trained once: hypothesis calls its tests many times."""


def test_word_vocabulary_counts() -> None:
    """Words of at least min_count, most frequent first, ties by the alphabet, after the four special tokens."""
    twice = word(min_count=2)
    # a 5, the 4, on 2, cat 1 (cat's is a word of its own), dog 2, grass 2, runs 2
    expected = ["a", "the", "dog", "grass", "on", "runs"]
    assert [twice.decode([i]) for i in range(4, twice.vocab_size)] == expected
    assert twice.vocab_size == 4 + len(expected)
    assert word(min_count=2, vocab_size=7).vocab_size == 7
    assert word(min_count=2, vocab_size=7).encode("a the dog grass") == [4, 5, 6, UNK]
    assert word(min_count=3).encode("a the dog") == [4, 5, UNK]
    assert word(min_count=5).vocab_size == 5


def test_words_are_cut_as_in_coco_practice() -> None:
    tokenizer = word()
    ids = tokenizer.encode("The CAT’S bowl , in a T-shirt--- & jeans ...")
    assert tokenizer.decode(ids) == "the cat's bowl in a t-shirt jeans"
    assert UNK not in ids
    assert tokenizer.decode(word(["3.5 km, naïve r&b"]).encode("3.5 km")) != ""
    other = word(["3.5 km, naïve r&b café"])
    assert other.decode(other.encode("Naïve 3.5 KM. 'R&B' cafe\u0301")) == "naïve 3.5 km r&b café"


def test_unknown_words() -> None:
    tokenizer = word()
    assert tokenizer.encode("a zebra runs") == [tokenizer.encode("a")[0], UNK, tokenizer.encode("runs")[0]]
    assert tokenizer.decode(tokenizer.encode("a zebra runs")) == "a <unk> runs"
    assert tokenizer.unknown_share(["a zebra", "a dog runs zigzag"]) == pytest.approx(2 / 6)
    assert tokenizer.unknown_share([""]) == 0.0
    assert BPE.unknown_share(["a zebra", "象"]) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_and_order_does_not_matter(kind: str) -> None:
    shuffled = random.Random(1).sample(CAPTIONS, len(CAPTIONS))
    first, second = (Tokenizer.train(c, kind=kind, min_count=1, vocab_size=300) for c in (CAPTIONS, shuffled))
    assert first.to_json() == second.to_json()
    assert first.to_json() == Tokenizer.train(iter(CAPTIONS), kind=kind, min_count=1, vocab_size=300).to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_read_back(kind: str) -> None:
    tokenizer = Tokenizer.train([*CAPTIONS, "ünïcödé 象 🐕"], kind=kind, min_count=1, vocab_size=400)
    text = tokenizer.to_json()
    json.loads(text)
    twin = Tokenizer.from_json(text)
    assert twin.to_json() == text
    assert (twin.kind, twin.vocab_size) == (kind, tokenizer.vocab_size)
    for caption in [*CAPTIONS, "ünïcödé 象 🐕 zebra", "", "a <eos> b"]:
        assert twin.encode(caption) == tokenizer.encode(caption)
        assert twin.words(twin.encode(caption)) == tokenizer.words(tokenizer.encode(caption))


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens(kind: str) -> None:
    """Their ids are fixed; decoding stops at the first EOS and passes over PAD and BOS; text can never spell them."""
    tokenizer = Tokenizer.train([*CAPTIONS, "<eos> <pad> eos"], kind=kind, min_count=1, vocab_size=300)
    saved = json.loads(tokenizer.to_json())["library"]["model"]["vocab"]
    assert [saved[name] for name in SPECIAL] == [PAD, BOS, EOS, UNK] == [0, 1, 2, 3]
    ids = tokenizer.encode("a dog runs")
    assert tokenizer.decode([BOS, *ids, EOS, *tokenizer.encode("a cat"), PAD]) == "a dog runs"
    assert tokenizer.decode([PAD, BOS, EOS]) == tokenizer.decode([]) == ""
    for twin in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        found = twin.encode("a <eos> dog <pad><bos> runs")
        assert not {PAD, BOS, EOS} & set(found)
        assert twin.decode(found).split()[-1] == "runs"  # and nothing is cut at the "<eos>"
    with pytest.raises(ValueError, match=f"token id {tokenizer.vocab_size} is outside"):
        tokenizer.decode([tokenizer.vocab_size])


def lowered(text: str) -> list[str]:
    """What byte-level BPE keeps: composed, lower case letter by letter, blanks as mere separators."""
    return "".join(c.lower() for c in unicodedata.normalize("NFC", text)).split()


@FAST
@given(ANY)
@example("a\nb  c\u2003d\x1fe \x00")
@example("İstanbul ΣΑΣ ĠĊ Ġ 🐕‍🦺 e\u0301")
@example("")
def test_bpe_round_trip_of_any_text(text: str) -> None:
    ids = BPE.encode(text)
    assert all(UNK < i < BPE.vocab_size for i in ids)
    assert BPE.decode(ids).split() == lowered(text)


@FAST
@given(ANY)
@example("a dog runs on the grass")
def test_spans_of_words_cover_the_tokens(text: str) -> None:
    """Spans are disjoint, in order, spell their own word, and leave out blanks only."""
    for tokenizer in (BPE, WORD):
        ids = tokenizer.encode(text)
        spans = tokenizer.words(ids)
        covered = [i for _, start, stop in spans for i in range(start, stop)]
        assert covered == sorted(set(covered))
        assert all(start < stop <= len(ids) for _, start, stop in spans)
        for piece, start, stop in spans:
            assert tokenizer.decode(ids[start:stop]) == piece
        rest = [tokenizer.decode([ids[i]]) for i in range(len(ids)) if i not in covered]
        assert not any(rest)
        assert tokenizer.decode(ids) == " ".join(piece for piece, _, _ in spans)


def test_spans_count_from_the_first_token_given() -> None:
    """A word's span indexes the ids as given, so that attention and log-probabilities can be looked up by it."""
    tokenizer = bpe(["grass " * 9, "xyz"], size=262)  # "grass" alone is merged, and only in part
    ids = tokenizer.encode("grass xyz")
    (first, a, b), (second, c, d) = tokenizer.words(ids)
    assert (first, a) == ("grass", 0)
    assert (second, c, d) == ("xyz", b, len(ids))
    assert d - c >= 3
    assert WORD.words([BOS, *WORD.encode("a dog"), EOS, 9]) == [("a", 1, 2), ("dog", 2, 3)]


@FAST
@given(st.lists(st.integers(0, BPE.vocab_size - 1), max_size=12))
def test_any_ids_decode(ids: list[int]) -> None:
    """A model may emit half of a letter or an end in the middle; the text must still be text."""
    BPE.decode(ids).encode("utf-8")
    WORD.decode(i % WORD.vocab_size for i in ids)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_captions(kind: str) -> None:
    """Lone surrogates (from broken JSON escapes) count as U+FFFD; empty captions are empty."""
    tokenizer = Tokenizer.train([*CAPTIONS, "", "  ", "dog \ud800"], kind=kind, min_count=1, vocab_size=300)
    assert tokenizer.encode("") == tokenizer.encode(" \t\n") == []
    assert tokenizer.encode("a \udfff dog") == tokenizer.encode("a \ufffd dog")
    assert tokenizer.decode(tokenizer.encode("\ud83d dog")).endswith("dog")
    assert tokenizer.decode(tokenizer.encode("  a   dog ")) == "a dog"


def test_what_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match=r"no word occurs 9 times in the training captions \(19 different words\)"):
        word(min_count=9)
    with pytest.raises(ValueError, match="no word occurs"):
        word([])
    with pytest.raises(ValueError, match="unknown tokenizer kind 'char'; choose one of word, bpe"):
        Tokenizer.train(CAPTIONS, kind="char")


def test_bpe_merges_frequent_words() -> None:
    """A frequent word is one token, and a larger vocabulary needs no more tokens than a smaller one."""
    small, large = bpe(CAPTIONS * 3, 265), bpe(CAPTIONS * 3, 400)
    assert len(large.encode("the dog")) == 2
    for caption in CAPTIONS:
        assert len(large.encode(caption)) <= len(small.encode(caption)) <= len(f" {caption}".encode())
    assert small.vocab_size == 265


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_a_copy_for_another_process_reads_captions_alike(kind):
    tokenizer = Tokenizer.train(["a dog <eos> runs"] * 3, kind=kind, min_count=1, vocab_size=300)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("a dog <eos> runs") == tokenizer.encode("a dog <eos> runs")
    assert EOS not in copy.encode("a dog <eos> runs")
