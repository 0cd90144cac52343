"""Connection of one process to one endpoint: channel, stubs, the shared session, and the translation of errors."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import grpc

from ais_loader import errors
from ais_loader.transport.fork_safety import GATE, grpc_begins
from ais_loader.transport.grpc.channel import open_channel, untrusted
from ais_loader.transport.session.call_lane import CallLanes
from ais_loader.transport.session.lane import CONNECT_TIMEOUT_S, Lanes
from ais_loader.transport.session.long_batch import OWN_CHANNEL_OPTIONS, keep_freed_memory
from ais_loader.transport.session.raw_stream import Stream, open_stream
from ais_loader.transport.session.session import Call, Session
from ais_loader.transport.session.single_get import SingleGet
from ais_loader.transport.session.stream_pool import StreamPool
from ais_loader.values.options import ClusterOptions, token_of
from ais_loader.values.token_source import require_sendable
from ais_loader.wire.channel_options import CHANNEL_OPTIONS, for_patience
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_compose_pb2_grpc as compose_rpc
from ais_loader.wire.generated import ais_contents_pb2_grpc as contents_rpc
from ais_loader.wire.generated import ais_etl_pb2_grpc as etl_rpc
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from ais_loader.wire.generated import ais_promote_pb2_grpc as promote_rpc
from ais_loader.wire.generated import ais_remote_pb2_grpc as remote_rpc
from ais_loader.wire.generated import ais_snapshots_pb2_grpc as snapshots_rpc
from ais_loader.wire.node_folder import UNIX_SCHEME
from ais_loader.wire.reserved import ERROR_KIND_KEY, TENANT_KEY

_SESSION = "/ais_loader.v1.GetBatch/Session"
_OPEN_LANE = "/ais_loader.v1.GetBatch/OpenLane"
_ALIVE_TIMEOUT_S = 4.0
_NO_CONNECTION = "failed to connect"
_NO_ADDRESS = ("errors resolving", "DNS resolution failed")
"""Beginnings of gRPC core's messages about calls that were never sent."""


_OPEN: set[Connection] = set()
"""Connections of this process, kept alive: a dropped one would leave threads behind, and gRPC running, without an
owner."""
_INHERITED: list[Connection] = []
"""Never used and never freed: freeing a channel in a forked child may wait for threads that do not exist there."""


