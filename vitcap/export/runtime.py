"""Captions from exported ONNX files; needs numpy, onnxruntime and Pillow, and neither torch nor vitcap.

python -m vitcap.export.runtime FOLDER photo.jpg, or with the copy in an exported folder: python caption.py photo.jpg

Letters: B pictures, G beams of each, K captions returned per picture, T tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

Arrays = dict[str, np.ndarray]
PAD, BOS, EOS, NEVER = 0, 1, 2, np.float32(-np.inf)
MAX_PIXELS = 64_000_000
FORMATS = ["JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "PPM", "TGA", "JPEG2000", "AVIF", "HEIF"]


@dataclass(frozen=True)
class Caption:
    """text; tokens: ids, the final EOS included; log_probs of each; score: what the search ranked by; finished: False
    where the maximum length cut it; attention (T, L, H, N) over the memory, prefix tokens first, when asked for."""

    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    finished: bool
    attention: np.ndarray | None = None


class Model:
    """An exported folder. threads: of onnxruntime, None chooses. Raises ValueError for a folder that is none."""

    def __init__(self, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
        folder = Path(folder)
        options, cpu = onnxruntime.SessionOptions(), ["CPUExecutionProvider"]
        options.intra_op_num_threads = threads or 0
        try:
            self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            assert self.config["format"] == "vitcap-onnx 1", "another format"
            graphs = {name: folder / f"{name}.onnx" for name in self.config["graphs"]}
            self.sessions = {n: onnxruntime.InferenceSession(f, options, providers=cpu) for n, f in graphs.items()}
            if self.config.setdefault("search", {}):
                known = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
                ids = known["model"]["vocab"] | {one["content"]: one["id"] for one in known.get("added_tokens", ())}
                self.pieces = {number: text for text, number in ids.items()}
        except Exception as error:  # onnxruntime has a class of its own for each kind of damage
            problem = f"no folder that `vitcap export --to onnx` has written, or damaged ({type(error).__name__}: "
            raise ValueError(f"{folder}: {problem}{' '.join(str(error).split())[:300]}); export it again") from None
        self.search = self.config["search"]

    def run(self, graph: str, **inputs: np.ndarray) -> Arrays:
        """Outputs of a graph by name."""
        session = self.sessions[graph]
        return dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True))

    def images(self, pictures: Sequence[Any]) -> np.ndarray:
        """Paths or PIL pictures -> (B, 3, H, W) uint8. Raises ValueError that names a file which is no picture."""
        opened = [to_rgb(p) if isinstance(p, Image.Image) else load_image(p) for p in pictures]
        return np.stack([preprocess(picture, **self.config["preprocess"]) for picture in opened])

    def classify(self, pictures: Sequence[Any], top: int = 5) -> list[list[tuple[str, float]]]:
        """The `top` likeliest classes of each picture, with probabilities."""
        found = np.exp(log_softmax(self.run("classifier", images=self.images(pictures))["logits"]))
        order, names = np.argsort(-found, kind="stable")[:, :top], [name for _, name in self.config["classes"]]
        return [[(names[i], float(row[i])) for i in best] for row, best in zip(found, order, strict=True)]

    def caption(self, pictures: Sequence[Any], *, attention: bool = False, **search: Any) -> list[list[Caption]]:
        """The n_best captions of each picture, best first. search: beams (1: greedy), max_length, min_length,
        length_penalty, no_repeat_ngram, forbid, n_best, patience; what is left out is the model's own."""
        rules = self.search | search
        most = {"max_length": self.config["max_length"] or math.inf, "n_best": rules["beams"], "length_penalty": 10}
        for name, high in most.items():
            if not (low := int(name != "length_penalty")) <= rules[name] <= high:
                raise ValueError(f"{name}={rules[name]}: from {low} to {high}, with {rules['beams']} beams")
        memory, state = self.start(self.images(pictures))
        found = beam(self.step, memory, state, **rules)
        return [[self._read(attention, *row) for row in rows] for rows in found]

    def start(self, images: np.ndarray) -> tuple[Arrays, Arrays]:
        """images (B, 3, H, W) uint8 -> what the steps read of each picture, and the state before the first token."""
        parts = self.run("decoder_start", **self.run("encoder", images=images))
        sizes = {"batch": len(images), "beams": 1, "length": 0}
        for value in self.sessions["decoder_step"].get_inputs():
            if value.name.startswith("state_") and value.name not in parts:  # a cache, empty at first
                parts[value.name] = np.zeros([sizes.get(n, n) for n in value.shape], np.float32)
        return parts, {name: parts.pop(name) for name in list(parts) if name.startswith("state_")}

    def step(self, tokens: np.ndarray, memory: Arrays, state: Arrays) -> tuple[np.ndarray, np.ndarray | None, Arrays]:
        """tokens (B, G) -> logits (B, G, V), attention (B, G, L, H, N) or None, the next state."""
        out = self.run("decoder_step", tokens=tokens, **memory, **state)
        after = {name.replace("next_", "state_"): x for name, x in out.items() if name.startswith("next_")}
        return out["logits"], out.get("attention"), after

    def _read(self, attention: bool, tokens: Any, log_probs: Any, score: Any, maps: Any) -> Caption:
        ids = tuple(int(i) for i in tokens if i != PAD)
        text = " ".join(words(self.pieces, self.config["tokenizer"], ids))
        shown = np.stack(maps[: len(ids)]) if attention and ids and maps[0] is not None else None
        return Caption(text, ids, tuple(map(float, log_probs[: len(ids)])), float(score), EOS in ids, shown)


