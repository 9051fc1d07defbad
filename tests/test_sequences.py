"""Digits, the English-French grammar with its word alignment, and files of parallel text."""

import hashlib
import itertools
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from vitcap.data import lexicon as lex
from vitcap.data.grammar import EXAMPLE, date, place
from vitcap.data.pairs import PairsSource
from vitcap.data.phrases import Phrase, be_phrase, finish, named, noun_phrase, numbered, same, verb_phrase
from vitcap.data.sequences import LENGTH_BINS, DigitsSource, TranslationSource
from vitcap.data.tokenizer import Tokenizer

# --- digits ---


def test_reversed_digits_and_their_links():
    source = DigitsSource(train_size=300, val_size=20, test_size=20)
    for record in source.split("train"):
        digits = record.source.split()
        assert set(digits) <= set("0123456789")
        assert 4 <= len(digits) <= 10
        assert record.targets == (" ".join(digits[::-1]),)
        assert record.alignment == {(len(digits) - 1 - i, i) for i in range(len(digits))}


def test_copied_digits_and_their_links():
    for record in DigitsSource(task="copy", train_size=50, val_size=5, test_size=5).split("val"):
        assert record.targets == (record.source,)
        assert record.alignment == {(i, i) for i in range(len(record.source.split()))}


def test_digit_splits_share_nothing_and_lengths_are_even():
    source = DigitsSource(train_size=2800, val_size=200, test_size=300)
    assert source.splits() == ("train", "val", "test", "long")
    records = {name: source.split(name) for name in source.splits()}
    assert {name: len(found) for name, found in records.items()} == {
        "train": 2800, "val": 200, "test": 300, "long": 300,
    }  # fmt: skip
    everything = [record.source for found in records.values() for record in found]
    assert len(set(everything)) == len(everything)
    ids = [record.id for found in records.values() for record in found]
    assert len(set(ids)) == len(ids)
    lengths = Counter(len(record.source.split()) for record in records["train"])
    assert set(lengths) == set(range(4, 11))
    assert max(lengths.values()) < 1.3 * min(lengths.values())
    assert {len(record.source.split()) for record in records["long"]} == set(range(11, 21))


def test_digits_depend_on_the_seed_and_not_on_the_training_size():
    sources = [DigitsSource(train_size=n, val_size=30, test_size=30, seed=s) for n, s in ((50, 0), (500, 0), (50, 1))]
    for split in ("val", "test", "long"):
        first, other_size, other_seed = (source.split(split) for source in sources)
        assert first == other_size
        assert first != other_seed
    assert sources[0].split("train") == sources[1].split("train")[:50]


def test_every_sequence_can_be_used_but_no_more():
    source = DigitsSource(min_length=1, max_length=2, train_size=56, val_size=27, test_size=27)
    used = [record.source for name in ("train", "val", "test") for record in source.split(name)]
    everything = [" ".join(d) for n in (1, 2) for d in itertools.product("0123456789", repeat=n)]
    assert sorted(used) == sorted(everything)
    with pytest.raises(ValueError, match=r"train_size=57: there are 56 sequences of 1 to 2 digits"):
        DigitsSource(min_length=1, max_length=2, train_size=57, val_size=27, test_size=27)
    with pytest.raises(ValueError, match=r"test_size=28: there are 27 sequences"):
        DigitsSource(min_length=1, max_length=2, train_size=1, val_size=1, test_size=28)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sort"}, "task=sort: choose one of reverse, copy"),
        ({"min_length": 5, "max_length": 4}, "min_length=5 is above .*max_length=4"),
        ({"min_length": 0}, "min_length=0: a whole number"),
        ({"train_size": 0}, "train_size=0: a whole number"),
        ({"val_size": 1.5}, "val_size=1.5: a whole number"),
        ({"root": "data"}, "data.root=data: these sequences are made"),
    ],
)
def test_options_of_digits_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        DigitsSource(**options)


def test_split_that_is_not_there():
    with pytest.raises(ValueError, match="no split 'dev' in digits: choose one of train, val, test, long"):
        DigitsSource(train_size=5, val_size=5, test_size=5).split("dev")


# --- the grammar, by eye ---


