"""Transport to one storage node over gRPC. With `connection`, the only client module that imports grpc.

Channels connect lazily and belong to the process that created them. gRPC does not survive a fork, so connections are
closed before a fork and opened again on next use: batches in flight resume by themselves, and calls are waited for, or
repeated; see `fork_safety`. Calls that only read, and writes whose bytes can be sent again, are retried with growing,
jittered pauses while no node answers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import grpc

from ais_loader import errors
from ais_loader.transport.base import EtlMethod, FrameStream, NothingToRefresh, PutSpec
from ais_loader.transport.fork_safety import GATE, take_part
from ais_loader.transport.grpc.bucket_calls import BucketCalls
from ais_loader.transport.grpc.compose import composed
from ais_loader.transport.grpc.connection import AllForked, Connection, CutByFork
from ais_loader.transport.grpc.contents_calls import ContentsCalls
from ais_loader.transport.grpc.download import Call, download
from ais_loader.transport.grpc.job_calls import call_job, watch_job
from ais_loader.transport.grpc.member_pages import listed_members
from ais_loader.transport.grpc.promote_calls import promote_request, run_promotion
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S, PutAnswers, put_large
from ais_loader.transport.grpc.put_messages import put_by_lane, put_header, put_messages
from ais_loader.transport.grpc.put_stream import LARGE_BYTES, AnswerStream, object_info, put_many
from ais_loader.transport.grpc.snapshot_calls import call_snapshots
from ais_loader.transport.grpc.waiting import answered
from ais_loader.transport.retry import NO_RETRY_S
from ais_loader.transport.session.batch_stream import GrpcStream, SharedAnswers, StreamPolicy
from ais_loader.transport.session.call_lane import PUT
from ais_loader.transport.session.long_batch import DedicatedStreamAnswers
from ais_loader.transport.session.session import Session
from ais_loader.transport.validation import require_bucket, require_object, require_text
from ais_loader.transport.write_tries import WriteTries
from ais_loader.values.batch import Batch
from ais_loader.values.content import Buffer, Source
from ais_loader.values.entry import Entry, MemberInfo, ObjectInfo
from ais_loader.values.options import LaneChoice
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.values.requests import BatchOptions, requests_for_entries
from ais_loader.values.snapshots import SnapshotAction, SnapshotInfo
from ais_loader.values.urls import is_host_port
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_promote_pb2 as promote_pb
from ais_loader.wire.lane import MAX_PUT_MESSAGE_BYTES

T = TypeVar("T")
INDEX_TIMEOUT_S = 600.0
"""An archive without an index is read completely first."""
_FORKS_PER_CALL = 5
"""How often a call that a fork has ended is repeated. Beyond that, it counts as a failure of the node."""
_BACKOFF = Backoff(0.1, 1.0)

_TRANSPORTS = AllForked()
take_part(_TRANSPORTS)


class GrpcTransport(BucketCalls, ContentsCalls, NothingToRefresh):
    """A `Transport` to one storage node, by one endpoint or by the first of several that answers.

    Args:
        patience_s: how long callers wait for a node that does not answer, if they do not rely on `retry_s`.
    """

    def __init__(
        self,
        url: str,
        *,
        retry_s: float = 10.0,
        verify_payload: bool = False,
        tenant: str = "",
        patience_s: float | None = None,
        lane: LaneChoice = "grpc",
    ) -> None:
        self.url = url
        self._tenant = tenant
        self._endpoints = [part.removeprefix("grpc://") for part in url.split(",")]
        for endpoint in self._endpoints:
            if not is_host_port(endpoint):
                raise errors.InvalidRequest(f"{url!r}: {endpoint!r} is not host:port, as in grpc://10.0.0.5:7480")
        self._retry_s = retry_s
        self._patience_s = retry_s if patience_s is None else patience_s
        self._verify_payload = verify_payload
        self._lane = lane
        self._lock = threading.Lock()
        self._connection: Connection | None = None  # guarded by _lock
        self._endpoint = 0
        self._closed = False
        _TRANSPORTS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect_again, (
            self.url,
            self._retry_s,
            self._verify_payload,
            self._tenant,
            self._patience_s,
            self._lane,
        )

    def _here(self) -> Connection:
        """Return this process's connection. No new one is created while the process is being forked."""
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
                self._connection = Connection(
                    self._endpoints[self._endpoint],
                    self._verify_payload,
                    self._patience_s,
                    self._tenant,
                    self,
                    self._lane,
                )
            return self._connection

    def session(self) -> Session:
        """The session that batches share. Raises NodeUnavailable, Closed."""
        with GATE.call():
            here = self._connected()
            if here.session_broke:
                self._abandon(here)
                here = self._connected()
            return here.session()

    def _abandon(self, failed: Connection) -> None:
        """Switch to the next endpoint, if there is one; gRPC itself keeps reconnecting to the only one."""
        if len(self._endpoints) > 1:
            with GATE.call():
                with self._lock:
                    if self._connection is not failed:
                        return
                    self._connection = None
                    self._endpoint = (self._endpoint + 1) % len(self._endpoints)
                failed.let_go()

    def let_go(self, *, cut: bool = False) -> None:
        """End everything in progress, as if the connection had broken; it is opened again on next use. Called for a
        fork, or when the connection is not needed for a while. `cut`: calls have had their time before a fork."""
        with GATE.call():
            with self._lock:
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.let_go(cut=cut)

    def forget_inherited(self) -> None:
        """Called in a forked child: connections are the parent's, and a lock may be held by a thread that does not
        exist here."""
        self._lock = threading.Lock()
        self._connection = None

    def _call(self, call: Callable[[Connection], T], *, retry: bool = True, tries: WriteTries | None = None) -> T:
        """Make one unary call, with retries while no node answers. `tries`: the attempts of a write, which `call`
        begins."""
        if tries is None:
            return self._tried(call, retry, WriteTries())
        with tries.told():
            return self._tried(call, retry, tries)

    def _tried(self, call: Callable[[Connection], T], retry: bool, tries: WriteTries) -> T:

        def once() -> T:
            with GATE.call():
                connection = self._connected()
                try:
                    with connection.in_use():
                        return call(connection)
                except grpc.RpcError as error:
                    translated = connection.translate(error)
                    tries.failed(translated)
                    if isinstance(translated, errors.NodeUnavailable):
                        self._abandon(connection)
                    raise tries.judged(translated) from error
                except errors.LoaderError as error:
                    tries.failed(error)
                    if isinstance(error, errors.NodeUnavailable):
                        self._abandon(connection)
                    if (judged := tries.judged(error)) is not error:
                        raise judged from error
                    raise

        def through_forks() -> T:
            for _ in range(_FORKS_PER_CALL):
                with contextlib.suppress(CutByFork):
                    return once()
            return once()

        if not retry:
            return once()
        deadline_s = time.monotonic() + self._retry_s
        failures = 0
        while True:
            try:
                return through_forks()
            except (errors.NodeUnavailable, errors.Overloaded) as error:
                if not error.retryable or time.monotonic() >= deadline_s:
                    raise
            time.sleep(_BACKOFF.pause_s(failures))
            failures += 1

    # -- buckets

    def snapshots(self, action: SnapshotAction, bucket: str, name: str = "") -> list[SnapshotInfo]:
        return self._call(lambda here: call_snapshots(here, action, bucket, name), retry=action == "list")

    # -- objects

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo:
        header = put_header(spec)  # raises for values that no message can carry
        # A node rejects a header that is too large with a gRPC error. The write id is not in the header yet.
        by_lane = header.ByteSize() <= MAX_PUT_MESSAGE_BYTES // 2

        def send(here: Connection) -> pb.ObjectInfo:
            failure: list[Exception] = []
            spec.tries.begin(all_sent=False)
            if by_lane and (lane := here.put_lanes.take(PUT)) is not None:
                return put_by_lane(lane, spec, source, here.lane_broke)
            messages = put_messages(spec, source, failure)
            try:
                if source.size_bytes is not None and source.size_bytes < LARGE_BYTES:
                    stored: pb.ObjectInfo = here.objects.Put(messages, timeout=CALL_TIMEOUT_S)
                    return stored
                return put_large(here, messages)
            except grpc.RpcError:
                if failure:
                    raise failure[0] from None
                raise

        return object_info(self._call(send, retry=source.replayable, tries=spec.tries))

    def put_many(
        self, objects: Iterable[tuple[PutSpec, Source]]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
        return put_many(objects, self.open_puts, self.put, retry_s=self._retry_s)

    def open_puts(self, messages: Iterator[pb.PutManyRequest]) -> AnswerStream:
        """Open one PutMany call: groups of objects in, their acknowledgements out."""
        with GATE.call():
            here = self._connected()
            with here.in_use():
                return PutAnswers(here.objects.PutMany(messages), here.translate)

    def compose(
        self,
        request: compose_pb.ComposeRequest,
        moved: Callable[[int], None] | None = None,
        *,
        retry: bool = True,
        tries: WriteTries | None = None,
    ) -> ObjectInfo:
        condition = request.object.condition
        tries = tries or WriteTries(condition.write_id)

        def send(here: Connection) -> ObjectInfo:
            tries.begin()
            condition.write_id, condition.repeat_ms = tries.write_id, tries.repeat_ms
            return composed(here, request, moved)

        return self._call(send, retry=retry, tries=tries)

    def tar_end(self, request: compose_pb.TarEndRequest) -> compose_pb.TarEndResponse:
        answer: compose_pb.TarEndResponse = self._call(
            lambda here: here.compose.TarEnd(request, timeout=INDEX_TIMEOUT_S)
        )
        return answer

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
        """Get an object as a batch of one on a session of its own. An object too large for a batch is streamed by a
        separate call."""
        require_object(bucket, name)
        whole = start == 0 and length is None and member is None
        if whole and (data := self.get_small(bucket, name, timeout_s)) is not None:
            yield data
            return
        options = BatchOptions(timeout_s=timeout_s, verify_ranges=verify)
        entries, requests = requests_for_entries([Entry(bucket, name, member, start, length)], options)
        batch = Batch(entries, requests, lambda request: self.open_batch(request, timeout_s=timeout_s), "raise")
        try:
            yield from (item.data for item in batch)
        except errors.ItemTooLarge:
            rest = pb.GetRequest(
                bucket=bucket, name=name, member=member, start=start, length=length, verify_range=verify
            )
            yield from self._download(rest, timeout_s)

    def get_small(self, bucket: str, name: str, timeout_s: float, *, local: bool = False) -> Buffer | None:
        """Get a whole object on the fastest path. Returns None if that path does not apply, and on every failure but
        one.

        Raises SilenceTimeout.
        """
        request = batch_pb.BatchRequest(
            bucket=(bucket,), name=(name,), fail_fast=True, ordered=True, local=local, tenant=self._tenant
        )
        return self._here().single_get.get(request, timeout_s)

    def get_transformed(self, request: batch_pb.BatchRequest, timeout_s: float) -> Buffer | None:
        request.tenant = self._tenant or request.tenant
        return self._here().single_get.get(request, timeout_s)

    def _download(self, request: pb.GetRequest, timeout_s: float) -> Iterator[Buffer]:
        translate: Callable[[Exception], errors.LoaderError] = self._here().translate

        def open_call(request: pb.GetRequest) -> Call:
            nonlocal translate
            call, translate = self.open_download(request)
            return call

        return download(
            request, open_call, lambda error, _: translate(error), timeout_s=timeout_s, retry_s=self._retry_s
        )

    def open_download(self, request: pb.GetRequest) -> tuple[Call, Callable[[Exception], errors.LoaderError]]:
        """Open the call that streams an object. Also return the translation of its errors."""
        with GATE.call():
            here = self._connected()

            def translate(error: Exception) -> errors.LoaderError:
                translated = here.translate(error)
                if isinstance(translated, errors.NodeUnavailable):
                    self._abandon(here)
                return translated

            with here.in_use():
                return here.objects.Get(request), translate

    def head(self, bucket: str, name: str, *, timeout_s: float = CALL_TIMEOUT_S) -> ObjectInfo:
        require_object(bucket, name)
        request = pb.HeadRequest(bucket=bucket, name=name)
        return object_info(self._call(lambda here: here.objects.Head(request, timeout=timeout_s)))

    def delete(self, bucket: str, name: str, *, if_version: str | None = None, tries: WriteTries | None = None) -> None:
        require_object(bucket, name)
        tries = tries or WriteTries()
        request = pb.DeleteRequest(bucket=bucket, name=name, if_version=if_version or "", write_id=tries.write_id)

        def send(here: Connection) -> None:
            tries.begin()
            request.repeat_ms = tries.repeat_ms
            here.objects.Delete(request, timeout=CALL_TIMEOUT_S)

        self._call(send, tries=tries)

    def objects(
        self, bucket: str, *, prefix: str, page_size: int, start_after: str = "", skip_missing_drives: bool = False
    ) -> Iterator[ObjectInfo]:
        require_bucket(bucket)
        require_text(prefix, errors.InvalidRequest, "prefix")
        require_text(start_after, errors.InvalidRequest, "start_after")
        after = start_after
        while True:
            page = self.list_page(bucket, prefix, after, page_size, skip_missing_drives=skip_missing_drives)
            for message in page.object:
                yield object_info(message)
            if not page.more:
                return
            after = page.next

    def list_page(
        self,
        bucket: str,
        prefix: str,
        start_after: str,
        page_size: int,
        *,
        has_others: bool = False,
        skip_missing_drives: bool = False,
    ) -> pb.ListResponse:
        """Return one page of the node's objects, which may end before `page_size` objects.

        `has_others`: whether other nodes are asked as well, so that a node that does not answer is not waited for.
        """
        request = pb.ListRequest(
            bucket=bucket,
            prefix=prefix,
            start_after=start_after,
            page_size=min(page_size, 2**32 - 1),
            skip_missing_drives=skip_missing_drives,
        )
        page: pb.ListResponse = self._call(
            lambda here: answered(here, here.objects.List, request, has_others=has_others)
        )
        return page

    def list_members(self, bucket: str, name: str, *, prefix: str, page_size: int) -> Iterator[MemberInfo]:
        return listed_members(self.member_page, bucket, name, prefix, page_size)

    def member_page(self, request: pb.ListMembersRequest) -> pb.ListMembersResponse:
        # The first caller waits for the index.
        answer: pb.ListMembersResponse = self._call(
            lambda here: here.objects.ListMembers(request, timeout=INDEX_TIMEOUT_S)
        )
        return answer

    def promote(self, spec: PromoteSpec) -> Generator[PromoteResult, None, None]:
        request = promote_request(spec)
        looked = promote_pb.LookRequest(path=request.path, recursive=request.recursive)
        self.look_at(looked, timeout_s=CALL_TIMEOUT_S)  # retried while the node does not answer
        yield from self.run_promotion(request)

    def run_promotion(self, request: promote_pb.PromoteRequest) -> Generator[PromoteResult, None, int]:
        """See `promote_calls`."""
        return run_promotion(self._here(), request)

    def look_at(self, request: promote_pb.LookRequest, *, timeout_s: float) -> promote_pb.LookResponse:
        answer: promote_pb.LookResponse = self._call(lambda here: here.promote.Look(request, timeout=timeout_s))
        return answer

    # -- jobs

    def etl(self, method: EtlMethod, request: Any) -> Any:
        return self._call(lambda here: call_job(here, method, request))

    def watch_job(self, name: str) -> Iterator[etl_pb.JobInfo]:
        return watch_job(self._here(), name)

    def copy_transformed(self, request: etl_pb.CopyObjectRequest) -> ObjectInfo:
        # No deadline: the transform has its own.
        return object_info(self._call(lambda here: here.etl.CopyObject(request)).info)

    # -- batches

    def open_batch(
        self, request: batch_pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        policy = StreamPolicy(timeout_s=timeout_s, retry_s=self._retry_s, verify_payload=self._verify_payload)
        request.tenant = self._tenant or request.tenant
        return GrpcStream(request, lambda request: SharedAnswers(self.session(), request), policy, self.url)

    def open_long_batch(
        self, request: batch_pb.BatchRequest, *, timeout_s: float, window_bytes: int
    ) -> FrameStream | None:
        policy = StreamPolicy(timeout_s=timeout_s, retry_s=NO_RETRY_S, verify_payload=self._verify_payload)
        request.tenant = self._tenant or request.tenant
        return GrpcStream(request, lambda request: self._ask_alone(request, window_bytes), policy, self.url)

    def _ask_alone(self, request: batch_pb.BatchRequest, window_bytes: int) -> DedicatedStreamAnswers:
        with GATE.call():
            here = self._connected()

            def broken(error: Exception) -> errors.LoaderError:
                translated = here.translate(error)
                if isinstance(translated, errors.NodeUnavailable):
                    self._abandon(here)
                return translated

            with here.in_use():
                return DedicatedStreamAnswers(here.own_pool(), request, window_bytes, broken)

    def cluster_map(self, known_version: int, *, timeout_s: float, retry: bool) -> cluster_pb.GetMapResponse:
        """Return the node's map of its cluster. Raises Unsupported for a node without one."""
        request = cluster_pb.GetMapRequest(known_version=known_version)
        answer: cluster_pb.GetMapResponse = self._call(
            lambda here: here.cluster.GetMap(request, timeout=timeout_s), retry=retry
        )
        return answer

    def describe(self) -> dict[str, object]:
        answer = self._call(lambda here: here.node.Describe(pb.DescribeRequest(), timeout=CALL_TIMEOUT_S))
        return {
            "url": self.url,
            "store_uuid": answer.store_uuid,
            "version": answer.version,
            "pid": answer.pid,
            "batch_reader": answer.batch_reader,
            "lane": self._lane_kind(),
            "open_sessions": answer.open_sessions,
            "active_batches": answer.active_batches,
            "reserved_bytes": answer.reserved_bytes,
            "batches": answer.batches,
            "entries": answer.entries,
            "entry_bytes": answer.entry_bytes,
            "etl_commands": dict(answer.etl_command),
            "etl_sandbox": answer.etl_sandbox,
            "limits": dict(answer.limits),
            "drives": [
                {
                    "uuid": drive.uuid,
                    "path": drive.path,
                    "state": drive.state,
                    "objects_estimate": drive.objects_estimate,
                    "free_bytes": drive.free_bytes,
                    "size_bytes": drive.size_bytes,
                }
                for drive in answer.drive
            ],
        }

    def _lane_kind(self) -> str:
        """Transport of the sessions: "unix" or "tcp" (a lane), or "grpc" without one and before the first session."""
        with self._lock:
            lanes = self._connection.lanes if self._connection is not None else None
        return "grpc" if lanes is None else lanes.kind

    def close(self) -> None:
        self._closed = True
        with GATE.call():
            with self._lock:
                connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def _connect_again(
    url: str, retry_s: float, verify_payload: bool, tenant: str, patience_s: float | None, lane: LaneChoice
) -> GrpcTransport:
    return GrpcTransport(
        url, retry_s=retry_s, verify_payload=verify_payload, tenant=tenant, patience_s=patience_s, lane=lane
    )
