"""The cause that a loader waits for: measured on real nodes with one thing slow, told in a sentence, and exported."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import prometheus_client
import pytest

from ais_loader import BatchLoader, BatchMetrics, MapDataset, ShufflePlan, connect
from ais_loader.loading.records import CAUSES, BatchRecord, Summary, cause_of, explained
from ais_loader.testing import eventually, throwaway_store
from ais_loader.testing.node import NodeProcess
from ais_loader.wire.frame import encode_prefix, without_end
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import MergedWaits, NodeWaits
from benchmarks.training import who_waits
from storage_node.remote.cold_entries import ColdEntries
from tests.remote.backend_kit import Reply, content
from tests.table import table


@table(
    "cause, times",
    [
        ("trainer", {"wait_s": 0.1, "trainer_s": 9, "wire_s": 5}),
        ("draw", {"draw_s": 2, "wire_s": 3}),
        ("network", {"wire_s": 5, "drive_s": 1}),
        ("drive", {"wire_s": 5, "drive_s": 4}),
        ("drive", {"wire_s": 2, "drive_s": 4, "cloud_s": 3}),  # told of more than was waited for
        ("queue", {"queue_s": 5, "wire_s": 1, "retries": 1}),
        ("network", {"queue_s": 5, "wire_s": 1}),
        ("queue", {"wire_s": 5, "node_queue_s": 4}),
        ("peer", {"wire_s": 5, "peer_s": 4}),
        ("cloud", {"wire_s": 5, "cloud_s": 4}),
        ("throttle", {"wire_s": 5, "throttle_s": 4}),
        ("decode", {"decode_s": 5, "starved_s": 1}),
        ("collate", {"collate_s": 5}),
        ("processor", {"decode_s": 5, "starved_s": 4}),
        ("transfer", {"transfer_s": 5}),
    ],
)
def test_the_cause_of_a_summary(cause: str, times: dict[str, float]) -> None:
    summary = Summary(workers=2, batches=3, **{"wait_s": 5.0, **times})  # type: ignore[arg-type]
    assert cause_of(summary) == cause
    assert cause in CAUSES
    assert explained(summary).startswith(f"{cause}: the trainer waited ")


def test_a_loader_explains_itself_also_before_its_first_batch() -> None:
    with throwaway_store({str(at): b"data" for at in range(8)}, bucket="b") as client:
        loader = BatchLoader(MapDataset(client, "ais://b/"), ShufflePlan(8, 4))
        assert loader.explain() == "no batch has been received yet"
        assert len(list(loader)) == 2
        assert loader.explain().partition(":")[0] in CAUSES


def test_the_batches_of_a_rank_are_exported() -> None:
    registry, records = prometheus_client.CollectorRegistry(), list[BatchRecord]()
    metrics = BatchMetrics(rank=3, registry=registry)

    def note(record: BatchRecord) -> None:
        records.append(record)
        metrics(record)

    with throwaway_store({str(at): b"data" for at in range(8)}, bucket="b") as client:
        list(BatchLoader(MapDataset(client, "ais://b/"), ShufflePlan(8, 4), on_batch=note))
    assert registry.get_sample_value("ais_loader_trainer_bytes_total", {"rank": "3"}) == 32
    for stage, field in (("wait", "wait_s"), ("drive", "drive_s"), ("processor", "starved_s")):
        labels = {"rank": "3", "stage": stage}
        expected = sum(getattr(record, field) for record in records)
        assert registry.get_sample_value("ais_loader_trainer_seconds_total", labels) == pytest.approx(expected)
    exemplars = re.findall(r'# \{request_id="([0-9a-f]{16})"\}', _open_metrics(registry))
    assert set(exemplars) <= {record.request_id for record in records}
    assert exemplars


def _open_metrics(registry: prometheus_client.CollectorRegistry) -> str:
    from prometheus_client.openmetrics.exposition import generate_latest

    return str(generate_latest(registry).decode())


def test_the_waits_of_the_node_that_was_waited_for_count() -> None:
    merged, waits = MergedWaits(), NodeWaits()
    merged.waited("fast", 1.0)
    merged.waited("slow", 5.0)
    merged.ended("fast", pb.End(waits=pb.NodeWaits(cloud_us=900_000)))
    merged.ended("slow", pb.End(waits=pb.NodeWaits(drive_us=3_000_000, queue_us=500_000)))
    merged.add_to(waits)
    assert waits.node == "slow"
    assert waits.spent_s == {"queue": 0.5, "drive": 3.0, "peer": 1.5, "cloud": 0.0, "throttle": 0.0}


@table("throttled, backs_off, cause", [(0, False, "cloud"), (1, False, "throttle"), (0, True, "throttle")])
def test_a_wait_for_remote_storage_is_its_throttling_also_if_that_began_before(
    throttled: int, backs_off: bool, cause: str
) -> None:
    backends = SimpleNamespace(throttled=7, are_backing_off=backs_off)
    cold = ColdEntries(cast("Any", None), {}, cast("Any", SimpleNamespace(backends=backends)), begin=pytest.fail)
    backends.throttled += throttled
    with cold.waiting(waits := NodeWaits()):
        pass
    assert waits.spent_s[cause] > 0 == sum(waits.spent_s.values()) - waits.spent_s[cause]


def test_end_is_taken_out_of_an_encoded_message() -> None:
    end = pb.End(entries=1, digest=7, waits=pb.NodeWaits(drive_us=5000))
    one = np.ones(1, np.uint32)
    flags = np.zeros(1, np.uint8)
    columns: Any = {"index": one, "size": one, "checksum": one, "status": flags, "checksum_kind": flags}
    columns["payload_bytes"] = 1
    assert without_end(encode_prefix(300, **columns, end=end)[0]) == encode_prefix(300, **columns)[0]


def throttle_at_first(folder: Path) -> AbstractContextManager[BatchLoader]:
    """Loader over remote storage that refuses a few requests, but not so many that readers give up. Nothing is fetched
    ahead, which might be refused before a batch waits."""
    slow_down = Reply(503, b"<Error><Code>SlowDown</Code></Error>")
    return who_waits.remote_loader(
        folder, lambda asked: slow_down if asked.number < 4 else content(asked, who_waits.DATA), expect_steps=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "field", "least_s"),
    [
        (who_waits.drive, "drive_s", 0.5 * 48 * 0.003),
        (who_waits.cloud, "cloud_s", 0.02),
        (throttle_at_first, "throttle_s", 0.04),
        (who_waits.queue, "queue_s", 0.01),
    ],
)
def test_a_cause_on_a_node_is_measured(
    cause: Any, field: str, least_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(who_waits, "SAMPLES", 48)
    measured = list[float]()
    for number in range(5):  # on a busy machine, other things may take the time in which a wait would count
        with ExitStack() as stack:
            (folder := tmp_path / f"{number}").mkdir()
            loader = stack.enter_context(cause(folder))
            ids = list[str]()
            loader._on_batch = lambda record, ids=ids: ids.append(record.request_id)
            assert len(list(stack.enter_context(loader))) == who_waits.SAMPLES // who_waits.BATCH
            assert loader.summary().slowest in ids
            assert all(re.fullmatch("[0-9a-f]{16}", one) for one in ids)
            measured.append(getattr(loader.summary(), field))
        if measured[-1] >= least_s:
            return
    raise AssertionError(measured)


@pytest.mark.slow
def test_a_slow_batch_is_in_the_log_of_its_node(tmp_path: Path) -> None:
    environment = who_waits.slow_reads(tmp_path, tmp_path / "store")
    arguments = ["--set", "slow_batch_s=0.03"]
    with (
        NodeProcess(tmp_path / "store", environment=environment, arguments=arguments) as node,
        connect(node.url) as client,
    ):
        entries = who_waits.filled(client)
        with client.get_batch(entries[:32]) as batch:
            assert batch.tobytes() == [who_waits.DATA] * 32
        timing = batch.timing
        # A frame may wait for its turn while the one before it is being sent.
        assert timing.drive_s + timing.node_queue_s >= 32 * 0.003
        told = rf"slow batch '{timing.request_id}' of bucket 'data': 32 entries took.*it waited for .*drive \d"
        eventually(lambda: re.search(told, node.log()))