class _Naming(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Adds the metadata of the tenant and of the token to each call of a channel."""

    def __init__(self, metadata: Callable[[], tuple[tuple[str, str | bytes], ...]]) -> None:
        self._metadata = metadata

    def _named(self, proceed: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        return proceed(_Details(details, (*(details.metadata or ()), *self._metadata())), request)

    intercept_unary_unary = intercept_unary_stream = _named
    intercept_stream_unary = intercept_stream_stream = _named


class _Details(grpc.ClientCallDetails):  # type: ignore[misc]
    def __init__(self, details: Any, metadata: tuple[Any, ...]) -> None:
        self.method, self.timeout, self.credentials = details.method, details.timeout, details.credentials
        self.wait_for_ready, self.compression = details.wait_for_ready, details.compression
        self.metadata = metadata


class _SessionCall:
    """A session's `Call` over gRPC: messages are queued for the thread by which grpcio sends.

    Args:
        stub: the multi-callable of the session's method, for bytes.
    """

    def __init__(self, stub: Any) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = stub(iter(self._outgoing.get, None))

    def send(self, message: bytes) -> None:
        self._outgoing.put(message)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call
        finally:
            self._outgoing.put(None)

    def cancel(self) -> None:
        self._call.cancel()
        self._outgoing.put(None)


class CutByFork(errors.NodeUnavailable):
    """A call took longer than a fork waits for one. It can be repeated after the fork."""


class Connection:
    """The channel, stubs and sessions of one process to one endpoint. Create it inside the fork barrier.

    Args:
        options: `retry_s` is how long its callers wait for a node that does not answer.
        owner: the object that closes it. If the owner is collected first, the connection is closed when the next one is
            created, or at a fork.
    """

    def __init__(self, endpoint: str, options: ClusterOptions, owner: object) -> None:
        token = token_of(options)
        require_sendable(token, endpoint, is_tls=options.tls)
        abandon_orphans()
        self.endpoint = endpoint
        self._options = options
        tenant = options.tenant
        self._owner = weakref.ref(owner)
        self.abandoned = self.closed = self.cut = False
        self.lock = threading.Lock()
        grpc_begins()
        self.channel = open_channel(endpoint, options, for_patience(CHANNEL_OPTIONS, options.retry_s))
        self._tenant = ((TENANT_KEY, tenant.encode()),) if tenant else ()
        """Metadata of each call; batches within a session carry the tenant in their requests."""
        self._token = token
        every = grpc.intercept_channel(self.channel, _Naming(self._metadata)) if token else self.channel
        named = every if token else grpc.intercept_channel(every, _Naming(self._metadata)) if tenant else every
        self.buckets = rpc.BucketsStub(every)
        self.objects = rpc.ObjectsStub(named)
        self.compose = compose_rpc.ComposeStub(named)
        self.contents = contents_rpc.ContentsStub(named)
        self.etl = etl_rpc.EtlStub(named)
        self.node = rpc.NodeStub(every)
        self.cluster = cluster_rpc.ClusterStub(every)
        self.promote = promote_rpc.PromoteStub(named)
        self.remote = remote_rpc.RemoteBucketsStub(named)
        self.snapshots = snapshots_rpc.SnapshotsStub(every)
        self._open_session = named.stream_stream(_SESSION)
        self._open_lane = named.unary_unary(
            _OPEN_LANE,
            request_serializer=batch_pb.OpenLaneRequest.SerializeToString,
            response_deserializer=batch_pb.OpenLaneResponse.FromString,
        )
        is_unix = endpoint.startswith(UNIX_SCHEME)
        host, _, port = endpoint.rpartition(":") if not is_unix else ("", "", "0")
        self._port = int(port)
        self.lanes = Lanes(host.strip("[]"), self._lane_offer) if options.lane == "auto" else None
        self.put_lanes = CallLanes(self.lanes)
        self._session: Session | None = None  # guarded by lock
        self._pool = StreamPool(partial(self._open_stream, self.channel))
        self.single_get = SingleGet(self._pool, options.verify_payload)
        self._own_channel: grpc.Channel | None = None  # guarded by lock
        self._own_pool: StreamPool | None = None  # guarded by lock
        _OPEN.add(self)

    def _metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata of a call. Raises AccessDenied if the token cannot be read."""
        return (*self._tenant, *(self._token.metadata() if self._token is not None else ()))

    @property
    def is_orphan(self) -> bool:
        return self._owner() is None

    @property
    def session_broke(self) -> bool:
        return self._session is not None and not self._session.alive

    def session(self) -> Session:
        with self.lock:
            if self._session is None or not self._session.alive:
                with self.in_use():
                    self._session = Session(self._session_call, self.translate, self.endpoint)
            return self._session

    def _session_call(self) -> Call:
        lane = self.lanes.open() if self.lanes is not None else None
        return lane or _SessionCall(self._open_session)

    def _open_stream(self, channel: grpc.Channel) -> Stream:
        lane = self.lanes.open() if self.lanes is not None else None
        return lane or open_stream(channel, _SESSION, self._metadata())

    def _lane_offer(self) -> batch_pb.OpenLaneResponse | None:
        """Request a lane. Returns None if the node offers none, or does not answer now; gRPC then reports why."""
        try:
            request = batch_pb.OpenLaneRequest(port=self._port, user=os.geteuid())
            offer: batch_pb.OpenLaneResponse = self._open_lane(request, timeout=CONNECT_TIMEOUT_S)
        except (grpc.RpcError, errors.LoaderError):
            return None
        return offer

    def own_pool(self) -> StreamPool:
        """Return the streams for long batches, on a separate connection: data that waits on it delays nothing else."""
        with self.lock:
            if self._own_pool is None:
                if self.closed:
                    raise self.closed_error()
                keep_freed_memory()
                grpc_begins()
                options = for_patience(OWN_CHANNEL_OPTIONS, self._options.retry_s)
                self._own_channel = open_channel(self.endpoint, self._options, options)
                self._own_pool = StreamPool(partial(self._open_stream, self._own_channel))
            return self._own_pool

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Context for starting calls: on a channel that another thread has closed, gRPC raises ValueError."""
        try:
            yield
        except ValueError as error:
            if self.closed:
                raise self.closed_error() from error
            raise

    def is_alive(self) -> bool:
        """Whether the node answers a trivial call. Also True if this connection has been closed."""
        try:
            with GATE.call(), self.in_use():
                self.cluster.GetMap(cluster_pb.GetMapRequest(known_version=2**63), timeout=_ALIVE_TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        except errors.LoaderError:  # the waiting thread gets that error by itself
            return True
        return True

    def translate(self, error: Exception) -> errors.LoaderError:
        """Translate gRPC's errors into LoaderErrors. Errors raised by the node carry their kind."""
        if isinstance(error, errors.LoaderError):
            return error
        if not isinstance(error, grpc.RpcError):
            return errors.NodeUnavailable(f"{self.endpoint}: {error}")
        for key, value in error.trailing_metadata() or ():
            if key == ERROR_KIND_KEY:
                return errors.from_node(value, error.details())
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.SilenceTimeout(f"{self.endpoint}: no answer in time ({details})")
        if code == grpc.StatusCode.CANCELLED:
            return self.cancelled()
        if code == grpc.StatusCode.UNAUTHENTICATED:  # clients prove nothing: another node listens here for nodes
            failure = errors.NodeUnavailable(f"{self.endpoint}: no node for clients is there: {details}")
            failure.reached = False
            return failure
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return errors.Unsupported(f"{self.endpoint} is not a storage node of this version ({details})")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.UNKNOWN):
            if (details or "").startswith(_NO_ADDRESS):
                failure = errors.NodeUnavailable(
                    f"{self.endpoint}: no machine of that name can be found; look at the URL"
                )
                failure.reached = False
                return failure
            if (details or "").startswith(_NO_CONNECTION):
                if (reason := untrusted(self.endpoint, details, self._options)) is not None:
                    return reason
                # Its details repeat the address twice; the reason is at the end.
                said = details.rpartition(": ")[2]
                said += "; with proxy=True, a web proxy of the environment is asked" if self._options.proxy else ""
                failure = errors.NodeUnavailable(f"{self.endpoint}: no node can be reached there: {said}")
                failure.reached = False
                return failure
            return errors.NodeUnavailable(f"{self.endpoint}: {details}")
        return errors.LoaderError(f"{self.endpoint}: {code.name}: {details}")

    def cancelled(self) -> errors.LoaderError:
        """Return the error of a call that was ended on this side, or by a node that shuts down in order."""
        if self.closed:
            return self.closed_error()
        return errors.NodeUnavailable(f"{self.endpoint}: the node has ended the call: it is stopping")

    def lane_broke(self, error: Exception) -> errors.LoaderError:
        """Return the error of a call whose lane has broken."""
        return self.closed_error() if self.closed else errors.NodeUnavailable(f"{self.endpoint}: the lane: {error}")

    def closed_error(self) -> errors.LoaderError:
        """Return the error of a call that was ended on this side."""
        if self.cut:
            return CutByFork(f"{self.endpoint}: the process has forked, and the call took too long to be waited for")
        if self.abandoned:
            return errors.NodeUnavailable(
                f"{self.endpoint}: the connection was given up, to try the next endpoint or because the process forked"
            )
        return errors.Closed(f"{self.endpoint}: the connection was closed")

    def abandon(self, *, cut: bool = False) -> None:
        """Close the connection, so that its users continue on another one. `cut`: a fork does not wait for calls."""
        self.abandoned, self.cut = True, cut
        self.close()

    def close(self) -> None:
        self.closed = True
        self.put_lanes.close()
        self._end_streams()
        self.channel.close()
        with self.lock:
            own_channel, self._own_channel, self._own_pool = self._own_channel, None, None
        if own_channel is not None:
            own_channel.close()
        _OPEN.discard(self)

    def _end_streams(self) -> None:
        """Close all sessions and streams. Returns when their threads have ended."""
        with self.lock:
            session, self._session = self._session, None
            own_pool = self._own_pool
        if session is not None:
            session.close()
        self._pool.close()
        if own_pool is not None:
            own_pool.close()


