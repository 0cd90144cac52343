"""Bulk put stream: many small objects in few messages. Groups are sent ahead of their acknowledgements, and sent again
if the stream breaks before an acknowledgement arrived."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc

from ais_loader import errors
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S, Watchdog
from ais_loader.transport.retry import RetryBudget
from ais_loader.transport.write_tries import WriteTries, of_a_repeat
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import stored_of

GROUP_BYTES = 1 << 20
GROUP_OBJECTS = 256
_GROUPS_AHEAD = 4

Result: TypeAlias = ObjectInfo | errors.LoaderError
Group: TypeAlias = list[pb.SmallObject]


class PutAnswers:
    """The acknowledgements of one PutMany call."""

    def __init__(self, call: Any, translate: Callable[[Exception], errors.LoaderError]) -> None:
        self._call = call
        self._translate = translate
        self._watchdog = Watchdog(CALL_TIMEOUT_S).guard(call.cancel)
        self._watchdog.rest()

    def __next__(self) -> pb.PutManyResponse:
        self._watchdog.seen()
        try:
            answer: pb.PutManyResponse = next(self._call)
        except grpc.RpcError as error:
            if self._watchdog.fired:
                raise errors.SilenceTimeout(f"nothing was acknowledged for {CALL_TIMEOUT_S:g} s") from error
            raise self._translate(error) from error
        self._watchdog.rest()
        return answer

    def close(self) -> None:
        self._watchdog.stop()
        self._call.cancel()


OpenStream: TypeAlias = Callable[[Iterator[pb.PutManyRequest]], PutAnswers]


class _SentGroup:
    """A group that has been sent."""

    def __init__(self, objects: Group) -> None:
        self.objects = objects
        self.began_s: float | None = None
        """Start of its transmission on the current stream."""
        self.doubtful_since_s: float | None = None
        """Start of the first attempt that may have taken effect."""

    def request(self) -> pb.PutManyRequest:
        if self.doubtful_since_s is not None:
            repeat_ms = WriteTries(doubtful_since_s=self.doubtful_since_s).repeat_ms
            for small in self.objects:
                small.condition.repeat_ms = repeat_ms
        return pb.PutManyRequest(object=self.objects)


class PutGroupStream:
    """Sends groups, with up to _GROUPS_AHEAD of them unacknowledged."""

    def __init__(self, open_stream: OpenStream, retry_s: float) -> None:
        self.open_stream = open_stream
        self._patience = RetryBudget(retry_s)
        self._unacknowledged: deque[_SentGroup] = deque()
        self._outgoing: queue.SimpleQueue[_SentGroup | None] = queue.SimpleQueue()
        self._answers: PutAnswers | None = None
        self.doubtful_since_s: float | None = None
        """For the objects whose results come now: start of the first attempt that may have stored them, if any."""

    def send(self, group: Group) -> Iterator[Result]:
        """Send a group. Yields the results that have arrived meanwhile."""
        sent = _SentGroup(group)
        self._unacknowledged.append(sent)
        if self._answers is None:
            self._reopen()
        else:
            self._outgoing.put(sent)
        while len(self._unacknowledged) >= _GROUPS_AHEAD:
            yield from self._receive()

    def flush(self) -> Iterator[Result]:
        """Wait for all acknowledgements."""
        while self._unacknowledged:
            yield from self._receive()

    @property
    def in_doubt(self) -> bool:
        """Whether an unacknowledged object may have been stored."""
        return any(sent.doubtful_since_s is not None for sent in self._unacknowledged)

    def doubts(self) -> Iterator[float | None]:
        """Yield, for each unacknowledged object, the start of the first attempt that may have stored it, if any."""
        for sent in self._unacknowledged:
            yield from [sent.doubtful_since_s] * len(sent.objects)

    def close(self) -> None:
        """End the stream. Unacknowledged objects may have been stored."""
        self._outgoing.put(None)
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def _reopen(self) -> None:
        outgoing = self._outgoing = queue.SimpleQueue()
        for sent in self._unacknowledged:
            outgoing.put(sent)

        def requests() -> Iterator[pb.PutManyRequest]:
            for sent in iter(outgoing.get, None):
                if self._outgoing is outgoing:
                    sent.began_s = time.monotonic()
                    yield sent.request()

        self._answers = self.open_stream(requests())

    def _receive(self) -> Iterator[Result]:
        if self._answers is None:
            self._reopen()
        assert self._answers is not None
        try:
            answer = next(self._answers)
        except (errors.LoaderError, StopIteration) as error:
            self.close()
            failure = (
                error if isinstance(error, errors.LoaderError) else errors.NodeUnavailable("the node ended the stream")
            )
            for sent in self._unacknowledged:
                if sent.began_s is not None and sent.doubtful_since_s is None and getattr(failure, "reached", True):
                    sent.doubtful_since_s = sent.began_s
                sent.began_s = None
            self._patience.pause(failure)
            return
        self._patience.progress()
        sent = self._unacknowledged.popleft()
        group, self.doubtful_since_s = sent.objects, sent.doubtful_since_s
        if len(answer.result) != len(group):
            raise errors.LoaderError(f"the node acknowledged {len(answer.result)} of {len(group)} objects")
        for result in answer.result:
            if result.WhichOneof("result") == "error":
                refusal = errors.from_node(result.error.kind, result.error.message)
                # An object that is redirected to another node is tried again there.
                is_over = sent.doubtful_since_s is not None and not isinstance(refusal, errors.StaleMap)
                yield of_a_repeat(refusal) if is_over else refusal
            else:
                yield object_info(result.info)


def object_info(info: pb.ObjectInfo) -> ObjectInfo:
    return ObjectInfo(info.bucket, info.name, *stored_of(info))
