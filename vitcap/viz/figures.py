"""Larger looks at a record: the map of one word, and one word under every layer and head. NumPy and Pillow only."""

from __future__ import annotations

from dataclasses import replace

from PIL import Image, ImageDraw

from vitcap.record import AttentionRecord, View
from vitcap.viz.overlay import WIDTH, Scale, below, fit_in, legend, paint_lift, photo_of
from vitcap.viz.shown import Shown, cells_of, describe_word, note, of_classes, probability, show, size_of, window_of
from vitcap.viz.style import GREY, INK, MARGIN, PAPER, Fonts, clean, fit, word_line, wrap


def highest_word(record: AttentionRecord, view: View | None = None) -> int:
    """The word whose map has the highest peak under a view. ValueError for a record without words."""
    if not record.words:
        raise ValueError("the caption has no words, so there is no map to draw")
    return int(show(record, view or record.shown).lifts.max((1, 2, 3)).argmax())


def word_figure(
    record: AttentionRecord,
    index: int,
    view: View | None = None,
    *,
    side: int = 900,
    top: float | None = None,
    alpha: float = 0.6,
    font: str | None = None,
) -> Image.Image:
    """The map of one word over the photo, under the caption in which the word is marked.

    side: pixels across that the photo takes at most; see `sheet` for the rest. The colour scale is that of all words,
    so that the figures of one caption compare. Raises ValueError for a word that is not there, and as `sheet` does.
    """
    if not 0 <= index < len(record.words):
        raise ValueError(f"word {index}: the caption has {len(record.words)} words, numbered from 0")
    return Frames(record, view, side=side, top=top, alpha=alpha, font=font).page(index)


class Frames:
    """Pages of one caption that differ in the word they show, and in nothing else; see `word_figure`."""

    def __init__(
        self,
        record: AttentionRecord,
        view: View | None = None,
        *,
        side: int,
        top: float | None = None,
        alpha: float = 0.6,
        font: str | None = None,
    ) -> None:
        self.record, self.view = record, view or record.shown
        self.shown = show(record, self.view)
        self.scale = Scale.of(self.shown, top, alpha)
        self.words = [clean(word.text) for word in record.words]
        self.fonts = Fonts.for_text("".join(self.words), font)
        self.width, self.height = fit_in(record, side, 0.8 * side)
        self.photo = photo_of(record, self.width, self.height)
        self.inner = max(self.width, 500)
        self.remarks = wrap(clean(note(record, self.view, self.shown)), self.fonts.small, self.inner)
        among = "all classes" if of_classes(record) else "all words"
        self.bar = legend(record, self.shown, self.scale, self.inner, self.fonts, among=among)

    def page(self, index: int | None) -> Image.Image:
        """The map of a word, or of None the plain photo."""
        shown, small, height = self.shown, self.fonts.small, self.height
        words = word_line(self.words or ["(the model gave no words)"], index, self.fonts, self.inner)
        picture = self.photo
        text = "{} x {} pixels".format(*size_of(self.record))
        if index is not None:
            window, cells = (of(self.record, self.width, height) for of in (window_of, cells_of))
            options = {"top": self.scale.end, "alpha": self.scale.alpha}
            picture = paint_lift(picture, shown.lifts[index, 0], window, cells=cells, **options)
            text = f"{below(self.record, shown, index)}; probability {100 * probability(self.record, index):.0f} %"
        first = MARGIN + words.height + 8
        under = first + height + 6
        end = under + 24 + 20 * len(self.remarks) + 10
        page = Image.new("RGB", (self.inner + 2 * MARGIN, end + self.bar.height + MARGIN - 8), PAPER)
        draw = ImageDraw.Draw(page)
        page.paste(words, (MARGIN - 7, MARGIN))  # so that letters, not their frames, stand above the photo's edge
        page.paste(picture, (MARGIN, first))
        draw.text((MARGIN, under), text, fill=INK, font=small)
        for number, line in enumerate(self.remarks):
            draw.text((MARGIN, under + 24 + 20 * number), line, fill=GREY, font=small)
        page.paste(self.bar, (MARGIN, end))
        return page


