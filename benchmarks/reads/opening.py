"""Opening a file and reading it, compared with `get`: objects of 10 KiB, from a node and from an embedded store.

    python -m benchmarks.reads.opening  # writes the table beside this file
    python -m benchmarks.reads.opening --before /another/tree  # with the rates of another version of this code

One thread reads objects by name, one after another, with a warm page cache. "fsspec" is `filesystem.open(path).read()`,
"pyarrow" the same through pyarrow's wrapper, as Ray Data and pandas open files. "end" opens objects of 1 MiB and reads
their last 8 bytes and then 4 KiB before them, as readers of Parquet do.

Prediction, written before the first run: opening and reading takes at most 1.3 times as long as `get`, which is 0.77 of
its rate, since it is the same request with a description in its answer. On a node it is eight times as fast as a HEAD
and a batch were.

A first version sent the first 128 KiB of larger objects as well. Reading 1 MiB whole then took 17 % longer than with a
HEAD before, because the rest was no range of whole blocks, and its end as long. With the description alone, alternating
with the code before, from a node: the end 28 % less, the first 100 bytes 37 % less, all of it 27 % less.

"member" opens and reads members of 10 KiB of a tar of 500, and "get member" gets them. Prediction, written before the
first run: the same 0.77 of the rate, and from a node three times that of the code before, which sent a HEAD, a listing
and a batch.

"pyarrow in order" opens the objects in the order of their names, when files of a node arrive together. Prediction,
written before the first run in this table: 1.5 times the rate of `get`.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import fsspec
import pyarrow.fs

from ais_loader import Bucket, connect
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from tests.tar_kit import packed_tar

OBJECT_BYTES, LARGE_BYTES = 10 << 10, 1 << 20
OBJECTS, LARGE_OBJECTS = 500, 20
SHARD = "shard.tar"
TABLE = Path(__file__).with_suffix(".md")
STORES = ("node", "embedded")
WAYS = ("get", "open", "fsspec", "pyarrow", "pyarrow in order", "get member", "member", "end")
AT_LEAST = 0.77
CLAIMS = [
    claim
    for store in STORES
    for claim in (
        Claim(f"{store}: open", f"{store}: get", AT_LEAST),
        Claim(f"{store}: member", f"{store}: get member", AT_LEAST),
    )
]
CLAIMS.append(Claim("node: pyarrow in order", "node: get", 1.5))


def by_name(
    names: list[str], read: Callable[[str], bytes], size_bytes: int, *, in_order: bool = False
) -> Callable[[], float]:
    """Return a function that reads the objects once and returns the rate in objects/s."""

    def rate() -> float:
        names.sort() if in_order else random.shuffle(names)
        began_s = time.perf_counter()
        for name in names:
            if len(read(name)) != size_bytes:
                raise SystemExit(f"{name} is not whole")
        return len(names) / (time.perf_counter() - began_s)

    return rate


def contestants(store: str, url: str, bucket: Bucket) -> Iterator[tuple[str, Callable[[], float]]]:
    names, large = [f"{at:06d}" for at in range(OBJECTS)], [f"large/{at}" for at in range(LARGE_OBJECTS)]
    files = fsspec.filesystem("ais", store=url)
    wrapped = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))

    def opened(name: str) -> bytes:
        with bucket.open(name) as file:
            return file.read()

    def by_fsspec(name: str) -> bytes:
        with files.open(f"b/{name}") as file:
            return bytes(file.read())

    def by_pyarrow(name: str) -> bytes:
        with wrapped.open_input_stream(f"b/{name}") as file:
            return bytes(file.readall())

    def got_member(name: str) -> bytes:
        return bytes(bucket.get(SHARD, member=name))

    def member(name: str) -> bytes:
        with bucket.open(SHARD, member=name) as file:
            return file.read()

    def end(name: str) -> bytes:
        with bucket.open(name) as file:
            file.seek(-8, io.SEEK_END)
            last = file.read(8)
            file.seek(-4096, io.SEEK_END)
            return file.read(4088) + last

    ways = dict(zip(WAYS, (bucket.get, opened, by_fsspec, by_pyarrow, by_pyarrow, got_member, member), strict=False))
    for way, read in ways.items():
        yield f"{store}: {way}", by_name(names, read, OBJECT_BYTES, in_order=way.endswith("in order"))
    yield f"{store}: end", by_name(large, end, 4096)


def measure(rounds: int) -> dict[str, list[float]]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        found: dict[str, Callable[[], float]] = {}
        ring = seeded_bytes(LARGE_BYTES + OBJECTS)
        for store in STORES:
            url = str(folder / store)
            if store == "node":
                url = held.enter_context(NodeProcess(url)).url
            client = held.enter_context(connect(url))
            bucket = client.create_bucket("b")
            bucket.put_many((f"{at:06d}", ring[at : at + OBJECT_BYTES]) for at in range(OBJECTS))
            bucket.put(SHARD, packed_tar({f"{at:06d}": ring[at : at + OBJECT_BYTES] for at in range(OBJECTS)}))
            bucket.put_many((f"large/{at}", ring[at : at + LARGE_BYTES]) for at in range(LARGE_OBJECTS))
            found |= dict(contestants(store, url, bucket))
        for work in found.values():  # connections, caches
            work()
        return run_rounds(found, rounds)


def of_another_tree(tree: Path, rounds: int) -> dict[str, list[float]]:
    """Return the rates of the code in another tree.

    Its native modules are built, and its ais_loader/integrations leads to its integrations.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--rates", "--rounds", str(rounds)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    found = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(found))


@click.command(help=__doc__)
@click.option("--rounds", default=15, show_default=True)
@click.option("--before", type=click.Path(path_type=Path, exists=True), help="A tree of earlier code to compare with.")
@click.option("--rates", is_flag=True, help="Print only the rates, as JSON.")
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(rounds: int, before: Path | None, rates: bool, write: bool) -> None:
    if rates:
        click.echo(json.dumps(measure(rounds)))
        return
    found = measure(rounds)
    earlier = {} if before is None else of_another_tree(before, rounds)
    publish(
        "Opening files",
        __doc__,
        f"{rounds} rounds of {OBJECTS} objects, and {LARGE_OBJECTS} of 1 MiB.",
        found | {f"before, {name}": values for name, values in earlier.items()},
        "objects/s",
        CLAIMS,
        table=TABLE if write else None,
    )


if __name__ == "__main__":
    main()
