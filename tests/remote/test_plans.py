"""Plans of loaders: cold objects are fetched before they are read, each once, and a window goes with its loader."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ais_loader import BatchLoader, MapDataset, Remote, ShufflePlan, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.plans import MixPlan
from ais_loader.testing import eventually
from ais_loader.testing.node import NodeProcess
from ais_loader.training.plan import Position, position_state
from ais_loader.transport.base import Transport
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.generated import ais_remote_pb2 as pb
from storage_node.remote.ahead.plans import MAX_WINDOW_KEYS
from storage_node.remote.ahead.prefetcher import MAX_KEYS
from tests.cluster_processes import ClusterProcesses
from tests.datasets.datasets_kit import EntryPlan
from tests.node.node_kit import serving
from tests.patience import PATIENT_CLIENT
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of, filled
from tests.table import table

BATCH = 5
LOADER = b"l" * 16
ALONE = pytest.mark.parametrize("url", ["embedded", "grpc"], indirect=True)
UNHEDGED: dict[str, Any] = {"remote_hosts": ("any",), "remote_hedge_budget": 0.0}
NODES = pytest.mark.parametrize("url", ["grpc"], indirect=True)


def plan_of(bucket: Bucket, names: list[str]) -> EntryPlan:
    return EntryPlan([f"ais://{bucket.name}/{name}" for name in names], BATCH, seed=3)


def loader_of(client: Client | str, plan: EntryPlan, **options: Any) -> BatchLoader:
    return BatchLoader(MapDataset(client), plan, in_flight=1, **options)


def names_of(plan: EntryPlan, *steps: int) -> list[str]:
    """The names that the plan's epoch 0 needs in these steps."""
    return [str(entry).split("/", 3)[3] for step in steps for entry in plan.batch(0, step)]


def contents(plan: EntryPlan, step: int) -> list[bytes]:
    return [data_of(int(name[3:6])) for name in names_of(plan, step)]


def window(of: str, *names: str, **changes: Any) -> pb.ExpectRequest:
    """A request for one step with these names of a bucket, or with other fields."""
    fields: dict[str, Any] = {"loader": LOADER, "lifetime_ms": 30_000, "bucket": [of]} | changes
    return pb.ExpectRequest(**{"step": [pb.ExpectedStep(name=names)]} | fields)


def all_requested(remote_bucket: RemoteBucket, proxy: FaultProxy, names: list[str]) -> Callable[[], bool]:
    return lambda: all(proxy.count("GET", remote_bucket.path(name)) for name in names)


def assert_fetched_once(
    client: Client, bucket: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, names: list[str]
) -> None:
    """Every object was requested, and once, but for second requests for what is slow on a busy machine.

    In a cluster, another owner fetches what a node does not that stands still: so it is not once for each owner.
    """
    assert all_requested(remote_bucket, proxy, names)()
    rows = [row for row in client.remote_usage() if row.bucket == bucket.name]
    fetched = sum(row.requests.get("get", 0) - row.hedged for row in rows)
    assert len(names) <= fetched <= len(names) * (1.5 if "," in client.url else 1)


def expected_keys(client: Client) -> list[int]:
    """The number of keys that each of the nodes behind a client expects to be read.

    Waits for a node that was started a moment ago: its old connection is tried anew once a second.
    """
    transport: Any = client._transport
    members = transport.members

    def of(node: Any) -> list[int]:
        with contextlib.suppress(errors.NodeUnavailable):
            return [members.calls(node).remote_usage().expected_keys]
        return []

    return [eventually(partial(of, node))[0] for node in members.anybody()]


def new_bucket(client: Client, remote_bucket: RemoteBucket) -> Bucket:
    return client.create_bucket("train", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))


# -- fetched ahead


