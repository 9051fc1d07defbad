"""Encoders from timm: any ViT or CNN by name, as memory with a grid.

The only module that imports timm. Letters: B images, N tokens, D width, H heads.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config
from timm.models.vision_transformer import VisionTransformer as TimmVit
from torch import Tensor, nn

from vitcap.models.attention_maps import explicit_attention
from vitcap.models.receptive_field import Box, grid_box
from vitcap.models.weights import (
    Size,
    Trainable,
    adapt_vit,
    check_size,
    convert_efficientnet_lite,
    fingerprint,
    grid_of,
    keep_frozen_in_eval,
    load_strictly,
    log,
    read_weights,
    size_pair,
    trained_blocks,
)
from vitcap.types import Memory

MODES = {"center": "crop", "squash": "squash", "border": "letterbox"}
"""timm's crop modes in the words of `Preprocess`."""


def load_file(model: Any, path: str | Path, weights_size: Size | None = None) -> None:
    """Load a weights file into a timm model through its family's own conversions; with a classifier if it has one."""
    state = read_weights(path)
    if "_conv_stem.weight" in state:
        return load_strictly(model, convert_efficientnet_lite(state, model), path)
    if isinstance(model, TimmVit):
        known = None if weights_size is None else grid_of(weights_size, model.patch_embed.patch_size, "weights_size")
        prefix = 0 if model.no_embed_class else model.num_prefix_tokens
        state = adapt_vit(state, model, grid=model.patch_embed.grid_size, prefix=prefix, known=known, source=path)
        return load_strictly(model, state, path)
    names = model.pretrained_cfg.get("classifier") or ()
    heads = tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))
    own = model.state_dict()
    dropped = [name for name in state if name.startswith(heads) and name not in own] if heads else []
    log.info("%s: left out %s", path, ", ".join(sorted(dropped)) or "nothing")
    state = {name: tensor for name, tensor in state.items() if name not in dropped}
    before = {name: tensor.shape for name, tensor in state.items()}
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    state = adapt(state, model) if adapt else state
    for name, tensor in state.items():
        if tensor.shape != before.get(name, tensor.shape):
            log.info("%s: %s resampled, %s -> %s", path, name, tuple(before[name]), tuple(tensor.shape))
    load_strictly(model, state, path)


def create_backbone(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
    image_size: Size | None = None,
    weights_size: Size | None = None,
    drop_path: float = 0.0,
    classes: int | None = 0,
) -> Any:
    """A timm model, without classifier unless classes (None: as many as timm's configuration has).

    Raises ValueError or FileNotFoundError with a remedy; see TimmEncoder.
    """
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() has the names"
        raise ValueError(f"timm has no model {name!r}; {hint}")
    if pretrained and weights is not None:
        raise ValueError(f"pretrained=true and weights={weights} are two sources of weights: give one")
    options: dict[str, Any] = {"drop_path_rate": drop_path} if drop_path else {}
    options |= {"num_classes": classes} if classes is not None else {}
    try:
        config = timm.get_pretrained_cfg(name)
        if image_size is not None and config is not None and config.fixed_input_size:
            options["img_size"] = size_pair(image_size)
        model = timm.create_model(name, pretrained=pretrained, **options)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if not pretrained:
            raise ValueError(f"timm cannot build {name} with {options or 'its defaults'}: {reason}") from error
        raise FileNotFoundError(
            f"no pretrained weights for {name}: {reason}. Without a connection, give a weights file by weights=FILE, "
            "or pretrained=false for random weights"
        ) from error
    if classes == 0 and not hasattr(model, "forward_intermediates"):
        raise ValueError(f"timm's {name} does not give intermediate features, so it cannot serve as an encoder")
    if weights is not None:
        load_file(model, weights, weights_size)
    return model


def preprocessing(model: Any, *, test_size: bool = False) -> dict[str, Any]:
    """How a timm model wants pictures: arguments of `Preprocess`. test_size: as timm's table of results has them."""
    config = resolve_model_data_config(model, use_test_size=test_size)
    kept = {key: config[key] for key in ("crop_pct", "interpolation", "mean", "std")}
    return {"size": tuple(config["input_size"][1:]), "mode": MODES[config["crop_mode"]], **kept}


def class_list(model: Any) -> tuple[tuple[str, str], ...] | None:
    """(synset id, first name) of an ImageNet model's outputs, in order. None if their number is that of no ImageNet."""
    if (subset := infer_imagenet_subset(model)) is None:
        return None
    info = ImageNetInfo(subset)
    return tuple((i, info.label_name_to_description(i).partition(",")[0]) for i in info.label_names())