def n(word, determiner="the", *adjectives, plural=False, complement=None):
    noun = next(noun for noun in lex.NOUNS if noun.english[0] == word)
    chosen = [next(a for a in lex.ADJECTIVES if a.english == adjective) for adjective in adjectives]
    return noun_phrase(noun, determiner, chosen, plural=plural, complement=complement or Phrase())


def v(word, subject, tense="past", **options):
    verbs = [*lex.TRANSITIVE, *lex.WITH_PARTICLE, *lex.DATIVE, *lex.GOING, *lex.REPORTING]
    return verb_phrase(next(verb for verb in verbs if verb.english[0] == word), subject, tense, **options)


def name(english):
    return named(next(name for name in (*lex.BODIES, *lex.THEMES) if name.english == english))


def clause(subject, verb, *rest, tense="past", **options):
    phrase = subject + v(verb, subject, tense, **options)
    for part in rest:
        phrase += part
    return phrase


def quality(subject, english, french, **options):
    return subject + be_phrase(subject, options.pop("tense", "past"), **options) + same(english, french)


LETTER = n("letter", "a", plural=False)
SENTENCES = [
    (
        quality(n("law"), "important", "importante"),
        "the law was important",
        "la loi était importante",
        "0-0 1-1 2-2 3-3",
    ),
    (
        clause(n("minister", "the", "young"), "sign", n("agreement", "a", "new", "European", "economic")),
        "the young minister signed a new European economic agreement",
        "le jeune ministre a signé un nouvel accord économique européen",
        "0-0 1-1 2-2 3-3 3-4 4-5 5-6 8-7 7-8 6-9",
    ),
    (
        clause(n("student"), "approve", n("plan", "this", "old"), negation="not"),
        "the student did not approve this old plan",
        "l' étudiante n' a pas approuvé ce vieux plan",
        "0-0 1-1 3-2 2-3 3-4 4-5 5-6 6-7 7-8",
    ),
    (
        clause(n("lawyer", "these", plural=True), "reject", n("treaty", "his", plural=True), negation="never"),
        "these lawyers never rejected his treaties",
        "ces avocats n' ont jamais rejeté ses traités",
        "0-0 1-1 2-2 3-3 2-4 3-5 4-6 5-7",
    ),
    (
        clause(n("proposal", "our", plural=True), "publish", tense="future", passive=True, negation="not"),
        "our proposals will not be published",
        "nos propositions ne seront pas publiées",
        "0-0 1-1 3-2 2-3 4-3 3-4 5-5",
    ),
    (
        clause(name("World Trade Organisation"), "wait", n("decision", n("council")), tense="present"),
        "the World Trade Organisation waits for the council 's decision",
        "l' Organisation mondiale du commerce attend la décision du conseil",
        "0-0 3-1 1-2 2-3 2-4 4-5 5-5 9-6 9-7 8-8 6-8 7-9",
    ),
    (
        clause(n("president", "all the", plural=True), "answer", n("letter", "the", plural=True)),
        "all the presidents answered the letters",
        "tous les présidents ont répondu aux lettres",
        "0-0 1-1 2-2 3-3 3-4 3-5 4-5 5-6",
    ),
    (
        clause(n("singer"), "arrive", place("in", "Brussels", "à Bruxelles"), date("1992", ("May", "mai"), "8")),
        "the singer arrived in Brussels on 8 May 1992",
        "la chanteuse est arrivée à Bruxelles le 8 mai 1992",
        "0-0 1-1 2-2 2-3 3-4 4-5 5-6 6-7 7-8 8-9",
    ),
    (
        clause(n("engineer", ("two", "deux"), plural=True), "return",
               place("to", "the Netherlands", "aux Pays-Bas"), numbered("last week", "la:1 semaine:1 dernière:0")),
        "two engineers returned to the Netherlands last week",
        "deux ingénieurs sont revenus aux Pays-Bas la semaine dernière",
        "0-0 1-1 2-2 2-3 3-4 4-4 5-5 7-6 7-7 6-8",
    ),
    (
        clause(n("committee"), "prepare", n("law", "some", "new", plural=True), adverb=same("quickly", "rapidement")),
        "the committee quickly prepared some new laws",
        "le comité a rapidement préparé de nouvelles lois",
        "0-0 1-1 3-2 2-3 3-4 4-5 5-6 6-7",
    ),
    (
        clause(n("bank", "their"), "send", n("report", "many", plural=True), same("to", "à"), n("minister")),
        "their bank sent many reports to the minister",
        "leur banque a envoyé beaucoup de rapports au ministre",
        "0-0 1-1 2-2 2-3 3-4 3-5 4-6 5-7 6-7 7-8",
    ),
    (
        clause(n("president", complement=same("of", "de") + n("university")), "say", same("that", "que"),
               quality(same("he", "il"), "famous", "célèbre", tense="present"), tense="present"),
        "the president of the university says that he is famous",
        "le président de l' université dit qu' il est célèbre",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7 8-8 9-9",
    ),
    (
        quality(
            n("letter", complement=same("that", "que") + clause(n("ambassador"), "publish", agrees_with=LETTER)),
            "ambitious", "ambitieuse",
        ),
        "the letter that the ambassador published was ambitious",
        "la lettre que l' ambassadeur a publiée était ambitieuse",
        "0-0 1-1 2-2 3-3 4-4 5-5 5-6 6-7 7-8",
    ),
    (
        clause(n("city", "this"), "approve", n("law"), same("and", "et"),
               v("sign", n("city"), pronoun=same("it", "la"), agrees_with=n("law"))),
        "this city approved the law and signed it",
        "cette ville a approuvé la loi et l' a signée",
        "0-0 1-1 2-2 2-3 3-4 4-5 5-6 7-7 6-8 6-9",
    ),
    (
        clause(n("ambassador", "his", "European"), "leave", same("because", "parce que"),
               quality(n("university", "her", "old"), "small", "petite", negation="not")),
        "his European ambassador left because her old university was not small",
        "son ambassadeur européen est parti parce que sa vieille université n' était pas petite",
        "0-0 2-1 1-2 3-3 3-4 4-5 4-6 5-7 6-8 7-9 9-10 8-11 9-12 10-13",
    ),
    (
        clause(n("student", "his"), "look", n("agreement", "this"), tense="future"),
        "his student will look for this agreement",
        "son étudiante cherchera cet accord",
        "0-0 1-1 2-2 3-2 4-2 5-3 6-4",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("phrase", "english", "french", "links"), SENTENCES, ids=[s[1] for s in SENTENCES])
def test_sentences_with_their_links(phrase, english, french, links):
    source, target, alignment = finish(phrase)
    assert (source, target) == (english, french)
    assert {f"{s}-{t}" for s, t in alignment} == set(links.split())


def test_the_example_of_the_lecture():
    source, target, links = EXAMPLE
    assert source == "the agreement on the European Economic Area was signed in August 1992"
    assert target == "l' accord sur la zone économique européenne a été signé en août 1992"
    assert links == {
        (0, 0), (1, 1), (2, 2), (3, 3), (6, 4), (5, 5), (4, 6), (7, 7), (7, 8), (8, 9), (9, 10), (10, 11), (11, 12),
    }  # fmt: skip


# --- the grammar, by rule: tables of this test, not those of the grammar ---

MASCULINE = "ministre président ambassadeur avocat ingénieur conseil comité accord traité rapport plan"
FEMININE = "étudiante chanteuse université banque ville lettre loi décision proposition"
GENDER = dict.fromkeys(MASCULINE.split(), "m") | dict.fromkeys(FEMININE.split(), "f")
DETERMINERS = {
    "le": "ms", "un": "ms", "ce": "ms", "cet": "ms", "la": "fs", "une": "fs", "cette": "fs", "sa": "fs", "l'": "ms fs",
    "son": "ms fs", "notre": "ms fs", "leur": "ms fs", "les": "mp fp", "ces": "mp fp", "ses": "mp fp", "nos": "mp fp",
    "leurs": "mp fp", "des": "mp fp", "de": "mp fp", "d'": "mp fp", "du": "ms", "au": "ms", "aux": "mp fp",
    "deux": "mp fp", "trois": "mp fp", "cinq": "mp fp", "dix": "mp fp",
}  # fmt: skip
BEFORE = {
    "nouveau": "ms", "nouvel": "ms", "nouvelle": "fs", "nouveaux": "mp", "nouvelles": "fp",
    "vieux": "ms mp", "vieil": "ms", "vieille": "fs", "vieilles": "fp",
    "grand": "ms", "grande": "fs", "grands": "mp", "grandes": "fp",
    "petit": "ms", "petite": "fs", "petits": "mp", "petites": "fp", "jeune": "ms fs", "jeunes": "mp fp",
}  # fmt: skip
AFTER = {
    "européen": "ms", "européenne": "fs", "européens": "mp", "européennes": "fp", "français": "ms mp",
    "française": "fs", "françaises": "fp", "allemand": "ms", "allemande": "fs", "allemands": "mp", "allemandes": "fp",
    "américain": "ms", "américaine": "fs", "américains": "mp", "américaines": "fp", "célèbre": "ms fs",
    "célèbres": "mp fp", "important": "ms", "importante": "fs", "importants": "mp", "importantes": "fp",
    "ambitieux": "ms mp", "ambitieuse": "fs", "ambitieuses": "fp", "économique": "ms fs", "économiques": "mp fp",
    "social": "ms", "sociale": "fs", "sociaux": "mp", "sociales": "fp", "politique": "ms fs", "politiques": "mp fp",
    "commercial": "ms", "commerciale": "fs", "commerciaux": "mp", "commerciales": "fp",
}  # fmt: skip
VOWEL = tuple("aeiouéèêàâîôuh")


@pytest.fixture(scope="module")
def translations():
    source = TranslationSource(train_size=1200, val_size=80, test_size=80)
    return {name: source.split(name) for name in source.splits()}


@pytest.fixture(scope="module")
def records(translations):
    return list(itertools.chain.from_iterable(translations.values()))


def test_french_noun_phrases_agree(records):
    seen = Counter()
    for record in records:
        words = record.targets[0].split()
        for index, word in enumerate(words):
            singular = word if word in GENDER else word.removesuffix("s")
            if singular not in GENDER:
                continue
            feature = GENDER[singular] + ("s" if word == singular else "p")
            first = index - 1
            while words[first] in BEFORE:
                assert feature in BEFORE[words[first]], record.targets
                first -= 1
            assert feature in DETERMINERS[words[first]].split(), record.targets
            last = index + 1
            while last < len(words) and words[last] in AFTER:
                assert feature in AFTER[words[last]], record.targets
                last += 1
            seen[feature] += 1
            seen["several adjectives"] += last - index > 2
            if feature[1] == "s":
                following = words[first + 1].startswith(VOWEL)
                assert (words[first] in ("l'", "cet")) <= following
                if words[first] == "son" and feature == "fs":
                    assert following
                if words[first + 1] in ("nouvel", "vieil", "nouveau", "vieux") and feature == "ms":
                    assert (words[first + 1] in ("nouvel", "vieil")) == words[first + 2].startswith(VOWEL)
    assert min(seen[feature] for feature in ("ms", "fs", "mp", "fp")) > 100
    assert seen["several adjectives"] > 50


def test_french_elides_contracts_and_negates(records):
    counts = Counter()
    for record in records:
        words = record.targets[0].split()
        for word, after in itertools.pairwise(words):
            assert not (
                word in ("le", "la", "de", "ne", "que", "ce", "sa", "nouveau") and after.lower().startswith(VOWEL)
            ), words
            assert not (word in ("l'", "d'", "n'", "qu'", "cet", "nouvel") and not after.lower().startswith(VOWEL)), (
                words
            )
            assert (word, after) not in {("de", "le"), ("de", "les"), ("à", "le"), ("à", "les")}, words
            counts[word] += 1
        negations = words.count("ne") + words.count("n'")
        assert negations == words.count("pas") + words.count("jamais")
        assert negations == record.source.split().count("not") + record.source.split().count("never")
    assert min(counts[word] for word in ("l'", "d'", "n'", "qu'", "du", "des", "au", "aux", "cet", "nouvel")) > 3


def test_passive_participles_agree_with_their_subject(records):
    """Sentences that are one passive clause with a plain subject."""
    checked = Counter()
    for record in records:
        words = record.targets[0].split()
        if len(words) > 2 and "été" in words and words.index("été") <= 5 and "que" not in words:
            place_of = words.index("été")
            noun = next((w for w in words[:place_of] if w in GENDER or w.removesuffix("s") in GENDER), None)
            if noun is None or sum(w in GENDER or w.removesuffix("s") in GENDER for w in words[:place_of]) > 1:
                continue
            participle = next(w for w in words[place_of + 1 :] if w.rstrip("es").endswith(("é", "u")))
            plural = noun not in GENDER
            feminine = GENDER[noun.removesuffix("s") if plural else noun] == "f"
            assert participle.endswith("s") == plural, words
            assert participle.rstrip("s").endswith("e") == feminine, words
            checked[plural, feminine] += 1
    assert len(checked) == 4


def test_every_word_has_a_link_within_the_sentence(records):
    for record in records:
        source, target = record.source.split(), record.targets[0].split()
        assert record.source == " ".join(source)
        assert {s for s, _ in record.alignment} == set(range(len(source)))
        assert {t for _, t in record.alignment} == set(range(len(target)))


def test_links_hold_translations(records):
    """A word that has one translation whatever its form, checked over all sentences."""
    pairs = {"but": {"mais"}, "because": {"parce", "que", "qu'"}, "in": {"à", "en", "au", "aux"}, "more": {"plus"}}
    pairs |= {"university": {"université", "l'", "la"}, "not": {"ne", "n'", "pas"}, "by": {"par"}, "is": {"est"}}
    pairs |= {"last": {"dernière", "dernier"}, "next": {"prochaine", "prochain"}, "World": {"mondiale"}}
    pairs |= {"week": {"la", "semaine"}, "month": {"le", "mois"}, "year": {"l'", "année"}, "every": {"chaque"}}
    for record in records:
        source, target = record.source.split(), record.targets[0].split()
        for s, t in record.alignment:
            assert target[t] in pairs.get(source[s], {target[t]}), record


def test_translation_splits(translations, records):
    assert len({record.source for record in records}) == len(records) == 1360
    assert EXAMPLE[0] not in {record.source for record in records}
    assert len({record.id for record in records}) == len(records)
    for found in translations.values():
        lengths = [len(record.source.split()) for record in found]
        assert [sum(low <= n <= high for n in lengths) for low, high in LENGTH_BINS] == [len(found) // 4] * 4
    english = {word.lower() for record in records for word in record.source.split()}
    french = {word.lower() for record in records for word in record.targets[0].split()}
    assert 150 < len(english) < 250
    assert 250 < len(french) < 350


def test_one_source_has_one_translation():
    """The same English sentence never gets two French ones, whichever seed wrote it."""
    translations = {}
    for seed in range(3):
        for record in TranslationSource(seed=seed, train_size=1500, val_size=1, test_size=1).split("train"):
            assert translations.setdefault(record.source, record.targets) == record.targets


def test_translations_depend_on_the_seed_and_not_on_the_training_size(translations):
    small = TranslationSource(train_size=40, val_size=80, test_size=80)
    assert small.split("train") == translations["train"][:40]
    assert small.split("val") == translations["val"]
    assert TranslationSource(seed=1, train_size=1, val_size=1, test_size=80).split("test") != translations["test"]


def test_another_process_writes_the_same():
    code = "import test_sequences; print(test_sequences.digest())"
    folder = Path(__file__).resolve().parent
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(folder.parent)},
    )
    assert out.stdout.strip() == digest()


