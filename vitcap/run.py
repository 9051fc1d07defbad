"""The composition root: from a Hydra config to data, model, training and evaluation.

`train(cfg)` and `evaluate(cfg)` can be called from tests and notebooks; the scripts only add the command line.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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

from vitcap import checkpoint
from vitcap.captioner import Captioner
from vitcap.data.module import CaptionData
from vitcap.drawing import draw_overlays
from vitcap.evaluation import bar, judge_of, show
from vitcap.evaluation import evaluate as evaluate_captioner
from vitcap.machine import keep_freed_memory, release_freed_memory
from vitcap.models.captioner import CaptionModel
from vitcap.run_folder import check_resume, clear, open_run
from vitcap.tasks.callbacks import Interrupted, LastCheckpoint, Progress, SelfContained, WeightAverage, clock
from vitcap.tasks.captioning import CaptionTask
from vitcap.types import count_parameters, require_number

log = logging.getLogger(__name__)

# What a user did wrong ends in one line; anything else is a defect of ours and keeps its traceback.
USER_ERRORS = (ValueError, OSError, hydra.errors.HydraException, OmegaConfBaseException, MisconfigurationException)


@dataclass(frozen=True)
class Parts:
    """What a config builds."""

    data: CaptionData
    model: CaptionModel
    description: dict[str, Any]


def build(cfg: DictConfig) -> Parts:
    """Data and model of a config. Sizes that the data decides (vocabulary, memory width) are filled in here."""
    data: CaptionData = instantiate(cfg.data)
    torch.manual_seed(cfg.seed)
    encoder_config, decoder_config = _plain(cfg.model.encoder), _plain(cfg.model.decoder)
    if encoder_config["trainable"] == "none" and not encoder_config["weights"] and not encoder_config.get("pretrained"):
        raise ValueError(
            "a frozen encoder with random weights learns nothing: set model.encoder.weights=FILE or "
            "model.encoder.pretrained=true, or train it with model.encoder.trainable=all"
        )
    encoder = instantiate(encoder_config)
    decoder_config.pop("_partial_", None)
    decoder_config |= {"vocab_size": data.spec.vocab_size, "memory_width": encoder.width}
    decoder = instantiate(decoder_config)
    limit = getattr(decoder, "max_length", None)
    asked = {"data": cfg.data.max_length - 1} | {k: cfg[k].max_length for k in ("decode", "validation_decode")}
    for option, length in asked.items():  # now, and not at the first long caption or after the first epoch
        if limit is not None and length > limit:
            raise ValueError(
                f"model.decoder.max_length={limit} is too short for {option}.max_length={cfg[option].max_length}"
            )
    preprocess = data.fit_to(encoder.preprocess)
    model = CaptionModel(encoder, decoder, mean=preprocess.mean, std=preprocess.std)
    description = checkpoint.describe(
        encoder=encoder_config,
        decoder=decoder_config,
        tokenizer=data.tokenizer,
        preprocess=preprocess,
        decode=_plain(cfg.decode),
        facts={"data": data.source.name, "seed": cfg.seed, "precision": str(cfg.trainer.precision)},
    )
    return Parts(data, model, description)


def _plain(cfg: DictConfig) -> dict[str, Any]:
    return {str(key): value for key, value in OmegaConf.to_container(cfg, resolve=True).items()}  # type: ignore[union-attr]


def _prepare_cache(parts: Parts, splits: tuple[str, ...]) -> None:
    """Compute, or find on disk, the features of the encoder's frozen part."""
    encoder: Any = parts.model.encoder
    if not encoder.cacheable:
        raise ValueError(
            "data.cache needs an encoder with a frozen part: set model.encoder.trainable=none or a number of blocks, "
            "or train from the pictures with data.cache=null"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts.model.to(device).eval()

    def extract(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return encoder.trunk(parts.model.normalise(images.to(device))).float().cpu()

    parts.data.cache_features(
        splits, fingerprint=encoder.fingerprint(), extract=extract, progress=bar("features of the frozen encoder")
    )
    parts.model.cpu()
    release_freed_memory()


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


def train(cfg: DictConfig) -> dict[str, Any]:
    """Train, keep the best model, score it, draw overlays. Returns the content of scores.json.

    Writes to cfg.out: config.yaml, checkpoints/{best,last}.ckpt, model.safetensors, captions.json, scores.json,
    per_image.json, overlays/, metrics.csv and TensorBoard events.
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
        check_resume(resume, parts.model, parts.description["tokenizer"])
    data, model = parts.data, parts.model
    log.info(
        "%d training, %d validation images; parameters: encoder %.2f M (%.2f M trained), decoder %.2f M",
        len(data.records("train")),
        len(data.records("val")),
        count_parameters(list(model.encoder.parameters())) / 1e6,
        count_parameters([p for p in model.encoder.parameters() if p.requires_grad]) / 1e6,
        count_parameters(list(model.decoder.parameters())) / 1e6,
    )
    if data.cache is not None:
        _prepare_cache(parts, ("train", "val"))
    search = instantiate(cfg.decode)
    task: CaptionTask = instantiate(cfg.task)(
        model,
        search=instantiate(cfg.validation_decode),
        decode=data.tokenizer.decode,
        references={r.image_id: r.captions for r in data.records("val")},
        judge=judge_of(data.source),
    )
    # With one image CIDEr-D is not defined: every document frequency is 1.
    monitor, mode = ("val/CIDEr-D", "max") if len(data.records("val")) > 1 else ("val/loss", "min")
    best = ModelCheckpoint(
        dirpath=out / "checkpoints", filename="best", monitor=monitor, mode=mode, enable_version_counter=False
    )
    last = LastCheckpoint(out / "checkpoints" / "last.ckpt", every=cfg.save_every)
    progress = Progress(scores=("BLEU-4", "CIDEr-D", "true_seen", "true_held_out", "coverage"))
    trim = LambdaCallback(on_validation_end=lambda *_: release_freed_memory())
    callbacks = [SelfContained(parts.description), best, last, LearningRateMonitor("step"), progress, trim]
    if cfg.ema is not None:
        callbacks.insert(0, WeightAverage(cfg.ema))
    if cfg.early_stopping is not None:
        callbacks.append(EarlyStopping(monitor, mode=mode, patience=cfg.early_stopping))
    try:
        trainer = L.Trainer(
            **_plain(cfg.trainer),
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
    captioner = Captioner(model, data.tokenizer, data.preprocess, search=search, description=parts.description)  # type: ignore[arg-type]
    card, report = evaluate_captioner(
        captioner,
        data,
        "val",
        search=search,
        out=out,
        seed=cfg.seed,
        progress=bar("captions of the validation split"),
        facts={
            "checkpoint": chosen,
            "chosen_by": f"{monitor} ({mode}), {type(task.search).__name__.lower()} search"
            if best.best_model_path
            else "last, without validation",
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "training_minutes": round(trained / 60, 2),
        },
    )
    parts.description["facts"] |= {"scores": card.corpus, "truth": report["truth"], "evaluation": report["facts"]}
    captioner.save(out / checkpoint.MODEL_FILE)
    pictures = draw_overlays(captioner, data, out / "overlays", count=cfg.overlays)
    show(card.table(), report)
    print(f"trained in {clock(trained)}; scores: {out / 'scores.json'}, captions: {out / 'captions.json'}")
    print(f"model: {out / checkpoint.MODEL_FILE}" + (f", overlays: {pictures[0].parent}/" if pictures else ""))
    return report


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """Score a checkpoint on a split of any data. Returns the content of scores.json, which it writes to cfg.out."""
    _settle()
    require_number("seed", cfg.seed, 0, 2**32 - 1, whole=True)
    captioner = Captioner.load(cfg.checkpoint, device="cuda" if torch.cuda.is_available() else "cpu")
    data: CaptionData = instantiate(cfg.data)
    trained_on = captioner.description.get("facts", {}).get("data")
    if trained_on not in (None, data.source.name):
        log.warning(
            "the model was trained on data=%s and is scored on data=%s: if not meant so, give data= and data.root=",
            trained_on,
            data.source.name,
        )
    data.tokenizer = captioner.tokenizer
    data.preprocess = captioner.preprocess
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)  # now, and not after the captions, if it cannot be written
    card, report = evaluate_captioner(
        captioner,
        data,
        cfg.split,
        search=instantiate(cfg.decode) if cfg.get("decode") else captioner.search,
        out=out,
        seed=cfg.seed,
        progress=bar(f"captions of {cfg.split}"),
        facts={"checkpoint": str(cfg.checkpoint)},
    )
    show(card.table(), report)
    print(f"scores: {out / 'scores.json'}, captions: {out / 'captions.json'}, per image: {out / 'per_image.json'}")
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
