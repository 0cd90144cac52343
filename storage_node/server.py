"""Storage node server: assembles a node from its parts and serves its store over gRPC.

The server runs on its own thread and event loop. The code that starts it (a command line, a Ray actor, a test) can
therefore neither block it nor be blocked by it, and can stop it from another thread with a grace period.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ais_loader.version import __version__
from ais_loader.wire.generated import ais_batch_pb2
from ais_loader.wire.node_folder import unix_endpoint
from storage_node.batch.session import BatchService
from storage_node.cluster.map.confirmation import MapConfirmation
from storage_node.cluster.map.open import open_membership
from storage_node.context.channels import Caller, Channels, make_secret, read_secret, require_secrets
from storage_node.context.node import Node
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.etl.worker.environments import Environments
from storage_node.limits.blocking_calls import BlockingCalls
from storage_node.limits.call_slots import note_tenant, tenant_of
from storage_node.limits.load_monitor import descriptor_limit, raise_descriptor_limit
from storage_node.metrics.declarations import METRICS
from storage_node.metrics.exporter import metrics_served, require_library
from storage_node.security.identity.credentials import ChannelCredentials, server_credentials
from storage_node.security.identity.node_tls import Renewal, issued, tls_files
from storage_node.services.call_table import ANYONE, Role
from storage_node.services.lane.listener import LaneListener
from storage_node.services.lifecycle import (
    STOP_TIMEOUT_S,
    Addresses,
    NodeLifecycle,
    NodePart,
    check_folders,
    start,
    stop,
)
from storage_node.services.running_node import RunningNode
from storage_node.settings.config import ServerConfig
from storage_node.store.archives.open_archives import ShardLimits
from storage_node.store.drive.identity import SECRET_FILE_NAME
from storage_node.store.files.object_files import drive_error
from storage_node.store.store import Store

START_TIMEOUT_S = 30.0

MAX_MESSAGE_BYTES = 32 << 20
"""Maximum size of an incoming message: ten thousand entries with names and members of maximum length."""
MAX_STREAMS = 1024
"""Maximum number of concurrent calls of one connection. Its client queues further calls."""
_OPTIONS = (
    # With port reuse, a second server on the same port would silently receive half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # An idle connection, or one without a handshake, is closed, because it holds a descriptor.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 5 * 60_000),
    ("grpc.max_send_message_length", -1),
    # Sessions stay open and idle for hours. Keepalive detects clients that vanished without closing them.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
_GET_BATCH = "ais_loader.v1.GetBatch"


class NodeServer:
    """A running node. `start` returns once the node accepts connections, `stop` once all its parts have ended.

    Also a context manager, which calls both. Methods may be called from any thread except the node's own.
    """

    def __init__(
        self,
        drives: Sequence[str | PathLike[str]],
        config: ServerConfig | None = None,
        *,
        transforms: Callable[[Node], NodeTransforms] | None = None,
        environments: Environments | None = None,
        makes_secret: bool = False,
        identity: Path | None = None,
        find: Callable[[], Iterable[Path]] | None = None,
        socket_path: Path | None = None,
    ) -> None:
        """
        Args:
            drives: folders of one store, at least one; created if they are missing.
            config: settings; the defaults listen on loopback at port 7480.
            transforms: factory of the transforms that jobs use instead of the node's own; called on its event loop.
            environments: environments in which packages that transforms require can be installed.
            makes_secret: whether a node without a `peer_secret_file` creates one, in the folder of a drive.
            identity: an identity folder with a CA, which issues the node's certificate unless `cert_file` names one.
            find: returns the folders at which missing drives may appear; `drives` by default.
            socket_path: path of a Unix socket, in a folder that is closed to others, at which clients are served
                instead of `host` and `port`. There are no lanes over TCP then.
        """
        self._makes_secret = makes_secret
        self._identity = identity if config is None or not config.listen.cert_file else None
        self._transforms, self._environments = transforms, environments
        self.config = config or ServerConfig()
        self._drives = list(drives)
        self._socket_path = socket_path
        self._find = find or (lambda: map(Path, self._drives))
        self._store: Store | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="ais-loader-node", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._unstarted: list[grpc.aio.Server] = []
        self._serving: asyncio.Task[None] | None = None
        self._stopping: asyncio.Event | None = None
        self._grace_s = 0.0
        self.port = 0
        self.peer_port = 0
        self.batches: BatchService | None = None
        """State shared by all sessions. Belongs to the node's event loop; its counters may be read from any thread."""
        self.metrics_port: int | None = None
        """Port of the metrics; None if they are not served."""

    @property
    def endpoint(self) -> str:
        """host:port at which clients reach the node; empty if it is unknown."""
        return "" if self._socket_path is not None else self.config.endpoint(self.port)

    @property
    def peer_endpoint(self) -> str:
        """host:port at which other nodes and operators reach the node; empty if it is unknown."""
        return self.config.peer_endpoint(self.peer_port)

    @property
    def url(self) -> str:
        """URL of the node for `ais_loader.connect` on this machine."""
        return f"{self.scheme}{self.config.listen.host}:{self.port}"

    @property
    def scheme(self) -> str:
        """Scheme of its URLs."""
        return "grpcs://" if self.config.listen.cert_file else "grpc://"

    def idle_s(self) -> float:
        """Return how long no client has used the node: no call, no session or lane, and no job. Poll it to keep it
        right: a lane between two polls is noticed only by the call that has opened it."""
        return self._idle.idle_s()

    def start(self) -> NodeServer:
        """Open the store and listen.

        Raises like `Store.open`; ValueError for settings that need a secret, OSError if the node cannot listen,
        TimeoutError if the start takes longer than START_TIMEOUT_S.
        """
        if self.config.listen.metrics_port is not None:
            require_library()
        require_secrets(self.config, makes_own=self._makes_secret, has_tls=self._identity is not None)
        raise_descriptor_limit()
        settings = self.config.store
        shard_limits = ShardLimits(settings.open_shards, settings.shard_index_bytes, settings.shard_copy_bytes)
        self._store = Store.open(
            self._drives,
            mode="a",
            durability=settings.durability,
            shard_limits=shard_limits,
            compact_bytes_per_s=settings.compact_bytes_per_s,
        )
        try:
            self.membership, self._acceptor_store = open_membership(self._store)
            self.config = issued(self.config, self._identity, self.membership.node_uuid)
            if self._makes_secret and not self.config.listen.cert_file and not self.config.listen.peer_secret_file:
                self.config = self.config.replace(peer_secret_file=str(_own_secret(self._store)))
            check_folders(self._store, self.config)
            self._allow_readers(self._store)
            files = tls_files(self.config)
            self._credentials = ChannelCredentials(files) if files is not None else None
        except BaseException:
            self._store.close()
            raise
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            self._failure = TimeoutError(f"the server did not start within {START_TIMEOUT_S:g} s")
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._abandon)
        if (failure := self._failure) is not None:
            self._thread.join(STOP_TIMEOUT_S)
            if not self._thread.is_alive():  # otherwise a drive does not answer, and the store is in use
                self._store.close()
            raise failure
        self._store.drive_set.fill_locations()
        return self

    def _allow_readers(self, store: Store) -> None:
        """Let clients of `node:///` URLs read from the drives without this node, unless it has to see what is read."""
        config, membership = self.config, self.membership
        limits = config.limits
        store.allow_readers(
            membership.view is None
            and not config.listen.token_key_file
            and not config.audit.logs_reads
            and config.listen.metrics_port is None
            and not limits.tenant_requests_per_s
            and not limits.tenant_bytes_per_s
        )
        membership.on_change(lambda view: store.allow_readers(False))

    def _abandon(self) -> None:
        """Stop a node that took too long to start, even if it has started in the meantime."""
        assert self._stopping is not None and self._serving is not None
        self._stopping.set()
        if not self._started.is_set():
            self._serving.cancel()

    def stop(self, grace_s: float = 5.0) -> None:
        """Reject new calls, let running calls finish for up to `grace_s`, then close the store. May be called again."""
        if self._thread.is_alive() and self._loop is not None and self._stopping is not None:
            self._grace_s = grace_s
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> NodeServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(grace_s=0.5)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that called start()
            self._failure = self._failure or error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        """Run the node until `stop`. Parts start in order and stop in reverse order (`lifecycle`)."""
        assert self._store is not None
        self._serving, self._stopping = asyncio.current_task(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        readers = BlockingCalls(self.config.reads.read_threads, "ais-loader-read")
        openers = BlockingCalls(self.config.reads.archive_threads, "ais-loader-archive")
        with closing(readers), closing(openers), ExitStack() as held:
            membership, acceptor_store = self.membership, self._acceptor_store
            caller = Caller.of_node(membership, read_secret(self.config.listen.peer_secret_file), self._credentials)
            confirmation = MapConfirmation(membership, acceptor_store, Channels(caller))
            node = Node(self._store, self.config, readers, openers, membership, caller, confirmation.require)
            lifecycle = NodeLifecycle(
                node,
                membership,
                acceptor_store,
                confirmation,
                self._addresses(),
                __version__,
                find=self._find,
                transforms=self._transforms,
                environments=self._environments,
            )
            self.batches, self.repair, self.drives = lifecycle.batches, lifecycle.repair, lifecycle.drives
            renewal = Renewal(self.config, self._identity, membership.node_uuid)
            try:
                parts = [*lifecycle.parts(self._listen(lifecycle, held)), NodePart(renewal.start, renewal.stop)]
                await start(parts)
            finally:
                await self._end_unstarted()
            self._started.set()
            await self._stopping.wait()
            await stop(parts)

    async def _end_unstarted(self) -> None:
        """End the servers of a node that could not start. gRPC keeps running for ever in a process with a server that
        was made and not started, and is in the way of each fork. They have no handlers yet."""
        for server in self._unstarted:
            await server.start()
            await server.stop(None)

    def _addresses(self) -> Addresses:
        return Addresses(
            lambda: self.port,
            lambda: self.peer_port,
            lambda: self.endpoint,
            lambda: self.peer_endpoint,
            lambda: self.peer_endpoint or f":{self.peer_port}",
        )

    def _listen(self, lifecycle: NodeLifecycle, held: ExitStack) -> NodePart:
        """Bind the ports of clients, peers and metrics. No connection is accepted before the part starts.

        Raises OSError. `held` closes the resources that the part's `stop` does not close.
        """
        listen, batches, methods = self.config.listen, lifecycle.batches, lifecycle.methods
        carried = methods.of_lanes(Role.CLIENT, lifecycle.of_lanes)
        secure = bool(listen.cert_file) or self._socket_path is not None
        self.lanes = lanes = LaneListener(
            batches, listen.host, listen.lane_port, MAX_MESSAGE_BYTES, carried, secure=secure
        )
        held.callback(lanes.close)
        session = {"Session": _session_handler(batches), "OpenLane": self._lane_handler(lanes, lambda: self.port)}
        methods.add_registered_method_handlers(_GET_BATCH, session, sizes=False)
        server = self._new_server()
        self._idle = idle = IdleClock(
            lambda: bool(batches.open_sessions or lanes.open_lanes or lifecycle.jobs.is_running)
        )

        def note_call(details: grpc.HandlerCallDetails) -> None:
            note_tenant(details)
            idle.note_call()

        of_clients = methods.served_to(Role.CLIENT, lifecycle.of_clients, note_call)
        carried = methods.of_lanes(Role.PEER, lifecycle.of_peers)
        self.peer_lanes = peer_lanes = LaneListener(
            batches, listen.peer_host, listen.peer_lane_port, MAX_MESSAGE_BYTES, carried, secure=secure, of_peers=True
        )
        held.callback(peer_lanes.close)
        # The peer listener has verified its callers; its tokens are valid for its own lanes only.
        session = {"OpenLane": self._lane_handler(peer_lanes, lambda: self.peer_port)}
        methods.add_registered_method_handlers(_GET_BATCH, session, sizes=False)
        peer_server = self._new_server(lifecycle.check)
        of_peers = methods.served_to(ANYONE, lifecycle.of_peers)
        if self._socket_path is None:
            self.port = self._bound(server, listen.host, listen.port, peers=False)
        else:
            held.callback(self._socket_path.unlink, missing_ok=True)
            server.add_insecure_port(unix_endpoint(self._socket_path))
        self.peer_port = self._listen_for_peers(peer_server)
        by_opener = {"clients": lanes, "peers": peer_lanes}
        running = RunningNode(
            batches,
            self.membership,
            lifecycle.repair,
            lifecycle.coding.metrics,
            lifecycle.drives,
            lifecycle.promote.metrics,
            by_opener,
        )
        self.metrics_port = held.enter_context(
            metrics_served(listen.host, listen.metrics_port, METRICS, partial(replace, running))
        )

        async def begin() -> None:
            for one, handlers in ((peer_server, of_peers), (server, of_clients)):
                one.add_generic_rpc_handlers((handlers,))
                await one.start()
                self._unstarted.remove(one)
            lanes.start()
            peer_lanes.start()

        async def end() -> None:
            await asyncio.gather(*(one.stop(self._grace_s) for one in (server, peer_server, lanes, peer_lanes)))

        return NodePart(begin, end)

    def _new_server(self, *interceptors: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
        server = grpc.aio.server(options=_options(self.config), interceptors=interceptors)
        self._unstarted.append(server)
        return server

    def _listen_for_peers(self, server: grpc.aio.Server) -> int:
        """Return the bound port. If any port is allowed, it is the one in the map, if that is free. Raises OSError."""
        listen, view, position = self.config.listen, self.membership.view, self.membership.position
        if not listen.peer_port and not listen.peer_advertise and view is not None and position is not None:
            port = view.nodes[position].peer_endpoint.rpartition(":")[2]
            with suppress(OSError):
                return self._bound(server, listen.peer_host, int(port), peers=True)
        return self._bound(server, listen.peer_host, listen.peer_port, peers=True)

    def _bound(self, server: grpc.aio.Server, host: str, port: int, *, peers: bool) -> int:
        """Return the bound port. Raises OSError."""
        address, files = f"{host}:{port}", tls_files(self.config)
        try:
            if files is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, server_credentials(files, peers=peers)))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: is another node running there? ({error})") from error

    def _lane_handler(self, lanes: LaneListener, port: Callable[[], int]) -> grpc.RpcMethodHandler:
        """Return the handler of GetBatch/OpenLane for callers that reach this node at `port`."""

        async def open_lane(request: ais_batch_pb2.OpenLaneRequest, context: Any) -> ais_batch_pb2.OpenLaneResponse:
            if request.port != port():
                return ais_batch_pb2.OpenLaneResponse()
            return lanes.offer(tenant_of(context), request.user if request.HasField("user") else None)

        return grpc.unary_unary_rpc_method_handler(
            open_lane,
            request_deserializer=ais_batch_pb2.OpenLaneRequest.FromString,
            response_serializer=ais_batch_pb2.OpenLaneResponse.SerializeToString,
        )


