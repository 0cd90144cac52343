"""Channels to the other nodes: the identity with which this node calls them, and the nodes that failed recently.

The identity (node, map version, and a proof that it knows the secret) is metadata of every call to a peer listener. A
`CallerChannel` adds it to all calls made through it, so that no call between nodes can be made without it. A caller
that has no place in a map, such as an operator's command, has the operator's role.

Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ais_loader.wire.backoff import Backoff, Suspects
from ais_loader.wire.channel_options import CHANNEL_OPTIONS, PROXY
from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.map_delta import carried
from ais_loader.wire.peer_proof import PROOF_KEY, CallClaim, Prover
from ais_loader.wire.reserved import ERROR_KIND_KEY, NODE_ROLE, OPERATOR_ROLE, ROLE_KEY
from storage_node.context.call_lanes import CallLanes
from storage_node.context.errors import ReplicaLost, refused
from storage_node.context.membership import Membership
from storage_node.security.identity.credentials import ChannelCredentials
from storage_node.settings.config import ServerConfig, is_loopback
from storage_node.store.permissions import others_access, trusted_bytes

NODE_KEY = "ais-node"
MAP_VERSION_KEY = "ais-map-version"
MIN_SECRET_CHARACTERS = 16
_SECRET = re.compile(rf"[!-~]{{{MIN_SECRET_CHARACTERS},1024}}")

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """Identity of a node or an operator. `node_uuid` is empty for an operator, which acts by no map."""

    secret: str = field(default="", repr=False)
    node_uuid: bytes = b""
    map_version: Callable[[], int] = int
    credentials: ChannelCredentials | None = field(default=None, repr=False)
    """The certificate that the caller shows; None calls without TLS."""

    @classmethod
    def of_node(cls, membership: Membership, secret: str, credentials: ChannelCredentials | None = None) -> Caller:
        """Return the identity of a node, with the newest map version that it knows at each call."""
        return cls(secret, membership.node_uuid, lambda: membership.map_version, credentials)

    @property
    def generation(self) -> int:
        """Number of renewals of the certificate. Channels of a former one cannot connect again once it has expired."""
        return self.credentials.generation if self.credentials is not None else 0

    def channel(self, endpoint: str, options: Any) -> Any:
        """Return a channel to a peer listener, on which stubs call as this caller."""
        return self.through(self.client_channel(endpoint, options), endpoint)

    def client_channel(self, endpoint: str, options: Any) -> grpc.Channel:
        """Return a channel to a client listener, on which stubs call as a client."""
        options = (*options, (PROXY, 0))
        if self.credentials is None:
            return grpc.insecure_channel(endpoint, options=options)
        return grpc.secure_channel(endpoint, self.credentials.current(), options=options)

    def aio_channel(self, endpoint: str, options: Any) -> Any:
        """Return a channel of grpc.aio to a peer listener, on which stubs call as this caller."""
        options = (*options, (PROXY, 0))
        if self.credentials is None:
            return self.through(grpc.aio.insecure_channel(endpoint, options=options), endpoint)
        return self.through(grpc.aio.secure_channel(endpoint, self.credentials.current(), options=options), endpoint)

    def prover(self, endpoint: str) -> Prover | None:
        """Return a prover for the calls of one channel to this endpoint; None without a secret."""
        return Prover(self.secret, endpoint) if self.secret else None

    def metadata(self, method: str, prover: Prover | None) -> Metadata:
        """Return the metadata of one call, by the current map. `method`: its path on the wire."""
        if self.node_uuid:
            claim = CallClaim(method, NODE_ROLE, self.node_uuid.hex(), str(self.map_version()))
            metadata: Metadata = ((ROLE_KEY, NODE_ROLE), (NODE_KEY, claim.node), (MAP_VERSION_KEY, claim.map_version))
        else:
            claim = CallClaim(method, OPERATOR_ROLE)
            metadata = ((ROLE_KEY, OPERATOR_ROLE),)
        return metadata if prover is None else (*metadata, (PROOF_KEY, prover.prove(claim)))

    def through(self, channel: Any, endpoint: str) -> Any:
        """Wrap a channel of grpc or grpc.aio, so that generated stubs call as this caller.

        `endpoint`: the host:port for which the channel was made.
        """
        return CallerChannel(channel, self, endpoint)


OPERATOR = Caller()
"""Operator of a cluster without a secret."""


class CallerChannel:
    """The methods of a channel that stubs use. Not a gRPC interceptor, which would queue each stream of grpc.aio."""

    def __init__(self, channel: Any, caller: Caller, endpoint: str) -> None:
        self._channel = channel
        self._caller = caller
        self._prover = caller.prover(endpoint)

    def unary_unary(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.unary_unary(path, *arguments, **named), path)

    def unary_stream(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.unary_stream(path, *arguments, **named), path)

    def stream_unary(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.stream_unary(path, *arguments, **named), path)

    def stream_stream(self, path: str, *arguments: Any, **named: Any) -> Any:
        return self._method(self._channel.stream_stream(path, *arguments, **named), path)

    def _method(self, method: Any, path: str) -> _Method:
        return _Method(method, self._caller, path, self._prover)

    def close(self, *grace_s: float) -> Any:
        """Close the channel. The result is awaitable for a channel of grpc.aio, which may give calls time to end."""
        return self._channel.close(*grace_s)

    def __enter__(self) -> CallerChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


class _Method:
    def __init__(self, method: Any, caller: Caller, path: str, prover: Prover | None) -> None:
        self._method = method
        self._caller = caller
        self._path = path
        self._prover = prover

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._method(*arguments, metadata=self._caller.metadata(self._path, self._prover), **named)

    def future(self, *arguments: Any, **named: Any) -> Any:
        return self._method.future(*arguments, metadata=self._caller.metadata(self._path, self._prover), **named)


def make_secret(path: Path, secret: str = "") -> None:
    """Create a file with a new secret, or with this one, that only its owner may read; unless there is one. Raises
    OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w") as file:
            file.write((secret or secrets.token_hex(32)) + "\n")
            file.flush()
            os.fsync(fd)
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def read_secret(path: str | Path) -> str:
    """Read the secret from a file; "" for an empty path. Raises OSError, and ValueError if the file contains none."""
    if not path:
        return ""
    text = trusted_bytes(Path(path)).decode("ascii", errors="replace").strip()
    if not _SECRET.fullmatch(text):
        raise ValueError(
            f"{path}: a secret is one line of {MIN_SECRET_CHARACTERS} to 1024 printable ASCII characters, as "
            "`openssl rand -hex 32` makes"
        )
    return text


