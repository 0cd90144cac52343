"""A node that writers cannot reach is not read from, whoever else it reaches; and is again as soon as it has heard."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from storage_node.cluster.replication import invalidation, lease_keeper
from storage_node.cluster.replication.lease_renewal import LeaseRenewal
from storage_node.context.call_lanes import CallLanes
from storage_node.context.channels import Caller, Channels
from storage_node.server import NodeServer
from tests.faulty_link import FaultyLink
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import DOUBT, NOTHING, Writer, name_with, said

pytestmark = pytest.mark.slow
OLD, NEW = b"old", b"new"
LEASE_S = 1.0
TIMEOUT_S = 180.0


class Cuts:
    """Ways from node to node, each of which can be cut by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: ExitStack) -> None:
        self._held = held
        self._links: dict[tuple[bytes, str], FaultyLink] = {}
        to, to_renew = Channels.to, LeaseRenewal._channel
        monkeypatch.setattr(CallLanes, "begin", lambda lanes, endpoint: None)  # a lane would not be cut
        monkeypatch.setattr(Channels, "to", lambda way, endpoint: to(way, self._by(way.caller, endpoint)))
        monkeypatch.setattr(
            LeaseRenewal, "_channel", lambda way, endpoint: to_renew(way, self._by(way._caller, endpoint))
        )

    def _by(self, caller: Caller, endpoint: str) -> str:
        link = self._links.get((caller.node_uuid, endpoint))
        return endpoint if link is None else link.url.removeprefix("grpc://")

    def cut(self, cluster: LocalCluster, senders: Sequence[int], receivers: Sequence[int]) -> None:
        nodes = cluster.map.node
        for sender, receiver in itertools.product(senders, receivers):
            way = nodes[sender].uuid, nodes[receiver].peer_endpoint
            self._links[way] = self._held.enter_context(FaultyLink(way[1]))
            self._links[way].stall()

    def mend(self) -> None:
        for link in self._links.values():
            link.flow()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuts]:
    with ExitStack() as held:
        yield Cuts(monkeypatch, held)


class Reading:
    """Somebody who reads from one node all the time: what was heard, and when the question was asked."""

    def __init__(self, cluster: LocalCluster, number: int, name: str) -> None:
        self.heard: list[tuple[float, bytes | str]] = []
        self._ask = lambda: (time.monotonic(), said(cluster, number, name))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self.heard.append(self._ask())

    def since(self, asked_s: float) -> set[bytes | str]:
        return {found for at, found in self.heard if at >= asked_s}

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def with_old(root: Path) -> Iterator[tuple[LocalCluster, Writer, str]]:
    """Three nodes, and the name of an object that nodes 0 and 1 have."""
    config = {"reach_timeout_s": 0.3, "repair_interval_s": 600.0, "read_lease_s": LEASE_S}
    with LocalCluster(root, 3, copies=2, **config) as cluster, Writer(cluster.nodes[0].url) as writer:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        writer.put(name, OLD)
        eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)
        yield cluster, writer, name


@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_node_that_nobody_reaches_says_nothing_old_once_a_write_is_acknowledged(
    tmp_path: Path, cuts: Cuts, change: str
) -> None:
    """It reaches the others all the while, and asks them for its lease."""
    with with_old(tmp_path) as (cluster, writer, name), Reading(cluster, 1, name) as reading:
        cuts.cut(cluster, [0, 2], [1])
        if change == "put":
            writer.put(name, NEW)
        else:
            writer.delete(name)
        acknowledged_s = time.monotonic()
        eventually(lambda: reading.since(acknowledged_s + 2 * LEASE_S), TIMEOUT_S)
        assert reading.since(acknowledged_s) == {DOUBT}
        cuts.mend()
        after = NOTHING if change == "delete" else NEW
        eventually(lambda: said(cluster, 1, name) == after, TIMEOUT_S)
        assert reading.since(acknowledged_s) <= {DOUBT, after}


def test_what_the_writer_cannot_tell_a_node_another_one_does(tmp_path: Path, cuts: Cuts) -> None:
    with with_old(tmp_path) as (cluster, writer, name), Reading(cluster, 1, name) as reading:
        cuts.cut(cluster, [0], [1])
        for _ in range(3):
            writer.put(name, NEW)
        acknowledged_s = time.monotonic()
        other = name_with(cluster, lambda owners: owners == [1, 2], "other")
        cluster.put_on(1, {other: OLD})
        assert eventually(lambda: said(cluster, 1, other) == OLD, TIMEOUT_S), "it holds a lease"
        assert reading.since(acknowledged_s) <= {DOUBT, NEW}
        cuts.mend()
        eventually(lambda: said(cluster, 1, name) == NEW, TIMEOUT_S)
        assert reading.since(acknowledged_s) <= {DOUBT, NEW}


