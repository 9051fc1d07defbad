"""METEOR against pycocoevalcap's own run of the program; everything that can go wrong with a Java program, with fakes.

SPICE's program is played by a script that speaks its file format, since it needs jars that no package ships.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import stat
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitcap.metrics import java
from vitcap.metrics.captions import score
from vitcap.metrics.java import CATEGORIES, JavaFailed, JavaUnavailable, meteor, preflight, spice
from vitcap.metrics.jvm import find_java, running
from vitcap.metrics.ptb import tokenize
from vitcap.metrics.results import evaluate_files, read_references, read_results

REFERENCES = {1: ["A red box.", "one red box"], 2: ["a dog runs on grass"], 7: ["two men, and a horse", "two men"]}
HYPOTHESES = {1: "a red box", 2: "A dog runs on the", 7: "men men and a horse"}
TOLD, GOLD = list(HYPOTHESES.values()), list(REFERENCES.values())


def command(folder: Path, body: str, version: str = 'openjdk version "11.0.2" 2019-01-15') -> str:
    """A `java` that tells its version and else runs `body` (Python)."""
    path = folder / "java"
    start = f"#!{sys.executable}\nimport json, os, subprocess, sys, time\n"
    start += f"if '-version' in sys.argv:\n    print({version!r}, file=sys.stderr)\n    sys.exit()\n"
    path.write_text(start + textwrap.dedent(body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def meteor_folder(folder: Path) -> Path:
    (folder / "data").mkdir()
    for name in ("meteor-1.5.jar", "data/paraphrase-en.gz"):
        (folder / name).touch()
    return folder


def spice_folder(folder: Path, *, missing: tuple[str, ...] = ()) -> Path:
    """A jar whose manifest names its libraries in lines of at most 72 bytes, as manifests are written."""
    names = ["stanford-corenlp-3.6.0", "stanford-corenlp-3.6.0-models", "fst-2.47"]
    line = "Class-Path: " + " ".join(f"lib/{name}.jar" for name in names)
    lines = [line[:60], *(" " + line[k : k + 60] for k in range(60, len(line), 60))]
    with zipfile.ZipFile(folder / "spice-1.0.jar", "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "\r\n".join(["Manifest-Version: 1.0", *lines, ""]))
    (folder / "lib").mkdir()
    for name in set(names) - set(missing):
        (folder / "lib" / f"{name}.jar").touch()
    return folder


# Java and files


@pytest.mark.parametrize(
    ("said", "version", "major"),
    [
        ('java version "1.8.0_292"', "1.8.0_292", 8),
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17)', "17.0.15", 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21-ea" 2023-09-19', "21-ea", 21),
        ('java version "9"', "9", 9),
    ],
)
def test_versions(said, version, major, tmp_path: Path) -> None:
    path = command(tmp_path, "", said)
    assert find_java(path) == (path, version, major)


def test_java_is_looked_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaUnavailable, match=r"no Java found \(looked for java\); install"):
        find_java()
    with pytest.raises(JavaUnavailable, match=r"no Java found \(looked for /none/java\)"):
        find_java("/none/java")
    path = command(tmp_path, "")
    assert find_java()[0] == path
    (tmp_path / "home" / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java()[0] == path  # a JAVA_HOME that has none is passed over
    other = command(tmp_path / "home" / "bin", "", 'java version "1.8.0"')
    assert find_java() == (other, "1.8.0", 8)
    Path(other).write_text("#!/bin/sh\necho no runtime present >&2\nexit 1\n")
    with pytest.raises(JavaUnavailable, match=r"gave no version \(exit code 1\): no runtime present"):
        find_java()
    Path(other).write_bytes(b"\x00")
    with pytest.raises(JavaUnavailable, match="-version: "):
        find_java()


def test_preflight_names_what_is_missing(tmp_path: Path, monkeypatch) -> None:
    path = command(tmp_path, "")
    with pytest.raises(ValueError, match="metric='BLEU': known are METEOR, SPICE"):
        preflight("BLEU")
    with pytest.raises(JavaUnavailable, match=r"METEOR: no meteor-1.5.jar in .*; it is part of pycocoevalcap"):
        preflight("METEOR", folder=tmp_path, java=path)
    (tmp_path / "meteor-1.5.jar").touch()
    with pytest.raises(JavaUnavailable, match=r"METEOR: missing in .*: data.paraphrase-en.gz; install pycocoevalcap"):
        preflight("METEOR", folder=tmp_path, java=path)
    (tmp_path / "spice-1.0.jar").write_text("cut short")
    with pytest.raises(JavaUnavailable, match=r"spice-1.0.jar: not a Java archive"):
        preflight("SPICE", folder=tmp_path, java=path)
    spice_folder(tmp_path, missing=("stanford-corenlp-3.6.0-models",))
    message = r"SPICE: missing in .*: lib.stanford-corenlp-3.6.0-models.jar; .* stanford-corenlp-full-2015-12-09.zip"
    with pytest.raises(JavaUnavailable, match=message.replace("; .* ", "; .*")):
        preflight("SPICE", folder=tmp_path, java=path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JavaUnavailable, match="pycocoevalcap, which holds the program, is not installed"):
        preflight("METEOR")


def test_preflight_of_spice_wants_a_javascript_engine(tmp_path: Path) -> None:
    spice_folder(tmp_path)
    program = preflight("SPICE", folder=tmp_path, java=command(tmp_path, ""))
    assert (program.version, program.major, program.jar) == ("11.0.2", 11, tmp_path / "spice-1.0.jar")
    with pytest.raises(JavaUnavailable, match=r"needs Java 8 or later, .* is version 1.7.0"):
        preflight("SPICE", folder=tmp_path, java=command(tmp_path, "", 'java version "1.7.0"'))
    new = command(tmp_path, "", 'openjdk version "17.0.1"')
    with pytest.raises(JavaUnavailable, match=r"up to version 14, .* is version 17.0.1; name an older one"):
        preflight("SPICE", folder=tmp_path, java=new)
    (tmp_path / "lib" / "nashorn-core-15.4.jar").touch()
    assert preflight("SPICE", folder=tmp_path, java=new).major == 17


def test_preflight_in_the_installed_package() -> None:
    package = pytest.importorskip("pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("needs java")
    assert preflight("METEOR").jar.is_file()
    if not (Path(package.__path__[0]) / "spice/lib/stanford-corenlp-3.6.0.jar").is_file():
        with pytest.raises(JavaUnavailable, match=r"corenlp-3.6.0.jar, lib.stanford-corenlp-3.6.0-models.jar; pycoco"):
            preflight("SPICE")


# METEOR


def test_meteor_is_that_of_pycocoevalcap(tmp_path: Path, monkeypatch) -> None:
    """In a folder with blanks and accents, in an Italian Java, with line breaks and separators inside captions."""
    package = importlib.util.find_spec("pycocoevalcap")
    if package is None or shutil.which("java") is None:
        pytest.skip("needs java and pycocoevalcap")
    from pycocoevalcap.meteor.meteor import Meteor

    draw = random.Random(0)
    words = ["a", "the", "man", "men", "dog", "dogs", "running", "runs", "ran", "sits", "big", "large", "on", "in"]
    words += ["grass", "street", "red", "bike", "bicycle"]
    gold = [[" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(draw.randint(1, 6))] for _ in range(60)]
    told = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in gold]
    told[5], told[59], gold[7][0] = "", "", ""  # empty captions do not move the others
    told[9] = "3\u00a01/2 red bikes"
    theirs = Meteor()  # it starts up while ours runs
    installed, folder = Path(next(iter(package.submodule_search_locations or []))), tmp_path / "mé téor"
    (folder / "data").mkdir(parents=True)
    for name in ("meteor-1.5.jar", "data/paraphrase-en.gz"):
        (folder / name).symlink_to(installed / "meteor" / name)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=it -Duser.country=IT")
    monkeypatch.setenv("_JAVA_OPTIONS", "-Duser.language=it -Duser.language.format=it")
    odd = [text.replace(" red ", "\r\nred\t").replace(" on ", " ||| on\u2028") for text in told]
    odd_gold = [[text.replace(" man ", "\x85man\v").replace(" in ", " |||| in ") for text in texts] for texts in gold]
    assert odd != told
    assert odd_gold != gold
    ours, ours_each = meteor(odd, odd_gold, folder=folder)
    corpus, each = theirs.compute_score(dict(enumerate(gold)), {i: [caption] for i, caption in enumerate(told)})
    theirs.meteor_p.stdout.close()
    theirs.meteor_p.stderr.close()
    assert ours == pytest.approx(corpus, abs=1e-12)
    np.testing.assert_allclose(ours_each, each, rtol=0, atol=1e-12)
    assert ours_each[5] == 0
    assert len(set(each)) > 30


@pytest.mark.slow
def test_expected_meteor_of_coco() -> None:
    if "VITCAP_DATA" not in os.environ or shutil.which("java") is None:
        pytest.skip("needs VITCAP_DATA and java")
    root = Path(os.environ["VITCAP_DATA"]) / "coco_caption_eval"
    expected = json.loads((root / "expected_scores.json").read_text())
    names = root / "captions_val2017_human_results.json", root / "captions_val2017_refs4.json"
    card = evaluate_files(*names, meteor=True)
    for name, value in expected.items():
        ours = card.corpus[{"ROUGE_L": "ROUGE-L", "CIDEr": "CIDEr-D"}.get(name, name)]
        assert ours == pytest.approx(value, rel=0, abs=1e-12), name
    # Each image against pycocoevalcap, on captions that were tokenised one by one.
    from pycocoevalcap.meteor.meteor import Meteor

    references = read_references(names[1])
    told, gold = tokenize(read_results(names[0], references).values()), [tokenize(r) for r in references.values()]
    each = Meteor().compute_score(dict(enumerate(gold)), {i: [caption] for i, caption in enumerate(told)})[1]
    np.testing.assert_allclose(meteor(told, gold)[1], each, rtol=0, atol=1e-12)


ANSWERS = """
    statistics = " ".join(["1.0"] * 23)
    print("noise " * 200_000, file=sys.stderr)  # more than a pipe holds
    for line in sys.stdin:
        kind, *parts = line.rstrip("\\n").split(" ||| ")
        if kind == "SCORE":
            print(statistics, flush=True)
        else:
            print("\\n".join(["0.5"] * len(parts) + ["0.25"]))
            sys.exit()
