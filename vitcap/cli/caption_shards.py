"""`vitcap caption` of tar shards: a file of captions for each shard, by as many processes as one likes."""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcap.cli.options import UsageError, build_search, load
from vitcap.cli.prefetch import Ready, read_ahead
from vitcap.cli.rows import dump, record, spell
from vitcap.files import whole

ABOUT = "captions.json"
_OTHERS = {"from_file": "--from-file", "template": "--template", "min_confidence": "--min-confidence"}
_OTHERS |= {"sidecar": "--sidecar", "write_metadata": "--write-metadata", "overwrite": "--overwrite"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap caption` that are for shards."""
    group = parser.add_argument_group(
        "shards",
        "where all that is named are tar archives ('shards/{000..009}.tar', http(s) addresses, pipe:COMMAND), --out is "
        "a folder that gets a file for each; shards that have theirs are skipped",
    )
    part = "only every N-th shard, from the K-th on, counted from 1; torchrun and srun divide them by themselves"
    group.add_argument("--part", metavar="K/N", type=_part, help=part)
    kinds = "jsonl, a line for each picture (default), or tar, with KEY.json for each"
    group.add_argument("--shard-format", choices=("jsonl", "tar"), help=kinds)


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: K/N is wanted, such as 2/8")
    return int(found[1]) - 1, int(found[2])


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether the command line names shards. UsageError for shards and photos together, and for options of shards
    without any."""
    from vitcap.data.shards_urls import is_shard

    shards = [name for name in arguments.photos if is_shard(name)]
    if shards and len(shards) < len(arguments.photos):
        other = next(name for name in arguments.photos if not is_shard(name))
        raise UsageError(f"{shards[0]} is a shard and {other} is not: caption them by two commands")
    if not shards and (arguments.part is not None or arguments.shard_format is not None):
        raise UsageError("--part and --shard-format are for shards (names that end in .tar): there is none")
    return bool(shards)


def share(arguments: argparse.Namespace) -> tuple[int, int]:
    """(number from 0, count) of this process: by --part, torchrun's RANK and WORLD_SIZE, or srun's variables."""
    if arguments.part is not None:
        return arguments.part
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        # The commands of a batch script run once, whatever the number of tasks.
        if os.environ.get(rank, "").isdigit() and os.environ.get(world, "").isdigit():
            if rank == "SLURM_PROCID" and "SLURM_STEP_ID" not in os.environ:
                continue
            number, count = int(os.environ[rank]), int(os.environ[world])
            if number >= count:
                raise UsageError(
                    f"{rank}={number} with {world}={count}: from 0 to one less is wanted; or give --part K/N"
                )
            return number, count
    return 0, 1


def run(arguments: argparse.Namespace) -> int:
    """Caption shards: writes OUT/SHARD.jsonl (or .tar) for each, whole or not at all.

    Exit status 1 where pictures or whole shards could not be read. The same command tries such shards again; pictures
    have a line with the error.
    """
    from vitcap.data.shards_urls import ShardError, expand, stem

    if given := [option for name, option in _OTHERS.items() if getattr(arguments, name, None) not in (None, False)]:
        raise UsageError(f"{given[0]} is for photos, not for shards: leave it out")
    if arguments.out is None:
        raise UsageError("shards need --out FOLDER, which gets a file of captions for each")
    out, suffix = Path(arguments.out), arguments.shard_format or "jsonl"
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: a file; shards need a folder, which gets a file of captions for each")
    shards = expand(arguments.photos, trusted=True)
    results = {shard: out / f"{stem(shard)}.{suffix}" for shard in shards}
    if len(set(results.values())) < len(shards):
        raise UsageError("two shards have the same name, so their captions would: caption them into two folders")
    if inside := [shard for shard, result in results.items() if Path(shard).absolute() == result.absolute()]:
        raise UsageError(f"{inside[0]}: its captions would replace it: name another folder with --out")
    rank, count = share(arguments)
    mine = shards[rank::count]
    todo = [shard for shard in mine if not results[shard].exists()]
    if not arguments.quiet:
        print(f"vitcap: {len(todo)} shards to caption, {len(mine) - len(todo)} done before", file=sys.stderr)
    if not mine:
        return 0
    captioner = load(_own_device(arguments))
    search = build_search(arguments, captioner.search, arguments.n_best) or captioner.search
    _require_same(out, {"model": captioner.fingerprint, "options": spell(search, seed=arguments.seed)})
    failed = 0
    for number, shard in enumerate(todo, 1):
        begin, bad, done = time.monotonic(), 0, 0
        try:
            with _writer(results[shard], suffix) as write:
                for row in _rows(captioner, search, shard, arguments):
                    done += 1
                    if "error" in row:
                        bad += 1
                        print(f"vitcap: skipped {row['error']}", file=sys.stderr)
                    write(row)
                if not done:
                    raise ShardError(f"{shard}: there is no picture in it")
        except ShardError as error:
            failed += 1
            print(f"vitcap: failed {error}", file=sys.stderr)
            continue
        failed += bad > 0
        if not arguments.quiet:
            speed = done / max(time.monotonic() - begin, 1e-9)
            told = f"{done - bad} captions, {bad} pictures could not be read, {speed:.1f}/s"
            print(f"vitcap: {results[shard]}: {told} ({number} of {len(todo)} shards)", file=sys.stderr)
    return 1 if failed else 0


def _own_device(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with a GPU of its own for each process of a machine that torchrun or srun started."""
    local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")
    if arguments.device is None and arguments.part is None and local and local.isdigit():
        import torch

        if gpus := torch.cuda.device_count():
            return argparse.Namespace(**vars(arguments) | {"device": f"cuda:{int(local) % gpus}"})
    return arguments


def _rows(captioner: Any, search: Any, shard: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is written of every picture of a shard, in its order; threads prepare them for the model, a little ahead."""
    import torch

    from vitcap.data.shards_sample import read_samples
    from vitcap.data.shards_urls import stem
    from vitcap.types import Batch

    size, workers = arguments.batch_size, arguments.workers
    samples: Any = read_samples(shard)  # read_ahead hands them on, and reads no path
    prepare: Any = lambda sample: captioner.preprocess(sample.open())  # noqa: E731
    # Drawn captions depend on the shard and the batch alone, and not on what else this process has done.
    seed = None if arguments.seed is None else arguments.seed + zlib.crc32(stem(shard).encode())

    def stack(inputs: Sequence[Any]) -> Batch:
        return Batch(ids=tuple(range(len(inputs))), images=torch.stack(list(inputs)))

    def finish(items: Sequence[Ready], number: int) -> Iterator[dict[str, Any]]:
        inputs = [item.found for item in items if isinstance(item.found, torch.Tensor)]
        options = {"search": search, "n_best": 1, "need_attention": False, "batch_size": size}
        options["seed"] = None if seed is None else seed + number * 1_000_003
        found = iter(captioner.write_all(inputs, stack, **options) if inputs else [])
        for item in items:
            sample: Any = item.path
            head = {"key": sample.key, "id": sample.id}
            if isinstance(item.found, Exception):
                yield head | {"error": str(item.found)}
            else:
                row = record("", next(found), captioner.tokenizer)
                yield head | {name: value for name, value in row.items() if name != "image"}

    batch: list[Ready] = []
    number = 0
    for item in read_ahead(samples, prepare, workers=workers, ahead=size + workers):
        batch.append(item)
        if len(batch) == size:
            yield from finish(batch, number)
            batch, number = [], number + 1
    yield from finish(batch, number)


@contextmanager
def _writer(path: Path, suffix: str) -> Iterator[Any]:
    """A function that takes the rows of one shard; the file is there when all are."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):  # of a run that was killed: a shard is of one
        part.unlink(missing_ok=True)
    with whole(path) as part:
        if suffix == "jsonl":
            with part.open("w", encoding="utf-8", newline="\n") as lines:
                yield lambda row: lines.write(dump(row) + "\n")
            return
        from vitcap.data.shards_urls import library

        options: dict[str, Any] = {"encoder": False, "mtime": 0, "user": "", "group": "", "mode": 0o644}
        with part.open("wb") as file, library().TarWriter(file, **options) as tar:
            yield lambda row: tar.write({"__key__": row["key"], "json": dump(row).encode("utf-8")})


def _require_same(out: Path, made: dict[str, str]) -> None:
    """Captions of one folder are of one model and search: UsageError where it holds others."""
    file = out / ABOUT
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        with whole(file) as part:
            part.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    except ValueError:
        before = None
    if before != made:
        raise UsageError(f"{file}: the captions in this folder are of another model or search; give another --out")
