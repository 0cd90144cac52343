"""What `cluster status` says of nodes and space, and logs that are followed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from ais_loader.cli import main
from ais_loader.cli.show import OutputLines
from ais_loader.errors import Closed
from storage_node.cli import cluster as cluster_command
from storage_node.cli import cluster_status
from storage_node.cli.cluster_status import show_condition
from storage_node.ops import node_log
from storage_node.ops.status import disk_space

GIB = 1 << 30


def drive(path: str, free: int = 10, size: int = 20, **more: Any) -> dict[str, Any]:
    known = {"uuid": "d", "path": path, "state": "active", "problem": "", "objects_estimate": 7}
    return known | {"free_bytes": free * GIB, "size_bytes": size * GIB} | more


def node(name: str, *drives: dict[str, Any], endpoint: str = "10.0.0.1:7480", **more: Any) -> dict[str, Any]:
    one = {"id": "1234", "name": name, "host": "h", "endpoint": endpoint, "pid": 1, "state": "serving", "problem": ""}
    one |= {
        "member": "active",
        "drives": list(drives),
        "moving": None,
        "changed_limits": {},
        "metrics_url": "",
        "gateway_url": "",
    }
    one |= {"etl_sandbox": ""} | more
    one["free_bytes"], one["size_bytes"] = disk_space([one])
    return one


def shown(capsys: pytest.CaptureFixture[str], *nodes: dict[str, Any], **more: Any) -> list[str]:
    free_bytes, size_bytes = disk_space(nodes)
    found = {"map_version": 3, "cluster_uuid": "c", "url": "grpc://x", "ray": None, "root": "/r", "problems": []}
    found |= {"nodes": list(nodes), "free_bytes": free_bytes, "size_bytes": size_bytes}
    with OutputLines() as lines:
        show_condition(found | {"buckets": 2, "objects": 1234, "object_bytes": 1 << 20} | more, lines)
    return capsys.readouterr().out.splitlines()


def test_the_busy_share_of_a_device_is_shown_once_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    first = {"nodes": [node("node-1", drive("/a", device_busy_s=10.0)), node("node-2", drive("/b", uuid="e"))]}
    second = node("node-1", drive("/a", device_busy_s=11.5), drive("/c", uuid="new", device_busy_s=3.0))
    found = {"nodes": [second, node("node-2", drive("/b", uuid="e", device_busy_s=None))]}
    cluster_status.add_busy_shares(found, first, 2.0)
    lines = shown(capsys, *found["nodes"])
    assert [line.strip() for line in lines if "/a: " in line] == [
        "node-1: /a: active, 10.0 GiB free of 20.0 GiB, device 75% busy"
    ]
    assert [line for line in lines if "busy" in line and "/a: " not in line] == []


def test_the_sandbox_of_commands_is_shown_for_nodes_that_run_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = "none; a command is not fully contained: it can read every file"
    lines = shown(capsys, node("node-1", drive("/a"), etl_sandbox=lacking), node("node-2", drive("/b")))
    assert [line.strip() for line in lines if "sandbox" in line] == [f"node-1: sandbox of commands: {lacking}"]


def test_a_disk_below_several_drives_and_nodes_is_counted_once(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("a", "b")]
    for folder in folders:
        os.mkdir(folder)
    # What each of them saw of one disk, at different times.
    here = node("node-1", drive(folders[0], 10), drive(folders[1], 11)), node("node-2", drive(folders[1], 12))
    assert disk_space(here) == (12 * GIB, 20 * GIB)
    away = [
        node("", drive("/x", endpoint), drive("/y", endpoint), endpoint=f"10.0.0.{endpoint}:1") for endpoint in (1, 2)
    ]
    assert disk_space(away) == (3 * GIB, 40 * GIB)
    assert disk_space([*here, *away]) == (15 * GIB, 60 * GIB)
    assert disk_space([node("", drive("/gone", 0, 0))]) == (0, 0)


def test_one_line_has_the_sums_and_a_table_has_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    down = node("", endpoint="10.0.0.2:7480", state="down", problem="no answer (refused)", pid=0)
    lines = shown(capsys, node("", drive("/a")), down)
    assert lines[0] == (
        "1 of 2 nodes serve as they should, 1,234 objects (1.0 MiB) in 2 buckets, 10.0 GiB free of 20.0 GiB"
    )
    at = lines.index("")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["NODE", "STATE", "DRIVES", "FREE", "OF", "ENDPOINT", "PID"],
        ["1234", "serving", "1", "10.0", "GiB", "20.0", "GiB", "10.0.0.1:7480", "1"],
        ["1234", "down", "0", "?", "?", "10.0.0.2:7480", "?"],
    ]
    assert (
        len({line.index(word) for line, word in zip(lines[at + 1 : at + 3], ("ENDPOINT", "10.0.0.1"), strict=True)})
        == 1
    )
    assert lines[-1] == "1234: no answer (refused)"


def test_what_nobody_has_counted_is_a_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, node("n", drive("/gone/a")), node("m", drive("/gone/b")), objects=None)
    assert lines[0].startswith("all 2 nodes serve, ? objects, ") and "about" not in " ".join(lines)


class SilentClient:
    """Of a store that says which buckets there are, and then nothing, until it is closed."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __enter__(self) -> SilentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.ended.set()

    def buckets(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="b")]

    def bucket(self, name: str) -> SilentClient:
        return self

    def summary(self, prefix: str, *, depth: int) -> NoReturn:
        assert self.ended.wait(180)
        raise Closed("closed")


def test_counting_ends_in_time_where_a_node_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ais_loader.objects.client.connect", lambda *_, **__: SilentClient())
    monkeypatch.setattr(cluster_status, "COUNTING_S", 0.05)
    found = {"answers": True, "url": "grpc://x", "ca_file": "", "nodes": []}
    assert cluster_status.counted(found) == {"buckets": None, "objects": None, "object_bytes": None}


def test_a_log_is_followed_also_into_the_file_that_takes_its_place(tmp_path: Path) -> None:
    path = node_log.path_of(tmp_path, "id")
    followed = node_log.follow(tmp_path, "id", 2)
    path.parent.mkdir(parents=True)
    path.write_text("one\ntwo\nthree\n")
    assert [next(followed), next(followed)] == ["two", "three"]
    with path.open("a") as file:
        file.write("four\nfi")
        file.flush()
        assert next(followed) == "four"
        file.write("ve\n")
    assert next(followed) == "five"
    with path.open("a") as file:
        file.write("six\n")
    path.rename(path.with_name("id.log.1"))
    path.write_text("seven\n")
    assert [next(followed), next(followed)] == ["six", "seven"]
    followed.close()


def test_status_is_shown_again_and_again_until_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    # Of the command alone: other threads of this process sleep too.
    monkeypatch.setattr(cluster_command, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    for watch, seconds in (["--watch", "3"], 3.0), (["--watch"], 2.0):
        pauses.clear()
        result = CliRunner().invoke(main, ["cluster", "status", "--root", str(tmp_path), *watch])
        assert (result.exit_code, pauses) == (130, [seconds, seconds])
        assert result.stdout.count(f"no cluster below {tmp_path}") == 2
    wrong = CliRunner().invoke(main, ["cluster", "logs", "n", "--root", str(tmp_path), "-f", "--address", "auto"])
    assert wrong.exit_code == 2