def _own_secret(store: Store) -> Path:
    """Return the file with the node's own secret, which is created if it is missing. Raises DriveFailed, DriveFull."""
    paths = [drive.root / SECRET_FILE_NAME for drive in store.drives if drive is not None]
    path = next((path for path in paths if path.exists()), paths[0])
    try:
        make_secret(path)
    except OSError as error:
        raise drive_error(error, path.parent, "making a peer secret") from error
    return path


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    connections = min(config.limits.max_connections, descriptor_limit() // 2)
    return [*_OPTIONS, ("grpc.max_allowed_incoming_connections", connections)]


def _session_handler(batches: BatchService) -> grpc.RpcMethodHandler:
    """Return the handler of GetBatch/Session. Its responses are already serialized."""

    async def session(requests: AsyncIterator[ais_batch_pb2.SessionRequest], context: Any) -> None:
        await batches.serve(requests, context, tenant_of(context))

    passthrough: Callable[[bytes], bytes] = bytes
    return grpc.stream_stream_rpc_method_handler(
        session, request_deserializer=ais_batch_pb2.SessionRequest.FromString, response_serializer=passthrough
    )


class IdleClock:
    """Measures how long a node has not been used. Calls are noted on its event loop; any thread may read the clock.

    Args:
        in_use: whether something besides a call, such as an open lane, uses the node now.
    """

    def __init__(self, in_use: Callable[[], bool]) -> None:
        self._in_use = in_use
        self._calls: set[asyncio.Task[Any]] = set()
        self._used_s = time.monotonic()

    def note_call(self) -> None:
        """Note that the current task serves a call, until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._used_s = time.monotonic()
        self._calls.discard(task)

    def idle_s(self) -> float:
        """Return the time since the last use that was noted, or seen here; 0 during one."""
        now_s = time.monotonic()
        if self._calls or self._in_use():
            self._used_s = now_s
        return max(0.0, now_s - self._used_s)
