"""Comparison of two checkouts of this repository: the same work, in turns, in one run, by processor time.

Isolates what a change of the code costs. Each tree runs in processes of its own interpreter (`TREE/.venv`), which stay
alive between rounds with their stores and nodes; only one of them works at a time. What is compared is the processor
time, user's and system's, that the client and all nodes have taken for one object, as the kernel counts it for each
process: whatever else a machine does is not in it, but for the caches that it makes colder. What nodes do when nobody
asks for anything has rows of its own, and is taken off the others: a busy machine would have more of it in each.

So a busy machine only ever adds, now much and now little, and what counts is each tree's cheapest eighth of its turns,
which are short and many: the eighth's upper bound of the one through that of the other. Beside it stand the median of
the ratios within a round, with their range, and the same by the wall clock; they claim nothing.

    python -m benchmarks.report.two_trees /path/to/before /path/to/after --rounds 40
    python -m benchmarks.report.two_trees BEFORE AFTER --only "gRPC PUT" --only "embedded batches of 10 KiB"

One checkout with another version of Python in place of the second tree:

    make setup VENV=.venv-3.13 PYTHON=python3.13
    python -m benchmarks.report.two_trees . . --venv-after .venv-3.13
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

WORKER = Path(__file__).resolve()
SIZES = {"10 KiB": (10 << 10, 8_000), "100 KiB": (100 << 10, 2_000), "1 MiB": (1 << 20, 300)}
SMALL = "10 KiB"
BUCKET = "bench"
COPIES = 2
NODES = 3
BATCH = 128
IN_FLIGHT = 3
SINGLES = 100
GETS = 300
THREADS = 4
MANY = 2_000
SETTLE_S, REST_S = 2.0, 0.5
AT_LEAST = 0.97
QUIETEST = 8
"""Number of parts of a tree's turns, of which the cheapest one counts."""
BEFORE, AFTER = "before", "after"


class Turn(NamedTuple):
    """Work of one tree in a round."""

    objects: int
    wall_s: float
    processor_s: float

    @property
    def rate(self) -> float:
        """Objects per second of processor time."""
        return self.objects / self.processor_s

    @property
    def wall_rate(self) -> float:
        return self.objects / self.wall_s


class Tree:
    """One checkout's process. Commands and answers are lines of JSON."""

    def __init__(self, root: Path, venv: str, folder: Path) -> None:
        python = root / venv / "bin" / "python"
        if not python.exists():
            raise click.ClickException(f"{root} has no {venv}: run `make setup VENV={venv}` there")
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

    def turn(self, workload: str) -> Turn:
        pipe = _pipe(self._process.stdin)
        pipe.write(json.dumps(workload) + "\n")
        pipe.flush()
        return Turn(*self._answer())

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait(60)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


# -- the process of one tree: uses what both trees have, and no more


class Workload(NamedTuple):
    run: Callable[[], int]
    """Returns the number of objects."""
    prepare: Callable[[], object] = lambda: None
    """Before each run; not measured."""


