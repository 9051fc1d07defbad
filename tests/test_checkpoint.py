"""Model files: what is written is what comes back, nothing in a file can run, and the captioner that opens them."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

import vitcap
from vitcap import checkpoint
from vitcap.captioner import Captioner
from vitcap.checkpoint import CheckpointError, Saved
from vitcap.data.images import ImageError
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy, Sample
from vitcap.models.captioner import CaptionModel
from vitcap.types import BOS, EOS, Batch

CAPTIONS = ["a red square left of a blue circle", "two green stars on a grey ground", "nothing at all"]
TOKENIZER = Tokenizer.train(CAPTIONS, min_count=1)
PREPROCESS = Preprocess(size=(16, 24), mode="crop", mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
GRID, PREFIX = (2, 3), 2
ENCODER = {
    "_target_": "vitcap.models.vit.VisionTransformer",
    "image_size": [16, 24],
    "patch_size": 8,
    "width": 16,
    "depth": 1,
    "heads": 2,
    "registers": 1,
}
SIZES = {"vocab_size": TOKENIZER.vocab_size, "memory_width": 16, "width": 16}
DECODERS: dict[str, dict[str, Any]] = {
    "tied": {"_target_": "vitcap.models.transformer_decoder.TransformerDecoder", **SIZES, "depth": 2, "heads": 2},
    "rnn": {"_target_": "vitcap.models.rnn_decoder.RnnDecoder", **SIZES, "embed_width": 8, "attention_width": 8},
}
DECODERS["separate"] = {**DECODERS["tied"], "tie": False, "norm": "post", "position": "sinusoidal"}


def model(decoder: str = "tied", seed: int = 0) -> CaptionModel:
    """Untrained, with weights so large that pictures and positions matter to the words."""
    torch.manual_seed(seed)
    parts = checkpoint.build(ENCODER), checkpoint.build(DECODERS[decoder])
    made = CaptionModel(*parts, mean=PREPROCESS.mean, std=PREPROCESS.std)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.5)
    return made.eval()


def description(decoder: str = "tied", /, **changes: Any) -> dict[str, Any]:
    made = checkpoint.describe(
        encoder=ENCODER,
        decoder=DECODERS[decoder],
        tokenizer=TOKENIZER,
        preprocess=PREPROCESS,
        decode={"_target_": "vitcap.decoding.Beam", "beams": 4, "max_length": 9, "no_repeat_ngram": 2},
        facts={"seed": 3},
    )
    return {**made, **changes}


def pictures(count: int, seed: int = 0) -> list[Image.Image]:
    """Six patches of one colour each, so that no two pictures look alike to the model."""
    pixels = np.random.default_rng(seed).choice(np.array([0, 255], dtype=np.uint8), (count, 2, 3, 3))
    return [Image.fromarray(p).resize((31, 20), Image.Resampling.NEAREST) for p in pixels]


def batch() -> Batch:
    images = torch.stack([PREPROCESS(p) for p in pictures(2)])
    captions = torch.tensor([[[BOS, *TOKENIZER.encode("a red square"), EOS]]]).expand(2, 1, -1)
    return Batch(ids=(0, 1), images=images, captions=captions)


@torch.no_grad()
def same(first: CaptionModel, second: CaptionModel) -> None:
    own, other = first.state_dict(), second.state_dict()
    assert own.keys() == other.keys()
    for name, tensor in own.items():
        assert torch.equal(tensor, other[name]), name
    assert torch.equal(first(batch()).logits, second(batch()).logits)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.write(tmp_path / "model.safetensors", model(), description())


@pytest.mark.parametrize("decoder", DECODERS)
def test_written_and_rebuilt(decoder: str, tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path / "a" / "model.safetensors", model(decoder), description(decoder))
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]  # no temporary file stays
    read = checkpoint.read(path)
    assert read.description == json.loads(json.dumps(description(decoder)))
    rebuilt = checkpoint.rebuild(read)
    same(rebuilt, model(decoder))
    assert not rebuilt.training
    assert checkpoint.read(path.parent).description == read.description  # the folder of a run names its model


def test_shared_weights_are_stored_once_and_stay_shared(saved: Path) -> None:
    with safe_open(saved, framework="pt") as f:
        names = set(f.keys())
    assert "decoder.embed.weight" in names
    assert "decoder.out.weight" not in names
    assert sum(name.endswith("position.table") for name in names) == 1  # every block holds the decoder's positions
    rebuilt = checkpoint.rebuild(checkpoint.read(saved))
    assert rebuilt.decoder.out.weight is rebuilt.decoder.embed.weight
    assert saved.stat().st_size < 4 * sum(p.numel() for p in rebuilt.parameters()) + 20_000


def test_an_interrupted_save_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*args: Any, **options: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match=r"no space left.*model\.safetensors"):
        checkpoint.write(saved, model(seed=1), description())
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


PREFIXES: dict[str, Callable[[str], str]] = {
    "none": lambda name: name,
    "training task": lambda name: f"model.{name}",
    "data parallel": lambda name: f"module.{name}",
    "data parallel around the task": lambda name: f"module.model.{name}",
    "data parallel inside the task": lambda name: f"model.module.{name}",
    "compiled": lambda name: f"_orig_mod.{name}",
    "compiled inside the task": lambda name: f"model._orig_mod.{name}",
    "compiled encoder": lambda name: f"model.{name.replace('encoder.', 'encoder._orig_mod.')}",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_checkpoints_of_the_trainer(name: str, tmp_path: Path) -> None:
    """Whatever wrapped the model when it was saved; the optimiser's part is left alone."""
    trained = model()
    state = {PREFIXES[name](key): tensor for key, tensor in trained.state_dict().items()}
    optimizer = torch.optim.AdamW(trained.parameters())
    content = {"state_dict": state, "vitcap": description(), "optimizer_states": [optimizer.state_dict()], "epoch": 2}
    torch.save(content, tmp_path / "last.ckpt")
    read = checkpoint.read(tmp_path / "last.ckpt")
    assert read.description == description()
    same(checkpoint.rebuild(read), trained)
    assert vitcap.load(tmp_path / "last.ckpt").description["facts"]["seed"] == 3


