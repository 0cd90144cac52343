"""Many small objects in few messages, on one stream: cut into groups, sent ahead of their acknowledgements, sent again
when the stream breaks before an acknowledgement came."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ais_loader import errors
from ais_loader.content import Source
from ais_loader.entry import ObjectInfo
from ais_loader.transport.base import PutSpec
from ais_loader.transport.patience import Patience
from protos import ais_objects_pb2 as pb

GROUP_BYTES = 1 << 20
GROUP_OBJECTS = 256
LARGE_BYTES = 4 << 20
"""An object from this size on is a PUT of its own."""
_GROUPS_AHEAD = 4

Result: TypeAlias = ObjectInfo | errors.LoaderError
Group: TypeAlias = list[tuple[PutSpec, bytes]]
Work: TypeAlias = Group | tuple[PutSpec, Source]


def put_many(
    objects: Iterable[tuple[PutSpec, Source]],
    open_stream: Callable[[Iterator[pb.PutManyRequest]], Iterator[pb.PutManyResponse]],
    put_one: Callable[[PutSpec, Source], ObjectInfo],
    *,
    retry_s: float,
) -> Iterator[Result]:
    """One result per object, in order. Raises NodeUnavailable when nobody answers for `retry_s`."""
    sender = _GroupSender(open_stream, retry_s)
    for work in _grouped(objects):
        if isinstance(work, list):
            yield from sender.send(work)
        else:
            yield from sender.flush()
            try:
                yield put_one(*work)
            except errors.LoaderError as error:
                yield error
    yield from sender.flush()


def _grouped(objects: Iterable[tuple[PutSpec, Source]]) -> Iterator[Work]:
    """Small objects in groups, large ones (and files of unknown size) alone, in order."""
    group: Group = []
    group_bytes = 0
    for spec, source in objects:
        if source.size_bytes is None or source.size_bytes >= LARGE_BYTES:
            if group:
                yield group
            group, group_bytes = [], 0
            yield spec, source
            continue
        data = b"".join(source.chunks())
        if group and group_bytes + len(data) > GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append((spec, data))
        group_bytes += len(data)
        if len(group) >= GROUP_OBJECTS:
            yield group
            group, group_bytes = [], 0
    if group:
        yield group


class _GroupSender:
    """Keeps up to _GROUPS_AHEAD groups on their way."""

    def __init__(
        self, open_stream: Callable[[Iterator[pb.PutManyRequest]], Iterator[pb.PutManyResponse]], retry_s: float
    ) -> None:
        self._open_stream = open_stream
        self._patience = Patience(retry_s)
        self._unacknowledged: deque[Group] = deque()
        self._outgoing: queue.SimpleQueue[pb.PutManyRequest | None] | None = None
        self._answers: Iterator[pb.PutManyResponse] = iter(())

    def send(self, group: Group) -> Iterator[Result]:
        """Put a group on its way; yields what has been acknowledged meanwhile."""
        self._unacknowledged.append(group)
        if self._outgoing is not None:
            self._outgoing.put(_message(group))
        while len(self._unacknowledged) >= _GROUPS_AHEAD:
            yield from self._receive()

    def flush(self) -> Iterator[Result]:
        """Wait for all acknowledgements, and end the stream."""
        while self._unacknowledged:
            yield from self._receive()
        if self._outgoing is not None:
            self._outgoing.put(None)
            self._outgoing = None

    def _receive(self) -> Iterator[Result]:
        if self._outgoing is None:
            self._outgoing = queue.SimpleQueue()
            for group in self._unacknowledged:
                self._outgoing.put(_message(group))
            self._answers = self._open_stream(iter(self._outgoing.get, None))
            self._patience.progress()
        try:
            answer = next(self._answers)
        except (errors.LoaderError, StopIteration) as error:
            self._outgoing.put(None)
            self._outgoing = None
            self._patience.pause(
                error if isinstance(error, errors.LoaderError) else errors.NodeUnavailable("the node ended the stream")
            )
            return
        self._patience.progress()
        group = self._unacknowledged.popleft()
        if len(answer.result) != len(group):
            raise errors.LoaderError(f"the node acknowledged {len(answer.result)} of {len(group)} objects")
        for result in answer.result:
            if result.WhichOneof("result") == "error":
                yield errors.from_kind(result.error.kind, result.error.message)
            else:
                yield object_info(result.info)


def object_info(info: pb.ObjectInfo) -> ObjectInfo:
    return ObjectInfo(
        info.bucket, info.name, info.size_bytes, info.version, info.checksum, info.modified_ns, dict(info.metadata)
    )


def _message(group: Group) -> pb.PutManyRequest:
    return pb.PutManyRequest(
        object=[
            pb.SmallObject(
                bucket=spec.bucket, name=spec.name, checksum=spec.checksum, metadata=spec.metadata, data=data
            )
            for spec, data in group
        ]
    )
