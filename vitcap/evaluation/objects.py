"""Which objects of a picture the words of a caption name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitcap.data.instances import Annotated, Instance, Instances
from vitcap.metrics.coco_words import FUNCTION_WORDS, CategoryWords
from vitcap.metrics.regions import Box, Region, clip_box, union

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class Named:
    """words[start:stop] name a category; instances: those of the picture that are meant, none if it has none.

    adjectives: (word, the instances of these that are so) of each attribute that the words around state truly.
    """

    start: int
    stop: int
    category: str
    instances: tuple[Instance, ...]
    adjectives: tuple[tuple[int, tuple[Instance, ...]], ...] = ()


@dataclass(frozen=True)
class Mentioned:
    """What one caption mentions, and what there is: said (category, whether the model saw an instance of it) in order;
    visible: categories that the model saw; annotated: that the picture has; told: that people's captions name."""

    said: tuple[tuple[str, bool], ...]
    visible: frozenset[str]
    annotated: frozenset[str]
    told: frozenset[str]


class ObjectReader:
    """Reads captions of one data set: categories by `CategoryWords`, attributes by the words that its instances have.

    Of the instances of a category those are meant that have most of the attributes which the words directly before it
    ("a small red circle") or after it ("a circle that is small and red") state; without such words, all.
    """

    def __init__(self, instances: Instances) -> None:
        self.words = CategoryWords(instances.categories)
        self.attributes = instances.attributes

    def named(self, words: Sequence[str], picture: Annotated) -> list[Named]:
        """What the words of a caption name, from left to right."""
        plain, found = [word.lower() for word in words], []
        for start, stop, category in self.words.find(plain):
            able = [item for item in picture.instances if item.category == category]
            said = [(at, plain[at]) for at in self._around(plain, start, stop)]
            fits = [sum(word in item.attributes.values() for _, word in said) for item in able]
            meant = tuple(item for item, fit in zip(able, fits, strict=True) if fit == max(fits))
            adjectives = [(at, tuple(i for i in meant if word in i.attributes.values())) for at, word in said]
            found.append(Named(start, stop, category, meant, tuple(pair for pair in adjectives if pair[1])))
        return found

    def categories(self, captions: Iterable[str]) -> set[str]:
        """All that people's captions name."""
        return {mention.category for text in captions for mention in self.words.find(_WORD.findall(text.lower()))}

    def functions(self, words: Sequence[str], named: Sequence[Named]) -> list[int]:
        """The words that stand for no place: articles, prepositions and so on, outside of names."""
        inside = {at for one in named for at in range(one.start, one.stop)}
        return [at for at, word in enumerate(words) if word.lower() in FUNCTION_WORDS and at not in inside]

    def _around(self, words: list[str], start: int, stop: int) -> list[int]:
        """The attribute words of a name: directly before it, and after "that is"."""
        first = start
        while first and words[first - 1] in self.attributes:
            first -= 1
        after = []
        if words[stop : stop + 2] == ["that", "is"]:
            for at in range(stop + 2, len(words)):
                if words[at] in self.attributes:
                    after.append(at)
                elif words[at] != "and":
                    break
        return [*range(first, start), *after]


def region_of(instances: Iterable[Instance], view: Box, scale: tuple[float, float], *, masks: bool) -> Region:
    """What the instances cover of what the model saw: their boxes, or their masks. scale: photo / annotated picture."""
    made = []
    for item in instances:
        region = Region.of_mask(item.mask()) if masks else Region.of_boxes([item.box])
        made.append(region.scale(*scale).clip(view))
    return union(made)


def boxes_of(instances: Sequence[Instance], view: Box, scale: tuple[float, float]) -> list[Box]:
    """The boxes of the instances, cut to what the model saw; of crowds only where there is nothing else."""
    single = [item for item in instances if not item.crowd] or instances
    across, down = scale
    cut = [
        clip_box((x0 * across, y0 * down, x1 * across, y1 * down), view) for x0, y0, x1, y1 in (i.box for i in single)
    ]
    return [box for box in cut if box[2] > box[0] and box[3] > box[1]]
