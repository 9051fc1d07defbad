"""From a Hydra config to data, model and task. Sizes that the data decides are filled in here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn
from yaml import YAMLError

from vitcap import checkpoint
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.pictures import CaptionData
from vitcap.data.sentences import SentenceData
from vitcap.data.tokenizer import Tokenizer
from vitcap.evaluation.judging import caption_judge, sentence_judge
from vitcap.machine import release_freed_memory
from vitcap.memory import Halving
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.progress import bar
from vitcap.targets import check_targets
from vitcap.tasks.base import TrainingTask
from vitcap.translator import Translator
from vitcap.types import Batch, require_number

log = logging.getLogger(__name__)

Data = CaptionData | SentenceData
Door = Captioner | Translator | Classifier


@dataclass(frozen=True)
class Parts:
    """What a config builds. kind: one of vitcap.checkpoint.PARTS."""

    kind: str
    data: Data
    model: CaptionModel | ImageClassifier
    description: dict[str, Any]

    def door(self, search: Any = None) -> Door:
        """The model as its users have it."""
        d, data = self.description, self.data
        if isinstance(self.model, ImageClassifier):
            return Classifier(self.model, d["classes"], data.preprocess, description=d)  # type: ignore[arg-type]
        if isinstance(data, SentenceData):
            return Translator(self.model, data.source_tokenizer, data.tokenizer, search=search, description=d)
        return Captioner(self.model, data.tokenizer, data.preprocess, search=search, description=d)  # type: ignore[arg-type]


def build(cfg: DictConfig, *, resume: str | None = None) -> Parts:
    """Data and model of a config: a classifier without a decoder, otherwise a model that writes captions of pictures,
    or translations of sentences, as the data are.

    resume: the checkpoint that training goes on from, whose vocabulary then stands in for that of cfg.init.
    """
    check_targets(plain(cfg))
    classify = "decoder" not in cfg.model
    kind = "classify" if classify else "translate" if _is_text(cfg) else "caption"
    encoder_config = plain(cfg.model.encoder)
    text_encoder = encoder_config["_target_"].startswith("vitcap.models.text.")
    if text_encoder != (kind == "translate"):
        wants = "sentences: choose data=digits, translation or pairs" if text_encoder else "pictures: choose other data"
        raise ValueError(f"model.encoder={encoder_config['_target_'].rpartition('.')[2]} reads {wants}")
    data: Data = instantiate(cfg.data, **({"tokenizer": None} if classify else {}))
    start = None if cfg.init is None else _start(str(resume or cfg.init), kind, data)
    if kind == "caption" and not any(record.captions for record in data.records("train")):
        raise ValueError(f"data={data.source.name} has no captions: choose model=vit_classify, or other data")
    torch.manual_seed(cfg.seed)
    facts = {"data": data.source.name, "seed": cfg.seed, "precision": str(cfg.trainer.precision)}
    if text_encoder:
        encoder_config.pop("_partial_", None)
        encoder_config["vocab_size"] = data.spec.source_vocab_size
    elif encoder_config.get("trainable") == "none" and not (
        encoder_config["weights"] or encoder_config.get("pretrained")
    ):
        raise ValueError(
            "a frozen encoder with random weights learns nothing: set model.encoder.weights=FILE or "
            "model.encoder.pretrained=true, or train it with model.encoder.trainable=all"
        )
    encoder = _make("encoder", encoder_config)
    parts: dict[str, Any] = {"encoder": encoder_config}
    scale: dict[str, Any] = {}
    if isinstance(data, CaptionData):
        parts["preprocess"] = preprocess = data.fit_to(encoder.preprocess)
        scale = {"mean": preprocess.mean, "std": preprocess.std}
    model: CaptionModel | ImageClassifier
    if classify:
        classes = getattr(data.source, "classes", None)
        if classes is None:
            raise ValueError(f"data={data.source.name} has no classes: choose data=shapes or data=imagenet")
        if len(classes) < 2:
            raise ValueError(
                f"data={data.source.name}: {len(classes)} class ({', '.join(map(repr, classes))}), and a classifier "
                "tells at least 2 apart: add the folders of the others, or check the class index"
            )
        names = getattr(data.source, "class_names", classes)
        head = {**plain(cfg.model.head), "classes": len(classes)}
        head.pop("_partial_", None)
        model = instantiate(head, encoder=encoder, **scale)
        # Names for people need not differ (ImageNet has two kinds of crane); the classes of the data do.
        pairs = [list(pair) for pair in zip(classes, names, strict=True)]
        parts |= {"head": {**head, "head_weights": None}, "classes": pairs}
    else:
        decoder_config = plain(cfg.model.decoder)
        decoder_config.pop("_partial_", None)
        decoder_config |= {"vocab_size": data.spec.vocab_size, "memory_width": encoder.width}
        decoder = _make("decoder", decoder_config)
        _check_lengths(cfg, decoder)
        model = CaptionModel(encoder, decoder, **scale)
        parts |= {"decoder": decoder_config, "tokenizer": data.tokenizer, "decode": plain(cfg.decode)}
        if isinstance(data, SentenceData):
            parts["source_tokenizer"] = data.source_tokenizer
    if start is not None:
        _load(model, start, parts)
        facts["init"] = str(cfg.init)
    return Parts(kind, data, model, checkpoint.describe(kind=kind, facts=facts, **parts))


def data_of_run(folder: str | Path, *, root: str | None = None) -> Data:
    """The data that a run was trained on, as its config.yaml has them. root: their folder, where it is another now.

    Raises ValueError or OSError, in one line, where they cannot be opened, or the config names what is not vitcap's.
    """
    file = Path(folder) / "config.yaml"
    try:
        config: Any = OmegaConf.load(file)
        wanted = plain(config)["data"]
        model = plain(config)["model"]
    except (YAMLError, OmegaConfBaseException, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: no config of a run ({' '.join(str(error).split())[:200]})") from None
    check_targets({"data": wanted})
    more = ({"root": root} if root is not None else {}) | ({"tokenizer": None} if "decoder" not in model else {})
    try:
        return instantiate(wanted | more)
    except InstantiationException as error:
        raise ValueError(f"{file}: {_cause(error)}") from error


def _cause(error: BaseException) -> BaseException:
    """What went wrong in a part that Hydra was to build."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _make(part: str, config: dict[str, Any]) -> Any:
    """The encoder or decoder of a config. What is wrong with an option of it says of which part."""
    try:
        return instantiate(config)
    except InstantiationException as error:
        cause = _cause(error)
        if isinstance(cause, OSError) or f"model.{part}" in str(cause):
            raise
        raise ValueError(f"model.{part}: {cause}") from error