def beam(step: Any, memory: Any, state: Any, **rules: Any) -> list[list[tuple[Any, ...]]]:
    """Beam search as vitcap.decoding.Beam has it (read there how), with one beam as Greedy.

    Returns (tokens (T,), log_probs (T,), score, T times attention (L, H, N) or None) of the n_best captions a picture.
    """
    names = ("beams", "n_best", "max_length", "length_penalty", "patience")
    beams, n_best, max_length, length_penalty, patience = (rules.pop(name) for name in names)
    batch = len(next(iter(state.values())))
    path = np.zeros((batch, 1, max_length, 2))  # of each token: beam that emitted it * V + id; its log-probability
    word, scores = np.full((batch, 1), BOS), np.zeros((batch, 1), np.float32)
    ended, ended_scores = path.repeat(n_best, 1), np.full((batch, n_best), NEVER)
    count, done = np.zeros(batch, int), np.zeros(batch, bool)
    longest, trace = np.float32(max_length**length_penalty), []
    for t in range(max_length):
        logits, maps, state = step(word, memory, state)
        trace.append(maps)
        vocab, width = logits.shape[-1], 2 * beams
        allowed = constrain(log_softmax(logits), path[:, :, :t, 0].astype(int) % vocab, **rules)
        top, token = best_of(allowed, min(width, vocab))
        best, index = best_of((scores[..., None] + top).reshape(batch, -1), min(width, top[0].size))
        slot, token = index // top.shape[-1], take(token.reshape(batch, -1), index)
        grown, ends = take(path, slot), token == EOS
        grown[..., t, 0], grown[..., t, 1] = slot * vocab + token, take(top.reshape(batch, -1), index)
        new = np.where(ends & ~done[:, None], best / np.float32((t + 1) ** length_penalty), NEVER)[:, :beams]
        count += (new > NEVER).sum(1)
        ended_scores, order = best_of(np.concatenate((ended_scores, new), 1), n_best)
        ended = take(np.concatenate((ended, grown[:, :beams]), 1), order)
        scores, live = best_of(np.where(ends, NEVER, best), min(beams, best.shape[1]))
        path, word, slot = (take(x, live) for x in (grown, token, slot))
        done |= (scores[:, 0] / longest <= ended_scores[:, -1]) | (count >= patience * beams)
        if done.all():
            break
        state = {name: take(x, slot) for name, x in state.items()}
    pools = np.concatenate((ended_scores, scores / longest), 1)  # those that the length cut come last
    order = np.argsort(pools == NEVER, 1, kind="stable")[:, :n_best]
    scores, path = take(pools, order), take(np.concatenate((ended, path), 1), order)
    path[scores == NEVER] = 0
    ids, slots = path[..., 0].astype(int) % vocab, path[..., 0].astype(int) // vocab
    maps = [[[m if m is None else m[b, g] for m, g in zip(trace, one)] for one in row] for b, row in enumerate(slots)]  # noqa: B905
    return [list(zip(*row, strict=True)) for row in zip(ids, path[..., 1], scores, maps, strict=True)]


