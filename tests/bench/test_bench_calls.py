"""Every workload against a store, in this process; what is wrong in the store is counted."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect
from ais_loader.bench.calls import WRONG_BYTES, Calls, connected, numbers
from ais_loader.bench.crew import prepare
from ais_loader.bench.filling import forget_written, remove
from ais_loader.bench.machine import Nodes, make_cold
from ais_loader.bench.plan import READING, WORKLOADS, BenchPlan
from ais_loader.bench.tally import BenchTally
from ais_loader.bench.worker import measure
from ais_loader.errors import InvalidRequest
from ais_loader.testing import NodeProcess

SMALL: dict[str, Any] = {
    "size": "100..3000",
    "objects": 30,
    "members": 8,
    "range_bytes": 64,
    "batch": 7,
    "epochs": 1,
    "verify": True,
}


def called(plan: BenchPlan) -> BenchTally:
    with connected(plan) as client:
        tally = BenchTally()
        measure(Calls(plan, client, 0).run, numbers(plan, 0, plan.epochs), threading.Event(), tally)
    return tally


def prepared(plan: BenchPlan) -> None:
    with connect(plan.url) as client:
        prepare(client, plan)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_asks_for_every_object_once(workload: str, url: str, bucket_name: str) -> None:
    plan = BenchPlan(workload=workload, url=url, bucket=bucket_name, **SMALL)
    prepared(plan)
    tally = called(plan)
    assert not tally.errors
    assert tally.objects == 30 * (30 if workload == "list" else 1)
    sizes = [plan.sizes.of(number) for number in range(30)]
    wanted = {"list": 0, "ranges": 64 * 30}.get(workload, sum(sizes))
    assert tally.size_bytes == wanted
    assert tally.calls == (30 if workload in ("get", "put", "mixed", "list") else 5)


def test_other_bytes_and_missing_objects_are_errors_by_kind(embedded_path: Path, bucket_name: str) -> None:
    plan = BenchPlan(workload="get-batch", url=str(embedded_path), bucket=bucket_name, **SMALL)
    prepared(plan)
    with connect(plan.url) as client:
        bucket = client.bucket(bucket_name)
        bucket.put(plan.name(3), b"x" * plan.sizes.of(3))
        bucket.delete(plan.name(4))
    assert called(plan).errors == {WRONG_BYTES: 1, "object-not-found": 1}


def test_a_fill_is_made_once_and_what_was_put_goes_again(embedded_path: Path, bucket_name: str) -> None:
    reads, writes = (
        BenchPlan(workload=workload, url=str(embedded_path), bucket=bucket_name, **SMALL) for workload in ("get", "put")
    )
    with connect(embedded_path) as client:
        assert prepare(client, reads)
        assert not prepare(client, reads)
        before = sorted(client.bucket(bucket_name))
    called(writes)
    with connect(embedded_path) as client:
        assert len(list(client.bucket(bucket_name))) == len(before) + 30
        forget_written(client.bucket(bucket_name))
        assert sorted(client.bucket(bucket_name)) == before
        assert remove(client, bucket_name) == len(before)
        assert remove(client, bucket_name) == 0


def test_a_bucket_of_somebody_else_is_left_alone(embedded_path: Path, bucket_name: str) -> None:
    with connect(embedded_path) as client:
        client.create_bucket(bucket_name).put("mine", b"data")
        plan = BenchPlan(workload="get", url=str(embedded_path), bucket=bucket_name, **SMALL)
        with pytest.raises(InvalidRequest, match="not made by"):
            prepare(client, plan)
        with pytest.raises(InvalidRequest, match="not made by"):
            remove(client, bucket_name)
        assert list(client.bucket(bucket_name)) == ["mine"]


@pytest.mark.parametrize("workload", READING)
def test_a_time_that_is_over_ends_what_has_no_end(workload: str, embedded_path: Path, bucket_name: str) -> None:
    plan = BenchPlan(workload=workload, url=str(embedded_path), bucket=bucket_name, **SMALL | {"epochs": 0})
    prepared(plan)
    with connected(plan) as client:
        tally = BenchTally()
        measure(Calls(plan, client, 0).run, numbers(plan, 0, 0), threading.Event(), tally, time.monotonic())
    assert tally.calls == 1


def test_nodes_of_this_machine_are_seen_and_others_named(node: NodeProcess) -> None:
    with connect(node.url) as client:
        nodes = Nodes(client.describe())
        cpu_s, peak_bytes = nodes.cpu_s(), nodes.peak_bytes()
    assert cpu_s is not None
    assert cpu_s > 0
    assert peak_bytes is not None
    assert peak_bytes > 1 << 20
    away = Nodes({"nodes": [{"url": "grpc://192.0.2.1:7480", "pid": 1}]})
    assert away.cpu_s() is None
    assert away.unseen == ["grpc://192.0.2.1:7480"]


def test_cold_says_what_was_done_and_what_could_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    drives = {"drives": [{"path": str(tmp_path)}, {"path": "/nowhere/on/this/machine"}]}
    dropped = make_cold(drives, drop=tmp_path / "drop")
    assert "dropped this machine's page cache" in dropped
    assert (tmp_path / "drop").read_text() == "1"
    advised = make_cold(drives, drop=tmp_path / "no" / "drop")
    assert "advised the kernel to forget 2 files" in advised
    assert "not on this machine: /nowhere" in advised
    assert make_cold({}).startswith("not cold")
