"""Promotion into a bucket of a cluster: this node coordinates ordinary writes whose bytes come from its files.

Small files are read and written in groups. A large file is staged here directly if this node is one of its owners, and
streamed to the other owners. All replicas compare checksums before anything is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from ais_loader import errors
from ais_loader.errors import BucketNotFound, DriveFailed, LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_promote_pb2 as wire
from ais_loader.wire.generated.ais_promote_pb2_grpc import PromoteStub
from ais_loader.wire.object_info import Stored, info_of, stored_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.replica import require_bucket
from storage_node.cluster.replication.replicas import OwnCopy
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.errors import ReplicaLost
from storage_node.promote.into_store import find_many, give_up, stage
from storage_node.promote.job import Job, Outcome, failed, is_small, open_unless_stored, stamp_metadata
from storage_node.promote.source import FileStamp, SourceFile
from storage_node.promote.walk import Found, FoundFile, NotFit
from storage_node.store.checksum import crc32c
from storage_node.store.files.clone_or_copy import Transfer, read_source
from storage_node.store.store import Store
from storage_node.store.write import Upload

HAVE_TIMEOUT_S = 10.0
_PIECE_BYTES = 1 << 20
T = TypeVar("T")


class Work(Protocol):
    """Runs a function that waits for drives, off the event loop."""

    def __call__(self, function: Callable[..., T], /, *arguments: Any) -> Awaitable[T]: ...


class ClusterPromotion:
    """The promotion of groups of files. Belongs to the node's event loop."""

    def __init__(self, store: Store, writes: WriteCoordinator, replica_set: ReplicaSet, job: Job, work: Work) -> None:
        self._store, self._writes, self._job, self._work = store, writes, job, work
        self._replica_set = replica_set

    async def promote_group(self, group: Sequence[Found]) -> list[Outcome]:
        """Store these files; one outcome per file, in order. See `into_store.promote_group`."""
        replica_set = self._writes.replica_set(self._job.bucket)  # by the newest map
        if replica_set is None or replica_set.bucket.uuid != self._replica_set.bucket.uuid:
            raise BucketNotFound(f"bucket {self._job.bucket!r} has been deleted meanwhile")
        outcomes = {at: failed(found, found.error) for at, found in enumerate(group) if isinstance(found, NotFit)}
        files = {at: found for at, found in enumerate(group) if isinstance(found, FoundFile)}
        existing = await self._have(replica_set, [found.name for found in files.values()])
        sources: dict[int, SourceFile] = {}
        small: dict[int, pb.SmallObject] = {}
        stamps: dict[int, FileStamp] = {}
        try:
            await self._work(self._open, files, existing, outcomes, sources, small, stamps)
            answers = await self._writes.put_small(list(small.values())) if small else []
            for at, answer in zip(small, answers, strict=True):
                outcomes[at] = _outcome(files[at], answer)
            async with asyncio.TaskGroup() as several:
                puts = {at: several.create_task(self._put_large(replica_set, source)) for at, source in sources.items()}
            outcomes.update({at: _outcome(files[at], *put.result()) for at, put in puts.items()})
        finally:
            for source in sources.values():
                source.close()
        if self._job.move:
            done = [(at, outcomes[at], files[at], stamp) for at, stamp in stamps.items() if outcomes[at].error is None]
            outcomes.update(await self._work(give_up, self._store, done))
        return [outcomes[at] for at in range(len(group))]

    def _open(
        self,
        files: dict[int, FoundFile],
        existing: dict[str, Stored],
        outcomes: dict[int, Outcome],
        sources: dict[int, SourceFile],
        small: dict[int, pb.SmallObject],
        stamps: dict[int, FileStamp],
    ) -> None:
        """Open the files: those that need no work get an outcome, the others are sorted by size."""
        for at, found in files.items():
            try:
                source = open_unless_stored(self._job, found, existing.get(found.name))
                if source is None:
                    outcomes[at] = Outcome(found.path, found.name, existing[found.name], skipped=True)
                    continue
                stamps[at] = source.stamp
                if not source.equal and not is_small(source):
                    sources[at] = source
                    continue
                with source:
                    if source.equal:
                        outcomes[at] = Outcome(found.path, found.name, existing[found.name], skipped=True)
                        continue
                    data = source.read()
                small[at] = pb.SmallObject(
                    bucket=self._job.bucket,
                    name=found.name,
                    data=data,
                    checksum=crc32c(data),
                    metadata=stamp_metadata(source),
                )
            except LoaderError as error:
                outcomes[at] = failed(found, error)

    # -- what is there

    async def _have(self, replica_set: ReplicaSet, names: Sequence[str]) -> dict[str, Stored]:
        """Return the object of each name on its first owner. An owner that does not answer counts as having none, so
        the file is written again."""
        by_owner: dict[int, list[str]] = {}
        for name, ranking in zip(names, replica_set.rankings(names) if names else [], strict=True):
            by_owner.setdefault(ranking[0], []).append(name)
        found = await asyncio.gather(*(self._ask(replica_set, node, mine) for node, mine in by_owner.items()))
        return {name: stored for part in found for name, stored in part.items()}

    async def _ask(self, replica_set: ReplicaSet, node: int, names: Sequence[str]) -> dict[str, Stored]:
        request = wire.HaveRequest(bucket=replica_set.bucket.name, name=names)
        if node == replica_set.position:
            try:
                answer = await self._work(have, self._store, request)
            except DriveFailed:
                return {}
        else:
            endpoint, channels = replica_set.endpoint(node), self._writes.channels
            try:
                answer = await channels.ask(endpoint, PromoteStub, "Have", request, HAVE_TIMEOUT_S)
            except ReplicaLost:
                return {}
        return {info.name: stored_of(info) for info in answer.object if info.name}

    # -- storing

    async def _put_large(self, replica_set: ReplicaSet, source: SourceFile) -> tuple[Stored | LoaderError, Transfer]:
        """Store a large file; also return how this node's own replica, if any, got its bytes."""
        name = source.found.name
        method: Transfer = "copied"
        held: OwnCopy | None = None
        try:
            header = pb.PutHeader(bucket=self._job.bucket, name=name, metadata=stamp_metadata(source))
            if replica_set.is_owner(name):
                held = OwnCopy(self._store, await self._work(self._stage, replica_set, source))
            if held is not None and isinstance(held.upload, Upload):
                method = held.upload.method
            info = await self._writes.put(replica_set, header, self._messages(replica_set, source, held), held)
            return stored_of(info), method
        except LoaderError as error:
            return error, method

    def _stage(self, replica_set: ReplicaSet, source: SourceFile) -> Upload | LoaderError:
        """Stage this node's replica. Raises errors of the source; returns errors of this node, which other replicas
        make up for."""
        try:
            require_bucket(self._store, self._job.bucket, replica_set.bucket.uuid)
            return stage(self._store, self._job, source)
        except (errors.SourceChanged, errors.SourceUnreadable):
            raise
        except LoaderError as error:
            return error

    async def _messages(
        self, replica_set: ReplicaSet, source: SourceFile, held: OwnCopy | None
    ) -> AsyncIterator[pb.PutRequest]:
        upload = held.upload if held is not None else None
        if isinstance(upload, Upload) and replica_set.bucket.copies == 1:
            yield pb.PutRequest(end=pb.PutEnd(size_bytes=upload.size_bytes, checksum=upload.checksum))
            return
        checksum = offset = 0
        while piece := await self._work(read_source, source.fd, _PIECE_BYTES, offset):
            checksum, offset = crc32c(piece, checksum), offset + len(piece)
            yield pb.PutRequest(data=piece)
        linked = isinstance(upload, Upload) and upload.linked
        source.require_unchanged(offset, linked=linked)
        yield pb.PutRequest(end=pb.PutEnd(size_bytes=offset, checksum=checksum))


def have(store: Store, request: wire.HaveRequest) -> wire.HaveResponse:
    """Return this node's objects of these names. Raises BucketNotFound, DriveFailed, StoreFormatError, Closed."""
    found = zip(request.name, find_many(store, request.bucket, request.name), strict=True)
    return wire.HaveResponse(
        object=[pb.ObjectInfo() if stored is None else info_of(request.bucket, name, stored) for name, stored in found]
    )


def _outcome(found: FoundFile, result: Stored | LoaderError, method: Transfer = "copied") -> Outcome:
    if isinstance(result, LoaderError):
        return failed(found, result)
    return Outcome(found.path, found.name, result, method=method)
