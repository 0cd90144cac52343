"""`ais-loader cluster drive` against nodes that run: what an operator types, reads, and is refused."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ais_loader import connect
from ais_loader.cli.main import main
from ais_loader.testing import eventually
from storage_node.ops.status import cluster_status
from storage_node.store.drive import identity as identities
from tests.node.drive_kit import TIMEOUT_S, DriveCluster, drive_cluster
from tests.patience import PATIENT_CLIENT
from tests.table import table

OBJECTS = {f"k{at}": b"%d " % at * 50 for at in range(60)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DriveCluster]:
    with (
        drive_cluster(tmp_path, 2, buckets={"b": 2}, reconcile_patience_s=1.0) as made,
        connect(made.url) as client,
    ):
        client.bucket("b").put_many(OBJECTS.items())
        made.copied("b", set(OBJECTS))
        yield made


def run(cluster: DriveCluster, *words: str) -> Result:
    return CliRunner().invoke(main, ["cluster", "drive", *words, "--root", str(cluster.root)])


def done(cluster: DriveCluster, *words: str) -> str:
    result = run(cluster, *words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(cluster: DriveCluster, *words: str) -> str:
    result = run(cluster, *words)
    assert result.exit_code == 1 and "Traceback" not in result.output
    return result.output


def listed(cluster: DriveCluster, number: int) -> dict[str, str]:
    """Folder and state of a node's drives."""
    found: dict[str, Any] = json.loads(done(cluster, "list", "--node", f"node-{number}", "--json"))
    (node,) = found["nodes"]
    return {Path(drive["path"]).name: drive["state"] for drive in node["drives"]}


def readable(cluster: DriveCluster) -> None:
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        assert client.bucket("b").get_batch(list(OBJECTS)).tobytes() == list(OBJECTS.values())


@pytest.mark.slow
def test_drives_are_listed_added_retired_disabled_enabled_and_replaced(cluster: DriveCluster) -> None:
    text = done(cluster, "list")
    assert "node-0 at 127.0.0.1:" in text and f"{cluster.folder(1, 1)}: active, " in text and "about" not in text
    assert "drive-2: active" in done(cluster, "add", "--node", "node-0")
    assert listed(cluster, 0) == {f"drive-{at}": "active" for at in range(3)}
    said = done(cluster, "retire", str(cluster.folder(0, 0)))
    assert "drive-0 retires" in said and "drive-0: active" not in said  # retiring, or empty already
    eventually(lambda: listed(cluster, 0) == {"drive-1": "active", "drive-2": "active"}, TIMEOUT_S, interval_s=0.1)
    readable(cluster)

    assert "disabled by hand" in done(cluster, "disable", "drive-1", "--node", "node-1")
    assert listed(cluster, 1) == {"drive-0": "active", "drive-1": "disabled"}
    (degraded,) = [node for node in cluster_status(cluster.root)["nodes"] if node["name"] == "node-1"]
    assert degraded["state"] == "degraded" and "drive-1: disabled by hand" in degraded["problem"]
    assert CliRunner().invoke(main, ["cluster", "status", "--root", str(cluster.root)]).exit_code == 1
    readable(cluster)
    done(cluster, "enable", "drive-1", "--node", "node-1")
    cluster.settled(1)
    assert listed(cluster, 1) == {"drive-0": "active", "drive-1": "active"}

    done(cluster, "disable", "drive-0", "--node", "node-1")
    assert "given up" in done(cluster, "replace", "drive-0", "--node", "node-1")
    assert listed(cluster, 1) == {"drive-1": "active", "drive-2": "active"}
    cluster.settled(1)
    eventually(lambda: cluster.in_place("b", set(OBJECTS)), TIMEOUT_S, interval_s=0.1)
    readable(cluster)

    def is_shown() -> bool:
        status = CliRunner().invoke(main, ["cluster", "status", "--root", str(cluster.root)])
        return status.exit_code == 0 and f"  {cluster.folder(1, 2)}: active" in status.output

    eventually(is_shown, TIMEOUT_S, interval_s=0.1)


