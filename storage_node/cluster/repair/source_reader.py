"""Source reader with failover: reads objects from which others are written, from this node's drives or from any
replica.

The node that has the object verifies its checksums. One version is read throughout: if a node fails, or its replica is
damaged, the next holder continues at the last byte. Belongs to the node's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import grpc.aio

from ais_loader.errors import (
    BucketNotFound,
    CorruptObject,
    DriveFailed,
    InvalidRequest,
    LoaderError,
    ObjectDeleted,
    ObjectNotFound,
    ObjectReplaced,
)
from ais_loader.wire.generated import ais_compose_pb2 as wire
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc
from ais_loader.wire.object_info import info_of
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.cluster.replication.write_plan import ReplicaSet
from storage_node.context.channels import STEP_TIMEOUT_S, Channels, newer_map
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.context.node import Node
from storage_node.store.checksum import crc32c
from storage_node.store.read.object_reader import StoredObjectReader, open_object


class SourceStream(Protocol):
    """A range of an object on one node."""

    info: pb.ObjectInfo
    length: int

    async def open(self, request: pb.GetRequest) -> None: ...
    async def next(self) -> bytes:
        """Return the next piece; empty at the end. Raises ReplicaLost and LoaderError, as `open` does."""

    async def close(self) -> None: ...


class LocalStream:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._reader: StoredObjectReader | None = None

    async def open(self, request: pb.GetRequest) -> None:
        def opened() -> StoredObjectReader:
            return open_object(
                self._node.store,
                request.bucket,
                request.name,
                start=request.start,
                length=request.length if request.HasField("length") else None,
                version=request.version,
                verify=True,
            )

        reader = self._reader = await self._node.read(opened)
        self.length = reader.length
        self.info = info_of(request.bucket, request.name, reader.record)

    async def next(self) -> bytes:
        assert self._reader is not None
        return await self._node.read(next, self._reader, b"")

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class RemoteStream:
    def __init__(self, endpoint: str, channels: Channels) -> None:
        self._endpoint = endpoint
        self._channels = channels
        self._call: Any = None

    async def open(self, request: pb.GetRequest) -> None:
        self._call = ais_objects_pb2_grpc.ObjectsStub(self._channels.to(self._endpoint)).Get(request)
        message = await self._read()
        if message is None or not message.HasField("header"):
            raise ReplicaLost(f"{self._endpoint}: it sent no header")
        self.info, self.length = message.header.info, message.header.length

    async def next(self) -> bytes:
        message = await self._read()
        return b"" if message is None else message.data

    async def _read(self) -> pb.GetResponse | None:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(STEP_TIMEOUT_S):
                message = await self._call.read()
        self._channels.answered(self._endpoint)
        return None if message is grpc.aio.EOF else message

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()


class SourceRange:
    """One range that is being read. Close it afterwards."""

    def __init__(self, wanted: wire.ComposeRange, streams: Iterator[SourceStream]) -> None:
        self._label = f"{wanted.bucket}/{wanted.name}"
        self._request = pb.GetRequest(
            bucket=wanted.bucket,
            name=wanted.name,
            start=wanted.start,
            version=wanted.version,
            verify_range=True,
            length=wanted.length if wanted.HasField("length") else None,
        )
        self._streams = streams
        self._stream: SourceStream | None = None
        self._problems: list[LoaderError] = []
        self._left = 0
        self._is_whole = False
        self.checksum = self.size_bytes = 0
        """CRC-32C and size of what `next` has returned."""
        self.info = pb.ObjectInfo()
        """The object's information, set by `open`."""

    async def open(self) -> None:
        """Open the range on the first holder that can serve it. Raises LoaderError."""
        await self._open_next()
        assert self._stream is not None
        self.info, self._left = self._stream.info, self._stream.length
        self._is_whole = not self._request.start and self._left == self.info.size_bytes
        self._request.version = self.info.version

    async def next(self) -> bytes:
        """Return the next piece; empty at the end. Raises LoaderError."""
        while self._left:
            assert self._stream is not None
            try:
                chunk = await self._stream.next()
                if not chunk or len(chunk) > self._left:
                    raise ReplicaLost(f"{self._label}: a node's answer has another length than it announced")
            except (ReplicaLost, LoaderError) as error:
                self._note(error)
                self._request.length = self._left
                await self._open_next()
                continue
            self._left -= len(chunk)
            self._request.start += len(chunk)
            self.size_bytes += len(chunk)
            self.checksum = crc32c(chunk, self.checksum)
            return chunk
        if self._is_whole and self.checksum != self.info.checksum:
            raise CorruptObject(f"{self._label}: what was read does not match the stored checksum")
        return b""

    async def _open_next(self) -> None:
        await self.close()
        for stream in self._streams:
            self._stream = stream
            try:
                await stream.open(self._request)
                return
            except (ReplicaLost, LoaderError) as error:
                self._note(error)
                await self.close()
        raise self._worst()

    def _note(self, error: ReplicaLost | LoaderError) -> None:
        """Record an error; raise it if every holder would return the same."""
        if isinstance(error, ReplicaLost):
            if error.refusal is None or error.may_pass:
                error = TooFewCopies(f"{self._label} cannot be read now: {error}")
            else:
                error = error.refusal
        if isinstance(error, InvalidRequest):
            raise error
        self._problems.append(error)

    def _worst(self) -> LoaderError:
        """Return the most informative error. "Unreachable" outranks "not found"."""
        for kind in (ObjectReplaced, CorruptObject, ObjectDeleted, DriveFailed):
            for problem in self._problems:
                if isinstance(problem, kind):
                    return problem
        for problem in self._problems:
            if not isinstance(problem, (ObjectNotFound, BucketNotFound)):
                return problem
        return self._problems[0] if self._problems else TooFewCopies(f"{self._label}: the map has no node for it")

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


