"""Copies that are missing or damaged, as operators see them: in `cluster status`, and in what is exported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ais_loader import connect
from ais_loader.cli.show import OutputLines
from ais_loader.errors import CorruptObject
from ais_loader.testing import eventually, seeded_bytes
from storage_node.cli.cluster_status import counted, show_condition
from storage_node.context.channels import Caller
from storage_node.ops import status
from storage_node.ops.ask_nodes import NodeAnswer
from storage_node.server import NodeServer
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.node_kit import scrape
from tests.store.store_kit import file_of, flip_a_byte

pytestmark = pytest.mark.slow

TIMEOUT_S = 180.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes with three objects on both."""
    with LocalCluster(tmp_path, 2, copies=2, metrics_port=0, repair_interval_s=0.3, scrub_interval_s=0) as cluster:
        with connect(cluster.nodes[0].url) as client:
            for number in range(3):
                client.bucket(BUCKET).put(f"{number}", seeded_bytes(70_000, seed=number))
        yield cluster


def shown(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, str]:
    """What `cluster status` has of node 0, for programs and for people."""
    monkeypatch.setattr(status, "_map_on_drives", lambda found: cluster.map)
    found = status.cluster_status(Path("/nowhere"))
    found |= counted(found)
    capsys.readouterr()
    with OutputLines() as lines:
        show_condition(found, lines)
    return found["nodes"][0], capsys.readouterr().out


def exported(node: NodeServer, name: str) -> float:
    families = text_string_to_metric_families(scrape(node))
    [value] = [sample.value for family in families for sample in family.samples if sample.name == name]
    return float(value)


def test_objects_short_of_copies_are_shown_and_exported(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = cluster.nodes[0]
    eventually(lambda: shown(cluster, monkeypatch, capsys)[0]["state"] == "serving", TIMEOUT_S, interval_s=0.1)
    assert exported(here, "ais_loader_repair_short_objects") == 0
    cluster.nodes[1].stop(grace_s=0.2)
    eventually(lambda: exported(here, "ais_loader_repair_short_objects") == 3, TIMEOUT_S)
    node, text = shown(cluster, monkeypatch, capsys)
    assert (node["state"], node["repair"]["short_objects"]) == ("degraded", {BUCKET: 3})
    assert "3 objects of 'b' have too few copies" in node["problem"] and node["problem"] in text


def test_damaged_copies_that_cannot_be_mended_are_shown_and_exported(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, store = cluster.nodes[0], cluster.batches(0).node.store
    cluster.nodes[1].stop(grace_s=0.2)
    flip_a_byte(file_of(store, "0", BUCKET))
    with connect(here.url) as client, pytest.raises((CorruptObject, ConnectionError)):
        client.bucket(BUCKET).get_batch(["0"], timeout_s=180.0).tobytes()
    eventually(lambda: exported(here, "ais_loader_damaged_copies") == 1, TIMEOUT_S)
    node, text = shown(cluster, monkeypatch, capsys)
    assert (node["state"], node["repair"]["scrub"]["damaged"]) == ("degraded", 1)
    assert "1 copies are damaged" in node["problem"] and node["problem"] in text
    assert node["repair"]["scrub"].keys() >= {"pass_objects", "pass_bytes", "finished_s", "is_under_way"}


def test_a_node_that_does_not_say_how_its_copies_are_is_not_well(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where an operator has another secret than the nodes, or no way to where they listen for it."""
    ask = status.ask_nodes

    def ask_and_hear_less(endpoints: Iterable[str], caller: Caller) -> dict[str, NodeAnswer]:
        return {where: replace(one, progress=None, drives=None) for where, one in ask(endpoints, caller).items()}

    monkeypatch.setattr(status, "ask_nodes", ask_and_hear_less)
    node, text = shown(cluster, monkeypatch, capsys)
    assert node["state"] == "degraded" and node["peer_endpoint"] in node["problem"] and node["problem"] in text
