"""Bulk put: each node gets its groups on a stream of its own; results come in the caller's order.

Objects of at least `_BESIDE_BYTES` are PUTs of their own, a few at a time on threads: their bytes are then not packed
into messages. Their contents are read by the caller's thread, since contents of several objects may share one file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from ais_loader import errors
from ais_loader.transport.base import PutSpec
from ais_loader.transport.grpc.put import (
    GROUP_BYTES,
    GROUP_OBJECTS,
    LARGE_BYTES,
    OpenStream,
    PutGroupStream,
    Result,
    small_object,
    spec_of,
)
from ais_loader.transport.retry import RetryBudget, may_pass, of_a_repeat
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Source
from ais_loader.wire.generated import ais_objects_pb2 as pb

_BESIDE_BYTES = 256 << 10
"""Smallest object for which packing into a message costs more than a PUT of its own."""
_PUTS_BESIDE = 4
MAX_UNDELIVERED = 4096
"""Most results that wait for an earlier one. Beyond it, all groups are sent, full or not."""


class PutOne(Protocol):
    """Puts one object, on any owner that accepts it."""

    def __call__(self, spec: PutSpec, source: Source, *, patience: RetryBudget) -> ObjectInfo: ...


class _NodeStream:
    """State of the objects for one node."""

    def __init__(self, open_stream: OpenStream, retry_s: float, *, has_others: bool) -> None:
        self.sender = PutGroupStream(open_stream, 0.0 if has_others else retry_s)
        self.patience = RetryBudget(retry_s)
        """Retry limit of single puts: hundreds of objects that no node accepts wait as long as one does."""
        self.group: list[pb.SmallObject] = []
        self.group_bytes = 0
        self.sent: deque[tuple[int, pb.SmallObject]] = deque()
        """Objects of groups that have been sent but not acknowledged, with their positions in the caller's order."""
        self.places: list[int] = []
        self.stored_in_a_row = 0
        """Objects that the stream has stored since the last one that failed and might have been sent again."""


