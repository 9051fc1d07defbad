"""METEOR (Denkowski and Lavie 2014) and SPICE (Anderson et al. 2016, arXiv:1607.08822) through their Java programs.

The programs are those of the COCO caption evaluation, as the package pycocoevalcap ships them: METEOR 1.5 with
`-l en -norm`, and SPICE 1.0 with `-subset`, to which the two jars of CoreNLP 3.6.0 must be added. Captions go in
tokenised. `preflight` says whether a program can start, before anything has been spent on captions.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitcap.metrics.bleu import check
from vitcap.metrics.jvm import LOCALE, JavaFailed, JavaUnavailable, find_java, hear, running, say

__all__ = ["CATEGORIES", "JavaFailed", "JavaUnavailable", "Program", "meteor", "preflight", "spice"]

CATEGORIES = ("Object", "Relation", "Attribute", "Color", "Cardinality", "Size")
"""Kinds of propositions for which SPICE gives F-scores of their own."""

_JARS = {"METEOR": "meteor-1.5.jar", "SPICE": "spice-1.0.jar"}
_CORENLP = "http://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
# SPICE's cache is written with a library that looks into these packages; since Java 16 they must be opened to it.
_OPENED = ("lang", "math", "net", "text", "util", "util.concurrent")
_STATISTICS = re.compile(r"-?[\d.]+(?:E-?\d+)?(?: -?[\d.]+(?:E-?\d+)?){22}")


class Program(NamedTuple):
    """A program that can start. java: the command, version and major: of Java, jar: the program."""

    java: str
    version: str
    major: int
    jar: Path


def preflight(metric: str, *, folder: str | Path | None = None, java: str | Path | None = None) -> Program:
    """What a program needs to start, checked in a moment. metric: "METEOR" or "SPICE".

    folder: where its jar lies; default: in the installed package pycocoevalcap. java: the command; default: the one of
    JAVA_HOME, else `java` on the path. Raises JavaUnavailable, naming what is missing and how to get it.
    """
    if metric not in _JARS:
        raise ValueError(f"metric={metric!r}: known are {', '.join(_JARS)}")
    if folder is None:
        package = importlib.util.find_spec("pycocoevalcap")
        if package is None or not package.submodule_search_locations:
            raise JavaUnavailable(
                f"{metric}: the package pycocoevalcap, which holds the program, is not installed; "
                f"install it (pip install pycocoevalcap), or name the folder of {_JARS[metric]}"
            )
        folder = Path(next(iter(package.submodule_search_locations))) / metric.lower()
    jar = Path(folder).absolute() / _JARS[metric]
    if not jar.is_file():
        raise JavaUnavailable(f"{metric}: no {jar.name} in {jar.parent}; it is part of pycocoevalcap")
    needed = _class_path(jar) if metric == "SPICE" else [Path("data", "paraphrase-en.gz")]
    if missing := [name for name in needed if not (jar.parent / name).is_file()]:
        how = "install pycocoevalcap again"
        if any("corenlp" in name.name for name in missing):
            how = f"pycocoevalcap does not ship CoreNLP 3.6.0: take its two jars out of {_CORENLP}"
        raise JavaUnavailable(f"{metric}: missing in {jar.parent}: {', '.join(map(str, missing))}; {how}")
    program = Program(*find_java(java), jar)
    found = f"{program.java} is version {program.version}"
    if metric == "SPICE" and program.major < 8:
        raise JavaUnavailable(f"SPICE needs Java 8 or later, {found}; name another one with java=...")
    if metric == "SPICE" and program.major >= 15 and not list((jar.parent / "lib").glob("nashorn*.jar")):
        raise JavaUnavailable(
            f"SPICE writes its result with the JavaScript engine that Java had up to version 14, {found}; name an "
            f"older one with java=..., or put the jars of nashorn-core 15 and of asm into {jar.parent / 'lib'}"
        )
    return program


def _class_path(jar: Path) -> list[Path]:
    """The jars that a jar names in its manifest, relative to its folder."""
    try:
        with zipfile.ZipFile(jar) as content:
            manifest = content.read("META-INF/MANIFEST.MF").decode()
    except (zipfile.BadZipFile, KeyError) as error:
        raise JavaUnavailable(f"{jar}: not a Java archive ({error}); install pycocoevalcap again") from None
    line = re.search(r"^Class-Path: (.+)$", re.sub(r"\r?\n ", "", manifest), re.MULTILINE)
    return [Path(name) for name in line[1].split()] if line else []


def meteor(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    folder: str | Path | None = None,
    java: str | Path | None = None,
    limit: float = 900.0,
    memory: str = "2G",
) -> tuple[float, NDArray[np.float64]]:
    """METEOR 1.5 in 0..1: the score of the whole set (not the mean), and the score of each image (I,).

    hypotheses: one tokenised caption per image. references: the tokenised reference captions of each image, at least
    one. folder, java: see `preflight`. limit: seconds. memory: of Java, as in `-Xmx`.
    Raises JavaUnavailable or JavaFailed.
    """
    check(hypotheses, references)
    program = preflight("METEOR", folder=folder, java=java)
    command = [program.java, *LOCALE, f"-Xmx{memory}", "-jar", str(program.jar), "-", "-", "-stdio"]
    command += ["-l", "en", "-norm"]
    statistics = []
    with running("METEOR", command, limit=limit, talk=True) as process:
        for i, (hypothesis, captions) in enumerate(zip(hypotheses, references, strict=True)):
            # The caption comes last. An empty one leaves a blank behind the separator: Java drops a last part of "".
            say(process.stdin, " ||| ".join(["SCORE", *map(_one_line, captions), _one_line(hypothesis)]))
            wanted = f"the statistics of caption {i} ({hypothesis[:60]!r})"
            answer = hear(process.stdout, wanted)
            if not _STATISTICS.fullmatch(answer):
                raise ValueError(f"it gave {answer[:80]!r} for {wanted}")
            statistics.append(answer)
        say(process.stdin, " ||| ".join(["EVAL", *statistics]))
        scores = [float(hear(process.stdout, f"the score of caption {i}")) for i in range(len(hypotheses))]
        corpus = float(hear(process.stdout, "the score of the set"))
    return corpus, np.array(scores)


def _one_line(caption: str) -> str:
    """A caption as a part of METEOR's lines: no line break, no tab, no separator. A no-break space stays."""
    words = re.split("[\t-\r\x1c-\x1e\x85\u2028\u2029 ]+", re.sub(r"\|{3,}", " ", caption))
    return " ".join(filter(None, words))


