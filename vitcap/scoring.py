"""Scores of a model, vitcap's own or one of timm, on a split of any data."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

import vitcap
from vitcap import checkpoint, processes
from vitcap.averaging import average, store
from vitcap.build import Data, Door, plain
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.command import java_options, settle
from vitcap.data.sentences import SentenceData
from vitcap.data.transforms import Preprocess
from vitcap.evaluation.captions import evaluate_captions
from vitcap.evaluation.classes import evaluate_classes
from vitcap.evaluation.faithfulness import evaluate_faithfulness
from vitcap.evaluation.grounding import evaluate_grounding
from vitcap.evaluation.sentences import evaluate_sentences
from vitcap.launch import join
from vitcap.models.published import PublishedClassifier
from vitcap.models.storage import STORAGES
from vitcap.progress import bar
from vitcap.run_folder import write_unreadable
from vitcap.targets import check_targets
from vitcap.translator import Translator
from vitcap.types import require_number

log = logging.getLogger(__name__)

_OF_CAPTIONS = ("meteor", "spice", "zip", "novel", "ground")


def score_split(
    door: Door,
    data: Data,
    split: str,
    *,
    search: Any,
    out: Path,
    seed: int,
    facts: dict[str, Any],
    **captions: Any,
) -> dict[str, Any]:
    """Score a model on a split, print the score card, and return the content of scores.json.

    What could not be read is named in unreadable.json. captions: further options of `evaluate_captions`.
    """
    first = processes.is_first()
    progress = bar(f"{data.source.name} {split}") if first else None
    options: dict[str, Any] = {"out": out, "facts": facts, "progress": progress}
    if isinstance(door, Classifier):
        text, report = evaluate_classes(door, data, split, **options)  # type: ignore[arg-type]
    elif isinstance(door, Captioner):
        text, report = evaluate_captions(door, data, split, search=search, seed=seed, **options, **captions)  # type: ignore[arg-type]
    else:
        text, report = evaluate_sentences(door, data, split, search=search, seed=seed, **options)  # type: ignore[arg-type]
    bad = processes.gather(dict(data.bad))
    if first:
        print(text)
        write_unreadable(out, bad)
    return report


def explain_split(
    door: Any, data: Any, split: str, cfg: DictConfig, *, search: Any, out: Path, facts: dict[str, Any]
) -> dict[str, Any]:
    """Answer cfg.ground and cfg.faithful for a model on a split, print the tables, and return the content of their
    files by name. Raises ValueError, when all is written, where a trained map is no better than an untrained one."""
    reports: dict[str, Any] = {}
    if isinstance(door, Translator):
        raise ValueError("faithful=true is for models of pictures: leave it out")
    methods = "all" if cfg.methods is None else cfg.methods if isinstance(cfg.methods, str) else list(cfg.methods)
    common: dict[str, Any] = {"methods": methods, "search": search, "out": out, "seed": cfg.seed, "facts": facts}
    limit = {} if cfg.limit is None else {"limit": cfg.limit}
    if cfg.ground:
        options = {name: cfg[name] for name in ("protocol", "regions") if cfg[name] is not None}
        progress = bar(f"{data.source.name} {split}, grounding")
        text, reports["grounding"] = evaluate_grounding(
            door, data, split, progress=progress, instances=cfg.instances, **common, **limit, **options
        )
        print(text)
    if cfg.faithful:
        progress = bar(f"{data.source.name} {split}, faithfulness")
        text, reports["faithfulness"] = evaluate_faithfulness(door, data, split, progress=progress, **common, **limit)
        print(text)
    print(f"figures: {out}/")
    failed = [name for name, report in reports.items() if not report["verdict"]["ok"]]
    if failed:
        raise ValueError(f"{reports[failed[0]]['verdict']['text']} (all figures: {out}/{failed[0]}.json)")
    return reports


def evaluate_model(cfg: DictConfig) -> dict[str, Any]:
    """Score cfg.checkpoint or cfg.model on a split. Returns the content of scores.json, which it writes to cfg.out."""
    settle()
    join(cfg)
    if (cfg.ground or cfg.faithful) and (world := processes.share()[1]) > 1:
        raise ValueError(f"ground=true and faithful=true run in one process, and {world} were started: start it alone")
    require_number("seed", cfg.seed, 0, 2**32 - 1, whole=True)
    check_targets(plain(cfg))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    door: Door
    if cfg.checkpoint is not None:
        door, named = vitcap.load(cfg.checkpoint, device=device), str(cfg.checkpoint)
        data = _open(cfg, door, named)
        facts: dict[str, Any] = {"checkpoint": named}
        if cfg.average is not None:
            facts |= average(door, named, str(cfg.average), 0.5 if cfg.share is None else cfg.share)
        elif cfg.share is not None:
            raise ValueError(f"share={cfg.share} goes with average=, which is not given")
        if cfg.save is not None:
            if cfg.save not in STORAGES:
                raise ValueError(f"save={cfg.save}: one of {', '.join(STORAGES)} is wanted")
            if (target := Path(cfg.out) / checkpoint.MODEL_FILE).exists():
                raise ValueError(f"save={cfg.save}: {target} is there already; choose another out=")
            store(door, cfg.save)
            facts["storage"] = cfg.save
        if isinstance(door, Classifier):
            _use_classes(data, door, named)
    else:
        door, data, facts = _published(cfg, device)
    search, captions = None, {}
    if not isinstance(door, Classifier):
        search = instantiate(cfg.decode) if cfg.get("decode") else door.search
        data.tokenizer = door.tokenizer
    if isinstance(door, Translator):
        data.source_tokenizer = door.source_tokenizer
    else:
        data.preprocess, forced = fit(door.preprocess, data.resize, data.crop_pct, force=cfg.force)
        facts |= forced
        door.preprocess = data.preprocess
    if isinstance(door, Captioner):
        captions = java_options(cfg) | {"archive": cfg.zip, "algorithm": cfg.algorithm, "novel": cfg.novel}
    out = Path(cfg.out)
    if processes.is_first():  # now, and not after the captions, if it cannot be written
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(f"out={out}: nothing can be written there; choose another folder")
    if cfg.ground or cfg.faithful:
        return explain_split(door, data, cfg.split, cfg, search=search, out=out, facts=facts)
    report = score_split(door, data, cfg.split, search=search, out=out, seed=cfg.seed, facts=facts, **captions)
    if processes.is_first():
        if cfg.save is not None:
            facts_of_file = door.description.setdefault("facts", {})
            facts_of_file |= {"evaluation": report["facts"]} | {k: v for k, v in report.items() if k != "facts"}
            if cfg.get("decode"):
                door.description["decode"] = plain(cfg.decode)
            door.save(out / checkpoint.MODEL_FILE, storage=cfg.save)
        print(f"scores and outputs: {out}/")
    return report


def _open(cfg: DictConfig, door: Door, named: str) -> Any:
    """The data of a config, of the kind that a model reads; options that are not for it are errors."""
    classify = isinstance(door, Classifier)
    data: Any = instantiate(cfg.data, **({"tokenizer": None} if classify else {}))
    if isinstance(door, Translator) != isinstance(data, SentenceData):
        wanted = "sentences (data=digits, translation or pairs)" if isinstance(door, Translator) else "pictures"
        raise ValueError(f"{named} is a model of {wanted}, which data={data.source.name} are not")
    kind = "classifier" if classify else "translator"
    if not isinstance(door, Captioner) and (wrong := [o for o in _OF_CAPTIONS if cfg[o] not in (None, False)]):
        raise ValueError(f"{wrong[0]}= is for captions of pictures, and {named} is a {kind}: leave it out")
    if classify and cfg.get("decode"):
        raise ValueError(f"decode= is for models that write, and {named} is a classifier: leave it out")
    if isinstance(door, Captioner) and not any(record.captions for record in data.records(cfg.split)):
        raise ValueError(f"data={data.source.name}, split {cfg.split}: no picture has a caption to score against")
    trained_on = door.description.get("facts", {}).get("data")
    if trained_on not in (None, data.source.name):
        log.warning(
            "the model was trained on data=%s and is scored on data=%s: if not meant so, give data= and data.root=",
            trained_on,
            data.source.name,
        )
    return data


def _use_classes(data: Any, door: Classifier, named: str) -> None:
    """Let the labels of the data be the model's outputs, whatever the order of the folders."""
    take_over = getattr(data.source, "use_classes", None)
    if take_over is not None:
        take_over(door.classes, door.class_names)
    elif (classes := tuple(getattr(data.source, "classes", ()))) != door.classes:
        raise ValueError(
            f"the classes of data={data.source.name} ({', '.join(classes[:3])}, ...) are not those of "
            f"{named} ({', '.join(door.classes[:3])}, ...)"
        )