@pytest.mark.slow
@table(
    ("words", "reason"),
    [
        (["retire", "drive-0"], "several nodes have a drive drive-0: say which one with --node (node-0, node-1)"),
        (["retire", "drive-9", "--node", "node-0"], "no drive drive-9; there are"),
        (["disable", "drive-0", "--node", "node-7"], "no node node-7; there are node-0, node-1"),
        (["add"], "2 nodes: say which one with --node"),
        (["add", "/elsewhere/drive", "--node", "node-0"], "/NODE/DRIVE; mount the disk there, or link to it"),
        (["add", "ROOT/node-0/drive-1", "--node", "node-0"], "is a drive of this store already"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(cluster: DriveCluster, words: list[str], reason: str) -> None:
    said = refused(cluster, *(word.replace("ROOT", str(cluster.root)) for word in words))
    assert reason in said and said.count("\n") == 1
    assert listed(cluster, 0) == {"drive-0": "active", "drive-1": "active"}


@pytest.mark.slow
def test_a_drive_with_the_only_other_copies_is_given_up_only_as_lost(cluster: DriveCluster) -> None:
    for number in range(2):
        done(cluster, "disable", "drive-0", "--node", f"node-{number}")
    said = refused(cluster, "retire", "drive-0", "--node", "node-0")
    assert "kept" in said and "the only other copies" in said
    assert listed(cluster, 0) == {"drive-0": "disabled", "drive-1": "active"}
    done(cluster, "enable", "drive-0", "--node", "node-1")
    cluster.settled(1)
    # A busy node may not say in time how its copies are.
    eventually(lambda: run(cluster, "retire", "drive-0", "--node", "node-0").exit_code == 0, TIMEOUT_S, interval_s=0.1)
    cluster.settled(0)
    readable(cluster)


def returned(kept: Path, folder: Path) -> None:
    """Move a drive's folder back."""
    if folder.exists():  # a log that was being written may have made it
        shutil.rmtree(folder)
    kept.rename(folder)


@pytest.mark.slow
def test_a_missing_drive_that_is_disabled_is_used_only_once_it_is_enabled(
    cluster: DriveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(cluster, "add", "--node", "node-0")
    cluster.settled(0)
    folder, awaited = cluster.folder(0, 0), cluster.folder(0, 2)
    looked, read = list[Path](), identities.read

    def noted(path: Path) -> object:
        if threading.current_thread() is not threading.main_thread():  # where the commands of this test run
            looked.append(path)
        return read(path)

    def away(one: Path) -> Path:
        return tmp_path / f"away-{one.name}"

    for one in (folder, awaited):
        one.rename(away(one))
    missing = {"drive-0": "missing", "drive-1": "active", "drive-2": "missing"}
    eventually(lambda: listed(cluster, 0) == missing, TIMEOUT_S, interval_s=0.1)
    done(cluster, "disable", "drive-0", "--node", "node-0")
    returned(away(folder), folder)
    monkeypatch.setattr(identities, "read", noted)
    eventually(lambda: looked.count(folder) >= 2, TIMEOUT_S)  # the node still looks for the other one
    assert listed(cluster, 0) == missing
    done(cluster, "enable", "drive-0", "--node", "node-0")
    returned(away(awaited), awaited)
    eventually(lambda: set(listed(cluster, 0).values()) == {"active"}, TIMEOUT_S, interval_s=0.1)
    cluster.settled(0)
    readable(cluster)


def test_a_node_that_does_not_answer_is_said(cluster: DriveCluster) -> None:
    cluster.nodes[1].stop(grace_s=0.1)
    result = run(cluster, "list")
    assert result.exit_code == 1
    assert "does not answer" in result.output and f"{cluster.folder(0, 0)}: active" in result.output
    assert "does not answer" in refused(cluster, "disable", "drive-0", "--node", "node-1")
