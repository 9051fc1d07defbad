"""What a word or a class comes from in the picture: attention, rollout, relevance and Grad-CAM of whole models.

Letters: T tokens of a caption (or classes), L layers, H heads, N places: prefix tokens first, then the patches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcap.explain.passes import Pass, to_numpy
from vitcap.models.attention_maps import global_layers
from vitcap.nn.attention import MultiHeadAttention
from vitcap.types import BOS, Memory
from vitcap.viz.relevance import cross_relevance, self_relevance
from vitcap.viz.rollout import rollout as roll_out

Maps = dict[str, NDArray[np.float32]]

CAPTION_METHODS = {
    "attention": "cross-attention weights of the step that wrote the word, by layer and head",
    "rollout": "cross-attention times the rollout of the encoder: the patches that the attended tokens are made of",
    "relevance": "attention weighed by the gradient of the word's log-odds, through decoder and encoder",
    "grad-cam": "features of the encoder weighed by the gradient of the word's log-odds",
}
CLASS_METHODS = {
    "attention": "self-attention weights of the token (or the mean over the tokens) that is classified; the same for "
    "all classes",
    "rollout": "rollout of the encoder to what is classified; the same for all classes",
    "relevance": "attention weighed by the gradient of the class's logit, through all layers",
    "grad-cam": "features of the encoder weighed by the gradient of the class's logit",
}
SCORES = {
    "word": "log-odds of the word, log p - log(1 - p), teacher-forced",
    "class": "logit of the class, before softmax",
}
"""What "relevance" and "grad-cam" differentiate. The gradient of a log-probability vanishes where the model is sure;
that of the log-odds does not, and still says why this word and none of the others. Classes have their own logits."""


def available(model: Any) -> dict[str, str]:
    """The methods that a CaptionModel or an ImageClassifier has: name -> one-line description."""
    lacking = unavailable(model)
    return {name: text for name, text in _methods(model).items() if name not in lacking}


def unavailable(model: Any) -> dict[str, str]:
    """The methods that it lacks: name -> reason."""
    return _reasons(model, _attends(model))


def caption_maps(
    model: Any,
    images: Tensor | None,
    tokens: Sequence[int],
    *,
    methods: Sequence[str],
    source: Tensor | None = None,
    rollout: Mapping[str, Any] | None = None,
) -> Maps:
    """Maps of every token of one given caption, each method's (T, L, H, N), float32, from one teacher-forced pass.

    model: a CaptionModel. images: (1, 3, H, W), uint8 or normalised. tokens: T ids after BOS, EOS included.
    methods: names of CAPTION_METHODS. source: (1, S) ids of a source sentence, in place of images; N = S.
    rollout: options of vitcap.viz.rollout.rollout: fusion, discard.

    attention (T, L, H, N): weights of the step that wrote the token; of a recurrent decoder L = H = 1. Rows sum to 1.
    rollout (T, L, H, N): those times the encoder's rollout. Rows sum to 1.
    relevance (T, 1, 1, N): Chefer et al. 2021, equations 5 to 10, differentiating the token's log-odds. Token t
        is written by the query that has read tokens 0 to t - 1, so its map is the row of that query: the place of BOS
        for the first token, of token t - 1 for the others. A recurrent decoder has no queries that mix: its map is
        (weights * gradient)+ of the step that wrote the token, times N(R_ii). For an encoder without attention R_ii is
        the identity.
    grad-cam (T, 1, 1, N): of the features of `encode_with_features`; 0 for prefix tokens.

    The model is left as it was. Raises ValueError for a method that the model lacks, with the reason, and for input
    that does not fit.
    """
    wanted = _chosen(methods, CAPTION_METHODS)
    size = model.decoder.vocab_size
    if not len(tokens) or any(not 0 <= token < size for token in tokens):
        raise ValueError(f"tokens {list(tokens)}: one or more ids from 0 to {size - 1} are wanted")
    _refuse(wanted, _reasons(model, True))
    with Pass(model, wanted, images, source) as run:
        device = model.mean.device
        ids = torch.tensor([BOS, *tokens], device=device)
        output = model.decoder(run.memory, ids[None, None, :-1], need_attention=bool({"attention", "rollout"} & wanted))
        encoder = run.encoder_attention()
        _refuse(wanted, _reasons(model, bool(encoder) or "rollout" not in wanted))
        maps: dict[str, Any] = {}
        if {"attention", "rollout"} & wanted:
            weights = to_numpy(output.attention[0, 0])  # (T, L, H, N)
            maps["attention"] = weights
            if "rollout" in wanted:
                maps["rollout"] = weights @ roll_out([to_numpy(a) for a in encoder], **_options(rollout))
        if run.gradients:
            logits = output.logits[0, 0]
            logits = logits if logits.dtype == torch.float64 else logits.float()
            others = logits.scatter(-1, ids[1:, None], -math.inf).logsumexp(-1)
            scores = logits.gather(-1, ids[1:, None]).squeeze(-1) - others
            maps |= run.gradient_maps(scores, _word_relevance)
    return _finished(maps, methods)


def class_maps(
    model: Any,
    images: Tensor,
    classes: Sequence[int],
    *,
    methods: Sequence[str],
    rollout: Mapping[str, Any] | None = None,
) -> Maps:
    """Maps of every given class over one picture, each method's (T, L, H, N), float32; T classes.

    model: an ImageClassifier. images: (1, 3, H, W), uint8 or normalised. methods: names of CLASS_METHODS.
    rollout: options of vitcap.viz.rollout.rollout: fusion, discard.

    What is classified is the class token, where the encoder pools by it, else the mean over the patches (or over all
    tokens, if they are pooled): a map is that token's row, or the mean of those rows, over all N tokens.
    attention (T, L, H, N) and rollout (T, 1, 1, N) do not depend on the class; rows sum to 1.
    relevance (T, 1, 1, N): Chefer et al. 2021, equations 5 and 6, differentiating the class's logit; without the
        identity that R starts from, which would give every patch the same in a mean of rows.
    grad-cam (T, 1, 1, N): of the features of `encode_with_features`; 0 for prefix tokens.

    The model is left as it was. Raises ValueError as `caption_maps`.
    """
    wanted = _chosen(methods, CLASS_METHODS)
    if not len(classes) or any(not 0 <= index < model.classes for index in classes):
        raise ValueError(f"classes {list(classes)}: one or more indices from 0 to {model.classes - 1} are wanted")
    with Pass(model, wanted, images) as run:
        logits = model.classify(run.memory)
        encoder = run.encoder_attention()
        _refuse(wanted, _reasons(model, bool(encoder) or wanted == {"grad-cam"}))
        readers = _readers(model.encoder, run.memory)
        maps: dict[str, Any] = {}
        if {"attention", "rollout"} & wanted:
            layers = [to_numpy(a[0]) for a in encoder]
            maps["attention"] = np.stack([readers @ layer for layer in layers])[None]
            if "rollout" in wanted:
                maps["rollout"] = (readers @ roll_out(layers, **_options(rollout)))[None, None, None]
            maps = {name: np.repeat(values, len(classes), axis=0) for name, values in maps.items()}
        if run.gradients:

            def relevance(_: int, encoder: list[NDArray], *__: Any) -> NDArray:
                return readers @ (self_relevance(encoder) - np.eye(len(encoder[0])))

            maps |= run.gradient_maps(logits[0, list(classes)], relevance)
    return _finished(maps, methods)


def _word_relevance(word: int, encoder: list[NDArray], queries: list[NDArray], cross: list[NDArray]) -> NDArray:
    """(N,) of weighed attention; encoder without layers: no attention. queries without layers: a recurrent decoder,
    whose entries of `cross` are steps."""
    if not queries:
        cross = [cross[word]]
    places = cross[0].shape[-1]
    inner = self_relevance(encoder) if encoder else np.eye(places, dtype=cross[0].dtype)
    return cross_relevance(inner, cross, queries or None)[word if queries else 0]


def _readers(encoder: Any, memory: Memory) -> NDArray:
    """(N,) share of each token in what is classified; a pooling that is learned counts as the mean."""
    shares, prefix = np.zeros(memory.tokens.shape[1], dtype=np.float32), memory.prefix
    by_token = getattr(encoder, "token", getattr(encoder, "pool", None) == "token")
    timm = getattr(encoder, "model", None)
    if by_token and prefix:
        # DeiT's distillation token, the second, is averaged with the class token (Touvron et al. 2021, section 4).
        read = slice(1 if getattr(timm, "dist_token", None) is None else 2)
    else:
        read = slice(0 if getattr(timm, "pool_include_prefix", False) else prefix, None)
    shares[read] = 1 / len(shares[read])
    return shares


def _methods(model: Any) -> dict[str, str]:
    return CAPTION_METHODS if hasattr(model, "decoder") else CLASS_METHODS


def _reasons(model: Any, attends: bool) -> dict[str, str]:
    """What the model lacks, and why. attends: whether its encoder attends over all tokens."""
    name, found = _name(model.encoder), {}
    if not hasattr(model, "decoder"):
        if not attends:
            none = f"{name} has no global self-attention, so there"
            found = {"attention": f"{none} are no weights to show", "rollout": f"{none} is nothing to roll out"}
            found["relevance"] = f"{none} is nothing to weigh by gradients"
        return found
    if not attends:
        found["rollout"] = f"{name} has no global self-attention, so there is nothing to roll out"
    if getattr(model.decoder, "hard", False):
        found["relevance"] = "hard attention reads one place, and no gradient passes through the choice"
    if getattr(model.decoder, "attention", "its blocks have it") is None:
        none = f"this {type(model.decoder).__name__} reads one fixed vector and has no attention"
        found |= dict.fromkeys(("attention", "rollout", "relevance"), none)
    if not hasattr(model.encoder, "trunk"):
        found["grad-cam"] = "Grad-CAM needs the feature grid of a picture, and this model reads sentences"
    return found


def _refuse(wanted: set[str], reasons: Mapping[str, str]) -> None:
    for method in wanted & set(reasons):
        raise ValueError(f"method {method!r}: {reasons[method]}")


def _attends(model: Any) -> bool:
    """Whether the encoder attends over all its tokens; only a pass through it tells for some of timm's models."""
    encoder = model.encoder
    if any(isinstance(module, MultiHeadAttention) for module in encoder.modules()):
        return True
    timm = getattr(encoder, "model", None)
    if not global_layers(timm) or getattr(encoder, "vit", False):
        return bool(global_layers(timm))
    with Pass(model, {"rollout"}, torch.zeros(1, 3, *encoder.preprocess["size"])) as run:
        return bool(run.encoder_attention())


def _name(encoder: Any) -> str:
    """The name that a user knows the encoder by."""
    configuration = getattr(getattr(encoder, "model", None), "pretrained_cfg", None) or {}
    return configuration.get("architecture") or type(encoder).__name__


def _chosen(methods: Sequence[str], known: Mapping[str, str]) -> set[str]:
    wanted = {methods} if isinstance(methods, str) else set(methods)
    if not wanted or not wanted <= set(known):
        alien = ", ".join(map(repr, sorted(wanted - set(known)))) or "none"
        raise ValueError(f"methods: {alien} given; choose from {', '.join(known)}")
    return wanted


def _options(rollout: Mapping[str, Any] | None) -> dict[str, Any]:
    options = dict(rollout or {})
    if alien := set(options) - {"fusion", "discard"}:
        raise ValueError(f"rollout has no option {', '.join(sorted(alien))}: choose from fusion, discard")
    return options


def _finished(maps: Mapping[str, Any], methods: Sequence[str]) -> Maps:
    """Those asked for, in that order."""
    order = (methods,) if isinstance(methods, str) else dict.fromkeys(methods)
    return {name: np.ascontiguousarray(maps[name], dtype=np.float32) for name in order}
