"""Nodes of a cluster that die, freeze, come back, join or leave while batches run over all of them: a trainer sees the
same bytes in the same order while a copy can be reached, and a typed status in its place where none can.

One fault at a chosen moment each. At random moments of many batches, and all nodes at once: test_cluster_kills; ways
that are cut: test_cluster_links; nodes that stand still: test_cluster_standstill; changes of the map half-way:
test_cluster_changes; what a gathering node tells its client: test_assembly_faults, and of liars: test_assembly_fuzz.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from ais_loader import Bucket, Client, ClusterOptions, Item, connect, errors
from ais_loader.testing import SeededObjects, eventually, seeded_bytes, throwaway_folder
from ais_loader.values.entry import Status
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all
from tests.faulty_link import FaultyLink
from tests.node.node_kit import RawSession, batch_of
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # processes that are killed and started again

MiB = 1 << 20
SMALL = SeededObjects({f"s/{at:04d}": (60_000 + at, at) for at in range(300)})
LARGE = SeededObjects({f"l/{at}": (24 * MiB + at, 900 + at) for at in range(3)})
OBJECTS = SMALL | LARGE
FROZEN_S = 15.0
"""Silence after which a node counts as frozen: longer than a machine stands still."""
MIXED = [*list(SMALL)[:100], "l/0", *list(SMALL)[100:200], "l/1", "l/2", *list(SMALL)[200:]]


class Cluster:
    """Three nodes, which clients reach through links. "two" has two copies of each object, "one" has one."""

    def __init__(self, running: ClusterProcesses, links: list[FaultyLink]) -> None:
        self.running = running
        self.links = links

    @property
    def url(self) -> str:
        return "grpc://" + ",".join(link.url.removeprefix("grpc://") for link in self.links)

    def view(self) -> ClusterView:
        return ClusterView(self.running.map)

    def owner(self, bucket: str, name: str) -> int:
        view = self.view()
        return view.owners(view.buckets[bucket], name)[0]

    def owned(self, bucket: str, node: int, names: list[str]) -> set[str]:
        return {name for name in names if self.owner(bucket, name) == node}

    def change(self) -> None:
        """Hand the map, which the test has changed, to all nodes. They may make one of that version at this moment."""

        def is_known() -> bool:
            self.running.map.version = self._newest().version + 1
            self.running.teach()
            first, *others = self._maps()
            wanted = {node.uuid for node in self.running.map.node}
            return {node.uuid for node in first.node} == wanted and all(other == first for other in others)

        eventually(is_known)

    def _maps(self) -> list[pb.ClusterMap]:
        maps = []
        for node in self.running.nodes:
            with grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
                maps.append(rpc.ClusterStub(channel).GetMap(pb.GetMapRequest(), timeout=180).map)
        return maps

    def _newest(self) -> pb.ClusterMap:
        return max(self._maps(), key=lambda map_: map_.version)

    def kill(self, node: int) -> None:
        self.running.nodes[node].kill()

    def start(self, node: int) -> None:
        """A node that comes back puts its own address into the map, and compares its copies with those of others before
        it serves them; returns when it has done both, and is behind its link again."""
        self.running.nodes[node].start()
        own = self.running.nodes[node].url.removeprefix("grpc://")
        eventually(lambda: self._newest().node[node].endpoint == own)
        # Before its link is in the map again: it tells its peers that it is back under the address that it listens on.
        eventually(lambda: self._serves(node), interval_s=0.1)
        serve_all(self.running)
        self.change()

    def _serves(self, node: int) -> bool:
        """All that it has, asked of itself alone."""
        view = self.view()
        for bucket in view.buckets.values():
            holders = zip(OBJECTS, view.holders(bucket, list(OBJECTS)), strict=True)
            names = [name for name, nodes in holders if node in nodes]
            request = batch_of(names, bucket=bucket.name, local=True, start=[0] * len(names), length=[1] * len(names))
            with RawSession(self.running.nodes[node].url) as session:
                if session.ask(1, request)[1].failed_entries:
                    return False
        return True


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    """Each test leaves the three nodes running, in a map of these three."""
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, buckets={"one": 1, "two": 2}) as running:
        links = [FaultyLink(node.url) for node in running.nodes]
        try:
            for node, link in zip(running.map.node, links, strict=True):
                node.endpoint = link.url.removeprefix("grpc://")
            made = Cluster(running, links)
            made.change()
            with connect(made.url, options=PATIENT_CLIENT) as client:
                for name in ("one", "two"):
                    client.bucket(name).put_many(OBJECTS.items())
            yield made
        finally:
            for link in links:
                link.close()


@pytest.fixture
def cluster(made: Cluster) -> Cluster:
    """On a busy machine a write may have missed a replica, and a node that stood still compares what it has."""
    serve_all(made.running)
    return made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.url, options=ClusterOptions(retry_s=240.0, verify_payload=True)) as client:
        yield client


def check(items: list[Item], names: list[str], *, ordered: bool = True) -> None:
    if not ordered:
        items = sorted(items, key=lambda item: item.index)
    assert [item.index for item in items] == list(range(len(names)))
    for item, name in zip(items, names, strict=True):
        assert item.ok, (name, item.error)
        assert item.tobytes() == OBJECTS[name], name


# -- killed


@pytest.mark.parametrize(
    ("victim", "assembly", "ordered"),
    [
        (0, "direct", True),
        (1, "target", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(1, "direct", False), (2, "direct", True), (0, "target", True)]
        ),
    ],
)
@pytest.mark.sampled(3)
def test_nobody_notices_a_node_that_is_killed_while_each_object_has_another_copy(
    cluster: Cluster, client: Client, victim: int, assembly: str, ordered: bool
) -> None:
    batch = client.bucket("two").get_batch(MIXED, assembly=assembly, ordered=ordered)
    items = list(itertools.islice(batch, 20))
    cluster.kill(victim)
    try:
        items += list(batch)
        check(items, MIXED, ordered=ordered)
        check(list(client.bucket("two").get_batch(list(SMALL), assembly=assembly)), list(SMALL))
    finally:
        cluster.start(victim)


@pytest.mark.slow
@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_a_batch_waits_for_the_only_copies_on_a_node_that_restarts(
    cluster: Cluster, client: Client, assembly: str
) -> None:
    for victim in range(3):
        batch = client.bucket("one").get_batch(MIXED, assembly=assembly, timeout_s=180.0)
        items = list(itertools.islice(batch, 20))
        cluster.kill(victim)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(list, batch)
            cluster.start(victim)
            items += reading.result(timeout=180)
        check(items, MIXED)


@pytest.mark.slow
def test_entries_whose_only_copy_is_gone_are_unavailable_in_their_place(cluster: Cluster) -> None:
    names, victim = list(SMALL), 1
    gone = cluster.owned("one", victim, names)
    assert 0 < len(gone) < len(names)
    cluster.kill(victim)
    try:
        with connect(cluster.url, options=ClusterOptions(retry_s=0.5)) as client:
            bucket = client.bucket("one")

            def only_these(ordered: bool) -> bool:
                """Others fail as well while their nodes stand still for longer than the client retries."""
                batch = bucket.get_batch(names, on_error="placeholder", assembly="direct", ordered=ordered)
                items = sorted(batch, key=lambda item: item.index) if not ordered else list(batch)
                assert [item.index for item in items] == list(range(len(names)))
                assert all(isinstance(item.error, errors.NodeUnavailable) for item in items if not item.ok)
                assert all(item.tobytes() == SMALL[item.entry.name] for item in items if item.ok)
                unavailable = {item.entry.name for item in items if item.status is Status.UNAVAILABLE}
                assert unavailable >= gone
                return unavailable == gone

            eventually(lambda: only_these(True))
            eventually(lambda: only_these(False))
            first = min(at for at, name in enumerate(names) if name in gone)

            def ends_at_first() -> bool:
                received: list[Item] = []
                with pytest.raises(errors.NodeUnavailable, match=r"entry \d+: .*gave up after") as caught:
                    for item in bucket.get_batch(names, assembly="direct"):
                        received.append(item)
                assert len(received) <= first
                check(received, names[: len(received)])
                return len(received) == first and f"entry {first}: " in str(caught.value)

            eventually(ends_at_first)
    finally:
        cluster.start(victim)


def test_a_large_entry_goes_on_at_another_copy_from_its_last_byte(cluster: Cluster) -> None:
    victim = cluster.owner("two", "l/0")
    for link in cluster.links:
        link.bytes_per_s = 20e6
    before = sum(link.bytes_to_client for link in cluster.links)
    with (
        connect(
            cluster.url,
            options=ClusterOptions(retry_s=240.0, verify_payload=True, hedge_budget=0.0),  # which asks for it twice
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            batch = client.bucket("two").get_batch(["l/0"], assembly="direct")
            reading = pool.submit(list, batch)
            eventually(lambda: sum(link.bytes_to_client for link in cluster.links) - before > 10 * MiB)
            cluster.kill(victim)
            [item] = reading.result(timeout=180)
        finally:
            for link in cluster.links:
                link.bytes_per_s = None
            cluster.start(victim)
    assert item.tobytes() == LARGE["l/0"]
    passed = sum(link.bytes_to_client for link in cluster.links) - before
    assert passed < len(LARGE["l/0"]) + 8 * MiB  # what was on its way when the node died came again, and no more


# -- frozen


def test_a_frozen_node_costs_one_time_out_where_there_are_copies(cluster: Cluster, client: Client) -> None:
    bucket = client.bucket("two")
    check(list(bucket.get_batch(MIXED)), MIXED)
    cluster.running.nodes[2].pause()
    try:
        check(list(bucket.get_batch(MIXED, timeout_s=FROZEN_S, assembly="direct")), MIXED)
        assert bucket.get("s/0000", timeout_s=FROZEN_S) == SMALL["s/0000"]
    finally:
        cluster.running.nodes[2].resume()
    check(list(bucket.get_batch(MIXED)), MIXED)


def test_entries_whose_only_copy_is_on_a_frozen_node_time_out_in_their_place(cluster: Cluster, client: Client) -> None:
    names, victim = list(SMALL), 0
    frozen = cluster.owned("one", victim, names)
    bucket = client.bucket("one")
    check(list(bucket.get_batch(names)), names)
    cluster.running.nodes[victim].pause()
    try:
        items = list(bucket.get_batch(names, timeout_s=FROZEN_S, on_error="placeholder", assembly="direct"))
        with pytest.raises(errors.SilenceTimeout):
            list(bucket.get_batch(names, timeout_s=2.0, assembly="direct"))
    finally:
        cluster.running.nodes[victim].resume()
    assert [item.entry.name for item in items] == names
    assert {item.entry.name: item.status for item in items if not item.ok} == dict.fromkeys(frozen, Status.TIMEOUT)
    assert all(item.tobytes() == SMALL[item.entry.name] for item in items if item.ok)


# -- cut off


@pytest.mark.parametrize("bucket", ["one", "two"])
@pytest.mark.parametrize(
    "after_bytes", [70_001, pytest.param(1, marks=pytest.mark.slow), pytest.param(2 * MiB + 5, marks=pytest.mark.slow)]
)
def test_connections_that_are_cut_anywhere_are_taken_up_again(
    cluster: Cluster, client: Client, bucket: str, after_bytes: int
) -> None:
    check(list(client.bucket(bucket).get_batch(["s/0000"])), ["s/0000"])
    for link in cluster.links:
        link.cut_after(after_bytes)
    check(list(client.bucket(bucket).get_batch(MIXED, assembly="direct")), MIXED)


# -- the map changes


def test_a_client_with_an_old_map_is_told_and_asks_the_nodes_of_the_new_one(cluster: Cluster, client: Client) -> None:
    bucket = client.bucket("one")
    check(list(bucket.get_batch(MIXED)), MIXED)
    for state in (pb.MapNode.LEAVING, pb.MapNode.JOINING):
        batch = bucket.get_batch(MIXED, assembly="direct")
        items = list(itertools.islice(batch, 30))
        cluster.running.map.node[1].state = state  # the former owners have what has not moved
        cluster.change()
        check(items + list(batch), MIXED)
        check(list(bucket.get_batch(MIXED, assembly="direct")), MIXED)
        assert int(str(client.describe()["map_version"])) >= cluster.running.map.version
        assert bucket.get("l/1") == LARGE["l/1"]
        assert bucket.head("s/0007").size_bytes == len(SMALL["s/0007"])
    batch = bucket.get_batch(MIXED, assembly="direct")
    items = list(itertools.islice(batch, 30))
    # Nodes that find everything in its place make a newer one by themselves.
    eventually(lambda: cluster._newest().node[1].state == pb.MapNode.ACTIVE, interval_s=0.1)
    cluster.running.map.node[1].state = pb.MapNode.ACTIVE
    check(items + list(batch), MIXED)
    check(list(bucket.get_batch(MIXED, assembly="direct")), MIXED)


# -- everything but batches


def test_single_calls_go_to_another_copy_while_a_node_is_down(cluster: Cluster, client: Client) -> None:
    bucket: Bucket = client.bucket("two")
    names = list(SMALL)[:40]
    cluster.kill(0)
    try:
        assert [bucket.get(name) for name in names] == [SMALL[name] for name in names]
        assert [bucket.get(name, start=5, length=100) for name in names] == [SMALL[name][5:105] for name in names]
        assert [bucket.head(name).size_bytes for name in names] == [len(SMALL[name]) for name in names]
        with bucket.open("l/0") as file:
            file.seek(12 * MiB)
            assert file.read(1000) == LARGE["l/0"][12 * MiB : 12 * MiB + 1000]
        assert [info.name for info in bucket.objects()] == sorted(OBJECTS)
        with pytest.raises(errors.ObjectNotFound):
            bucket.get("nope")
        with pytest.raises(errors.ObjectNotFound):
            bucket.head("nope")
    finally:
        cluster.start(0)


def test_a_listing_that_may_lack_objects_is_an_error(cluster: Cluster) -> None:
    cluster.kill(0)
    try:
        with connect(cluster.url, options=ClusterOptions(retry_s=0.3)) as client, pytest.raises(errors.NodeUnavailable):
            list(client.bucket("one").objects())
    finally:
        cluster.start(0)


def test_put_many_over_a_node_that_restarts_acknowledges_each_object_once(cluster: Cluster, client: Client) -> None:
    objects = {f"p/{at:05d}": seeded_bytes(4000 + at % 100, seed=at) for at in range(3000)}
    bucket, acknowledged = client.bucket("one"), []
    for info in bucket.iter_put_many(objects.items()):
        acknowledged.append(info.name)
        if len(acknowledged) in (700, 1800):
            cluster.kill(1)
            cluster.start(1)
    assert acknowledged == list(objects)
    assert bucket.get_batch(list(objects)).tobytes() == list(objects.values())
    assert [info.name for info in bucket.objects("p/")] == list(objects)