class TimmEncoder(nn.Module):
    """Any timm image model as an encoder.

    name: timm's name, e.g. "vit_small_patch14_dinov2", "resnet50". pretrained: download timm's weights.
    weights: instead, a safetensors or torch file, or "package:NAME" for the one in an installed package; position
        tables are resampled. weights_size: picture size the file was trained at, needed only if not square.
    image_size: pixels, int or (height, width); None is the size of timm's configuration.
    trainable: "none" (frozen), "all", or the number of last blocks (ViT) or stages (other models) that train. Frozen
        parts stay in eval mode, so their batch statistics never move.
    layer: index of the block or stage whose output is used; "final" is the output of all layers, which for some CNNs
        has one more convolution than the last stage. drop_path: rate of stochastic depth.

    For a ViT the trunk ends before the first trained block; other models are all trunk, cacheable when fully frozen.
    """

    def __init__(
        self,
        name: str,
        *,
        pretrained: bool = False,
        weights: str | Path | None = None,
        image_size: Size | None = None,
        weights_size: Size | None = None,
        trainable: Trainable = "none",
        layer: int | str = -1,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        source: dict[str, Any] = {"pretrained": pretrained, "weights": weights, "weights_size": weights_size}
        self.model = model = create_backbone(name, image_size=image_size, drop_path=drop_path, **source)
        self.preprocess = preprocessing(model) | ({} if image_size is None else {"size": size_pair(image_size)})
        size = self.preprocess["size"]
        stages = len(model.feature_info)
        if layer != "final" and not (isinstance(layer, int) and -stages <= layer < stages):
            raise ValueError(f'layer={layer!r}: {name} has layers 0 to {stages - 1}, and "final"')
        self.index = stages - 1 if layer == "final" else int(layer) % stages
        self.final = layer == "final"
        self.vit = isinstance(model, TimmVit)
        self.token = getattr(model, "global_pool", None) == "token"  # of some families it never joins the patches
        # Some families count a class token that never joins the patches; those do not offer to return it.
        returned = "return_prefix_tokens" in inspect.signature(model.forward_intermediates).parameters
        self.prefix = int(getattr(model, "num_prefix_tokens", 0)) if self.vit or returned else 0
        if self.vit or self.prefix:
            model.blocks = model.blocks[: self.index + 1]
        elif not self.final:
            model.prune_intermediate_layers([self.index], prune_head=True)
        self.width = self.pooled_width = int(model.feature_info[self.index]["num_chs"])

        count = trained_blocks(trainable, self.index + 1, "blocks" if self.vit else "stages")
        self.cacheable = count == 0 or (self.vit and count is not None)
        self.split = self.index + 1 - count if self.vit and count is not None else 0
        self._freeze(count)
        if self.vit:
            grid_of(size, model.patch_embed.patch_size)
            self.grid: tuple[int, int] = tuple(model.patch_embed.grid_size)
        else:  # only a run tells what padding and strides leave of a picture
            self.grid = (0, 0)
            self.eval()
            try:
                with torch.no_grad():
                    features = self._whole(torch.zeros(1, 3, *size))
                    self.width, pooled = features.shape[-1], self._pool(features)
                    self.pooled_width = self.width if pooled is None else pooled.shape[-1]
            except Exception as error:
                at = f"layer={layer!r} for pictures of {size[0]}x{size[1]}"
                raise ValueError(f"timm's {name} gives no grid at {at}: {error}") from error
        self.train()
        self.configuration = (name.partition(".")[0], size, self.index, self.final, self.split)

    def _freeze(self, count: int | None) -> None:
        """Only the last `count` blocks or stages, and what follows them, keep their gradients; None: everything."""
        if not self.vit and isinstance(head := getattr(self.model, "head", None), nn.Module):
            head.requires_grad_(False)  # norms of a classifier that is never called
        if count is None:
            return
        model, first = self.model, self.index + 1 - count
        start = f"blocks.{first}" if self.vit else model.feature_info[first]["module"] if count else ""
        trains = False
        for name, parameter in model.named_parameters():
            trains = trains or (count > 0 and name.startswith(f"{start}."))
            parameter.requires_grad_(trains and parameter.requires_grad)

    def train(self, mode: bool = True) -> TimmEncoder:
        """Training mode for the trainable part only."""
        super().train(mode)
        keep_frozen_in_eval(self.model)
        if self.vit and self.cacheable:  # dropout in the trunk has no parameters to show that it is frozen
            self.model.pos_drop.eval()
            self.model.patch_drop.eval()
        return self

    def _whole(self, images: Tensor) -> Tensor:
        """All of a model that is no plain ViT: (B, 3, height, width) -> (B, N, D); learns the grid on the way."""
        model, prefix = self.model, None
        if self.final and not self.prefix:
            grid = model.forward_features(images)
            grid = grid.permute(0, 3, 1, 2) if getattr(model, "output_fmt", "NCHW") == "NHWC" else grid
            if grid.ndim != 4:
                raise ValueError("the final output is a row of tokens; layer=-1 may have the grid")
        else:
            last = self.prefix > 0 or self.index == len(model.feature_info) - 1
            options = {"norm": last, "stop_early": True, "output_fmt": "NCHW", "intermediates_only": True}
            options |= {"return_prefix_tokens": True} if self.prefix else {}
            (grid,) = model.forward_intermediates(images, [self.index], **options)
            grid, prefix = grid if self.prefix else (grid, None)
        self.grid = (grid.shape[2], grid.shape[3])
        return grid.flatten(2).mT if prefix is None else torch.cat((prefix, grid.flatten(2).mT), dim=1)

    @property
    def grid_box(self) -> Box:
        """See vitcap.types.Encoder."""
        run = self.model.patch_embed if self.vit else self._whole
        return grid_box(self.model, run, self.preprocess["size"], self.grid)

    def trunk(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised -> (B, N, D)."""
        check_size(images, self.preprocess["size"])
        if not self.vit:
            return self._whole(images)
        x = self.model.patch_drop(self.model._pos_embed(self.model.patch_embed(images)))
        return self.model.blocks[: self.split](self.model.norm_pre(x))

    def head(self, features: Tensor, need_attention: bool = False) -> Memory:
        """(B, N, D) -> memory. Attention maps exist here only if no block is in the trunk: ask `forward` otherwise."""
        if not need_attention:
            return self._memory(features)
        if self.split or not self.vit:
            raise ValueError("features of the trunk carry no attention maps: call the encoder on images to have them")
        with explicit_attention(self.model) as maps:
            memory = self._memory(features)
        return replace(memory, attentions=tuple(maps))

    def _memory(self, features: Tensor) -> Memory:
        model = self.model
        features = features.to(next(model.parameters()).dtype)
        if self.vit:
            x = model.norm(model.blocks[self.split :](features))
            pooled = model.forward_head(x, pre_logits=True)
            # Models that average put their norm after the pooling; a decoder wants normalised tokens all the same.
            tokens = model.fc_norm(x)
        else:
            fc_norm = getattr(model, "fc_norm", None)
            tokens = fc_norm(features) if self.prefix and isinstance(fc_norm, nn.Module) else features
            pooled = self._pool(features)
        memory = Memory(tokens, grid=self.grid, pooled=pooled)
        assert memory.prefix == self.prefix, f"{tokens.shape[1]} tokens for a grid of {self.grid}"
        return memory

    def _pool(self, features: Tensor) -> Tensor | None:
        """What the model's own classifier would read; the mean over the places if the encoder ends before it."""
        if self.prefix and self.index == len(self.model.feature_info) - 1:
            return self.model.forward_head(features, pre_logits=True)
        if self.final:
            last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
            grid = features.unflatten(1, self.grid) if last else features.mT.unflatten(2, self.grid)
            return self.model.forward_head(grid, pre_logits=True)
        return features[:, self.prefix :].mean(1) if self.prefix or not self.token else None

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        """(B, 3, height, width) normalised -> memory, with (B, H, N, N) attention of every block when asked."""
        if not need_attention:
            return self.head(self.trunk(images))
        with explicit_attention(self.model) as maps:
            memory = self._memory(self.trunk(images))
        if any(weights.shape[-2:] != (memory.tokens.shape[1],) * 2 for weights in maps):
            raise ValueError(f"{type(self.model).__name__} does not attend over all tokens, so it has no maps to give")
        return replace(memory, attentions=tuple(maps))

    def fingerprint(self) -> str:
        """Hash of what decides the trunk's output; the key of cached features."""
        trained = [f"blocks.{i}." for i in range(self.split, self.index + 1)]
        after = (*trained, "norm.", "fc_norm.", "attn_pool.")
        state = self.model.state_dict().items()
        trunk = [(k, v) for k, v in state if not self.vit or not k.startswith(after)]
        return fingerprint(trunk, self.configuration)
