"""English and French phrases built side by side, so that their word alignment is known.

Every French word keeps the English words that it answers to; links survive reordering ("the European Economic Area" /
"la zone économique européenne"), agreement, elision ("l' accord") and contraction ("du", "aux"). Where annotators
differ: an English auxiliary links to the French auxiliary, or with its verb to the one French verb form; "not" links to
both "ne" and "pas"; a French article that English lacks links to its noun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitcap.data.lexicon import AVOIR, BE, DO, ELIDED, ETRE, GOING, VOWELS, Adjective, Name, Noun, Verb, inflect

Links = frozenset[tuple[int, int]]
"""(source word, target word) pairs, 0-based."""


class Word(str):
    """An English word of one sentence; told apart by identity, since a sentence may hold a word twice."""


FrenchWord = tuple[str, tuple[Word, ...]]
"""A French word and the English words it answers to."""


@dataclass(frozen=True)
class Phrase:
    """A constituent. gender ("m", "f") and plural are those of
    a noun phrase."""

    english: tuple[Word, ...] = ()
    french: tuple[FrenchWord, ...] = ()
    gender: str = "m"
    plural: bool = False

    def __add__(self, other: Phrase) -> Phrase:
        """Side by side in both languages, with gender and number of the first."""
        return Phrase(self.english + other.english, self.french + other.french, self.gender, self.plural)


EMPTY = Phrase()


def same(english: str, french: str) -> Phrase:
    """All words of one side answer to all words of the other."""
    words = tuple(map(Word, english.split()))
    return Phrase(words, tuple((text, words) for text in french.split()))


def numbered(english: str, french: str) -> Phrase:
    """French as "zone:2 économique:1": each word with the number of the English word it answers to."""
    words = tuple(map(Word, english.split()))
    pairs = (item.split(":") for item in french.split())
    return Phrase(words, tuple((text, (words[int(number)],)) for text, number in pairs))


def join(english: Iterable[Phrase], french: Iterable[Phrase], *, gender: str = "m", plural: bool = False) -> Phrase:
    """The same constituents in the order of each language."""
    words = tuple(word for phrase in english for word in phrase.english)
    return Phrase(words, tuple(item for phrase in french for item in phrase.french), gender, plural)


def finish(phrase: Phrase) -> tuple[str, str, Links]:
    """English, French and links, after what neighbours do to each other: a/an, elision, contraction of de and à."""
    english = list(phrase.english)
    for index in range(len(english) - 1):
        after = english[index + 1].lower()
        if english[index] == "a" and after[0] in "aeiou" and not after.startswith(("eu", "uni")):
            english[index] = Word("an")
    french: list[FrenchWord] = []
    for text, words in phrase.french:
        if french and _is_vowel(text) and french[-1][0] in ELIDED:
            french[-1] = (ELIDED[french[-1][0]], french[-1][1])
        french.append((text, words))
        # Only now is it known whether the article before this word stays whole: "du conseil", but "de l' accord".
        if len(french) > 2 and (short := _CONTRACTED.get((french[-3][0], french[-2][0]))):
            french[-3:-1] = [(short, french[-3][1] + french[-2][1])]
    place = {id(word): index for index, word in enumerate(phrase.english)}
    links = frozenset((place[id(word)], index) for index, (_, words) in enumerate(french) for word in words)
    return " ".join(english), " ".join(text for text, _ in french), links


_CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
_POSSESSIVE = {"his": "son sa ses", "her": "son sa ses", "our": "notre notre nos", "their": "leur leur leurs"}


def _is_vowel(word: str) -> bool:
    return word[0].lower() in VOWELS


def _article(gender: str, plural: bool) -> str:
    return "les" if plural else "la" if gender == "f" else "le"


# Noun phrases


def noun_phrase(
    noun: Noun,
    determiner: str | tuple[str, str] | Phrase = "the",
    adjectives: Sequence[Adjective] = (),
    *,
    plural: bool = False,
    complement: Phrase = EMPTY,
) -> Phrase:
    """adjectives: in English order. complement: what follows the noun in both languages.

    determiner: the, a, this, these, all the, some, many, his, her, our, their; a numeral as (English, French); or the
    owner, a noun phrase ("the minister" makes "the minister 's letter" / "la lettre du ministre").
    """
    form = 2 * plural + (noun.gender == "f")
    core = same(noun.english[plural], noun.french[plural])
    before = [
        same(a.english, a.liaison if form == 0 and _is_vowel(noun.french[0]) else a.french[form])
        for a in adjectives
        if a.before
    ]
    after = [same(a.english, a.french[form]) for a in adjectives if not a.before]
    french = [*before, core, *reversed(after)]
    if isinstance(determiner, Phrase):
        of = same("'s", "de")
        article = Phrase((), ((_article(noun.gender, plural), core.english),))
        return join(
            [determiner, of, *before, *after, core, complement],
            [article, *french, of, determiner, complement],
            gender=noun.gender,
            plural=plural,
        )
    first = _determiner(determiner, noun.gender, plural, _is_vowel(french[0].french[0][0]), bool(before))
    return join(
        [first, *before, *after, core, complement], [first, *french, complement], gender=noun.gender, plural=plural
    )


def _determiner(english: str | tuple[str, str], gender: str, plural: bool, vowel: bool, before: bool) -> Phrase:
    """vowel: the next French word begins with one. before: it is an adjective."""
    if isinstance(english, tuple):
        return same(*english)
    feminine = gender == "f"
    if english in _POSSESSIVE:
        masculine, ordinary, many = _POSSESSIVE[english].split()
        return same(english, many if plural else ordinary if feminine and not vowel else masculine)
    if english == "all the":
        return same("all", "toutes" if feminine else "tous") + same("the", "les")
    french = {
        "the": _article(gender, plural),
        "a": "une" if feminine else "un",
        "this": "cette" if feminine else "cet" if vowel else "ce",
        "these": "ces",
        "some": "de" if before else "des",
        "many": "beaucoup de",
    }
    return same(english, french[english])


def named(name: Name) -> Phrase:
    """A compound name with its article."""
    article = same("the", _article(name.gender, name.plural))
    body = numbered(name.english, name.french)
    return join([article, body], [article, body], gender=name.gender, plural=name.plural)


# Verbs


def verb_phrase(
    verb: Verb,
    subject: Phrase,
    tense: str,
    *,
    passive: bool = False,
    negation: str = "",
    adverb: Phrase = EMPTY,
    pronoun: Phrase = EMPTY,
    agrees_with: Phrase | None = None,
) -> Phrase:
    """The finite verb with everything that French puts around it.

    subject: for agreement; not part of the result. tense: past (French perfect), present, future.
    negation: "", "not" or "never". adverb: before the English verb ("quickly signed" / "a rapidement signé").
    pronoun: an object after the English and before the French verb ("signed it" / "l' a signé").
    agrees_with: a direct object before the verb, which a participle with avoir agrees with.
    """
    several = subject.plural
    base, third, past, participle = verb.english
    if passive:
        english = [*(["will", "be"] if tense == "future" else [BE[tense][several]]), participle]
    elif tense == "future":
        english = ["will", base]
    elif negation == "not":
        english = [DO[tense][several], base]
    else:
        english = [past if tense == "past" else base if several else third]
    words = tuple(map(Word, english))
    main, helper = words[-1:], words[:-1]

    tail: tuple[FrenchWord, ...]
    agreeing = subject if passive or verb in GOING else agrees_with
    form = inflect(verb.participle, agreeing.gender, agreeing.plural) if agreeing else verb.participle
    done = ((form, main),)
    if passive:
        auxiliary = AVOIR if tense == "past" else ETRE[tense]
        tail = (("été", helper), *done) if tense == "past" else done
        finite = (auxiliary[several], helper)
    elif tense == "past":
        finite, tail = ((ETRE["present"] if verb in GOING else AVOIR)[several], helper or main), done
    else:
        finite, tail = ((verb.present if tense == "present" else verb.future)[several], words), ()

    particle = tuple(map(Word, verb.particle.split()))
    if particle:  # the last verb form answers to both: "waited for" / "attendu"
        last = (tail or (finite,))[-1]
        last = (last[0], last[1] + particle)
        finite, tail = (finite, (*tail[:-1], last)) if tail else (last, tail)
    preposition = tuple((word, particle or main) for word in verb.preposition.split())
    return _around(
        words, finite, tail, negation=negation, adverb=adverb, pronoun=pronoun, after=Phrase(particle, preposition)
    )


def be_phrase(subject: Phrase, tense: str, *, negation: str = "") -> Phrase:
    """The copula: was / était, is / est, will be / sera."""
    words = (Word("will"), Word("be")) if tense == "future" else (Word(BE[tense][subject.plural]),)
    return _around(words, (ETRE[tense][subject.plural], words), (), negation=negation, copula=True)


def _around(
    words: tuple[Word, ...],
    finite: FrenchWord,
    tail: tuple[FrenchWord, ...],
    *,
    negation: str,
    adverb: Phrase = EMPTY,
    pronoun: Phrase = EMPTY,
    after: Phrase = EMPTY,
    copula: bool = False,
) -> Phrase:
    """Negation after the first English auxiliary and around the finite French verb; participles come last."""
    no = (Word(negation),) if negation else ()
    ne = tuple(("ne", no) for _ in no)
    pas = tuple(("jamais" if negation == "never" else "pas", no) for _ in no)
    first = 1 if copula or len(words) > 1 else 0
    main = len(words) if copula else len(words) - 1
    english = words[:first] + no + words[first:main] + adverb.english + words[main:] + after.english + pronoun.english
    # "a rapidement signé", "a été rapidement signé", "signe rapidement"
    french = ne + pronoun.french + (finite,) + pas + tail[:-1] + adverb.french + tail[-1:] + after.french
    return Phrase(english, french)
