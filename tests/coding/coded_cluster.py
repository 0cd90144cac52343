"""Six nodes in this process, a host each, with a coded bucket, and what lies on their drives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ais_loader import Client, connect
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import companion_name
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store

BUCKET = "b"
TIMEOUT_S = 60.0


class CodedCluster:
    def __init__(self, nodes: list[NodeServer], client: Client) -> None:
        self.nodes = nodes
        self.client = client

    @property
    def bucket(self) -> Any:
        return self.client.bucket(BUCKET)

    @property
    def stores(self) -> list[Store]:
        return [node.batches.node.store for node in self.nodes if node.batches is not None]

    def entries(self, name: str) -> list[CatalogEntry]:
        """What the nodes have of an object."""
        return [entry for store in self.stores if (entry := store.replicas.newest(BUCKET, [name])[0]) is not None]

    def coded(self, names: Mapping[str, bytes]) -> bool:
        return all(len(found := self.entries(name)) == 3 and all(one.is_coded for one in found) for name in names)

    def plain(self, names: Mapping[str, bytes]) -> bool:
        return all(len(found := self.entries(name)) == 3 and all(one.has_file for one in found) for name in names)

    def fragments(self) -> dict[str, int]:
        """Names of fragments, each with the number of the node that has it."""
        found: dict[str, int] = {}
        for number, store in enumerate(self.stores):
            uuid = store.bucket(BUCKET).uuid_bytes
            for name, _ in store.replicas.scan(companion_name(uuid), "", "", tombstones=False):
                assert name not in found, "a fragment is on one node"
                found[name] = number
        return found

    def manifests(self) -> set[str]:
        return {
            name for store in self.stores for name, _ in store.replicas.scan(BUCKET, "/.coded/", "", tombstones=False)
        }

    def check(self, objects: Mapping[str, bytes]) -> None:
        names = list(objects)
        assert [bytes(item.data) for item in self.bucket.get_batch(names)] == list(objects.values())


@contextmanager
def coded_cluster(
    root: Path, *, nodes: int = 6, redundancy: str | None = "rs:4+2", **config: Any
) -> Iterator[CodedCluster]:
    settings = {"coding_delay_s": 0.0, "coding_grace_s": 3600.0, "repair_interval_s": 0.5, **config}
    with ExitStack() as held:
        servers = [
            held.enter_context(NodeServer([root / f"node-{number}"], ServerConfig(port=0, **settings)))
            for number in range(nodes)
        ]
        members = [
            pb.MapNode(
                uuid=node.membership.node_uuid,
                host=f"host-{number}",
                endpoint=node.url.partition("://")[2],
                peer_endpoint=node.peer_endpoint,
                weight=1.0,
            )
            for number, node in enumerate(servers)
        ]
        change_map([one.endpoint for one in members], create_cluster(members), timeout_s=TIMEOUT_S)
        eventually(lambda: all(node.membership.view is not None for node in servers))
        client = held.enter_context(connect(servers[0].url))
        if redundancy is not None:
            client.create_bucket(BUCKET, redundancy=redundancy)
        yield CodedCluster(servers, client)
