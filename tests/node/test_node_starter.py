"""Nodes that are forked by the starter of nodes: they serve, fail, stop and die as started ones do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from ais_loader.testing.node_starter import stop_starter, use_starter

ANOTHER = {"AIS_LOADER_TEST_ANOTHER": "1"}
"""An environment that the starter does not have."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with throwaway_folder() as made:
        yield made


def is_forked(node: NodeProcess) -> bool:
    return "node_starter" in " ".join(psutil.Process(node.pid).cmdline())


def test_a_forked_node_serves_and_keeps_its_objects_and_port_when_killed(folder: Path) -> None:
    with NodeProcess(folder) as node:
        assert is_forked(node)
        with connect(node.url) as client:
            client.create_bucket("b").put("a", b"12")
        before, url = node.pid, node.url
        node.kill()
        assert not node.alive and not psutil.pid_exists(before)
        node.start()
        assert is_forked(node) and node.url == url and node.pid != before
        with connect(node.url) as client:
            assert client.bucket("b").get("a") == b"12"
        assert node.stop() == 0


def test_a_node_with_an_environment_or_a_launcher_of_its_own_is_started(folder: Path) -> None:
    with NodeProcess(folder / "a", environment=ANOTHER) as node:
        assert not is_forked(node)
        assert psutil.Process(node.pid).environ()["AIS_LOADER_TEST_ANOTHER"] == "1"
    with NodeProcess(folder / "b", launcher=["env"]) as node:
        assert not is_forked(node)


def test_a_variable_that_is_set_later_reaches_the_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_LOADER_TEST_ANOTHER", "2")
    with NodeProcess(folder) as node:
        assert psutil.Process(node.pid).environ()["AIS_LOADER_TEST_ANOTHER"] == "2"


@pytest.mark.parametrize("environment", [{}, ANOTHER], ids=["forked", "started"])
def test_a_node_that_cannot_serve_says_why(folder: Path, environment: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)the node ended with code 2: .*no_such_setting") as raised:
        NodeProcess(folder, arguments=["--set", "no_such_setting=1"], environment=environment)
    assert "Traceback" not in str(raised.value)


def test_a_forked_node_is_paused_and_goes_on(folder: Path) -> None:
    with NodeProcess(folder) as node, connect(node.url) as client:
        client.create_bucket("b")
        node.pause()
        eventually(lambda: psutil.Process(node.pid).status() == psutil.STATUS_STOPPED)
        assert node.alive
        node.resume()
        client.bucket("b").put("a", b"1")
        assert client.bucket("b").get("a") == b"1"


def test_a_forked_node_has_the_streams_descriptors_and_signals_of_a_started_one(folder: Path) -> None:
    with (
        NodeProcess(folder / "a") as other,
        NodeProcess(folder / "b") as forked,
        NodeProcess(folder / "c", environment=ANOTHER) as started,
    ):
        assert is_forked(other) and is_forked(forked)
        eventually(lambda: _descriptors(forked) == _descriptors(started))  # gRPC opens some when it needs them
        eventually(lambda: _signals(forked) == _signals(started))
        assert psutil.Process(forked.pid).cwd() == psutil.Process(started.pid).cwd()


def _descriptors(node: NodeProcess) -> list[str]:
    """The streams, and the number of the other descriptors of each kind but files, which come and go."""
    found = {int(fd): os.readlink(f"/proc/{node.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{node.pid}/fd")}
    kinds = [re.sub(r"[0-9a-f]*:?\[.*\]|/.*", "", path) for fd, path in found.items() if fd > 2]
    streams = [re.sub(r"\d+", "", found[fd]) for fd in range(3)]
    return [*streams, *(f"{kinds.count(kind)} {kind}" for kind in sorted({"socket", "pipe"}))]


def _signals(node: NodeProcess) -> list[str]:
    status = Path(f"/proc/{node.pid}/status").read_text()
    return [line for line in status.splitlines() if line.startswith(("SigIgn", "SigCgt", "SigBlk"))]


def test_the_starter_has_one_thread_ends_when_it_is_stopped_and_is_made_anew(folder: Path) -> None:
    with NodeProcess(folder) as node:
        starter = psutil.Process(node.pid).parent()
        assert starter is not None and starter.num_threads() == 1
    stop_starter()
    try:
        assert not starter.is_running()
        with NodeProcess(folder) as node:
            assert not is_forked(node)  # nobody has asked for forks
    finally:
        use_starter()
    with NodeProcess(folder) as node:
        assert is_forked(node)
