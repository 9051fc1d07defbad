"""The rows of a report that say what was trained, how, and where."""

from __future__ import annotations

from typing import Any

import yaml

from vitcap.report.folder import RunFolder

Rows = list[tuple[str, str]]

OPTIONS = {
    "width": "width",
    "depth": "depth",
    "heads": "heads",
    "patch_size": "patch",
    "image_size": "picture",
    "name": "name",
    "weights": "weights",
    "pretrained": "pretrained",
    "trainable": "trainable",
    "attention": "attention",
    "dropout": "dropout",
}


def settings(run: RunFolder, parameters: str = "") -> Rows:
    """Model, preprocessing and training in words, as far as config.yaml and scores.json tell. parameters: of the model,
    in words."""
    config = _config(run.config)
    model, task, data, trainer = (_node(config, name) for name in ("model", "task", "data", "trainer"))
    facts = run.facts
    rows = [(part, _part(model[part])) for part in ("encoder", "decoder", "head") if isinstance(model.get(part), dict)]
    if parameters:
        rows.append(("parameters", parameters))
    if prepared := facts.get("preprocessing"):
        size = " x ".join(map(str, prepared.get("size", ())))
        told = (
            f"{size} pixels, {prepared.get('mode')}, crop {prepared.get('crop_pct')}, {prepared.get('interpolation')}"
        )
        rows.append(("preprocessing", told))
    if data.get("batch_size"):
        times = trainer.get("accumulate_grad_batches") or 1
        told = f", the gradients of {times} of them added up for a step" if times > 1 else ""
        rows.append(("batch", f"{data['batch_size']} records{told}"))
    if task:
        rates = {name: task.get(name) for name in ("lr", "encoder_lr", "weight_decay", "warmup", "label_smoothing")}
        rows.append(("training", f"{str(task.get('_target_', '')).rpartition('.')[2]}: {_some(rates)}"))
        rows.append(("averaged weights", "none" if config.get("ema") is None else f"decay {config['ema']}"))
    if facts.get("steps") is not None:
        early = ", ended early as the score did not rise" if facts.get("stopped_early") else ""
        took = f", {facts['training_minutes']} minutes" if "training_minutes" in facts else ""
        rows.append(("trained for", f"{facts['steps']:,} steps, {facts.get('epochs', '?')} epochs{early}{took}"))
    if config:
        rows.append(("started from", str(config.get("init") or "no other model of vitcap")))
        rows.append(("precision", str(trainer.get("precision"))))
        rows.append(("seed", str(config.get("seed"))))
    return rows


def surroundings(environment: dict[str, Any]) -> Rows:
    """Versions, machine and duration in words."""
    e = environment
    if not e:
        return []
    packages = ", ".join(f"{name} {version}" for name, version in e.get("packages", {}).items())
    rows = [
        ("command", str(e.get("command", ""))),
        ("vitcap", f"{e.get('vitcap')}" + (f", revision {e['revision']}" if e.get("revision") else "")),
        ("Python", f"{e.get('python')}; {packages}"),
        ("system", str(e.get("system", ""))),
        (
            "device",
            f"{e.get('device')}; {e.get('threads')} threads, {e.get('cores')} cores, {e.get('processes')} process(es)",
        ),
    ]
    memory = e.get("memory_gib") or {}
    if memory:
        rows.append(("most memory", ", ".join(f"{value} GiB ({what})" for what, value in memory.items())))
    if e.get("minutes") is not None:
        rows.append(("duration", f"{e['minutes']} minutes, scoring included; started {e.get('started')}"))
    return [(name, text) for name, text in rows if text]


def _config(text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:  # shown as it is
        return {}
    return found if isinstance(found, dict) else {}


def _node(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _part(options: dict[str, Any]) -> str:
    told = {told: options.get(name) for name, told in OPTIONS.items()}
    return f"{str(options.get('_target_', '')).rpartition('.')[2]}: {_some(told)}"


def _some(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items() if value is not None)