"""


def test_noise_on_the_error_stream_blocks_nothing(tmp_path: Path) -> None:
    corpus, each = meteor(TOLD, GOLD, folder=meteor_folder(tmp_path), java=command(tmp_path, ANSWERS), limit=30)
    assert (corpus, each.tolist()) == (0.25, [0.5] * 3)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_time_limit_ends_a_program_and_its_children(tmp_path: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    hang = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        with open("PIDS", "w") as file:
            print(os.getpid(), child.pid, file=file)
        time.sleep(600)
    """.replace("PIDS", str(tmp_path / "pids"))
    path, begin = command(tmp_path, hang), time.monotonic()
    with pytest.raises(JavaFailed, match=r"METEOR: no answer within 1.5 s; raise its time limit"):
        meteor(TOLD, GOLD, folder=meteor_folder(tmp_path), java=path, limit=1.5)
    assert time.monotonic() - begin < 20
    own, child = map(int, (tmp_path / "pids").read_text().split())
    assert not Path(f"/proc/{own}").exists()  # reaped, no zombie
    while alive(child) and time.monotonic() - begin < 20:
        time.sleep(0.01)
    assert not alive(child)


def test_an_interruption_ends_the_program(tmp_path: Path) -> None:
    path = command(tmp_path, "time.sleep(600)")

    def interrupted() -> None:
        nonlocal process
        with running("METEOR", [path], limit=60, talk=True) as process:
            raise KeyboardInterrupt

    process = None
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert process.returncode == -9
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "print('Exception: java.lang.OutOfMemoryError', '  at x.y', sep='\\n', file=sys.stderr); sys.exit(3)",
            r"exit code 3; its last words: Exception: java.lang.OutOfMemoryError / at x.y",
        ),
        ("sys.stdin.readline(); print('1,0 2,0')", r"gave '1,0 2,0' for the statistics of caption 0 \('a red box'\)"),
        ("sys.stdin.readline(); print()", r"gave '' for the statistics of caption 0"),
        (
            "[print(' '.join(['1.0'] * 23), flush=True) for _ in range(2) if sys.stdin.readline()]",
            "before it gave the statistics of caption 2|Broken pipe",
        ),
        (ANSWERS.replace("0.5", "0,5"), "could not convert string to float: '0,5'"),
        (ANSWERS.replace('["0.25"]', "[]"), "before it gave the score of the set"),
    ],
)
def test_broken_answers(body, message, tmp_path: Path) -> None:
    with pytest.raises(JavaFailed, match=f"METEOR: .*({message})"):
        meteor(TOLD, GOLD, folder=meteor_folder(tmp_path), java=command(tmp_path, body), limit=30)


