"""What a node tells Prometheus: exact numbers, and nothing in the dashboard or the documentation that is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import storage_node
from ais_loader import ClusterOptions, Command, Entry, Stage, connect, errors
from ais_loader.errors import InvalidRequest
from ais_loader.testing import eventually
from ais_loader.wire import block_device
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2, ais_cluster_pb2_grpc
from ais_loader.wire.remote import Remote
from scripts.write_reference import metrics_table
from storage_node.limits.counters import BOUNDS_S, BatchTally, Histogram, NodeCounters
from storage_node.metrics import exporter
from storage_node.metrics.declarations import METRICS
from storage_node.metrics.exporter import MAX_CONNECTIONS
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.node.node_kit import RawSession, batch_of, bucket_of, scrape, serving
from tests.node.promql_kit import Series, check, exported, legend_labels
from tests.peer_kit import operator_of
from tests.security.rights_kit import secure
from tests.table import table

PROCESS = {
    "ais_loader_process_virtual_memory_bytes": "Virtual memory of the node's process.",
    "ais_loader_process_resident_memory_bytes": "Resident memory of the node's process.",
    "ais_loader_process_start_time_seconds": "When the node's process started, in seconds since 1970.",
    "ais_loader_process_cpu_seconds_total": "CPU time of the node's process.",
    "ais_loader_process_open_fds": "Open file descriptors.",
    "ais_loader_process_max_fds": "Maximum number of open file descriptors.",
}
"""Metrics of prometheus-client's own collector, on Linux."""

ROOT = Path(storage_node.__file__).parent
DASHBOARD: dict[str, Any] = json.loads((ROOT / "dashboards" / "node.json").read_text())
SIZE_BYTES = 10_000
NAMES = [f"{at:02d}" for at in range(20)]
TIMEOUT_S = 180.0


def value(node: NodeServer, name: str, **labels: str) -> float:
    """One sample. Raises AssertionError when it is not there."""
    for family in text_string_to_metric_families(scrape(node)):
        for sample in family.samples:
            if sample.name == f"ais_loader_{name}" and sample.labels.items() >= labels.items():
                return float(sample.value)
    raise AssertionError(f"no {name} with {labels}")


def batches(node: NodeServer, kind: str, outcome: str) -> float:
    return value(node, "batches_total", kind=kind, outcome=outcome)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    with serving(tmp_path, metrics_port=0, max_buffered_bytes=30 * SIZE_BYTES) as running:
        with bucket_of(running) as bucket:
            bucket.put_many((name, bytes(SIZE_BYTES)) for name in NAMES)
        yield running


def devices_in(folder: Path, place: Path) -> Path:
    """What the kernel shows of the block device of `place`, which may have none, as on tmpfs."""
    device = place.stat().st_dev
    (counts := folder / f"{os.major(device)}:{os.minor(device)}").mkdir()
    (counts / "stat").write_text(" 4 0 100 250  7 0 300 500  0 1500 750  0 0 0 0  0 0\n")
    return folder


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Series]:
    """All that a node exports after traffic of every kind, in a cluster of its own."""
    place = tmp_path_factory.mktemp("place")
    (place / "a").write_bytes(b"cold")
    fields = {"metrics_port": 0, "etl_code": True, "remote_file_roots": (str(place),)}
    devices = devices_in(tmp_path_factory.mktemp("devices"), place)
    with patch.object(block_device, "DEVICES", devices), serving(tmp_path_factory.mktemp("node"), **fields) as running:
        with bucket_of(running) as bucket:
            assert bucket.client.create_bucket("remote", remote=f"file://{place}").get("a") == b"cold"
            bucket.client.etl.init("same", Command(["cat"]))
            bucket.put_many((name, bytes(SIZE_BYTES)) for name in NAMES)
            bucket.get_batch(NAMES).tobytes()
            bucket.get_batch([NAMES[0], "missing"], on_error="placeholder").tobytes()
            bucket.get(NAMES[0], etl="same")
            with pytest.raises(errors.ObjectNotFound):
                bucket.get_batch([NAMES[0], "missing"]).tobytes()
            bucket.get(NAMES[0])
            bucket.delete(NAMES[1])
            assert len(list(bucket.objects())) == len(NAMES) - 1
            with pytest.raises(errors.ObjectNotFound):
                bucket.head("missing")
        found = exported(scrape(running))  # transforms are gone with the map's buckets
        join_cluster(running, version=1)
        eventually(lambda: "ais_loader_remote_cached_bytes" in exported(scrape(running)))
        found = {**found, **exported(scrape(running))}
    identity = IdentityFolder(tmp_path_factory.mktemp("identity"))
    identity.make()
    config = ServerConfig(port=0, metrics_port=0)
    with NodeServer([tmp_path_factory.mktemp("secure")], config, identity=identity.path) as encrypted:
        found = {**exported(scrape(encrypted)), **found}
    with secure(tmp_path_factory.mktemp("tokens"), metrics_port=0) as asking:
        with connect(asking.url, token=asking.token("*:list")) as client:
            assert client.buckets() == []
        eventually(lambda: "ais_loader_token_expiry_timestamp_seconds" in exported(scrape(asking.server)))
        return {**exported(scrape(asking.server)), **found}


