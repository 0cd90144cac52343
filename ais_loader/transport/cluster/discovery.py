"""Discovery behind `grpc://` endpoints: one storage node, or a cluster.

The first call requests the cluster's map. Without one, all calls go to the endpoints themselves. With one, each call
goes to the nodes that it concerns, and the endpoints only served as a starting point. Ray is not involved: nodes serve
the map.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from ais_loader import errors
from ais_loader.tracebacks import short_tracebacks
from ais_loader.transport.base import (
    BucketChange,
    BucketInfo,
    EtlMethod,
    FrameStream,
    NothingToRefresh,
    PutSpec,
    Transport,
)
from ais_loader.transport.cluster.transport import RoutedTransport
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.transport import GrpcTransport
from ais_loader.transport.write_tries import WriteTries
from ais_loader.values.content import Buffer, Source
from ais_loader.values.entry import MemberInfo, ObjectInfo
from ais_loader.values.options import ClusterOptions
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.values.snapshots import SnapshotAction, SnapshotInfo
from ais_loader.values.summary import BucketSummary
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb

QUICK_TIMEOUT_S = 2.0
_ALL: weakref.WeakSet[ClusterTransport] = weakref.WeakSet()


@short_tracebacks
class ClusterTransport(NothingToRefresh):
    """A `Transport` to the node or cluster at the endpoints of `url`. Pickles as its address.

    Args:
        known: further endpoints, of nodes that the cluster was last known to have.
    """

    def __init__(self, url: str, options: ClusterOptions, *, known: Sequence[str] = ()) -> None:
        self.url = url
        self._options = options
        self._begin_at = list(dict.fromkeys([*url.replace("grpc://", "").split(","), *known]))
        self._endpoints = GrpcTransport(
            "grpc://" + ",".join(self._begin_at),
            retry_s=options.retry_s,
            verify_payload=options.verify_payload,
            tenant=options.tenant,
            lane=options.lane,
        )
        self._lock = threading.Lock()
        self._found: Transport | None = None
        self._closed = False
        _ALL.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # All nodes behind the URL may have been replaced since.
        found, known = self._found, self._begin_at
        if isinstance(found, RoutedTransport):
            known = [*known, *(node.endpoint for node in found.members.view.nodes)]
        return _connect_again, (self.url, self._options, known)

    def _there(self, timeout_s: float = CALL_TIMEOUT_S, *, retry: bool = True) -> Transport:
        """Return the transport to the node or cluster, found on first use. Raises NodeUnavailable, SilenceTimeout."""
        found = self._found
        if found is not None:
            return found
        view = self._ask(timeout_s, retry=retry)
        with self._lock:
            if self._found is None:
                if view is None:
                    self._found = self._endpoints
                else:
                    self._found = RoutedTransport(self.url, view, self._options)
                    if self._closed:
                        self._found.close()
                    self._endpoints.let_go()
            return self._found

    def _ask(self, timeout_s: float, *, retry: bool) -> ClusterView | None:
        """Return the newest map that an endpoint has; None if those that answer have none."""
        timeout_s = min(timeout_s, CALL_TIMEOUT_S)
        answer = _map_of(self._endpoints, timeout_s, retry=retry)
        if answer is None and len(self._begin_at) > 1:
            # A node that has just restarted may not have learned yet what the others know.
            for endpoint in self._begin_at:
                other = GrpcTransport(f"grpc://{endpoint}", retry_s=0.0)
                try:
                    answer = _map_of(other, min(timeout_s, QUICK_TIMEOUT_S), retry=False)
                except (errors.NodeUnavailable, errors.SilenceTimeout):
                    continue
                finally:
                    other.close()
                if answer is not None:
                    break
        return None if answer is None else ClusterView(answer)

    # -- the calls of a Transport

    def create_bucket(
        self, name: str, *, copies: int, exist_ok: bool, min_copies: int = 1, reframe: bool = False
    ) -> BucketInfo:
        return self._there().create_bucket(
            name, copies=copies, exist_ok=exist_ok, min_copies=min_copies, reframe=reframe
        )

    def set_bucket(self, name: str, change: BucketChange) -> BucketInfo:
        return self._there().set_bucket(name, change)

    def bucket(self, name: str) -> BucketInfo:
        return self._there().bucket(name)

    def buckets(self) -> list[BucketInfo]:
        return self._there().buckets()

    def delete_bucket(self, name: str, *, force: bool) -> int:
        return self._there().delete_bucket(name, force=force)

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        return self._there().snapshots(action, bucket, name)

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo:
        return self._there().put(spec, source)

    def put_many(
        self, objects: Iterable[tuple[PutSpec, Source]]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
        yield from self._there().put_many(objects)

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None = None,
        *,
        retry: bool = True,
        tries: WriteTries | None = None,
    ) -> ObjectInfo:
        return self._there().compose(request, moved, retry=retry, tries=tries)

    def tar_end(self, request: compose_pb.TarEndRequest) -> compose_pb.TarEndResponse:
        return self._there().tar_end(request)

    def get(
        self,
        bucket: str,
        name: str,
        *,
        start: int,
        length: int | None,
        member: str | None,
        verify: bool,
        timeout_s: float,
    ) -> Iterator[Buffer]:
        return self._there(timeout_s).get(
            bucket, name, start=start, length=length, member=member, verify=verify, timeout_s=timeout_s
        )

    def get_transformed(self, request: pb.BatchRequest, timeout_s: float) -> Buffer | None:
        return self._there(timeout_s).get_transformed(request, timeout_s)

    def head(self, bucket: str, name: str) -> ObjectInfo:
        return self._there().head(bucket, name)

    def delete(self, bucket: str, name: str, *, if_version: str | None = None) -> None:
        self._there().delete(bucket, name, if_version=if_version)

    def head_names(self, bucket: str, names: Sequence[str]) -> list[ObjectInfo | errors.LoaderError]:
        return self._there().head_names(bucket, names)

    def delete_names(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        return self._there().delete_names(bucket, names)

    def summary(self, bucket: str, *, prefix: str, depth: int) -> BucketSummary:
        return self._there().summary(bucket, prefix=prefix, depth=depth)

    def objects(
        self, bucket: str, *, prefix: str, page_size: int, start_after: str = "", skip_missing_drives: bool = False
    ) -> Iterator[ObjectInfo]:
        yield from self._there().objects(
            bucket,
            prefix=prefix,
            page_size=page_size,
            start_after=start_after,
            skip_missing_drives=skip_missing_drives,
        )

    def list_members(self, bucket: str, name: str, *, prefix: str, page_size: int) -> Iterator[MemberInfo]:
        yield from self._there().list_members(bucket, name, prefix=prefix, page_size=page_size)

    def etl(self, method: EtlMethod, request: Any) -> Any:
        return self._there().etl(method, request)

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        yield from self._there().watch_job(name)

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo:
        return self._there().copy_transformed(request)

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        yield from self._there().promote(spec)

    def open_batch(
        self, request: pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        def begin(there: Transport) -> FrameStream:
            return there.open_batch(request, timeout_s=timeout_s, assembly=assembly, colocation=colocation)

        try:
            there = self._there(min(timeout_s, QUICK_TIMEOUT_S), retry=False)
        except (errors.NodeUnavailable, errors.SilenceTimeout):
            return _LateStream(lambda: begin(self._there(timeout_s)))
        return begin(there)

    def open_long_batch(self, request: pb.BatchRequest, *, timeout_s: float, window_bytes: int) -> FrameStream | None:
        found = self._found
        return None if found is None else found.open_long_batch(request, timeout_s=timeout_s, window_bytes=window_bytes)

    def describe(self) -> dict[str, object]:
        return self._there().describe()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            found = self._found
        self._endpoints.close()
        if found is not None:
            found.close()

    def forget_inherited(self) -> None:
        """Called in a forked child: the lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()