def test_what_cannot_be_run(tmp_path: Path) -> None:
    path = command(tmp_path, ANSWERS)
    with pytest.raises(ValueError, match=r"limit=0: a number of seconds above 0"):
        meteor(TOLD, GOLD, folder=meteor_folder(tmp_path), java=path, limit=0)
    with pytest.raises(ValueError, match="no images"):
        meteor([], [], folder=tmp_path, java=path)
    with (
        pytest.raises(JavaUnavailable, match="METEOR could not be started"),
        running("METEOR", ["/none"], limit=1, talk=False),
    ):
        pass


# SPICE


SPICE = """
    given = json.load(open(sys.argv[sys.argv.index("edu.anu.spice.SpiceScorer") + 1]))
    with open(os.path.join(os.path.dirname(sys.argv[0]), "call.json"), "w") as file:
        json.dump({"arguments": sys.argv[1:], "given": given}, file)
    result = []
    for row in reversed(given):
        share = len(set(row["test"].split()) & set(" ".join(row["refs"]).split())) / 10
        scores = {"All": {"pr": 1.0, "re": 1.0, "f": share, "fn": 0, "numImages": 1, "fp": 0, "tp": 1}}
        for name in ("Object", "Relation", "Attribute", "Color", "Cardinality", "Size"):
            scores[name] = {"pr": None, "re": None, "f": None, "fn": 0, "numImages": 0, "fp": 0, "tp": 0}
        scores["Object"]["f"] = share / 2
        if row["image_id"] == 1:
            scores["Color"]["f"] = 1
        result.append({"image_id": row["image_id"], "scores": scores})
    print("Parsing reference captions", file=sys.stderr)
    json.dump(result, open(sys.argv[sys.argv.index("-out") + 1], "w"))
"""


