"""Hand-made writes, sent to one node without the client's own routing, and what each node then holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from ais_loader.errors import ObjectNotFound
from ais_loader.wire.cluster_map import object_hashes
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from storage_node.store.buckets import ReplicaStale
from storage_node.store.checksum import crc32c
from storage_node.store.read.object_reader import StoredObjectReader, open_object
from storage_node.store.store import Store
from tests.changing_folder import files_below
from tests.node.cluster_kit import BUCKET, LocalCluster

CALL_TIMEOUT_S = 180.0
DOUBT, NOTHING = "in doubt", "nothing"


def said(cluster: LocalCluster, number: int, name: str) -> bytes | str:
    """What a reader hears of a node."""
    try:
        with contextlib.closing(open_object(cluster.batches(number).node.store, BUCKET, name)) as reader:
            return b"".join(reader)
    except ReplicaStale:
        return DOUBT
    except ObjectNotFound:
        return NOTHING


def put_messages(
    name: str, data: bytes, *, bucket: str = BUCKET, chunk: int = 1 << 20, checksum: int | None = None, **header: object
) -> Iterator[pb.PutRequest]:
    yield pb.PutRequest(header=pb.PutHeader(bucket=bucket, name=name, **header))  # type: ignore[arg-type]
    for at in range(0, len(data), chunk):
        yield pb.PutRequest(data=data[at : at + chunk])
    yield pb.PutRequest(end=pb.PutEnd(size_bytes=len(data), checksum=crc32c(data) if checksum is None else checksum))


T = TypeVar("T")


def in_time(write: Callable[[], T]) -> T:
    """Write, and again while the nodes say that they were out of touch with each other, and that nothing was changed.

    So does every client. Nodes whose process stands still for longer than their leases last are out of touch.
    """
    for _ in range(100):
        try:
            return write()
        except grpc.RpcError as error:
            if "write it again" not in error.details() or "nothing was changed" not in error.details():  # type: ignore[attr-defined]
                raise
    return write()


class Writer:
    """A context manager. Every call has a deadline and raises grpc.RpcError."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(
            url.removeprefix("grpc://"), options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.stub = rpc.ObjectsStub(self._channel)

    def put(self, name: str, data: bytes, **how: object) -> pb.ObjectInfo:
        def write() -> pb.ObjectInfo:
            done: pb.ObjectInfo = self.stub.Put(put_messages(name, data, **how), timeout=CALL_TIMEOUT_S)  # type: ignore[arg-type]
            return done

        return in_time(write)

    def put_many(self, *groups: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> list[pb.PutResult]:
        """One message for each group; the results of all, in order."""
        messages = [
            pb.PutManyRequest(
                object=[
                    pb.SmallObject(bucket=BUCKET, name=name, data=data)
                    for name, data in (group.items() if isinstance(group, Mapping) else group)
                ]
            )
            for group in groups
        ]
        answers = self.stub.PutMany(iter(messages), timeout=CALL_TIMEOUT_S)
        return [result for answer in answers for result in answer.result]

    def delete(self, name: str) -> None:
        in_time(lambda: self.stub.Delete(pb.DeleteRequest(bucket=BUCKET, name=name), timeout=CALL_TIMEOUT_S))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


def held(store: Store, bucket: str = BUCKET) -> dict[str, tuple[str, bytes | None]]:
    """Name to version and bytes, verified as they are read; None for a tombstone. Of copies in doubt too."""
    found: dict[str, tuple[str, bytes | None]] = {}
    for drive in store.drives:
        assert drive is not None
        for name, record in list(drive.scan_all(store.bucket(bucket).uuid_bytes, "", "")):
            data = None
            if not record.is_tombstone:
                fd = drive.files.open(record.path)
                data = b"".join(StoredObjectReader(drive, record, fd, name, 0, record.size_bytes, True, lambda _: None))
            found[name] = str(record.version), data
    return found


@contextlib.contextmanager
def cluster_of(
    root: Path, nodes: int = 4, *, copies: int = 2, min_copies: int = 1, **how: object
) -> Iterator[LocalCluster]:
    with LocalCluster(root, nodes, copies=copies, **how) as cluster:  # type: ignore[arg-type]
        if min_copies != 1:
            cluster.map.bucket[0].min_copies = min_copies
            cluster.learn()
        yield cluster


def copies_of(cluster: LocalCluster, name: str) -> dict[int, tuple[str, bytes | None]]:
    """Which nodes have the name, with version and bytes."""
    found = {}
    for number in range(len(cluster.nodes)):
        here = held(cluster.batches(number).node.store)
        if name in here:
            found[number] = here[name]
    return found


def staged_files(cluster: LocalCluster) -> int:
    drives = [drive for number in range(len(cluster.nodes)) for drive in cluster.batches(number).node.store.drives]
    return sum(len(os.listdir(drive.root / "staging")) for drive in drives if drive is not None)


def name_with(cluster: LocalCluster, fits: Callable[[list[int]], bool], prefix: str = "n") -> str:
    """A name whose owners, best first, fit."""
    return next(name for at in range(10_000) if fits(cluster.owners(name := f"{prefix}{at}")))


def staged_here(cluster: LocalCluster, number: int) -> int:
    drive = cluster.batches(number).node.store.drives[0]
    assert drive is not None
    return len(os.listdir(drive.root / "staging"))


def staged_bytes(cluster: LocalCluster, number: int) -> int:
    drive = cluster.batches(number).node.store.drives[0]
    assert drive is not None
    return sum(found.st_size for _, found in files_below(drive.root / "staging"))


def cluster_ranking(cluster: LocalCluster, name: str) -> list[int]:
    placement = cluster.view.placement
    ranking: list[int] = placement.owners(object_hashes(cluster.view.buckets[BUCKET].uuid, [name]), placement.hosts)[
        0
    ].tolist()
    return ranking