def _published(cfg: DictConfig, device: str) -> tuple[Classifier, Any, dict[str, Any]]:
    """A classifier of timm, the data with its classes as labels, and the facts about both."""
    named = f"model={cfg.model.name}"
    model = PublishedClassifier(
        cfg.model.name, pretrained=cfg.pretrained, weights=cfg.weights, test_size=cfg.test_size
    ).to(device)
    data: Any = instantiate(cfg.data, tokenizer=None)
    classes = getattr(data.source, "classes", None)
    if isinstance(data, SentenceData) or classes is None:
        raise ValueError(f"{named} is a classifier of pictures, and data={data.source.name} has no classes")
    own = list(zip(classes, getattr(data.source, "class_names", classes), strict=True))
    # The class index that is named is of the model; one that merely lies in the folder only lends its words.
    if model.class_list is not None and cfg.data.source.get("class_index") is None:
        words = {class_: name for class_, name in own if name != class_}
        pairs = [(class_, words.get(class_, name)) for class_, name in model.class_list]
        told = f"the {len(pairs)} synsets of ImageNet in sorted order, by their number"
    elif len(own) == model.classes:
        pairs, told = own, f"those of the data ({getattr(data.source, 'order_from', 'in its order')})"
    else:
        raise ValueError(
            f"{named} has {model.classes} classes, the data {len(own)}: give those of the model, in its order, as "
            'data.source.class_index=FILE, JSON {"0": ["id", "name"], ...}'
        )
    door = Classifier(model, pairs, Preprocess.from_dict(model.preprocess))  # type: ignore[arg-type]
    _use_classes(data, door, named)
    return door, data, model.origin | {"class_order": told}