def join_cluster(node: NodeServer, version: int) -> None:
    """Teach the node a map of which it is the only member."""
    with operator_of(node) as channel:
        stub = ais_cluster_pb2_grpc.ClusterStub(channel)
        uuid = stub.GetMap(ais_cluster_pb2.GetMapRequest(), timeout=TIMEOUT_S).node_uuid
        map_ = ais_cluster_pb2.ClusterMap(cluster_uuid=b"c" * 16, version=version)
        endpoint = node.url.removeprefix("grpc://")
        peer_endpoint = node.peer_endpoint
        map_.node.add(uuid=uuid, host="h", endpoint=endpoint, peer_endpoint=peer_endpoint, weight=1.0, number=1)
        remote = Remote("s3://corpus", cache_bytes=1, write="back").to_wire()
        map_.bucket.add(name="of-the-map", uuid=b"b" * 16, copies=1, min_copies=1, remote=remote)
        stub.Learn(ais_cluster_pb2.LearnRequest(map=map_), timeout=TIMEOUT_S)


# -- connections


@pytest.mark.slow
def test_idle_connections_take_few_threads_and_end(node: NodeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.metrics_port is not None
    monkeypatch.setattr(exporter._MetricsHandler, "timeout", TIMEOUT_S)
    before = threading.active_count()
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", node.metrics_port), timeout=TIMEOUT_S))
            for _ in range(100)
        ]
        eventually(lambda: threading.active_count() <= before + MAX_CONNECTIONS)
        assert value(node, "node_info") == 1  # the oldest of the others has given way
        assert [one.recv(1) for one in idle[:80]] == [b""] * 80
        idle[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.0 200"
    monkeypatch.setattr(exporter._MetricsHandler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", node.metrics_port), timeout=TIMEOUT_S) as silent:
        silent.sendall(b"GET /metr")
        assert silent.recv(1) == b""
    eventually(lambda: threading.active_count() <= before + 1)


# -- numbers


@pytest.mark.slow
def test_batches_their_objects_and_bytes_are_counted_exactly(node: NodeServer) -> None:
    with connect(node.url) as client:
        bucket = client.bucket("b")
        bucket.put("large", bytes(9_000_000))
        for _ in range(3):
            bucket.get_batch(NAMES).tobytes()
        bucket.get_batch(["large", NAMES[0]]).tobytes()
        bucket.get_batch([NAMES[0], NAMES[0]]).tobytes()
        assert bucket.get(NAMES[2]) == bytes(SIZE_BYTES)
        eventually(lambda: batches(node, "many", "complete") == 5)
        eventually(lambda: batches(node, "single", "complete") == 1)
    many = {"kind": "many", "content": "object"}
    assert value(node, "delivered_entries_total", **many) == 3 * len(NAMES) + 2 + 2
    assert value(node, "delivered_bytes_total", **many) == (3 * len(NAMES) + 1 + 2) * SIZE_BYTES + 9_000_000
    assert value(node, "delivered_bytes_total", kind="single", content="object") == SIZE_BYTES
    assert value(node, "delivered_entries_total", kind="many", content="member") == 0
    for histogram in ("batch_first_byte_seconds", "batch_duration_seconds"):
        assert value(node, f"{histogram}_count", kind="many") == 5
        assert value(node, f"{histogram}_bucket", kind="many", le="+Inf") == 5
        assert value(node, f"{histogram}_count", kind="single") == 1
    assert value(node, "batch_duration_seconds_sum", kind="many") >= value(
        node, "batch_first_byte_seconds_sum", kind="many"
    )
    payload = value(node, "delivered_bytes_total", **many)
    assert payload < value(node, "session_sent_bytes_total") < 1.1 * payload


@pytest.mark.slow
def test_entries_that_failed_are_soft_errors_where_the_batch_went_on_and_hard_where_it_ended(node: NodeServer) -> None:
    with connect(node.url) as client:
        bucket = client.bucket("b")
        bucket.get_batch(["x", NAMES[0], "y"], on_error="placeholder").tobytes()
        with pytest.raises(errors.ObjectNotFound):
            bucket.get_batch([NAMES[0], "x", NAMES[1]]).tobytes()
        eventually(lambda: batches(node, "many", "stopped") == 1)
    eventually(lambda: batches(node, "many", "complete") == 1)
    assert value(node, "soft_errors_total", status="not_found") == 2
    assert value(node, "hard_errors_total", kind="not_found") == 1
    assert batches(node, "many", "abandoned") == 0


@pytest.mark.slow
def test_a_batch_that_is_refused_rejected_or_abandoned_is_counted_as_that(node: NodeServer) -> None:
    with RawSession(node.url) as session:
        session.send(1, batch_of(NAMES, member=["only one"]))
        assert session.receive().end.error_kind == "invalid-request"
        session.send(2, batch_of(NAMES, buffered=True, credit=0))
        eventually(lambda: value(node, "memory_held_bytes", kind="answers") == len(NAMES) * SIZE_BYTES)
        assert value(node, "active_batches") == 1
        assert value(node, "open_sessions") >= 1
        session.send(3, batch_of(NAMES, buffered=True))
        assert session.receive().HasField("reject")
        session.send(2, pb.Cancel())
        eventually(lambda: batches(node, "many", "abandoned") == 1)
    eventually(lambda: (batches(node, "many", "failed"), batches(node, "many", "rejected")) == (1, 1))
    assert value(node, "hard_errors_total", kind="invalid-request") == 1
    assert value(node, "rejections_total", reason="answers") == 1
    assert value(node, "delivered_entries_total", kind="many", content="object") == 0
    eventually(lambda: value(node, "memory_held_bytes", kind="answers") == value(node, "active_batches") == 0)


@pytest.mark.slow
def test_a_client_that_grants_no_credit_is_client_wait(node: NodeServer) -> None:
    before_s = value(node, "client_wait_seconds_total")
    with RawSession(node.url) as session:
        session.send(1, batch_of(NAMES, credit=0))
        eventually(lambda: value(node, "active_batches") == 1)
        held_s = value(node, "batch_duration_seconds_sum", kind="many")
        session.send(1, pb.Credit(payload_bytes=1 << 30))
        session.answer(1)
        eventually(lambda: batches(node, "many", "complete") == 1)
    waited_s = value(node, "client_wait_seconds_total") - before_s
    lasted_s = value(node, "batch_duration_seconds_sum", kind="many") - held_s
    assert 0 < waited_s <= lasted_s


@pytest.mark.slow
def test_a_part_is_kept_apart_from_whole_batches(node: NodeServer) -> None:
    with RawSession(node.url) as session:
        session.ask(1, batch_of(NAMES[:1], local=True))
        session.ask(2, batch_of(NAMES, local=True))
        eventually(lambda: batches(node, "part", "complete") == 2)
    assert value(node, "delivered_entries_total", kind="part", content="object") == len(NAMES) + 1
    assert (batches(node, "many", "complete"), batches(node, "single", "complete")) == (0, 0)


@pytest.mark.slow
def test_calls_on_single_objects_are_counted_with_their_bytes_and_errors(node: NodeServer) -> None:
    with connect(node.url) as client:
        bucket = client.bucket("b")
        bucket.put("one", bytes(777))
        bucket.put("large", bytes(5_000_000))
        bucket.head("one")
        bucket.delete("one")
        for _ in range(2):
            with pytest.raises(errors.ObjectNotFound):
                bucket.head("one")
        assert len(list(bucket.objects())) == len(NAMES) + 1
    expected = {"put": len(NAMES) + 2, "head": 3, "delete": 1, "list": 1}
    # An answer may come to the client before it is counted.
    eventually(lambda: {name: value(node, "requests_total", operation=name) for name in expected} == expected)
    assert value(node, "request_bytes_total", operation="put") == len(NAMES) * SIZE_BYTES + 777 + 5_000_000
    assert value(node, "request_errors_total", operation="head", kind="object-not-found") == 2
    assert value(node, "listed_objects_total") == len(NAMES) + 1


def test_members_of_shards_are_told_from_whole_objects() -> None:
    class Entries:
        status = np.array([pb.OK, pb.OK, pb.NOT_FOUND, pb.OK], np.uint8)
        sizes = np.array([10, 20, 0, 40], np.int64)

    counts = NodeCounters()
    with BatchTally(counts, pb.BatchRequest(name=["s", "s", "s", "o"], member=["a", "b", "c", ""])) as tally:
        tally.ended(Entries(), None)
    assert counts.entries["many"] == {"object": 1, "member": 2}
    assert counts.entry_bytes["many"] == {"object": 40, "member": 30}
    assert counts.soft_errors["not_found"] == 1


def test_a_value_on_a_bound_falls_into_its_bucket_and_one_beyond_all_into_the_last() -> None:
    histogram = Histogram()
    for observed_s in (BOUNDS_S[0], BOUNDS_S[-1], BOUNDS_S[-1] + 1, 0.0):
        histogram.observe(observed_s)
    assert (histogram.buckets[0], histogram.buckets[-2], histogram.buckets[-1]) == (2, 1, 1)
    assert sum(histogram.buckets) == 4
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (0.0005, 60.0)


@pytest.mark.slow
def test_drives_and_the_map_are_told(node: NodeServer) -> None:
    with connect(node.url) as client:
        (drive,) = client.describe()["drives"]  # type: ignore[misc]
    labels = {"drive": drive["uuid"], "path": drive["path"]}
    assert value(node, "drive_up", **labels) == 1
    assert 0 < value(node, "drive_free_bytes", **labels) < value(node, "drive_size_bytes", **labels)
    assert (value(node, "map_version"), value(node, "map_nodes", state="active")) == (0, 0)
    join_cluster(node, version=3)
    assert (value(node, "map_version"), value(node, "map_nodes", state="active")) == (3, 1)


@pytest.mark.slow
def test_the_device_of_a_drive_is_told(metrics: dict[str, Series], tmp_path: Path) -> None:
    assert {"drive", "path"} <= metrics["ais_loader_drive_device_busy_seconds_total"].values.keys()
    with patch.object(block_device, "DEVICES", devices_in(tmp_path, tmp_path)):
        assert block_device.device_counts(str(tmp_path)) == (100 * 512, 300 * 512, 1.5)
        assert block_device.device_counts(str(tmp_path / "missing")) is None
        for text in ("", "1 2 x", "a b c d e f g h i j k"):
            next(tmp_path.glob("*/stat")).write_text(text)
            assert block_device.device_counts(str(tmp_path)) is None
    real = block_device.device_counts(str(tmp_path))
    assert real is None or min(real) >= 0


def test_tenants_with_a_weight_are_counted_apart_and_all_others_together(tmp_path: Path) -> None:
    with serving(tmp_path, metrics_port=0, tenant_weights={"asr": 2.0}) as node:
        with bucket_of(node) as bucket:
            bucket.put_many((name, bytes(SIZE_BYTES)) for name in NAMES)
        for tenant, count in (("asr", 3), ("of no weight", 1), ("", 2)):
            with connect(node.url, options=ClusterOptions(tenant=tenant)) as client:
                for _ in range(count):
                    client.bucket("b").get_batch(NAMES).tobytes()
        whole = len(NAMES) * SIZE_BYTES
        # The END comes to the client before it is counted.
        eventually(lambda: value(node, "tenant_bytes_total", tenant="asr") == 3 * whole)
        eventually(lambda: value(node, "tenant_bytes_total", tenant="other") == 3 * whole)


@pytest.mark.slow
def test_transforms_are_counted_by_their_names_while_there_are_any(tmp_path: Path) -> None:
    with (
        serving(tmp_path, metrics_port=0, etl_code=True, etl_workers=1) as node,
        bucket_of(node) as bucket,
    ):
        client = bucket.client
        bucket.put_many([("a", b"aaa"), ("b", b"bbbbb")])

        def even(data: memoryview) -> bytes:
            if len(data) > 3:
                raise ValueError("too long")
            return bytes(data) * 2

        client.etl.init("even", even)
        client.etl.init("upper", Command(["tr", "a-z", "A-Z"]))
        both = [Entry("b", name, etl=Stage("even") >> "upper") for name in "ab"]
        items = list(client.get_batch([*both, Entry("b", "b")], on_error="placeholder"))
        assert [item.tobytes() for item in (items[0], items[2])] == [b"AAAAAA", b"bbbbb"]
        assert bucket.get("a", etl=Stage("even") >> "upper") == b"AAAAAA"

        def told(name: str, transform: str, **labels: str) -> float:
            return value(node, f"etl_{name}", transform=transform, **labels)

        assert (told("objects_total", "even"), told("objects_total", "upper")) == (1, 1)
        assert (told("bytes_total", "even", what="input"), told("bytes_total", "even", what="output")) == (3, 6)
        assert told("failures_total", "even", kind="transform-failed") == 1
        assert told("failures_total", "upper", kind="transform-failed") == 0
        assert told("seconds_total", "even") > 0
        eventually(lambda: told("running", "even") == 0)
        assert (told("workers", "even"), told("worker_restarts_total", "even")) == (1, 0)
        # Results are those of whole pipelines, and counted for their last transform.
        assert (told("results_total", "upper", how="made"), told("results_total", "upper", how="kept")) == (2, 1)
        assert told("kept_result_bytes_total", "upper") == 6
        assert value(node, "memory_held_bytes", kind="results") == 6
        eventually(lambda: value(node, "memory_held_bytes", kind="transforms") == 0)
        eventually(lambda: (batches(node, "many", "complete"), batches(node, "many", "abandoned")) == (1, 0))
        assert value(node, "delivered_bytes_total", kind="many", content="object") == 6 + 5
        assert value(node, "soft_errors_total", status="failed") == 1
        client.etl.delete("even")
        assert 'transform="even"' not in scrape(node) and 'transform="upper"' in scrape(node)


# -- serving


@pytest.mark.slow
def test_nodes_of_one_process_do_not_mix_and_stop_serving_with_the_node(tmp_path: Path) -> None:
    with serving(tmp_path / "a", metrics_port=0) as first, serving(tmp_path / "b", metrics_port=0) as second:
        with bucket_of(first) as bucket:
            bucket.put("x", b"x")
        assert value(first, "requests_total", operation="put") == 1
        assert value(second, "requests_total", operation="put") == 0
        with pytest.raises(OSError, match=f"cannot serve metrics on 127.0.0.1:{first.metrics_port}"):
            NodeServer([tmp_path / "c"], ServerConfig(port=0, metrics_port=first.metrics_port)).start()
    with pytest.raises(OSError):
        scrape(first)


def test_without_the_library_only_the_option_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    asked = NodeServer([tmp_path / "drive"], ServerConfig(port=0, metrics_port=0))
    with pytest.raises(InvalidRequest, match=r"prometheus_client.*pip install .*\[store\]"):
        asked.start()
    with serving(tmp_path) as node, bucket_of(node) as bucket:
        assert node.metrics_port is None
        bucket.put("x", b"x")
        assert bucket.get_batch(["x"]).tobytes() == [b"x"]


@pytest.mark.slow
def test_serve_says_where_its_metrics_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ais_loader.cli", "serve", "--drive", str(tmp_path / "drive"), "--port", "0"]
    with subprocess.Popen([*command, "--metrics-port", "0", "--json"], stdout=subprocess.PIPE) as process:
        deadline = threading.Timer(TIMEOUT_S, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["metrics_url"]
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                assert b"ais_loader_drive_up{" in response.read()
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            deadline.cancel()
            process.kill()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"metrics_port={port}"):
        ServerConfig(metrics_port=port)


# -- what is written about them


def queries() -> list[tuple[str, str, str]]:
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    ]


@pytest.mark.slow
@table(("title", "expression", "legend"), queries())
def test_every_query_of_the_dashboard_means_something_here(
    metrics: dict[str, Series], title: str, expression: str, legend: str
) -> None:
    labels = check(expression, metrics)
    assert set(legend_labels(legend)) <= labels, f"{title}: the legend names labels that the query does not leave"


def test_the_dashboard_has_its_rows_and_its_variables(metrics: dict[str, Series]) -> None:
    panels = DASHBOARD["panels"]
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == [
        "Throughput",
        "Latency",
        "Errors and recoveries",
        "Memory and admission",
        "Drives",
        "Cluster",
        "Repair",
        "Erasure coding",
        "Drives that change",
        "Promotion",
        "Transforms",
        "Remote buckets",
        "Cost of remote storage",
    ]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels if panel["type"] != "row")
    assert len({panel["id"] for panel in panels}) == len(panels)
    source, instance = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert instance["query"]["query"] == "label_values(ais_loader_node_info, instance)"
    assert "ais_loader_node_info" in metrics


