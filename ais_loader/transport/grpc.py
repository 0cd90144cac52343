"""A storage node over gRPC: the only client module that imports grpc.

Channels connect lazily and belong to the process that made them; a forked child makes its own. Calls that only read,
and writes whose bytes can be sent again, are retried with growing, jittered pauses while nobody answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import grpc
import tenacity

from ais_loader import errors
from ais_loader.checksum import crc32c
from ais_loader.content import Buffer, Source
from ais_loader.batch import Batch
from ais_loader.entry import Entry, ObjectInfo
from ais_loader.requests import BatchOptions, requests_for_entries
from ais_loader.transport.base import BucketInfo, FrameStream, PutSpec
from ais_loader.transport.download import download
from ais_loader.transport.exchange import Exchange
from ais_loader.transport.put_stream import object_info, put_many
from ais_loader.transport.session import Session
from ais_loader.transport.stream import GrpcStream, StreamPolicy
from protos import ais_batch_pb2 as batch_pb
from protos import ais_objects_pb2 as pb
from protos import ais_objects_pb2_grpc as rpc

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0
_ERROR_KIND_KEY = "ais-error-kind"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # gRPC's own default leaves a client waiting for up to 17 s after a node is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    # Each client has a connection of its own, as each process of a training job has.
    ("grpc.use_local_subchannel_pool", 1),
)


class _Connection:
    """The channel, stubs and session of one process."""

    def __init__(self, endpoint: str, verify_payload: bool) -> None:
        self.endpoint = endpoint
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self.buckets = rpc.BucketsStub(self.channel)  # type: ignore[no-untyped-call]
        self.objects = rpc.ObjectsStub(self.channel)  # type: ignore[no-untyped-call]
        self.node = rpc.NodeStub(self.channel)  # type: ignore[no-untyped-call]
        self._open_session = self.channel.stream_stream("/ais_loader.v1.GetBatch/Session")
        self._session: Session | None = None  # guarded by lock
        self.exchange = Exchange(self._open_session, verify_payload)

    def session(self) -> Session:
        with self.lock:
            if self._session is None or not self._session.alive:
                self._session = Session(
                    lambda outgoing: self._open_session(outgoing, wait_for_ready=False), self.translate, self.endpoint
                )
            return self._session

    def translate(self, error: Exception) -> errors.LoaderError:
        """Our error for what gRPC says; the node's own errors carry their kind."""
        if isinstance(error, errors.LoaderError):
            return error
        if not isinstance(error, grpc.RpcError):
            return errors.NodeUnavailable(f"{self.endpoint}: {error}")
        for key, value in error.trailing_metadata() or ():
            if key == _ERROR_KIND_KEY:
                return errors.from_kind(value, error.details())
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.SilenceTimeout(f"{self.endpoint}: no answer in time ({details})")
        if code == grpc.StatusCode.CANCELLED:
            return errors.Closed(f"{self.endpoint}: the connection was closed")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return errors.Unsupported(f"{self.endpoint} is not a storage node of this version ({details})")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.UNKNOWN):
            return errors.NodeUnavailable(f"{self.endpoint}: {details}")
        return errors.LoaderError(f"{self.endpoint}: {code.name}: {details}")

    def close(self) -> None:
        with self.lock:
            if self._session is not None:
                self._session.close()
        self.exchange.close()
        self.channel.close()


