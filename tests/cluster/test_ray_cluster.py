"""A cluster on Ray, as an operator runs it: `ais-loader cluster` in processes of its own, on a Ray of its own.

That Ray listens on loopback, on ports that were free, and is ended by its session; no other Ray of the machine sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect
from ais_loader.errors import NodeUnavailable
from ais_loader.testing.stores import throwaway_folder
from ais_loader.testing.waiting import eventually
from ais_loader.wire.cluster_map import ClusterView
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.errors import NoMajority
from storage_node.cluster.map.mutations import create_bucket
from storage_node.ops import node_file, peer_secret, ray_head
from tests.cluster.operator_kit import COMMAND_TIMEOUT_S, REPOSITORY, Operator, operating
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # a Ray costs 12 s of a processor to start
OBJECTS = {f"en/{number:03d}.wav": bytes([number]) * (1000 + number) for number in range(60)}


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


@pytest.fixture(scope="module")
def cluster(operator: Operator) -> dict[str, Any]:
    """Three nodes with two drives each, and what `up` said of them. Tests leave it running, on whatever Ray."""
    operator.make_nodes(3, first_port=9600, drives_per_node=2)
    said: dict[str, Any] = operator.json("up", "--host-per-node", "--no-dashboard")
    endpoints = [node["endpoint"] for node in said["nodes"]]
    caller = peer_secret.operator(operator.root)
    view = ClusterView(change_map(endpoints, create_bucket("speech", copies=2), caller=caller))
    with ExitStack() as stack:
        with pytest.raises(NoMajority, match="unauthenticated"):
            change_map(endpoints, create_bucket("of-a-stranger"), timeout_s=1.0)
        clients = [stack.enter_context(connect(f"grpc://{node.endpoint}")) for node in view.nodes]
        for name, data in OBJECTS.items():
            for owner in view.owners(view.buckets["speech"], name):
                clients[owner].bucket("speech").put(name, data)
    return said


def contents(url: str) -> dict[str, bytes]:
    """Of all objects. A node that came back compares its copies with the others' before it serves them."""

    def read() -> dict[str, bytes] | None:
        with connect(url, options=PATIENT_CLIENT) as client:
            try:
                return {name: client.bucket("speech").get(name) for name in OBJECTS}
            except NodeUnavailable:
                return None

    return eventually(read, interval_s=0.2)


def test_up_makes_the_nodes_and_a_map_of_them(operator: Operator, cluster: dict[str, Any]) -> None:
    assert [node["name"] for node in cluster["nodes"]] == ["node-1", "node-2", "node-3"]
    assert all(node["state"] == "serving" and len(node["drives"]) == 2 for node in cluster["nodes"])
    assert len({node["host"] for node in cluster["nodes"]}) == 3
    assert cluster["map_version"] == 1 and cluster["notes"] == []
    assert cluster["url"] == "grpc://" + ",".join(node["endpoint"] for node in cluster["nodes"])
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", node["endpoint"]) for node in cluster["nodes"])
    assert not (operator.home / ".ray").exists(), "a token in the home would change every other Ray of this user"
    assert contents(cluster["url"]) == OBJECTS


def test_status_says_of_each_node_where_and_how_it_is(operator: Operator, cluster: dict[str, Any]) -> None:
    said = operator.well()
    assert said["cluster_uuid"] == cluster["cluster_uuid"]
    assert said["map_version"] >= 1
    assert said["ray"]["alive"] is True
    assert said["problems"] == []
    for node, started in zip(said["nodes"], cluster["nodes"], strict=True):
        assert (node["id"], node["name"], node["host"]) == (started["uuid"], started["name"], started["host"])
        assert (node["state"], node["member"], node["problem"]) == ("serving", "active", "")
        assert [drive["path"] for drive in node["drives"]] == started["drives"]
        assert {drive["state"] for drive in node["drives"]} == {"active"}
        assert node["pid"] > 0 and 0 < node["free_bytes"] <= node["size_bytes"] and node["objects_estimate"] >= 0
    assert "serving" in operator.run("status")