@pytest.mark.slow
def test_objects_of_the_next_steps_are_fetched_before_they_are_read(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    plan = plan_of(cold, names := filled(remote_bucket, 60))
    batches = iter(loader_of(client, plan, expect_steps=8))
    assert next(batches) == contents(plan, 0)
    # The trainer has one batch and one in flight. The window has moved by the one that it has.
    eventually(all_requested(remote_bucket, proxy, names_of(plan, *range(8))))
    assert not any(proxy.count("GET", remote_bucket.path(name)) for name in names_of(plan, *range(9, 12)))
    assert list(batches) == [contents(plan, step) for step in range(1, 12)]
    assert_fetched_once(client, cold, remote_bucket, proxy, names)


@pytest.mark.slow
def test_a_plan_over_numbers_is_sent_too(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 40)
    plan = ShufflePlan(len(names), BATCH, seed=3)
    batches = iter(BatchLoader(MapDataset(client, names, bucket=cold.name), plan, in_flight=1, expect_steps=4))
    next(batches)
    ahead = [names[at] for step in range(4) for at in plan.batch(0, step)]
    eventually(all_requested(remote_bucket, proxy, ahead))
    assert len(list(batches)) == 7
    assert_fetched_once(client, cold, remote_bucket, proxy, names)


@pytest.mark.slow
def test_a_steered_plan_is_sent_anew(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 200)
    plan = MixPlan({"a": 100, "b": 100}, {"a": 1}, batch_size=BATCH, seed=3, epoch_steps=20)
    loader = BatchLoader(MapDataset(client, names, bucket=cold.name), plan, in_flight=1, expect_steps=6)
    batches = iter(loader)
    assert next(batches) == [data_of(at) for at in plan.batch(0, 0).tolist()]
    begin = loader.steer({"b": 1}).step
    steered = plan.steered([(begin, {"b": 1})])
    ahead = [names[at] for step in range(1, 7) for at in steered.batch(0, step).tolist()]
    assert begin == 3 and any(at >= 100 for step in range(1, 7) for at in steered.batch(0, step))
    eventually(all_requested(remote_bucket, proxy, ahead))
    expected = [[data_of(at) for at in steered.batch(0, step).tolist()] for step in range(1, 20)]
    assert [next(batches) for _ in range(3)] == expected[:3]
    eventually(all_requested(remote_bucket, proxy, [names[at] for at in steered.batch(0, 9).tolist()]))
    assert list(batches) == expected[3:]


@pytest.mark.slow
def test_without_it_only_what_is_read_is_fetched(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    plan = plan_of(cold, names := filled(remote_bucket, 40))
    batches = iter(loader_of(client, plan, expect_steps=0))
    assert next(batches) == contents(plan, 0)
    assert not any(proxy.count("GET", remote_bucket.path(name)) for name in names_of(plan, *range(3, 8)))
    assert list(batches) == [contents(plan, step) for step in range(1, 8)]
    assert_fetched_once(client, cold, remote_bucket, proxy, names)


@pytest.mark.slow
def test_a_resumed_loader_announces_what_is_left(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    plan = plan_of(cold, filled(remote_bucket, 60))
    loader = loader_of(client, plan, expect_steps=4)
    loader.load_state_dict(position_state(Position(0, 5), 1, {"fingerprint": plan.fingerprint}))
    batches = iter(loader)
    assert next(batches) == contents(plan, 5)
    eventually(all_requested(remote_bucket, proxy, names_of(plan, 5, 6, 7, 8)))
    assert not any(proxy.count("GET", remote_bucket.path(name)) for name in names_of(plan, *range(5)))
    assert list(batches) == [contents(plan, step) for step in range(6, 12)]


@pytest.mark.slow
def test_two_loaders_of_one_bucket_cause_one_request_for_each_object(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 60)
    plans = [plan_of(cold, names), plan_of(cold, names[::-1])]
    with ThreadPoolExecutor(2) as pool:
        read = list(pool.map(lambda plan: list(loader_of(client, plan)), plans))
    assert read == [[contents(plan, step) for step in range(12)] for plan in plans]
    assert_fetched_once(client, cold, remote_bucket, proxy, names)


@pytest.mark.slow
def test_objects_are_fetched_in_the_order_of_need(
    tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 30)
    with serving(tmp_path, remote_prefetch_requests=1, remote_hosts=("any",)) as node, connect(node.url) as client:
        bucket = new_bucket(client, remote_bucket)
        steps = [pb.ExpectedStep(name=names[at : at + 3]) for at in range(0, 30, 3)]
        assert client._transport.expect(window(bucket.name, step=steps))
        eventually(all_requested(remote_bucket, proxy, names))
    paths = [one.path.removeprefix(f"/{remote_bucket.name}/") for one in proxy.requests]
    assert list(dict.fromkeys(paths)) == names


@pytest.mark.slow
def test_a_reader_does_not_wait_for_what_is_fetched_ahead(
    tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 30)
    with (
        serving(tmp_path, remote_max_requests=3, remote_prefetch_requests=2, **UNHEDGED) as node,
        connect(node.url) as client,
        proxy.held("GET", "*", times=2) as held,
    ):
        bucket = new_bucket(client, remote_bucket)
        assert client._transport.expect(window(bucket.name, *names))
        held.wait_for(2)
        assert [bucket.get(name) for name in names[10:20]] == [data_of(at) for at in range(10, 20)]
        assert held.waiting == 2
        held.release()
        eventually(all_requested(remote_bucket, proxy, names))
        assert [bucket.get(name) for name in names] == [data_of(at) for at in range(30)]
        assert_fetched_once(client, bucket, remote_bucket, proxy, names)


@pytest.mark.slow
@NODES
def test_requests_are_those_of_the_loader_s_tenant(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    plan = plan_of(cold, filled(remote_bucket, 20))
    with connect(client.url, options=ClusterOptions(tenant="team")) as other:
        assert list(loader_of(other, plan)) == [contents(plan, step) for step in range(4)]
    rows = [row for row in client.remote_usage() if row.bucket == cold.name]
    requests: Counter[str] = Counter()
    for row in rows:
        requests[row.tenant] += row.requests.get("get", 0) - row.hedged
    assert +requests == {"team": 20}


@pytest.mark.slow
def test_an_object_that_cannot_be_fetched_is_requested_once_ahead_and_fails_in_its_place(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    plan = plan_of(cold, names := filled(remote_bucket, 20))
    bad, gone = names_of(plan, 2)[1], names_of(plan, 3)[0]
    proxy.on("GET", remote_bucket.path(bad), Fault(status=403))
    remote_bucket.delete(gone)
    assert client._transport.expect(window(cold.name, *names_of(plan, *range(4)), lifetime_ms=600_000))
    eventually(all_requested(remote_bucket, proxy, names))
    assert_fetched_once(client, cold, remote_bucket, proxy, names)
    assert client._transport.expect(pb.ExpectRequest(loader=LOADER, done=True))
    dataset = MapDataset(
        client, (), lambda item: item.tobytes() if item.ok else item.status.name, on_error="placeholder"
    )
    wanted: list[list[Any]] = [contents(plan, step) for step in range(4)]
    wanted[2][1], wanted[3][0] = "UNAVAILABLE", "NOT_FOUND"
    assert list(BatchLoader(dataset, plan)) == wanted


# -- what is announced goes with its loader


@pytest.mark.slow
def test_a_loader_that_stops_early_leaves_nothing(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    plan = plan_of(cold, filled(remote_bucket, 60))
    for batch in loader_of(client, plan, expect_steps=8):
        assert batch == contents(plan, 0)
        eventually(all_requested(remote_bucket, proxy, names_of(plan, *range(8))))
        break
    assert not [thread for thread in threading.enumerate() if thread.name == "ais-loader plan"]
    if client.url.startswith("grpc"):
        # A node that was too busy to be told forgets the loader after its lifetime.
        eventually(lambda: not any(expected_keys(client)))
    assert not any(proxy.count("GET", remote_bucket.path(name)) for name in names_of(plan, *range(9, 12)))


_TRAINER = """
import sys
from ais_loader import BatchLoader, MapDataset, ShufflePlan
from ais_loader.training import plan_sender
plan_sender.LIFETIME_S = 2.0
url, *entries = sys.argv[1:]
for batch in BatchLoader(MapDataset(url, entries), ShufflePlan(len(entries), 5)):
    print(len(batch), flush=True)
    sys.stdin.read()
"""


@NODES
@pytest.mark.slow
def test_the_plan_of_a_killed_loader_is_forgotten(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    entries = [f"ais://{cold.name}/{name}" for name in filled(remote_bucket, 50)]
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINER, client.url, *entries], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        try:
            assert trainer.stdout is not None and trainer.stdout.readline() == "5\n"
            eventually(lambda: sum(expected_keys(client)) >= 45)
            eventually(lambda: proxy.count("GET") >= 50)  # it lives, and renews
        finally:
            os.kill(trainer.pid, signal.SIGKILL)
            trainer.wait()
    eventually(lambda: not any(expected_keys(client)))


@pytest.mark.slow
def test_a_node_that_restarts_is_told_the_plan_again(
    tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    with (
        NodeProcess(tmp_path / "drive", arguments=ANY_HOST) as node,
        connect(node.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = new_bucket(client, remote_bucket)
        plan = plan_of(bucket, names := filled(remote_bucket, 100))
        batches = iter(loader_of(client, plan, expect_steps=6))
        assert next(batches) == contents(plan, 0)
        eventually(lambda: sum(expected_keys(client)) > 0)
        node.restart()
        read = [next(batches) for _ in range(4)]
        eventually(lambda: sum(expected_keys(client)) > 0)
        read += list(batches)
        assert read == [contents(plan, step) for step in range(1, 20)]
        eventually(lambda: not any(expected_keys(client)))
    assert all_requested(remote_bucket, proxy, names)()


@pytest.mark.slow
def test_a_node_of_a_cluster_that_restarts_is_told_its_part_again(
    s3: object, tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    with (
        ClusterProcesses(tmp_path, 3, arguments=ANY_HOST) as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
        bucket = client.create_bucket("train", remote=remote, copies=2)
        plan = plan_of(bucket, names := filled(remote_bucket, 300))
        batches = iter(loader_of(client, plan, expect_steps=20))
        assert next(batches) == contents(plan, 0)
        eventually(all_requested(remote_bucket, proxy, names_of(plan, *range(20))))
        assert min(keys := expected_keys(client)) > 0 and sum(keys) <= 21 * BATCH
        cluster.kill([1])
        cluster.start([1])
        read = [next(batches) for _ in range(10)]
        eventually(lambda: min(expected_keys(client)) > 0)
        read += list(batches)
        assert read == [contents(plan, step) for step in range(1, 60)]
        # A node that could not be told forgets the loader after its lifetime.
        eventually(lambda: not any(expected_keys(client)))
        assert all_requested(remote_bucket, proxy, names)()


# -- failures do not stop the training


@pytest.mark.slow
@NODES
@pytest.mark.parametrize(
    "error", [errors.Unsupported("old"), errors.NodeUnavailable("away"), errors.Overloaded("full")]
)
def test_a_plan_that_cannot_be_sent_costs_one_warning(
    client: Client,
    cold: Bucket,
    remote_bucket: RemoteBucket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: errors.LoaderError,
) -> None:
    tries = threading.Semaphore(0)

    def refuse(_: pb.ExpectRequest) -> bool:
        tries.release()
        raise error

    monkeypatch.setattr(client._transport, "expect", refuse, raising=False)
    plan = plan_of(cold, filled(remote_bucket, 30))
    batches = iter(loader_of(client, plan, expect_steps=2))
    read = [next(batches)]
    for _ in range(1 if isinstance(error, errors.Unsupported) else 2):
        assert tries.acquire(timeout=180)
    eventually(lambda: "was not sent" in caplog.text)
    assert read + list(batches) == [contents(plan, step) for step in range(6)]
    assert caplog.text.count("was not sent") == 1 and str(error) in caplog.text


def test_nothing_is_sent_for_other_buckets(client: Client, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[pb.ExpectRequest] = []
    monkeypatch.setattr(client._transport, "expect", sent.append, raising=False)
    names = [f"en/{at:03}.bin" for at in range(20)]
    bucket.put_many([(name, data_of(at)) for at, name in enumerate(names)])
    plan = plan_of(bucket, names)
    assert list(loader_of(client, plan)) == [contents(plan, step) for step in range(4)]
    assert not sent


@pytest.mark.slow
def test_a_plan_that_fails_fails_in_its_place(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    plan = plan_of(cold, filled(remote_bucket, 30))

    class Failing:
        def steps(self, epoch: int) -> int:
            return 6

        def batch(self, epoch: int, step: int) -> Any:
            if step == 4:
                raise ArithmeticError("no step 4")
            return plan.batch(epoch, step)

    batches = iter(BatchLoader(MapDataset(client), Failing(), in_flight=1))
    assert [next(batches) for _ in range(3)] == [contents(plan, step) for step in range(3)]
    with pytest.raises(ArithmeticError, match="no step 4"):
        list(batches)


@table("expect_steps", [-1, 1001, 2.5, True, "4"])
def test_expect_steps_is_a_number(client: Client, expect_steps: Any) -> None:
    with pytest.raises((errors.InvalidRequest, TypeError), match="expect_steps"):
        loader_of(client, EntryPlan([], 5), expect_steps=expect_steps)


# -- hostile requests


@pytest.fixture
def transport(client: Client) -> Transport:
    return client._transport


@ALONE
def test_invalid_requests_are_refused(client: Client, cold: Bucket, bucket_name: str, transport: Transport) -> None:
    name = cold.name
    step = pb.ExpectedStep
    refused = [
        (window(name, *map(str, range(MAX_KEYS + 1))), f"at most {MAX_KEYS:,} of each in a message"),
        (window(name, step=[step()] * (MAX_KEYS + 1)), f"at most {MAX_KEYS:,} of each in a message"),
        (window(name, "a", loader=b"short"), "5 bytes"),
        (window(name, "a", lifetime_ms=0), "lifetime"),
        (window(name, "a", lifetime_ms=2**32 - 1), "lifetime"),
        (window(name, "a", position=2**64 - 1, first_step=1), "before position"),
        (window(name, step=[step(name=["a"], bucket_index=[1])]), "bucket_index 1 of 1"),
        (window(name, step=[step(name=["a", "b"], bucket_index=[0])]), "2 names with 1"),
        (window(name, "a", bucket=[]), "bucket_index 0 of 0"),
    ]
    for request, message in refused:
        with pytest.raises(errors.InvalidRequest, match=message):
            transport.expect(request)
    with pytest.raises(errors.BucketNotFound):
        transport.expect(window("no-such-bucket", "a"))
    plain = client.create_bucket(f"{bucket_name}-plain")
    with pytest.raises(errors.InvalidRequest, match="remote"):
        transport.expect(window(plain.name, "a"))
    client.delete_bucket(plain.name)
    with pytest.raises(ValueError, match="range"):
        window(name, "a", position=-1)
    for far in (0, 2**63, 2**64 - 1):
        assert transport.expect(window(name, position=far, first_step=far))
    assert transport.expect(pb.ExpectRequest(loader=LOADER, done=True))


@pytest.mark.slow
@ALONE
def test_a_window_that_is_too_large_is_refused(cold: Bucket, transport: Transport) -> None:
    full = [pb.ExpectedStep()] * MAX_KEYS
    for first in range(0, MAX_WINDOW_KEYS, MAX_KEYS):
        assert transport.expect(window(cold.name, step=full, first_step=first))
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest, match=f"at most {MAX_WINDOW_KEYS:,} of each"):
            transport.expect(window(cold.name, step=full[:1], first_step=MAX_WINDOW_KEYS))
    assert transport.expect(window(cold.name, step=full[:1], position=1, first_step=MAX_WINDOW_KEYS))
    assert transport.expect(pb.ExpectRequest(loader=LOADER, done=True))


@ALONE
def test_names_that_no_object_can_have_are_ignored(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, transport: Transport
) -> None:
    (good,) = filled(remote_bucket, 1)
    for name in ("x" * 10_000, "", "a//b", "/", "..", "a\0b", "é" * 5000):
        assert transport.expect(window(cold.name, name, good, name))
        assert transport.expect(pb.ExpectRequest(loader=LOADER, done=True))
    assert transport.expect(window(cold.name, "x" * 10_000, good))
    eventually(all_requested(remote_bucket, proxy, [good]))
    assert transport.expect(pb.ExpectRequest(loader=LOADER, done=True))
    assert cold.get(good) == data_of(0)
    assert_fetched_once(client, cold, remote_bucket, proxy, [good])