def constrain(log_probs: Any, tokens: Any, *, min_length: int, no_repeat_ngram: int, forbid: Sequence[int]) -> Any:
    """log_probs (B, G, V) with -inf where the rules rule a token out after tokens (B, G, t); in place."""
    log_probs[..., [PAD, BOS, *forbid]] = NEVER
    length, n = tokens.shape[-1], no_repeat_ngram
    if length < min_length:
        log_probs[..., EOS] = NEVER
    if 0 < n <= length:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, n, axis=-1)
        repeats = (windows[..., :-1] == tokens[..., None, length - n + 1 :]).all(-1)
        last = np.where(repeats, windows[..., -1], PAD)
        before = np.take_along_axis(log_probs, last, -1)
        np.put_along_axis(log_probs, last, NEVER, -1)
        dead = (log_probs == NEVER).all(-1, keepdims=True)  # without any token left, the rule gives way
        np.put_along_axis(log_probs, last, np.where(dead, before, NEVER), -1)
    return log_probs


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities, over the last axis."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def best_of(x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest values of the last axis, largest first, and where they are."""
    some = np.sort(np.argpartition(-x, count - 1, -1)[..., :count], -1)
    index = np.take_along_axis(some, np.argsort(-np.take_along_axis(x, some, -1), -1, kind="stable"), -1)
    return np.take_along_axis(x, index, -1), index


def take(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """x (B, G, ...), index (B, G') -> (B, G', ...)."""
    return x[np.arange(len(x))[:, None], index]


def words(texts: Mapping[int, str], kind: str, ids: Sequence[int]) -> list[str]:
    """The words that ids spell up to the first EOS; kind: "word", "space" or "bpe" (byte-level)."""
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    found = [texts[i] for i in ids if i not in (PAD, BOS)]
    if kind != "bpe":
        return found
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves (GPT-2)
    letters = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(sorted({*range(256)} - {*plain}))}
    parts = (bytes(letters[letter] for letter in part) for part in "".join(found).split("Ġ"))
    return [word for part in parts if (word := part.decode(errors="replace").strip())]


