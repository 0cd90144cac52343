"""A node that is stopped for a while, as by a debugger or a machine that sleeps, and goes on as if nothing were."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.testing import NodeProcess, eventually
from ais_loader.values.entry import Status
from ais_loader.wire.cluster_map import ClusterView
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import (
    LARGE,
    MIXED,
    MODES,
    OBJECTS,
    Kind,
    designated,
    nothing_held,
    read,
    serve_all,
    three_nodes,
)
from tests.faults.ledger_kit import BUCKET, TIMEOUT_S, delete, equal, filled, put, reading

KEYS = [f"k{at:03}" for at in range(60)]
RETRY_S = 240.0
IMPATIENT_S = 12.0
"""Longer than a machine stands still."""
PATIENT = ["--set", "peer_timeout_s=120"]
"""A node that gathers waits for a silent one for longer than the test has it stand still, and than its client."""
_TGKILL = {"x86_64": 234, "aarch64": 131}


@pytest.mark.slow
def test_a_node_that_stood_still_serves_nothing_old_when_it_goes_on(tmp_path: Path) -> None:
    # Nobody announces a node that stood still: its copies are made equal by the next pass, a minute later by default.
    with filled(tmp_path, KEYS, arguments=["--set", "repair_interval_s=5"]) as (cluster, bucket, ledger):
        view = ClusterView(cluster.map)
        owners = {key: view.owners(view.buckets[BUCKET], key) for key in KEYS}
        # It has copies of these, and another node coordinates their writes.
        keys = [key for key in KEYS if owners[key][1] == 1]
        assert len(keys) > 4
        cluster.nodes[1].pause()
        put(bucket, ledger, keys[::2])
        delete(bucket, ledger, keys[1::2])
        with reading(cluster.url, ledger) as clients:
            cluster.nodes[1].resume()
            clients.round(3)
            eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
            clients.check()
        assert "no read lease" in cluster.nodes[1].log()


# -- a sender of a batch


@pytest.fixture(scope="module")
def running() -> Iterator[ClusterProcesses]:
    with three_nodes(PATIENT) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ClusterProcesses) -> Iterator[ClusterProcesses]:
    serve_all(running)
    yield running
    nothing_held(running)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["one", "two"])
@pytest.mark.parametrize(("assembly", "ordered"), MODES)
def test_a_sender_that_stands_still_in_the_middle_of_a_batch_and_goes_on_costs_nothing_but_time(
    cluster: ClusterProcesses, bucket: str, assembly: str, ordered: bool
) -> None:
    """It goes on when all that others could send has been taken, and the batch waits for it alone, if it waits."""
    with (
        connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        going_on: list[Future[None]] = []

        def stand_still() -> None:
            victim = (designated(cluster) + 1) % 3 if assembly == "target" else 1
            others = [node for at, node in enumerate(cluster.nodes) if at != victim]
            cluster.nodes[victim].pause()

            def go_on() -> None:
                sent = -1.0
                try:
                    # Until nothing moves any more between those that can.
                    while sent != (sent := _sent_bytes(others)):
                        eventually(lambda: _pending_reads(others) == 0)
                finally:
                    cluster.nodes[victim].resume()

            going_on.append(pool.submit(go_on))

        kind = Kind(assembly, ordered)
        read(client.bucket(bucket), MIXED, kind, at=len(MIXED) // 4, harm=stand_still, timeout_s=RETRY_S)
        going_on[0].result()


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("acquainted", [True, False])
@pytest.mark.sampled(2)
def test_a_client_less_patient_than_the_node_that_gathers_for_it_loses_only_what_nobody_else_has(
    cluster: ClusterProcesses, acquainted: bool, ordered: bool
) -> None:
    """The node waits for a silent one; the client, who hears nothing, asks the others itself.

    With the silent one it has a session, and waits for `timeout_s` again; or it has none, gets none, and goes on trying
    for `retry_s`.
    """
    view = ClusterView(cluster.map)
    owner = {name: view.owners(view.buckets["one"], name)[0] for name in MIXED}
    with connect(cluster.url, options=ClusterOptions(retry_s=IMPATIENT_S, verify_payload=True)) as client:
        if acquainted:
            read(client.bucket("one"), MIXED, Kind("direct", ordered))
        batch = client.bucket("one").get_batch(
            MIXED, assembly="target", ordered=ordered, on_error="placeholder", timeout_s=IMPATIENT_S
        )
        items = [next(batch)]
        target = designated(cluster)
        # Of these it may not send all ahead.
        victim = next((owner[name] for name in LARGE if owner[name] != target), (target + 1) % 3)
        cluster.nodes[victim].pause()
        try:
            items += batch
        finally:
            cluster.nodes[victim].resume()
    assert sorted(item.index for item in items) == list(range(len(MIXED)))
    failed = [item for item in items if not item.ok]
    assert failed or all(owner[name] == target for name in LARGE)
    assert {owner[MIXED[item.index]] for item in failed} <= {victim}
    assert {item.status for item in failed} <= {Status.TIMEOUT if acquainted else Status.UNAVAILABLE}
    assert all(item.tobytes() == OBJECTS[MIXED[item.index]] for item in items if item.ok)


def _sent_bytes(nodes: list[NodeProcess]) -> float:
    return sum(node.numbers()["ais_loader_session_sent_bytes_total"] for node in nodes)


def _pending_reads(nodes: list[NodeProcess]) -> float:
    return sum(node.numbers()["ais_loader_pending_reads"] for node in nodes)


# -- told to stop


@pytest.mark.slow
def test_a_node_stops_by_a_signal_that_the_kernel_gives_to_any_of_its_threads(tmp_path: Path) -> None:
    """As it does with one that comes together with the order to go on, to a process that stands still."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with NodeProcess(tmp_path / number.name) as node:
            threads = [int(name) for name in os.listdir(f"/proc/{node.pid}/task") if int(name) != node.pid]
            assert any(signal_thread(node.pid, thread, number) for thread in threads)
            assert eventually(lambda node=node: not node.alive)  # type: ignore[misc]


def signal_thread(pid: int, thread: int, number: int) -> bool:
    """Return False if the thread has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_TGKILL[platform.machine()], pid, thread, number) == 0:
        return True
    if ctypes.get_errno() == errno.ESRCH:
        return False
    raise OSError(ctypes.get_errno(), "tgkill")
