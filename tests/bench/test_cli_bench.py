"""`ais-loader bench` as people run it: what is printed, written, refused, and left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ais_loader import connect
from ais_loader.bench import machine
from ais_loader.bench.plan import WORKLOADS
from ais_loader.cli import main
from ais_loader.testing import NodeProcess
from ais_loader.testing.waiting import eventually
from ais_loader.wire import block_device
from tests.table import table

SMALL = ("--objects", "40", "--size", "1KiB")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_there_is_a_command_for_each_workload() -> None:
    said = run("--help").output
    assert all(f"  {workload} " in said for workload in (*WORKLOADS, "compare"))


@pytest.mark.slow
def test_a_node_is_measured_and_two_results_compared(node: NodeProcess, bucket_name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    told = run(
        "get-batch", *SMALL, "--store", node.url, "--bucket", bucket_name, "--epochs", 2, "--warm-up", 0, "--batch", 8,
        "--verify", "--processes", 2, "--json", file, "--clean",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = json.loads(file.read_text())
    assert (found["objects"], found["bytes"], found["calls"], found["errors"]) == (80, 80 << 10, 10, {})
    assert found["whole"]
    assert found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    assert found["client_cpu_s"] > 0
    assert found["node_cpu_s"] is not None
    assert found["node_peak_bytes"] > 1 << 20
    assert "80, " in told.output
    for path, device in found["drives"].items():
        assert device["device_busy_share"] >= 0 and f"{path}, its device " in told.output
    with connect(node.url) as client:
        assert bucket_name not in [info.name for info in client.buckets()]
    compared = run("compare", file, file)
    assert compared.exit_code == 0
    assert "1.00" in compared.output


def test_bytes_and_time_of_devices_are_what_has_been_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = f"{os.major(tmp_path.stat().st_dev)}:{os.minor(tmp_path.stat().st_dev)}"
    (tmp_path / "devices" / number).mkdir(parents=True)
    monkeypatch.setattr(block_device, "DEVICES", tmp_path / "devices")
    counts = [iter([2048, 4096]), iter([100, 2148]), iter([1000, 1250])]

    def tick() -> dict[str, tuple[float, ...]]:
        read, written, busy_ms = (next(one) for one in counts)
        (tmp_path / "devices" / number / "stat").write_text(f"1 1 {read} 1 1 1 {written} 1 1 {busy_ms} 1")
        return machine.device_counts_of({"drives": [{"path": str(tmp_path)}, {"path": "/no/where"}]})

    before, after = tick(), tick()
    assert before == {str(tmp_path): (1 << 20, 51200, 1.0)}
    assert after == {str(tmp_path): (2 << 20, 51200 + (1 << 20), 1.25)}


@table(
    ("arguments", "says"),
    [
        (("get", "--size", "ten"), "is no size"),
        (("get", "--cold", "--warm-up", "1"), "warm-up"),
        (("put", "--processes", "2"), "one writer"),
        (("put", "--cold"), "No such option"),
        (("get", "--duration", "0"), "duration"),
        (("get", "--json", "/no/folder/a.json"), "no folder /no/folder"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    told = run(*arguments, "--store", tmp_path / "store")
    assert told.exit_code == 2
    assert says in told.output
    assert not (tmp_path / "store").exists()


def test_a_bucket_of_somebody_else_is_refused(embedded_path: Path, bucket_name: str) -> None:
    with connect(embedded_path) as client:
        client.create_bucket(bucket_name)
    told = run("get", *SMALL, "--store", embedded_path, "--bucket", bucket_name, "--clean")
    assert told.exit_code == 1
    assert "was not made by `ais-loader bench`" in told.output
    with connect(embedded_path) as client:
        assert bucket_name in [info.name for info in client.buckets()]


def test_what_is_no_result_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{}")
    told = run("compare", tmp_path / "a", tmp_path / "a")
    assert told.exit_code == 1
    assert "is no result of `ais-loader bench --json`" in told.output


@pytest.mark.slow
def test_an_interrupted_measurement_shows_what_was_measured(node: NodeProcess, bucket_name: str) -> None:
    command = [sys.executable, "-m", "ais_loader.cli", "bench", "get-batch", *SMALL, "--store", node.url]

    def batches() -> int:
        with connect(node.url) as client:
            return int(str(client.describe()["batches"]))

    before = batches()
    with subprocess.Popen(
        [*command, "--bucket", bucket_name, "--duration", "600", "--warm-up", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            eventually(lambda: batches() > before + 20)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=180)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "interrupted: this is what was measured until then" in out
    assert "Traceback" not in err