def digest():
    sizes = {"train_size": 60, "val_size": 9, "test_size": 9}
    records = [r for s in (TranslationSource(**sizes), DigitsSource(**sizes)) for n in s.splits() for r in s.split(n)]
    text = repr([(r.id, r.source, r.targets, sorted(r.alignment)) for r in records])
    return hashlib.sha256(text.encode()).hexdigest()


def test_word_tokens_are_the_words_of_the_alignment(records):
    """Positions of links stay valid through the word tokenizer."""
    for side in (lambda r: r.source, lambda r: r.targets[0]):
        tokenizer = Tokenizer.train(map(side, records), min_count=1)
        for record in records[:300]:
            assert len(tokenizer.encode(side(record))) == len(side(record).split())


# --- files of parallel text ---


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path.parent


def test_pairs_of_one_file_without_header(tmp_path):
    text = '\ufeffa cat\tun chat\r\n"the dog\tle "chien"\r\n\r\nseven\tsept\r\n'
    source = PairsSource(write(tmp_path / "pairs.tsv", text))
    assert source.splits() == ("train",)
    assert [(r.source, r.targets) for r in source.split("train")] == [
        ("a cat", ("un chat",)), ('"the dog', ('le "chien"',)), ("seven", ("sept",)),
    ]  # fmt: skip
    assert [r.id for r in source.split("train")] == ["pairs.tsv:1", "pairs.tsv:2", "pairs.tsv:4"]


