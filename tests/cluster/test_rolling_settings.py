"""Which settings hosts keep, and in which order nodes that run take them over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ais_loader.wire.generated.ais_replica_pb2 import ProgressResponse
from storage_node.context.channels import OPERATOR
from storage_node.ops import ray_actors, rolling_settings
from storage_node.ops.ask_nodes import NodeAnswer
from storage_node.ops.node_discovery import FoundNodes, NodeDrives
from storage_node.ops.ray_actors import Host, Started
from storage_node.ops.settings_store import KeptSettings
from storage_node.settings.sources import WrongSetting, read_assignments

ROOT = Path("/r")
NODES = [NodeDrives(letter * 32, (ROOT / f"node-{number}" / "drive-1",)) for number, letter in enumerate("abc", 1)]


def host(number: int, settings: KeptSettings, answers: bool = True) -> Host:
    return Host(f"10.0.0.{number}", f"host-{number}", FoundNodes(nodes=(NODES[number - 1],)), settings, answers)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, KeptSettings]:
    """What hosts were told to keep, by their address."""
    told: dict[str, KeptSettings] = {}
    monkeypatch.setattr(
        ray_actors, "keep_settings", lambda _, hosts, settings: told.update({one.address: settings for one in hosts})
    )
    return told


def test_the_newest_settings_go_to_hosts_that_were_away(kept: dict[str, KeptSettings]) -> None:
    old, new = KeptSettings(1, {"read_threads": 2}), KeptSettings(2, {"read_threads": 3})
    damaged = KeptSettings(problem="damaged")
    assert rolling_settings.settle(ROOT, [host(1, old), host(2, new), host(3, damaged)], None, instead=False) == new
    assert kept == {"10.0.0.1": new, "10.0.0.3": new}


def test_a_change_is_a_new_version_and_no_change_is_none(kept: dict[str, KeptSettings]) -> None:
    before = KeptSettings(4, {"read_threads": 2, "nodes": {"node-9": {"read_threads": 1}}})
    hosts = [host(1, before), host(2, before, answers=False)]
    same = rolling_settings.settle(ROOT, hosts, read_assignments(["read_threads=2"]), instead=False)
    assert same == before and not kept
    changed = rolling_settings.settle(
        ROOT, hosts, read_assignments(["nodes.node-9.read_threads=default"]), instead=False
    )
    assert changed == KeptSettings(5, {"read_threads": 2})
    assert kept == {"10.0.0.1": changed}
    assert rolling_settings.settle(ROOT, hosts, read_assignments(["memory_bytes=7"]), instead=True).values == {
        "memory_bytes": 7
    }
    with pytest.raises(WrongSetting, match=r"nodes\.node-8: no such node"):
        rolling_settings.settle(ROOT, hosts, read_assignments(["nodes.node-8.memory_bytes=7"]), instead=False)


def test_nobody_keeps_anything_where_nothing_was_ever_set(kept: dict[str, KeptSettings]) -> None:
    assert rolling_settings.settle(ROOT, [host(1, KeptSettings())], None, instead=False) == KeptSettings()
    assert not kept


class Nodes:
    """That take over settings at once, but for those that cannot serve with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str = "") -> None:
        self.log: list[str] = []
        self._failing = failing
        monkeypatch.setattr(ray_actors, "renew", lambda one: self.log.append(f"renew {one.node.name}"))
        monkeypatch.setattr(ray_actors, "wait_serving", self._wait)
        monkeypatch.setattr(rolling_settings, "ask_node", self._ask)
        self._asked: dict[str, int] = {}

    def statuses(self, **settings: Any) -> list[dict[str, Any]]:
        return [
            {
                "uuid": one.uuid,
                "name": one.name,
                "state": "serving",
                "problem": "",
                "settings": dict(settings),
                "endpoint": one.name,
            }
            for one in NODES
        ]

    def _wait(self, started: list[Started], timeout_s: float, tell: Any, done: Any) -> list[dict[str, Any]]:
        (one,) = started
        status = self.statuses(read_threads=9)[NODES.index(one.node)]
        if one.node.name == self._failing:
            status |= {"state": "waiting", "problem": "no such library"}
        assert done(status) is (one.node.name != self._failing)
        return [status]

    def _ask(self, endpoint: str, _: object) -> NodeAnswer:
        """In doubt about its copies when it is asked first."""
        self._asked[endpoint] = self._asked.get(endpoint, 0) + 1
        doubtful = self._asked[endpoint] < 2
        self.log.append(f"{endpoint} {'compares' if doubtful else 'is trusted'}")
        return NodeAnswer(endpoint, progress=ProgressResponse(doubtful_bucket=["b"] if doubtful else []))


STARTED = [Started(node, Host("", "", FoundNodes()), None) for node in NODES]


def test_nodes_take_settings_over_one_after_the_other_when_the_one_before_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes(monkeypatch)
    statuses = nodes.statuses(read_threads=2)
    statuses[1]["settings"] = {"read_threads": 9}  # it has just been started with them
    kept = KeptSettings(1, {"read_threads": 9})
    now = rolling_settings.take_over(STARTED, statuses, kept, OPERATOR, 20.0, lambda _: None)
    assert nodes.log == [
        "renew node-1",
        "node-1 compares",
        "node-1 is trusted",
        "renew node-3",
        "node-3 compares",
        "node-3 is trusted",
    ]
    assert [status["settings"] for status in now] == [{"read_threads": 9}] * 3


def test_settings_with_which_a_node_cannot_serve_stop_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, told = Nodes(monkeypatch, failing="node-1"), list[str]()
    settings = KeptSettings(1, {"read_threads": 9})
    now = rolling_settings.take_over(STARTED, nodes.statuses(read_threads=2), settings, OPERATOR, 20.0, told.append)
    assert nodes.log == ["renew node-1"]
    assert [status["state"] for status in now] == ["waiting", "serving", "serving"]
    assert told[-1].startswith("node-1 does not serve with its new settings: no such library.")
