"""Captions of synthetic scenes: short true sentences with a small vocabulary, worded in five ways."""

from __future__ import annotations

from collections.abc import Callable

from vitcap.data.scenes import OPPOSITE, SHAPES, Scene, SceneObject, relation

NUMBERS = ("one", "two", "three", "four")
PLURALS = {s: "crosses" if s == "cross" else s + "s" for s in SHAPES}
SHORT = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
LONG = {"left": "to the left of", "right": "to the right of", "above": "above", "below": "under"}
PRONOUN = {"left": "to its left", "right": "to its right", "above": "above it", "below": "below it"}
ARRANGED = {"side by side": ("left", "right"), "one above the other": ("above", "below")}


def describe(scene: Scene) -> tuple[str, str, str, str, str]:
    """Five differently worded true captions; each opening goes with one order of the objects and one set of adjectives.

    The first is always the plain form ("a large striped red circle left of a small blue square"); `scene.variant`
    leaves some of the others out.
    """
    captions = _WRITERS[scene.twins, len(scene.objects)](scene, *scene.objects)
    variant = scene.variant
    while len(captions) > 5:
        variant, drop = divmod(variant, len(captions) - 1)
        del captions[1 + drop]
    first, second, third, fourth, fifth = captions
    return first, second, third, fourth, fifth


def phrase(item: SceneObject, wanted: str = "stc", *, count: int = 1, article: str = "") -> str:
    """Noun phrase. wanted: s size, t texture unless solid, T texture always, c colour."""
    words = [item.size] if "s" in wanted else []
    if "T" in wanted or ("t" in wanted and item.texture != "solid"):
        words.append(item.texture)
    words += [item.colour, item.shape if count == 1 else PLURALS[item.shape]]
    if count > 1:
        return " ".join([NUMBERS[count - 1], *words])
    return " ".join([article or ("an" if words[0][0] in "aeiou" else "a"), *words])


def _background(scene: Scene) -> str:
    return f"on a {scene.background.tone} background"


def _one(scene: Scene, a: SceneObject) -> list[str]:
    p = phrase
    return [
        f"{p(a)} {_background(scene)}",
        f"there is {p(a, 'Tc')} in the picture",
        f"the picture shows {p(a, 'sc')} {_background(scene)}",
        f"we see {p(a, 'c')} that is {a.size} and {a.texture}",
        f"nothing but {p(a)}",
        f"one object namely {p(a, 'sTc')}",
    ]


def _two(scene: Scene, a: SceneObject, b: SceneObject) -> list[str]:
    p, r = phrase, relation(a, b)
    return [
        f"{p(a)} {SHORT[r]} {p(b)}",
        f"there is {p(b, 'Tc')} {LONG[OPPOSITE[r]]} {p(a, 'Tc')}",
        f"the picture shows {p(a, 'tc')} with {p(b, 'sc')} {PRONOUN[OPPOSITE[r]]}",
        f"we see {p(b, 'c')} {SHORT[OPPOSITE[r]]} {p(a, 'c')} {_background(scene)}",
        f"nothing but {p(a, 'sc')} and {p(b, 'sc')}",
        f"two objects namely {p(a, 'tc')} and {p(b, 'tc')}",
        f"here is {p(a, 'sTc')} {_background(scene)}",
    ]


def _three(scene: Scene, a: SceneObject, b: SceneObject, c: SceneObject) -> list[str]:
    p, rb, rc = phrase, relation(a, b), relation(a, c)
    return [
        f"{p(a)} {SHORT[rb]} {p(b, 'c')} and {SHORT[rc]} {p(c, 'c')}",
        f"there is {p(b, 'sc')} {LONG[OPPOSITE[rb]]} {p(a, 'tc')}",
        f"the picture shows {p(a, 'sc')} with {p(c, 'tc')} {PRONOUN[OPPOSITE[rc]]}",
        f"we see {p(b, 'Tc')} and {p(c, 'Tc')} {_background(scene)}",
        f"three objects namely {p(a, 'c')} and {p(b, 'c')} and {p(c, 'c')}",
        f"here is {p(a, 'sTc')} {_background(scene)}",
    ]


def _four(scene: Scene, a: SceneObject, b: SceneObject, c: SceneObject, d: SceneObject) -> list[str]:
    p, (rb, rc, rd) = phrase, (relation(a, o) for o in (b, c, d))
    return [
        f"{p(a)} {SHORT[rb]} {p(b, 'c')} and {SHORT[rc]} {p(c, 'c')}",
        f"there is {p(d, 'stc')} {LONG[OPPOSITE[rd]]} {p(a, 'c')}",
        f"the picture shows {p(a, 'sc')} with {p(c, 'tc')} {PRONOUN[OPPOSITE[rc]]}",
        f"we see {p(b, 'c')} and {p(c, 'c')} and {p(d, 'c')}",
        f"four objects including {p(a, 'sTc')}",
        f"here is {p(b, 'Tc')} {LONG[OPPOSITE[rb]]} {p(a, 'tc')}",
    ]


def _twins(scene: Scene, a: SceneObject, b: SceneObject) -> list[str]:
    r = relation(a, b)
    arranged = next(text for text, names in ARRANGED.items() if r in names)
    return [
        f"{phrase(a, count=2)} {arranged}",
        f"there are {phrase(a, 'Tc', count=2)} in the picture",
        f"the picture shows {phrase(a, 'sc', count=2)} {_background(scene)}",
        f"we see {phrase(b, 'c')} {SHORT[OPPOSITE[r]]} {phrase(a, 'c', article='another')}",
        f"nothing but {phrase(a, 'tc', count=2)}",
        f"here are {phrase(a, 'c', count=2)} {arranged} {_background(scene)}",
    ]


def _one_and_twins(scene: Scene, a: SceneObject, b: SceneObject, c: SceneObject) -> list[str]:
    p = phrase
    return [
        f"{p(a)} and {p(b, count=2)}",
        f"there are {p(b, 'sc', count=2)} and {p(a, 'sc')}",
        f"the picture shows {p(a, 'sc')} and {p(b, 'tc', count=2)}",
        f"we see {p(b, 'Tc', count=2)} {_background(scene)}",
        f"three objects namely {p(a, 'c')} and {p(b, 'c', count=2)}",
        f"here is {p(a, 'sTc')} {_background(scene)}",
    ]


_WRITERS: dict[tuple[bool, int], Callable[..., list[str]]] = {
    (False, 1): _one, (False, 2): _two, (False, 3): _three, (False, 4): _four,
    (True, 2): _twins, (True, 3): _one_and_twins,
}  # fmt: skip
