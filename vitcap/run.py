"""Training and evaluation of what a Hydra config describes.

`train(cfg)` and `evaluate(cfg)` can be called from tests and notebooks; the scripts only add the command line.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

import vitcap
from vitcap import checkpoint
from vitcap.build import Data, Door, build, build_task, plain, prepare_cache
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.pictures import CaptionData
from vitcap.data.sentences import SentenceData
from vitcap.drawing import draw_alignments, draw_overlays
from vitcap.evaluation.captions import evaluate_captions
from vitcap.evaluation.classes import evaluate_classes
from vitcap.evaluation.sentences import evaluate_sentences
from vitcap.machine import keep_freed_memory, release_freed_memory
from vitcap.progress import bar
from vitcap.run_folder import check_resume, clear, open_run
from vitcap.tasks.callbacks import Interrupted, LastCheckpoint, Progress, SelfContained, WeightAverage, clock
from vitcap.translator import Translator
from vitcap.types import count_parameters, require_number

log = logging.getLogger(__name__)

# What a user did wrong ends in one line; anything else is a defect of ours and keeps its traceback.
USER_ERRORS = (ValueError, OSError, hydra.errors.HydraException, OmegaConfBaseException, MisconfigurationException)


def _settle() -> None:
    """Before anything large: the allocator; and of the libraries' messages only what a user can act on."""
    keep_freed_memory()
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*number of training batches.*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".* directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*module.s. in eval mode at the start of training.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")


def _curves(out: Path) -> CSVLogger:
    """Logger of metrics.csv that goes on after the rows of a run that is resumed; Lightning's would delete them."""
    file = out / "metrics.csv"
    before = file.read_bytes() if file.exists() else b""
    logger = CSVLogger(out, name="", version="")
    columns = logger.experiment.metrics_keys
    if before:
        file.write_bytes(before)
        columns += before.decode().splitlines()[0].split(",")
    return logger


def _score(
    door: Door, data: Data, split: str, *, search: Any, out: Path, seed: int, facts: dict[str, Any]
) -> dict[str, Any]:
    """Score a model on a split, print the score card, and return the content of scores.json."""
    options: dict[str, Any] = {"out": out, "facts": facts, "progress": bar(f"{data.source.name} {split}")}
    if isinstance(door, Classifier):
        text, report = evaluate_classes(door, data, split, **options)  # type: ignore[arg-type]
    elif isinstance(door, Captioner):
        text, report = evaluate_captions(door, data, split, search=search, seed=seed, **options)  # type: ignore[arg-type]
    else:
        text, report = evaluate_sentences(door, data, split, search=search, seed=seed, **options)  # type: ignore[arg-type]
    print(text)
    return report