def load_image(path: str | os.PathLike[str]) -> Image.Image:
    """The upright RGB picture in a file. Raises ValueError that names the file."""
    try:
        Image.init()
        with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            fits = (f for f in (1, 2, 4, 8) if -(-image.width // f) * -(-image.height // f) <= MAX_PIXELS)
            if (factor := next(fits, 8)) > 1:  # JPEG can be decoded at a fraction of its size
                image.draft(image.mode, (max(1, image.width // factor), max(1, image.height // factor)))
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels is over the limit of {MAX_PIXELS}")
            image.load()
            return to_rgb(image)
    except Exception as error:  # damaged files make Pillow raise almost any class
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: no picture that can be read ({reason})") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """A picture turned as its EXIF orientation says, in RGB: transparency on white, 16-bit grey scaled by 1/257."""
    with contextlib.suppress(Exception):  # a broken EXIF block
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        values = np.asarray(image)
        limits = [x for x in ((1, 255) if image.mode == "F" else (65535,)) if values.min() >= 0 and values.max() <= x]
        if not limits:
            raise ValueError(f"mode {image.mode} with values {values.min():g}..{values.max():g}; rescale it")
        image = Image.fromarray(np.rint(values.astype(np.float64) * (255 / limits[0])).astype(np.uint8))
    if image.has_transparency_data:
        alpha = image.convert("RGBA")
        image = Image.new("RGB", image.size, (255, 255, 255))
        image.paste(alpha, mask=alpha.getchannel("A"))
    return image.convert("RGB")


def preprocess(image: Image.Image, *, size: Any, mode: str, crop_pct: float, **more: Any) -> np.ndarray:
    """RGB picture -> (3, height, width) uint8, exactly as vitcap.data.transforms.Preprocess makes it (read there)."""
    (height, width), resample = size, Image.Resampling[more["interpolation"].upper()]
    rows, columns = (math.floor(side / crop_pct) for side in size)
    if mode == "crop" and rows == columns:
        if image.width <= image.height:
            rows = int(rows * image.height / image.width)
        else:
            columns = int(columns * image.width / image.height)
    elif mode != "squash":
        ratio = (min if mode == "crop" else max)(image.height / rows, image.width / columns)
        rows, columns = max(1, round(image.height / ratio)), max(1, round(image.width / ratio))
    left, top = (round((h - w) / 2) if h >= w else -((w - h) // 2) for h, w in ((columns, width), (rows, height)))
    canvas = Image.new("RGB", (width, height), tuple(round(255 * value) for value in more["mean"]))
    if columns * rows <= 32 * width * height:
        canvas.paste(image.resize((columns, rows), resample), (-left, -top))
    else:  # a long thin picture: only what is kept of it
        x0, x1, y0, y1 = max(0, left), min(columns, left + width), max(0, top), min(rows, top + height)
        ax, bx, u0, u1 = _needed(x0, x1, image.width / columns, image.width)
        ay, by, v0, v1 = _needed(y0, y1, image.height / rows, image.height)
        part = image.crop((ax, ay, bx, by)).resize((x1 - x0, y1 - y0), resample, box=(u0, v0, u1, v1))
        canvas.paste(part, (x0 - left, y0 - top))
    return np.asarray(canvas).transpose(2, 0, 1)


def _needed(start: int, stop: int, step: float, length: int) -> tuple[int, int, float, float]:
    margin = 4 * math.ceil(max(1, step))
    first, last = max(0, int(start * step) - margin), min(length, math.ceil(stop * step) + margin)
    return first, last, start * step - first, min(stop * step, length) - first


def main(argv: Sequence[str] | None = None) -> int:
    """Print "path<TAB>caption" (or classes) for each picture; returns the exit status."""
    own = Path(__file__).with_name("config.json").exists()
    parser = argparse.ArgumentParser(description="Captions, or classes, of pictures, by onnxruntime.")
    if not own:
        parser.add_argument("folder", help="what `vitcap export MODEL --to onnx` has written")
    parser.add_argument("photos", nargs="+", metavar="PHOTO")
    for name in ("beams", "n-best", "max-length", "length-penalty", "threads"):
        parser.add_argument(f"--{name}", type=float if "penalty" in name else int, help="if left out, the model's own")
    given = vars(parser.parse_args(argv))
    folder, photos, threads = given.pop("folder", Path(__file__).parent), given.pop("photos"), given.pop("threads")
    search, status = {name: value for name, value in given.items() if value is not None}, 0
    try:
        model = Model(folder, threads=threads)
    except ValueError as error:
        parser.error(str(error))
    for photo in photos:
        try:
            if model.search:
                lines = [caption.text for caption in model.caption([photo], **search)[0]]
            else:
                lines = [", ".join(f"{name} {p:.4f}" for name, p in model.classify([photo])[0])]
            print("\n".join(f"{photo}\t{line}" for line in lines), flush=True)
        except Exception as error:  # onnxruntime has its own, of graphs that do not fit config.json
            status = 1
            told = f"{photo}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(f"error: {error if type(error) is ValueError else told}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
