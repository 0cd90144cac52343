"""Disk use of small objects under random overwrites and deletions, with and without compaction of segments.

    python -m benchmarks.writes.churn  # some minutes; writes the table beside this file

Two embedded stores are filled with objects of 500 bytes in random order, with `put_many`, and closed: their disk use
then is 1. In each round, as many objects as there are are drawn at random, with repetition, and put again with other
bytes, in both stores, in turns. Disk use is measured when the upkeep of both stores has nothing left to do: dead bytes
have been removed, which takes 5 s, and with compaction, no segment is less than half live any more. At the end, nine of
ten objects are deleted at random, the rest is read and compared, and the stores are closed. "catalog" is RocksDB with
its log, which has a size of its own however many objects there are. "put" is the time of the round's `put_many`. Which
store is first changes from round to round: the second one's puts share the processor with the removal of what the first
one's have left, and with its compaction.

Expected from the threshold of one half: segments are between half and fully live, about 70 % on average, so that random
overwrites take 1.4 times a fresh store. Before segments were compacted, two rounds took 2.7 times the payload, and a
deletion of 90 % left 12.9 times the payload.

Found: 1.2 to 1.4 times a fresh store, where it is 4.5 times without compaction and still grows. The catalog takes up to
0.3 of that. Puts take as long with compaction as without.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

import ais_loader
from ais_loader import Client, EmbeddedOptions
from ais_loader.testing.waiting import eventually
from benchmarks.kit.harness import conclude, page

TABLE = Path(__file__).with_suffix(".md")
OBJECT_BYTES = 500
SETTLING_S = 600.0
"""Maximum time until the upkeep of both stores has nothing left to do."""
LIMIT = 1.6


def used_bytes(folder: Path) -> tuple[int, int]:
    """Space that the objects take on the disk, and the catalog."""
    sums = {"objects": 0, "catalog": 0}
    for top in sums:
        for path in (folder / top).rglob("*"):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue  # a segment, or a log, that has just been removed
            sums[top] += found.st_blocks * 512 if path.is_file() else 0
    return sums["objects"], sums["catalog"]


@dataclass(slots=True)
class Churned:
    """One of the two stores."""

    folder: Path
    compact_bytes_per_s: int
    contents: dict[str, bytes] = field(default_factory=dict)
    fresh_bytes: int = 0

    def open(self) -> Client:
        options = EmbeddedOptions(compact_bytes_per_s=self.compact_bytes_per_s)
        return ais_loader.connect(self.folder, options=options)

    def fill(self, names: Sequence[str], seed: int) -> None:
        draw = random.Random(seed)
        self.contents = {name: draw.randbytes(OBJECT_BYTES) for name in draw.sample(names, len(names))}
        with self.open() as client:
            client.create_bucket("b").put_many(self.contents.items())
        self.fresh_bytes = sum(used_bytes(self.folder))

    def overwrite(self, client: Client, seed: int) -> float:
        """Put as many objects as there are again, at random. Returns the time that it took."""
        draw = random.Random(seed)
        names = draw.choices(sorted(self.contents), k=len(self.contents))
        pairs = [(name, draw.randbytes(OBJECT_BYTES)) for name in names]
        started_s = time.monotonic()
        client.bucket("b").put_many(pairs)
        self.contents.update(pairs)
        return time.monotonic() - started_s

    def delete_most(self, client: Client, seed: int) -> None:
        gone = random.Random(seed).sample(sorted(self.contents), len(self.contents) * 9 // 10)
        client.bucket("b").delete_many(gone)
        for name in gone:
            del self.contents[name]

    def require_contents(self, client: Client) -> None:
        bucket = client.bucket("b")
        for name, data in self.contents.items():
            if bucket.get(name) != data:
                raise AssertionError(f"{name} has other bytes than those that were put last")

    def row(self, put_s: float | None = None) -> list[str]:
        objects, catalog = used_bytes(self.folder)
        total = (objects + catalog) / self.fresh_bytes
        return [f"{total:.2f}", f"{catalog / self.fresh_bytes:.2f}", "" if put_s is None else f"{put_s:.1f} s"]

    def ratio(self) -> float:
        return sum(used_bytes(self.folder)) / self.fresh_bytes


def wait_until_settled(clients: Sequence[Client]) -> None:
    """Wait until nothing is left to be removed or moved. Raises TimeoutError."""
    for client in clients:
        store = client._transport._store  # type: ignore[attr-defined]
        eventually(lambda store=store: store.upkeep.is_idle, SETTLING_S, interval_s=0.1)


@click.command(help=__doc__)
@click.option("--objects", default=20_000, show_default=True)
@click.option("--rounds", default=10, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(objects: int, rounds: int, folder: Path | None, write: bool) -> None:
    names = [f"{number:08}" for number in range(objects)]
    table = [
        "| after | without compaction: disk use | catalog | put | with compaction: disk use | catalog | put |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory(dir=folder) as where:
        stores = [
            Churned(Path(where) / "without", 0),
            Churned(Path(where) / "with", EmbeddedOptions().compact_bytes_per_s),
        ]
        for store in stores:
            store.fill(names, 0)
        table.append(_line("filling", [store.row() for store in stores]))
        with ExitStack() as held:
            clients = [held.enter_context(store.open()) for store in stores]
            for number in range(1, rounds + 1):
                puts_s = [0.0, 0.0]
                for at in (0, 1) if number % 2 else (1, 0):
                    puts_s[at] = stores[at].overwrite(clients[at], number)
                wait_until_settled(clients)
                rows = [store.row(put_s) for store, put_s in zip(stores, puts_s, strict=True)]
                table.append(_line(f"round {number}", rows))
                click.echo(table[-1])
            ratio = stores[1].ratio()
            for store, client in zip(stores, clients, strict=True):
                store.delete_most(client, rounds + 1)
            wait_until_settled(clients)
            table.append(_line("deleting 90 %", [store.row() for store in stores]))
            for store, client in zip(stores, clients, strict=True):
                store.require_contents(client)
        table.append(_line("closing", [store.row() for store in stores]))
        payload = objects // 10 * OBJECT_BYTES
        left = [sum(used_bytes(store.folder)) / payload for store in stores]
    reached = ratio <= LIMIT
    fresh = stores[1].fresh_bytes / objects / OBJECT_BYTES
    verdict = (
        f"After {rounds} rounds, disk use with compaction is **{ratio:.2f}** times that of a fresh store; wanted: at "
        f"most {LIMIT}: {'reached' if reached else 'MISSED'}. After the deletion and closing, it is {left[0]:.1f} "
        f"times the payload that is left without compaction, and {left[1]:.1f} times with it; a fresh store takes "
        f"{fresh:.2f} times its payload."
    )
    text = page("Disk use under random overwrites", __doc__ or "", f"{objects:,} objects.", "\n".join(table), verdict)
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=reached)


def _line(label: str, rows: Sequence[Sequence[str]]) -> str:
    return f"| {label} | {' | '.join(cell for row in rows for cell in row)} |"


if __name__ == "__main__":
    main()
