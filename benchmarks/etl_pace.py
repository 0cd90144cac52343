"""How much of the cores' own pace a job reaches: utterances to WAV on one node, by PyAV and by FFmpeg.

    python -m benchmarks.etl_pace            # writes the table beside this file

The repository's 100 recordings (8 kHz FLAC, 2.8 s each) are joined, four of a language at a time, into utterances as
long as those of the post on transforms that etl_seed.md repeats: 11 s, 124 KB of FLAC, which become 2 MB of stereo WAV
of 44.1 kHz. Each is stored under many names in one bucket of one node, with one copy. A job passes all of them to a
Python function that decodes with PyAV, or to the command `ffmpeg`, with as many workers as there are cores, started
before timing begins. "Own pace" is the same number of processes with the same priority that do the same work on the
same utterances in their memory and discard the results: what the cores could do if reading, passing and writing were
free. "Inspected" is the job without writing. Each round runs every contestant once, and ratios are computed within a
round.

The second table shows what takes the processor time of each utterance: the transform itself (the time at its own pace),
the workers beyond that, and the node, which reads, passes, checksums and stores. This time does not depend on other
load on the machine, except through the caches.

Prediction, written before the first run: By PyAV, an utterance costs 9 ms of a core. Its WAV is copied five times on
its way (into the worker's file, out of it, into Python's bytes, into a message for the coordinator, into the object's
file) and checksummed twice, which takes 3 ms for 2 MB: 0.75 of the own pace. FFmpeg takes 60 ms to start and decode:
0.93.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import click
import cloudpickle
import psutil

from ais_loader import Client, connect
from ais_loader.testing import eventually
from ais_loader.testing.cluster import ClusterProcesses
from ais_loader.wire.generated import ais_etl_pb2 as pb
from benchmarks.harness import Claim, claims_table, conclude, judge, page, rates_table, run_rounds
from examples.etl import flac_to_wav
from storage_node.etl.worker.process_limits import NICENESS
from tests.data import utterances

CORES = len(os.sched_getaffinity(0))
TOGETHER = 4
"""Recordings in an utterance."""
TABLE = Path(__file__).with_name("etl_pace.md")
PYAV, FFMPEG = "PyAV", "FFmpeg"
KINDS = PACE, JOB, INSPECTED = "own pace", "job", "inspected"


def by_pyav(data: bytes) -> bytes:
    return flac_to_wav.by_pyav(bytes(data), 2, 44100)


def by_ffmpeg(data: bytes) -> bytes:
    return flac_to_wav.flac_to_wav(bytes(data), 2, 44100)


_WAYS = {PYAV: by_pyav, FFMPEG: by_ffmpeg}
_utterances: list[bytes] = []
"""In a process of the own pace: nothing is sent to it but numbers."""


def joined() -> list[bytes]:
    """Utterances as FLAC, each of several recordings of one language."""
    by_language: dict[str, list[bytes]] = {}
    for one in utterances():
        by_language.setdefault(one.lang, []).append(one.path.read_bytes())
    found = []
    for recordings in by_language.values():
        left = iter(recordings)
        while some := list(islice(left, TOGETHER)):
            found.append(_join(some))
    return found


def _join(recordings: list[bytes]) -> bytes:
    import av

    made = BytesIO()
    with av.open(made, "w", format="flac") as target:
        stream = target.add_stream("flac", rate=8000, layout="mono")
        for recording in recordings:
            with av.open(BytesIO(recording)) as source:
                for frame in source.decode(audio=0):
                    frame.pts = None
                    target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    return made.getvalue()


def _ready(given: list[bytes]) -> None:
    os.nice(NICENESS)  # as workers are
    _utterances.extend(given)


def _thrown_away(way: str, number: int) -> int:
    return len(_WAYS[way](_utterances[number % len(_utterances)]))


class Spent(NamedTuple):
    """Processor time of one contestant's turn, in ms for each utterance."""

    transform: float
    workers: float
    node: float


