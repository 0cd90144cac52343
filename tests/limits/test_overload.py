"""A node that has too much to do: short of memory it turns batches away for a while, else it slows them a little."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ais_loader import connect, errors
from ais_loader.cli import main
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.session import BatchService
from storage_node.limits.load_monitor import MAX_RETRY_S, pause_s, resident_bytes, retry_after_ms
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.machine_memory import machine_memory_bytes
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving
from tests.patience import PATIENT_CLIENT
from tests.table import table

NAMES = [f"{at}" for at in range(8)]
DATA = {name: bytes([at]) * (512 << 10) for at, name in enumerate(NAMES)}
MARK = 1 << 50  # far above what any test run has
seconds = st.floats(0, 1e6)


def batches_of(node: NodeServer) -> BatchService:
    assert node.batches is not None
    return node.batches


class Memory:
    """What the node believes to be its resident memory: too much until it has turned so many batches away.

    Not so many times that it is asked, as it also asks itself while sessions are open.
    """

    def __init__(self, node: NodeServer, *, over_for: int) -> None:
        self._over_for = over_for
        self._rejections = batches_of(node).node.metrics.rejections
        batches_of(node).node.load.measure = self._measure

    def _measure(self) -> int:
        return MARK * 2 if self._rejections["memory"] < self._over_for else MARK // 2


def now_critical(node: NodeServer) -> None:
    """Its last measurement stays valid for a moment: until then, batches are served whatever its memory is."""
    eventually(batches_of(node).node.load.memory_is_critical)


def fill(node: NodeServer) -> None:
    with bucket_of(node) as bucket:
        bucket.put_many(DATA.items())


@pytest.mark.slow
def test_a_client_that_was_turned_away_comes_back_and_gets_everything(tmp_path: Path) -> None:
    with serving(tmp_path, critical_memory_bytes=MARK, reject_retry_after_ms=1) as node:
        fill(node)
        Memory(node, over_for=2)
        now_critical(node)
        with connect(node.url, options=PATIENT_CLIENT) as client:
            assert [item.tobytes() for item in client.bucket("b").get_batch(NAMES)] == list(DATA.values())
        assert batches_of(node).node.metrics.rejections["memory"] >= 2
        eventually(lambda: batches_of(node).node.metrics.batches["many"]["complete"] == 1)  # after its end is sent


@pytest.mark.slow
def test_a_single_object_is_no_way_past_the_mark(tmp_path: Path) -> None:
    with serving(tmp_path, critical_memory_bytes=MARK, reject_retry_after_ms=1) as node:
        with bucket_of(node) as bucket:
            bucket.put("small", b"bytes")
            assert bucket.get("small") == b"bytes"
        Memory(node, over_for=1)
        now_critical(node)
        with connect(node.url, options=PATIENT_CLIENT) as client:
            assert client.bucket("b").get("small") == b"bytes"
        assert batches_of(node).node.metrics.rejections["memory"] >= 1


def test_a_client_gives_up_when_the_node_stays_too_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses), perf_counter=time.perf_counter)
    monkeypatch.setattr("ais_loader.transport.retry.time", clock)
    with serving(tmp_path, critical_memory_bytes=MARK, reject_retry_after_ms=10) as node:
        fill(node)
        Memory(node, over_for=10**9)
        now_critical(node)
        with (
            connect(node.url, options=PATIENT_CLIENT) as client,
            pytest.raises(errors.Overloaded, match=r"memory.*gave up after"),
        ):
            list(client.bucket("b").get_batch(NAMES))
        # Twice the mark: a hundred and one times the shortest delay, and jitter on top of it.
        assert all(1.01 <= pause <= 1.01 + 1.0 for pause in pauses)
        assert len(set(pauses)) == len(pauses) > 10
        assert batches_of(node).node.metrics.rejections["memory"] == len(pauses) + 1
        held = batches_of(node).resources
        eventually(lambda: held.batches.held == held.reserved_bytes == 0)


@pytest.mark.slow
def test_what_runs_goes_on_while_new_batches_are_turned_away(tmp_path: Path) -> None:
    config = {"critical_memory_bytes": MARK, "reject_retry_after_ms": 7}
    with serving(tmp_path, **config) as node, RawSession(node.url) as session:
        fill(node)
        service = batches_of(node)
        session.send(1, batch_of(NAMES, credit=1))
        first = session.receive()
        assert first.HasField("frame")
        Memory(node, over_for=10**9)
        eventually(service.node.load.memory_is_critical)
        session.send(2, batch_of(NAMES))
        rejected = session.receive()
        assert (rejected.batch_id, rejected.reject.retry_after_ms) == (2, 707)
        assert "memory" in rejected.reject.reason
        session.send(1, pb.Credit(payload_bytes=1 << 40))
        frames, end = session.answer(1)
        assert len(first.frame.payload) + sum(len(frame.payload) for frame in frames) == sum(map(len, DATA.values()))
        assert end.outcome == pb.End.COMPLETE


@given(st.integers(1, 5000), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_the_delay_grows_with_the_excess_and_has_a_bound(base_ms: int, one: int, other: int, mark: int) -> None:
    less, more = sorted((one, other))
    assert base_ms <= retry_after_ms(base_ms, less, mark) <= retry_after_ms(base_ms, more, mark)
    assert retry_after_ms(base_ms, more, mark) <= max(base_ms, MAX_RETRY_S * 1000)


@given(seconds, seconds, st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_a_pause_is_bounded_and_only_for_what_passes_its_threshold(
    lag_s: float, wait_s: float, cpu_s: float, drives_s: float, longest_s: float
) -> None:
    config = ServerConfig(throttle_cpu_lag_s=cpu_s, throttle_drive_wait_s=drives_s, max_throttle_s=longest_s)
    pause, cause = pause_s(lag_s, wait_s, config.limits)
    assert 0 <= pause <= longest_s
    if pause:
        excess = {"cpu": lag_s - cpu_s, "drives": wait_s - drives_s}
        assert excess[cause] == max(excess.values()) > 0
    if lag_s <= cpu_s and wait_s <= drives_s:
        assert (pause, cause) == (0, "")


@pytest.mark.parametrize("cause", ["cpu", "drives"])
def test_throttled_batches_are_whole_and_their_pauses_counted(tmp_path: Path, cause: str) -> None:
    longest_s = 0.002
    thresholds = {"throttle_cpu_lag_s": 1e6, "throttle_drive_wait_s": 1e6}
    thresholds["throttle_cpu_lag_s" if cause == "cpu" else "throttle_drive_wait_s"] = 0.0
    with serving(tmp_path, max_throttle_s=longest_s, **thresholds) as node, RawSession(node.url) as session:
        fill(node)
        service = batches_of(node)
        session.ask(1, batch_of(NAMES))  # the load is measured while batches run
        eventually(lambda: service.node.load.lag_s > 0 and service.node.load.reader_wait_s > 0)
        before = service.node.metrics.throttle_s[cause]
        frames, _ = session.ask(2, batch_of(NAMES))
        assert b"".join(bytes(frame.payload) for frame in frames) == b"".join(DATA.values())
        others = {name: spent for name, spent in service.node.metrics.throttle_s.items() if name in ("cpu", "drives")}
        assert 0 < others.pop(cause) - before <= len(frames) * longest_s + 1e-9
        assert set(others.values()) == {0.0}


@pytest.mark.slow
def test_mapped_files_do_not_count_as_memory(tmp_path: Path) -> None:
    size_bytes = 256 << 20
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(size_bytes)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size_bytes, prot=mmap.PROT_READ) as mapped:
        before = resident_bytes()
        assert sum(mapped[::4096]) == 0
        assert resident_bytes() - before < size_bytes // 2


def test_a_node_measures_itself(tmp_path: Path) -> None:
    assert 1 << 20 < resident_bytes() < machine_memory_bytes()
    with serving(tmp_path) as node:
        assert batches_of(node).node.load.critical_bytes == int(machine_memory_bytes() * 0.8)
        assert not batches_of(node).node.load.memory_is_critical()


@pytest.mark.slow
def test_limits_are_set_at_the_start_and_shown(tmp_path: Path) -> None:
    arguments = [
        "--critical-memory-mib",
        "900",
        "--tenant-weight",
        "team-a=2.5",
        "--tenant-weight",
        "b=1",
        "--max-batches",
        "77",
        "--max-throttle-ms",
        "20",
        "--max-recoveries",
        "5",
        "--max-soft-errors",
        "6",
        "--memory-mib",
        "64",
    ]
    with NodeProcess(tmp_path, arguments=arguments) as node, connect(node.url) as client:
        limits = client.describe()["limits"]
        assert isinstance(limits, dict)
        expected = {
            "critical_memory_bytes": str(900 << 20),
            "tenant_weights": "team-a=2.5,b=1",
            "max_active_batches": "77",
            "max_throttle_s": "0.02",
            "max_recoveries": "5",
            "max_soft_errors": "6",
            "memory_bytes": str(64 << 20),
        }
        assert limits.items() >= expected.items()
        assert "host" not in limits and "repair_bytes_per_s" in limits


@table("given", ["a", "a=", "a=x", "a=0", "a=nan"])
def test_a_weight_that_is_none_ends_the_command(tmp_path: Path, given: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--drive", str(tmp_path), "--tenant-weight", given])
    assert (result.exit_code, "tenant" in result.stderr, given.partition("=")[2] in result.stderr) == (2, True, True)
