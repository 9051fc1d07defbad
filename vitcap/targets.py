"""What a config may build: it may come from anybody, as an experiment or as the `config.yaml` of a run.

Hydra calls whatever a `_target_` names. Here that is a class of vitcap, for any part of any config, and of Hydra itself
its own plugins and plain logging; everything else is refused before anything is built.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

TARGET, INTERPOLATION = "_target_", "${"
HOMES = ("vitcap.models.", "vitcap.decoding.", "vitcap.data.", "vitcap.tasks.")
"""Where the classes are that a config may name."""

PLUGINS = ("hydra._internal.core_plugins.", "hydra_plugins.")
LOGGING = {
    *("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "logging.Formatter"),
    *("logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler"),
}
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
ELSEWHERE = r"\$\{(?!hydra[.:]|now:|oc\.env:)"
"""Interpolations that may take a whole part from outside the node `hydra`."""
TEXTS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.override_dirname")
"""Names of folders, and the options of a job as one text: nothing is built of them."""


def check_targets(config: Mapping[str, Any]) -> None:
    """ValueError, naming the option and the target, unless every `_target_` is a class of vitcap.

    config: plain containers, interpolations resolved. A text that is read as an interpolation when it is resolved again
    is refused, too: it could name anything by then.
    """
    for key, value in _leaves(config):
        if key.rpartition(".")[2] == TARGET:
            _check(key, value)
        elif isinstance(value, str) and INTERPOLATION in value:
            raise ValueError(f"{key}={value}: refused, for it would be resolved a second time; write what is meant")


def _check(key: str, target: Any) -> None:
    refused = f"{key}={str(target)[:200]}: refused, a config may only build classes of "
    refused += ", ".join(home.rstrip(".") for home in HOMES)
    if not isinstance(target, str) or not re.fullmatch(r"\w+(\.\w+)+", target) or not target.startswith(HOMES):
        raise ValueError(refused)
    module, _, name = target.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ValueError(f"{key}={target}: this version of vitcap has no such class") from None
    if not isinstance(made, type) or not f"{made.__module__}.".startswith(HOMES):  # modules import those of others, too
        raise ValueError(f"{refused}, and this is none")


def check_hydra(config: Mapping[str, Any]) -> None:
    """The same of Hydra's node `hydra`, on which it acts before a script starts: callbacks, launchers, logging.

    config: plain containers, interpolations as they are written. ValueError that names the option.
    """
    for key, value in _leaves({name: part for name, part in config.items() if name != "overrides"}, "hydra"):
        last, text = key.rpartition(".")[2], value if isinstance(value, str) else ""
        wrong = last == TARGET and not text.startswith(PLUGINS)
        wrong |= last == "()" or (last == "class" and text not in LOGGING)  # of logging.config
        wrong |= text.startswith(("ext://", "cfg://")) and text not in STREAMS
        wrong |= re.search(ELSEWHERE, text) is not None and key not in TEXTS
        if wrong:
            raise ValueError(f"{key}={str(value)[:200]}: refused, a config may not have Hydra call what it names")
        if f"{key}.".startswith("hydra.job.env_set."):  # of programs that are started they may choose the code
            raise ValueError(f"{key}: refused, a config may not set environment variables; set them in the shell")


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(option, value) of everything below a node that is no container itself, and of every `_target_`."""
    if isinstance(node, Mapping):
        below: Any = node.items()
    elif isinstance(node, list | tuple):
        below = enumerate(node)
    else:
        yield key, node
        return
    for name, value in below:
        option = f"{key}.{name}" if key else str(name)
        if name == TARGET:
            yield option, value
        else:
            yield from _leaves(value, option)
