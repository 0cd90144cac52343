"""Test cluster: several storage nodes, each in its own process on this machine.

The nodes receive the map as it is. There is no supervisor.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from ais_loader.testing.node import NodeProcess, peer_secret_file
from ais_loader.wire.channel_options import PROXY
from ais_loader.wire.closing import Closing
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from ais_loader.wire.peer_proof import PROOF_KEY, CallClaim, Prover
from ais_loader.wire.reserved import OPERATOR_ROLE, ROLE_KEY

CALL_TIMEOUT_S = 180.0
_LEARN = CallClaim("/ais_loader.v1.Cluster/Learn", OPERATOR_ROLE)
_HELD = ("ais_loader_memory_held_bytes", "ais_loader_active_", "ais_loader_pending_reads")


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where a process runs. The default is this machine, on loopback."""

    address: str = "127.0.0.1"
    launcher: tuple[str, ...] = ()


class ClusterProcesses(Closing):
    """A context manager for `nodes` running nodes under `root`, each as on a host of its own.

    Args:
        root: A folder for the nodes' drives.
        nodes: The number of nodes.
        drives_per_node: The number of drive folders of each node.
        buckets: The buckets of the first map, with their numbers of copies.
        min_copies: Most copies that a write of these buckets waits for. With 1, a node that is slow for a moment takes
            no part, and a write that was acknowledged may be lost to readers while the only node that has it is down.
        environment: Environment variables in addition to this process's own.
        arguments: Further arguments of `ais-loader serve`. {address} stands for the address of the node's place.
        places: Where each node runs. By default, all run on this machine.
        metrics: Whether the nodes serve their metrics, for `holds` and `NodeProcess.numbers`.
        identity: The identity folder with which the nodes use TLS. It is created if it is missing.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        nodes: int = 3,
        *,
        drives_per_node: int = 1,
        buckets: Mapping[str, int] | None = None,
        min_copies: int = 1,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        places: Sequence[ProcessPlace] | None = None,
        metrics: bool = False,
        identity: str | os.PathLike[str] | None = None,
    ) -> None:
        self._identity = Path(identity) if identity is not None else None
        self.nodes: list[NodeProcess] = []
        self._held = ExitStack()
        self.map = pb.ClusterMap(cluster_uuid=uuid.uuid4().bytes, version=1)
        try:

            def started(number: int) -> NodeProcess:
                drives = [Path(root) / f"node-{number}" / f"drive-{drive}" for drive in range(drives_per_node)]
                place = ProcessPlace() if places is None else places[number]
                node = NodeProcess(
                    drives,
                    environment=environment,
                    arguments=[word.replace("{address}", place.address) for word in arguments],
                    metrics=metrics,
                    host=place.address,
                    launcher=place.launcher,
                    identity=identity,
                )
                return self._held.enter_context(node)

            with ThreadPoolExecutor(nodes) as pool:
                self.nodes.extend(pool.map(started, range(nodes)))
            for number, node in enumerate(self.nodes):
                self.map.node.add(
                    uuid=self.uuid_of(number),
                    host=f"host-{number}",
                    endpoint=_endpoint(node),
                    peer_endpoint=node.peer_endpoint,
                    weight=1.0,
                    number=number + 1,
                )
            for name, copies in (buckets or {}).items():
                self.map.bucket.add(
                    name=name, uuid=uuid.uuid4().bytes, copies=copies, min_copies=min(copies, min_copies)
                )
            self.teach()
        except BaseException:
            self._held.close()
            raise

    @property
    def url(self) -> str:
        """The URL with all endpoints."""
        scheme = "grpc://" if self._identity is None else "grpcs://"
        return scheme + ",".join(map(_endpoint, self.nodes))

    @property
    def ca_file(self) -> str:
        """The CA of the nodes' certificates; empty without TLS."""
        return self.nodes[0].ca_file

    def _channel(self, endpoint: str) -> grpc.Channel:
        """Return a channel of an operator."""
        if self._identity is None:
            return grpc.insecure_channel(endpoint, options=[(PROXY, 0)])
        ca, key, certificate = (
            (self._identity / name).read_bytes() for name in ("ca.pem", "operator-key.pem", "operator.pem")
        )
        return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(ca, key, certificate), options=[(PROXY, 0)])

    def uuid_of(self, number: int) -> bytes:
        with self._channel(_endpoint(self.nodes[number])) as channel:
            return bytes(rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=CALL_TIMEOUT_S).node_uuid)

    def teach(self, numbers: Sequence[int] | None = None) -> None:
        """Send `map` to all nodes, or to some. If you have changed it, increase its version first."""
        secret = peer_secret_file().read_text().strip()
        for number in range(len(self.nodes)) if numbers is None else numbers:
            endpoint = self.nodes[number].peer_endpoint
            metadata = ((ROLE_KEY, OPERATOR_ROLE), (PROOF_KEY, Prover(secret, endpoint).prove(_LEARN)))
            with self._channel(endpoint) as channel:
                learn = rpc.ClusterStub(channel).Learn
                learn(pb.LearnRequest(map=self.map), timeout=CALL_TIMEOUT_S, metadata=metadata)

    def start(self, numbers: Sequence[int] | None = None) -> None:
        """Start those of these nodes, or of all, that are not running: all at once, like machines after a power cut."""
        down = [node for node in self._some(numbers) if not node.alive]
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.restart(), down))

    def kill(self, numbers: Sequence[int] | None = None) -> None:
        """Kill these nodes, or all, as with `kill -9`: all are killed before it waits for the first one."""
        nodes = self._some(numbers)
        for node in nodes:
            if node.alive:
                os.kill(node.pid, signal.SIGKILL)
        for node in nodes:
            node.kill()

    def _some(self, numbers: Sequence[int] | None) -> list[NodeProcess]:
        return self.nodes if numbers is None else [self.nodes[number] for number in numbers]

    def holds(self) -> dict[str, float]:
        """Return what the nodes still hold for batches, by node and metric: empty if nothing. Needs `metrics`."""
        return {
            f"node {number}: {name}": value
            for number, node in enumerate(self.nodes)
            if node.alive
            for name, value in node.numbers().items()
            if name.startswith(_HELD) and not name.endswith("_limit") and value
        }

    def close(self) -> None:
        """Stop all nodes at once. Raises TimeoutError if one does not stop. All have ended by then."""
        try:
            with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
                list(pool.map(NodeProcess.stop, self.nodes))
        finally:
            self._held.close()


def _endpoint(node: NodeProcess) -> str:
    return node.url.partition("://")[2]