def test_pairs_with_header_splits_and_alignment(tmp_path):
    text = (
        "Split\tTARGET\tsource\talignment\ndev\tun chat\ta cat\t0-0 1-1\ntrain\tle\tthe\t\ntest\tun chien\ta dog\t1-1\n"
    )
    source = PairsSource(write(tmp_path / "pairs.tsv", text))
    assert source.splits() == ("train", "val", "test")
    (record,) = source.split("val")
    assert (record.source, record.targets, record.alignment) == ("a cat", ("un chat",), {(0, 0), (1, 1)})
    assert source.split("train")[0].alignment is None


def test_columns_by_other_names(tmp_path):
    root = write(tmp_path / "pairs.tsv", "en\tfr\na\tun\n")
    (record,) = PairsSource(root, source_column="fr", target_column="en").split("train")
    assert (record.source, record.targets) == ("un", ("a",))
    with pytest.raises(ValueError, match=r"pairs.tsv: no column de; line 1 has \['en', 'fr'\]"):
        PairsSource(root, source_column="en", target_column="de").split("train")


def test_a_file_for_each_split(tmp_path):
    for split, text in (("train", "a\tun\t0-0\n"), ("valid", "b\tdeux\t0-0\n"), ("test", "c\ttrois\t0-0\n")):
        write(tmp_path / f"{split}.tsv", text)
    source = PairsSource(tmp_path)
    assert {name: [r.source for r in source.split(name)] for name in source.splits()} == {
        "train": ["a"], "val": ["b"], "test": ["c"],
    }  # fmt: skip
    assert source.split("val")[0].alignment == {(0, 0)}
    write(tmp_path / "dev.tsv", "d\tquatre\n")
    with pytest.raises(ValueError, match=r"dev.tsv and valid.tsv are both the split 'val'"):
        PairsSource(tmp_path)