class GrpcTransport:
    """A `Transport` to one storage node, by one endpoint or by the first of several that answers."""

    def __init__(self, url: str, *, retry_s: float = 10.0, verify_payload: bool = False) -> None:
        self.url = url
        self._endpoints = [part.removeprefix("grpc://") for part in url.split(",")]
        for endpoint in self._endpoints:
            host, colon, port = endpoint.rpartition(":")
            if not host or not colon or not port.isdigit() or "/" in endpoint:
                raise errors.InvalidRequest(f"{url!r}: {endpoint!r} is not host:port, as in grpc://10.0.0.5:7480")
        self._retry_s = retry_s
        self._verify_payload = verify_payload
        self._lock = threading.Lock()
        self._connection: _Connection | None = None  # guarded by _lock
        self._endpoint = 0
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect_again, (self.url, self._retry_s, self._verify_payload)

    def _here(self) -> _Connection:
        """This process's connection."""
        connection = self._connection
        if connection is not None and connection.pid == os.getpid() and not self._closed:
            return connection
        if connection is not None and connection.pid != os.getpid():
            self._lock = threading.Lock()  # the inherited one may be held by a thread that is not here
        with self._lock:
            if self._closed:
                raise errors.Closed(f"the connection to {self.url} has been closed")
            if self._connection is None or self._connection.pid != os.getpid():
                self._connection = _Connection(self._endpoints[self._endpoint], self._verify_payload)
            return self._connection

    def _next_endpoint(self) -> None:
        if len(self._endpoints) > 1:
            with self._lock:
                old, self._connection = self._connection, None
                self._endpoint = (self._endpoint + 1) % len(self._endpoints)
            if old is not None:
                old.close()

    def _call(self, call: Callable[[_Connection], T], *, retry: bool = True) -> T:
        """One unary call, tried again while nobody answers."""

        def once() -> T:
            connection = self._here()
            try:
                return call(connection)
            except grpc.RpcError as error:
                translated = connection.translate(error)
                if isinstance(translated, errors.NodeUnavailable):
                    self._next_endpoint()
                raise translated from error

        if not retry:
            return once()
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(errors.NodeUnavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            stop=tenacity.stop_after_delay(self._retry_s),
            reraise=True,
        )
        return retrying(once)

    # -- buckets

    def create_bucket(self, name: str, *, copies: int, exist_ok: bool) -> BucketInfo:
        _require_text(name, errors.InvalidName, "bucket name")
        request = pb.CreateBucketRequest(name=name, copies=copies, exist_ok=exist_ok)
        return _bucket_info(self._call(lambda here: here.buckets.CreateBucket(request, timeout=CALL_TIMEOUT_S)))

    def bucket(self, name: str) -> BucketInfo:
        _require_text(name, errors.BucketNotFound, "bucket name")
        request = pb.GetBucketRequest(name=name)
        return _bucket_info(self._call(lambda here: here.buckets.GetBucket(request, timeout=CALL_TIMEOUT_S)))

    def buckets(self) -> list[BucketInfo]:
        request = pb.ListBucketsRequest()
        answer = self._call(lambda here: here.buckets.ListBuckets(request, timeout=CALL_TIMEOUT_S))
        return [_bucket_info(bucket) for bucket in answer.bucket]

    def delete_bucket(self, name: str, *, force: bool) -> int:
        _require_text(name, errors.BucketNotFound, "bucket name")
        request = pb.DeleteBucketRequest(name=name, force=force)
        # No deadline: the time is that of the objects. A lost answer leaves the bucket gone.
        return int(self._call(lambda here: here.buckets.DeleteBucket(request), retry=False).deleted_objects)

    # -- objects

    def put(self, spec: PutSpec, source: Source) -> ObjectInfo:
        header = _put_header(spec)

        def send(here: _Connection) -> pb.ObjectInfo:
            failure: list[Exception] = []
            try:
                return here.objects.Put(_put_messages(header, source, failure))
            except grpc.RpcError:
                if failure:
                    raise failure[0] from None
                raise

        return object_info(self._call(send, retry=source.replayable))

    def put_many(self, objects: Iterable[tuple[PutSpec, Source]]) -> Iterator[ObjectInfo | errors.LoaderError]:
        def open_stream(messages: Iterator[pb.PutManyRequest]) -> Iterator[pb.PutManyResponse]:
            here = self._here()
            try:
                yield from here.objects.PutMany(messages)
            except grpc.RpcError as error:
                raise here.translate(error) from error

        return put_many(objects, open_stream, self.put, retry_s=self._retry_s)

    def get(
        self, bucket: str, name: str, *, start: int, length: int | None, member: str | None, verify: bool,
        timeout_s: float,
    ) -> Iterator[Buffer]:  # fmt: skip
        """A batch of one on a session of its own; what is too large for a batch is streamed by a call of its own."""
        if start == 0 and length is None and member is None:
            request = batch_pb.BatchRequest(bucket=(bucket,), name=(name,), fail_fast=True, ordered=True)
            if (data := self._here().exchange.get(request, timeout_s)) is not None:
                yield data
                return
        _require_object(bucket, name)
        options = BatchOptions(timeout_s=timeout_s, verify_ranges=verify)
        entries, requests = requests_for_entries([Entry(bucket, name, member, start, length)], options)
        batch = Batch(entries, requests, lambda request: self.open_batch(request, timeout_s=timeout_s), "raise")
        try:
            yield from (item.data for item in batch)
        except errors.ItemTooLarge:
            yield from self._download(bucket, name, start, length, verify, timeout_s)

    def _download(
        self, bucket: str, name: str, start: int, length: int | None, verify: bool, timeout_s: float
    ) -> Iterator[Buffer]:
        request = pb.GetRequest(bucket=bucket, name=name, start=start, length=length, verify_range=verify)
        return download(
            request, lambda again: self._here().objects.Get(again), lambda error: self._here().translate(error),
            timeout_s=timeout_s, retry_s=self._retry_s,
        )  # fmt: skip

    def head(self, bucket: str, name: str) -> ObjectInfo:
        _require_object(bucket, name)
        request = pb.HeadRequest(bucket=bucket, name=name)
        return object_info(self._call(lambda here: here.objects.Head(request, timeout=CALL_TIMEOUT_S)))

    def delete(self, bucket: str, name: str) -> None:
        _require_object(bucket, name)
        request = pb.DeleteRequest(bucket=bucket, name=name)
        # Not retried: a first try whose answer was lost would make the second say "not found".
        self._call(lambda here: here.objects.Delete(request, timeout=CALL_TIMEOUT_S), retry=False)

    def objects(self, bucket: str, *, prefix: str, page_size: int) -> Iterator[ObjectInfo]:
        _require_text(bucket, errors.BucketNotFound, "bucket name")
        _require_text(prefix, errors.InvalidRequest, "prefix")
        after, page_size = "", min(page_size, 2**32 - 1)
        while True:
            request = pb.ListRequest(bucket=bucket, prefix=prefix, start_after=after, page_size=page_size)
            page = self._call(lambda here: here.objects.List(request, timeout=CALL_TIMEOUT_S))  # noqa: B023 - called at once
            for message in page.object:
                yield object_info(message)
            if not page.more:
                return
            after = page.object[-1].name

    # -- batches

    def open_batch(self, request: batch_pb.BatchRequest, *, timeout_s: float) -> FrameStream:
        policy = StreamPolicy(timeout_s=timeout_s, retry_s=self._retry_s, verify_payload=self._verify_payload)
        return GrpcStream(request, lambda: self._here().session(), policy)

    def describe(self) -> dict[str, object]:
        answer = self._call(lambda here: here.node.Describe(pb.DescribeRequest(), timeout=CALL_TIMEOUT_S))
        return {
            "url": self.url, "store_uuid": answer.store_uuid, "version": answer.version, "pid": answer.pid,
            "batch_reader": answer.batch_reader, "open_sessions": answer.open_sessions,
            "active_batches": answer.active_batches, "reserved_bytes": answer.reserved_bytes,
            "drives": [
                {
                    "uuid": drive.uuid, "path": drive.path, "state": drive.state, "objects": drive.objects,
                    "free_bytes": drive.free_bytes, "size_bytes": drive.size_bytes,
                }
                for drive in answer.drive
            ],
        }  # fmt: skip

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None and connection.pid == os.getpid():
            connection.close()


