"""Typed calls to one storage node over gRPC, one attempt each.

Channels connect lazily and belong to the process that created them. gRPC does not survive a fork, so connections are
closed before a fork and opened again on next use: batches in flight resume by themselves, and calls are waited for, or
repeated; see `fork_safety`. Other retries are up to the caller, who may ask another node.

The module is long because it has one short method for each call of a node.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import grpc

from ais_loader import errors
from ais_loader.transport.base import (
    BucketInfo,
    EtlMethod,
    OpenedObject,
    PutSpec,
    object_info,
    require_bucket,
    require_text,
)
from ais_loader.transport.fork_safety import GATE, register_part
from ais_loader.transport.grpc.connection import AllForked, Connection, CutByFork
from ais_loader.transport.grpc.download import Call
from ais_loader.transport.grpc.put import PutAnswers, put_header, put_object
from ais_loader.transport.grpc.watchdog import CALL_TIMEOUT_S, answered, streamed, watched
from ais_loader.transport.retry import WriteTries, of_a_repeat
from ais_loader.transport.session.batch_stream import SharedAnswers
from ais_loader.transport.session.long_batch import LongBatch
from ais_loader.transport.session.session import Session
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.options import ClusterOptions
from ais_loader.values.promote import PromoteResult
from ais_loader.values.source import Buffer, Source
from ais_loader.values.summary import BucketSummary, PrefixSummary, SnapshotAction, SnapshotInfo
from ais_loader.values.urls import endpoints_of, is_host_port
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_promote_pb2 as promote_pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.generated import ais_snapshots_pb2 as snapshots_pb
from ais_loader.wire.map_delta import carried
from ais_loader.wire.object_info import stored_of
from ais_loader.wire.plain import plain
from ais_loader.wire.redundancy import COPIES
from ais_loader.wire.remote import Remote

T = TypeVar("T")
DENY_TIMEOUT_S = 300.0
"""Time for nodes to find denied contents and to remove the bytes, in seconds."""
REMOTE_TIMEOUT_S = 120.0
"""Time for a call that waits for remote storage, or for the removal of many copies."""
INDEX_TIMEOUT_S = 600.0
"""An archive without an index is read completely first."""
INIT_TIMEOUT_S = 90.0
"""The node starts a worker, which may load a model."""
INSTALL_TIMEOUT_S = 360.0
"""Additional time in which the worker's requirements are installed."""
JOB_SILENCE_S = 15.0
"""Longest silence of a node that reports on a job every few seconds."""
_FOLLOW_EVERY_S = 5.0
"""Interval at which a node that may have ended is located again, so that a call after a long pause does not fail."""
_FORKS_PER_CALL = 5
"""How often a call that a fork has ended is repeated. Beyond that, it counts as a failure of the node."""

_ALL = AllForked()
register_part(_ALL)


