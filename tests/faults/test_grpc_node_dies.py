"""Nodes that are down, die, come back, freeze or are cut off: batches resume to the byte, or end in time saying why."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from ais_loader import Bucket, Client, ClusterOptions, Item, ObjectInfo, connect, errors
from ais_loader.testing import NodeProcess, SeededObjects, eventually, seeded_bytes, throwaway_folder
from tests.faulty_link import FaultyLink
from tests.node.node_kit import kept_port
from tests.patience import PATIENT_CLIENT

MiB = 1 << 20
SMALL = SeededObjects({f"s/{at:04d}": (60_000 + at, at) for at in range(400)})


@cache
def large() -> bytes:
    return seeded_bytes(64 * MiB, seed=77)


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    """Killed, frozen and restarted by every test here; each leaves it running."""
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        with connect(node.url, options=PATIENT_CLIENT) as client:
            bucket = client.create_bucket("b")
            bucket.put_many(SMALL.items())
            bucket.put("large", large())
        yield node


@pytest.fixture
def link(node: NodeProcess) -> Iterator[FaultyLink]:
    with FaultyLink(node.url) as link:
        yield link


@pytest.fixture
def bucket(node: NodeProcess) -> Iterator[Bucket]:
    with connect(node.url, options=PATIENT_CLIENT) as client:
        yield client.bucket("b")


# -- down from the start


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.buckets(),
        lambda client: client.create_bucket("x"),
        lambda client: client.delete_bucket("x"),
        lambda client: client.describe(),
        lambda client: client.bucket("b").put("a", b"1"),
        lambda client: client.bucket("b").put("a", bytes(5 * MiB)),
        lambda client: client.bucket("b").put_many([("a", b"1")]),
        lambda client: client.bucket("b").get("a"),
        lambda client: client.bucket("b").get("a", start=5),
        lambda client: client.bucket("b").head("a"),
        lambda client: client.bucket("b").delete("a"),
        lambda client: list(client.bucket("b").objects()),
        lambda client: list(client.bucket("b").get_batch(["a"])),
        lambda client: client.bucket("b").get_batch(["a"]).packed(),
    ],
)
@pytest.mark.sampled(7)
def test_a_node_that_is_down_is_named_within_the_time_for_retries(call: Callable[[Client], object]) -> None:
    with (
        kept_port() as port,
        connect(f"grpc://127.0.0.1:{port}", options=ClusterOptions(retry_s=0.3)) as client,
        pytest.raises(errors.NodeUnavailable) as caught,
    ):
        call(client)
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert caught.value.retryable


@pytest.mark.slow
def test_a_name_that_does_not_resolve_is_unavailable_too() -> None:
    with (
        connect("grpc://no-such-host.invalid:7480", options=ClusterOptions(retry_s=0.3)) as client,
        pytest.raises(errors.NodeUnavailable) as caught,
    ):
        list(client.bucket("b").get_batch(["a"]))
    assert "no-such-host.invalid" in str(caught.value)


@pytest.mark.slow
def test_a_client_made_before_its_node_works_once_the_node_is_there(node: NodeProcess) -> None:
    with connect(node.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(2) as pool:
        node.kill()
        making = pool.submit(client.create_bucket, "other", exist_ok=True)
        reading = pool.submit(lambda: list(client.bucket("nope").get_batch(["a"], on_error="placeholder")))
        node.start()
        making.result(timeout=180).put("a", b"1")
        assert [item.status.name for item in reading.result(timeout=180)] == ["NOT_FOUND"]


@pytest.mark.slow
def test_the_next_endpoint_is_tried_when_one_is_down(node: NodeProcess) -> None:
    names = list(SMALL)[:20]
    with kept_port() as port:
        dead = f"grpc://127.0.0.1:{port}"
        for url in (f"{dead},{node.url}", f"{node.url},{dead}", f"{dead},{dead},{node.url}"):
            with connect(url, options=PATIENT_CLIENT) as client:
                assert client.bucket("b").get_batch(names).tobytes() == [SMALL[name] for name in names]
            with connect(url, options=PATIENT_CLIENT) as client:
                assert client.bucket("b").get(names[0]) == SMALL[names[0]]
            with connect(url, options=PATIENT_CLIENT) as client:
                assert client.bucket("b").head(names[0]).size_bytes == len(SMALL[names[0]])


@pytest.mark.slow
def test_a_batch_goes_on_at_the_next_endpoint_when_its_own_is_cut(node: NodeProcess, link: FaultyLink) -> None:
    with connect(f"{link.url},{node.url}", options=PATIENT_CLIENT) as client:
        batch = client.bucket("b").get_batch([*SMALL, "large"])
        received = list(itertools.islice(batch, 30))
        link.refuse()
        received += list(batch)
        assert [item.tobytes() for item in received] == [*SMALL.values(), large()]


# -- killed in the middle


def check(items: list[Item], names: list[str]) -> None:
    assert [item.index for item in items] == list(range(len(names)))
    for item, name in zip(items, names, strict=True):
        assert item.tobytes() == (large() if name == "large" else SMALL[name]), name


@pytest.mark.parametrize("received_before", [0, 150, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 399))])
def test_a_batch_resumes_where_it_was_when_its_node_is_killed_and_restarted(
    node: NodeProcess, bucket: Bucket, received_before: int
) -> None:
    names = list(SMALL)
    batch = bucket.get_batch(names)
    items = list(itertools.islice(batch, received_before))
    node.restart()
    check(items + list(batch), names)


@pytest.mark.slow
def test_a_large_entry_resumes_in_its_middle_when_its_node_is_killed(node: NodeProcess, link: FaultyLink) -> None:
    names = ["s/0000", "large", "s/0001"]
    with (
        connect(link.url, options=ClusterOptions(retry_s=240.0, verify_payload=True)) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        link.bytes_per_s = 40e6
        batch = client.bucket("b").get_batch(names)
        items = [next(batch)]
        reading = pool.submit(lambda: list(batch))
        eventually(lambda: link.bytes_to_client > 24 * MiB)
        node.kill()
        link.bytes_per_s = None
        passed = link.bytes_to_client
        node.start()
        check(items + reading.result(timeout=180), names)
        # What had arrived was not sent again: one window of frames, at most, was lost on the way.
        assert link.bytes_to_client - passed < len(large()) - 24 * MiB + 12 * MiB


@pytest.mark.slow
@pytest.mark.parametrize("change", ["replaced", "deleted"])
@pytest.mark.parametrize("call", ["batch", "get", "read"])
def test_a_large_entry_that_is_replaced_while_its_node_is_away_is_not_said_to_be_missing(
    link: FaultyLink, bucket: Bucket, call: str, change: str
) -> None:
    bucket.put("changing", large())
    with connect(link.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(1) as pool:
        mine = client.bucket("b")

        def read() -> Any:
            if call == "batch":
                items = mine.get_batch(["changing", "s/0001"], on_error="placeholder")
                return [item.error or item.tobytes() for item in items]
            if call == "get":
                return mine.get("changing")
            with mine.open("changing") as file:  # of the version that was opened
                return file.read()

        link.bytes_per_s = 10e6  # seconds for what is left when the link refuses
        passed = link.bytes_to_client
        reading = pool.submit(read)
        eventually(lambda: link.bytes_to_client > passed + 8 * MiB)
        link.refuse()
        bucket.delete("changing")
        if change == "replaced":
            bucket.put("changing", b"another")
        link.bytes_per_s = None
        link.accept()
        if change == "replaced" and call != "read":
            whole = [b"another", SMALL["s/0001"]]
            assert reading.result(timeout=180) == (whole if call == "batch" else whole[0])
            return
        if call == "batch":
            error, next_one = reading.result(timeout=180)
            assert next_one == SMALL["s/0001"]
        else:
            with pytest.raises(errors.LoaderError) as caught:
                reading.result(timeout=180)
            error = caught.value
        # A batch is only told that its node was lost: whoever asks again learns that there is nothing.
        expected = errors.ObjectReplaced if change == "replaced" else errors.ObjectNotFound
        assert type(error) is (errors.NodeUnavailable if call == "batch" else expected), error


@pytest.mark.slow
def test_batches_survive_a_node_that_is_killed_again_and_again(node: NodeProcess) -> None:
    names = [*SMALL, "large"] * 2
    with connect(node.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(4) as pool:
        running = [pool.submit(lambda: list(client.bucket("b").get_batch(names))) for _ in range(3)]
        for _ in range(3):
            node.restart()
        for done in running:
            check(done.result(timeout=180), names)


@pytest.mark.slow
def test_a_node_that_never_comes_back_ends_a_batch_in_time_and_items_stay_valid(node: NodeProcess) -> None:
    with connect(node.url, options=ClusterOptions(retry_s=0.5)) as client:
        names = [*SMALL, "large", *SMALL]
        batch = client.bucket("b").get_batch(names)
        items = list(itertools.islice(batch, 10))
        node.kill()
        with pytest.raises(errors.NodeUnavailable, match=rf"127\.0\.0\.1:{node.port}.*gave up after"):
            items.extend(batch)
        check(items, names[: len(items)])
        assert len(items) < len(names)
        node.start()

        def is_read() -> bool:
            with contextlib.suppress(errors.NodeUnavailable):  # it is asked only for a moment
                return client.bucket("b").get("s/0003") == SMALL["s/0003"]
            return False

        eventually(is_read)


@pytest.mark.slow
def test_single_reads_and_writes_wait_for_a_node_that_restarts(node: NodeProcess, bucket: Bucket) -> None:
    bucket.get("s/0000")  # connected
    calls = {
        "get": lambda: bucket.get("s/0001") == SMALL["s/0001"],
        "get a range": lambda: bucket.get("large", start=5, length=10) == large()[5:15],
        "head": lambda: bucket.head("s/0002").size_bytes == len(SMALL["s/0002"]),
        "put": lambda: bucket.put("put-meanwhile", b"1").size_bytes == 1,
        "list": lambda: len(list(bucket.objects("s/"))) == len(SMALL),
    }
    node.kill()
    with ThreadPoolExecutor(len(calls)) as pool:
        running = {name: pool.submit(call) for name, call in calls.items()}
        node.start()
        assert {name: done.result(timeout=180) for name, done in running.items()} == dict.fromkeys(calls, True)
    bucket.delete("put-meanwhile")


@pytest.mark.slow
def test_a_node_that_stops_in_order_is_resumed_after_too(node: NodeProcess, bucket: Bucket) -> None:
    names = [*SMALL, "large"]
    batch = bucket.get_batch(names)
    items = list(itertools.islice(batch, 5))
    node.stop()
    node.start()
    check(items + list(batch), names)


# -- frozen


@pytest.mark.slow
def test_a_frozen_node_is_silence_and_all_is_well_when_it_thaws(node: NodeProcess, bucket: Bucket) -> None:
    names = [*SMALL, "large", "large"]
    batch = bucket.get_batch(names, timeout_s=12.0)
    patient = bucket.get_batch(names, timeout_s=180.0)
    items = [next(batch)]
    node.pause()
    try:
        with pytest.raises(errors.SilenceTimeout, match=r"nothing arrived for 12 s, after \d+ of 402 entries"):
            items.extend(batch)
        with pytest.raises(errors.SilenceTimeout):
            bucket.get("s/0009", timeout_s=2.0)
    finally:
        node.resume()
    check(items, names[: len(items)])
    check(list(patient), names)
    assert bucket.get("s/0009") == SMALL["s/0009"]
    check(list(bucket.get_batch(["s/0005"])), ["s/0005"])


# -- cut off


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "after_bytes",
    [
        *(1, 100, 70_001, 5 * MiB + 12_345),
        *(pytest.param(at, marks=pytest.mark.slow) for at in (9, MiB, MiB + 1, 30 * MiB)),
    ],
)
def test_a_connection_cut_anywhere_in_a_frame_is_taken_up_again(link: FaultyLink, after_bytes: int) -> None:
    names = ["s/0001", "large", *list(SMALL)[:50]]
    with connect(link.url, options=ClusterOptions(retry_s=240.0, verify_payload=True)) as client:
        client.bucket("b").get("s/0000")
        link.cut_after(after_bytes)
        check(list(client.bucket("b").get_batch(names)), names)
        assert link.connections_made >= 2


@pytest.mark.slow
def test_a_link_that_is_cut_every_few_megabytes_still_delivers_everything(link: FaultyLink) -> None:
    names = ["large", *SMALL, "large"]
    link.cut_every(7 * MiB)
    with connect(link.url, options=PATIENT_CLIENT) as client:
        check(list(client.bucket("b").get_batch(names)), names)
    assert link.connections_made >= 5


@pytest.mark.slow
def test_a_batch_left_unread_for_longer_than_retries_last_still_survives_a_cut(link: FaultyLink) -> None:
    names = [*list(SMALL), "large"]
    retry_s = 12.0  # longer than a node stands still
    with connect(link.url, options=ClusterOptions(retry_s=retry_s)) as client:
        client.bucket("b").head("large")
        link.stall()
        batch = client.bucket("b").get_batch(names)
        time.sleep(retry_s + 0.1)  # the trainer's time, in which nobody looks at the batch
        link.cut()
        link.flow()
        check(list(batch), names)
        assert link.connections_made >= 2


@pytest.mark.slow
def test_a_silent_link_is_a_timeout_and_not_a_hang(link: FaultyLink) -> None:
    with connect(link.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("b")
        batch = bucket.get_batch([*SMALL, "large"], timeout_s=12.0)
        next(batch)
        link.stall()
        with pytest.raises(errors.SilenceTimeout):
            list(batch)
        link.flow()
        check(list(bucket.get_batch(list(SMALL))), list(SMALL))


@pytest.mark.slow
def test_a_slow_link_is_no_fault(link: FaultyLink) -> None:
    link.latency_s, link.bytes_per_s = 0.03, 20e6
    names = list(SMALL)[:40]
    with connect(link.url) as client:
        check(list(client.bucket("b").get_batch(names, timeout_s=180.0)), names)


@pytest.mark.slow
def test_a_large_put_survives_a_cut_and_is_whole(link: FaultyLink, bucket: Bucket) -> None:
    with connect(link.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(1) as pool:
        link.bytes_per_s = 60e6
        putting = pool.submit(client.bucket("b").put, "put/large", large())
        eventually(lambda: link.bytes_to_node > 16 * MiB)
        link.cut()
        link.bytes_per_s = None
        assert putting.result(timeout=180).size_bytes == len(large())
    assert bucket.get("put/large") == large()
    bucket.delete("put/large")


# -- put_many


@pytest.mark.slow
@pytest.mark.parametrize("count, size_bytes", [(6000, 4000), (120, 300_000)])
def test_put_many_over_a_node_that_is_killed_acknowledges_each_object_once_and_loses_none(
    node: NodeProcess, count: int, size_bytes: int
) -> None:
    objects = {f"p/{size_bytes}/{at:05d}": seeded_bytes(size_bytes + at % 100, seed=at) for at in range(count)}
    kills = iter((count // 6, count // 12 * 5, count // 3 * 2))
    kill_at = next(kills)
    acknowledged: list[ObjectInfo] = []
    with connect(node.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("b")
        for info in bucket.iter_put_many(objects.items()):
            acknowledged.append(info)
            if len(acknowledged) == kill_at:
                node.restart()
                kill_at = next(kills, -1)
        assert [info.name for info in acknowledged] == list(objects)
        assert bucket.get_batch(list(objects)).tobytes() == list(objects.values())
        assert [info.name for info in bucket.objects(f"p/{size_bytes}/")] == list(objects)
        for info in acknowledged[:: count // 12]:
            assert bucket.head(info.name).version == info.version


@pytest.mark.slow
@pytest.mark.parametrize("kill_at, size_bytes", [(1500, 3000), (50, 300_000)])
def test_what_put_many_acknowledged_before_the_end_is_there(node: NodeProcess, kill_at: int, size_bytes: int) -> None:
    data = b"x" * size_bytes
    acknowledged: list[str] = []
    with connect(node.url, options=ClusterOptions(retry_s=0.3)) as client:
        putting = client.bucket("b").iter_put_many((f"q/{size_bytes}/{at:05d}", data) for at in itertools.count())
        with pytest.raises(errors.NodeUnavailable):
            for info in putting:
                acknowledged.append(info.name)
                if len(acknowledged) == kill_at:
                    node.kill()
        node.start()
    assert len(acknowledged) >= kill_at
    with connect(node.url, options=PATIENT_CLIENT) as client:
        assert client.bucket("b").get_batch(acknowledged).tobytes() == [data] * len(acknowledged)
