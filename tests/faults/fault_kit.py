"""Helpers for batches under faults: objects, batches of every kind, and a trainer who checks all that comes."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from ais_loader import Bucket, Item, SnapshotInfo, connect, errors
from ais_loader.testing import NodeProcess, SeededObjects, eventually, rss_bytes, throwaway_folder
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_replica_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT
from tests.peer_kit import PROCESS_OPERATOR

MiB = 1 << 20
SMALL = SeededObjects({f"s/{at:04d}": (60_000 + 7 * at, at) for at in range(200)})
LARGE = SeededObjects({f"l/{at}": (9 * MiB + at, 900 + at) for at in range(3)})
OBJECTS = SMALL | LARGE
MIXED = [*list(SMALL)[:60], "l/0", *list(SMALL)[60:120], "l/1", "l/2", *list(SMALL)[120:]]
"""39 MB: of every node more than it may send ahead."""
MODES = [("direct", True), ("direct", False), ("target", True), ("target", False)]
BUCKETS = {"one": 1, "two": 2}
"""How many copies of each object there are in them."""


@dataclass(frozen=True)
class Kind:
    """One way to ask."""

    assembly: str
    ordered: bool
    streaming: bool = True
    colocation: str = "none"

    def options(self) -> dict[str, Any]:
        return vars(self).copy()

    @classmethod
    def drawn(cls, draw: random.Random) -> Kind:
        assembly = draw.choice(["direct", "target", "auto"])
        return cls(assembly, draw.random() < 0.6, draw.random() < 0.8, draw.choice(["none", "none", "owner"]))


def check(items: Sequence[Item], names: Sequence[str], content: Mapping[str, bytes] = OBJECTS) -> None:
    """All of a batch, good and whole; its items in order, or put in order by the caller."""
    assert [item.index for item in items] == list(range(len(names)))
    for item, name in zip(items, names, strict=True):
        assert item.ok, (name, item.error)
        assert crc32c(item.data) == crc32c(content[name]), name
        assert item.tobytes() == content[name], name


def read(
    bucket: Bucket,
    names: Sequence[str],
    kind: Kind,
    *,
    at: int = -1,
    harm: Callable[[], object] = bool,
    content: Mapping[str, bytes] = OBJECTS,
    **options: Any,
) -> None:
    """A whole batch, checked; `harm` is done when `at` items of it have come."""
    batch = bucket.get_batch(list(names), **kind.options(), **options)
    items: list[Item] = []
    if at == 0:
        harm()
    for item in batch:
        items.append(item)
        if len(items) == at:
            harm()
    if not kind.ordered:
        items.sort(key=lambda item: item.index)
    check(items, names, content)


def fill(url: str) -> None:
    with connect(url, options=PATIENT_CLIENT) as client:
        for name in BUCKETS:
            assert client.bucket(name).put_many(OBJECTS.items()).stored == len(OBJECTS)


@contextmanager
def three_nodes(arguments: Sequence[str] = ()) -> Iterator[ClusterProcesses]:
    """With all objects in both buckets, on all their owners. `arguments`: of each node's `serve`."""
    with (
        throwaway_folder() as folder,
        ClusterProcesses(folder, 3, buckets=BUCKETS, metrics=True, arguments=arguments) as cluster,
    ):
        fill(cluster.url)
        serve_all(cluster)
        yield cluster


def designated(cluster: ClusterProcesses) -> int:
    """The node that gathers the one batch under way in this cluster."""

    def found() -> list[int]:
        busy = [node.alive and node.numbers()["ais_loader_active_batches"] > 0 for node in cluster.nodes]
        return [number for number, is_busy in enumerate(busy) if is_busy]

    def only() -> list[int]:
        """What went before may still be ending on others."""
        busy = found()
        return busy if len(busy) == 1 else []

    [number] = eventually(only)
    return number


def serve_all(cluster: ClusterProcesses, numbers: Sequence[int] | None = None) -> None:
    """Wait until every node has compared its copies with those of the others, and answers for all of them.

    `numbers`: of these nodes alone, where another one is down.
    """

    def sure(node: NodeProcess) -> bool:
        with PROCESS_OPERATOR.through(grpc.insecure_channel(node.peer_endpoint), node.peer_endpoint) as channel:
            answer = rpc.RepairStub(channel).Progress(pb.ProgressRequest(), timeout=180)
        return not answer.doubtful_names and not answer.doubtful_bucket

    nodes = cluster.nodes if numbers is None else [cluster.nodes[number] for number in numbers]
    eventually(lambda: all(map(sure, nodes)), interval_s=0.1)


def take_snapshot(bucket: Bucket, name: str) -> SnapshotInfo:
    """Take a snapshot when all nodes answer. On a busy machine, one may be silent for a moment, and then none is."""
    has_failed = False

    def taken() -> SnapshotInfo | None:
        nonlocal has_failed
        try:
            return bucket.snapshot(name)
        except errors.SnapshotExists:
            if not has_failed:
                raise
            return next((one for one in bucket.snapshots() if one.name == name), None)
        except errors.LoaderError as error:
            if not error.retryable and not isinstance(error, errors.OutcomeUnknown):
                raise
            has_failed = True
            return None

    made = eventually(taken, interval_s=0.2)
    assert made is not None
    return made


# -- what must be given back


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


def allocated_bytes() -> int:
    """What malloc has given out, over all its arenas; 0 where that is not known (only glibc says it)."""
    gc.collect()
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _MallocInfo
    info = ask()
    return int(info.uordblks + info.hblkhd)


class Leftovers:
    """What this process has before clients are made, to be compared when they are closed. A context manager."""

    def __init__(
        self,
        allocated_bytes: int = 24 * MiB,
        resident_bytes: int = 96 * MiB,
        *,
        descriptors_of_others: Callable[[], int] = int,
    ) -> None:
        """Resident is more than allocated: each thread that there has been leaves malloc an arena full of holes.

        `descriptors_of_others`: those that come and go in this process whatever its clients do.
        """
        self._limits_bytes = allocated_bytes, resident_bytes
        self._descriptors_now = lambda: descriptors() - descriptors_of_others()

    def __enter__(self) -> Leftovers:
        self._threads = threading.active_count()
        self._descriptors = self._descriptors_now()
        self._used_bytes = allocated_bytes(), rss_bytes()
        return self

    def warm(self) -> None:
        """From now on memory counts: what is made once has been made."""
        self._used_bytes = allocated_bytes(), rss_bytes()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            eventually(lambda: threading.active_count() <= self._threads)
            eventually(lambda: self._descriptors_now() <= self._descriptors)
            for now, before, limit in zip(
                (allocated_bytes(), rss_bytes()), self._used_bytes, self._limits_bytes, strict=True
            ):
                assert now - before < limit, f"{now - before:,} bytes more than before"


def nothing_held(cluster: ClusterProcesses) -> None:
    """No node has anything left of any batch."""
    held: dict[str, float] = {}

    def nothing() -> bool:
        nonlocal held
        held = cluster.holds()
        return not held

    try:
        eventually(nothing, interval_s=0.1)
    except AssertionError:
        raise AssertionError(f"nodes still hold {held}") from None
