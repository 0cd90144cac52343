"""Who waits: eight causes of a slow run, made for real, and the cause that `BatchLoader.explain` names.

    python -m benchmarks.training.who_waits  # writes the table beside this file

Each run trains on 12 batches of 16 objects of 200 KB whose step takes a millisecond, with one thing slow:

- *drive*: each read of the node's drive takes 3 ms longer (`slow_reads.c`, preloaded), and finds nothing cached.
- *queue*: the node serves one batch at a time, and another client has it.
- *peer*: one of two nodes of a cluster is stopped nine tenths of the time.
- *cloud*: every object is read from remote storage, which takes 20 ms to answer.
- *throttle*: the same, and remote storage refuses two of three requests with "SlowDown".
- *decode*: decoding a sample computes for 3 ms.
- *collate*: collating a batch computes for 50 ms.
- *processor*: decoding computes for 1 ms, while eight processes for each processor compute all the time.

Prediction, before the first run: the loader's own stages are always right. "drive" and "network" are the ones that can
be confused, as the last frame of a batch brought its END with it, which was written before the frame was read.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ais_loader
from ais_loader import BatchLoader, Client, MapDataset, ShufflePlan
from ais_loader.loading.records import cause_of
from ais_loader.testing.node import NodeProcess
from benchmarks.kit.harness import conclude, page
from tests.cluster_processes import ClusterProcesses
from tests.remote.backend_kit import ANY_HOST, Asked, DecidedServer, Reply, content

SAMPLES, BATCH, SIZE_BYTES = 192, 16, 200_000
DATA = os.urandom(SIZE_BYTES)


def compute(seconds: float) -> None:
    """Use the processor for so long, in time of this thread."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        sum(range(1000))


def filled(client: Client) -> list[str]:
    bucket = client.create_bucket("data")
    bucket.put_many((f"{at:04}", DATA) for at in range(SAMPLES))
    return [f"ais://data/{at:04}" for at in range(SAMPLES)]


def loader(
    client: Client, entries: list[str], decode: Callable[[Any], Any] | None = None, **options: Any
) -> BatchLoader:
    return BatchLoader(MapDataset(client, entries, decode), ShufflePlan(len(entries), batch_size=BATCH), **options)


def slow_reads(folder: Path, store: Path) -> dict[str, str]:
    """Return the environment of a process for which the drive of a store is slow. Its library is put into `folder`."""
    library = folder / "slow_reads.so"
    source = Path(__file__).with_name("slow_reads.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SLOW_READS_FOLDER": str(store.resolve()), "SLOW_READS_MS": "3"}


@contextlib.contextmanager
def drive(folder: Path) -> Iterator[BatchLoader]:
    store = folder / "store"
    slow = slow_reads(folder, store)
    with NodeProcess(store, environment=slow) as node, ais_loader.connect(node.url) as client:
        yield loader(client, filled(client))