def test_a_node_that_missed_more_writes_than_are_kept_for_it_compares_its_copies_and_is_read_from_again(
    tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invalidation, "MAX_KEPT", 1)
    with with_old(tmp_path) as (cluster, writer, name), Reading(cluster, 1, name) as reading:
        missed = [name, *(name_with(cluster, lambda owners: owners == [0, 1], prefix) for prefix in ("x", "y"))]
        for one in missed[1:]:
            writer.put(one, OLD)
        eventually(lambda: [said(cluster, 1, one) for one in missed] == [OLD] * 3, TIMEOUT_S)
        cuts.cut(cluster, [0, 2], [1])
        for one in reversed(missed):
            writer.put(one, NEW)
        acknowledged_s = time.monotonic()
        cuts.mend()
        eventually(lambda: [said(cluster, 1, one) for one in missed] == [NEW] * 3, TIMEOUT_S)
        assert reading.since(acknowledged_s) <= {DOUBT, NEW}


def test_a_node_started_anew_knows_whom_it_must_not_grant_a_lease(tmp_path: Path, cuts: Cuts) -> None:
    with with_old(tmp_path) as (cluster, writer, name), Reading(cluster, 1, name) as reading:
        cuts.cut(cluster, [0, 2], [1])
        writer.put(name, NEW)
        acknowledged_s = time.monotonic()
        node = cluster.nodes[2]
        config = node.config.replace(port=node.port, peer_port=node.peer_port)
        node.stop(grace_s=0)
        assert lease_keeper._read([tmp_path / "node-2"]) == {cluster.map.node[1].uuid}
        with NodeServer([tmp_path / "node-2"], config):
            began_s = time.monotonic()
            eventually(lambda: reading.since(began_s + 2 * LEASE_S), TIMEOUT_S)
            assert reading.since(acknowledged_s) == {DOUBT}
            cuts.mend()
            eventually(lambda: said(cluster, 1, name) == NEW, TIMEOUT_S)
            assert reading.since(acknowledged_s) <= {DOUBT, NEW}
            eventually(lambda: not lease_keeper._read([tmp_path / "node-2"]), TIMEOUT_S)


def test_a_node_that_no_majority_hears_is_not_read_from_and_needs_no_comparison_afterwards(
    tmp_path: Path, cuts: Cuts
) -> None:
    with with_old(tmp_path) as (cluster, _, name):
        cuts.cut(cluster, [1], [0, 2])
        eventually(lambda: said(cluster, 1, name) == DOUBT, TIMEOUT_S)
        asked = cluster.nodes[1].repair._reconciler._requests
        cuts.mend()
        eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)
        assert cluster.nodes[1].repair._reconciler._requests == asked, "all that it missed would have been told by name"


def test_a_write_that_no_majority_can_vouch_for_is_not_acknowledged(
    tmp_path: Path, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invalidation, "STEP_TIMEOUT_S", 2.0)
    with with_old(tmp_path) as (cluster, writer, name):
        cuts.cut(cluster, [0], [1, 2])
        (result,) = writer.put_many({name: NEW})
        assert result.error.kind == "node-unavailable"
        assert "nobody reads from it" in result.error.message or "can be written now" in result.error.message
        cuts.mend()
        eventually(lambda: writer.put_many({name: NEW})[0].HasField("info"), TIMEOUT_S)
        eventually(lambda: said(cluster, 1, name) == NEW, TIMEOUT_S)


def test_a_node_whose_event_loop_is_busy_is_read_from_all_the_same(tmp_path: Path) -> None:
    with with_old(tmp_path) as (cluster, _, name):
        loop = cluster.nodes[1]._loop
        assert loop is not None

        def heard() -> set[bytes | str]:
            done = threading.Event()
            eventually(lambda: said(cluster, 1, name) == OLD, TIMEOUT_S)
            with Reading(cluster, 1, name) as reading:
                loop.call_soon_threadsafe(time.sleep, 2 * LEASE_S)
                loop.call_soon_threadsafe(done.set)
                assert done.wait(TIMEOUT_S)
            return reading.since(0)

        # Once more where all threads of this process stood still, and not only this loop.
        eventually(lambda: heard() == {OLD}, TIMEOUT_S)