def test_first_weights_of_the_encoder_are_a_fact_and_not_looked_up_again() -> None:
    encoder = {**ENCODER, "weights": "nowhere.safetensors", "pretrained": True}
    made = checkpoint.describe(
        encoder=encoder, decoder=DECODERS["rnn"], tokenizer=TOKENIZER, preprocess=PREPROCESS, decode={}
    )
    assert made["encoder"]["weights"] is None
    assert made["encoder"]["pretrained"] is False
    assert made["facts"]["encoder_origin"] == {"weights": "nowhere.safetensors", "pretrained": True}
    assert encoder["pretrained"] is True


REFUSED = {
    "os.system": "refused to build 'os.system'",
    "subprocess.run": "refused",
    "builtins.eval": "refused",
    "torch.nn.Linear": "refused",
    "": "refused to build ''",
    "vitcap.models": "refused",
    "vitcap.data.tokenizer.Tokenizer": "refused",
    "vitcap.checkpoint.read": "refused",
    "vitcap.models.weights.read_weights": "refused",  # a function
    "vitcap.models.vit.nn": "refused",  # a module
    "vitcap.models.vit.Path": "refused",  # a class, and no model
    "vitcap.decoding.partial": "refused",
    "vitcap.models.vit.VisionMamba": "another version",
    "vitcap.models.mamba.Mamba": "another version",
    "vitcap.models..os.system": "another version",
    "vitcap.models.vit.nn.Linear": "another version",
}