class Bench:
    def __init__(self, held: ExitStack, counts: dict[str, int]) -> None:
        self._folder = folder = held.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        self._data, self._counts = joined(), counts
        self._pool = held.enter_context(
            ProcessPoolExecutor(CORES, get_context("spawn"), initializer=_ready, initargs=(self._data,))
        )
        arguments = ["--etl-code", "--set", f"etl_workers={CORES}"]
        cluster = held.enter_context(ClusterProcesses(folder, 1, buckets={"from": 1, "none": 1}, arguments=arguments))
        self._node = psutil.Process(cluster.nodes[0].pid)
        for module in (by_pyav.__module__, flac_to_wav.__name__):  # workers do not have them
            cloudpickle.register_pickle_by_value(sys.modules[module])
        python = pb.PythonCode(pickle=cloudpickle.dumps(by_pyav), python=f"{sys.version_info[0]}.{sys.version_info[1]}")
        cluster.map.transform.append(pb.Transform(name=PYAV, uuid=uuid.uuid4().bytes, python=python))
        command = pb.Command(argument=flac_to_wav.FFMPEG.split())
        cluster.map.transform.append(pb.Transform(name=FFMPEG, uuid=uuid.uuid4().bytes, command=command))
        cluster.map.version += 1
        cluster.teach()
        self._client: Client = held.enter_context(connect(cluster.url))
        self._names = [f"{number:06d}.flac" for number in range(max(counts.values()))]
        data = ((name, self._data[number % len(self._data)]) for number, name in enumerate(self._names))
        self._client.bucket("from").put_many(data)
        self._sources = _objects(folder)
        self._buckets = iter(range(1 << 20))
        self.spent: dict[str, list[Spent]] = {}

    def contestants(self) -> dict[str, Callable[[], float]]:
        """Utterances a second."""
        runs = {PACE: self._pace, JOB: self._job, INSPECTED: self._inspect}
        return {
            f"{way}: {kind}": partial(self._measured, f"{way}: {kind}", way, runs[kind])
            for way in self._counts
            for kind in KINDS
        }

    def _measured(self, name: str, way: str, run: Callable[[str], None]) -> float:
        before, began_s = self._times(), time.perf_counter()
        run(way)
        wall_s = time.perf_counter() - began_s
        count = self._counts[way]
        spent = [1e3 * (after - earlier) / count for after, earlier in zip(self._times(), before, strict=True)]
        self.spent.setdefault(name, []).append(Spent(*spent))
        self._clear()
        return count / wall_s

    def _clear(self) -> None:
        """Returns when nothing is left of what jobs have made: to delete it is nobody's work that is measured."""
        for bucket in self._client.buckets():
            if bucket.name.startswith("to-"):
                self._client.delete_bucket(bucket.name, force=True)
        eventually(lambda: _objects(self._folder) <= self._sources, timeout_s=20)

    def _times(self) -> Spent:
        pools = sum(_seconds(psutil.Process(pid)) for pid in list(self._pool._processes))
        workers = sum(_seconds(child) for child in self._node.children())
        return Spent(pools, workers, _seconds(self._node, children=False))

    def _pace(self, way: str) -> None:
        for _ in self._pool.map(_thrown_away, [way] * self._counts[way], range(self._counts[way]), chunksize=4):
            pass

    def _job(self, way: str) -> None:
        self._run(way, f"to-{next(self._buckets)}", inspect=False)

    def _inspect(self, way: str) -> None:
        self._run(way, "none", inspect=True)

    def _run(self, way: str, to_bucket: str, *, inspect: bool) -> None:
        self._client.create_bucket(to_bucket, exist_ok=True)
        names = self._names[: self._counts[way]]
        job = self._client.bucket("from").transform(to_bucket, etl=way, names=names, inspect=inspect)
        if job.counts.transformed != len(names):
            raise click.ClickException(f"{way}: {job.counts}")


def _objects(folder: str) -> int:
    """Files of objects of all drives below."""
    return sum(len(files) for path, _, files in os.walk(folder) if "/objects/" in path)


def _seconds(process: psutil.Process, *, children: bool = True) -> float:
    """That it has taken, with those that it has started and waited for."""
    times = process.cpu_times()
    own: float = times.user + times.system
    return own + (times.children_user + times.children_system if children else 0.0)


def spent_table(spent: dict[str, list[Spent]]) -> str:
    """Medians over the rounds."""
    lines = [
        "| processor time of an utterance, ms | transform | workers beside | node: read, pass, sum | node: write | all "
        "| transform ÷ all |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for way in _WAYS:
        if f"{way}: {JOB}" not in spent:
            continue
        of = {kind: [statistics.median(one) for one in zip(*spent[f"{way}: {kind}"], strict=True)] for kind in KINDS}
        transform, workers = of[PACE][0], of[JOB][1] - of[PACE][0]
        passing, writing = of[INSPECTED][2], of[JOB][2] - of[INSPECTED][2]
        whole = of[JOB][1] + of[JOB][2]
        lines.append(
            f"| {way} | {transform:.2f} | {workers:.2f} | {passing:.2f} | {writing:.2f} | {whole:.2f} "
            f"| {transform / whole:.2f} |"
        )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--pyav", default=400, show_default=True, help="Utterances by PyAV; 0 for none.")
@click.option("--ffmpeg", default=100, show_default=True, help="Utterances by FFmpeg; 0 for none.")
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table.")
def main(rounds: int, pyav: int, ffmpeg: int, keep: bool) -> None:
    if ffmpeg and not shutil.which("ffmpeg"):
        raise click.UsageError("FFmpeg is not installed here: install it, or run --ffmpeg 0 --no-keep")
    counts = {way: count for way, count in ((PYAV, pyav), (FFMPEG, ffmpeg)) if count}
    with ExitStack() as held:
        bench = Bench(held, counts)
        rates = run_rounds(bench.contestants(), 1 + rounds)  # in the first one processes are started
        rates = {name: of[1:] for name, of in rates.items()}
        spent = {name: of[1:] for name, of in bench.spent.items()}
    outcomes = judge(rates, [Claim(f"{way}: {JOB}", f"{way}: {PACE}", 0.95) for way in counts])
    text = page(
        "A job and the cores' own pace",
        __doc__ or "",
        f"{rounds} rounds of {' and '.join(f'{count} utterances by {way}' for way, count in counts.items())}; "
        "one node, which shares the cores with its workers.",
        rates_table(rates, "utterances/s"),
        spent_table(spent),
        claims_table(outcomes),
    )
    print(text)
    conclude(text + "\n", TABLE if keep else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
