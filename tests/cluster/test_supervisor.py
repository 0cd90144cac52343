"""A node that is kept serving: what it waits for, and what it says meanwhile."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ais_loader.objects.client import connect
from ais_loader.testing.stores import throwaway_folder
from ais_loader.testing.waiting import eventually
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.context.channels import OPERATOR
from storage_node.ops import crash_backoff, drive_commands, node_file, node_log
from storage_node.ops import settings_store as settings_file
from storage_node.ops import supervisor as supervisor
from storage_node.ops.actor import StorageNodeActor
from storage_node.ops.ask_nodes import ask_node
from storage_node.ops.node_discovery import NodeDrives, make_nodes
from storage_node.ops.node_file import free_port
from storage_node.ops.settings_store import KeptSettings
from storage_node.ops.status import cluster_status
from storage_node.ops.supervisor import Supervisor
from storage_node.store.store import Store
from tests.faulty_link import FaultyLink

HOST = "127.0.0.1"


@pytest.fixture
def root() -> Iterator[Path]:
    with throwaway_folder() as folder:
        yield folder


@pytest.fixture
def node(root: Path) -> NodeDrives:
    return make_nodes(root, 1, 2)[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF", Backoff(0.01, 0.05, jitter=0))
    monkeypatch.setattr(supervisor, "LOOK_INTERVAL_S", 0.05)


@pytest.fixture
def kept(root: Path, node: NodeDrives) -> Iterator[Supervisor]:
    """Not started."""
    kept = Supervisor(root, node.uuid, HOST)
    yield kept
    kept.stop(0.0)


def serving(kept: Supervisor) -> dict[str, Any]:
    eventually(lambda: kept.status()["state"] == "serving")
    return kept.status()


def test_a_node_serves_its_drives_and_keeps_its_port_in_its_next_life(
    root: Path, node: NodeDrives, kept: Supervisor
) -> None:
    assert kept.status()["state"] == "starting"
    kept.start()
    first = serving(kept)
    assert (first["drives"], first["problem"]) == ([str(drive) for drive in node.drives], "")
    with connect(f"grpc://{first['endpoint']}") as client:
        client.create_bucket("b").put("x", b"there")
    kept.stop()
    assert kept.status()["state"] == "stopped"
    again = Supervisor(root, node.uuid, HOST)
    again.start()
    try:
        assert serving(again)["endpoint"] == first["endpoint"]
        with connect(f"grpc://{first['endpoint']}") as client:
            assert client.bucket("b").get("x") == b"there"
    finally:
        again.stop()


def test_drives_that_somebody_holds_are_waited_for(node: NodeDrives, kept: Supervisor) -> None:
    with Store.open(node.drives, mode="a"):
        kept.start()
        waiting = eventually(lambda: kept.status() if kept.status()["tries"] > 1 else None)
        assert waiting["state"] == "waiting"
        assert "open" in waiting["problem"] and waiting["endpoint"] == ""
    serving(kept)


def test_an_actor_comes_up_without_its_drives_and_serves_when_they_appear(root: Path, node: NodeDrives) -> None:
    away = root / ".away"
    node.folder.rename(away)
    actor = StorageNodeActor(str(root), node.uuid, HOST)
    try:
        eventually(lambda: "are its drives mounted" in actor.status()["problem"])
        assert actor.status()["state"] == "waiting"
        away.rename(node.folder)
        eventually(lambda: actor.status()["state"] == "serving")
        assert actor.status()["problem"] == ""
    finally:
        actor.stop()


def test_what_a_node_waits_for_is_shown_by_status(root: Path, node: NodeDrives, kept: Supervisor) -> None:
    node_file.write(node.folder, node_file.NodeFile(node.uuid, f"{HOST}:{free_port(HOST)}"))
    with Store.open(node.drives, mode="a"):
        kept.start()
        (shown,) = eventually(lambda: [one for one in cluster_status(root)["nodes"] if "it said: " in one["problem"]])
        assert shown["state"] == "down" and "open" in shown["problem"].partition("it said: ")[2]
    serving(kept)
    (shown,) = cluster_status(root)["nodes"]
    assert (shown["state"], shown["problem"]) == ("serving", "")
    said = node_file.read(node.folder)
    assert said is not None and said.problem == ""


@pytest.mark.slow
def test_a_drive_that_appears_later_is_taken_in(node: NodeDrives, root: Path, kept: Supervisor) -> None:
    away = root / ".away"
    node.drives[1].rename(away)
    kept.start()
    assert serving(kept)["drives"] == [str(node.drives[0])]
    away.rename(node.drives[1])
    eventually(lambda: len(kept.status()["drives"]) == 2)
    with connect(f"grpc://{serving(kept)['endpoint']}") as client:
        drives: Any = client.describe()["drives"]
        assert [drive["state"] for drive in drives] == ["ok", "ok"]


def test_a_drive_that_is_added_does_not_have_the_node_start_anew(
    node: NodeDrives, root: Path, kept: Supervisor
) -> None:
    kept.start()
    endpoint = serving(kept)["endpoint"]
    server = kept._server
    new = node.folder / "drive-3"
    after = drive_commands.order(
        endpoint, OPERATOR, lambda stub: stub.AddDrive(pb.AddDriveRequest(path=str(new)), timeout=180)
    )
    assert str(new) in [drive.path for drive in after.drive]
    eventually(lambda: str(new) in kept.status()["drives"])
    assert kept._server is server
    (told,) = cluster_status(root)["nodes"]
    assert (told["state"], [drive["state"] for drive in told["drives"]]) == ("serving", ["active"] * 3)


def test_a_node_never_starts_on_drives_of_another(root: Path, node: NodeDrives, kept: Supervisor) -> None:
    other = make_nodes(root, 1, 1)[0]
    shutil.rmtree(node.folder)
    other.folder.rename(node.folder)
    kept.start()
    eventually(lambda: kept.status()["tries"] > 2)
    assert kept.status()["state"] == "waiting"


def test_a_taken_port_is_waited_for_and_then_another_is_used(
    node: NodeDrives, kept: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PORT_PATIENCE_S", 3600.0)
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        node_file.write(node.folder, node_file.NodeFile(node.uuid, f"{HOST}:{port}"))
        kept.start()
        eventually(lambda: f"port {port}" in kept.status()["problem"])
        monkeypatch.setattr(supervisor, "PORT_PATIENCE_S", 0.2)
        moved = serving(kept)["endpoint"]
    said = node_file.read(node.folder)
    assert said is not None and said.endpoint == moved != f"{HOST}:{port}"


def test_a_node_that_had_to_move_has_the_map_say_so(
    root: Path, node: NodeDrives, kept: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PORT_PATIENCE_S", 0.0)
    kept.start()
    before = serving(kept)["endpoint"]
    member = pb.MapNode(
        uuid=bytes.fromhex(node.uuid), host="here", endpoint=before, peer_endpoint=kept.status()["peer_endpoint"]
    )
    assert change_map([before], create_cluster([member])).version == 1
    kept.stop()
    with socket.create_server((HOST, int(before.rpartition(":")[2]))):
        again = Supervisor(root, node.uuid, HOST)
        again.start()
        try:
            after = serving(again)["endpoint"]
            assert after != before
            map_ = eventually(lambda: ask_node(after).map)
            assert [member.endpoint for member in map_.node] == [after]
            assert map_.version == 2
        finally:
            again.stop()


# -- settings


def limits(kept: Supervisor) -> dict[str, Any]:
    with connect(f"grpc://{serving(kept)['endpoint']}") as client:
        found: Any = client.describe()["limits"]
        return dict(found)


def test_a_node_serves_with_the_settings_that_are_kept_and_takes_changed_ones_over(
    root: Path, node: NodeDrives, kept: Supervisor
) -> None:
    common = {"max_active_batches": 3, "tenant_weights": {"asr-team": 2.0}}
    settings_file.write(root, KeptSettings(1, common | {"nodes": {node.name: {"read_threads": 2}}}))
    kept.start()
    shown = limits(kept)
    assert (shown["max_active_batches"], shown["read_threads"]) == ("3", "2")
    assert shown["tenant_weights"] == "asr-team=2"
    before = serving(kept)
    assert before["settings"] == common | {"read_threads": 2}

    settings_file.write(root, KeptSettings(2, {"max_active_batches": 4}))
    kept.renew()
    eventually(lambda: kept.status()["settings"] == {"max_active_batches": 4})
    shown = limits(kept)
    assert (shown["max_active_batches"], shown["read_threads"], shown["tenant_weights"]) == ("4", "4", "")
    assert serving(kept)["endpoint"] == before["endpoint"]
    (said,) = cluster_status(root)["nodes"]
    assert said["changed_limits"] == {"max_active_batches": "4"}


def test_settings_that_make_no_sense_are_waited_for_and_said(root: Path, node: NodeDrives, kept: Supervisor) -> None:
    settings_file.write(root, KeptSettings(1, {"memory_gone": 3}))
    kept.start()
    eventually(lambda: "memory_gone: no such setting" in kept.status()["problem"])
    settings_file.path_of(root).write_text("{")
    eventually(lambda: "settings.json is damaged" in kept.status()["problem"])
    settings_file.write(root, KeptSettings(2, {}))
    serving(kept)


@pytest.mark.slow
def test_metrics_are_served_at_a_free_port_from_the_one_that_is_set(
    root: Path, node: NodeDrives, kept: Supervisor
) -> None:
    # Below the ports that the kernel gives to others, the next one among them while the node is down.
    first = free_port(HOST, among=range(30_000, 32_000))
    with socket.create_server((HOST, first)):
        settings_file.write(root, KeptSettings(1, {"metrics_port": first}))
        kept.start()
        url = serving(kept)["metrics_url"]
        port = int(url.removeprefix(f"http://{HOST}:").removesuffix("/metrics"))
        assert first < port < first + supervisor.METRICS_PORTS
        with urllib.request.urlopen(url, timeout=180) as answer:
            assert b"ais_loader_node_info" in answer.read()
        (shown,) = cluster_status(root)["nodes"]
        assert shown["metrics_url"] == url
    kept.stop()
    again = Supervisor(root, node.uuid, HOST)
    again.start()
    try:
        assert serving(again)["metrics_url"] == url
    finally:
        again.stop()


@pytest.mark.slow
def test_the_map_names_the_address_that_is_advertised_and_the_node_keeps_its_port(
    root: Path, node: NodeDrives, kept: Supervisor
) -> None:
    kept.start()
    first = serving(kept)["endpoint"]
    member = pb.MapNode(
        uuid=bytes.fromhex(node.uuid), host="here", endpoint=first, peer_endpoint=kept.status()["peer_endpoint"]
    )
    change_map([first], create_cluster([member]))
    with FaultyLink(f"grpc://{first}") as link:
        outer = link.url.removeprefix("grpc://")
        settings_file.write(root, KeptSettings(1, {"nodes": {node.name: {"advertise": outer}}}))
        kept.renew()
        eventually(lambda: (map_ := ask_node(first).map) is not None and map_.node[0].endpoint == outer)
        assert serving(kept)["endpoint"] == outer
        said = node_file.read(node.folder)
        assert said is not None
        assert (said.endpoint, said.listening, f"{HOST}:{said.port}") == (outer, first, first)
        (shown,) = cluster_status(root)["nodes"]
        assert (shown["endpoint"], shown["state"]) == (outer, "serving")
        with connect(f"grpc://{outer}") as client:
            assert client.create_bucket("b").put("x", b"there").size_bytes == 5
    # Its machine gets to it also where the outer address leads nowhere.
    (shown,) = cluster_status(root)["nodes"]
    assert (shown["endpoint"], shown["state"]) == (outer, "serving")


# -- short lives


def test_a_node_whose_processes_die_young_is_tried_less_and_less_and_says_so(
    root: Path, node: NodeDrives, kept: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = node_file.NodeFile(
        node.uuid, f"{HOST}:{free_port(HOST)}", born_s=1.0, short_lives=crash_backoff.FREE_TRIES + 2
    )
    node_file.write(node.folder, born)
    kept.start()
    eventually(lambda: "its process has ended 6 times within 30 s of its start" in kept.status()["problem"])
    status = kept.status()
    assert status["state"] == "waiting" and str(node_log.path_of(root, node.uuid)) in status["problem"]
    (shown,) = eventually(lambda: [one for one in cluster_status(root)["nodes"] if "ended 6 times" in one["problem"]])
    assert shown["state"] == "down"
    kept.hurry()
    serving(kept)
    said = node_file.read(node.folder)
    assert said is not None and said.born_s > 0 and said.short_lives == 6
    monkeypatch.setattr(crash_backoff, "SHORT_LIFE_S", 0.0)
    eventually(lambda: node_file.read(node.folder) == replace(said, born_s=0.0, short_lives=0))


def test_rests_between_tries_grow_and_stay_below_some_minutes() -> None:
    rests = [crash_backoff.rest_s(short) for short in range(60)]
    assert rests[:3] == [0.0, 0.0, 0.0] and rests[3:6] == [2.0, 4.0, 8.0]
    assert rests == sorted(rests) and rests[-1] == 300.0


def test_a_life_that_ends_in_order_is_not_a_short_one(root: Path, node: NodeDrives, kept: Supervisor) -> None:
    node_file.write(node.folder, node_file.NodeFile(node.uuid, born_s=1.0, short_lives=1))
    kept.start()
    serving(kept)
    said = node_file.read(node.folder)
    assert said is not None and said.born_s > 1.0 and said.short_lives == 2
    kept.stop()
    said = node_file.read(node.folder)
    assert said is not None and (said.born_s, said.short_lives) == (0.0, 0)


@pytest.mark.slow
def test_a_process_that_crashes_whenever_it_begins_rests_and_leaves_its_stack_in_the_log(
    root: Path, node: NodeDrives
) -> None:
    """As Ray does it, but for Ray: the same process is begun again at once whenever it has ended."""
    life = (
        "import sys, ctypes; from storage_node.ops import crash_backoff\n"
        "from storage_node.ops.actor import StorageNodeActor\n"
        "rest_s = crash_backoff.rest_s\n"
        "crash_backoff.rest_s = lambda lives: 900 * rest_s(lives)  # it is looked at meanwhile\n"
        "from storage_node.server import NodeServer\n"
        "NodeServer.start = lambda self: ctypes.string_at(0)\n"
        "node = StorageNodeActor(*sys.argv[1:]); sys.stdin.read()"
    )
    command = [sys.executable, "-c", life, str(root), node.uuid, HOST]
    for _ in range(crash_backoff.FREE_TRIES):
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            assert process.wait(timeout=180) == -signal.SIGSEGV
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        eventually(lambda: "ended 3 times" in (cluster_status(root)["nodes"] or [{"problem": ""}])[0]["problem"])
        assert process.poll() is None
        process.communicate(timeout=180)
    told = "\n".join(node_log.tail(root, node.uuid, 1000))
    assert told.count("Segmentation fault") == crash_backoff.FREE_TRIES
    assert "ended 3 times" in told