def _start(path: str, kind: str, data: Any) -> checkpoint.Saved:
    """The model that training starts from; its vocabularies become the data's."""
    saved = checkpoint.read(path)
    if saved.kind != kind:
        raise ValueError(f"init={path}: a model made to {saved.kind}, but this one is to {kind}")
    for name in ("tokenizer", "source_tokenizer"):
        if name in saved.description:
            setattr(data, name, Tokenizer.from_json(saved.description[name]))
            _check_words(path, getattr(data, name), data, "source" if name == "source_tokenizer" else "target")
    return saved


def _check_words(path: str, tokenizer: Tokenizer, data: Any, side: str) -> None:
    """Whether a vocabulary that is taken over knows the words of the training texts."""
    records = data.records("train")
    records = records[:: max(len(records) // 2000, 1)]
    if isinstance(data, CaptionData):
        texts = [caption for record in records for caption in record.captions]
    else:
        texts = [text for r in records for text in ((r.source,) if side == "source" else r.targets)]
    unknown = tokenizer.unknown_share(texts)
    told = f"its vocabulary lacks {100 * unknown:.0f} % of the words of data={data.source.name}"
    if unknown > 0.5:
        raise ValueError(f"init={path}: {told}: name the data that it is for, or train anew without init")
    if unknown > 0.1:
        log.warning("init=%s: %s, which can never be said or read", path, told)


def _load(model: nn.Module, saved: checkpoint.Saved, parts: dict[str, Any]) -> None:
    """Weights of another model of the same build. Raises ValueError that names the first option or entry that differs:
    some options, such as the kind of positions, change a model without changing a shape."""
    if other := checkpoint.difference(saved.description, parts):
        option, theirs, ours = other
        raise ValueError(
            f"init={saved.path}: there {option} is {theirs}, here {ours}: give the same model options "
            f"(model.{option}={theirs})"
        )
    try:
        checkpoint.load_weights(model, saved)
    except checkpoint.CheckpointError as error:
        raise ValueError(f"init={saved.path}: {error}; give the model options that it was trained with") from None


def _is_text(cfg: DictConfig) -> bool:
    return str(cfg.data._target_).endswith(f".{SentenceData.__name__}")


def _check_lengths(cfg: DictConfig, decoder: nn.Module) -> None:
    """Now, and not at the first long caption or after the first epoch."""
    for name in ("decode", "validation_decode"):
        require_number(f"{name}.max_length", cfg[name].max_length, 1, whole=True)
    limit: Any = getattr(decoder, "max_length", None)
    asked = {"data": cfg.data.max_length - 1} | {k: cfg[k].max_length for k in ("decode", "validation_decode")}
    for option, length in asked.items():
        if limit is not None and length > limit:
            raise ValueError(
                f"model.decoder.max_length={limit} is too short for {option}.max_length={cfg[option].max_length}: "
                "raise the first or lower the second"
            )
    encoder = cfg.model.encoder
    if _is_text(cfg) and encoder.get("position") == "learned" and encoder.max_length < cfg.data.max_length:
        raise ValueError(
            f"model.encoder.max_length={encoder.max_length} is too short for data.max_length={cfg.data.max_length}: "
            "raise the first or lower the second"
        )


def build_task(cfg: DictConfig, parts: Parts) -> tuple[TrainingTask, str, str]:
    """The training task, the score that chooses the best checkpoint, and "max" or "min"."""
    data, classify = parts.data, parts.kind == "classify"
    live: dict[str, Any] = {}
    if not classify:
        judge = sentence_judge(data, "val") if isinstance(data, SentenceData) else caption_judge(data, "val")
        live = {"search": instantiate(cfg.validation_decode), "decode": data.tokenizer.decode, "judge": judge}  # type: ignore[union-attr]
        if str(cfg.task._target_).endswith(".SelfCriticalTask"):
            if cfg.init is None and not cfg.resume:
                raise ValueError("task=self_critical starts from a model that cross-entropy has trained: give init=RUN")
            live["references"] = data.references("train")
    try:
        task = instantiate(cfg.task)(parts.model, **live)
    except TypeError as error:
        fits = "classification" if classify else "captioning"
        raise ValueError(f"task: {error}; a model made to {parts.kind} wants task={fits}") from error
    if classify:
        return task, "val/top1", "max"
    if isinstance(data, SentenceData):
        targets = [data.tokenizer.clean(text) for texts in data.references("val").values() for text in texts]
        # Without four words in a row BLEU-4 is made of its tiny constants alone.
        four = any(len(target.split()) > 3 for target in targets)
        return (task, "val/BLEU-4", "max") if four else (task, "val/loss", "min")
    # With one image CIDEr-D is not defined: every document frequency is 1.
    return (task, "val/CIDEr-D", "max") if len(data.records("val")) > 1 else (task, "val/loss", "min")


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A config node as plain Python types, interpolations resolved."""
    return {str(key): value for key, value in OmegaConf.to_container(cfg, resolve=True).items()}  # type: ignore[union-attr]


def prepare_cache(parts: Parts, splits: tuple[str, ...]) -> None:
    """Compute, or find on disk, the features of the encoder's frozen part."""
    encoder: Any = parts.model.encoder
    assert isinstance(parts.data, CaptionData)
    if not encoder.cacheable:
        raise ValueError(
            "data.cache needs an encoder with a frozen part: set model.encoder.trainable=none or a number of blocks, "
            "or train from the pictures with data.cache=null"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts.model.to(device).eval()

    fitting = Halving("computing features")

    def work(batch: Batch) -> torch.Tensor:
        assert batch.images is not None
        with torch.inference_mode():
            return encoder.trunk(parts.model.normalise(batch.images.to(device))).float().cpu()

    def extract(images: torch.Tensor) -> torch.Tensor:
        return torch.cat(fitting(work, Batch(tuple(range(len(images))), images=images)))

    parts.data.cache_features(
        splits, fingerprint=encoder.fingerprint(), extract=extract, progress=bar("features of the frozen encoder")
    )
    parts.model.cpu()
    release_freed_memory()