def test_several_targets_of_one_source(tmp_path):
    root = write(tmp_path / "p.tsv", "hi\tsalut\t0-0\nyes\toui\t0-0\nhi\tbonjour toi\t0-0 0-1\n")
    with pytest.raises(
        ValueError, match=r"p.tsv: line 1: split '0-0'; choose train, val or test, or .*split_column=null"
    ):
        PairsSource(root).split("train")
    source = PairsSource(root, split_column=None)
    assert [(r.source, r.targets) for r in source.split("train")] == [
        ("hi", ("salut", "bonjour toi")),
        ("yes", ("oui",)),
    ]


def test_alignment_of_the_first_target_is_kept(tmp_path):
    root = write(tmp_path / "train.tsv", "hi\tsalut\t0-0\nhi\tbonjour toi\t0-0 0-1\n")
    (record,) = PairsSource(root).split("train")
    assert record.alignment == {(0, 0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\n\tc\nd\t \n", r"2 lines with a side that has no letter or digit: lines 2, 3;.*on_bad=skip"),
        ("a\tb\nc\n", r"1 lines without the 2 fields of the first: line 2"),
        ("a b\n", r"line 1 has no tab; each line is source<TAB>target: 'a b'"),
        ("", r"train\.tsv: no pairs in it; fill the file or take it away"),
        ("a\tb\t0-1\n", r"bad alignment \(link 0-1 between sentences of 1 and 1 words\): line 1"),
        ("a\tb\tx\n", r"bad alignment \('x' is no link like 0-0\): line 1"),
        ("source\tsource\ttarget\na\tb\tc\n", r"train\.tsv: line 1 names the source column, 'source', more than"),
        ("a\tb\t" + "9" * 5000 + "-0\n", r"bad alignment \('9{20}' is no link like 0-0\): line 1"),
        ("source\ty" + "y" * 5000 + "\na\tb\n", r"no column target; line 1 has .{200}$"),
        ("a\tb\n".encode("utf-16-le"), r"train\.tsv: UTF-16 without its mark, or no text; save it as UTF-8"),
        (b"a\tb\nc\t\xe9\n", r"train.tsv: line 2 is not UTF-8 \(byte 0xe9\)"),
        ("source\ty\na\tb\n", r"no column target; line 1 has \['source', 'y'\]"),
    ],
)
def test_bad_text_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        PairsSource(write(tmp_path / "train.tsv", text)).splits()