def train(cfg: DictConfig) -> dict[str, Any]:
    """Train, keep the best model, score it, draw what it attended to. Returns the content of scores.json.

    Writes to cfg.out: config.yaml, checkpoints/{best,last}.ckpt, model.safetensors, scores.json, what the evaluation of
    its kind of model writes (vitcap.evaluation), overlays/, metrics.csv and TensorBoard events.
    """
    _settle()
    begin = time.monotonic()
    require_number("seed", cfg.seed, 0, 2**32 - 1, whole=True)
    require_number("overlays", cfg.overlays, 0, whole=True)
    out = Path(cfg.out)
    resume = open_run(out, resume=cfg.resume, overwrite=cfg.overwrite)
    L.seed_everything(cfg.seed, verbose=False)
    parts = build(cfg)
    if resume is not None:
        check_resume(resume, parts.model, parts.description)
    data, model = parts.data, parts.model
    rest = [p for name, p in model.named_parameters() if not name.startswith("encoder.")]
    log.info(
        "%d training, %d validation records; parameters: encoder %.2f M (%.2f M trained), %s %.2f M",
        len(data.records("train")),
        len(data.records("val")),
        count_parameters(list(model.encoder.parameters())) / 1e6,
        count_parameters([p for p in model.encoder.parameters() if p.requires_grad]) / 1e6,
        "head" if parts.kind == "classify" else "decoder",
        count_parameters(rest) / 1e6,
    )
    if data.cache is not None:
        prepare_cache(parts, ("train", "val"))
    search = instantiate(cfg.decode)
    task, monitor, mode = build_task(cfg, parts)
    best = ModelCheckpoint(
        dirpath=out / "checkpoints", filename="best", monitor=monitor, mode=mode, enable_version_counter=False
    )
    last = LastCheckpoint(out / "checkpoints" / "last.ckpt", every=cfg.save_every)
    scores = ("BLEU-4", "CIDEr-D", "true_seen", "true_held_out", "coverage", "exact", "top1", "top5")
    trim = LambdaCallback(on_validation_end=lambda *_: release_freed_memory())
    callbacks = [
        SelfContained(parts.description),
        best,
        last,
        LearningRateMonitor("step"),
        Progress(scores=scores),
        trim,
    ]
    if cfg.ema is not None:
        callbacks.insert(0, WeightAverage(cfg.ema))
    if cfg.early_stopping is not None:
        callbacks.append(EarlyStopping(monitor, mode=mode, patience=cfg.early_stopping))
    try:
        trainer = L.Trainer(
            **plain(cfg.trainer),
            default_root_dir=out,
            callbacks=callbacks,
            logger=False,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
    except TypeError as error:
        raise ValueError(f"trainer: {error}") from error
    if resume is None:  # only now: a mistake in an option must not cost an old run
        clear(out)
    OmegaConf.save(cfg, out / "config.yaml", resolve=True)
    trainer.loggers = [_curves(out), TensorBoardLogger(out, name="", version="")]
    trainer.fit(task, datamodule=data, ckpt_path=resume, weights_only=True)
    trained = time.monotonic() - begin

    chosen = best.best_model_path or str(last.path)  # too few steps for a validation: there is no best one
    if not Path(chosen).exists():
        raise ValueError("no step was trained: trainer.max_epochs, or trainer.max_steps, is too small")
    model.load_state_dict(checkpoint.read(chosen).weights, strict=False)
    model.to(trainer.strategy.root_device)  # the trainer leaves it on the CPU
    door = parts.door(search)
    by = "last, without validation"
    if best.best_model_path:
        by = f"{monitor} ({mode})"
        by += "" if parts.kind == "classify" else f", {type(task.search).__name__.lower()} search"
    facts = {
        "checkpoint": chosen,
        "chosen_by": by,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "training_minutes": round(trained / 60, 2),
    }
    report = _score(door, data, "val", search=search, out=out, seed=cfg.seed, facts=facts)
    parts.description["facts"] |= {"evaluation": report["facts"]} | {k: v for k, v in report.items() if k != "facts"}
    door.save(out / checkpoint.MODEL_FILE)
    pictures = []
    if isinstance(door, Captioner):
        assert isinstance(data, CaptionData)
        pictures = draw_overlays(door, data, out / "overlays", count=cfg.overlays)
    elif not isinstance(door, Classifier):
        assert isinstance(data, SentenceData)
        pictures = draw_alignments(door, data, out / "overlays", count=cfg.overlays)
    print(f"trained in {clock(trained)}; scores and outputs: {out}/")
    print(f"model: {out / checkpoint.MODEL_FILE}" + (f", overlays: {pictures[0].parent}/" if pictures else ""))
    return report


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """Score a checkpoint on a split of any data. Returns the content of scores.json, which it writes to cfg.out."""
    _settle()
    require_number("seed", cfg.seed, 0, 2**32 - 1, whole=True)
    door = vitcap.load(cfg.checkpoint, device="cuda" if torch.cuda.is_available() else "cpu")
    data: Any = instantiate(cfg.data, **({"tokenizer": None} if isinstance(door, Classifier) else {}))
    if isinstance(door, Translator) != isinstance(data, SentenceData):
        wanted = "sentences (data=digits, translation or pairs)" if isinstance(door, Translator) else "pictures"
        raise ValueError(f"{cfg.checkpoint} is a model of {wanted}, which data={data.source.name} are not")
    trained_on = door.description.get("facts", {}).get("data")
    if trained_on not in (None, data.source.name):
        log.warning(
            "the model was trained on data=%s and is scored on data=%s: if not meant so, give data= and data.root=",
            trained_on,
            data.source.name,
        )
    search = None
    if isinstance(door, Classifier):
        data.preprocess = door.preprocess
        take_over = getattr(data.source, "use_classes", None)
        if take_over is not None:  # labels by class, whatever the order of the folders
            take_over(door.classes, door.class_names)
        elif (classes := tuple(getattr(data.source, "classes", ()))) != door.classes:
            raise ValueError(
                f"the classes of data={data.source.name} ({', '.join(classes[:3])}, ...) are not those of "
                f"{cfg.checkpoint} ({', '.join(door.classes[:3])}, ...)"
            )
    else:
        search = instantiate(cfg.decode) if cfg.get("decode") else door.search
        data.tokenizer = door.tokenizer
        if isinstance(door, Captioner):
            data.preprocess = door.preprocess
        else:
            data.source_tokenizer = door.source_tokenizer
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)  # now, and not after the captions, if it cannot be written
    facts = {"checkpoint": str(cfg.checkpoint)}
    report = _score(door, data, cfg.split, search=search, out=out, seed=cfg.seed, facts=facts)
    print(f"scores and outputs: {out}/")
    return report


def command(action: Callable[[DictConfig], Any], cfg: DictConfig) -> None:
    """Run an action for the command line: user errors end in one line on standard error and exit status 1.

    The environment variable HYDRA_FULL_ERROR=1 shows the traceback.
    """
    try:
        action(cfg)
    except KeyboardInterrupt:
        print("vitcap: interrupted", file=sys.stderr)
        sys.exit(130)
    except Interrupted:
        print(f"vitcap: interrupted; go on with out={cfg.out} resume=true", file=sys.stderr)
        sys.exit(130)
    except USER_ERRORS as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        cause: BaseException = error
        while isinstance(cause, hydra.errors.InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        named = isinstance(cause, OSError) and cause.filename is not None and cause.strerror
        text = f"{cause.filename}: {cause.strerror}" if named else str(cause)  # type: ignore[attr-defined]
        if isinstance(cause, MissingMandatoryValue):
            text = f"{cause.full_key} must be given: add {cause.full_key}=VALUE"
        print(f"vitcap: error: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(1)