def test_spice_speaks_the_format_of_the_program(tmp_path: Path) -> None:
    spice_folder(tmp_path)
    gold, told = [["a red box", "one box"], ["a café\u2028d'été"], ["x y"]], ["red box", "a café", ""]
    value, each, kinds = spice(
        told, gold, folder=tmp_path, java=command(tmp_path, SPICE), cache=tmp_path / "new" / "c", memory="3G", threads=2
    )
    assert value == pytest.approx(0.4 / 3)
    assert each.tolist() == pytest.approx([0.2, 0.2, 0.0])  # by id: the answers came in another order
    assert tuple(kinds) == CATEGORIES
    assert kinds["Object"].tolist() == pytest.approx([0.1, 0.1, 0.0])
    np.testing.assert_array_equal(kinds["Color"], [np.nan, 1, np.nan])
    assert np.isnan(kinds["Size"]).all()
    call = json.loads((tmp_path / "call.json").read_text())
    rows = zip(range(3), told, gold, strict=True)
    assert call["given"] == [{"image_id": i, "test": caption, "refs": captions} for i, caption, captions in rows]
    arguments = call["arguments"]
    assert arguments[arguments.index("-cp") + 1] == f"{tmp_path}/spice-1.0.jar:{tmp_path}/lib/*"
    assert arguments[-5:] == ["-silent", "-cache", str(tmp_path / "new" / "c"), "-threads", "2"]
    assert {"-subset", "-Xmx3G", "--add-opens=java.base/java.lang=ALL-UNNAMED"} <= set(arguments)
    assert (tmp_path / "new" / "c").is_dir()
    assert not Path(arguments[arguments.index("-out") + 1]).exists()
    assert {p.name for p in tmp_path.iterdir()} == {"spice-1.0.jar", "lib", "java", "call.json", "new"}

    spice(told, gold, folder=tmp_path, java=command(tmp_path, SPICE, 'java version "1.8.0_292"'))
    arguments = json.loads((tmp_path / "call.json").read_text())["arguments"]
    assert not {"-cache", "-threads"} & set(arguments)
    assert not any("add-opens" in argument for argument in arguments)  # Java 8 does not know it


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "print('java.lang.NoClassDefFoundError: x', file=sys.stderr); sys.exit(1)",
            r"exit code 1.*NoClassDefFoundError",
        ),
        ("print('all well')", "wrote no scores; it ended with exit code 0; its last words: all well"),
        (SPICE.replace("reversed(given)", "given[1:]"), "scored 2 images, 3 were given"),
        (SPICE.replace("json.dump(result", "json.dump('cut'"), "SPICE: "),
        (SPICE.replace('scores["Object"]["f"]', 'scores.pop("Size"); scores["Object"]["f"]'), "'Size'"),
        ("time.sleep(600)", "no answer within 1 s"),
    ],
)
def test_spice_failures(body, message, tmp_path: Path) -> None:
    limit = 1 if "600" in body else 30
    with pytest.raises(JavaFailed, match=f"SPICE: .*({message})" if message != "SPICE: " else message):
        spice(TOLD, GOLD, folder=spice_folder(tmp_path), java=command(tmp_path, body), limit=limit)


