"""A config of somebody else runs no code: what it names is refused before anything is built, in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from vitcap.build import build
from vitcap.command import evaluate
from vitcap.overrides import check_options
from vitcap.run import train
from vitcap.targets import check_targets

ROOT = Path(__file__).resolve().parents[1]
REFUSED = "refused, a config may only build classes of vitcap.models, vitcap.decoding, vitcap.data, vitcap.tasks"


@pytest.mark.parametrize(
    "target",
    [
        *("os.system", "builtins.eval", "subprocess.Popen", "torch.hub.load", "hydra.utils.get_method"),
        *("hydra.utils.instantiate", "functools.partial", "system", "", ".os.system", "vitcap", "vitcapx.models.vit.A"),
        *("vitcap.run.os.system", "vitcap.files.shutil.rmtree", "vitcap.run.train", "vitcap.checkpoint.read"),
        *("vitcap.data.loader.os.system", "vitcap.data.inspection.subprocess.Popen", "vitcap.cli.main"),
        # what modules of vitcap import, and their functions
        *(
            "vitcap.models.vit.nn.Linear",
            "vitcap.data.images.Path",
            "vitcap.data.module.L",
            "vitcap.models.weights.log",
        ),
        *("vitcap.models.weights.load_file", "vitcap.data.images.load_image", "vitcap.models.vit.VisionTransformer.to"),
        *(
            "${oc.env:HOME}",
            "vitcap.models.vit.${x}",
            "vitcap.models.vit;os",
            "vitcap/models/vit",
            3,
            None,
            ["os.system"],
        ),
        *({"_target_": "os.system"}, "vitcap.models.nothing.Here", "vitcap.models.vit.Nothing"),
    ],
)
def test_only_classes_of_vitcap_are_built(target: Any) -> None:
    with pytest.raises(ValueError, match=r"^model\.encoder\._target_=.*(refused, a config may|has no such class)"):
        check_targets({"model": {"encoder": {"_target_": target, "command": "true"}}})


def test_targets_are_found_wherever_they_stand() -> None:
    bad = {"_target_": "os.system"}
    own = {"_target_": "vitcap.data.transforms.Augment", "_partial_": True}
    check_targets({"data": {"augment": own, "more": [own, {"in": [own]}]}})
    for key, config in {
        "data.augment.scale.1._target_": {"data": {"augment": own | {"scale": [0.5, bad]}}},
        "data._args_.0._target_": {"data": own | {"_args_": [bad]}},
        "trainer.plugins.0.0.x._target_": {"trainer": {"plugins": [[{"x": bad}]]}},
        "_target_": bad,
        "a._target_": {"a": own | bad},
    }.items():
        with pytest.raises(ValueError, match=f"^{key.replace('.', '[.]')}=os.system: {REFUSED}$"):
            check_targets(config)


def test_every_choice_of_the_configs_may_be_built(config: Callable[..., Any]) -> None:
    experiments = [f"experiment={p.stem}" for p in (ROOT / "conf" / "experiment").glob("*.yaml")]
    for override in ["seed=1", *experiments]:
        container = OmegaConf.to_container(config(override, "data.root=F", "init=x"), resolve=True)
        check_targets(container)  # type: ignore[arg-type]


CALL = {"_target_": "os.system", "command": "touch MARK"}
CREATE = '${oc.create:"{_target_: os.system, command: touch MARK}"}'
ATTACKS = {
    "encoder": ("model.encoder", CALL, r"model\.encoder\._target_=os\.system"),
    "decode": ("decode", CALL, r"decode\._target_=os\.system"),
    "nested": ("data.source.more", [CALL], r"data\.source\.more\.0\._target_=os\.system"),
    "interpolation": ("decode.x", CREATE, r"decode\.x\._target_=os\.system"),
    "once more": ("model.encoder.position", "\\" + CREATE, r"model\.encoder\.position=.*a second time"),
    "trainer": ("trainer.logger", CALL, r"trainer\.logger\._target_=os\.system"),
    "imported": ("task._target_", "vitcap.tasks.base.L.Trainer", r"task\._target_=vitcap\.tasks\.base\.L\.Trainer"),
    "task": ("task", {"_partial_": False, **CALL}, r"task\._target_=os\.system"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_configs_are_refused_before_anything_is_built(name: str, config: Callable[..., Any], tmp_path: Path) -> None:
    key, value, message = ATTACKS[name]
    value = json.loads(json.dumps(value).replace("MARK", str(tmp_path / "mark")))
    cfg = config(f"out={tmp_path / 'out'}")
    OmegaConf.update(cfg, key, value, merge=False, force_add=True)
    for action in (build, train):
        with pytest.raises(ValueError, match=message):
            action(cfg)
    assert not (tmp_path / "mark").exists()


def test_what_is_refused_would_be_built_by_hydra(tmp_path: Path) -> None:
    """Or the test above would show nothing: also of the text that becomes an interpolation when it is read again."""
    text = CREATE.replace("MARK", str(tmp_path / "mark"))
    first = OmegaConf.to_container(OmegaConf.create({"x": "\\" + text}), resolve=True)
    assert first == {"x": text}
    assert OmegaConf.to_container(OmegaConf.create(first), resolve=True)["x"]["_target_"] == "os.system"  # type: ignore[call-overload, index]


def test_evaluation_refuses_them_too(config: Callable[..., Any], tmp_path: Path) -> None:
    source = f"++data.source={{_target_: os.system, command: 'touch {tmp_path / 'mark'}'}}"
    cfg = config(source, "checkpoint=none", f"out={tmp_path}", name="evaluate")
    with pytest.raises(ValueError, match=r"data\.source\._target_=os\.system: refused"):
        evaluate(cfg)
    assert not (tmp_path / "mark").exists()


EVIL = """# @package _global_
hydra:
  callbacks:
    x:
      _target_: os.mkdir
      path: MARK
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder of configs with an experiment that has Hydra itself run code."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "evil.yaml").write_text(EVIL.replace("MARK", str(tmp_path / "mark")))
    return tmp_path


