"""Reads a caption of a synthetic scene and decides whether what it states is true.

Any text is parsed with a small grammar; nothing is compared with reference captions.

    caption  = ["there is" | "there are" | "here is" | "here are" | "the picture shows" | "we see"] ["nothing but"]
               (number "objects" [("namely" | "including") list] | list) ["on a" tone "background" | "in the picture"]
    list     = item {"and" item}
    item     = phrase {["and"] relation phrase | "with" phrase ("above it" | "to its left" | ...)}
    phrase   = ("a" | "an" | "another" | number) {size | texture | colour} shape ["that is" adjective {"and" adjective}]
             | number {size | texture | colour} shapes ["side by side" | "one above the other"]

After "and", a relation speaks of the item's first phrase, otherwise of the phrase named last. Different phrases stand
for different objects. A number claims exactly that many; "namely" and "nothing but" claim that nothing else is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from vitcap.data.scene_language import ARRANGED, LONG, NUMBERS, PLURALS, PRONOUN, SHORT
from vitcap.data.scenes import COLOURS, SHAPES, SIZES, TEXTURES, TONES, Scene, SceneObject, holds

_NOUNS = {s: (s, False) for s in SHAPES} | {p: (s, True) for s, p in PLURALS.items()}
_KIND = {w: kind for kind, words in {"size": SIZES, "texture": TEXTURES, "colour": COLOURS}.items() for w in words}
_OPENINGS = {"there is": False, "here is": False, "there are": True, "here are": True}  # True: something plural follows
_RELATIONS = {text: name for table in (LONG, SHORT) for name, text in table.items()}
_PLACES = {text: name for name, text in PRONOUN.items()}
_OTHER_WORDS = (
    "a an another and background but in including is namely nothing object objects on picture "
    "see shows that the we with"
)
VOCABULARY = frozenset(
    " ".join([_OTHER_WORDS, *NUMBERS, *_NOUNS, *_KIND, *_OPENINGS, *_RELATIONS, *_PLACES, *ARRANGED, *TONES]).split()
)
"""Every word of the grammar."""
_MAX_ASSIGNED = 6  # phrases that may stand for an object; scenes have four at most, and trying all takes long


class CaptionError(ValueError):
    """The text is no sentence of the grammar."""


@dataclass(frozen=True)
class Truth:
    """What a caption states, and what of it is true.

    claims: stated attributes (shape, colour, size, texture), relations, numbers, background, completeness.
    true_claims: how many are true when phrases stand for different objects, in the most favourable way.
    ok: the caption can be read and every claim is true. coverage: share of the scene's objects that it names truly.
    problems: one line each. A caption that cannot be read counts as one false claim.
    """

    ok: bool
    claims: int
    true_claims: int
    problems: tuple[str, ...]
    coverage: float


@dataclass
class Phrase:
    """A noun phrase: `count` objects with `attributes` (names as in SceneObject); `arranged`: a key of ARRANGED."""

    text: str
    count: int
    attributes: dict[str, str]
    numeral: bool
    arranged: str = ""

    def matches(self, item: SceneObject) -> bool:
        return all(getattr(item, k) == v for k, v in self.attributes.items())


@dataclass
class Statement:
    """What a caption says. relations: (index of phrase, relation, index of phrase)."""

    phrases: list[Phrase] = field(default_factory=list)
    relations: list[tuple[int, str, int]] = field(default_factory=list)
    total: int | None = None
    complete: bool = False
    tone: str | None = None


def read(caption: str) -> Statement:
    """Parse a caption (letter case and . , : ; ! do not matter). Raises CaptionError, which says what is wrong."""
    return _Reader(caption).caption()


def check(scene: Scene, caption: str) -> Truth:
    """Whether every stated object, colour, size, texture, number, background and relation is true of the scene."""
    try:
        statement = read(caption)
    except CaptionError as error:
        return Truth(False, 1, 0, (str(error),), 0.0)
    best: tuple[int, int, list[str], float] | None = None
    counts = [p.count for p in statement.phrases]
    left_over: list[tuple[SceneObject, ...]] = [()] * len(counts[_MAX_ASSIGNED:])
    for assigned in _assignments(scene.objects, counts[:_MAX_ASSIGNED]):
        chosen = assigned + left_over
        claims = list(_claims(scene, statement, chosen))
        problems = [text for true, text in claims if not true]
        named = {id(o) for p, objects in zip(statement.phrases, chosen, strict=True) for o in objects if p.matches(o)}
        result = (len(claims), len(claims) - len(problems), problems, len(named) / len(scene.objects))
        if best is None or (result[1], result[3]) > (best[1], best[3]):
            best = result
        if not problems:
            break
    assert best is not None
    total, true, problems, coverage = best
    return Truth(not problems, total, true, tuple(problems), coverage)


def _assignments(objects: tuple[SceneObject, ...], counts: list[int]) -> Iterator[list[tuple[SceneObject, ...]]]:
    """All ways to give each phrase `count` objects, or none, such that no object serves two phrases."""
    if not counts:
        yield []
        return
    options: list[tuple[SceneObject, ...]] = list(combinations(objects, counts[0]))
    for option in [*options, ()]:
        rest = tuple(o for o in objects if o not in option)
        for tail in _assignments(rest, counts[1:]):
            yield [option, *tail]


def _claims(scene: Scene, statement: Statement, chosen: list[tuple[SceneObject, ...]]) -> Iterator[tuple[bool, str]]:
    """Each claim under one assignment, as (true?, what to say if it is not)."""
    for phrase_, objects in zip(statement.phrases, chosen, strict=True):
        for kind, value in phrase_.attributes.items():
            found = bool(objects) and all(getattr(o, kind) == value for o in objects)
            actual = getattr(objects[0], kind) if objects else "no object is left for it"
            yield found, f"'{phrase_.text}': {kind} is not {value} ({actual})"
        if phrase_.numeral:
            count = sum(map(phrase_.matches, scene.objects))
            yield count == phrase_.count, f"'{phrase_.text}': there are {count}"
        if phrase_.arranged:
            pairs = combinations(objects, 2)
            true = len(objects) == 2 and any(holds(n, a, b) for a, b in pairs for n in ARRANGED[phrase_.arranged])
            yield true, f"'{phrase_.text}': not {phrase_.arranged}"
    for i, name, j in statement.relations:
        true = bool(chosen[i] and chosen[j]) and all(holds(name, a, b) for a in chosen[i] for b in chosen[j])
        yield true, f"'{statement.phrases[i].text}' is not {SHORT[name]} '{statement.phrases[j].text}'"
    if statement.total is not None:
        yield statement.total == len(scene.objects), f"there are {len(scene.objects)} objects, not {statement.total}"
    if statement.complete:
        named = sum(map(len, chosen))
        yield named == len(scene.objects), f"the picture has {len(scene.objects)} objects, the caption names {named}"
    if statement.tone:
        yield statement.tone == scene.background.tone, f"the background is {scene.background.tone}"


class _Reader:
    """Recursive descent over the words; one method for each rule of the grammar."""

    def __init__(self, caption: str) -> None:
        self.words = re.findall(r"[^\s.,:;!]+", caption.lower())
        self.at = 0
        self.said = Statement()
        if not self.words:
            raise CaptionError("the caption is empty")
        for word in self.words:
            if word not in VOCABULARY:
                raise CaptionError(f"unknown word '{word}'")

    def next(self, ahead: int = 0) -> str:
        return self.words[self.at + ahead] if self.at + ahead < len(self.words) else ""

    def take(self, text: str) -> bool:
        """Step over the words of `text` if they come next."""
        words = text.split()
        if self.words[self.at : self.at + len(words)] != words:
            return False
        self.at += len(words)
        return True

    def expected(self, what: str) -> CaptionError:
        found = f"'{self.next()}'" if self.next() else "the end of the caption"
        return CaptionError(f"expected {what} after '{' '.join(self.words[: self.at])}', found {found}")

    def caption(self) -> Statement:
        plural = next((p for text, p in _OPENINGS.items() if self.take(text)), None)
        if plural is None:
            self.take("the picture shows") or self.take("we see")
        self.said.complete = self.take("nothing but")
        start = self.at
        if self.next(1) in ("object", "objects") and self.next() in NUMBERS:
            self.said.total = NUMBERS.index(self.next()) + 1
            if (self.next(1) == "objects") != (self.said.total > 1):
                raise CaptionError(f"'{self.next()} {self.next(1)}' is no grammatical number")
            self.at += 2
            self.said.complete |= self.take("namely")
            if self.words[self.at - 1] == "namely" or self.take("including"):
                self.list()
        else:
            self.list()
        first = self.said.total if self.said.total is not None else self.said.phrases[0].count
        if plural is not None and plural != (first > 1):
            raise CaptionError(f"'{' '.join(self.words[:start])}' does not agree with what follows")
        if not self.take("in the picture"):
            self.background()
        if self.next():
            raise CaptionError(f"cannot read '{' '.join(self.words[self.at :])}'")
        return self.said

    def background(self) -> None:
        if self.take("on a"):
            if self.next() not in TONES or self.next(1) != "background":
                raise self.expected("'light background' or 'dark background'")
            self.said.tone = self.next()
            self.at += 2

    def list(self) -> None:
        self.item()
        while self.take("and"):
            self.item()

    def item(self) -> None:
        first = last = self.phrase()
        while True:
            start = self.at
            subject = first if self.take("and") else last
            if name := next((n for text, n in _RELATIONS.items() if self.take(text)), None):
                last = self.phrase()
                self.said.relations.append((subject, name, last))
                continue
            self.at = start
            if not self.take("with"):
                return
            if self.said.phrases[last].count > 1:
                raise CaptionError(f"'with' after '{self.said.phrases[last].text}' is not clear")
            owner, last = last, self.phrase()
            place = next((n for text, n in _PLACES.items() if self.take(text)), None)
            if place is None:
                raise self.expected("a place such as 'to its left'")
            self.said.relations.append((last, place, owner))

    def phrase(self) -> int:
        """Reads a noun phrase and returns its index."""
        start, word = self.at, self.next()
        if word not in ("a", "an", "another", *NUMBERS):
            raise self.expected("an object")
        self.at += 1
        if word in ("a", "an") and (word == "an") != (self.next()[:1] in tuple("aeiou")):
            raise CaptionError(f"'{word} {self.next()}' is no grammatical article")
        count = NUMBERS.index(word) + 1 if word in NUMBERS else 1
        attributes: dict[str, str] = {}
        while self.adjective(attributes):
            pass
        if self.next() not in _NOUNS:
            raise self.expected("a shape")
        attributes["shape"], plural = _NOUNS[self.next()]
        self.at += 1
        if plural != (count > 1):
            raise CaptionError(f"'{word} ... {self.words[self.at - 1]}' is no grammatical number")
        if count == 1 and self.take("that is"):
            if not self.adjective(attributes):
                raise self.expected("a size, texture or colour")
            while self.next() == "and" and self.next(1) in _KIND:
                self.at += 1
                self.adjective(attributes)
        text = " ".join(self.words[start : self.at])
        if word == "another" and all(p.attributes["shape"] != attributes["shape"] for p in self.said.phrases):
            raise CaptionError(f"'{text}', but none was named before")
        arranged = next((a for a in ARRANGED if count == 2 and self.take(a)), "")
        self.said.phrases.append(Phrase(text, count, attributes, word in NUMBERS, arranged))
        return len(self.said.phrases) - 1

    def adjective(self, attributes: dict[str, str]) -> bool:
        kind = _KIND.get(self.next())
        if kind is None:
            return False
        if kind in attributes:
            raise CaptionError(f"two words for {kind}: '{attributes[kind]}' and '{self.next()}'")
        attributes[kind] = self.next()
        self.at += 1
        return True
