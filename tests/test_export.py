"""ONNX files compute what the model does, their small program finds what ours find, without torch; other exports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

import vitcap
from vitcap import checkpoint, cli
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.images import load_image
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy, Sample, constrain
from vitcap.export import bundle, graphs, hub, runtime
from vitcap.export.bundle import to_onnx
from vitcap.export.compress import compress
from vitcap.models.backbones import TimmEncoder
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.models.cnn import ConvEncoder
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.storage import pack, unpack
from vitcap.models.text import TransformerTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.models.vit import VisionTransformer
from vitcap.types import BOS, Batch, Memory

ROOT = Path(__file__).resolve().parents[1]
DOCS = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
MODELS = {"encoder", "decoder_start", "decoder_step"}
LONGEST = 7
TEXTS = [
    "a brown dog runs on the beach with an old yellow ball",
    "two red boats lie by the sea at night, under many small white stars",
    "a café, ein Haus und ein Fluß; der Mann dort liest",
]

VIT: dict[str, Any] = {"image_size": 32, "patch_size": 16, "width": 32, "depth": 1, "heads": 2}
WIDE: dict[str, Any] = {"image_size": [32, 48], "channels": [8, 16], "width": 24}
LSTM: dict[str, Any] = {"width": 32, "embed_width": 32, "attention_width": 16}
TRANSFORMER: dict[str, Any] = {"width": 32, "depth": 2, "heads": 4, "max_length": LONGEST}
GROUPED = TRANSFORMER | {"kv_heads": 2}


def saved(folder: Path, encoder: type, e: dict[str, Any], decoder: type, d: dict[str, Any], **more: Any) -> Path:
    """A run folder with a captioner that has learned nothing, but is sure of what it says. more: kind of tokenizer,
    how pictures are resized, the search."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(TEXTS, kind=more.get("kind", "word"), min_count=1, vocab_size=300)
    part = encoder(**e)
    sizes = {"vocab_size": tokenizer.vocab_size, "memory_width": part.width, **d}
    model = CaptionModel(part, decoder(**sizes)).eval()
    for module in model.decoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.LSTMCell):
            for weight in module.parameters(recurse=False):
                weight.data += torch.randn_like(weight) * 0.25
    # As if read from a file in 8 bits, so that packing them again changes nothing.
    model.load_state_dict(unpack(pack(model.state_dict(), "int8")))
    target = {"encoder": {"_target_": f"{encoder.__module__}.{encoder.__name__}", **e}}
    target["decoder"] = {"_target_": f"{decoder.__module__}.{decoder.__name__}", **sizes}
    search = more.get("search", Beam(beams=3, max_length=LONGEST))
    decode = {"_target_": f"vitcap.decoding.{type(search).__name__}", **asdict(search)}
    size = part.preprocess["size"]
    preprocess = Preprocess(size=size, mode=more.get("mode", "crop"), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    facts = {"scores": {"CIDEr-D": 0.5, "BLEU-4": None}, "data": "flickr", "init": "/home/somebody/secret/model.ckpt"}
    facts["evaluation"] = {"split": "val", "images": 12}
    said = checkpoint.describe(tokenizer=tokenizer, preprocess=preprocess, decode=decode, facts=facts, **target)
    checkpoint.write(folder / "model.safetensors", model, said)
    return folder


def bash(page: str) -> list[str]:
    """The commands of a page."""
    return [line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]


NO_TORCH = """
import sys
class Block:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
"""
NOTHING = ("torch", "torchvision", "vitcap", "timm", "tokenizers", "safetensors", "onnx", "lightning")


def run_alone(code: str, folder: Path, blocked: tuple[str, ...] = NOTHING) -> str:
    """What a program prints that finds none of the blocked packages."""
    code = NO_TORCH.format(blocked=set(blocked)) + code
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A folder with photo.jpg (lying on its side) and runs/mine, where the commands of the page have run."""
    folder = tmp_path_factory.mktemp("desk")
    lying = picture(3, (60, 40))
    exif = lying.getexif()
    exif[0x0112] = 6
    lying.save(folder / "photo.jpg", exif=exif)
    saved(folder / "runs" / "mine", VisionTransformer, VIT, TransformerDecoder, GROUPED, mode="squash")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in bash(DOCS):
            if command.startswith("vitcap export"):
                assert cli.main(command.split()[1:]) == 0
    return folder


@pytest.fixture(scope="module")
def transformer(desk) -> tuple[Captioner, Path]:
    """A pure ViT and its files in 8 bits, which hold its weights as they are."""
    door: Any = vitcap.load(desk / "runs" / "mine")
    return door, desk / "mine_onnx"


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory) -> tuple[Captioner, Path]:
    """A small CNN for wide pictures and an LSTM that writes pieces of words; its files in float32."""
    folder = tmp_path_factory.mktemp("recurrent")
    run = saved(folder, ConvEncoder, WIDE, RnnDecoder, LSTM | {"initial": "pooled"}, kind="bpe", mode="letterbox")
    door: Any = vitcap.load(run)
    to_onnx(door, folder / "onnx")
    return door, folder / "onnx"


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((size[0] * 3, size[1] * 3))


def check_steps(door: Captioner, model: runtime.Model, batch: int) -> None:
    """Logits and attention of every length up to the longest, of sequences that branch."""
    images = np.stack(
        [np.asarray(picture(n, door.preprocess.size[::-1]).resize(door.preprocess.size[::-1])) for n in range(batch)]
    )
    images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    memory, state = model.start(images)
    with torch.no_grad():
        encoded = door.model.encode(Batch(ids=tuple(range(batch)), images=torch.from_numpy(images)))
        theirs = door.model.decoder.start(encoded, 1)
        tokens, random = np.full((batch, 1), BOS), np.random.default_rng(batch)
        for length in range(1, LONGEST + 1):
            ours, maps, state = model.step(tokens, memory, state)
            logits, attention, theirs = door.model.decoder.step(torch.from_numpy(tokens), theirs, True)
            np.testing.assert_allclose(ours, logits, atol=1e-4, rtol=0, err_msg=f"length {length}")
            assert (maps is None) == (attention is None)
            if attention is not None:
                np.testing.assert_allclose(maps, attention, atol=1e-4, rtol=0)
            branch = random.integers(0, tokens.shape[1], (batch, 1 + length % 3))
            state = {name: runtime.take(x, branch) for name, x in state.items()}
            theirs = theirs.select(torch.from_numpy(branch))
            tokens = random.integers(3, door.tokenizer.vocab_size, branch.shape)


SEARCHES = {
    "greedy": (Greedy(max_length=LONGEST), {"beams": 1, "length_penalty": 0.0}),
    "greedy that repeats nothing": (
        Greedy(max_length=LONGEST, no_repeat_ngram=1, min_length=3),
        {"beams": 1, "length_penalty": 0.0, "no_repeat_ngram": 1, "min_length": 3},
    ),
    "beam": (Beam(max_length=LONGEST, beams=4, n_best=4), {"beams": 4, "n_best": 4}),
    "long beam": (
        Beam(max_length=LONGEST, beams=3, length_penalty=1.5, patience=2.0, no_repeat_ngram=2),
        {"beams": 3, "length_penalty": 1.5, "patience": 2.0, "no_repeat_ngram": 2},
    ),
    **{f"cut at {n}": (Beam(max_length=n, beams=2), {"beams": 2, "max_length": n}) for n in range(1, LONGEST)},
}


def check_captions(door: Captioner, model: runtime.Model, batch: int) -> list[str]:
    pictures = [picture(seed, (30 + 7 * seed, 50 - 5 * seed)) for seed in range(batch)]
    texts = []
    for search, options in SEARCHES.values():
        n_best = options.get("n_best", 1)
        wanted = door.caption(pictures, search=search, n_best=n_best, need_attention=True)
        for theirs, ours in zip(wanted, model.caption(pictures, attention=True, **options), strict=True):
            for one, other in zip((theirs, *theirs.alternatives), ours, strict=True):
                assert (other.text, other.tokens, other.finished) == (one.text, one.tokens, one.finished)
                np.testing.assert_allclose(other.log_probs, one.log_probs, atol=1e-4, rtol=0)
                np.testing.assert_allclose(other.score, one.score, atol=1e-4, rtol=0)
                assert (one.attention is None) == (other.attention is None)
                if one.attention is not None:
                    np.testing.assert_allclose(other.attention, one.attention, atol=1e-4, rtol=0)
                texts.append(one.text)
    return texts


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("which", ["transformer", "recurrent"])
def test_logits_and_captions_are_those_of_the_model(which, batch, request):
    door, folder = request.getfixturevalue(which)
    model = runtime.Model(folder, threads=1)
    check_steps(door, model, batch)
    texts = check_captions(door, model, batch)
    assert len(set(texts)) > len(texts) / 8  # of sequences that are all alike, equality says little


CNN = {"name": "test_resnet", "image_size": 64}
HYBRID = CNN | {"width": 32, "heads": 2}
PARTS: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "registers, rotary": (VisionTransformer, VIT | {"registers": 2, "position": "rotary"}, {"position": "rotary"}),
    "sinusoidal, untied": (
        VisionTransformer,
        VIT | {"position": "sinusoidal"},
        {"position": "sinusoidal", "tie": False},
    ),
    "alibi, post": (VisionTransformer, VIT | {"position": "alibi"}, {"position": "alibi", "norm": "post"}),
    "mean, no positions": (VisionTransformer, VIT | {"pool": "mean"}, {"position": "none", "kv_heads": 1}),
    "timm vit, as in the paper": (
        TimmEncoder,
        {"name": "test_vit", "image_size": 32},
        {"scale_embedding": True, "activation": "relu"},
    ),
    "timm cnn, dot": (TimmEncoder, CNN, LSTM | {"attention": "dot", "width": 96}),
    "hybrid, scaled dot": (HybridEncoder, HYBRID, LSTM | {"attention": "scaled_dot"}),
    "hybrid, general": (
        HybridEncoder,
        HYBRID | {"position": "rotary"},
        LSTM | {"attention": "general", "gate": "none"},
    ),
    "hard": (ConvEncoder, WIDE, LSTM | {"hard": True, "gate": "scalar"}),
    "fixed context": (ConvEncoder, WIDE, LSTM | {"attention": "none", "initial": "pooled"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_exported(name, tmp_path):
    encoder, e, d = PARTS[name]
    decoder, more = (RnnDecoder, {}) if "embed_width" in d else (TransformerDecoder, TRANSFORMER)
    door: Any = vitcap.load(saved(tmp_path, encoder, e, decoder, more | d))
    to_onnx(door, tmp_path / "onnx")
    model = runtime.Model(tmp_path / "onnx", threads=1)
    for batch in (1, 4):
        check_steps(door, model, batch)
        check_captions(door, model, batch)


def test_classes_are_those_of_the_model(tmp_path):
    torch.manual_seed(0)
    encoder = ConvEncoder(image_size=16, channels=(8,), width=16)
    model = ImageClassifier(encoder, classes=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    door = Classifier(model, [("n1", "dog"), ("n2", "boat"), ("n3", "cat")], Preprocess(size=(16, 16), mode="squash"))
    to_onnx(door, tmp_path / "onnx")
    pictures = [picture(seed, (20, 30)) for seed in range(4)]
    for theirs, ours in zip(
        door.classify(pictures, top=2), runtime.Model(tmp_path / "onnx").classify(pictures, 2), strict=True
    ):
        assert [name for name, _ in ours] == [one.name for one in theirs]
        np.testing.assert_allclose([p for _, p in ours], [one.probability for one in theirs], atol=1e-5)
    pictures[0].save(tmp_path / "a.png")
    out = run_alone(f"import runpy; sys.argv = ['caption.py', 'a.png']; sys.path[0] = 'onnx'; {ALONE}", tmp_path)
    assert out.startswith(f"a.png\t{door.classify(pictures[0])[0].name} 0.")


ALONE = "runpy.run_path(sys.path[0] + '/caption.py', run_name='__main__')"


def test_the_page_runs_without_torch(desk):
    commands = bash(DOCS)
    assert len(commands) >= 4
    (command,) = [c for c in commands if c.startswith("python ")]
    program, *words = command.split()[1:]
    start = f"import runpy; sys.argv = {[program, *words]}; runpy.run_path({program!r}, run_name='__main__')"
    printed = run_alone(start, desk)
    packed: Any = vitcap.load(desk / "mine.safetensors")
    assert printed == f"photo.jpg\t{packed.caption(desk / 'photo.jpg')}\n"
    (example,) = re.findall(r"```python\n(import json.*?)```", DOCS, re.DOTALL)
    greedy = packed.caption(desk / "photo.jpg", search=Greedy(max_length=LONGEST))
    assert run_alone(example, desk).split() == str(greedy).split()
    module = "import runpy; sys.argv = ['', 'mine_onnx', 'photo.jpg', '--beams', '1']; "
    printed = run_alone(
        module + "runpy.run_module('vitcap.export.runtime', run_name='__main__')", desk, ("torch", "onnx")
    )
    assert printed == f"photo.jpg\t{greedy}\n"


def test_graphs_pass_the_checker_and_the_config_says_what_they_are(transformer):
    door, folder = transformer
    config = json.loads((folder / "config.json").read_text())
    assert config["search"] == {k: list(v) if k == "forbid" else v for k, v in asdict(door.search).items()}
    assert config["preprocess"] == door.preprocess.to_dict()
    assert (config["model"], config["grid"], config["prefix"]) == (door.fingerprint, [2, 2], 1)
    assert config["difference"] < 1e-4
    assert set(config["graphs"]) == MODELS
    for name, sides in config["graphs"].items():
        model = onnx.load(folder / f"{name}.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [(one.domain, one.version) for one in model.opset_import if one.domain == ""] == [("", graphs.OPSET)]
        session = onnxruntime.InferenceSession(folder / f"{name}.onnx")
        assert {i.name: i.shape for i in session.get_inputs()} == sides["inputs"]
        assert {o.name: o.shape for o in session.get_outputs()} == sides["outputs"]
    shapes = {**config["graphs"]["decoder_step"]["inputs"], **config["graphs"]["decoder_step"]["outputs"]}
    assert shapes["tokens"] == ["batch", "beams"]
    assert shapes["state_key_1"] == ["batch", "beams", 2, "length", 8]
    assert shapes["next_key_1"] == ["batch", "beams", 2, "length + 1", 8]


def test_the_page_has_the_signature(transformer, recurrent):
    told = set(re.findall(r"^\| (\w+) \| (in|out) \| `(\w+)`", DOCS, re.MULTILINE))
    found = set()
    for _, folder in (transformer, recurrent):
        for graph, sides in json.loads((folder / "config.json").read_text())["graphs"].items():
            for side, values in sides.items():
                found |= {(graph, side.removesuffix("puts"), re.sub(r"_\d+$", "_0", name)) for name in values}
    assert told == found


def test_tied_weights_are_stored_once(transformer):
    door, folder = transformer
    table = door.model.decoder.embed.weight.detach().numpy()
    model = onnx.load(folder / "decoder_step.onnx")
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    (codes,) = [a for a in arrays if a.shape in (table.shape, table.T.shape)]
    assert codes.dtype == np.int8
    assert [node.op_type for node in model.graph.node].count("Transpose") > 0


@pytest.mark.parametrize(("weights", "allowed", "share"), [("int8", 1e-4, 0.4), ("fp16", 2e-2, 0.6)])
def test_smaller_weights_compute_what_rounded_ones_would(weights, allowed, share, recurrent, tmp_path):
    _, folder = recurrent
    shutil.copytree(folder, tmp_path / "small")
    weighed = {"before": 0, "after": 0}
    for name in MODELS:
        model = onnx.load(folder / f"{name}.onnx")
        weighed["before"] += sum(len(t.raw_data) for t in model.graph.initializer)
        compress(model, weights)
        onnx.checker.check_model(model, full_check=True)
        weighed["after"] += sum(len(t.raw_data) for t in model.graph.initializer)
        onnx.save(model, tmp_path / "small" / f"{name}.onnx")
    assert weighed["after"] < share * weighed["before"]
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 48), dtype=np.uint8)
    logits = []
    for model in (runtime.Model(folder), runtime.Model(tmp_path / "small")):
        logits.append(model.step(np.array([[BOS], [5]]), *model.start(images))[0])
    np.testing.assert_allclose(logits[1], logits[0], atol=allowed, rtol=0)


def test_an_unknown_storage_is_told(transformer, tmp_path):
    with pytest.raises(ValueError, match="weights='int4': one of fp32, fp16, int8 is wanted"):
        to_onnx(transformer[0], tmp_path / "new", weights="int4")
    with pytest.raises(ValueError, match="weights='int4'"):
        compress(onnx.load(transformer[1] / "encoder.onnx"), "int4")


def test_large_weights_lie_beside_the_graph(transformer, tmp_path, monkeypatch):
    _, folder = transformer
    monkeypatch.setattr(bundle, "ONE_FILE", 1000)
    bundle._write(onnx.load(folder / "encoder.onnx"), tmp_path / "encoder.onnx")
    assert (tmp_path / "encoder.onnx.data").stat().st_size > (tmp_path / "encoder.onnx").stat().st_size
    images = np.zeros((1, 3, 32, 32), np.uint8)
    found = [onnxruntime.InferenceSession(f / "encoder.onnx").run(None, {"images": images}) for f in (folder, tmp_path)]
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_a_wrong_graph_is_not_written(recurrent, tmp_path, monkeypatch):
    door, folder = recurrent
    monkeypatch.setattr(bundle, "plans", lambda model: dict.fromkeys(sorted(MODELS)))
    files = iter([onnx.load(folder / f"{name}.onnx") for name in sorted(MODELS)])
    monkeypatch.setattr(bundle, "trace", lambda plan: next(files))
    bias = door.model.decoder.out.bias.data
    bias[7] += 3
    try:
        with pytest.raises(RuntimeError, match="differ from the model, by"):
            to_onnx(door, tmp_path / "new")
    finally:
        bias[7] -= 3
    assert not list(tmp_path.iterdir())


class Automaton:
    """A decoder of random logits, for both searches: the next ones depend on all tokens so far."""

    max_length, training = None, False

    def __init__(self, seed: int, vocab: int) -> None:
        self.table = np.random.default_rng(seed).normal(0, 2, (97, vocab)).astype(np.float32)

    def numpy(self, tokens: np.ndarray, memory: Any, state: dict[str, np.ndarray]) -> Any:
        place = (state["state_place"] * 31 + tokens * 7 + 1) % 97
        return self.table[place], None, {"state_place": place}

    def start(self, memory: Memory, groups: int) -> Any:
        return Place(memory.tokens[:, :1, 0].long().expand(-1, groups))

    def step(self, tokens: torch.Tensor, state: Place, need_attention: bool) -> Any:
        place = (state.place * 31 + tokens * 7 + 1) % 97
        return torch.from_numpy(self.table)[place], None, Place(place)


class Place:
    def __init__(self, place: torch.Tensor) -> None:
        self.place = place

    def select(self, index: torch.Tensor) -> Place:
        return Place(self.place.gather(1, index))

    def keep(self, rows: torch.Tensor) -> Place:
        return Place(self.place[rows])


@pytest.mark.parametrize("seed", range(60))
def test_search_is_that_of_torch(seed):
    random = np.random.default_rng(seed)
    vocab, batch = int(random.integers(5, 12)), int(random.integers(1, 6))
    rules = {"max_length": int(random.integers(1, 10)), "no_repeat_ngram": int(random.integers(0, 4))}
    rules["min_length"] = int(random.integers(0, rules["max_length"] + 1))
    decoder = Automaton(seed, vocab)
    places = torch.arange(batch)
    memory = Memory(places[:, None, None].float())
    beams = int(random.integers(1, 7))
    if beams == 1:
        search, more = Greedy(**rules), {"beams": 1, "n_best": 1, "length_penalty": 0.0, "patience": 1.0}
    else:
        more = {"beams": beams, "n_best": int(random.integers(1, beams + 1))}
        more |= {"length_penalty": float(random.choice([0.0, 0.7, 1.3])), "patience": float(random.choice([1.0, 2.0]))}
        search = Beam(**rules, **more)
    wanted = search(decoder, memory)
    state = {"state_place": places.numpy()[:, None]}
    found = runtime.beam(decoder.numpy, {}, state, forbid=(3,), **rules, **more)
    for image, row in enumerate(found):
        assert len(row) == more["n_best"]
        for rank, (tokens, log_probs, score, _) in enumerate(row):
            length = wanted.tokens.shape[-1]
            assert tokens[:length].tolist() == wanted.tokens[image, rank].tolist()
            assert not tokens[length:].any()
            np.testing.assert_allclose(log_probs[:length], wanted.log_probs[image, rank], atol=1e-5)
            np.testing.assert_allclose(score, wanted.scores[image, rank], atol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_rules_are_those_of_torch(n):
    random = np.random.default_rng(n)
    for vocab, length in ((5, 6), (6, 0), (9, 4)):
        logits = random.normal(size=(2, 3, vocab)).astype(np.float32)
        tokens = random.integers(2, vocab, (2, 3, length))
        options: dict[str, Any] = {"min_length": 3, "no_repeat_ngram": n, "forbid": (3,)}
        wanted = constrain(torch.from_numpy(logits), torch.from_numpy(tokens), **options)
        np.testing.assert_array_equal(runtime.constrain(logits.copy(), tokens, **options), wanted)


@pytest.mark.parametrize("kind", ["word", "space", "bpe"])
def test_ids_are_read_as_the_tokenizer_reads_them(kind):
    tokenizer = Tokenizer.train([*TEXTS, "naïve 日本語 🙂 text"], kind=kind, min_count=1, vocab_size=330)
    library = json.loads(tokenizer.to_json())["library"]
    ids = library["model"]["vocab"] | {one["content"]: one["id"] for one in library["added_tokens"]}
    texts, random = {number: text for text, number in ids.items()}, np.random.default_rng(0)
    assert len(texts) == tokenizer.vocab_size
    rows = [tokenizer.encode(text) for text in [*TEXTS, "naïve 日本語 🙂 text"]]
    rows += [random.integers(0, len(texts), 12).tolist() for _ in range(200)]
    for row in rows:
        assert " ".join(runtime.words(texts, kind, row)) == tokenizer.decode(row)


@pytest.mark.parametrize("mode", ["crop", "squash", "letterbox"])
def test_pictures_are_prepared_to_the_pixel(mode):
    shapes = [(40, 30), (30, 40), (64, 64), (900, 9), (9, 900), (4000, 2), (1, 1), (3, 2), (123, 77)]
    for number, (shape, size) in enumerate((shape, size) for shape in shapes for size in ((32, 32), (24, 40))):
        filter_ = ["bicubic", "bilinear", "lanczos", "box"][number % 4]
        how = Preprocess(size=size, mode=mode, crop_pct=[1.0, 0.9][number % 2], interpolation=filter_)
        image = Image.fromarray(np.random.default_rng(number).integers(0, 256, (*shape[::-1], 3), dtype=np.uint8))
        np.testing.assert_array_equal(runtime.preprocess(image, **how.to_dict()), how(image))


def test_files_are_read_as_everywhere_else(tmp_path):
    colours = picture(0, (8, 6))
    made = {f"turned{n}.jpg": colours for n in range(1, 9)}
    made |= {
        "grey.png": colours.convert("L"),
        "clear.png": colours.convert("RGBA"),
        "cmyk.jpg": colours.convert("CMYK"),
    }
    made |= {"palette.gif": colours.convert("P"), "two.png": colours.convert("1"), "la.png": colours.convert("LA")}
    deep = np.random.default_rng(1).integers(0, 65536, (6, 8))
    made |= {"deep.png": Image.fromarray(deep.astype(np.uint16)), "whole.tif": Image.fromarray(deep.astype(np.int32))}
    made |= {"float.tif": Image.fromarray((deep / 65536).astype(np.float32))}
    made["clear.png"].putalpha(colours.convert("L"))
    for name, image in made.items():
        exif = image.getexif()
        exif[0x0112] = int(re.sub(r"\D", "", name) or 1)
        image.save(tmp_path / name, **({"exif": exif} if name.startswith("turned") else {}))
        np.testing.assert_array_equal(
            np.asarray(runtime.load_image(tmp_path / name)), np.asarray(load_image(tmp_path / name))
        )
    (tmp_path / "text.jpg").write_text("no picture")
    for name in ("text.jpg", "missing.jpg"):
        with pytest.raises(ValueError, match=f"{name}: no picture that can be read"):
            runtime.load_image(tmp_path / name)


def test_the_program_says_what_is_wrong(transformer, tmp_path, capsys):
    _, folder = transformer
    picture(0, (20, 20)).save(good := tmp_path / "good.png")
    assert runtime.main([str(folder), str(tmp_path / "none.png"), str(good), "--threads", "1"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{good}\t")
    assert err == f"error: {tmp_path / 'none.png'}: no picture that can be read (No such file or directory)\n"
    assert runtime.main([str(folder), str(good), "--max-length", "99"]) == 1
    assert capsys.readouterr().err == f"error: max_length=99: from 1 to {LONGEST}, with 3 beams\n"
    assert runtime.main([str(folder), str(good), "--n-best", "3"]) == 0
    assert len(set(capsys.readouterr().out.splitlines())) == 3
    with pytest.raises(SystemExit):
        runtime.main([str(tmp_path), str(good)])
    assert f"{tmp_path}: no folder that `vitcap export --to onnx` has written" in capsys.readouterr().err
    assert runtime.main([str(folder), str(good), "--length-penalty", "1e9"]) == 1
    assert "length_penalty=1000000000.0: from 0 to 10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", b'{"format": "vitcap-onnx 1"}', "KeyError: 'graphs'"),
        ("config.json", b"[]", "TypeError"),
        ("encoder.onnx", b"no graph", "InvalidProtobuf"),
        ("decoder_step.onnx", None, "NoSuchFile"),
        ("tokenizer.json", b"[]", "TypeError"),
        ("tokenizer.json", b'{"model": ', "JSONDecodeError"),
    ],
)
def test_a_damaged_folder_is_told_in_a_line(transformer, tmp_path, capsys, name, content, told):
    shutil.copytree(transformer[1], folder := tmp_path / "onnx")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(SystemExit):
        runtime.main([str(folder), "photo.jpg"])
    assert "has written, or damaged (" in (line := capsys.readouterr().err.splitlines()[-1])
    assert told in line


def test_graphs_that_do_not_fit_the_config_are_told_in_a_line(transformer, tmp_path, capsys):
    shutil.copytree(transformer[1], folder := tmp_path / "onnx")
    picture(0, (20, 20)).save(good := tmp_path / "good.png")
    shutil.copyfile(folder / "decoder_start.onnx", folder / "encoder.onnx")
    assert runtime.main([str(folder), str(good)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    shutil.copyfile(transformer[1] / "encoder.onnx", folder / "encoder.onnx")
    config = json.loads((folder / "config.json").read_text())
    config["preprocess"]["size"] = [7, 7]
    (folder / "config.json").write_text(json.dumps(config))
    assert runtime.main([str(folder), str(good)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {good}: InvalidArgument")


def refused(arguments: list[str], capsys) -> str:
    """The one line of a command that cannot be carried out."""
    capsys.readouterr()
    assert cli.main(["export", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("vitcap: error: ").strip()


def test_nothing_that_is_there_is_replaced(desk, tmp_path, capsys, monkeypatch):
    model, kept = str(desk / "runs" / "mine"), tmp_path / "notes.txt"
    kept.write_text("mine")
    for form in ("onnx", "hub"):
        assert refused([model, "--to", form, "--out", str(tmp_path)], capsys) == (
            f"{tmp_path} holds files already: name another --out, or remove it"
        )
    told = refused([model, "--to", "safetensors", "--out", str(kept)], capsys)
    assert told == f"{kept} is there already: name another --out, or remove it"
    told = refused([model, "--to", "safetensors", "--out", str(tmp_path)], capsys)
    assert told == f"--out {tmp_path}: a folder; name a file, such as {tmp_path / 'model.safetensors'}"
    monkeypatch.setattr(bundle, "trace", lambda plan: 1 / 0)
    assert cli.main(["export", model, "--to", "onnx", "--out", str(tmp_path / "new")]) == 1
    assert kept.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_cannot_be_exported_is_told(desk, tmp_path, capsys, monkeypatch):
    model, out = str(desk / "runs" / "mine"), ["--out", str(tmp_path / "new")]
    assert refused([model, "--to", "onnx", "--push", "me/it", *out], capsys).endswith("add --to hub")
    assert refused([model, "--to", "hub", "--private", *out], capsys).endswith("add --push USER/NAME")
    encoder = TransformerTextEncoder(vocab_size=9, width=24, depth=1, heads=2)
    decoder = TransformerDecoder(vocab_size=9, memory_width=24, width=24, depth=1, heads=2)
    with pytest.raises(ValueError, match="translates sentences has no ONNX form"):
        graphs.plans(graphs.exportable(CaptionModel(encoder, decoder)))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            told = refused([model, "--to", "onnx", *out], capsys)
        assert told == f'ONNX files need the package {package}: pip install "vitcap[export]"'
    assert not (tmp_path / "new").exists()


def test_a_model_that_draws_at_random_is_exported_with_greedy_search(transformer):
    door, _ = transformer
    drawn = Captioner(door.model, door.tokenizer, door.preprocess, search=Sample(max_length=5, top_k=3))
    config = bundle._config(drawn, "fp32")
    assert config["search"] == {"max_length": 5, "min_length": 0, "no_repeat_ngram": 0, "forbid": (3,)} | {
        "beams": 1, "n_best": 1, "length_penalty": 0.0, "patience": 1.0,
    }  # fmt: skip


def test_the_hub_folder_is_whole_and_loads(desk):
    door: Any = vitcap.load(desk / "runs" / "mine")
    folder = desk / "mine_hub"
    again: Any = vitcap.load(folder)
    assert str(again.caption(desk / "photo.jpg")) == str(door.caption(desk / "photo.jpg"))
    names = {"model.safetensors", "config.json", "tokenizer.json", "preprocessor_config.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    for path in folder.iterdir():
        assert b"somebody" not in path.read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert config["decoder"]["kv_heads"] == 2
    images = json.loads((folder / "preprocessor_config.json").read_text())
    assert (images["size"], images["resample"], images["image_mean"]) == (
        {"height": 32, "width": 32},
        3,
        [0.4, 0.5, 0.6],
    )
    card = (folder / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["library_name"], front["pipeline_tag"]) == ("vitcap", "image-to-text")
    (result,) = front["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "CIDEr-D", "name": "CIDEr-D", "value": 0.5}]
    assert result["dataset"] == {"name": "flickr", "type": "flickr", "split": "val"}
    assert "| CIDEr-D | 0.5 |" in card
    assert "split val, images 12" in card


class Hub:
    """In place of huggingface_hub.HfApi: remembers what it is asked for."""

    calls: list[Any] = []  # noqa: RUF012
    error: Exception | None = None

    def __init__(self, **_: Any) -> None:
        pass

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if self.error is not None:
            raise self.error
        self.calls.append(("create", name, private, exist_ok))
        return f"https://hub.example/{name}"

    def upload_folder(self, *, folder_path: str, repo_id: str, commit_message: str) -> None:
        self.calls.append(("upload", repo_id, sorted(path.name for path in Path(folder_path).iterdir())))


def test_uploads(desk, tmp_path, capsys, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    out = tmp_path / "new"
    given = ["export", str(desk / "runs" / "mine"), "--to", "hub", "--out", str(out), "--weights", "fp16"]
    assert cli.main([*given, "--push", "me/it", "--private"]) == 0
    files = ["README.md", "config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"]
    assert Hub.calls == [("create", "me/it", True, True), ("upload", "me/it", files)]
    assert capsys.readouterr().out.endswith("https://hub.example/me/it\n")
    assert "# me/it\n" in (out / "README.md").read_text()
    monkeypatch.setattr(Hub, "error", ConnectionError("no route\nto the hub"))
    with pytest.raises(
        ValueError, match=rf"^me/it: not uploaded \(ConnectionError: no route to the hub\); {out} is complete"
    ):
        hub.push_to_hub(out, "me/it")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        hub.push_to_hub(out, "me/it")


def test_smaller_model_files_load(desk):
    door: Any = vitcap.load(desk / "mine.safetensors")
    whole = desk / "runs" / "mine" / "model.safetensors"
    assert (desk / "mine.safetensors").stat().st_size < 0.6 * whole.stat().st_size
    assert str(door.caption(desk / "photo.jpg")) == str(Captioner.load(whole).caption(desk / "photo.jpg"))