@pytest.mark.parametrize("target", REFUSED)
def test_only_models_and_searches_of_vitcap_are_built(target: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(CheckpointError, match=REFUSED[target]):
        checkpoint.build({"_target_": target, "command": f"touch {marker}"})
    path = tmp_path / "model.safetensors"
    for part in ("encoder", "decoder", "decode"):
        bad = description(**{part: {"_target_": target, "command": f"touch {marker}"}})
        checkpoint.write(path, model(), bad)
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: .*{REFUSED[target]}"):
            vitcap.load(path)
    assert not marker.exists()


def test_parts_that_cannot_be_built(tmp_path: Path) -> None:
    for change, reason in (({"wings": 2}, "unexpected keyword argument 'wings'"), ({"heads": 3}, "width 16.*3 heads")):
        with pytest.raises(CheckpointError, match=f"cannot be built from the model's config: .*{reason}"):
            checkpoint.build({**ENCODER, **change})
    for part in ("encoder", "tokenizer", "decode"):
        less = {key: value for key, value in description().items() if key != part}
        path = checkpoint.write(tmp_path / "model.safetensors", model(), less)
        with pytest.raises(CheckpointError, match=f"lacks {part}"):
            checkpoint.read(path)


def test_weights_that_do_not_fit_the_config() -> None:
    weights = model().state_dict()
    name = "encoder.cls_token"
    with pytest.raises(CheckpointError, match=r"encoder\.cls_token \(1, 1, 3\) instead of \(1, 1, 16\)"):
        checkpoint.rebuild(Saved(description(), {**weights, name: torch.zeros(1, 1, 3)}, Path("m.safetensors")))
    with pytest.raises(CheckpointError, match=r"decoder\.new \(2,\) instead of nothing"):
        checkpoint.rebuild(Saved(description(), {**weights, "decoder.new": torch.zeros(2)}, Path("m.safetensors")))
    with pytest.raises(CheckpointError, match=r"weights are missing: encoder\.cls_token"):
        checkpoint.rebuild(Saved(description(), {k: v for k, v in weights.items() if k != name}, Path("m.safetensors")))


class Bomb:
    """Pickles to a call of os.system."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def write_cut_ckpt(path: Path) -> None:
    torch.save({"state_dict": model().state_dict(), "vitcap": description()}, path)
    cut(path, 0.7)


def write_cut_safetensors(path: Path) -> None:
    checkpoint.write(path, model(), description())
    cut(path, 0.7)


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("word/document.xml", "<a/>")


def with_metadata(text: str) -> Callable[[Path], object]:
    return lambda path: safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata={"vitcap": text})


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n"
NONE: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda path: None, "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "0 bytes"),
    "page": (lambda path: path.write_text("\n <!DOCTYPE html><html>404</html>"), "HTML"),
    "pointer": (lambda path: path.write_text(LFS), "git-lfs pointer"),
    "cut .ckpt": (write_cut_ckpt, "cut or damaged"),
    "cut safetensors": (write_cut_safetensors, "damaged"),
    "random": (lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)), "neither a safetensors"),
    "text": (lambda path: path.write_text("hello " * 100), "neither a safetensors"),
    "picture": (lambda path: pictures(1)[0].save(path, "PNG"), "neither a safetensors"),
    "zip": (write_zip, "not a checkpoint that can be opened safely"),
    "plain state dict": (lambda path: torch.save(model().state_dict(), path), "lacks the description"),
    "other torch file": (lambda path: torch.save([torch.zeros(2)], path), "no vitcap checkpoint"),
    "old torch file": (
        lambda path: torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=False),
        "neither a safetensors",
    ),
    "plain safetensors": (lambda path: safetensors.torch.save_file({"a": torch.zeros(2)}, path), "no description"),
    "broken description": (with_metadata("{'format'"), "damaged"),
    "description of another kind": (with_metadata('["format"]'), "no description"),
    "description without format": (with_metadata("{}"), "no description"),
    "newer": (with_metadata('{"format": 2}'), r"newer vitcap \(format 2, this one reads 1\)"),
    "pickle with code": (lambda path: path.write_bytes(pickle.dumps(Bomb(path.with_name("ran")))), "neither"),
    "torch file with code": (lambda path: torch.save({"vitcap": Bomb(path.with_name("ran"))}, path), "opened safely"),
    "old torch file with code": (
        lambda path: torch.save(Bomb(path.with_name("ran")), path, _use_new_zipfile_serialization=False),
        "neither",
    ),
}


@pytest.mark.parametrize("name", NONE)
def test_files_that_are_no_model(name: str, tmp_path: Path) -> None:
    """One line that names the file and says what it is; code in a file does not run."""
    write, reason = NONE[name]
    path = tmp_path / "my model.ckpt"
    write(path)
    with pytest.raises(CheckpointError, match=rf"my model\.ckpt: .*{reason}") as caught:
        vitcap.load(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the folder holds no model\.safetensors"):
        vitcap.load(tmp_path)


# the captioner


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    return vitcap.load(checkpoint.write(path, model(seed=1), description()))


def test_a_loaded_captioner_is_complete(captioner: Captioner) -> None:
    assert captioner.preprocess == PREPROCESS
    assert captioner.tokenizer.to_json() == TOKENIZER.to_json()
    assert captioner.search == Beam(beams=4, max_length=9, no_repeat_ngram=2)
    assert (captioner.grid, captioner.prefix) == (GRID, PREFIX)  # before the first picture
    assert captioner.device == torch.device("cpu")


def test_saved_again(captioner: Captioner, tmp_path: Path) -> None:
    twin = vitcap.load(captioner.save(tmp_path / "twin.safetensors"))
    same(twin.model, captioner.model)
    assert twin.description == captioner.description
    assert twin.caption(pictures(1)[0]) == captioner.caption(pictures(1)[0])


def test_pictures_are_normalised_by_the_model(captioner: Captioner) -> None:
    """uint8 pictures: (x / 255 - mean) / std; floats pass as they are; features take their place."""
    images = batch().images
    assert images is not None
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (PREPROCESS.mean, PREPROCESS.std))
    floats = (images.double() / 255 - mean) / std
    assert_close(captioner.model.normalise(images).double(), floats, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        encoded = captioner.model.encode(Batch(ids=(0, 1), images=images)).tokens
        assert_close(encoded, captioner.model.encoder(floats.float()).tokens, atol=1e-4, rtol=1e-4)
        trunk = captioner.model.encoder.trunk(floats.float())
        cached = captioner.model.encode(Batch(ids=(0, 1), features=trunk.half())).tokens
        assert_close(cached, encoded, atol=0.05, rtol=0.05)
    with pytest.raises(ValueError, match="neither images nor features"):
        captioner.model.encode(Batch(ids=(0,)))
    with pytest.raises(ValueError, match="no captions"):
        captioner.model(Batch(ids=(0, 1), images=images))


def test_a_picture_alone_and_in_a_batch(captioner: Captioner, tmp_path: Path) -> None:
    """The same caption, in input order, from any batch size; from a file or from Pillow."""
    photos = pictures(5)
    paths = [tmp_path / f"photo = {i}, café.png" for i in range(5)]
    for photo, path in zip(photos, paths, strict=True):
        photo.save(path)
    alone = [captioner.caption(photo) for photo in photos]
    assert len({c.text for c in alone}) > 1
    for together in (
        captioner.caption(photos),
        captioner.caption(photos[::-1], batch_size=2)[::-1],
        captioner.caption(paths, batch_size=3),
        captioner.caption([str(path) for path in paths]),
    ):
        assert [c.tokens for c in together] == [c.tokens for c in alone]
        assert [c.words for c in together] != []
        for a, b in zip(together, alone, strict=True):
            assert_close(torch.tensor(a.log_probs), torch.tensor(b.log_probs), atol=1e-5, rtol=1e-5)
            assert a.score == pytest.approx(b.score, abs=1e-5)
    assert captioner.caption([]) == []
    grey = photos[0].convert("L")
    assert captioner.caption(grey).tokens == captioner.caption(grey.convert("RGB")).tokens


def teacher_forced(captioner: Captioner, photo: Image.Image, tokens: tuple[int, ...]) -> Tensor:
    """Log-probabilities of the tokens when they are read, not searched."""
    memory = captioner.model.encode(Batch(ids=(0,), images=captioner.preprocess(photo)[None]))
    logits = captioner.model.decoder(memory, torch.tensor([[[BOS, *tokens[:-1]]]])).logits[0, 0]
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@torch.no_grad()
def test_log_probs_are_the_models_own(captioner: Captioner) -> None:
    """Of every token of every caption, whatever the search; a word has the sum of its tokens."""
    searches = [Greedy(max_length=9), Beam(beams=3, max_length=9, length_penalty=0.7), Sample(max_length=9, top_k=5)]
    for photo in pictures(3, seed=1):
        for search in searches:
            best = captioner.caption(photo, search=search, n_best=3 if isinstance(search, Beam) else 1, seed=1)
            for caption in (best, *best.alternatives):
                assert len(caption.log_probs) == len(caption.tokens) <= 9
                expected = teacher_forced(captioner, photo, caption.tokens)
                assert_close(torch.tensor(caption.log_probs), expected, atol=1e-4, rtol=1e-4)
                assert caption.finished == (caption.tokens[-1] == EOS)
                assert str(caption) == caption.text == " ".join(w.text for w in caption.words)
                for word in caption.words:
                    assert word.log_prob == pytest.approx(sum(caption.log_probs[word.start : word.stop]))
                    assert captioner.tokenizer.decode(caption.tokens[word.start : word.stop]) == word.text


def test_n_best(captioner: Captioner) -> None:
    photos = pictures(2)
    one = captioner.caption(photos)
    best = captioner.caption(photos, n_best=4)
    for first, ranked in zip(one, best, strict=True):
        assert first.alternatives == ()
        assert ranked.tokens == first.tokens
        everything = [ranked, *ranked.alternatives]
        assert len(everything) == 4
        assert len({c.tokens for c in everything}) == 4
        assert [c.score for c in everything] == sorted((c.score for c in everything), reverse=True)
    assert len(captioner.caption(photos[0], n_best=6).alternatives) == 5  # more than the search has beams
    with pytest.raises(ValueError, match="Greedy gives one caption; n_best=2 needs a beam search"):
        captioner.caption(photos[0], search=Greedy(), n_best=2)


@torch.no_grad()
def test_attention_belongs_to_the_words(captioner: Captioner) -> None:
    """(T, L, H, N) of every caption: what the parallel pass attends to when it reads the same words."""
    plain = captioner.caption(pictures(1)[0])
    assert plain.attention is None
    best = captioner.caption(pictures(1), n_best=3, need_attention=True)[0]
    assert best.tokens == captioner.caption(pictures(1)[0], n_best=3).tokens
    memory = captioner.model.encode(Batch(ids=(0,), images=captioner.preprocess(pictures(1)[0])[None]))
    for caption in (best, *best.alternatives):
        assert caption.attention is not None
        assert caption.attention.shape == (len(caption.tokens), 2, 2, PREFIX + GRID[0] * GRID[1])
        assert caption.attention.dtype == np.float32
        np.testing.assert_allclose(caption.attention.sum(-1), 1.0, atol=1e-5)
        read = captioner.model.decoder(memory, torch.tensor([[[BOS, *caption.tokens[:-1]]]]), need_attention=True)
        np.testing.assert_allclose(caption.attention, read.attention[0, 0].numpy(), atol=1e-5)


def test_sampling_is_seeded(captioner: Captioner) -> None:
    def run(seed: int) -> list[tuple[int, ...]]:
        found = captioner.caption(pictures(4), search=Sample(max_length=9, temperature=3.0), seed=seed)
        return [c.tokens for c in found]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_unreadable_pictures(captioner: Captioner, tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("no picture")
    with pytest.raises(ImageError, match=r"notes\.jpg: text"):
        captioner.caption([pictures(1)[0], tmp_path / "notes.jpg"])
    with pytest.raises(ImageError, match=r"gone\.jpg: does not exist"):
        captioner.caption(tmp_path / "gone.jpg")