def spice(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    folder: str | Path | None = None,
    java: str | Path | None = None,
    limit: float = 3600.0,
    memory: str = "8G",
    cache: str | Path | None = None,
    threads: int | None = None,
) -> tuple[float, NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """SPICE 1.0 in 0..1: the mean F-score over the images, the F-score of each image (I,), and those by category.

    The last: each of CATEGORIES -> (I,), NaN where the references of an image have no proposition of that kind.
    cache: folder in which the program keeps the parses of captions for later calls (made if need be); default: none.
    threads: of the parser; default: all cores. The other arguments are those of `meteor`. Nothing is written beside the
    program. Raises JavaUnavailable or JavaFailed.
    """
    check(hypotheses, references)
    program = preflight("SPICE", folder=folder, java=java)
    pairs = zip(hypotheses, references, strict=True)
    rows = [{"image_id": i, "test": caption, "refs": list(captions)} for i, (caption, captions) in enumerate(pairs)]
    classes = os.pathsep.join([str(program.jar), str(program.jar.parent / "lib" / "*")])
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED if program.major > 8]
    with tempfile.TemporaryDirectory(prefix="spice") as temporary:
        given, result = Path(temporary, "captions.json"), Path(temporary, "scores.json")
        given.write_text(json.dumps(rows), encoding="ascii")
        command = [program.java, *LOCALE, *opened, f"-Xmx{memory}", "-cp", classes, "edu.anu.spice.SpiceScorer"]
        command += [str(given), "-out", str(result), "-subset", "-silent"]
        if cache is not None:
            Path(cache).mkdir(parents=True, exist_ok=True)
            command += ["-cache", str(Path(cache).absolute())]
        if threads is not None:
            command += ["-threads", str(threads)]
        with running("SPICE", command, limit=limit, talk=False) as process:
            if process.wait() or not result.is_file():
                raise ValueError("it wrote no scores")
            found = {row["image_id"]: row["scores"] for row in json.loads(result.read_text(encoding="utf-8"))}
            if found.keys() != set(range(len(rows))):
                raise ValueError(f"it scored {len(found)} images, {len(rows)} were given")
            all_, *kinds = (
                np.array([_number(found[i][name]["f"]) for i in range(len(rows))]) for name in ("All", *CATEGORIES)
            )
    return float(all_.mean()), all_, dict(zip(CATEGORIES, kinds, strict=True))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