def test_bad_lines_can_be_skipped_with_a_count(tmp_path, caplog):
    root = write(tmp_path / "train.tsv", "a\tb\n\tc\nd\t.\nlonely\ne\tf\n")
    source = PairsSource(root, on_bad="skip")
    with caplog.at_level(logging.WARNING):
        assert [r.source for r in source.split("train")] == ["a", "e"]
    assert source.report["lines with a side that has no letter or digit skipped"] == 2
    assert source.report["lines without the 2 fields of the first skipped"] == 1
    assert source.report["lines"] == 5
    assert "lines 2, 3" in caplog.text


def test_a_source_in_two_splits(tmp_path):
    write(tmp_path / "train.tsv", "a\tun\nb\tdeux\n")
    root = write(tmp_path / "test.tsv", "b\tdeux\n")
    with pytest.raises(
        ValueError, match=r"1 sources of train that are also in test, such as train.tsv:2 and test.tsv:1"
    ):
        PairsSource(root).split("train")
    source = PairsSource(root, on_bad="skip")
    assert [r.source for r in source.split("train")] == ["a"]
    assert [r.source for r in source.split("test")] == ["b"]


def test_validation_share_depends_on_the_sentences_alone(tmp_path):
    lines = [f"number {i}\tnombre {i}" for i in range(50)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = PairsSource(write(tmp_path / "one" / "p.tsv", "\n".join(lines)), val_fraction=0.2)
    second = PairsSource(write(tmp_path / "two" / "p.tsv", "\n".join(reversed(lines))), val_fraction=0.2)
    val = {r.source for r in first.split("val")}
    assert len(val) == 10
    assert val == {r.source for r in second.split("val")}
    assert val.isdisjoint(r.source for r in first.split("train"))
    assert val != {r.source for r in PairsSource(tmp_path / "one", val_fraction=0.2, split_seed=1).split("val")}
    with pytest.raises(ValueError, match=r"no split 'val'; there is train; set data.source.val_fraction"):
        PairsSource(tmp_path / "one").split("val")
    with pytest.raises(ValueError, match=r"val_fraction 0.99 of 50 sources leaves none"):
        PairsSource(tmp_path / "one", val_fraction=0.99).split("val")


def test_which_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no .*tsv or .*txt; name the file with data\.source\.file="):
        PairsSource(tmp_path)
    write(tmp_path / "fra.txt", "Go.\tVa !\tCC-BY someone\nRun!\tCours !\tCC-BY\n")
    assert [r.targets for r in PairsSource(tmp_path, split_column=None).split("train")] == [("Va !",), ("Cours !",)]
    write(tmp_path / "deu.txt", "Go.\tGeh.\n")
    with pytest.raises(
        ValueError, match=r"several files fit \(deu.txt, fra.txt\); choose one with data\.source\.file="
    ):
        PairsSource(tmp_path)
    assert PairsSource(tmp_path, file="deu.txt").split("train")[0].targets == ("Geh.",)
    with pytest.raises(ValueError, match=r"data\.source\.on_bad=drop: choose error or skip"):
        PairsSource(tmp_path, file="deu.txt", on_bad="drop")


def test_one_column_is_not_both_sides(tmp_path):
    (tmp_path / "train.tsv").write_text("source\ttarget\na\tb\n")
    with pytest.raises(ValueError, match=r"^data\.source\.target_column=Source is the source column, too"):
        PairsSource(tmp_path, target_column="Source")


def test_a_split_file_without_pairs_is_named(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\nc\td\n")
    (tmp_path / "val.tsv").write_text("")
    with pytest.raises(ValueError, match=r"val\.tsv: no pairs in it; fill the file or take it away$"):
        PairsSource(tmp_path).split("train")