def _connect_again(url: str, retry_s: float, verify_payload: bool) -> GrpcTransport:
    return GrpcTransport(url, retry_s=retry_s, verify_payload=verify_payload)


def _put_header(spec: PutSpec) -> pb.PutHeader:
    _require_text(spec.bucket, errors.BucketNotFound, "bucket name")
    _require_text(spec.name, errors.InvalidName, "object name")
    for text in (*spec.metadata, *spec.metadata.values()):
        _require_text(text, errors.InvalidRequest, "metadata")
    try:
        return pb.PutHeader(
            bucket=spec.bucket, name=spec.name, metadata=spec.metadata, size_bytes=spec.size_bytes,
            checksum=spec.checksum,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"checksum={spec.checksum!r}: need a number of 32 bits ({error})") from error


def _put_messages(header: pb.PutHeader, source: Source, failure: list[Exception]) -> Iterator[pb.PutRequest]:
    """What the caller's own file raises goes to `failure`: the stream then ends without its end, and nothing is stored."""
    yield pb.PutRequest(header=header)
    size_bytes = checksum = 0
    try:
        for chunk in source.chunks():
            data = bytes(chunk)
            size_bytes, checksum = size_bytes + len(data), crc32c(data, checksum)
            yield pb.PutRequest(data=data)
    except Exception as error:  # noqa: BLE001 - raised again by the thread that called put()
        failure.append(error)
        return
    yield pb.PutRequest(end=pb.PutEnd(size_bytes=size_bytes, checksum=checksum))


def _require_object(bucket: str, name: str) -> None:
    _require_text(bucket, errors.BucketNotFound, "bucket name")
    _require_text(name, errors.ObjectNotFound, "object name")


def _require_text(text: str, refusal: type[errors.LoaderError], what: str) -> None:
    """Refuse what no request can carry, and no store can therefore hold."""
    if not isinstance(text, str):
        raise errors.InvalidRequest(f"{what} {text!r}: need a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusal(f"{what} {text!r}: not valid Unicode (a lone surrogate has no UTF-8 form)") from None


def _bucket_info(bucket: pb.Bucket) -> BucketInfo:
    return BucketInfo(bucket.name, bucket.uuid.hex(), bucket.copies)