def abandon_orphans(*, cut: bool = False) -> None:
    """Close connections of clients that were dropped without being closed. Called inside the fork barrier."""
    for connection in list(_OPEN):
        if connection.is_orphan:
            connection.abandon(cut=cut)


def _forget_inherited_connections() -> None:
    """Called in a forked child."""
    _INHERITED.extend(_OPEN)
    _OPEN.clear()


class Forked(Protocol):
    def abandon(self, *, cut: bool) -> None: ...
    def forget_inherited(self) -> None: ...


class AllForked:
    """All transports and connections of this process, as one `ForkPart`. Holds only weak references."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[Forked] = weakref.WeakSet()

    def add(self, member: Forked) -> None:
        self._members.add(member)

    def abandon(self, *, cut: bool) -> None:
        for member in self._all():
            member.abandon(cut=cut)
        abandon_orphans(cut=cut)

    def start_and_end(self) -> None:
        grpc.insecure_channel("ipv4:127.0.0.1:9").close()  # it would connect on first use

    def forget_inherited(self) -> None:
        for member in self._all():
            member.forget_inherited()
        _forget_inherited_connections()

    def _all(self) -> list[Forked]:
        while True:
            with contextlib.suppress(RuntimeError):  # another thread has added a member in the meantime
                return list(self._members)