def head_grid(
    record: AttentionRecord,
    index: int,
    method: str | None = None,
    *,
    top: float | None = None,
    alpha: float = 0.6,
    font: str | None = None,
) -> Image.Image:
    """One word under each layer (rows) and head (columns) of a method, with the mean over the heads, and over the
    layers, on one colour scale.

    Options as in `sheet`. Raises ValueError for a word that is not there, and as `sheet` does.
    """
    views, shown = _every(record, index, method)
    layers, heads = record.maps[views[0].method].shape[1:3]
    names = [*(f"head {head}" for head in range(heads)), "mean"][: heads + (heads > 1)]
    rows = [*(f"layer {layer}" for layer in range(layers)), "mean"][: layers + (layers > 1)]
    one = replace(shown, lifts=shown.lifts[index : index + 1])
    scale = Scale.of(one, top, alpha)
    words = [clean(word.text) for word in record.words]
    fonts = Fonts.for_text("".join(words), font)
    single = len(views) == 1
    left, gap = 0 if single else round(fonts.small.getlength("layer 00")) + 10, 8
    room = (WIDTH - 2 * MARGIN - left) / len(names) - gap
    width, height = fit_in(record, max(48, min(240, room)), max(48, min(240, room)))
    small, window = photo_of(record, width, height), window_of(record, width, height)
    cells = cells_of(record, width, height)
    cell = max(width, 48)
    inner = max(left + len(names) * (cell + gap) - gap, 500)
    line = word_line(words, index, fonts, inner)
    title, _, rest = clean(note(record, View(views[0].method), shown)).partition(";")
    title = title.partition(":")[0] + (", a single map" if single else " by layer and head")
    remarks = wrap(f"{title};{rest}", fonts.small, inner)
    bar = legend(
        record, one, scale, inner, fonts, among="this map alone" if single else "all layers and heads of this word"
    )
    first = MARGIN + line.height + 20 * len(remarks) + 44
    row_height = height + 22 + gap
    page = Image.new("RGB", (inner + 2 * MARGIN, first + len(rows) * row_height + 8 + bar.height + MARGIN - 8), PAPER)
    draw = ImageDraw.Draw(page)
    page.paste(line, (MARGIN - 7, MARGIN))
    for number, text in enumerate(remarks):
        draw.text((MARGIN, MARGIN + line.height + 6 + 20 * number), text, fill=GREY, font=fonts.small)
    for column, name in enumerate([] if single else names):
        x = MARGIN + left + column * (cell + gap)
        draw.text((x, first - 6), fit(name, fonts.small, cell), fill=INK, font=fonts.small, anchor="ls")
    for place, values in enumerate(one.lifts[0]):
        row, column = divmod(place, len(names))
        x, y = MARGIN + left + column * (cell + gap), first + row * row_height
        if not column and not single:
            draw.text((MARGIN, y + height // 2), rows[row], fill=INK, font=fonts.small, anchor="lm")
        page.paste(paint_lift(small, values, window, cells=cells, top=scale.end, alpha=alpha), (x, y))
        text = below(record, one, 0, place).replace("peak ", "").replace(f" {shown.short}", "")
        draw.text((x, y + height + 3), fit(text, fonts.small, cell), fill=GREY, font=fonts.small)
    page.paste(bar, (MARGIN, first + len(rows) * row_height + 8))
    return page


def describe_heads(record: AttentionRecord, index: int, method: str | None = None) -> list[str]:
    """The maps of `head_grid` in words, a line each."""
    views, shown = _every(record, index, method)
    lines = []
    for place, view in enumerate(views):
        where = [f"{kind} {chosen[0]}" if chosen else f"mean of {kind}s" for kind, chosen in _parts(view)]
        lines.append(f"{', '.join(where)}: {describe_word(record, shown, index, place)}")
    return lines


def _parts(view: View) -> list[tuple[str, tuple[int, ...] | None]]:
    return [("layer", view.layers), ("head", view.heads)]


def _every(record: AttentionRecord, index: int, method: str | None) -> tuple[list[View], Shown]:
    """The views of a grid in reading order, and the maps of all words under them."""
    if not 0 <= index < len(record.words):
        raise ValueError(f"word {index}: the caption has {len(record.words)} words, numbered from 0")
    method = record.view(method).method
    layers, heads = record.maps[method].shape[1:3]
    of_layers = [*((layer,) for layer in range(layers)), *([None] if layers > 1 else [])]
    of_heads = [*((head,) for head in range(heads)), *([None] if heads > 1 else [])]
    views = [View(method, layer, head) for layer in of_layers for head in of_heads]
    return views, show(record, *views)
