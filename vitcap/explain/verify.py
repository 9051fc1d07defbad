"""Proof in numbers that the attention shown is the model's own.

Every attention layer is run twice on one input: by the path the model takes, and as the explicit weights that are shown
times the layer's values. Then the maps that a search collected step by step are compared with those of one
teacher-forced pass over the caption that won.

Letters: T tokens of a caption, L layers, H heads, N memory tokens (prefix tokens first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.decoding import Beam, Greedy, Search
from vitcap.explain.attention_layers import Call, explicit_layers, handed_out, recorded, specify
from vitcap.nn.attention import MultiHeadAttention
from vitcap.translator import Translator
from vitcap.types import BOS, Memory
from vitcap.writer import Caption, require_counts

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Largest difference that rounding explains, by the type of the model's numbers; 1e-5 for all others."""


@dataclass(frozen=True)
class LayerCheck:
    """One attention layer. None: there is no such number for this layer.

    path_error: largest |output as the model computes it - explicit weights times values|, on the same input.
    scale: largest |output|. row_error: largest |sum of a row of weights - 1|.
    map_error: largest |map handed to whoever draws it - explicit weights|, on the input of the pass that gave the map.
    drift: the same against the weights of the model's own pass, whose input differs by the rounding of all layers
        before. It has no limit: where scores are large, rounding in them is large, too.
    prefix: share, 0..1, of the attention that goes to prefix tokens (class, registers), mean over heads and queries.
    """

    name: str
    path_error: float | None = None
    scale: float = 0.0
    row_error: float | None = None
    map_error: float | None = None
    drift: float | None = None
    prefix: float | None = None


@dataclass(frozen=True)
class ReplayCheck:
    """One caption of a search against one teacher-forced pass over it.

    rank: 1 is the best. map_error: largest |difference| of the (T, L, H, N) maps, None without attention.
    log_prob_error: largest |difference| of the tokens' log-probabilities. scale: largest |log-probability|.
    """

    search: str
    rank: int
    text: str
    map_error: float | None
    log_prob_error: float
    scale: float


@dataclass(frozen=True)
class Verification:
    """What was measured on one picture or sentence.

    tolerance: of maps and row sums; that of outputs, logits and log-probabilities, whose rounding grows with them, is
        so many times the largest of them where that is above 1.
    logit_error: largest |logits with all layers on the model's path - logits with all on the explicit path|.
    logit_scale: largest |logit|. prefix, places: prefix tokens, and N. notes: what could not be measured, and why.
    """

    source: str
    dtype: str
    device: str
    tolerance: float
    prefix: int
    places: int
    layers: tuple[LayerCheck, ...]
    logit_error: float
    logit_scale: float
    replays: tuple[ReplayCheck, ...] = ()
    notes: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """One line for each number beyond the tolerance, NaN included; none if the maps are the model's."""
        checks: list[tuple[str, float | None, float]] = [("logits", self.logit_error, self.logit_scale)]
        for x in self.layers:
            checks += [
                (f"{x.name}: output", x.path_error, x.scale),
                (f"{x.name}: row sums", x.row_error, 1),
                (f"{x.name}: map", x.map_error, 1),
            ]
        for y in self.replays:
            name = f"{y.search} caption {y.rank}"
            checks += [(f"{name}: map", y.map_error, 1), (f"{name}: log-probabilities", y.log_prob_error, y.scale)]
        limits = ((name, error, self.tolerance * max(1.0, scale)) for name, error, scale in checks)
        return [
            f"{name} differ by {error:.1e}, above {limit:.1e}"
            for name, error, limit in limits
            if error is not None and not error <= limit
        ]

    @property
    def ok(self) -> bool:
        """Whether everything is within the tolerance."""
        return not self.problems()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the verdict and the problems included."""
        return {"ok": self.ok, "problems": self.problems(), **asdict(self)}


def verify(
    door: Captioner | Classifier | Translator, item: Any, *, beams: int = 3, tolerance: float | None = None
) -> Verification:
    """Check the maps of a model on one picture (a path or a PIL image), or one sentence for a Translator.

    beams: width of the beam search whose maps are replayed, all of its captions; greedy search is replayed as well. The
    other rules of the search are the model's. tolerance: None takes that of the model's number type (`TOLERANCES`).
    Raises ImageError for a picture that cannot be read, and ValueError for a sentence without words.
    """
    require_counts(beams=beams)
    model = door.model
    batch = door.batch([item]).to(door.device)
    notes: list[str] = []
    replays: list[ReplayCheck] = []
    with torch.inference_mode():
        memory = model.encode(batch)
        if not isinstance(door, Classifier):
            captions = _written(door, item, beams)
            replays = [_replay(door, memory, *caption) for caption in captions]
            batch = replace(batch, captions=_tokens(door, captions[0][2].tokens))
        with recorded(model) as calls:
            logits = _logits(model(batch))
        with explicit_layers(model):
            error = _largest(logits - _logits(model(batch)))
        with recorded(model) as shown:
            try:
                maps = model.encode(batch, need_attention=True).attentions
            except ValueError as reason:
                maps = None
                notes.append(str(reason))
            cross = None if batch.captions is None else _cross(model, memory, batch.captions)
        handed = handed_out(model, maps, cross)
        layers = [_check(call, shown.get(call.layer), handed.get(call.layer), memory) for call in calls.values()]
        if cross is not None and not any(layer.name.startswith("decoder.") for layer in layers):
            name = f"decoder.attention ({type(model.decoder.attention).__name__})"
            notes.append(f"{name} has one path only, which gives the weights that are shown: no second one to compare")
            layers.append(LayerCheck(name, row_error=_row_error(cross), prefix=_prefix(cross, memory)))
        if batch.captions is not None and cross is None:
            notes.append("the decoder has no attention, so there are no maps of words")
    dtype = next(model.parameters()).dtype
    return Verification(
        source=str(item),
        dtype=str(dtype).removeprefix("torch."),
        device=str(door.device),
        tolerance=TOLERANCES.get(dtype, 1e-5) if tolerance is None else tolerance,
        prefix=memory.prefix,
        places=memory.tokens.shape[1],
        layers=tuple(layers),
        logit_error=error,
        logit_scale=_largest(logits),
        replays=tuple(replays),
        notes=tuple(notes),
    )


def _check(call: Call, shown: Call | None, handed: Tensor | None, memory: Memory) -> LayerCheck:
    """call: of the model's own pass. shown: of the pass that gave the map. handed: that map, if this layer has one."""
    output, weights = specify(call)
    errors = [_largest(call.output - output)]
    if isinstance(call.layer, MultiHeadAttention):
        # On some machines the model itself prefers the explicit path; the fused one is to be right there, too.
        errors.append(_largest(call.layer(*call.args, **call.kwargs | {"fused": True})[0] - output))
    check = LayerCheck(call.name, _worst(errors), _largest(call.output), _row_error(weights))
    if handed is None or shown is None:
        return check
    return replace(
        check,
        map_error=_largest(handed - specify(shown)[1]),
        drift=_largest(handed - weights),
        prefix=_prefix(weights, memory),
    )


