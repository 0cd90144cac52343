"""In-process cluster: several nodes that know one map, each perhaps behind a link whose faults a test decides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from ais_loader.errors import LoaderError
from ais_loader.testing import eventually
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import EntryFault, Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.batch.session import BatchService
from storage_node.cluster.replication import lease_keeper
from storage_node.context.node import Node
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.format import Version
from storage_node.store.replica_state import StaleReplicas
from tests.faulty_link import FaultyLink
from tests.node.node_kit import kept_port

BUCKET = "b"
LEASE_S = 1.0
"""Short, since what a node may be read from is waited for when it is gone."""
PATIENT = {"reach_timeout_s": 20.0}
"""So that writes leave out no node of a machine that stands still."""


@contextmanager
def awake() -> Iterator[None]:
    """Nodes of one process stand still together: none of them misses what another one has written meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_keeper, "_AWAKE_S", 120.0)
        yield


def to_one_node(url: str, **options: Any) -> RemoteTransport:
    """To this node alone, over gRPC: it gets every request as if it had no cluster."""
    transport = RemoteTransport(url, ClusterOptions(lane="grpc", **options))
    discovery = transport._discovery
    discovery.found = Members.of_one(discovery._endpoints, transport.options)
    alone = discovery.found.view.map
    alone.version = 2**62  # no map of the node's is newer
    discovery.found.view = ClusterView(alone)
    return transport


@dataclass
class Answer:
    """What a client got, by index; pieces put together."""

    status: dict[int, int] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    faults: dict[int, EntryFault] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """Indexes as they first came."""

    def take(self, frame: Frame) -> None:
        at = 0
        for index, size, status in zip(frame.index.tolist(), frame.size.tolist(), frame.status.tolist(), strict=True):
            if index not in self.status:
                self.order.append(index)
            self.status[index] = status
            before = b"" if frame.begins_again else self.data.get(index, b"")
            self.data[index] = before + bytes(frame.payload[at : at + size])
            at += size
        self.faults.update(frame.errors)

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> Answer:
        answer = cls()
        for frame in frames:
            answer.take(frame)
        return answer


