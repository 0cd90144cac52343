"""The cluster's map changes while batches are half-way: nodes join, leave and restart, controllers die and compete.

Batches of every kind are held open over the whole change, until everything has moved; then they go on. What they have
not delivered yet is planned anew, and nobody notices.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ais_loader import Batch, Client, ClusterOptions, Item, connect
from ais_loader.testing import NodeProcess, eventually
from ais_loader.testing.node import peer_secret_file
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import begin_leave
from tests.cluster_processes import ClusterProcesses
from tests.faults.changing_process import STEPS
from tests.faults.fault_kit import BUCKETS, MIXED, MODES, Kind, check, nothing_held, read, serve_all, three_nodes
from tests.faults.ledger_kit import current_map, endpoints, join, settled
from tests.peer_kit import PROCESS_OPERATOR

pytestmark = pytest.mark.slow  # everything moves, and is awaited

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 180.0
TAKEN_BEFORE = 20
KINDS = [("one", MODES[0]), ("one", MODES[3]), ("two", MODES[1]), ("two", MODES[2])]
"""Each kind of batch once; and of each number of copies both assemblies, in order and in any."""


class Held:
    """Batches of every kind that have begun, and go on when the test says so."""

    def __init__(self, client: Client) -> None:
        self._begun: list[tuple[Batch, list[Item]]] = []
        for bucket, (assembly, ordered) in KINDS:
            batch = client.bucket(bucket).get_batch(MIXED, assembly=assembly, ordered=ordered, timeout_s=TIMEOUT_S)
            self._begun.append((batch, [next(batch) for _ in range(TAKEN_BEFORE)]))

    def finish(self) -> None:
        for (batch, items), (_, (_, ordered)) in zip(self._begun, KINDS, strict=True):
            items += batch
            check(items if ordered else sorted(items, key=lambda item: item.index), MIXED)


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with three_nodes() as running:
        yield running
        nothing_held(running)


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[Client]:
    with connect(cluster.url, options=ClusterOptions(retry_s=TIMEOUT_S, verify_payload=True)) as client:
        yield client


def read_all(client: Client) -> None:
    for bucket, mode in KINDS:
        read(client.bucket(bucket), MIXED, Kind(*mode), timeout_s=TIMEOUT_S)


def test_a_node_joins_and_another_leaves_and_dies_while_batches_are_half_way(
    cluster: ClusterProcesses, client: Client, tmp_path: Path
) -> None:
    with NodeProcess([tmp_path / "fourth"]) as fourth:
        held = Held(client)
        join(cluster, fourth, "host-3")
        read_all(client)
        eventually(lambda: settled([*cluster.nodes, fourth], 4), TIMEOUT_S, interval_s=0.2)
        held.finish()

        held = Held(client)
        left = [cluster.nodes[0], cluster.nodes[2], fourth]
        change_map(
            endpoints(cluster.nodes), begin_leave(cluster.uuid_of(1)), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR
        )
        read_all(client)
        eventually(lambda: settled(left, 3), TIMEOUT_S, interval_s=0.2)
        cluster.nodes[1].kill()
        held.finish()
        read_all(client)
        client.close()  # before those that it has sessions with


@pytest.mark.exhaustive
def test_every_node_restarts_in_turn_while_batches_are_half_way(cluster: ClusterProcesses, client: Client) -> None:
    held = Held(client)
    for node in cluster.nodes:
        assert node.stop() == 0, "in order: it refuses what is new, and ends what it has begun or breaks it off"
        node.start()
        serve_all(cluster)
    held.finish()
    read_all(client)


def change_elsewhere(cluster: ClusterProcesses, buckets: Sequence[str], die: str = "") -> subprocess.Popen[str]:
    task = {
        "endpoints": endpoints(cluster.nodes),
        "buckets": list(buckets),
        "die": die,
        "peer_secret_file": str(peer_secret_file()),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.changing_process", json.dumps(task)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_controllers_die_in_the_middle_of_changes_while_batches_are_half_way(
    cluster: ClusterProcesses, client: Client
) -> None:
    for at, die in enumerate(STEPS):
        held = Held(client)
        proposer = change_elsewhere(cluster, [f"half-{at}"], die)
        assert proposer.wait(TIMEOUT_S) == -9
        proposer.communicate()
        held.finish()
    read_all(client)


def test_controllers_compete_while_batches_are_half_way(cluster: ClusterProcesses, client: Client) -> None:
    before = current_map(cluster.nodes).version
    held = Held(client)
    wanted = [[f"p{at}-{number}" for number in range(6)] for at in range(3)]
    changers = [change_elsewhere(cluster, names) for names in wanted]
    read_all(client)
    for changer in changers:
        changer.communicate(timeout=TIMEOUT_S)
        assert changer.returncode == 0
    held.finish()
    read_all(client)
    newest = before + sum(map(len, wanted))
    client.create_bucket("last")
    assert current_map(cluster.nodes).version == newest + 1, "each change was made once"
    made = {name for names in wanted for name in names}
    eventually(lambda: {bucket.name for bucket in client.buckets()} == {*BUCKETS, "last"} | made)