def test_the_attack_on_hydra_would_work(foreign: Path) -> None:
    """Or the next test would show nothing."""
    (foreign / "app.py").write_text(
        "import hydra\n@hydra.main(version_base='1.3', config_path='.', config_name='c')\ndef m(cfg): pass\nm()\n"
    )
    (foreign / "c.yaml").write_text("defaults:\n  - experiment: evil\n")
    subprocess.run([sys.executable, foreign / "app.py"], cwd=foreign, check=False, capture_output=True)
    assert (foreign / "mark").is_dir()


@pytest.mark.parametrize(
    "flags",
    [
        ["experiment=evil", "--config-dir", "FOREIGN"],
        ["--config-dir=FOREIGN", "experiment=evil", "--run"],
        ["experiment=evil", "hydra.searchpath=[FOREIGN]"],
        ["-m", "data.root=x", "experiment=photos,evil", "-cd", "FOREIGN"],
        ["hydra.launcher._target_=os.system"],
        ["+hydra.callbacks.x={_target_: os.system}"],
        ["hydra.callbacks=${model}"],
        ["hydra.job_logging.handlers.console.class=subprocess.Popen"],
        ["hydra.job_logging.handlers.console.stream='ext://antigravity.x'"],
        ["hydra.job_logging.formatters.simple=${decode}"],
    ],
)
def test_hydra_calls_nothing_that_a_config_names(flags: list[str], foreign: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        check_options(ROOT / "conf", "config", [flag.replace("FOREIGN", str(foreign)) for flag in flags])
    told = capsys.readouterr().err
    assert caught.value.code == 1
    assert told.startswith("vitcap: error: hydra.")
    assert told.endswith(": refused, a config may not have Hydra call what it names\n")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["+hydra.job.env_set.LD_PRELOAD=x.so"], "hydra.job.env_set.LD_PRELOAD: refused"),
        (["hydra.job.env_set=${data}"], "hydra.job.env_set"),
        (["--experimental-rerun", "x.pickle"], "opens a Python pickle"),
        (["hydra.searchpath=[x]", "--config-dir", "y"], "give one of them"),
        (["-m", "experiment=glob(*)"], "name the choices"),
    ],
)
def test_other_ways_to_code(flags: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        check_options(ROOT / "conf", "config", flags)
    assert message in capsys.readouterr().err


def test_the_script_stops_before_hydra_starts(foreign: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), "+experiment=evil", "--config-dir", str(foreign)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=foreign, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("vitcap: error: hydra.callbacks.x._target_=os.mkdir: refused")
    assert not (foreign / "mark").exists()


def test_a_folder_of_configs_is_named_from_the_script_as_hydra_has_it(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / "train.py")])
    monkeypatch.chdir(tmp_path)
    check_options(ROOT / "conf", "config", ["-cp", "../conf", "seed=1"])
    with pytest.raises(SystemExit):
        check_options(ROOT / "conf", "config", ["--config-path", "../conf", "+hydra.callbacks.x={_target_: os.system}"])
    assert "hydra.callbacks.x._target_=os.system: refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["hydra/job_logging=default"],
        ["hydra/hydra_logging=hydra_debug"],
        ["-m", "seed=1,2", "model/encoder=vit,cnn"],
        ["-m", "seed=range(1,4)", "hydra.sweep.dir=${out}"],
        ["-m", "seed=1,2", "out=runs/a${seed}"],
        ["hydra.run.dir=${out}", "hydra.verbose=true"],
        ["--cfg", "job"],
    ],
)
def test_what_hydra_has_of_its_own_stays_usable(flags: list[str]) -> None:
    check_options(ROOT / "conf", "config", flags)
