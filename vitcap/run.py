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
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitcap import checkpoint
from vitcap.captioner import Captioner
from vitcap.data.module import CaptionData
from vitcap.drawing import overlay_sheet, save_sheet
from vitcap.evaluation import bar, judge_of, show
from vitcap.evaluation import evaluate as evaluate_captioner
from vitcap.machine import keep_freed_memory
from vitcap.models.captioner import CaptionModel
from vitcap.tasks.callbacks import Interrupted, LastCheckpoint, Progress, SelfContained, WeightAverage, clock
from vitcap.tasks.captioning import CaptionTask
from vitcap.types import count_parameters

log = logging.getLogger(__name__)

# What a user did wrong ends in one line; anything else is a defect of ours and keeps its traceback.
USER_ERRORS = (ValueError, OSError, hydra.errors.HydraException, OmegaConfBaseException)


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


def _open_run(cfg: DictConfig) -> tuple[Path, str | None]:
    """Run folder, and the checkpoint to go on from. A folder with a run in it is not written over unasked."""
    out = Path(cfg.out)
    last = out / "checkpoints" / "last.ckpt"
    resume: str | None = None
    if cfg.resume:
        resume = str(last if cfg.resume is True else cfg.resume)
        if not Path(resume).exists():
            raise FileNotFoundError(
                f"{resume}: no checkpoint to resume from; give resume=FILE or out=FOLDER of the run"
            )
        checkpoint.read(resume)  # one clear line if it is none
    elif (out / "checkpoints").exists() and not cfg.overwrite:
        raise ValueError(f"{out} already holds a run: resume=true goes on with it, overwrite=true starts it anew")
    elif (out / "checkpoints").exists():
        for old in (out / "checkpoints").glob("*.ckpt"):
            old.unlink()
    out.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(cfg, out / "config.yaml", resolve=True)
    return out, resume


def train(cfg: DictConfig) -> dict[str, Any]:
    """Train, keep the best model, score it, draw overlays. Returns the content of scores.json.

    Writes to cfg.out: config.yaml, checkpoints/{best,last}.ckpt, model.safetensors, captions.json, scores.json,
    per_image.json, overlays/, metrics.csv and TensorBoard events.
    """
    _settle()
    begin = time.monotonic()
    out, resume = _open_run(cfg)
    L.seed_everything(cfg.seed, verbose=False)
    parts = build(cfg)
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
    callbacks: list[L.Callback] = [SelfContained(parts.description), best, last, LearningRateMonitor("step"), progress]
    if cfg.ema is not None:
        callbacks.insert(0, WeightAverage(cfg.ema))
    if cfg.early_stopping is not None:
        callbacks.append(EarlyStopping(monitor, mode=mode, patience=cfg.early_stopping))
    trainer = L.Trainer(
        **_plain(cfg.trainer),
        default_root_dir=out,
        callbacks=callbacks,
        logger=[CSVLogger(out, name="", version=""), TensorBoardLogger(out, name="", version="")],
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(task, datamodule=data, ckpt_path=resume, weights_only=True)
    trained = time.monotonic() - begin

    model.load_state_dict(checkpoint.read(best.best_model_path).weights, strict=False)
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
            "checkpoint": best.best_model_path,
            "chosen_by": f"{monitor} ({mode}), {type(task.search).__name__.lower()} search",
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


def draw_overlays(
    captioner: Captioner, data: CaptionData, folder: Path, *, count: int, split: str = "val"
) -> list[Path]:
    """Overlay sheets of the first `count` readable pictures of a split."""
    paths = []
    for record in data.records(split)[:count]:
        if record.image_id in data.bad:
            continue
        photo = record.open()
        caption = captioner.caption(photo, need_attention=True)
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{Path(str(record.image_id)).stem}.png")
        save_sheet(paths[-1], *overlay_sheet(captioner, photo, caption))
    return paths


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """Score a checkpoint on a split of any data. Returns the content of scores.json, which it writes to cfg.out."""
    _settle()
    captioner = Captioner.load(cfg.checkpoint, device="cuda" if torch.cuda.is_available() else "cpu")
    data: CaptionData = instantiate(cfg.data)
    data.tokenizer = captioner.tokenizer
    data.preprocess = captioner.preprocess
    out = Path(cfg.out)
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
        print(f"vitcap: error: {' '.join(str(cause).split())}", file=sys.stderr)
        sys.exit(1)