def _cross(model: Any, memory: Memory, captions: Tensor) -> Tensor | None:
    """(1, 1, T, L, H, N) cross-attention of one teacher-forced pass."""
    return model.decoder(memory, captions[:, :, :-1], need_attention=True).attention


def _written(door: Captioner | Translator, item: Any, beams: int) -> list[tuple[str, int, Caption]]:
    """(search, rank, caption with its maps) of a beam search, all of its beams, and of a greedy one; best first."""
    names = {field.name for field in fields(Search)}
    rules = {name: getattr(door.search, name) for name in names if hasattr(door.search, name)}
    beam: dict[str, Any] = {"beams": beams, "n_best": beams, **rules}
    if isinstance(door.search, Beam):
        beam["length_penalty"] = door.search.length_penalty
    write = door.caption if isinstance(door, Captioner) else door.translate
    found = []
    for name, search in (("beam", Beam(**beam)), ("greedy", Greedy(**rules))):
        best: Caption = write(item, search=search, n_best=getattr(search, "n_best", 1), need_attention=True)
        found += [(name, rank, one) for rank, one in enumerate((best, *best.alternatives), 1) if one.tokens]
    return found


def _replay(door: Captioner | Translator, memory: Memory, search: str, rank: int, caption: Caption) -> ReplayCheck:
    tokens = _tokens(door, caption.tokens)
    output = door.model.decoder(memory, tokens[:, :, :-1], need_attention=True)
    log_probs = output.logits.log_softmax(-1, dtype=torch.float32).gather(-1, tokens[:, :, 1:, None])[0, 0, :, 0]
    given = torch.tensor(caption.log_probs, device=log_probs.device)
    error = None
    if output.attention is not None:
        assert caption.attention is not None
        error = _largest(output.attention[0, 0].float().cpu() - torch.from_numpy(caption.attention))
    return ReplayCheck(search, rank, caption.text, error, _largest(log_probs - given), _largest(given))


def _tokens(door: Captioner | Translator, tokens: Sequence[int]) -> Tensor:
    return torch.tensor([[[BOS, *tokens]]], device=door.device)


def _logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _worst(errors: Sequence[float]) -> float:
    return float(torch.tensor(errors).max())  # unlike Python's max it does not pass over NaN


def _row_error(weights: Tensor) -> float:
    return _largest(weights.float().sum(-1) - 1)


def _prefix(weights: Tensor, memory: Memory) -> float:
    return float(weights[..., : memory.prefix].float().sum(-1).mean())
