"""Nodes of a cluster that are killed with `kill -9` while batches and writes run over all of them.

Killed at random moments of many batches, by a seed; the node that gathers a batch, after half of it; and the whole
cluster at once, as by a power cut. The trainer sees all bytes in order and no error, everything acknowledged is there
afterwards, and neither the nodes nor the client hold anything of it any more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import seeded_bytes
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import (
    MIXED,
    MODES,
    OBJECTS,
    Kind,
    Leftovers,
    check,
    designated,
    nothing_held,
    read,
    serve_all,
    three_nodes,
)

pytestmark = pytest.mark.slow  # processes that are killed and started again

RETRY_S = 240.0
KILL_EVERY = 4
"""Batches, on average."""
QUICK = (("two", ("direct", True)),)


@pytest.fixture(scope="module")
def running() -> Iterator[ClusterProcesses]:
    """Each test leaves the three nodes running."""
    with three_nodes() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ClusterProcesses) -> ClusterProcesses:
    serve_all(running)
    return running


class Killer:
    """Kills any node that serves, and has each brought back at once, beside whatever goes on: two, or all, may be away
    together. A context manager: in the end all run."""

    def __init__(self, cluster: ClusterProcesses, draw: random.Random) -> None:
        self._cluster = cluster
        self._draw = draw
        self._starts: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(len(cluster.nodes))
        self.killed = 0

    def __call__(self) -> None:
        serving = [at for at in range(len(self._cluster.nodes)) if at not in self._starts or self._starts[at].done()]
        if serving:
            victim = self._draw.choice(serving)
            self._cluster.kill([victim])
            self._starts[victim] = self._pool.submit(self._cluster.start, [victim])
            self.killed += 1

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for start in self._starts.values():
            start.result()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("seed", "batches"), [(2, 40), *(pytest.param(seed, 120, marks=pytest.mark.exhaustive) for seed in (3, 4))]
)
def test_nodes_are_killed_at_random_moments_of_many_batches(cluster: ClusterProcesses, seed: int, batches: int) -> None:
    draw = random.Random(seed)
    content = dict(OBJECTS)
    acknowledged: dict[str, bytes] = {}
    with Leftovers() as left:
        with (
            connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client,
            Killer(cluster, draw) as kill,
        ):
            for number in range(batches):
                bucket = client.bucket(draw.choice(["one", "two", "two", "two"]))
                names = draw.choices(list(OBJECTS), k=draw.randrange(20, 150))
                if bucket.name == "two":
                    names += acknowledged
                at = draw.randrange(len(names)) if draw.randrange(KILL_EVERY) == 0 or not number else -1
                read(bucket, names, Kind.drawn(draw), at=at, harm=kill, content=content, timeout_s=RETRY_S)
                name, data = f"w{seed}/{number:04d}", seeded_bytes(40_000 + number, seed=number)
                if _put(client, name, data):
                    acknowledged[name] = content[name] = data
                if number == 20:
                    left.warm()
            assert kill.killed > batches // (4 * KILL_EVERY)
        nothing_held(cluster)
    assert len(acknowledged) > batches // 2
    with connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client:
        read(client.bucket("two"), list(acknowledged), Kind("direct", True), content=content)
        for name in acknowledged:
            client.bucket("two").delete(name)


def _put(client: Client, name: str, data: bytes) -> bool:
    """Whether the write was acknowledged."""
    try:
        client.bucket("two").put(name, data)
    except errors.NodeUnavailable:
        return False
    return True


@pytest.mark.parametrize(
    ("bucket", "ordered"),
    [
        ("one", False),
        ("two", True),
        pytest.param("one", True, marks=pytest.mark.slow),
        pytest.param("two", False, marks=pytest.mark.slow),
    ],
)
def test_a_node_that_gathers_a_batch_is_killed_after_half_of_it(
    cluster: ClusterProcesses, bucket: str, ordered: bool
) -> None:
    with (
        connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client,
        ExitStack() as held,
    ):
        pool = held.enter_context(ThreadPoolExecutor(1))
        killed: list[int] = []

        def kill() -> None:
            killed.append(designated(cluster))
            cluster.kill(killed)
            if bucket == "one":
                pool.submit(cluster.start, killed)  # nobody else has what it has

        kind = Kind("target", ordered)
        read(client.bucket(bucket), MIXED, kind, at=len(MIXED) // 2, harm=kill, timeout_s=RETRY_S)
        if bucket == "two":
            assert not cluster.nodes[killed[0]].alive
            cluster.start()
    nothing_held(cluster)


@pytest.mark.parametrize(
    ("bucket", "assembly", "ordered"),
    [
        pytest.param(bucket, *mode, marks=() if (bucket, mode) in QUICK else pytest.mark.slow)
        for bucket in ("one", "two")
        for mode in MODES
    ],
)
@pytest.mark.sampled(4)
def test_a_batch_outlives_all_nodes_at_once(
    cluster: ClusterProcesses, bucket: str, assembly: str, ordered: bool
) -> None:
    with (
        connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S, verify_payload=True)) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        starting: list[Future[None]] = []

        def power_cut() -> None:
            cluster.kill()
            starting.append(pool.submit(cluster.start))

        where = client.bucket(bucket)
        read(where, MIXED, Kind(assembly, ordered), at=len(MIXED) // 3, harm=power_cut, timeout_s=RETRY_S)
        starting[0].result()
        # The same client, without a word said to it.
        check(list(where.get_batch(MIXED)), MIXED)
    nothing_held(cluster)


@pytest.mark.slow
def test_batches_while_all_nodes_stay_dead_end_in_time_and_say_why(cluster: ClusterProcesses) -> None:
    with connect(cluster.url, options=ClusterOptions(retry_s=1.0)) as client:
        for assembly, ordered in MODES:
            serve_all(cluster)
            batch = client.bucket("two").get_batch(
                MIXED, assembly=assembly, ordered=ordered, on_error="placeholder", timeout_s=RETRY_S
            )
            items = [next(batch)]
            cluster.kill()
            try:
                items += list(batch)
            finally:
                cluster.start()
            assert sorted(item.index for item in items) == list(range(len(MIXED)))
            if ordered:
                assert [item.index for item in items] == list(range(len(MIXED)))
            failed = [item for item in items if not item.ok]
            assert failed and {item.status.name for item in failed} == {"UNAVAILABLE"}
            assert all(isinstance(item.error, errors.NodeUnavailable) for item in failed)
            assert all(item.tobytes() == OBJECTS[MIXED[item.index]] for item in items if item.ok)
            with connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S)) as patient:
                check(list(patient.bucket("two").get_batch(MIXED)), MIXED)
