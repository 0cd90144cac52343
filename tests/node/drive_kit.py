"""In-process cluster of nodes with several drives, laid out below a root as an operator's are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus import change
from storage_node.context.channels import OPERATOR
from storage_node.ops import ask_nodes, drive_commands, node_file
from storage_node.ops.node_file import NodeFile
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.replica_state import StoredVersion
from storage_node.store.store import Store
from tests.node.cluster_kit import PATIENT, awake
from tests.node.node_kit import kept_port

TIMEOUT_S = 180.0


@contextmanager
def patient_operators() -> Iterator[None]:
    """Operators of this process wait for the answers of nodes on a machine that stands still."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (ask_nodes, drive_commands, change):
            patch.setattr(module, "CALL_TIMEOUT_S", TIMEOUT_S)
        yield


@dataclass
class DriveCluster:
    root: Path
    nodes: list[NodeServer]
    map: pb.ClusterMap

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def store(self, number: int) -> Store:
        service = self.nodes[number].batches
        assert service is not None
        return service.node.store

    def folder(self, number: int, drive: int) -> Path:
        return self.root / f"node-{number}" / f"drive-{drive}"

    def drive_uuid(self, number: int, drive: int) -> str:
        return next(one.uuid for one in self.report(number).drive if one.path == str(self.folder(number, drive)))

    def report(self, number: int) -> pb.ListDrivesResponse:
        return drive_commands.drives_at(self.nodes[number].endpoint, OPERATOR)

    def states(self, number: int) -> list[str]:
        return [pb.DriveCondition.State.Name(one.state) for one in self.report(number).drive]

    def held(self, number: int, bucket: str) -> dict[str, StoredVersion]:
        return {found.name: found for found in self.store(number).replicas.versions(bucket)}

    def in_place(self, bucket: str, names: set[str]) -> bool:
        """Whether every name is on its owners, and nowhere else, in one version."""
        view = self.nodes[0].membership.view
        assert view is not None
        held = {node.membership.node_uuid: self.held(at, bucket) for at, node in enumerate(self.nodes)}
        for name in names:
            owners = {view.nodes[at].uuid for at in view.owners(view.buckets[bucket], name)}
            found = {uuid: there[name].version for uuid, there in held.items() if name in there}
            if found.keys() != owners or len(set(found.values())) != 1:
                return False
        return True

    def copied(self, bucket: str, names: set[str]) -> None:
        """Wait until every copy is in place: a busy node may be left out of a write, and lack what one other has."""
        eventually(lambda: self.in_place(bucket, names), TIMEOUT_S, interval_s=0.1)
        for number in range(len(self.nodes)):
            self.settled(number)

    def settled(self, number: int) -> None:
        """Wait until nothing moves inside the node, nothing comes to it, and nothing on it is in doubt."""

        def calm() -> bool:
            report = self.report(number)
            return not report.moving and not report.refilling and not self.store(number).replicas.stale.bucket_uuids()

        eventually(calm, TIMEOUT_S, interval_s=0.1)


@contextmanager
def drive_cluster(
    root: Path, nodes: int = 3, *, drives: int = 2, buckets: Mapping[str, int], **config: Any
) -> Iterator[DriveCluster]:
    """`buckets`: with their number of copies."""
    made = DriveCluster(root, [], pb.ClusterMap(cluster_uuid=uuid.uuid4().bytes, version=1))
    settings = {"repair_interval_s": 0.5, **PATIENT, **config}
    with ExitStack() as held:
        held.enter_context(awake())
        held.enter_context(patient_operators())
        for number in range(nodes):
            folders = [made.folder(number, drive) for drive in range(drives)]
            ports = {name: held.enter_context(kept_port()) for name in ("port", "peer_port")}
            node = held.enter_context(NodeServer(folders, ServerConfig(**ports, **settings)))
            made.nodes.append(node)
            endpoint = node.url.removeprefix("grpc://")
            node_file.write(root / f"node-{number}", NodeFile(node.membership.node_uuid.hex(), endpoint))
            made.map.node.add(
                uuid=node.membership.node_uuid,
                host=f"host-{number}",
                endpoint=endpoint,
                peer_endpoint=node.peer_endpoint,
                weight=1.0,
                number=number + 1,
            )
        for name, copies in buckets.items():
            made.map.bucket.add(name=name, uuid=uuid.uuid4().bytes, copies=copies, min_copies=1)
        for node in made.nodes:
            node.membership.learn(made.map)
        yield made
