"""Audit log: the same reads of a node that logs them and of one that does not, over gRPC and over a Unix lane.

Both nodes have the same objects, and take turns in every round. The page cache is warm, and every byte is compared with
its checksum. What is measured is the processor time of client and node together: a line for each batch, and for each
single GET, is made and written by the node.

    python -m benchmarks.reads.audit  # 10 KiB; writes the table beside this file
    python -m benchmarks.reads.audit --rounds 3 --no-write
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import psutil

from ais_loader import ClusterOptions, connect
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, label, load, machine, rates_table, run_rounds
from benchmarks.kit.load import fill
from benchmarks.reads.tls import WAYS, batches, gets, per_processor_s, read_batches, read_single

TABLE = Path(__file__).with_suffix(".md")
SIZE_BYTES, COUNT = 10 << 10, 12_800
OFF, READS, NAMES = "off", "reads", "reads with names"
SETTINGS = {OFF: ("off", "false"), READS: ("reads", "false"), NAMES: ("reads", "true")}
CLAIMS = [
    Claim(of(level, way), of(OFF, way), at_least)
    for way in WAYS
    for of, at_least in ((batches, 0.95), (gets, 0.0))
    for level in (READS, NAMES)
]
"""A batch of 128 has one line, as a single GET has, whose cost is reported."""


def measure(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Objects per second of processor time of each way, in each round."""
    contestants: dict[str, Callable[[], float]] = {}
    with ExitStack() as held:
        for level, (audit_level, names) in SETTINGS.items():
            entries = fill(folder / level, COUNT, SIZE_BYTES).entries
            arguments = ["--set", f"audit_level={audit_level}", "--set", f"audit_names={names}"]
            node = held.enter_context(NodeProcess([folder / level], arguments=arguments))
            process = psutil.Process(node.pid)
            for way, choice in WAYS.items():
                options = ClusterOptions(lane=choice, retry_s=60.0)
                client = held.enter_context(connect(node.url, options=options))
                for of, read in ((batches, read_batches), (gets, read_single)):
                    contestants[of(level, way)] = partial(per_processor_s, process, partial(read, client, entries))
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)


@click.command(help=__doc__)
@click.option("--rounds", default=9, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(rounds: int, write: bool) -> None:
    heading = (
        f"# Audit log\n\n{(__doc__ or '').strip().splitlines()[0]}\n\nMachine: {machine()}. {load()}. "
        f"{rounds} rounds. Rates are objects per second of processor time, of client and node together.\n"
    )
    with tempfile.TemporaryDirectory() as here:
        rates = measure(rounds, Path(here))
    outcomes = judge(rates, CLAIMS)
    section = (
        f"## {COUNT:,} objects of {label(SIZE_BYTES)}\n\n{rates_table(rates, 'objects/CPU-s', SIZE_BYTES)}\n\n"
        f"{claims_table(outcomes)}\n"
    )
    click.echo(section)
    reached = all(outcome.reached for outcome in outcomes)
    conclude(f"{heading}\n{section}", TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