def test_a_killed_node_is_back_on_its_drives_at_its_address(operator: Operator, cluster: dict[str, Any]) -> None:
    before = operator.nodes()
    for node in before.values():
        os.kill(node["pid"], signal.SIGKILL)

    def all_back() -> dict[str, dict[str, Any]] | None:
        now = operator.nodes()
        # What was on its way between them when they died may have fewer copies for a moment.
        begun = (node["pid"] not in (0, before[uuid]["pid"]) for uuid, node in now.items())
        return now if all(begun) and all(node["state"] == "serving" for node in now.values()) else None

    back = eventually(all_back)
    for uuid, node in before.items():
        assert (back[uuid]["endpoint"], back[uuid]["state"]) == (node["endpoint"], "serving")
        assert [drive["uuid"] for drive in back[uuid]["drives"]] == [drive["uuid"] for drive in node["drives"]]
    assert contents(cluster["url"]) == OBJECTS


def test_settings_are_taken_over_by_nodes_that_run_and_kept_for_those_that_start(
    operator: Operator, cluster: dict[str, Any]
) -> None:
    before = operator.nodes()
    first, *_ = sorted(before, key=lambda uuid: before[uuid]["name"])
    operator.run("up", "--set", "max_active_batches=77", "--set", "nodes.node-1.read_threads=2")
    now = operator.nodes()
    assert {now[uuid]["changed_limits"]["max_active_batches"] for uuid in now} == {"77"}
    assert [uuid for uuid in now if "read_threads" in now[uuid]["changed_limits"]] == [first]
    assert {uuid: node["pid"] for uuid, node in now.items()} == {uuid: node["pid"] for uuid, node in before.items()}
    assert contents(cluster["url"]) == OBJECTS

    def restarts() -> dict[str, int]:
        return {uuid: operator.run("logs", now[uuid]["name"]).count("restarting, with other settings") for uuid in now}

    earlier = restarts()
    assert all(earlier.values())

    operator.run("up", "--set", "nodes.node-1.read_threads=default")
    assert restarts() == earlier | {first: earlier[first] + 1}
    os.kill(now[first]["pid"], signal.SIGKILL)
    back = eventually(lambda: (node := operator.nodes()[first])["pid"] not in (0, now[first]["pid"]) and node)
    assert back and back["changed_limits"] == {"max_active_batches": "77"}
    wrong = operator.run("up", "--set", "nodes.node-9.read_threads=1", code=1)
    assert wrong == ""


def test_a_second_command_at_the_same_time_is_told_to_wait(operator: Operator, cluster: dict[str, Any]) -> None:
    with ray_head.only_command(operator.root):
        operator.run("down", code=1)
    eventually(lambda: {node["state"] for node in operator.nodes().values()} == {"serving"}, interval_s=0.2)


def test_a_cluster_grows_by_a_node_and_loses_one(operator: Operator, cluster: dict[str, Any]) -> None:
    grown = operator.json("add")
    (new,) = (node for node in grown["nodes"] if node["name"] == "node-4")
    assert grown["map_version"] > cluster["map_version"]
    assert operator.nodes()[new["uuid"]]["member"] in ("joining", "active")
    assert operator.json("remove", "node-4", "--lost") == {"removed": new["uuid"]}
    assert operator.nodes().keys() == {node["uuid"] for node in cluster["nodes"]}
    # As after its host was down meanwhile: nothing beside its drives says that it was taken out.
    (operator.root / "node-4" / node_file.FILE_NAME).unlink()
    again = operator.json("up")
    assert any("node-4 was taken out of the cluster" in note for note in again["notes"])
    assert operator.nodes().keys() == {node["uuid"] for node in cluster["nodes"]}
    wiped = operator.json("add", "--wipe", "node-4")
    (renewed,) = (node for node in wiped["nodes"] if node["name"] == "node-4")
    assert renewed["uuid"] != new["uuid"]
    assert operator.nodes()[renewed["uuid"]]["member"] in ("joining", "active")
    assert operator.json("remove", "node-4", "--lost") == {"removed": renewed["uuid"]}
    assert contents(cluster["url"]) == OBJECTS


