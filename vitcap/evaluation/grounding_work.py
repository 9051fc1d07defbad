"""What the words of captions name, and the measures of their maps, gathered while pictures go by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vitcap.data.instances import Annotated, Instance, Instances
from vitcap.data.records import CaptionRecord
from vitcap.evaluation.controls import centre_map
from vitcap.evaluation.grounding_tally import Place, Tally, all_views
from vitcap.evaluation.objects import Mentioned, ObjectReader, boxes_of, region_of
from vitcap.metrics.regions import Floats, seen
from vitcap.record import AttentionRecord, View

RANDOM, OTHER = "random weights: ", "another picture: "
"""Rows of views with the maps of an untrained model, and with those of another picture's words."""

Target = tuple[str, Sequence[int], Place]
"""Category, words (the places in the caption of a name, or of one word) and object."""


class Work:
    """Words of many captions, judged one picture after another.

    views: name of a row -> the view of the maps that it measures. masks: whether objects are their masks, or boxes.

    tally: figures of the words, in the groups "nouns" (against the objects that they name), "any object" (nouns against
    all objects of the picture), "function words" (against the same), "attributes" (against the objects that are so).
    captions: what each mentions. nouns: how many have their object in what the model saw. counts: what was left out.
    """

    def __init__(self, truth: Instances, views: Mapping[str, View], *, masks: bool) -> None:
        self.views = views
        self.reader, self.masks, self.tolerance = ObjectReader(truth), masks, truth.tolerance
        self.tally = Tally()
        self.captions: list[Mentioned] = []
        self.nouns = 0
        self.counts: Counter[str] = Counter()
        # Of every group: the last picture with such words and their maps, the first one and what they name.
        self._last: dict[str, tuple[int, dict[str, list[list[Floats]]]]] = {}
        self._first: dict[str, tuple[int, list[Target]]] = {}

    def add(self, record: CaptionRecord, truth: Annotated, found: AttentionRecord, blank: AttentionRecord) -> None:
        """One picture. found, blank: the maps of the model and of random weights, for the same words.

        Raises ValueError where the picture has not the shape of the annotated one.
        """
        sight = _Sight(record, truth, found, masks=self.masks, tolerance=self.tolerance)
        number, words = len(self.captions), [word.text for word in found.words]
        named = self.reader.named(words, truth)
        nouns = [(one, place) for one in named if (place := sight.place(one.instances)) is not None]
        visible = {item.category for item in truth.instances if sight.place([item]) is not None}
        self.captions.append(
            Mentioned(
                tuple((one.category, one.category in visible) for one in named),
                frozenset(visible),
                frozenset(item.category for item in truth.instances),
                frozenset(self.reader.categories(record.captions)),
            )
        )
        self.counts["names of objects that are not in the picture"] += sum(not one.instances for one in named)
        self.counts["names of objects outside the model's view"] += sum(bool(o.instances) for o in named) - len(nouns)
        everything = sight.place(truth.instances)
        targets: dict[str, list[Target]] = defaultdict(list)
        for one, place in nouns:
            span = range(one.start, one.stop)
            targets["nouns"].append((one.category, span, place))
            if everything is not None:
                targets["any object"].append((one.category, span, everything))
            for at, chosen in one.adjectives:
                if (own := sight.place(chosen)) is not None:
                    targets["attributes"].append((words[at].lower(), [at], own))
        if everything is not None:
            for at in self.reader.functions(words, named):
                targets["function words"].append((words[at].lower(), [at], everything))
        for group, own_targets in targets.items():
            for target in own_targets:
                self._score(group, number, target, found, blank)
            self._shuffle(group, number, own_targets, found)
        self.nouns += len(nouns)

    def finish(self) -> None:
        """Give the first picture the maps of the last one."""
        for group, (number, targets) in self._first.items():
            self._lend(group, number, targets)

    def _score(self, group: str, number: int, target: Target, found: AttentionRecord, blank: AttentionRecord) -> None:
        category, span, place = target
        measure = _measure(group, place)
        for row, heat in (("uniform", np.ones(place.grid)), ("centre", centre_map(place.grid))):
            self.tally.add(group, row, number, category, measure([heat], ties="mean"))
        for name, view in self.views.items():
            for row, record in ((name, found), (RANDOM + name, blank)):
                self.tally.add(group, row, number, category, measure([record.map(i, view) for i in span]))
        for method, values in found.maps.items():
            if values.shape[1] * values.shape[2] > 1:
                self.tally.add_views(group, method, [all_views(found, method, i) for i in span], place)

    def _shuffle(self, group: str, number: int, targets: list[Target], found: AttentionRecord) -> None:
        """Judge a group's words of this picture by the maps of such words of the last picture that has any."""
        if group in self._last:
            self._lend(group, number, targets)
        else:
            self._first[group] = (number, targets)
        self._last[group] = (
            number,
            {name: [[found.map(i, view) for i in span] for _, span, _ in targets] for name, view in self.views.items()},
        )

    def _lend(self, group: str, number: int, targets: Sequence[Target]) -> None:
        lender, of_views = self._last[group]
        if lender == number:  # a single picture has no other
            return
        for name, maps in of_views.items():
            for k, (category, _, place) in enumerate(targets):
                self.tally.add(group, OTHER + name, number, category, _measure(group, place)(maps[k % len(maps)]))


def _measure(group: str, place: Place) -> Callable[..., list[float]]:
    return place.full if group == "nouns" else place.basic


class _Sight:
    """One photo as the model saw it, and where its objects are in there."""

    def __init__(
        self, record: CaptionRecord, truth: Annotated, found: AttentionRecord, *, masks: bool, tolerance: float
    ) -> None:
        assert found.size is not None
        assert found.window is not None
        assert found.grid_window is not None
        assert found.grid is not None
        self.size, self.window, self.cells, self.grid = found.size, found.window, found.grid_window, found.grid
        self.tolerance, self.masks = tolerance, masks
        self.scale = (found.size[0] / truth.size[0], found.size[1] / truth.size[1])
        if not 0.98 < self.scale[0] / self.scale[1] < 1.02:
            raise ValueError(
                f"image id {record.image_id}: the picture has {found.size[0]}x{found.size[1]} pixels, its "
                f"annotation is of {truth.size[0]}x{truth.size[1]}: give the instance file of these pictures"
            )
        self.view = seen(found.window, found.size)

    def place(self, chosen: Sequence[Instance]) -> Place | None:
        """Where some instances are; None where the model saw nothing of them."""
        region = region_of(chosen, self.view, self.scale, masks=self.masks)
        if not region.area > 0:
            return None
        boxes = boxes_of(chosen, self.view, self.scale)
        return Place(region, boxes, self.window, self.cells, self.grid, self.size, self.tolerance)
