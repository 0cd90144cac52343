"""Promotion compared with a client that puts the same files on the same machine.

    python -m benchmarks.writes.promote  # writes the table beside this file

Files and drives are in memory. Each round promotes and puts all files of one size, into separate buckets. The client
puts like `put -r`: it reads small files and sends them in groups, and streams large files.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import click

import ais_loader
from ais_loader import Bucket, Client
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from tests.cluster_processes import ClusterProcesses

SIZES = {"10 KiB": 10 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}
NOTICED = 0.9
"""Ratio that counts as "not slower": rounds differ by more than a tenth."""
TABLE = Path(__file__).with_suffix(".md")


def write_files(folder: Path, count: int, size_bytes: int) -> None:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:06d}").write_bytes(seeded_bytes(size_bytes, seed=number))


def put(bucket: Bucket, folder: Path) -> None:
    bucket.put_many((path.name, path) for path in sorted(folder.iterdir()))


def promote(bucket: Bucket, folder: Path) -> None:
    bucket.promote(folder)


def timed(client: Client, folder: Path, count: int, store: Callable[[Bucket, Path], None]) -> Callable[[], float]:
    """Files per second, into a new bucket each time."""
    names = (f"{store.__name__}-{folder.name}-{number}" for number in itertools.count())

    def run() -> float:
        bucket = client.create_bucket(next(names))
        began_s = time.perf_counter()
        store(bucket, folder)
        took_s = time.perf_counter() - began_s
        client.delete_bucket(bucket.name, force=True)
        return count / took_s

    return run


def stores(held: ExitStack, root: Path, files: Path) -> Iterator[tuple[str, Client]]:
    arguments = ["--promote-root", str(files)]
    yield "embedded", held.enter_context(ais_loader.connect(root / "embedded"))
    node = held.enter_context(NodeProcess(root / "node", arguments=arguments))
    yield "one node", held.enter_context(ais_loader.connect(node.url))
    cluster = held.enter_context(ClusterProcesses(root / "cluster", 3, arguments=arguments))
    yield "three nodes", held.enter_context(ais_loader.connect(cluster.url))


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--total-mib", default=64, show_default=True, help="Of the files of one size.")
@click.option("--folder", default="/dev/shm", show_default=True, help="For files and stores.")
@click.option("--table/--no-table", default=True, show_default=True, help="Write promote.md.")
def main(rounds: int, total_mib: int, folder: str, table: bool) -> None:
    contestants: dict[str, Callable[[], float]] = {}
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(dir=folder) as made, ExitStack() as held:
        root, files = Path(made), Path(made) / "files"
        files.mkdir()
        counts = {text: min(4000, (total_mib << 20) // size) for text, size in SIZES.items()}
        for text, size in SIZES.items():
            write_files(files / text.replace(" ", ""), counts[text], size)
        for store, client in stores(held, root, files):
            for text, count in counts.items():
                source = files / text.replace(" ", "")
                contestants[f"put, {store}, {text}"] = timed(client, source, count, put)
                contestants[f"promote, {store}, {text}"] = timed(client, source, count, promote)
                claims.append(Claim(f"promote, {store}, {text}", f"put, {store}, {text}", NOTICED))
        rates = run_rounds(contestants, rounds)
    told = ", ".join(f"{count:,} of {text}" for text, count in counts.items())
    publish(
        "Promotion against PUT",
        __doc__,
        f"{rounds} rounds; files: {told}. Client and nodes share the cores.",
        rates,
        "files/s",
        claims,
        table=TABLE if table else None,
    )


if __name__ == "__main__":
    main()