def fit(
    wanted: Preprocess, resize: str | None, crop_pct: float | None, *, force: bool
) -> tuple[Preprocess, dict[str, Any]]:
    """The preprocessing to score with, and a fact about it if it is not the one that the model wants.

    resize, crop_pct: as the options of the data. Raises ValueError where they differ from the model's, unless `force`.
    """
    asked = {"resize": resize, "crop_pct": crop_pct}
    field = {"resize": "mode", "crop_pct": "crop_pct"}
    was = {option: getattr(wanted, field[option]) for option in asked}
    other = {o: value for o, value in asked.items() if value is not None and not _same(value, was[o])}
    if not other:
        return wanted, {}
    used = replace(wanted, **{field[option]: value for option, value in other.items()})  # type: ignore[arg-type]
    if not force:
        given = ", ".join(f"data.{option}={value}" for option, value in other.items())
        raise ValueError(
            f"{given}: the model wants {', '.join(f'{o}={was[o]}' for o in other)}, and scores of other pixels are not "
            "its own: leave it out, or score nevertheless with force=true"
        )
    changed = {option: f"{value} in place of {was[option]}" for option, value in other.items()}
    log.warning(
        "forced: preprocessing that the model does not want (%s)", ", ".join(f"{o} {v}" for o, v in changed.items())
    )
    return used, {"forced_preprocessing": changed}


def _same(a: Any, b: Any) -> bool:
    return math.isclose(a, b) if isinstance(a, float | int) and isinstance(b, float | int) else a == b
