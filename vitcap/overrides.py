"""The command line of the scripts before Hydra acts upon it: its mistakes, and what configs would have Hydra call."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitcap.targets import check_hydra


def check_options(conf: str | Path, name: str, arguments: Sequence[str]) -> None:
    """Stop at a command line that Hydra cannot compose, or whose configs would have Hydra run code, with one line that
    says why. Hydra itself takes six, and asks nobody.

    conf, name: the folder of configs, and the one that is composed. Left to Hydra where it is asked for more (--help).
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-path", "-cp", default=conf)
    parser.add_argument("--config-name", "-cn", default=name)
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--experimental-rerun")
    given, options = parser.parse_known_args(list(arguments))
    flags = {option for option in options if option.startswith("-")}
    options = [option for option in options if not option.startswith("-")]
    try:
        if given.experimental_rerun is not None:
            raise ValueError("--experimental-rerun opens a Python pickle, which could run code: give the options again")
        if flags - {"--run", "-r"}:  # they show something, and run nothing
            return
        if given.config_dir is not None:  # as Hydra has it, after the folder of configs
            if any("hydra.searchpath" in option for option in options):
                raise ValueError("hydra.searchpath= and --config-dir name further folders of configs: give one of them")
            options.append(f"hydra.searchpath=['file://{os.path.abspath(given.config_dir)}']")
        folder = Path(sys.argv[0]).resolve().parent / given.config_path  # as Hydra has it, from the script
        with initialize_config_dir(str(folder.resolve()), version_base="1.3"):
            for cfg in _composed(given.config_name, options, several=given.multirun):
                check_hydra(OmegaConf.to_container(cfg.hydra, resolve=False))  # type: ignore[arg-type]
    except ValueError as error:
        print(f"vitcap: error: {error}", file=sys.stderr)
        sys.exit(1)


def _composed(name: str, options: list[str], *, several: bool) -> Iterator[DictConfig]:
    """The config of a command line with Hydra's own part; of one for several runs, each value that it varies once."""
    try:
        for job in _jobs(options) if several else [options]:
            yield compose(name, overrides=job, return_hydra_config=True)
    except (ValueError, hydra.errors.HydraException, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") != "1":
            raise ValueError(_mistake(error, name, options)) from None


def _jobs(options: list[str]) -> Iterator[list[str]]:
    """Of options that a multirun tries several values of: each value once, the others at their first."""
    read = OverridesParser.create().parse_overrides(options)
    several = {n: option for n, option in enumerate(read) if option.is_sweep_override()}
    for option in several.values():
        if isinstance(option.value(), Glob):
            raise ValueError(f"{option.input_line}: name the choices")
    values = {n: list(o.sweep_string_iterator()) if o.is_discrete_sweep() else [] for n, o in several.items()}
    texts = {n: [f"{read[n].get_key_element()}={value}" for value in found] for n, found in values.items()}
    first = {n: options[n] for n in range(len(options)) if n not in texts} | {n: t[0] for n, t in texts.items() if t}
    yield [first[n] for n in sorted(first)]
    for n, found in texts.items():
        for text in found[1:]:
            yield [text if n == m else first[m] for m in sorted(first)]


def _mistake(error: Exception, name: str, arguments: Sequence[str]) -> str:
    """What is wrong with a command line. Called where configs can be composed."""
    for argument in arguments:
        try:
            OverridesParser.create().parse_override(argument)
        except hydra.errors.HydraException:
            key, equals, value = argument.partition("=")
            if not equals:
                return f"{argument}: an option is KEY=VALUE"
            quoted = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'")
            return f"{argument}: Hydra reads some of these characters as its own; quote the value: \"{key}='{quoted}'\""
    first, *more = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if choice := re.search(r"Could not find '([^']*)/([^']*)'", first):
        group, wanted = choice.groups()
        start = next((n for n, line in enumerate(more) if line.startswith("Available")), len(more))
        end = next((n for n, line in enumerate(more) if line.startswith("Config search")), len(more))
        return f"{group}={wanted}: there is no such choice{_near(wanted, more[start + 1 : end], 'there are')}"
    if key_ := re.search(r"Could not override '([^']*)'", first):
        rest = [a for a in arguments if a.partition("=")[0] != key_[1]]
        try:
            known = list(_keys(compose(name, overrides=rest)))
        except Exception:  # it has more mistakes than one
            known = []
        new = f"; another argument of Lightning's Trainer is added as +{key_[1]}=" * key_[1].startswith("trainer.")
        return f"{key_[1]}: there is no such option{_near(key_[1], known)} (--help shows all of them{new})"
    return " ".join([first, *more])


def _near(wanted: str, known: Sequence[str], otherwise: str = "") -> str:
    """The options that a misspelt one may mean: like it as a whole, or in its last part."""
    last = {key.rpartition(".")[2]: key for key in reversed(known)}
    near = difflib.get_close_matches(wanted, known, n=2)
    near += [last[part] for part in difflib.get_close_matches(wanted.rpartition(".")[2], list(last), n=2)]
    if near:
        return f"; did you mean {' or '.join(dict.fromkeys(near))}?"
    return f"; {otherwise} {', '.join(known)}" if otherwise and known else ""


def _keys(cfg: DictConfig, before: str = "") -> Iterator[str]:
    for key in map(str, cfg):
        yield f"{before}{key}"
        if OmegaConf.is_dict(below := cfg._get_node(key)):
            yield from _keys(below, f"{before}{key}.")  # type: ignore[arg-type]
