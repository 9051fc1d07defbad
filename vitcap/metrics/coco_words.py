"""Which of COCO's 80 object categories the words of a caption name: a word list and a few rules, no tagger. No torch.

The rules, in the order in which they decide:

1. Letter case and a final 's do not matter. Plurals are formed by rule, or listed as irregular.
2. Names of several words count as a whole, the longest first: a hot dog is no dog, a teddy bear no bear.
3. Phrases of the list "nothing" contain a category's word and mean something else: train station, couple of.
4. "baby elephant", "mother bear": such words (the list "young") directly before an animal are no person.
5. A name that is a colour, too (orange), counts in the singular only at the end or before a function word, and not in
   "orange and white": an orange cat is no fruit.

Whether a word is a verb or a noun ("to ski", "a ski") is not told apart; the list leaves such words out, or takes only
the form that is mostly a noun (skis). Categories that are not COCO's are named by their own name and its plural.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

NOTHING = ""


class Mention(NamedTuple):
    """words[start:stop] name an object of this category."""

    start: int
    stop: int
    category: str


class CategoryWords:
    """The words of some categories; `find` reads a caption.

    categories: names as in the annotation file; None for COCO's 80.
    """

    def __init__(self, categories: Iterable[str] | None = None) -> None:
        listed: dict[str, list[str]] = _words()["categories"]
        self.categories = tuple(listed if categories is None else dict.fromkeys(categories))
        self._names: dict[tuple[str, ...], str] = {tuple(_plain(p.split())): NOTHING for p in _words()["nothing"]}
        self._names |= {_plural(name): NOTHING for name in list(self._names)}
        # Names of what is not annotated still shield their words: without the category "hot dog" it is no dog either.
        others = {name: words for name, words in listed.items() if name not in self.categories}
        for table in (others, {name: listed.get(name, [name]) for name in self.categories}):
            for category, names in table.items():
                for name in (tuple(_plain(text.split())) for text in names):
                    for form in (name, _plural(name)):
                        self._names[form] = category if table is not others else NOTHING
        self._longest = max(map(len, self._names), default=0)
        self._animals = set(_words()["animals"])

    def find(self, words: Sequence[str]) -> list[Mention]:
        """Mentions of the categories in the words of a caption, from left to right; none overlaps another."""
        plain, found, at = _plain(words), [], 0
        while at < len(plain):
            for length in range(min(self._longest, len(plain) - at), 0, -1):
                category = self._names.get(tuple(plain[at : at + length]))
                if category is not None:
                    break
            else:
                at += 1
                continue
            if category and not self._colour(plain, at, length) and not self._belongs(plain, at, length):
                found.append(Mention(at, at + length, category))
            at += length
        return found

    def _colour(self, words: list[str], at: int, length: int) -> bool:
        """Rule 5."""
        if words[at] not in _COLOURS or length > 1 or at + 1 == len(words):
            return False
        after = words[at + 1]
        if after in ("and", "or") and at + 2 < len(words) and words[at + 2] in _COLOURS:
            return True
        return after not in FUNCTION_WORDS

    def _belongs(self, words: list[str], at: int, length: int) -> bool:
        """Rule 4."""
        if words[at] not in _words()["young"] or length > 1 or at + 1 == len(words):
            return False
        rest = self.find(words[at + 1 : at + 1 + self._longest])
        if rest and rest[0].start == 0:
            return rest[0].category in self._animals
        return words[at + 1] in _animal_words()


@lru_cache(maxsize=1)
def _words() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("coco_words.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _animal_words() -> frozenset[str]:
    table = _words()
    names = [(name,) for animal in table["animals"] for name in table["categories"][animal] if " " not in name]
    return frozenset(form[0] for name in names for form in (name, _plural(name)))


def _plain(words: Iterable[str]) -> list[str]:
    lower = (word.lower().replace("’", "'") for word in words)
    return [word.removesuffix("'s").rstrip("'") if word != "'s" else word for word in lower]


def _plural(name: tuple[str, ...]) -> tuple[str, ...]:
    """With its last word in the plural; "glass of wine" is listed in both forms."""
    word, irregular = name[-1], _words()["irregular_plurals"]
    if word in irregular:
        plural = irregular[word]
    elif word.endswith(("s", "x", "ch", "sh")):
        plural = word + "es"
    elif word.endswith("y") and word[-2:-1] not in "aeiou":
        plural = word[:-1] + "ies"
    else:
        plural = word + "s"
    return *name[:-1], plural


FUNCTION_WORDS = frozenset(_words()["function_words"])
"""Articles, prepositions without a place of their own, conjunctions, auxiliaries, pronouns."""
_COLOURS = frozenset(_words()["colours"])