def resolved(endpoint: str, answer: str) -> str:
    """Return a node's endpoint for peers, from its answer at another endpoint; see GetMapResponse."""
    if not answer:
        return endpoint
    return endpoint.rpartition(":")[0] + answer if answer.startswith(":") else answer


log = logging.getLogger(__name__)

AVOID = Backoff(0.5, 0.5, jitter=0)
"""Time for which a node that could not be reached is not the first choice."""
AVOID_SILENT = Backoff(5.0, 5.0, jitter=0)
"""The same for a node that did not answer: every attempt costs the full timeout."""


REACH_TIMEOUT_S = 2.0
"""Time for a node to accept a stream; after that, the next host in order takes its place."""
STEP_TIMEOUT_S = 10.0
"""Time for each later step of a write: receiving a piece, staging a group, committing."""
DRAIN_S = 60.0
"""Time for the calls of a channel to end after the certificate was renewed."""


class Channels:
    """Channels to other nodes. `caller`: the identity with which they are called."""

    def __init__(
        self, caller: Caller, note_map_version: Callable[[str, int], None] = lambda endpoint, version: None
    ) -> None:
        """`note_map_version`: called with the endpoint and the map version of a node that has refused this one as a
        stranger."""
        self.caller = caller
        self._note_map_version = note_map_version
        self._channels: dict[str, Any] = {}
        self._generation = caller.generation
        self._draining: set[asyncio.Task[None]] = set()
        self.lanes = CallLanes(self.to)
        self._suspects: Suspects[str] = Suspects()
        self._unproved: dict[str, str | None] = {}
        """Reasons, already logged, for which nodes did not accept this node's identity."""

    def to(self, endpoint: str) -> Any:
        """Return a channel, which connects on first use and stays open until `close`, or until the caller's certificate
        is renewed: calls in progress then have DRAIN_S to end."""
        if self._generation != (generation := self.caller.generation):
            self._generation = generation
            for former in self._channels.values():
                task = asyncio.create_task(former.close(DRAIN_S), name="draining a channel")
                self._draining.add(task)
                task.add_done_callback(self._draining.discard)
            self._channels = {}
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self.caller.aio_channel(endpoint, CHANNEL_OPTIONS)
        return channel

    def failed(self, endpoint: str, *, silent: bool = False) -> None:
        """Note that a node could not be reached, or did not answer in time."""
        if silent:
            self.lanes.distrust(endpoint)
        self._suspects.failed(endpoint, AVOID_SILENT if silent else AVOID)

    def answered(self, endpoint: str) -> None:
        self._suspects.answered(endpoint)

    def refused(self, endpoint: str, error: grpc.aio.AioRpcError) -> None:
        """Note that a call has ended with this error."""
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._unproved.get(endpoint) != error.details():
            self._unproved[endpoint] = error.details()
            log.warning("%s does not answer this node: %s", endpoint, error.details())
        for key, value in error.trailing_metadata() or ():
            if key == MAP_VERSION_KEY and str(value).isdecimal():
                self._note_map_version(endpoint, int(value))

    @contextlib.contextmanager
    def reporting(self, endpoint: str) -> Iterator[None]:
        """Translate gRPC errors of an unresponsive node into ReplicaLost, and mark the node as failed."""
        try:
            yield
        except TimeoutError as error:
            self.failed(endpoint, silent=True)
            raise ReplicaLost(f"{endpoint}: no answer in time") from error
        except (OSError, FrameError) as error:  # of a lane
            self.failed(endpoint)
            raise ReplicaLost(f"{endpoint}: {error}") from error
        except grpc.aio.AioRpcError as error:
            late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if late or error.code() == grpc.StatusCode.UNAVAILABLE:
                self.failed(endpoint, silent=late)
            self.refused(endpoint, error)
            for key, kind in error.trailing_metadata() or ():
                if key == ERROR_KIND_KEY:
                    raise refused(endpoint, pb.Error(kind=str(kind), message=error.details())) from error
            raise ReplicaLost(f"{endpoint}: {'no answer in time' if late else error.details()}") from error
        except asyncio.CancelledError as error:
            # gRPC also raises this if the other node cancelled the call, which does not end this task.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self.failed(endpoint)
            raise ReplicaLost(f"{endpoint}: it is stopping") from error
        except asyncio.InvalidStateError as error:  # raised by a write to a call that has ended
            self.failed(endpoint)
            raise ReplicaLost(f"{endpoint}: the connection broke") from error

    async def ask(
        self, endpoint: str, stub: Callable[[Any], Any], method: str, request: Any, timeout_s: float, **options: Any
    ) -> Any:
        """Return a node's answer to one call. `options`: those of gRPC. Raises ReplicaLost."""
        with self.reporting(endpoint):
            return await getattr(stub(self.to(endpoint)), method)(request, timeout=timeout_s, **options)

    def avoided(self, endpoint: str) -> bool:
        """Whether a node failed recently."""
        return endpoint in self._suspects

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for task in self._draining:
            task.cancel()
        await self.lanes.close()
        await asyncio.gather(*(channel.close() for channel in channels), *self._draining, return_exceptions=True)