class _LateStream:
    """A batch that begins when its first frame is requested, because no endpoint answered when it was opened."""

    def __init__(self, begin: Callable[[], FrameStream]) -> None:
        self._begin = begin
        self._stream: FrameStream | None = None
        self._closed = False

    def node_of(self, index: int) -> str:
        return "the store" if self._stream is None else self._stream.node_of(index)

    @property
    def retries(self) -> int:
        return 0 if self._stream is None else self._stream.retries

    @property
    def paused_s(self) -> float:
        return 0.0 if self._stream is None else self._stream.paused_s

    @property
    def hedged(self) -> int:
        return 0 if self._stream is None else self._stream.hedged

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        if self._stream is None:
            stream = self._begin()
            self._stream = stream
            if self._closed:
                stream.close()
        return next(self._stream)

    def read_all(self) -> list[bytes] | None:
        return None

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()


def _map_of(transport: GrpcTransport, timeout_s: float, *, retry: bool) -> cluster_pb.ClusterMap | None:
    try:
        answer = transport.cluster_map(0, timeout_s=timeout_s, retry=retry)
    except errors.Unsupported:
        return None
    return answer.map if answer.HasField("map") else None


def _connect_again(url: str, options: ClusterOptions, known: Sequence[str]) -> ClusterTransport:
    return ClusterTransport(url, options, known=known)


def _after_fork_in_child() -> None:
    for transport in _ALL:
        transport.forget_inherited()


os.register_at_fork(after_in_child=_after_fork_in_child)