@dataclass
class PutMany:
    """One bulk put."""

    node_of: Callable[[PutSpec], bytes]
    """Returns the node for an object."""
    open_stream_of: Callable[[bytes], OpenStream]
    """Opens a stream of groups to a node."""
    put_one: PutOne
    """Puts large objects, objects that a lost node had not acknowledged, and objects of nodes with an old map."""
    has_bucket: Callable[[str], bool]
    """Whether a bucket of this name exists, by the client's map."""
    retry_s: float
    """How long objects of one node may fail in a row before all of its remaining objects fail."""
    has_others: bool
    """Whether other nodes may take what a node does not. If not, groups are sent again to the only node, and its
    failure for `retry_s` is raised."""

    def __post_init__(self) -> None:
        self._nodes: dict[bytes, _NodeStream] = {}
        self._results: dict[int, Result] = {}
        self._delivered = 0
        self._names: deque[tuple[str, str]] = deque()
        """Bucket and name of each undelivered object."""
        self._places: dict[tuple[str, str], int] = {}
        """The last of the undelivered objects of a name, by its position in the caller's order."""
        self._threads = ThreadPoolExecutor(_PUTS_BESIDE, thread_name_prefix="ais-loader-put")
        self._beside: deque[tuple[_NodeStream, int, Future[ObjectInfo]]] = deque()
        """PUTs on threads, with the positions of their objects."""

    def results_of(self, objects: Iterable[tuple[PutSpec, Source]]) -> Generator[Result, None, None]:
        """Yield one result per object, in order. A failed object does not stop the others."""
        try:
            for spec, source in objects:
                self._take(spec, source)
                yield from self._ready()
                if len(self._results) > MAX_UNDELIVERED:
                    self._flush_all()
                    yield from self._ready()
            self._flush_all()
            yield from self._ready()
        finally:
            self._close()

    def _take(self, spec: PutSpec, source: Source) -> None:
        place, name = self._delivered + len(self._names), (spec.bucket, spec.name)
        is_first = name not in self._places
        self._names.append(name)
        self._places[name] = place
        small = data = None
        try:
            key = self.node_of(spec)
            if source.size_bytes is not None and source.size_bytes < LARGE_BYTES:
                data = source.read()
                small = small_object(spec, data) if len(data) < _BESIDE_BYTES else None
        except errors.LoaderError as error:
            self._results[place] = error
            return
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _NodeStream(self.open_stream_of(key), self.retry_s, has_others=self.has_others)
        if not is_first:
            self._flush_all()  # the object replaces one of them, which may have to be sent again
        if small is None and data is not None:
            self._collect(_PUTS_BESIDE - 1)
            try:
                put = self._threads.submit(self.put_one, spec, Source(data), patience=node.patience)
            except RuntimeError:  # the interpreter is ending, and begins no more threads
                self._alone(node, place, spec, Source(data))
            else:
                self._beside.append((node, place, put))
            return
        if small is None:
            self._alone(node, place, spec, source)
            return
        if node.group and node.group_bytes + len(small.data) > GROUP_BYTES:
            self._send(node)
        node.group.append(small)
        node.places.append(place)
        node.group_bytes += len(small.data)
        if len(node.group) >= GROUP_OBJECTS:
            self._send(node)

    def _ready(self) -> Iterator[Result]:
        while self._delivered in self._results:
            place, name = self._delivered, self._names.popleft()
            self._delivered += 1
            if self._places[name] == place:
                del self._places[name]
            yield self._results.pop(place)

    def _flush_all(self) -> None:
        """Wait until everything has been acknowledged; the nodes work in parallel."""
        for node in self._nodes.values():
            self._send(node)
        for node in self._nodes.values():
            self._flush(node)
        self._collect(0)

    def _close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for node in self._nodes.values():
            node.sender.close()

    def _send(self, node: _NodeStream) -> None:
        if not node.group:
            return
        group, node.group, node.group_bytes = node.group, [], 0
        node.sent.extend(zip(node.places, group, strict=True))
        node.places = []
        self._receive(node, lambda: node.sender.send(group))

    def _collect(self, most: int) -> None:
        """Wait until at most `most` PUTs are left on threads."""
        while len(self._beside) > most:
            node, place, put = self._beside.popleft()
            self._settle(node, place, put.result)

    def _flush(self, node: _NodeStream) -> None:
        self._send(node)
        self._receive(node, node.sender.flush)

    def _receive(self, node: _NodeStream, step: Callable[[], Iterator[Result]]) -> None:
        everybody_is_full = False
        try:
            for result in step():
                place, small = node.sent.popleft()
                if not isinstance(result, errors.LoaderError):
                    self._results[place] = result
                    node.stored_in_a_row += 1
                    if node.stored_in_a_row >= GROUP_OBJECTS:  # fewer may lie between objects that nobody takes
                        node.patience.progress()
                    continue
                spec = spec_of(small, node.sender.doubtful_since_s)
                refusal = spec.tries.judged(result)
                outdated = isinstance(refusal, errors.BucketNotFound) and self.has_bucket(small.bucket)
                is_full = isinstance(refusal, errors.DriveFull) and not everybody_is_full
                elsewhere = self.has_others and (outdated or is_full or isinstance(refusal, errors.StaleMap))
                if passes := may_pass(refusal):
                    node.stored_in_a_row = 0
                if elsewhere or (passes and not node.patience.is_over):
                    # Put it alone: on its first owner by a newer map, on an owner with room for at least a version, on
                    # one that checks for earlier attempts again, or once enough owners answer.
                    alone = self._alone(node, place, spec, Source(small.data))
                    everybody_is_full = is_full and isinstance(alone, errors.DriveFull)
                else:
                    self._results[place] = of_a_repeat(refusal) if spec.tries.in_doubt else refusal
        except errors.Closed:
            raise
        except errors.LoaderError as error:
            if not self.has_others and node.sender.in_doubt and (found := of_a_repeat(error)) is not error:
                raise found from error
            if not self.has_others or not error.retryable:
                raise
            self._rescue(node)

    def _rescue(self, node: _NodeStream) -> None:
        """Handle a lost node: objects it has not acknowledged are put one by one, on their current owners."""
        node.sender.close()
        doubts = list(node.sender.doubts())
        node.sender = PutGroupStream(node.sender.open_stream, 0.0)
        failure: BaseException | None = None
        for doubtful_since_s in doubts:
            place, small = node.sent.popleft()
            if failure is not None:
                left = errors.NodeUnavailable(str(failure))
                self._results[place] = left if doubtful_since_s is None else of_a_repeat(left)
                continue
            result = self._alone(node, place, spec_of(small, doubtful_since_s), Source(small.data))
            if isinstance(result, errors.LoaderError) and node.patience.is_over:
                failure = result.__cause__ or result  # the cause: only this outcome is known to be unknown

    def _alone(self, node: _NodeStream, place: int, spec: PutSpec, source: Source) -> Result:
        """Put an object that cannot go through this node's stream."""
        return self._settle(node, place, lambda: self.put_one(spec, source, patience=node.patience))

    def _settle(self, node: _NodeStream, place: int, put: Callable[[], ObjectInfo]) -> Result:
        """Take the result of a PUT of one object."""
        result: Result
        try:
            result = put()
        except errors.Closed:
            raise
        except errors.LoaderError as error:
            result = error
            if error.retryable or isinstance(error, errors.OutcomeUnknown):
                node.patience.failed()
                node.stored_in_a_row = 0
        else:
            node.patience.progress()
        self._results[place] = result
        return result
