"""Batches through a transform that does nothing: the cost of a transform inside GetBatch.

    python -m benchmarks.etl_inline            # writes the table beside this file

One node is a separate process with objects of 10 KiB. A client requests batches of 128, one after another, of a Python
function that runs in as many workers as there are cores. "kept" requests results that the node has kept, and "plain"
requests the objects themselves. "job" passes the same objects through the same transform as an inspection, which writes
nothing. It shows what the node can do when no client waits for results in order.

Expected: Some 25 inputs are read at a time, and go to a worker in bursts of 5 to 40, like those of a job. But the end
of a batch waits for the last worker, and the client requests the next batch when it has the previous one. So the rate
is 0.7 of the job's. Before, each object was read and sent by itself: 1,170 to 1,450 objects/s in three alternating
runs. Since then, 3,110 to 3,670, with 240 us of processor time instead of 580 to 750.

Found: A quarter to 0.4 of the job's rate, depending on the load. Bursts have 10 objects on average instead of 25,
because each takes its share of what is waiting at that moment, and workers are idle while a batch is delivered and the
next one is requested.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ais_loader import Entry, connect
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.harness import Claim, claims_table, conclude, judge, page, rates_table, run_rounds

SIZE_BYTES = 10 << 10
BATCH = 128
TABLE = Path(__file__).with_name("etl_inline.md")
CLAIMS = [Claim("transformed", "job", 0.7), Claim("kept", "plain", 0.7)]


def nothing(data: memoryview) -> memoryview:
    return data


def contestants(held: ExitStack, count: int) -> dict[str, Callable[[], float]]:
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
    node = held.enter_context(NodeProcess(folder / "drive", arguments=["--set", "etl_code=true"]))
    client = held.enter_context(connect(node.url))
    bucket = client.create_bucket("from")
    client.create_bucket("to")
    names = [f"{at:06d}" for at in range(count)]
    bucket.put_many((name, seeded_bytes(SIZE_BYTES, at)) for at, name in enumerate(names))
    client.etl.init("nothing", nothing)
    numbers = iter(range(1 << 20))

    def batches(entry: Callable[[str], Any]) -> float:
        began_s = time.perf_counter()
        for start in range(0, count, BATCH):
            some = [entry(name) for name in names[start : start + BATCH]]
            assert len(client.get_batch(some).tobytes()) == len(some)
        return count / (time.perf_counter() - began_s)

    def transformed() -> float:
        args = {"never": next(numbers)}  # other arguments are other results
        return batches(lambda name: Entry("from", name, etl="with_args", args=args))

    def job() -> float:
        began_s = time.perf_counter()
        bucket.transform("to", etl="nothing", inspect=True)
        return count / (time.perf_counter() - began_s)

    client.etl.init("with_args", lambda data, never: data)
    batches(lambda name: Entry("from", name, etl="nothing"))
    return {
        "plain": lambda: batches(lambda name: Entry("from", name)),
        "kept": lambda: batches(lambda name: Entry("from", name, etl="nothing")),
        "transformed": transformed,
        "job": job,
    }


@click.command(help=__doc__)
@click.option("--count", default=4_000, show_default=True, help="Objects.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table.")
def main(count: int, rounds: int, keep: bool) -> None:
    with ExitStack() as held:
        rates = run_rounds(contestants(held, count), rounds)
    outcomes = judge(rates, CLAIMS)
    text = page(
        "A transform inside GetBatch",
        __doc__ or "",
        f"{rounds} rounds of {count:,} objects; node, workers and client share the cores.",
        rates_table(rates, "objects/s"),
        claims_table(outcomes),
    )
    print(text)
    conclude(text + "\n", TABLE if keep else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
