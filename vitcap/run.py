"""Training of what a Hydra config describes.

`train(cfg)` and `evaluate(cfg)` can be called from tests and notebooks; the scripts only add the command line.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, LearningRateMonitor, ModelCheckpoint
from omegaconf import DictConfig, OmegaConf

from vitcap import checkpoint, processes
from vitcap.build import build, build_task, plain, prepare_cache
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.command import command, evaluate, settle
from vitcap.data.check_training import check_training
from vitcap.data.pictures import CaptionData
from vitcap.data.sentences import SentenceData
from vitcap.drawing import draw_alignments, draw_overlays
from vitcap.evaluation.grounding import choose_view
from vitcap.evaluation.report import write_json
from vitcap.launch import join, trainer_options
from vitcap.machine import release_freed_memory
from vitcap.progress import bar
from vitcap.report.environment import FILE as ENVIRONMENT
from vitcap.report.environment import environment
from vitcap.report.make import report_after
from vitcap.report.samples import log_samples
from vitcap.run_folder import begin, check_resume, open_run, write_unreadable
from vitcap.scoring import score_split
from vitcap.tasks.bars import clock
from vitcap.tasks.callbacks import LastCheckpoint, Progress, SelfContained, WeightAverage
from vitcap.tasks.guards import SkipBadSteps
from vitcap.tasks.logs import Events, close_wandb, open_wandb, require_wandb, resumed_step
from vitcap.tasks.resuming import Resuming
from vitcap.tasks.saving import Curves, WholeCheckpoints
from vitcap.types import count_parameters, require_number

__all__ = ["command", "evaluate", "train"]

log = logging.getLogger(__name__)


def train(cfg: DictConfig) -> dict[str, Any]:
    """Train, keep the best model, score it, draw what it attended to. Returns the content of scores.json.

    Writes to cfg.out: config.yaml, checkpoints/{best,last}.ckpt, model.safetensors, scores.json, what the evaluation of
    its kind of model writes (vitcap.evaluation), overlays/, metrics.csv and TensorBoard events, environment.json and
    the report (vitcap.report).
    """
    settle()
    join(cfg)
    started, began = time.monotonic(), time.time()
    require_number("seed", cfg.seed, 0, 2**32 - 1, whole=True)
    for name in ("overlays", "samples", "report_examples"):
        require_number(name, cfg[name], 0, whole=True)
    if cfg.early_stopping is not None:
        require_number("early_stopping", cfg.early_stopping, 1, whole=True)
    for name in ("overwrite", "report"):  # Hydra reads no and off as words, which would count as true
        if not isinstance(cfg[name], bool):
            raise ValueError(f"{name}={cfg[name]}: true or false is wanted")
    require_wandb(cfg.wandb)
    out = Path(cfg.out)
    resume = processes.first(lambda: open_run(out, resume=cfg.resume, overwrite=cfg.overwrite))
    L.seed_everything(cfg.seed, verbose=False)
    parts = build(cfg, resume=resume)
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
    for split, bad in processes.first(lambda: check_training(data, progress=bar("data check"))).items():
        data.bad[split].update(bad)
    if data.cache is not None:
        prepare_cache(parts, ("train", "val"))
    search = instantiate(cfg.decode)
    task, monitor, mode = build_task(cfg, parts)
    parts.description["facts"] |= getattr(task, "facts", dict)()
    best = ModelCheckpoint(
        dirpath=out / "checkpoints", filename="best", monitor=monitor, mode=mode, enable_version_counter=False
    )
    last = LastCheckpoint(out / "checkpoints" / "last.ckpt", every=cfg.save_every)
    scores = ("BLEU-4", "CIDEr-D", "true_seen", "true_held_out", "coverage", "exact", "top1", "top5")
    guard, curves, resuming = SkipBadSteps(most=cfg.max_bad_steps), Curves(out), Resuming(resume)
    between = LambdaCallback(
        on_train_start=lambda trainer, _: curves.trim(trainer.global_step),
        on_validation_end=lambda *_: release_freed_memory(),
    )
    callbacks = [
        SelfContained(parts.description),
        guard,
        best,
        last,
        LearningRateMonitor("step"),
        Progress(scores=scores),
        between,
        resuming,
    ]
    if cfg.ema is not None:
        callbacks.insert(0, WeightAverage(cfg.ema))
    sharded = cfg.trainer.strategy == "fsdp" and processes.share()[1] > 1
    # Before the averaged weights are taken away again; a sharded model is whole in no process by itself.
    samples = 0 if sharded else cfg.samples
    callbacks.insert(0, log_samples(parts, search=instantiate(cfg.validation_decode), count=samples, seed=cfg.seed))
    stopping = EarlyStopping(monitor, mode=mode, patience=cfg.early_stopping or 1, strict=False)
    if cfg.early_stopping is not None:
        callbacks.append(stopping)
    try:
        trainer = L.Trainer(
            **trainer_options(cfg, plain(cfg.trainer)),
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
    if trainer.world_size != processes.share()[1]:  # every process would train on all records
        raise ValueError(f"trainer.devices={cfg.trainer.devices}: {trainer.world_size} processes, none was started")
    if sharded:
        from vitcap.tasks.sharding import shard

        shard(task, records=len(data.records("train")), batch_size=data.batch_size, on_bad=data.on_bad, ema=cfg.ema)
    loggers: list[Any] = [curves, Events(out, purge=resumed_step(resume))]
    if cfg.wandb is not None:
        loggers.append(open_wandb(cfg.wandb, out, config=plain(cfg), resume=resume is not None))
    processes.first(lambda: begin(out, OmegaConf.to_yaml(cfg, resolve=True), new=resume is None))
    if processes.is_first():
        write_unreadable(out, [data.bad])
    trainer.loggers = loggers
    trainer.strategy.checkpoint_io = WholeCheckpoints()
    with resuming.told():
        trainer.fit(task, datamodule=data, ckpt_path=resume, weights_only=True)
    trained = time.monotonic() - started

    chosen = best.best_model_path or str(last.path)  # too few steps for a validation: there is no best one
    if not Path(chosen).exists():
        raise ValueError("no step was trained: trainer.max_epochs, or trainer.max_steps, is too small")
    if sharded:
        parts = replace(parts, model=(model := checkpoint.rebuild(checkpoint.read(chosen))))
    else:
        model.load_state_dict(checkpoint.read(chosen).weights, strict=False)
    model.to(trainer.strategy.root_device)  # the trainer leaves it on the CPU
    door = parts.door(search)
    by = "last, without validation"
    if best.best_model_path:
        by = f"{monitor} ({mode})"
        by += "" if parts.kind == "classify" else f", {type(task.search).__name__.lower()} search"
    if stopping.stopped_epoch:
        waited = f"the last {cfg.early_stopping} without a better {monitor.removeprefix('val/')}"
        log.info("ended after %d epochs, %s; early_stopping=null goes on", trainer.current_epoch, waited)
    facts = {
        "checkpoint": chosen,
        "chosen_by": by,
        "epochs": trainer.current_epoch,
        "stopped_early": bool(stopping.stopped_epoch),
        "steps": trainer.global_step,
        "skipped_steps": guard.skipped,
        "training_minutes": round(trained / 60, 2),
    }
    report = score_split(door, data, "val", search=search, out=out, seed=cfg.seed, facts=facts)
    if not processes.is_first():
        return report
    parts.description["facts"] |= {"evaluation": report["facts"]} | {k: v for k, v in report.items() if k != "facts"}
    if isinstance(door, Captioner):
        assert isinstance(data, CaptionData)
        view = choose_view(door, data, "val", out=out, search=search, seed=cfg.seed)
        if view is not None:
            parts.description["view"] = checkpoint.plain_view(view)
    door.save(out / checkpoint.MODEL_FILE)
    write_json(out / ENVIRONMENT, environment(device=str(door.device), started=began))
    pictures = []
    if isinstance(door, Captioner):
        assert isinstance(data, CaptionData)
        pictures = draw_overlays(door, data, out / "overlays", count=cfg.overlays, seed=cfg.seed)
    elif not isinstance(door, Classifier):
        assert isinstance(data, SentenceData)
        pictures = draw_alignments(door, data, out / "overlays", count=cfg.overlays, seed=cfg.seed)
    page = report_after(out, door=door, data=data, count=cfg.report_examples) if cfg.report else None
    close_wandb(loggers, report["scores"])
    print(f"trained in {clock(trained)}; scores and outputs: {out}/")
    print(f"model: {out / checkpoint.MODEL_FILE}" + (f", overlays: {pictures[0].parent}/" if pictures else ""))
    if page is not None:
        print(f"report: {page}")
    return report