class SourceReader:
    def __init__(self, node: Node, writes: WriteCoordinator) -> None:
        self._node = node
        self._writes = writes

    async def open(self, wanted: wire.ComposeRange) -> SourceRange:
        """Open a source, on whichever node has it. Raises LoaderError."""
        replica_set = self._writes.replica_set_to_read(wanted.bucket)
        try:
            return await self._opened(wanted, replica_set)
        except ObjectDeleted:
            raise
        except (ObjectNotFound, BucketNotFound):
            if replica_set is None or not await self._may_be_elsewhere(replica_set):
                raise
        return await self._opened(wanted, self._writes.replica_set_to_read(wanted.bucket))

    async def _opened(self, wanted: wire.ComposeRange, replica_set: ReplicaSet | None) -> SourceRange:
        source = SourceRange(wanted, self._streams(wanted, replica_set))
        try:
            await source.open()
        except BaseException:
            await source.close()
            raise
        return source

    async def _may_be_elsewhere(self, replica_set: ReplicaSet) -> bool:
        """Return whether a second query may find what no holder had: the object may have moved between holders during
        the first, or under a map that this node did not know yet."""
        view, channels = replica_set.view, self._writes.channels
        queries = (
            newer_map(channels.to(node.peer_endpoint), view.map, self._node.config.cluster.reach_timeout_s)
            for at, node in enumerate(view.nodes)
            if at != replica_set.position
        )
        for map_ in await asyncio.gather(*queries):
            if map_ is not None:
                with contextlib.suppress(LoaderError, ValueError):
                    await self._node.learn(map_)
        return view.is_moving([replica_set.bucket.name]) or self._node.map_version > view.version

    def _streams(self, wanted: wire.ComposeRange, replica_set: ReplicaSet | None) -> Iterator[SourceStream]:
        """Yield one stream per node that may have the object, best first: this node, then those that have answered
        lately."""
        if replica_set is None:
            yield LocalStream(self._node)
            return
        channels = self._writes.channels
        holders = replica_set.view.holders(replica_set.bucket, [wanted.name])[0]
        if replica_set.position in holders:
            yield LocalStream(self._node)
        others = [replica_set.endpoint(node) for node in holders if node != replica_set.position]
        for endpoint in sorted(others, key=channels.avoided):
            yield RemoteStream(endpoint, channels)
