"""A node that is kept serving: what it waits for, and what it says meanwhile."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader.client import connect
from ais_loader.testing.folders import throwaway_folder
from ais_loader.testing.waiting import eventually
from protos import ais_cluster_pb2 as pb
from storage_node.actor import StorageNodeActor
from storage_node.cluster import caretaker, node_file
from storage_node.cluster.asking import ask_node
from storage_node.cluster.caretaker import Caretaker
from storage_node.cluster.change import change_map
from storage_node.cluster.condition import condition
from storage_node.cluster.drives import NodeDrives, make_nodes
from storage_node.cluster.edits import create_cluster
from storage_node.cluster.ports import free_port
from storage_node.store.store import Store

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
    monkeypatch.setattr(caretaker, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(caretaker, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(caretaker, "LOOK_INTERVAL_S", 0.05)


@pytest.fixture
def kept(root: Path, node: NodeDrives) -> Iterator[Caretaker]:
    """Not started."""
    kept = Caretaker(root, node.uuid, HOST)
    yield kept
    kept.stop(0.0)


def serving(kept: Caretaker) -> dict[str, Any]:
    eventually(lambda: kept.status()["state"] == "serving")
    return kept.status()


def test_a_node_serves_its_drives_and_keeps_its_port_in_its_next_life(
    root: Path, node: NodeDrives, kept: Caretaker
) -> None:
    assert kept.status()["state"] == "starting"
    kept.start()
    first = serving(kept)
    assert (first["drives"], first["problem"]) == ([str(drive) for drive in node.drives], "")
    with connect(f"grpc://{first['endpoint']}") as client:
        client.create_bucket("b").put("x", b"there")
    kept.stop()
    assert kept.status()["state"] == "stopped"
    again = Caretaker(root, node.uuid, HOST)
    again.start()
    try:
        assert serving(again)["endpoint"] == first["endpoint"]
        with connect(f"grpc://{first['endpoint']}") as client:
            assert client.bucket("b").get("x") == b"there"
    finally:
        again.stop()


def test_drives_that_somebody_holds_are_waited_for(node: NodeDrives, kept: Caretaker) -> None:
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


def test_what_a_node_waits_for_is_shown_by_status(root: Path, node: NodeDrives, kept: Caretaker) -> None:
    node_file.write(node.folder, node_file.NodeFile(node.uuid, f"{HOST}:{free_port(HOST)}"))
    with Store.open(node.drives, mode="a"):
        kept.start()
        (shown,) = eventually(lambda: [one for one in condition(root)["nodes"] if "it said: " in one["problem"]])
        assert shown["state"] == "down" and "open" in shown["problem"].partition("it said: ")[2]
    serving(kept)
    (shown,) = condition(root)["nodes"]
    assert (shown["state"], shown["problem"]) == ("serving", "")
    said = node_file.read(node.folder)
    assert said is not None and said.problem == ""


def test_a_drive_that_appears_later_is_taken_in(node: NodeDrives, root: Path, kept: Caretaker) -> None:
    away = root / ".away"
    node.drives[1].rename(away)
    kept.start()
    assert serving(kept)["drives"] == [str(node.drives[0])]
    away.rename(node.drives[1])
    eventually(lambda: len(kept.status()["drives"]) == 2)
    with connect(f"grpc://{serving(kept)['endpoint']}") as client:
        drives: Any = client.describe()["drives"]
        assert [drive["state"] for drive in drives] == ["ok", "ok"]


def test_a_node_never_starts_on_drives_of_another(root: Path, node: NodeDrives, kept: Caretaker) -> None:
    other = make_nodes(root, 1, 1)[0]
    shutil.rmtree(node.folder)
    other.folder.rename(node.folder)
    kept.start()
    eventually(lambda: kept.status()["tries"] > 2)
    assert kept.status()["state"] == "waiting"


def test_a_taken_port_is_waited_for_and_then_another_is_used(
    node: NodeDrives, kept: Caretaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "PORT_PATIENCE_S", 0.2)
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        node_file.write(node.folder, node_file.NodeFile(node.uuid, f"{HOST}:{port}"))
        kept.start()
        eventually(lambda: f"port {port}" in kept.status()["problem"])
        moved = serving(kept)["endpoint"]
    said = node_file.read(node.folder)
    assert said is not None and said.endpoint == moved != f"{HOST}:{port}"


def test_a_node_that_had_to_move_has_the_map_say_so(
    root: Path, node: NodeDrives, kept: Caretaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "PORT_PATIENCE_S", 0.0)
    kept.start()
    before = serving(kept)["endpoint"]
    member = pb.MapNode(uuid=bytes.fromhex(node.uuid), host="here", endpoint=before)
    assert change_map([before], create_cluster([member])).version == 1
    kept.stop()
    with socket.create_server((HOST, int(before.rpartition(":")[2]))):
        again = Caretaker(root, node.uuid, HOST)
        again.start()
        try:
            after = serving(again)["endpoint"]
            assert after != before
            map_ = eventually(lambda: ask_node(after).map)
            assert [member.endpoint for member in map_.node] == [after]
            assert map_.version == 2
        finally:
            again.stop()