class LocalCluster:
    """`nodes` nodes below `root`, a host each, with the bucket "b"; a context manager.

    Args:
        linked: the other nodes reach each through `links[number]`.
        clients_linked: clients that go by the map reach each through `client_links[number]`.
        configs: settings of single nodes, on top of `config`.
        states: of nodes in the map, by number.
        spread: names of objects of which every node is to be the first owner of at least one.
    """

    def __init__(
        self,
        root: Path,
        nodes: int = 3,
        *,
        copies: int = 1,
        linked: bool = False,
        clients_linked: bool = False,
        configs: Mapping[int, Mapping[str, Any]] | None = None,
        states: Mapping[int, int] | None = None,
        spread: Iterable[str] = (),
        transforms: Callable[[Node], Any] | None = None,
        **config: Any,
    ) -> None:
        self.nodes: list[NodeServer] = []
        self.links: list[FaultyLink] = []
        self.client_links: list[FaultyLink] = []
        self._held = ExitStack()
        self.map = cluster_pb.ClusterMap(cluster_uuid=uuid.uuid4().bytes, version=1)
        try:
            self._held.enter_context(awake())
            for number in range(nodes):
                ports = {name: self._held.enter_context(kept_port()) for name in ("port", "peer_port")}
                settings = ServerConfig(
                    **{"read_lease_s": LEASE_S, **PATIENT, **ports, **config, **(configs or {}).get(number, {})}
                )
                node = self._held.enter_context(NodeServer([root / f"node-{number}"], settings, transforms=transforms))
                self.nodes.append(node)
                if linked:
                    self.links.append(self._held.enter_context(FaultyLink(node.peer_endpoint)))
                peer_endpoint = self.links[-1].url.removeprefix("grpc://") if linked else node.peer_endpoint
                if clients_linked:
                    self.client_links.append(self._held.enter_context(FaultyLink(node.url)))
                endpoint = self.client_links[-1].url.removeprefix("grpc://") if clients_linked else node.endpoint
                self.map.node.add(
                    uuid=node.membership.node_uuid,
                    host=f"host-{number}",
                    endpoint=endpoint,
                    peer_endpoint=peer_endpoint,
                    weight=1.0,
                    number=number + 1,
                    state=(states or {}).get(number, 0),
                )
            self.map.bucket.add(name=BUCKET, uuid=uuid.uuid4().bytes, copies=copies, min_copies=1)
            self.view = ClusterView(self.map)
            while spread and len({self.owners(name)[0] for name in spread}) < nodes:
                self.map.bucket[0].uuid = uuid.uuid4().bytes
                self.view = ClusterView(self.map)
            self._teach()
            self.await_compared()
        except BaseException:
            self._held.close()
            raise
        self.transport = self._held.enter_context(closing(to_one_node(self.nodes[0].url, verify_payload=True)))

    def learn(self) -> None:
        """Teach the nodes `map` after a change of it."""
        self.map.version += 1
        self._teach()

    def await_compared(self) -> None:
        """Nodes that have just learned a map are not read from for a moment."""
        uuids = [bucket.uuid for bucket in self.map.bucket]
        copied = any(bucket.copies > 1 for bucket in self.map.bucket)
        for number in range(len(self.nodes)):
            stale = self.batches(number).node.store.replicas.stale

            def read_out(stale: StaleReplicas = stale) -> bool:
                begun = len(self.nodes) == 1 or not copied or bool(stale._guarded)  # it has looked for a lease
                return begun and not any(map(stale.whole, uuids))

            eventually(read_out)

    def _teach(self) -> None:
        known = cluster_pb.ClusterMap()
        known.CopyFrom(self.map)  # nodes compare it with the next one
        self.view = ClusterView(known)
        for node in self.nodes:
            node.membership.learn(known)

    def batches(self, number: int) -> BatchService:
        found = self.nodes[number].batches
        assert found is not None
        return found

    # -- objects

    def owners(self, name: str) -> list[int]:
        return self.view.owners(self.view.buckets[BUCKET], name)

    def holders(self, name: str) -> list[int]:
        return self.view.holders(self.view.buckets[BUCKET], [name])[0]

    def put(self, objects: Mapping[str, bytes]) -> None:
        """On all owners, in the same versions."""
        clock = max(self.batches(number).node.store.replicas.clock for number in range(len(self.nodes)))
        versions = {name: Version(1, clock + 1 + at) for at, name in enumerate(objects)}
        for number in range(len(self.nodes)):
            mine = {name: data for name, data in objects.items() if number in self.owners(name)}
            self.put_on(number, mine, versions)

    def put_on(self, number: int, objects: Mapping[str, bytes], versions: Mapping[str, Version] | None = None) -> None:
        """On one node; in versions of its own, where none are given."""
        store = self.batches(number).node.store
        uploads = [store.stage(BUCKET, name, [data], {}) for name, data in objects.items()]
        if versions is not None:
            for upload, name in zip(uploads, objects, strict=True):
                upload.assign(versions[name])
        done = store.commit_many(uploads)
        assert not any(isinstance(result, LoaderError) for result in done)

    def names_of(self, number: int, names: Iterable[str]) -> list[str]:
        """Those whose first owner is this node."""
        return [name for name in names if self.owners(name)[0] == number]

    # -- batches

    def ask(self, names: Sequence[str], *, timeout_s: float = 180.0, **fields: Any) -> Answer:
        """Node 0 answers, checked as a client checks: order, pieces, every checksum, END."""
        request = pb.BatchRequest(bucket=[BUCKET], name=names, ordered=True, **fields)
        return Answer.of(self.transport.open_batch(request, timeout_s=timeout_s))

    def settle(self) -> None:
        """Everything that batches held has been given back, on all nodes."""
        for number in range(len(self.nodes)):
            service = self.batches(number)

            def left(service: BatchService = service) -> bool:
                return (
                    service.resources.reserved_bytes
                    == service.resources.parts.held
                    == service.resources.batches.held
                    == 0
                )

            try:
                eventually(left)
            except AssertionError:
                held = (
                    service.resources.budget.held_bytes,
                    service.resources.buffered.held_bytes,
                    service.resources.assembly.held_bytes,
                )
                raise AssertionError(
                    f"{number}: {held} {service.resources.parts.held} {service.resources.batches.held}"
                ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
