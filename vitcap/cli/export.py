"""`vitcap export`: a model for other programs, as ONNX files, smaller safetensors, or a folder for a model hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vitcap import pretrained
from vitcap.cli.options import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap export`."""
    what = f"model.safetensors, .ckpt, run folder, or name of a packaged model (default: {pretrained.DEFAULT})"
    parser.add_argument("model", nargs="?", default=pretrained.DEFAULT, metavar="MODEL", help=what)
    forms = "onnx: a folder for onnxruntime, without torch; safetensors: a model file; hub: a folder for a model hub"
    parser.add_argument("--to", required=True, choices=("onnx", "safetensors", "hub"), help=forms)
    parser.add_argument("--out", required=True, metavar="PATH", help="new folder, or with --to safetensors new file")
    weights = "how weights are stored: 4, 2 or about 1 byte each (default: %(default)s); computing stays in fp32"
    parser.add_argument("--weights", choices=("fp32", "fp16", "int8"), default="fp32", help=weights)
    parser.add_argument(
        "--push", metavar="USER/NAME", help="with --to hub: also upload to this Hugging Face repository"
    )
    parser.add_argument("--private", action="store_true", help="with --push: a new repository is private")


def run(arguments: argparse.Namespace) -> int:
    """Write a model for other programs.

    Prints the files that were written, with their sizes; nothing that is there already is replaced.
    """
    if arguments.push is not None and arguments.to != "hub":
        raise UsageError("--push uploads the layout of a model hub: add --to hub")
    if arguments.private and arguments.push is None:
        raise UsageError("--private is for an upload: add --push USER/NAME")
    import vitcap
    from vitcap import checkpoint
    from vitcap.export.folders import require_new

    out = Path(arguments.out)
    if arguments.to == "safetensors" and out.is_dir():
        raise UsageError(f"--out {out}: a folder; name a file, such as {out / checkpoint.MODEL_FILE}")
    require_new(out)  # before a large model is loaded
    model = vitcap.load(arguments.model)
    if arguments.to == "onnx":
        _onnx(model, out, arguments.weights)
    elif arguments.to == "safetensors":
        model.save(out, storage=arguments.weights)
        _tell([out])
    else:
        from vitcap.export.hub import push_to_hub, to_hub

        known = arguments.model in pretrained.names() and not Path(arguments.model).exists()
        card = pretrained.card(arguments.model) if known else None
        to_hub(model, out, weights=arguments.weights, name=arguments.push, card=card)
        _tell(sorted(out.iterdir()))
        if arguments.push is not None:
            print(push_to_hub(out, arguments.push, private=arguments.private))
    return 0


def _onnx(model: Any, out: Path, weights: str) -> None:
    from vitcap.decoding import Sample
    from vitcap.export.bundle import to_onnx

    config = to_onnx(model, out, weights=weights)
    _tell(sorted(out.iterdir()))
    print(f"largest difference of a logit from the model: {config['difference']:.2g}")
    if isinstance(getattr(model, "search", None), Sample):
        print("the model draws captions at random; the ONNX files come with greedy and beam search")
    print(f"try it: python {out / 'caption.py'} photo.jpg")


def _tell(paths: list[Path]) -> None:
    for path in paths:
        print(f"{path}\t{path.stat().st_size / 1e6:.2f} MB")
