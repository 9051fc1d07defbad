"""Random English sentences with their French translation and word alignment, about agreements, laws and letters."""

from __future__ import annotations

from random import Random

from vitcap.data import lexicon as lex
from vitcap.data.phrases import (
    EMPTY,
    Links,
    Phrase,
    be_phrase,
    finish,
    join,
    named,
    noun_phrase,
    numbered,
    same,
    verb_phrase,
)

_SINGULAR = ("the", "the", "the", "the", "this", "his", "her", "our", "their")
_PLURAL = ("the", "the", "the", "these", "our", "their", "all the", "number")
_PRONOUNS = (("he", "il", "m", False), ("she", "elle", "f", False), ("they", "ils", "m", True))
_ORDERS = (("b", 0.25), ("q", 0.15), ("o", 0.35), ("t", 0.35))
_NOUNS = {kinds: [noun for noun in lex.NOUNS if noun.kind in kinds] for kinds in ("p", "g", "d", "pg")}
_ADJECTIVES = {
    (order, kind): [a for a in lex.ADJECTIVES if a.order == order and kind in a.kinds]
    for order, _ in _ORDERS
    for kind in "pgd"
}


def write_pair(rng: Random, low: int, high: int) -> tuple[str, str, Links]:
    """A sentence of low..high English words: English, French, links (English word, French word)."""
    while True:
        wanted = rng.randint(low, high)
        phrase = Writer(rng, max(0, round((wanted - 4) * 0.42))).sentence()
        if low <= len(phrase.english) <= high:
            return finish(phrase)