@contextlib.contextmanager
def repeated(step: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a step again and again in a thread. It ends early once the event is set."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            step(stop)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def queue(folder: Path) -> Iterator[BatchLoader]:
    with (
        NodeProcess(folder / "store", arguments=["--set", "max_active_batches=1"]) as node,
        ais_loader.connect(node.url) as client,
        ais_loader.connect(node.url) as other,
    ):
        entries = filled(client)

        def occupy(stop: threading.Event) -> None:
            for _ in other.get_batch(entries):
                stop.wait(0.002)

        with repeated(occupy):
            yield loader(client, entries)


@contextlib.contextmanager
def peer(folder: Path) -> Iterator[BatchLoader]:
    with ClusterProcesses(folder, nodes=2) as cluster, ais_loader.connect(cluster.url) as client:
        entries = filled(client)

        def disturb(stop: threading.Event) -> None:
            cluster.nodes[1].pause()
            stop.wait(0.045)
            cluster.nodes[1].resume()
            stop.wait(0.005)

        with repeated(disturb):
            yield loader(client, entries)


@contextlib.contextmanager
def remote_loader(folder: Path, decide: Callable[[Asked], Reply | None], **options: Any) -> Iterator[BatchLoader]:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
    with (
        DecidedServer(decide) as server,
        NodeProcess(folder / "store", environment=keys, arguments=ANY_HOST) as node,
        ais_loader.connect(node.url) as client,
    ):
        client.create_bucket("data", remote=server.remote())
        yield loader(client, [f"ais://data/{at:04}" for at in range(SAMPLES)], **options)


def cloud(folder: Path) -> contextlib.AbstractContextManager[BatchLoader]:
    def decide(asked: Asked) -> Reply:
        time.sleep(0.02)
        return content(asked, DATA)

    return remote_loader(folder, decide)


def throttle(folder: Path) -> contextlib.AbstractContextManager[BatchLoader]:
    def decide(asked: Asked) -> Reply:
        time.sleep(0.02)
        return content(asked, DATA) if asked.number % 3 == 0 else Reply(503, b"<Error><Code>SlowDown</Code></Error>")

    return remote_loader(folder, decide)


@contextlib.contextmanager
def _stored(folder: Path, **options: Any) -> Iterator[BatchLoader]:
    with ais_loader.connect(folder / "store") as client:
        yield loader(client, filled(client), **options)


def decode(folder: Path) -> contextlib.AbstractContextManager[BatchLoader]:
    return _stored(folder, decode=lambda item: compute(0.003))


def collate(folder: Path) -> contextlib.AbstractContextManager[BatchLoader]:
    return _stored(folder, collate=lambda samples: compute(0.05))


@contextlib.contextmanager
def processor(folder: Path) -> Iterator[BatchLoader]:
    busy = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in range(8 * len(os.sched_getaffinity(0)))]
    try:
        with _stored(folder, decode=lambda item: compute(0.001)) as found:
            yield found
    finally:
        for other in others:
            other.kill()
            other.wait()


CAUSES: tuple[Callable[[Path], contextlib.AbstractContextManager[BatchLoader]], ...] = (
    drive, queue, peer, cloud, throttle, decode, collate, processor,
)  # fmt: skip


def named(cause: Callable[[Path], contextlib.AbstractContextManager[BatchLoader]]) -> tuple[str, str]:
    """Train while this cause is there. Return the cause that the loader names, and its sentence."""
    with tempfile.TemporaryDirectory(prefix="ais-loader-waits-") as folder, cause(Path(folder)) as found, found:
        for _ in found:
            time.sleep(0.001)
        return cause_of(found.summary()), found.explain()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--only", action="append", help="a cause")
    options.add_argument("--no-table", action="store_true")
    asked = options.parse_args()
    causes = [cause for cause in CAUSES if asked.only is None or cause.__name__ in asked.only]
    counts: dict[str, Counter[str]] = {cause.__name__: Counter() for cause in causes}
    said: dict[str, str] = {}
    for _ in range(asked.rounds):
        for cause in causes:
            found, said[cause.__name__] = named(cause)
            counts[cause.__name__][found] += 1
    right = sum(counts[name][name] for name in counts)
    runs = asked.rounds * len(causes)
    rows = ["| cause | named right | otherwise |", "|---|---:|---|"]
    for name, of in counts.items():
        other = ", ".join(f"{one} {count}" for one, count in of.items() if one != name)
        rows.append(f"| {name} | {of[name]} of {asked.rounds} | {other} |")
    text = page(
        "Who waits",
        __doc__ or "",
        f"{asked.rounds} rounds. Right: **{right} of {runs}**; wanted: 95 %.",
        "\n".join(rows),
        "Said in the last round:",
        "\n".join(f"- {sentence}" for sentence in said.values()),
    )
    print(text)
    conclude(text + "\n", None if asked.no_table else Path(__file__).with_suffix(".md"), reached=right >= 0.95 * runs)


if __name__ == "__main__":
    main()