def test_the_dashboard_has_what_grafana_needs_to_show_it() -> None:
    """After the schema of Grafana's own dashboards (classic model, version 39): what it requires, and no panel that
    covers another or reaches over the edge."""
    assert {"title", "uid", "schemaVersion", "annotations", "templating", "panels", "time"} <= DASHBOARD.keys()
    units = {"short", "ops", "reqps", "Bps", "bytes", "s", "percentunit", "dateTimeAsIso"}
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            assert (panel["collapsed"], panel["panels"]) == (False, [])
            continue
        assert panel["type"] == "timeseries" and panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in units and panel["fieldConfig"]["overrides"] == []
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_every_metric_but_the_plainest_is_on_the_dashboard() -> None:
    text = " ".join(expression for _, expression, _ in queries())
    missing = [metric.name for metric in METRICS if metric.name not in text]
    assert missing == ["ais_loader_node_info"]


def test_a_panel_of_what_may_not_be_there_tells_none_from_no_data() -> None:
    """A node exports nothing of a bucket or a transform for which there is nothing to say: a line at zero says that
    nodes answer all the same."""
    at_times = {metric.name for metric in METRICS if {"bucket", "transform"} & set(metric.labels)}
    told = 0
    for panel in DASHBOARD["panels"]:
        expressions = [target["expr"] for target in panel.get("targets", [])]
        named = set(re.findall(r"ais_loader_\w+", " ".join(expressions)))
        if named & at_times:
            assert 'count by (instance) (ais_loader_open_sessions{instance=~"$instance"}) * 0' in expressions, panel[
                "title"
            ]
            told += 1
    assert told == 15


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_alerts_are_rules_to_prometheus_itself_and_a_node_that_falls_silent_raises_one(tmp_path: Path) -> None:
    rules = str(ROOT / "dashboards" / "alerts.json")
    name = "AisLoaderNodeDown"
    (annotations,) = [
        rule["annotations"]
        for group in json.loads(Path(rules).read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == name
    ]
    raised = {
        "exp_labels": {"severity": "critical", "instance": "a:1"},
        "exp_annotations": annotations | {"summary": annotations["summary"].replace("{{ $labels.instance }}", "a:1")},
    }
    cases = {
        "interval": "1m",
        "input_series": [
            {"series": 'ais_loader_node_info{instance="a:1"}', "values": "1 1 1 1 1 1 _x30"},
            {"series": 'ais_loader_node_info{instance="b:1"}', "values": "1x40"},
        ],
        "alert_rule_test": [
            {"eval_time": "4m", "alertname": name, "exp_alerts": []},
            {"eval_time": "20m", "alertname": name, "exp_alerts": [raised]},
        ],
    }
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": [cases]}))
    for command in (["check", "rules", rules], ["test", "rules", str(file)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_goes_by_metrics_that_there_are() -> None:
    rules = [
        rule
        for group in json.loads((ROOT / "dashboards" / "alerts.json").read_text())["groups"]
        for rule in group["rules"]
    ]
    by_name = {metric.name: set(metric.labels) for metric in METRICS}
    for rule in rules:
        named = set(re.findall(r"ais_loader_\w+", rule["expr"]))
        assert named and named <= by_name.keys(), rule["alert"]
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert labels <= {"instance"}.union(*(by_name[name] for name in named)), rule["alert"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0


@table(
    ("expression", "reason"),
    [
        ("sum by (kind) (rate(ais_loader_batch_total[$__rate_interval]))", "not exported"),
        ("sum by (kind) (ais_loader_batches_total)", "not under rate"),
        ("ais_loader_batches_total", "not under rate"),
        ("rate(ais_loader_open_sessions[$__rate_interval])", "of the gauge"),
        ("rate(ais_loader_batches_total[5m])", "not PromQL|follow"),
        ("sum by (reason) (rate(ais_loader_batches_total[$__rate_interval]))", "by \\['reason'\\]"),
        ('rate(ais_loader_batches_total{size="many"}[$__rate_interval])', "no label size"),
        ('rate(ais_loader_batches_total{kind="few"}[$__rate_interval])', "no kind 'few'"),
        (
            "histogram_quantile(0.5, sum by (kind) (rate(ais_loader_batch_duration_seconds_bucket[$__rate_interval])))",
            "by le",
        ),
        ("histogram_quantile(0.5, sum by (le) (rate(ais_loader_batch_duration_seconds_sum[$__rate_interval])))", "le"),
        (
            "histogram_quantile(95, sum by (le) (rate(ais_loader_batch_duration_seconds_bucket[$__rate_interval])))",
            "between 0 and 1",
        ),
        ("ais_loader_open_sessions / ais_loader_memory_limit_bytes", "labels"),
        ("sum by (instance) (ais_loader_open_sessions", "ends where"),
    ],
)
def test_a_query_that_means_nothing_is_found(metrics: dict[str, Series], expression: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check(expression, metrics)


def test_the_documentation_has_the_list_as_it_is() -> None:
    page = (ROOT.parent / "docs" / "metrics.md").read_text()
    table = metrics_table(METRICS, PROCESS)
    assert table in page, f"docs/metrics.md needs this table:\n{table}"


def test_a_node_exports_samples_of_every_declared_metric_and_of_no_other(metrics: dict[str, Series]) -> None:
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in metrics}
    assert names == {metric.name for metric in METRICS} | PROCESS.keys()
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        sample = metrics[metric.name + ("_bucket" if metric.type == "histogram" else "")]
        assert sample.kind == metric.type
        assert sample.values.keys() - {"le"} == set(metric.labels)
        assert (metric.type == "counter") == metric.name.endswith("_total")
