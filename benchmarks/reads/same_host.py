"""Reads beside a node on the same host: `node:///`, an embedded store, a lane and plain files.

This isolates what stands between a client and the bytes: the same store, objects and orders, once through `node:///`,
which reads from the folder and compares with the node's last commit before each batch, once as an embedded reader,
which compares nothing, and once by the node's lane. One client process reads batches of 128 in a random order, with a
warm page cache. Every object is compared with its checksum; a file loop checks nothing. Rates are per second of
processor time, of client and node together, since neighbours only ever add to the clock on the wall.

    python -m benchmarks.reads.same_host  # writes the table beside this file

Prediction, written before the first run of this module: a batch costs a comparison with the published commit (two
loads and a `stat`, about 3 µs) and a second frame loop (about 10 µs), beside 300 µs for 128 objects of 10 KiB embedded.
`node:///` reaches 0.95 of embedded at 10 KiB and 0.98 at 100 KiB, and plain files at 100 KiB. A lane has 0.6 and 0.4 of
embedded.

Found: 0.92 and 0.93 of embedded, where about 20 µs a batch are the comparison and the second frame loop, and 3.2 times
plain files at 100 KiB. A lane has 0.3 of embedded. A first version had 0.85 and 0.88: each stream was in a cycle of
references, so that its batch stayed until the collector came. Each pass follows one that is not measured, since
the row after the file loop would pay for the heap that the loop leaves.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import psutil

import ais_loader
from ais_loader import ClusterOptions
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, label, load, machine, rates_table, run_rounds
from benchmarks.kit.load import fill
from benchmarks.loaders.peers import BATCH, FILES, PEERS, Read, Room, Samples, check, files, get_batches, orders

TABLE = Path(__file__).with_suffix(".md")
COUNTS = {10 << 10: 20_000, 100 << 10: 3_000}
NEAR, EMBEDDED, LANE = "node:///", "embedded", "lane"
CLAIMS = {
    10 << 10: [Claim(NEAR, EMBEDDED, 0.9), Claim(NEAR, LANE, 1.5)],
    100 << 10: [Claim(NEAR, EMBEDDED, 0.9), Claim(NEAR, FILES, 1.0), Claim(NEAR, LANE, 1.5)],
}
"""The wanted ratios."""


def contestant(read: Read, samples: Samples, node: psutil.Process) -> Callable[[], float]:
    passes = orders(samples)

    def spent_s() -> float:
        times = node.cpu_times()
        return time.process_time() + times.user + times.system

    def run() -> float:
        for _ in read(next(passes)):  # the contestant before it has left other bytes in the caches, and another heap
            pass
        batches, total = next(passes), 0
        start_s = spent_s()
        for batch in read(batches):
            for data in batch:
                total += len(data)
        taken_s = spent_s() - start_s
        if total != samples.count * samples.size_bytes:
            raise SystemExit(f"{total:,} bytes came of {samples.count * samples.size_bytes:,}")
        return samples.count / taken_s

    return run


def measure(samples: Samples, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Samples per second of processor time of each way, in each round."""
    with ExitStack() as held:
        served = fill(folder / "store", samples.count, samples.size_bytes)
        node = held.enter_context(NodeProcess(folder / "store"))
        (folder / "files").mkdir()
        near = held.enter_context(ais_loader.connect(f"node://{folder / 'store'}"))
        embedded = held.enter_context(ais_loader.connect(folder / "store", mode="r"))
        lane = held.enter_context(ais_loader.connect(node.url, options=ClusterOptions()))
        reads = {
            NEAR: get_batches(near, served),
            EMBEDDED: get_batches(embedded, served),
            LANE: get_batches(lane, served),
            FILES: files(Room(folder / "files", samples, served, held)),
        }
        contestants: dict[str, Callable[[], float]] = {}
        for name, read in reads.items():
            check(next(peer for peer in PEERS if peer.name == FILES), read, samples)
            contestants[name] = contestant(read, samples, psutil.Process(node.pid))
            for _ in range(3):  # mappings and buffers are made by the first passes
                contestants[name]()
        return run_rounds(contestants, rounds)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True, help=f"Write the table to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    parts = [f"# Reads on the node's host\n\n{(__doc__ or '').strip()}\n"]
    parts.append(f"Machine: {machine()}; {load()}. {rounds} rounds; batches of {BATCH}.\n")
    reached = True
    for size_bytes in map(int, sizes.split(",")):
        samples = Samples(COUNTS.get(size_bytes, 1_000), size_bytes)
        with tempfile.TemporaryDirectory() as here:
            rates = measure(samples, rounds, Path(here))
        outcomes = judge(rates, CLAIMS.get(size_bytes, []))
        reached = reached and all(outcome.reached for outcome in outcomes)
        tables = f"{claims_table(outcomes)}\n\n{rates_table(rates, 'samples/s of processor time', size_bytes)}"
        parts.append(f"## {samples.count:,} samples of {label(size_bytes)}\n\n{tables}\n")
        click.echo(parts[-1])
    conclude("\n".join(parts), TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