class Processors:
    """Processor time of some processes together."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._clocks = [processor_clock(pid) for pid in pids]
        self.at_rest = 0.0
        """Seconds that they take for every second in which nobody asks for anything."""

    def taken_s(self) -> float:
        return sum(clock() for clock in self._clocks)

    def rest(self) -> None:
        start, started_s = time.perf_counter(), self.taken_s()
        time.sleep(4 * REST_S)
        self.at_rest = (self.taken_s() - started_s) / (time.perf_counter() - start)


def processor_clock(pid: int) -> Callable[[], float]:
    """Reads the seconds of processor time that all threads of a process have taken, those that have ended as well."""
    libc = ctypes.CDLL(None)
    clock = ctypes.c_int()
    if (number := libc.clock_getcpuclockid(pid, ctypes.byref(clock))) != 0:
        raise OSError(number, os.strerror(number))
    return partial(time.clock_gettime, clock.value)


def work(folder: Path) -> None:
    """Do what is asked for, and say what it took."""
    import ais_loader
    from ais_loader.testing import NodeProcess
    from tests.cluster_processes import ClusterProcesses

    with ExitStack() as stack:
        node = stack.enter_context(NodeProcess([folder / "node"]))
        cluster = stack.enter_context(ClusterProcesses(folder / "cluster", NODES, buckets={BUCKET: COPIES}))
        workloads: dict[str, tuple[Workload, Processors]] = {}
        for kind, where, sizes, pids in (
            ("embedded", folder / "embedded", tuple(SIZES), []),
            ("gRPC", node.url, tuple(SIZES), [node.pid]),
            ("cluster", cluster.url, (SMALL,), [one.pid for one in cluster.nodes]),
        ):
            client = stack.enter_context(ais_loader.connect(where))
            if kind != "cluster":
                client.create_bucket(BUCKET)
            processors = Processors([os.getpid(), *pids])
            of_kind = {f"{kind} {what}": workload for what, workload in workloads_of(client, sizes)}
            if pids:
                of_kind[f"{kind} at rest, a millisecond"] = Workload(rest)
            workloads |= {what: (workload, processors) for what, workload in of_kind.items()}
        time.sleep(SETTLE_S)
        for processors in {id(of): of for _, of in workloads.values()}.values():
            processors.rest()
        print(json.dumps(list(workloads)), flush=True)
        for line in sys.stdin:
            workload, processors = workloads[json.loads(line)]
            workload.prepare()
            start, started_s = time.perf_counter(), processors.taken_s()
            count = workload.run()
            taken_s, wall_s = processors.taken_s() - started_s, time.perf_counter() - start
            if workload.run is not rest:
                taken_s -= wall_s * processors.at_rest
            print(json.dumps([count, wall_s, taken_s]), flush=True)


def rest() -> int:
    time.sleep(REST_S)
    return round(REST_S * 1000)


def workloads_of(client: Any, sizes: Sequence[str]) -> Iterator[tuple[str, Workload]]:
    import random

    from ais_loader import Entry

    bucket, data = client.bucket(BUCKET), bytes(SIZES[SMALL][0])
    singles = [f"single/{number}" for number in range(SINGLES)]
    many = [f"many/{number}" for number in range(MANY)]

    def names(size: str) -> list[str]:
        return [f"{size}/{number:06d}" for number in range(SIZES[size][1])]

    @functools.cache
    def fill(size: str) -> None:
        pool = random.Random(0).randbytes(SIZES[size][0] + SIZES[size][1])
        bucket.put_many((name, pool[at : at + SIZES[size][0]]) for at, name in enumerate(names(size)))

    def batches(size: str) -> int:
        drawn = names(size)
        random.Random(1).shuffle(drawn)
        lists = [[Entry(BUCKET, name) for name in drawn[at : at + BATCH]] for at in range(0, len(drawn), BATCH)]
        return sum(1 for batch in client.get_batches(lists, in_flight=IN_FLIGHT) for _ in batch)

    def gets() -> int:
        return sum(1 for name in names(SMALL)[:GETS] if bucket.get(name))

    def puts() -> int:
        return sum(1 for name in singles if bucket.put(name, data))

    def puts_of_threads() -> int:
        with ThreadPoolExecutor(THREADS) as pool:
            return sum(1 for _ in pool.map(lambda name: bucket.put(name, data), singles))

    def put_many(chosen: Sequence[str]) -> int:
        bucket.put_many((name, data) for name in chosen)
        return len(chosen)

    def deletes() -> int:
        for name in singles:
            bucket.delete(name)
        return len(singles)

    def delete_many() -> int:
        bucket.delete_many(many)
        return len(many)

    for size in sizes:
        yield f"batches of {size}", Workload(partial(batches, size), partial(fill, size))
    yield f"GET of {SMALL}", Workload(gets, partial(fill, SMALL))
    yield f"PUT of {SMALL}", Workload(puts)
    yield f"PUT of {SMALL} by {THREADS} threads", Workload(puts_of_threads)
    yield f"PutMany of {SMALL}", Workload(partial(put_many, many))
    yield "DELETE", Workload(deletes, partial(put_many, singles))
    yield "DeleteMany", Workload(delete_many, partial(put_many, many))


# -- the comparison

HEADER = f"""\
| workload | µs {BEFORE} | µs {AFTER} | wanted | processor time | median of rounds | range | wall clock | |
|---|---:|---:|---:|---:|---:|---:|---:|---|"""


def row(workload: str, turns: dict[str, list[Turn]]) -> tuple[str, bool]:
    """Return a row of the table, and whether the target was reached."""
    quiet_us = {
        name: statistics.quantiles([1e6 / turn.rate for turn in of], n=QUIETEST)[0] for name, of in turns.items()
    }
    ratio = quiet_us[BEFORE] / quiet_us[AFTER]
    rounds = [after.rate / before.rate for before, after in zip(turns[BEFORE], turns[AFTER], strict=True)]
    wall = [after.wall_rate / before.wall_rate for before, after in zip(turns[BEFORE], turns[AFTER], strict=True)]
    reached = round(ratio, 2) >= AT_LEAST
    line = (
        f"| {workload} | {quiet_us[BEFORE]:,.0f} | {quiet_us[AFTER]:,.0f} | ≥ {AT_LEAST:g} | **{ratio:.2f}** "
        f"| {statistics.median(rounds):.2f} | {min(rounds):.2f} – {max(rounds):.2f} | {statistics.median(wall):.2f} "
        f"| {'reached' if reached else 'MISSED'} |"
    )
    return line, reached


@click.command(help=__doc__)
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
@click.option("--venv-before", default=".venv", show_default=True, metavar="DIR", help="Environment in the first tree.")
@click.option("--venv-after", default=".venv", show_default=True, metavar="DIR", help="Environment in the second tree.")
@click.option("--rounds", default=40, show_default=True)
@click.option("--only", multiple=True, help="A workload, or the beginning of its name; may be given again.")
def main(before: Path, after: Path, venv_before: str, venv_after: str, rounds: int, only: tuple[str, ...]) -> None:
    from benchmarks.kit.harness import conclude, load, machine, run_rounds

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        trees = {}
        for name, root, venv in ((BEFORE, before, venv_before), (AFTER, after, venv_after)):
            trees[name] = Tree(root.resolve(), venv, Path(folder, name))
            stack.callback(trees[name].close)
        rows, reached = [], True
        for workload in trees[AFTER].workloads:
            if only and not workload.startswith(only):
                continue
            for tree in trees.values():  # what the first time alone has to do is no part of it
                tree.turn(workload)
            turns = run_rounds({name: partial(tree.turn, workload) for name, tree in trees.items()}, rounds)
            line, as_wanted = row(workload, turns)
            reached &= as_wanted
            rows.append(line)
            click.echo(line, err=True)
    click.echo("\n".join([f"{machine()}. {load()}. {rounds} rounds.", "", HEADER, *rows]))
    conclude("", None, reached=reached)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        main()