class NodeCalls:
    """Calls to one storage node, by one endpoint or by the next of several after each failure. Thread-safe.

    Args:
        options: `retry_s` is how long callers wait for a node that does not answer.
        locate: returns host:port of the node, which may change when the node is restarted; without it, the endpoints
            are in the URL. It may take seconds, and may raise LoaderErrors.
    """

    def __init__(self, url: str, options: ClusterOptions, locate: Callable[[], str] | None = None) -> None:
        self.url = url
        self._options = options
        self._locate = locate
        self._located_s = -math.inf
        """When the node was last located; -inf after it has not answered."""
        self._endpoints = [] if locate is not None else endpoints_of(url)
        for endpoint in self._endpoints:
            if not is_host_port(endpoint):
                raise errors.InvalidRequest(
                    f"{url!r}: {endpoint!r} is not host:port with a port from 1 to 65535, as in grpc://10.0.0.5:7480"
                )
        self._lock = threading.Lock()
        self._connection: Connection | None = None  # guarded by _lock
        self._endpoint = 0
        self._closed = False
        _ALL.add(self)

    # -- connection

    def _unlocked_connection(self) -> Connection:
        """Return this process's connection. No new one is created while the process is being forked."""
        self._follow()
        connection = self._connection
        if connection is not None and not self._closed:
            return connection
        with GATE.call():
            return self._connected()

    def _connected(self) -> Connection:
        with self._lock:
            if self._closed:
                raise errors.Closed(f"the connection to {self.url} has been closed")
            if self._connection is None:
                self._connection = Connection(self._endpoints[self._endpoint], self._options, self)
            return self._connection

    def _follow(self) -> None:
        """Locate the node before the first call, after it has not answered, and from time to time, as it may have ended
        since. Called outside the fork barrier: it may take as long as a node takes to start. Raises LoaderError."""
        if self._locate is None or self._closed or time.monotonic() - self._located_s < _FOLLOW_EVERY_S:
            return
        endpoints = [self._locate()]
        with GATE.call():
            with self._lock:
                self._located_s = time.monotonic()
                if endpoints == self._endpoints:
                    return
                self._endpoints = endpoints
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.abandon()

    def _abandon(self, failed: Connection) -> None:
        """Switch to the next endpoint, if there is one, or locate the node again before the next call. Otherwise, gRPC
        itself keeps reconnecting to the only one."""
        if self._connection is failed:
            self._located_s = -math.inf
        if len(self._endpoints) > 1:
            with GATE.call():
                with self._lock:
                    if self._connection is not failed:
                        return
                    self._connection = None
                    self._endpoint = (self._endpoint + 1) % len(self._endpoints)
                failed.abandon()

    def abandon(self, *, cut: bool = False) -> None:
        """End everything in progress, as if the connection had broken; it is opened again on next use. Called for a
        fork, or when the connection is not needed for a while. `cut`: calls have had their time before a fork."""
        with GATE.call():
            with self._lock:
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.abandon(cut=cut)

    def forget_inherited(self) -> None:
        """Called in a forked child: connections are the parent's, and a lock may be held by a thread that does not
        exist here."""
        self._lock = threading.Lock()
        self._connection = None

    def close(self) -> None:
        self._closed = True
        with GATE.call():
            with self._lock:
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _failed(self, conn: Connection, error: Exception) -> errors.LoaderError:
        translated = conn.translate(error)
        if isinstance(translated, errors.NodeUnavailable):
            self._abandon(conn)
        return translated

    def _call(self, call: Callable[[Connection], T], *, replay: bool = True, tries: WriteTries | None = None) -> T:
        """Make one call. `replay`: again if a fork has cut it. `tries`: the attempts of a write, which `call` begins,
        and whose outcome the caller judges."""
        forks = 0
        while True:
            try:
                return self._once(call, tries)
            except CutByFork:
                forks += 1
                if not replay or forks > _FORKS_PER_CALL:
                    raise

    def _once(self, call: Callable[[Connection], T], tries: WriteTries | None) -> T:
        self._follow()
        with GATE.call():
            conn = self._connected()
            try:
                with conn.in_use():
                    return call(conn)
            except (grpc.RpcError, errors.LoaderError) as error:
                judged = self._failed(conn, error)
                if tries is not None:
                    tries.failed(judged)
                    judged = tries.judged(judged)
                if judged is error:
                    raise
                raise judged from error

    @contextlib.contextmanager
    def _opening(self) -> Iterator[Connection]:
        """Lend the connection to open a stream. The process is not forked meanwhile."""
        self._follow()
        with GATE.call():
            conn = self._connected()
            with conn.in_use():
                yield conn

    def _streamed(self, call: Callable[[Connection], Any], silence_s: float = CALL_TIMEOUT_S) -> Iterator[Any]:
        with self._opening() as conn:
            answers = call(conn)
        yield from streamed(conn, answers, silence_s)

    # -- buckets

    def create_bucket(self, name: str, settings: BucketSettings, *, exist_ok: bool) -> BucketInfo:
        require_text(name, errors.InvalidName, "bucket name")
        request = pb.CreateBucketRequest(name=name, exist_ok=exist_ok)
        settings.write_to(request)
        return _bucket_info(self._call(lambda conn: conn.buckets.CreateBucket(request, timeout=CALL_TIMEOUT_S)))

    def bucket(self, name: str, *, has_others: bool) -> BucketInfo:
        """`has_others`: whether another node can be asked if this one does not answer; so also below."""
        require_bucket(name)
        request = pb.GetBucketRequest(name=name)
        return _bucket_info(
            self._call(lambda conn: answered(conn, conn.buckets.GetBucket, request, has_others=has_others))
        )

    def buckets(self, *, has_others: bool) -> list[BucketInfo]:
        request = pb.ListBucketsRequest()
        answer = self._call(lambda conn: answered(conn, conn.buckets.ListBuckets, request, has_others=has_others))
        return [_bucket_info(bucket) for bucket in answer.bucket]

    def set_bucket(self, name: str, settings: BucketSettings) -> BucketInfo:
        require_bucket(name)
        request = pb.SetBucketRequest(name=name)
        settings.write_to(request)
        return _bucket_info(self._call(lambda conn: conn.buckets.SetBucket(request, timeout=CALL_TIMEOUT_S)))

    def delete_bucket(self, name: str, *, force: bool) -> int:
        require_bucket(name)
        request = pb.DeleteBucketRequest(name=name, force=force)
        # No deadline: the duration depends on the number of objects. A lost answer leaves the bucket deleted.
        return int(self._call(lambda conn: conn.buckets.DeleteBucket(request), replay=False).deleted_objects)

    def snapshots(self, action: SnapshotAction, bucket: str, name: str) -> list[SnapshotInfo]:
        """Return the snapshots that were created, or exist; none after a deletion."""
        require_bucket(bucket)
        require_text(name, errors.InvalidName, "snapshot name")

        def info(found: snapshots_pb.Snapshot) -> SnapshotInfo:
            return SnapshotInfo(bucket, found.name, found.created_ns, found.objects, found.size_bytes)

        def call(conn: Connection) -> list[SnapshotInfo]:
            stub = conn.snapshots
            # Calls without a deadline take as long as the number of objects requires.
            if action == "create":
                return [info(stub.CreateSnapshot(snapshots_pb.CreateSnapshotRequest(bucket=bucket, name=name)))]
            if action == "delete":
                stub.DeleteSnapshot(snapshots_pb.DeleteSnapshotRequest(bucket=bucket, name=name))
                return []
            found = stub.ListSnapshots(snapshots_pb.ListSnapshotsRequest(bucket=bucket), timeout=CALL_TIMEOUT_S)
            return [info(snapshot) for snapshot in found.snapshot]

        return self._call(call, replay=action == "list")

    # -- writes: attempts of the caller's `tries`

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo:
        header = put_header(spec)  # raises for values that no message can carry
        if spec.size_bytes is None and source.buffer_bytes is not None:  # a node commits small objects together
            header.size_bytes = source.buffer_bytes
        return object_info(
            self._call(lambda conn: put_object(conn, header, spec, source), replay=source.replayable, tries=spec.tries)
        )

    def open_puts(self, messages: Iterator[pb.PutManyRequest]) -> PutAnswers:
        """Open one PutMany call: groups of objects in, their acknowledgements out."""
        with self._opening() as conn:
            return PutAnswers(conn.objects.PutMany(messages), conn.translate)

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None,
        *,
        replay: bool,
        tries: WriteTries,
    ) -> ObjectInfo:
        """Create an object from parts of others. The call may continue as long as bytes move."""
        condition = request.object.condition

        def send(conn: Connection) -> ObjectInfo:
            tries.begin()
            condition.write_id, condition.repeat_ms = tries.write_id, tries.repeat_ms
            call = conn.compose.Compose(request)
            with watched(conn, call, has_others=False) as watchdog:
                for answer in call:
                    watchdog.note_progress()
                    if moved is not None:
                        moved(answer.moved_bytes)
                    if answer.HasField("info"):
                        return object_info(answer.info)
            raise errors.NodeUnavailable(f"{conn.endpoint}: the answer ended before it said what was stored")

        return self._call(send, replay=replay, tries=tries)

    def delete(self, bucket: str, name: str, *, if_version: str | None, tries: WriteTries) -> None:
        request = pb.DeleteRequest(bucket=bucket, name=name, if_version=if_version or "", write_id=tries.write_id)

        def send(conn: Connection) -> None:
            tries.begin()
            request.repeat_ms = tries.repeat_ms
            conn.objects.Delete(request, timeout=CALL_TIMEOUT_S)

        self._call(send, tries=tries)

    def delete_names(self, bucket: str, names: Sequence[str], tries: WriteTries) -> list[errors.LoaderError | None]:
        def send(conn: Connection) -> list[errors.LoaderError | None]:
            tries.begin()
            request = contents_pb.DeleteManyRequest(
                bucket=bucket, name=names, write_id=tries.write_id, repeat_ms=tries.repeat_ms
            )
            answer = conn.contents.DeleteMany(request, timeout=CALL_TIMEOUT_S)
            results: list[errors.LoaderError | None] = [None] * len(names)
            is_repeat = tries.in_doubt
            for failure in answer.failure:
                error = errors.from_node(failure.error.kind, failure.error.message)
                if is_repeat and not (error := tries.judged(error)).retryable:
                    error = of_a_repeat(error)
                results[failure.position] = error
                tries.failed(error)
            return results

        return self._call(send, tries=tries)

    # -- reads

    def get_small(self, request: batch_pb.BatchRequest, timeout_s: float) -> Buffer | None:
        """Get the bytes of a request's only entry, a whole object, on the fastest path. Returns None if that path does
        not apply. Raises SilenceTimeout, and the errors of the entry's transforms."""
        request.tenant = self._options.tenant or request.tenant
        return self._unlocked_connection().single_get.get(request, timeout_s)

    def open_small(self, request: batch_pb.BatchRequest, timeout_s: float) -> OpenedObject | None:
        """Get the description of a request's only entry, and a small object, on the fastest path. Returns None if the
        object has to be looked up. Raises SilenceTimeout."""
        request.tenant = self._options.tenant or request.tenant
        found = self._unlocked_connection().single_get.open(request, timeout_s)
        if found is None:
            return None
        data, described = found
        info = ObjectInfo(request.bucket[0], request.name[0], *stored_of(described))
        return OpenedObject(info, (lambda: data) if len(data) else None)

    def open_download(self, request: pb.GetRequest) -> tuple[Call, Callable[[Exception], errors.LoaderError]]:
        """Open the call that streams an object. Also return the translation of its errors."""
        with self._opening() as conn:
            return conn.objects.Get(request), lambda error: self._failed(conn, error)

    def head(self, bucket: str, name: str, *, timeout_s: float) -> ObjectInfo:
        request = pb.HeadRequest(bucket=bucket, name=name)
        return object_info(self._call(lambda conn: conn.objects.Head(request, timeout=timeout_s)))

    def head_names(
        self, bucket: str, names: Sequence[str], *, timeout_s: float
    ) -> list[ObjectInfo | errors.LoaderError]:
        request = contents_pb.HeadManyRequest(bucket=bucket, name=names)
        answer = self._call(lambda conn: conn.contents.HeadMany(request, timeout=timeout_s))
        found: list[ObjectInfo | errors.LoaderError] = [object_info(message) for message in answer.object]
        for failure in answer.failure:
            found[failure.position] = errors.from_node(failure.error.kind, failure.error.message)
        return found

    def summary(self, bucket: str, *, prefix: str, depth: int, has_others: bool) -> BucketSummary:
        """Count objects. The call may continue as long as names are counted."""
        request = contents_pb.SummarizeRequest(bucket=bucket, prefix=prefix, depth=depth)

        def summarized(conn: Connection) -> BucketSummary:
            call = conn.contents.Summarize(request)
            with watched(conn, call, has_others=has_others) as watchdog:
                for answer in call:
                    watchdog.note_progress()
                    if answer.HasField("summary"):
                        return _summary(bucket, prefix, answer.summary)
            raise errors.NodeUnavailable(f"{conn.endpoint}: the answer ended before the summary")

        return self._call(summarized)

    def deny(self, request: contents_pb.DenyRequest) -> list[errors.LoaderError | None]:
        results: list[errors.LoaderError | None] = [None] * len(request.name)
        answer = self._call(lambda conn: conn.contents.Deny(request, timeout=DENY_TIMEOUT_S))
        for one in answer.failure:
            results[one.position] = errors.from_node(one.error.kind, one.error.message)
        return results

    def denied(self, bucket: str) -> contents_pb.ListDeniedResponse:
        """Return all that the node knows to be denied in a bucket."""
        found, request = contents_pb.ListDeniedResponse(), contents_pb.ListDeniedRequest(bucket=bucket)
        while True:
            page = self._call(lambda conn: conn.contents.ListDenied(request, timeout=CALL_TIMEOUT_S))
            found.MergeFrom(page)
            if not page.next:
                return found
            request.start_after = page.next

    def list_page(self, request: pb.ListRequest, *, has_others: bool) -> pb.ListResponse:
        """Return one page of the node's objects, which may end before `page_size` objects."""
        page: pb.ListResponse = self._call(
            lambda conn: answered(conn, conn.objects.List, request, has_others=has_others)
        )
        return page

    # -- remote buckets

    def remote_page(self, request: remote_pb.ListRemoteRequest) -> remote_pb.ListRemoteResponse:
        page: remote_pb.ListRemoteResponse = self._call(
            lambda conn: conn.remote.ListRemote(request, timeout=REMOTE_TIMEOUT_S)
        )
        return page

    def warm(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        def send(conn: Connection) -> list[errors.LoaderError | None]:
            answers = conn.remote.Warm(iter([remote_pb.WarmRequest(bucket=bucket, name=names)]))
            return [
                errors.from_node(one.error.kind, one.error.message) if one.HasField("error") else None
                for answer in answers
                for one in answer.result
            ]

        return self._call(send)

    def evict(self, bucket: str, names: Sequence[str] | None, prefix: str, patterns: Sequence[str]) -> tuple[int, int]:
        request = remote_pb.EvictRequest(bucket=bucket, name=names or (), prefix=prefix, pattern=patterns)
        if names is not None and not names:
            return 0, 0
        answer = self._call(lambda conn: conn.remote.Evict(request, timeout=REMOTE_TIMEOUT_S))
        return answer.objects, answer.bytes

    def expect(self, request: remote_pb.ExpectRequest, *, timeout_s: float) -> remote_pb.ExpectResponse:
        # Names of one corpus have much in common.
        answer: remote_pb.ExpectResponse = self._call(
            lambda conn: conn.remote.Expect(request, timeout=timeout_s, compression=grpc.Compression.Gzip)
        )
        return answer

    def refresh_inventory(
        self, request: remote_pb.RefreshInventoryRequest
    ) -> Iterator[remote_pb.RefreshInventoryResponse]:
        """Raises the node's error, NodeUnavailable, SilenceTimeout."""
        yield from self._streamed(lambda conn: conn.remote.RefreshInventory(request))

    def remote_usage(self) -> remote_pb.RemoteUsageResponse:
        answer: remote_pb.RemoteUsageResponse = self._call(
            lambda conn: conn.remote.RemoteUsage(remote_pb.RemoteUsageRequest(), timeout=CALL_TIMEOUT_S)
        )
        return answer

    def pending_uploads(self, bucket: str, prefix: str, wait_s: float) -> remote_pb.PendingUploadsResponse:
        request = remote_pb.PendingUploadsRequest(bucket=bucket, prefix=prefix, wait_ms=round(wait_s * 1000))
        answer: remote_pb.PendingUploadsResponse = self._call(
            lambda conn: conn.remote.PendingUploads(request, timeout=CALL_TIMEOUT_S + wait_s)
        )
        return answer

    def member_page(self, request: pb.ListMembersRequest) -> pb.ListMembersResponse:
        # The first caller waits for the index.
        answer: pb.ListMembersResponse = self._call(
            lambda conn: conn.objects.ListMembers(request, timeout=INDEX_TIMEOUT_S)
        )
        return answer

    # -- promotion and jobs

    def look(self, request: promote_pb.LookRequest, *, timeout_s: float) -> promote_pb.LookResponse:
        answer: promote_pb.LookResponse = self._call(lambda conn: conn.promote.Look(request, timeout=timeout_s))
        return answer

    def run_promotion(self, request: promote_pb.PromoteRequest) -> Generator[PromoteResult, None, int]:
        """Yield the result of each file as it becomes known. Returns the number of files that the node has seen.

        Raises the node's error about the whole promotion, NodeUnavailable, SilenceTimeout; files before that are
        promoted.
        """
        for response in self._streamed(lambda conn: conn.promote.Run(request)):
            yield from map(_promoted, response.result)
            if response.done:
                return int(response.files_seen)
        raise errors.NodeUnavailable(f"{self.url}: it ended the promotion; promote again")

    def etl(self, method: EtlMethod, request: Any) -> Any:
        timeout_s = CALL_TIMEOUT_S
        if method == "InitTransform":
            timeout_s = INIT_TIMEOUT_S + (INSTALL_TIMEOUT_S if request.transform.python.requirement else 0.0)
        return self._call(lambda conn: getattr(conn.etl, method)(request, timeout=timeout_s))

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        """Raises JobNotFound, NodeUnavailable, SilenceTimeout."""
        request = etl_pb.WatchJobRequest(name=name, wait=True)
        yield from self._streamed(lambda conn: conn.etl.WatchJob(request), JOB_SILENCE_S)

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo:
        # No deadline: the transform has its own.
        return object_info(self._call(lambda conn: conn.etl.CopyObject(request)).info)

    # -- batches

    def session(self) -> Session:
        """The session that batches share. Raises NodeUnavailable, Closed."""
        connection = self._connection
        if connection is not None and connection.session_broke:
            self._abandon(connection)
        self._follow()
        with GATE.call():
            return self._connected().session()

    def open_shared(self, request: batch_pb.BatchRequest) -> SharedAnswers:
        return SharedAnswers(self.session(), request)

    def open_alone(self, request: batch_pb.BatchRequest, window_bytes: int) -> LongBatch:
        with self._opening() as conn:
            return LongBatch(conn.own_pool(), request, window_bytes, lambda error: self._failed(conn, error))

    # -- the node itself

    def cluster_map(self, known: cluster_pb.ClusterMap | None, *, timeout_s: float) -> cluster_pb.ClusterMap:
        """Return the node's map of its cluster; an empty one if it has none, or none newer than this one. Raises
        Unsupported for a node without one."""

        def ask(version: int) -> cluster_pb.GetMapResponse:
            request = cluster_pb.GetMapRequest(known_version=version)
            answer: cluster_pb.GetMapResponse = self._call(lambda conn: conn.cluster.GetMap(request, timeout=timeout_s))
            return answer

        map_ = carried(ask(known.version if known is not None else 0), known)
        return ask(0).map if map_ is None else map_

    def describe(self) -> dict[str, object]:
        described = plain(self._call(lambda conn: conn.node.Describe(pb.DescribeRequest(), timeout=CALL_TIMEOUT_S)))
        renamed = {"drives": described.pop("drive"), "etl_commands": described.pop("etl_command")}
        return {"url": self.url, "lane": self._lane_kind(), **described, **renamed}

    def _lane_kind(self) -> str:
        """Transport of the sessions: "unix" or "tcp" (a lane), or "grpc" without one and before the first session."""
        with self._lock:
            lanes = self._connection.lanes if self._connection is not None else None
        return "grpc" if lanes is None else lanes.kind


def _bucket_info(bucket: pb.Bucket) -> BucketInfo:
    return BucketInfo(
        bucket.name,
        bucket.uuid.hex(),
        bucket.copies,
        bucket.min_copies or 1,
        bucket.settling,
        Remote.from_wire(bucket.remote) if bucket.HasField("remote") else None,
        bucket.quota_bytes,
        bucket.quota_objects,
        bucket.redundancy or COPIES,
    )


def _summary(bucket: str, prefix: str, summary: contents_pb.Summary) -> BucketSummary:
    by_prefix = {one.prefix: PrefixSummary(one.objects, one.size_bytes) for one in summary.prefix}
    return BucketSummary(
        bucket, prefix, summary.objects, summary.size_bytes, by_prefix, not summary.incomplete, tuple(summary.silent)
    )


def _promoted(message: promote_pb.PromoteResult) -> PromoteResult:
    if message.HasField("error"):
        error = errors.from_node(message.error.kind, message.error.message)
        return PromoteResult(message.path, message.name, "failed", error=error)
    status = "skipped" if message.skipped else "promoted"
    return PromoteResult(message.path, message.name, status, object_info(message.info))  # type: ignore[arg-type]
