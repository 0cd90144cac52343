"""Six nodes in this process, a host each, with a coded bucket, and what lies on their drives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ais_loader import Client, connect
from ais_loader.errors import LoaderError
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import companion_name
from storage_node.cluster.coding.group import Manifest
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.map.mutations import create_cluster
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.format import CatalogEntry
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store
from tests.patience import PATIENT_CLIENT

BUCKET = "b"
TIMEOUT_S = 180.0


class CodedCluster:
    def __init__(self, nodes: list[NodeServer], client: Client) -> None:
        self.nodes = nodes
        self.client = client

    @property
    def bucket(self) -> Any:
        return self.client.bucket(BUCKET)

    @property
    def stores(self) -> list[Store]:
        """Those of the nodes in the map, in the order of the nodes."""
        return [
            node.batches.node.store
            for node in self.nodes
            if node.batches is not None and node.membership.node_uuid in self.view.position
        ]

    def change(self, edit: Edit) -> None:
        """Change the map, through its nodes."""
        change_map([node.peer_endpoint for node in self.view.nodes], edit, timeout_s=TIMEOUT_S)

    def entries(self, name: str) -> list[CatalogEntry]:
        """What the nodes have of an object."""
        return [entry for store in self.stores if (entry := store.replicas.newest(BUCKET, [name])[0]) is not None]

    def coded(self, names: Iterable[str]) -> bool:
        """Whether all owners have coded entries of these objects."""
        return all(len(found := self.entries(name)) == 3 and all(one.is_coded for one in found) for name in names)

    def plain(self, names: Iterable[str]) -> bool:
        """Whether all owners have copies of these objects."""
        return all(len(found := self.entries(name)) == 3 and all(one.has_file for one in found) for name in names)

    def files_bytes(self, names: Iterable[str]) -> int:
        """Size of the objects of which a node has a copy."""
        return sum(max(one.size_bytes * one.has_file for one in self.entries(name)) for name in names)

    @property
    def view(self) -> ClusterView:
        view = self.nodes[0].membership.view
        assert view is not None
        return view

    def owners(self, name: str) -> list[int]:
        """Numbers of the nodes that own an object, best first."""
        uuids = [node.membership.node_uuid for node in self.nodes]
        return [uuids.index(self.view.nodes[at].uuid) for at in self.view.owners(self.view.buckets[BUCKET], name)]

    @property
    def companion(self) -> str:
        return companion_name(self.stores[0].bucket(BUCKET).uuid_bytes)

    def flip_bits(self, number: int, fragment: str) -> None:
        """Damage a fragment on a node."""
        [entry] = self.stores[number].replicas.newest(self.companion, [fragment])
        assert entry is not None
        [drive] = self.stores[number].drives
        assert drive is not None
        path = drive.root / "objects" / entry.path.decode()
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.chmod(0o600)
        path.write_bytes(content)

    def is_sound(self, number: int, fragment: str) -> bool:
        """Whether a fragment on a node has the bytes that were written."""
        try:
            return bool(b"".join(open_object(self.stores[number], self.companion, fragment)))
        except LoaderError:
            return False

    def fragments(self) -> dict[str, int]:
        """Names of fragments, each with the number of a node that has it."""
        found: dict[str, int] = {}
        for number, store in enumerate(self.stores):
            uuid = store.bucket(BUCKET).uuid_bytes
            for name, _ in store.replicas.scan(companion_name(uuid), "", "", tombstones=False):
                found[name] = number
        return found

    def is_spread(self) -> bool:
        """Whether each fragment that the manifests of all their owners name is on a host of its own."""
        there = self.fragments()
        for name in self.manifests():
            uuids = [store.store_uuid for store in self.stores]
            for at in self.view.owners(self.view.buckets[BUCKET], name):
                store = self.stores[uuids.index(bytes(self.view.nodes[at].uuid).hex())]
                try:
                    manifest = Manifest.decode(b"".join(open_object(store, BUCKET, name)))
                except LoaderError:
                    return False
                if len({there.get(fragment, -1) for fragment in manifest.fragments} - {-1}) < len(manifest.fragments):
                    return False
        return True

    def manifests(self) -> set[str]:
        return {
            name for store in self.stores for name, _ in store.replicas.scan(BUCKET, "/.coded/", "", tombstones=False)
        }

    def check(self, objects: Mapping[str, bytes]) -> None:
        names = list(objects)
        assert [bytes(item.data) for item in self.bucket.get_batch(names)] == list(objects.values())


@contextmanager
def coded_cluster(
    root: Path, *, nodes: int = 6, redundancy: str | None = "rs:4+2", drives: int = 1, **config: Any
) -> Iterator[CodedCluster]:
    """`drives`: of each node, `node-0/drive-0` and so on; a single one is `node-0`."""
    folders = [
        [root / f"node-{number}"]
        if drives == 1
        else [root / f"node-{number}" / f"drive-{drive}" for drive in range(drives)]
        for number in range(nodes)
    ]
    # Six nodes of one busy process renew their leases late, and take writes late.
    settings = {
        "coding_delay_s": 0.0,
        "coding_grace_s": 3600.0,
        "repair_interval_s": 1.0,
        "read_lease_s": 15.0,
        "reach_timeout_s": 20.0,
        **config,
    }
    with ExitStack() as held:
        servers = [held.enter_context(NodeServer(mine, ServerConfig(port=0, **settings))) for mine in folders]
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
        client = held.enter_context(connect(servers[0].url, options=PATIENT_CLIENT))
        if redundancy is not None:
            client.create_bucket(BUCKET, redundancy=redundancy)
        yield CodedCluster(servers, client)