def test_after_everything_was_killed_up_brings_back_nodes_and_data(operator: Operator, cluster: dict[str, Any]) -> None:
    before = operator.nodes()
    operator.kill_everything()
    down = operator.json("status", code=1)
    assert {node["state"] for node in down["nodes"]} == {"down"}
    assert down["cluster_uuid"] == cluster["cluster_uuid"]
    again = operator.json("up", "--no-dashboard")
    assert again["cluster_uuid"] == cluster["cluster_uuid"]
    assert again["url"] == cluster["url"]
    assert {node["uuid"]: sorted(node["drives"]) for node in again["nodes"]} == {
        uuid: sorted(drive["path"] for drive in node["drives"]) for uuid, node in before.items()
    }
    assert contents(again["url"]) == OBJECTS


def test_down_leaves_no_process_and_all_data(operator: Operator, cluster: dict[str, Any]) -> None:
    assert operator.left_over()
    said = operator.json("down")
    assert said["nodes"] == 3 and said["ray_processes"] > 3
    assert operator.left_over() == []
    assert operator.json("down") == {"nodes": 0, "ray_processes": 0}
    assert (operator.root / "node-1" / "drive-1" / "drive.json").exists()
    assert not list((operator.root / ray_head.FOLDER_NAME).glob("ray.json"))


# -- jobs


class Jobs:
    """`ray job submit` to a Ray that `cluster up` has started."""

    def __init__(self, operator: Operator, said: dict[str, Any]) -> None:
        self._operator = operator
        self._environment = operator.environment | said["ray"]["environment"] | {"RAY_USAGE_STATS_ENABLED": "0"}

    def submit(self, *command: str, source: Path | None = None) -> tuple[int, str]:
        """Exit code and everything that the submission printed, the job's log with it."""
        folder = [] if source is None else ["--working-dir", str(source)]
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", *folder, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=self._environment,
            cwd=REPOSITORY,
        )
        return done.returncode, done.stdout


def test_jobs_train_on_the_cluster_start_another_and_hand_back_how_they_ended() -> None:
    with throwaway_folder() as folder:
        operator = Operator(folder)
        try:
            said = operator.json("up", "--nodes", "2")
            jobs = Jobs(operator, said)
            plot, source = folder / "speech.png", folder / "source"
            for part in ("examples", "tests/data/speech"):
                shutil.copytree(REPOSITORY / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
            code, log = jobs.submit(
                "python",
                "-m",
                "examples.speech.train",
                "--steps",
                "30",
                "--batch-size",
                "8",
                "--url",
                said["url"],
                "--output",
                str(plot),
                source=source,
            )
            assert code == 0, log
            assert "30 steps of 8, each one GetBatch" in log and plot.stat().st_size > 0

            code, log = jobs.submit("sh", "-c", "echo about to fail: $((40 + 2)); exit 3")
            assert code != 0
            assert "about to fail: 42" in log and "failed with exit code 3" in log, log

            # The command itself as a job: it attaches to the Ray it runs in, and its nodes outlive it.
            other = folder / "other"
            code, log = jobs.submit(
                "python", "-m", "ais_loader.cli", "cluster", "up", "--root", str(other), "--nodes", "1"
            )
            assert code == 0 and "AIS_LOADER_URL=grpc://127.0.0.1:" in log, log
            url = re.search(r"AIS_LOADER_URL=(\S+)", log)
            assert url is not None
            with connect(url[1]) as client:
                client.create_bucket("b").put("x", b"outlives the job")
                assert client.bucket("b").get("x") == b"outlives the job"
            operator.run("down")
        finally:
            ray_head.end(operator.root)
            eventually(lambda: not operator.left_over(), interval_s=0.05)
