"""Build source distribution and wheel, look into both, install the wheel into an empty environment, and use it there.

python .ci/wheel.py [FOLDER]   (make wheel): FOLDER, by default build/wheel, keeps the two files.
Only the package index is needed, for the installation; what runs after it has no network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 50_000_000
"""Bytes of a wheel: the models in it have at most 40 MB together."""

INSTALLED = """
import importlib.metadata as m, json, re
names = lambda d: [re.match(r"[\\w.-]+", r)[0] for r in d.requires or () if "extra ==" not in r]
print(json.dumps({d.name: names(d) for d in m.distributions()}))
"""
"""Prints what is installed, each with what it requires."""


def fail(text: str) -> None:
    sys.exit(f"wheel: {text}")


def run(*command: object, cwd: Path = ROOT, status: int = 0, **variables: str) -> str:
    """stdout of a command, which must end with `status`; with another one, or 2, stderr as well."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode != status:
        fail(f"{' '.join(words)} ended with {done.returncode}, not {status}:\n{done.stdout}{done.stderr}")
    return done.stdout + (done.stderr if status else "")


def plain(name: str) -> str:
    """A package's name as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def files_of(folder: str) -> set[str]:
    """Files of the checkout under a folder, caches left out."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix not in (".pyc", ".part")}


def build(out: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel built from it and not from the checkout."""
    for old in out.glob("vitcap-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", out)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def look_into(source: Path, wheel: Path) -> None:
    """The wheel holds the package and all its data, and nothing else; the source distribution, the whole checkout."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = files_of("vitcap")
    if lacking := sorted(wanted - names):
        fail(f"the wheel lacks {', '.join(lacking)}: add them to package-data in pyproject.toml")
    if extra := sorted(names - wanted):
        fail(f"the wheel holds {', '.join(extra)}, which are no files of the package")
    if wheel.stat().st_size > LARGEST:
        fail(f"the wheel has {wheel.stat().st_size / 1e6:.0f} MB, more than {LARGEST / 1e6:.0f}")
    info = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("licenses/LICENSE")]
    if not info:
        fail("the wheel lacks the licence")
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        name for folder in ("vitcap", "conf", "scripts", "tests", "docs", "notebooks") for name in files_of(folder)
    }
    wanted |= {"Makefile", "mkdocs.yml", "README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", ".ci/run"}
    if lacking := sorted(wanted - packed):
        fail(f"the source distribution lacks {', '.join(lacking)}: add them to MANIFEST.in")


def only_what_is_needed(python: Path) -> int:
    """Number of installed packages, after a check that none is there for an extra's sake."""
    found: dict[str, list[str]] = json.loads(run(python, "-c", INSTALLED))
    needed = {plain(name) for package, names in found.items() if plain(package) != "vitcap" for name in names}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed |= {plain(re.split(r"[<>=\[]", item)[0]) for item in project["dependencies"]}
    optional: Iterable[str] = (item for items in project["optional-dependencies"].values() for item in items)
    barred = {plain(re.split(r"[<>=\[]", item)[0]) for item in optional} - needed - {"vitcap"}
    if wrong := sorted(barred & {plain(name) for name in found}):
        fail(f"installed without being asked for: {', '.join(wrong)}")
    return len(found)


def photo(folder: Path) -> None:
    """photo.jpg: a real one where VITCAP_DATA has it, else a drawn one."""
    real = sorted(Path(os.environ.get("VITCAP_DATA", "/nowhere")).glob("flickr8k/images/*.jpg"))[:1]
    if real:
        (folder / "photo.jpg").write_bytes(real[0].read_bytes())
        return
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (320, 240), (120, 170, 230))
    ImageDraw.Draw(picture).ellipse((90, 60, 230, 200), fill=(150, 90, 40))
    picture.save(folder / "photo.jpg")


def use(folder: Path, binaries: Path) -> str:
    """What the first minute with the package looks like, in a folder away from the checkout and without network."""
    away = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    away |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    vitcap = binaries / "vitcap"
    place = run(binaries / "python", "-c", "import vitcap; print(vitcap.__file__)", cwd=folder, **away)
    if not place.startswith(str(binaries.parent)):
        fail(f"the package is imported from {place.strip()}, not from the new environment")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if run(vitcap, "--version", cwd=folder, **away).strip() != f"vitcap {version}":
        fail("vitcap --version does not say the version of pyproject.toml")
    if not run(vitcap, "models", cwd=folder, **away).strip():
        fail("vitcap models lists nothing")
    photo(folder)
    caption = run(vitcap, "caption", "photo.jpg", cwd=folder, **away)
    if not re.fullmatch(r"photo\.jpg\t\w+( \S+){2,}\n", caption):
        fail(f"vitcap caption photo.jpg printed {caption!r}")
    run(vitcap, "overlay", "photo.jpg", "--out", "overlays", cwd=folder, **away)
    if not (folder / "overlays" / "photo.png").is_file():
        fail("vitcap overlay wrote no overlays/photo.png")
    for words in (("serve",), ("export", "flickr8k", "--to", "onnx", "--out", "exported")):
        told = run(vitcap, *words, cwd=folder, status=2, **away)
        if "pip install" not in told or "vitcap[" not in told or told.count("\n") != 1:
            fail(f"vitcap {' '.join(words)} without its extra does not say in one line what to install: {told}")
    return caption.strip()


def main(arguments: list[str]) -> None:
    out = Path(arguments[0]) if arguments else ROOT / "build" / "wheel"
    source, wheel = build(out)
    look_into(source, wheel)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB; {source.name}: {source.stat().st_size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.monotonic()
        venv.create(folder / "env", with_pip=True)
        binaries = folder / "env" / "bin"
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")  # little of what is installed is run here
        run(binaries / "python", "-m", "pip", "install", *quiet, wheel)
        count = only_what_is_needed(binaries / "python")
        print(f"installed with {count} packages in {time.monotonic() - start:.0f} s, none of them for tests or extras")
        (folder / "desk").mkdir()
        print(use(folder / "desk", binaries))


if __name__ == "__main__":
    main(sys.argv[1:])
