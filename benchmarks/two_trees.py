"""Comparison of two checkouts of this repository: the same work, in turns, in one run.

Isolates what a change of the code costs. Each tree runs in processes of its own interpreter (`TREE/.venv`), which stay
alive between rounds with their stores and nodes; only one of them works at a time. A ratio is taken within a round.

    python -m benchmarks.two_trees /path/to/before /path/to/after --rounds 9
    python -m benchmarks.two_trees BEFORE AFTER --only put --only "embedded batches of 10 KiB"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

WORKER = Path(__file__).resolve()
SIZES = {"10 KiB": (10 << 10, 8_000), "100 KiB": (100 << 10, 2_000), "1 MiB": (1 << 20, 300)}
BUCKET = "bench"
BATCH = 128
IN_FLIGHT = 3
SINGLE_GETS = 1_500
PUTS, PUT_BYTES = 400, 10 << 10
AT_LEAST = 0.98
BEFORE, AFTER = "before", "after"


class Tree:
    """One checkout's process. Commands and answers are lines of JSON."""

    def __init__(self, root: Path, folder: Path) -> None:
        python = root / ".venv" / "bin" / "python"
        if not python.exists():
            raise click.ClickException(f"{root} has no .venv: run `make setup` there")
        # By its path, not as a module: an older tree has no such benchmark. Its folder comes first on the path.
        environment = {**os.environ, "PYTHONPATH": str(root)}
        command = [str(python), "-P", str(WORKER), "--worker", str(folder)]
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.workloads: list[str] = self._answer()

    def _answer(self) -> Any:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise click.ClickException(f"the process of a tree has ended with {self._process.wait()}")
        return json.loads(line)

    def rate(self, workload: str) -> float:
        """Objects per second."""
        pipe = _pipe(self._process.stdin)
        pipe.write(json.dumps(workload) + "\n")
        pipe.flush()
        return float(self._answer())

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait(30)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def work(folder: Path) -> None:
    """The process of one tree: fill its stores, then run what is asked for. Uses what both trees have, and no more."""
    import random

    import ais_loader
    from ais_loader.testing import NodeProcess

    def names(size: str) -> list[str]:
        return [f"{size}/{number:06d}" for number in range(SIZES[size][1])]

    def objects(size: str) -> Iterator[tuple[str, bytes]]:
        pool = random.Random(0).randbytes(SIZES[size][0] + SIZES[size][1])
        return ((name, pool[at : at + SIZES[size][0]]) for at, name in enumerate(names(size)))

    def batches(client: ais_loader.Client, size: str) -> Callable[[], int]:
        def run() -> int:
            drawn = names(size)
            random.Random(1).shuffle(drawn)
            lists = [
                [ais_loader.Entry(BUCKET, name) for name in drawn[at : at + BATCH]]
                for at in range(0, len(drawn), BATCH)
            ]
            return sum(1 for batch in client.get_batches(lists, in_flight=IN_FLIGHT) for _ in batch)

        return run

    def gets(client: ais_loader.Client) -> Callable[[], int]:
        bucket = client.bucket(BUCKET)
        return lambda: sum(1 for name in names("10 KiB")[:SINGLE_GETS] if bucket.get(name))

    def puts(client: ais_loader.Client) -> Callable[[], int]:
        bucket, data = client.bucket(BUCKET), bytes(PUT_BYTES)
        return lambda: sum(1 for number in range(PUTS) if bucket.put(f"put/{number}", data))

    def put_many(client: ais_loader.Client) -> Callable[[], int]:
        bucket, data = client.bucket(BUCKET), bytes(PUT_BYTES)

        def run() -> int:
            done(bucket.put_many((f"many/{number}", data) for number in range(10 * PUTS)))
            return 10 * PUTS

        return run

    def done(result: Any) -> None:
        # Before, putting many was lazy.
        if isinstance(result, Iterable):
            deque(result, maxlen=0)

    with ExitStack() as stack:
        client = stack.enter_context(ais_loader.connect(folder / "embedded"))
        node = stack.enter_context(NodeProcess([folder / "node"]))
        remote = stack.enter_context(ais_loader.connect(node.url))
        workloads: dict[str, Callable[[], int]] = {}
        for kind, one in (("embedded", client), ("gRPC", remote)):
            bucket = one.create_bucket(BUCKET)
            for size in SIZES:
                done(bucket.put_many(objects(size)))
                workloads[f"{kind} batches of {size}"] = batches(one, size)
            workloads[f"{kind} GET of 10 KiB"] = gets(one)
            workloads[f"{kind} PUT of 10 KiB"] = puts(one)
            workloads[f"{kind} PutMany of 10 KiB"] = put_many(one)
        print(json.dumps(list(workloads)), flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            count = workloads[json.loads(line)]()
            print(json.dumps(count / (time.perf_counter() - start)), flush=True)


@click.command(help=__doc__)
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
@click.option("--rounds", default=9, show_default=True)
@click.option("--only", multiple=True, help="A workload, or the beginning of its name; may be given again.")
def main(before: Path, after: Path, rounds: int, only: tuple[str, ...]) -> None:
    from benchmarks.harness import Claim, claims_table, conclude, judge, load, machine, run_rounds

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        trees = {
            BEFORE: Tree(before.resolve(), Path(folder, BEFORE)),
            AFTER: Tree(after.resolve(), Path(folder, AFTER)),
        }
        for tree in trees.values():
            stack.callback(tree.close)
        rows, reached = [], True
        for workload in trees[AFTER].workloads:
            if only and not workload.startswith(only):
                continue
            rates = run_rounds({name: partial(tree.rate, workload) for name, tree in trees.items()}, rounds)
            subject = f"{workload}, {AFTER}"
            outcomes = judge({subject: rates[AFTER], BEFORE: rates[BEFORE]}, [Claim(subject, BEFORE, AT_LEAST)])
            reached &= outcomes[0].reached
            rows.append(claims_table(outcomes).splitlines()[-1])
            click.echo(rows[-1], err=True)
    header = claims_table([]).splitlines()
    click.echo("\n".join([f"{machine()}. {load()}. {rounds} rounds.", "", *header, *rows]))
    conclude("", None, reached=reached)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        main()