async def fetched_map(
    channel: Any, known: cluster_pb.ClusterMap | None, timeout_s: float
) -> cluster_pb.ClusterMap | None:
    """Return the map of the node at the other end, empty if it has none newer than this one; None if it is silent."""
    stub = cluster_rpc.ClusterStub(channel)
    version = known.version if known is not None else 0
    try:
        answer = await stub.GetMap(cluster_pb.GetMapRequest(known_version=version), timeout=timeout_s)
        if (map_ := carried(answer, known)) is None:  # a delta of a later version, perhaps
            map_ = (await stub.GetMap(cluster_pb.GetMapRequest(), timeout=timeout_s)).map
    except grpc.RpcError:
        return None
    return map_


async def newer_map(
    channel: Any, known: cluster_pb.ClusterMap | None, timeout_s: float
) -> cluster_pb.ClusterMap | None:
    """Return the map of the node at the other end, if it is newer than this one and the node answers."""
    map_ = await fetched_map(channel, known, timeout_s)
    return map_ if map_ is not None and map_.version > (known.version if known is not None else 0) else None


def require_secrets(config: ServerConfig, *, makes_own: bool, has_tls: bool = False) -> None:
    """Require the secrets that the settings need to be safe. Raises ValueError if one is missing, and OSError for a
    missing file.

    Args:
        makes_own: whether the node makes a secret if it is given none. Other nodes do not know that one.
        has_tls: whether certificates will prove who calls, although `cert_file` does not name one yet.
    """
    listen, etl = config.listen, config.etl
    if listen.token_key_file and not has_tls and not listen.cert_file and not is_loopback(listen.host):
        raise ValueError(
            f"host={listen.host} is more than loopback, and token_key_file needs TLS there: tokens are not sent in the "
            "clear. Use --secure, or set cert_file, key_file and ca_file"
        )
    if (has_tls or listen.cert_file) and not listen.peer_secret_file:
        return  # certificates prove who calls
    if listen.peer_secret_file:
        if etl.user and etl.network and (access := others_access(Path(listen.peer_secret_file))):
            raise ValueError(
                f"etl_user={etl.user}: {listen.peer_secret_file} must be readable by its owner alone, and "
                f"{access}; `chmod 600` closes it"
            )
        return
    if not is_loopback(listen.peer_host):
        raise ValueError(
            f"peer_host={listen.peer_host} is more than loopback, and needs peer_secret_file: without a secret, anyone "
            "who reaches this address can act as a node or an operator. Put the same file on every machine of the "
            "cluster; `openssl rand -hex 32` makes its line"
        )
    if etl.user and etl.network and not makes_own:
        raise ValueError(
            f"etl_user={etl.user} needs peer_secret_file, or etl_network=false: without a secret, a transform "
            "that can connect to this node's peer address can act as an operator"
        )
