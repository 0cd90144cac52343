"""Calls to one node over gRPC that concern many objects of a bucket. For a cluster, see cluster/transport.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.put_stream import object_info
from ais_loader.transport.grpc.waiting import watched
from ais_loader.transport.validation import require_bucket
from ais_loader.transport.write_tries import WriteTries, of_a_repeat
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.summary import BucketSummary, PrefixSummary
from ais_loader.wire.generated import ais_contents_pb2 as pb

T = TypeVar("T")


class ContentsCalls(ABC):
    """The part of a transport to one node that makes these calls."""

    @abstractmethod
    def _call(self, call: Callable[[Connection], T], *, retry: bool = True, tries: WriteTries | None = None) -> T: ...

    def delete_names(
        self, bucket: str, names: Sequence[str], *, tries: WriteTries | None = None
    ) -> list[errors.LoaderError | None]:
        tries = tries or WriteTries()
        return self._call(lambda here: delete_names(here, bucket, names, tries), tries=tries)

    def head_names(
        self, bucket: str, names: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[ObjectInfo | errors.LoaderError]:
        require_bucket(bucket)
        request = pb.HeadManyRequest(bucket=bucket, name=names)
        answer = self._call(lambda here: here.contents.HeadMany(request, timeout=timeout_s))
        found: list[ObjectInfo | errors.LoaderError] = [object_info(message) for message in answer.object]
        for failure in answer.failure:
            found[failure.position] = errors.from_node(failure.error.kind, failure.error.message)
        return found

    def summary(self, bucket: str, *, prefix: str, depth: int, has_others: bool = False) -> BucketSummary:
        """`has_others`: whether another node can be asked if this one does not answer."""
        return self._call(lambda here: summarized(here, bucket, prefix, depth, has_others=has_others))


def delete_names(
    here: Connection, bucket: str, names: Sequence[str], tries: WriteTries
) -> list[errors.LoaderError | None]:
    """Make one request, under one write id. Return, for each name in order, None or the error. Raises gRPC's errors."""
    tries.begin()
    request = pb.DeleteManyRequest(bucket=bucket, name=names, write_id=tries.write_id, repeat_ms=tries.repeat_ms)
    answer: pb.DeleteManyResponse = here.contents.DeleteMany(request, timeout=CALL_TIMEOUT_S)
    results: list[errors.LoaderError | None] = [None] * len(names)
    for failure in answer.failure:
        error = errors.from_node(failure.error.kind, failure.error.message)
        results[failure.position] = of_a_repeat(error) if tries.in_doubt else error
    return results


def summarized(here: Connection, bucket: str, prefix: str, depth: int, *, has_others: bool) -> BucketSummary:
    """Make one call, which may continue as long as names are counted. Raises SilenceTimeout, NodeUnavailable, gRPC's
    errors."""
    call = here.contents.Summarize(pb.SummarizeRequest(bucket=bucket, prefix=prefix, depth=depth))
    with watched(here, call, has_others=has_others) as watchdog:
        for answer in call:
            watchdog.seen()
            if answer.HasField("summary"):
                return _summary(bucket, prefix, answer.summary)
    raise errors.NodeUnavailable(f"{here.endpoint}: the answer ended before the summary")


def _summary(bucket: str, prefix: str, summary: pb.Summary) -> BucketSummary:
    by_prefix = {one.prefix: PrefixSummary(one.objects, one.size_bytes) for one in summary.prefix}
    return BucketSummary(
        bucket, prefix, summary.objects, summary.size_bytes, by_prefix, not summary.incomplete, tuple(summary.silent)
    )