class Writer:
    """Writes one sentence. budget: how many optional parts it has; its length grows with it."""

    def __init__(self, rng: Random, budget: int) -> None:
        self.rng, self.budget = rng, budget

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _spend(self, probability: float, price: int = 1) -> bool:
        """Whether to add an optional part, while the budget lasts."""
        chosen = self.budget >= price and self._chance(probability)
        self.budget -= price * chosen
        return chosen

    def sentence(self) -> Phrase:
        """One or more clauses of one tense, perhaps as what somebody says."""
        tense = self.rng.choice(("past", "past", "past", "present", "future"))
        text = EMPTY
        while self._spend(0.1, 2):
            who = self.subject()
            text += who + verb_phrase(self.rng.choice(lex.REPORTING), who, "present") + same("that", "que")
        text += self.clause(tense)
        while self.budget > 1:
            self._spend(1, 2)
            text += same(*self.rng.choice(lex.CONJUNCTIONS)) + self.clause(tense)
        return text

    # Clauses

    def clause(self, tense: str) -> Phrase:
        kind = self.rng.choice((self.active, self.active, self.active, self.passive, self.passive, self.be, self.go))
        return kind(tense)

    def active(self, tense: str) -> Phrase:
        who = self.subject()
        return who + self.predicate(who, tense)

    def predicate(self, who: Phrase, tense: str) -> Phrase:
        """Verb, objects and adverbials that go with the subject `who`."""
        verb = self.rng.choice((*lex.TRANSITIVE, *lex.TRANSITIVE, *lex.WITH_PARTICLE, *lex.DATIVE))
        negation = self._negation()
        text = verb_phrase(verb, who, tense, negation=negation, adverb=EMPTY if negation else self._adverb())
        again = tense == "past" and not negation and verb in lex.TRANSITIVE and self._spend(0.2)
        what = self.thing("d", definite=bool(negation or verb.preposition), bare=again or verb in lex.DATIVE)
        text += what
        if again:  # "and signed it": the pronoun stands before the French verb, whose participle agrees with it
            pronoun = same("them", "les") if what.plural else same("it", "la" if what.gender == "f" else "le")
            other = self.rng.choice([v for v in lex.TRANSITIVE if v != verb])
            text += same("and", "et") + verb_phrase(other, who, tense, pronoun=pronoun, agrees_with=what)
        if verb in lex.DATIVE:
            text += same("to", "à") + self.thing("pg", definite=True)
        return text + self._adverbials(tense)

    def passive(self, tense: str) -> Phrase:
        what = self.thing("d")
        text = what + verb_phrase(
            self.rng.choice(lex.TRANSITIVE), what, tense, passive=True, negation=self._negation(), adverb=EMPTY
        )
        if self._spend(0.4):
            text += same("by", "par") + self.thing("pg")
        return text + self._adverbials(tense)

    def go(self, tense: str) -> Phrase:
        who = self.subject("p")
        verb = self.rng.choice(lex.GOING)
        preposition = {"arrive": "in", "return": "to"}.get(verb.english[0], "")
        text = verb_phrase(verb, who, tense, negation=self._negation())
        return who + text + self._adverbials(tense, preposition)

    def be(self, tense: str) -> Phrase:
        kind = self.rng.choice("dp")
        what = self.thing(kind)
        adjective = self.rng.choice([a for a in lex.ADJECTIVES if a.predicate and kind in a.kinds])
        text = what + be_phrase(what, tense, negation="not" if self._spend(0.15) else "")
        quality = same(adjective.english, adjective.french[2 * what.plural + (what.gender == "f")])
        if adjective.order == "q" and self._spend(0.4):  # the others have a comparative of their own
            return text + same("more", "plus") + quality + same("than", "que") + self.thing(kind, definite=True)
        return text + quality

    # Parts of a clause

    def subject(self, kinds: str = "pg") -> Phrase:
        if self._chance(0.2):
            english, french, gender, plural = self.rng.choice(_PRONOUNS)
            pronoun = same(english, french)
            return join([pronoun], [pronoun], gender=gender, plural=plural)
        return self.thing(kinds)

    def thing(self, kinds: str, *, definite: bool = False, bare: bool = False, plural: bool | None = None) -> Phrase:
        """A noun phrase. definite: without a, some, many, which French words differently after ne, de, à and que.
        bare: with nothing behind the noun."""
        if kinds == "pg" and self._chance(0.15):
            return named(self.rng.choice([n for n in lex.BODIES if plural is None or plural == n.plural]))
        noun = self.rng.choice(_NOUNS[kinds])
        plural = self._chance(0.3) if plural is None else plural
        adjectives = []
        for order, probability in _ORDERS:
            fitting = _ADJECTIVES[order, noun.kind]
            if fitting and self._spend(probability):
                adjectives.append(self.rng.choice(fitting))
        if noun.kind == "d" and not bare and self._spend(0.15):
            owner = self.thing("pg", definite=True, bare=True, plural=False)
            return noun_phrase(noun, owner, adjectives, plural=plural)
        options: tuple[str, ...] = _PLURAL if plural else _SINGULAR
        if not definite:
            options += ("some", "some", "many") if plural else ("a", "a", "a")
        determiner: str | tuple[str, str] = self.rng.choice(options)
        if determiner == "number":
            determiner = self.rng.choice(lex.NUMBERS)
        complement = EMPTY if bare else self._complement(noun, plural, of=determiner in ("the", "a", "some"))
        return noun_phrase(noun, determiner, adjectives, plural=plural, complement=complement)

    def _complement(self, noun: lex.Noun, plural: bool, of: bool) -> Phrase:
        """A prepositional phrase or a relative clause, or nothing."""
        if self._spend(0.25):
            if noun.kind == "d":
                on = (
                    named(self.rng.choice((*lex.BODIES, *lex.THEMES)))
                    if self._chance(0.7)
                    else self.thing("d", bare=True)
                )
                return same("on", "sur") + on
            if noun.kind == "p" and of:
                return same("of", "de") + self.thing("g", definite=True, bare=True)
        if not self._spend(0.15, 2):
            return EMPTY
        head = Phrase(gender=noun.gender, plural=plural)
        if noun.kind != "d":
            return same("who" if noun.kind == "p" else "that", "qui") + self.predicate(head, "past")
        verb = self.rng.choice(lex.TRANSITIVE)
        if self._chance(0.5):
            passive = verb_phrase(verb, head, "past", passive=True, adverb=self._adverb())
            return same("that", "qui") + passive + self._adverbials("past")
        who = self.subject()
        return same("that", "que") + who + verb_phrase(verb, who, "past", agrees_with=head)

    def _negation(self) -> str:
        return self.rng.choice(("not", "not", "never")) if self._spend(0.15) else ""

    def _adverb(self) -> Phrase:
        return same(*self.rng.choice(lex.ADVERBS)) if self._spend(0.15) else EMPTY

    def _adverbials(self, tense: str, preposition: str = "in") -> Phrase:
        """Where and when; no preposition, no place."""
        text = EMPTY
        if preposition and self._spend(0.25):
            text += place(preposition, *self.rng.choice(lex.PLACES))
        if self._spend(0.4):
            text += (
                self._date() if tense == "past" and self._chance(0.7) else numbered(*self.rng.choice(lex.WHEN[tense]))
            )
        return text

    def _date(self) -> Phrase:
        year = self.rng.choice(lex.YEARS)
        month, mois = self.rng.choice(lex.MONTHS)
        if self._chance(0.25):
            return date(year)
        return date(year, (month, mois), self.rng.choice(lex.DAYS) if self._chance(0.4) else "")


def date(year: str, month: tuple[str, str] | None = None, day: str = "") -> Phrase:
    """in 1992, in August 1992, on 8 August 1992; month: (English, French)."""
    text = same("on", "le") + same(day, day) if day else same("in", "en")
    return text + (same(*month) if month else EMPTY) + same(year, year)


def place(preposition: str, english: str, french: str) -> Phrase:
    """in Paris, to the Netherlands: an English article is part of the French preposition ("aux")."""
    *article, name = english.split()
    first, last = french.split()
    return same(" ".join([preposition, *article]), first) + same(name, last)


def _example() -> tuple[str, str, Links]:
    noun = next(noun for noun in lex.NOUNS if noun.english[0] == "agreement")
    verb = next(verb for verb in lex.TRANSITIVE if verb.english[0] == "sign")
    agreement = noun_phrase(noun, complement=same("on", "sur") + named(lex.THEMES[0]))
    return finish(agreement + verb_phrase(verb, agreement, "past", passive=True) + date("1992", ("August", "août")))


EXAMPLE = _example()
"""(English, French, links) of "the agreement on the European Economic Area was signed in August 1992", a sentence of
this grammar whose alignment Bahdanau et al. (2015) draw in their figure 3."""