# The score card


def test_score_card_with_both(tmp_path: Path) -> None:
    folders = [tmp_path / "m", tmp_path / "s"]
    for folder in folders:
        folder.mkdir()
    one = {"folder": meteor_folder(folders[0]), "java": command(folders[0], ANSWERS)}
    two = {"folder": spice_folder(folders[1]), "java": command(folders[1], SPICE)}
    plain = score(HYPOTHESES, REFERENCES)
    card = score(HYPOTHESES, REFERENCES, meteor=one, spice=two)
    assert list(card.corpus) == [*plain.corpus, "METEOR", "SPICE", *(f"SPICE-{name}" for name in CATEGORIES)]
    assert plain.corpus.items() <= card.corpus.items()
    assert all(list(scores) == list(card.corpus) for scores in card.per_image.values())
    assert (card.corpus["METEOR"], card.per_image[2]["METEOR"]) == (0.25, 0.5)
    assert card.per_image[1]["SPICE"] == pytest.approx(0.3)  # a, red, box: the program got tokens
    assert (card.corpus["SPICE-Color"], card.per_image[2]["SPICE-Color"]) == (1.0, 1.0)
    assert card.corpus["SPICE-Size"] is card.per_image[1]["SPICE-Size"] is None
    assert card.facts["METEOR"] == "1.5 (-l en -norm) on Java 11.0.2"
    assert card.facts["SPICE"].startswith("1.0 (-subset, CoreNLP 3.6.0)")
    json.dumps([card.to_dict(), list(card.per_image.values())], allow_nan=False)
    assert "SPICE-Cardinality" in card.table()


def test_no_score_is_lost_when_a_program_cannot_start(tmp_path: Path, monkeypatch) -> None:
    plain = score(HYPOTHESES, REFERENCES)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    card = score(HYPOTHESES, REFERENCES, meteor={"folder": meteor_folder(tmp_path)}, spice={"folder": tmp_path})
    assert card.corpus == plain.corpus | {"METEOR": None, "SPICE": None}
    assert card.per_image[7] == plain.per_image[7] | {"METEOR": None, "SPICE": None}
    assert card.facts["METEOR"].startswith("not computed: no Java found")
    assert card.facts["SPICE"].startswith("not computed: SPICE: no spice-1.0.jar in")
    assert [text.split(";")[0] for text in card.facts["warnings"]] == [
        "METEOR was not computed",
        "SPICE was not computed",
    ]
    assert "not computed: no Java found" in card.table()
    path = command(tmp_path, "sys.exit(1)")
    for options, words in (({"limit": 5}, "exit code 1"), ({"limits": 5}, "'limits'"), ({"limit": -1}, "limit=-1")):
        card = score(HYPOTHESES, REFERENCES, meteor={"folder": tmp_path, "java": path, **options})
        assert card.corpus["BLEU-4"] == plain.corpus["BLEU-4"]
        assert card.corpus["METEOR"] is None
        assert words in card.facts["METEOR"]


def test_java_is_left_alone_unless_asked_for(monkeypatch) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError

    monkeypatch.setattr(java, "preflight", never)
    assert "METEOR" not in score(HYPOTHESES, REFERENCES).corpus
    assert "METEOR" not in score(HYPOTHESES, REFERENCES, meteor=None, spice=False).facts
