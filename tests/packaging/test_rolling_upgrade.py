"""Nodes of the last release and of this tree in one cluster: upgraded one by one under load, and back again.

The last release is its tag's, or that of HEAD before the first tag. Its wheel is in an environment of its own, whose
interpreter a node is started by; the dependencies are those of the tests.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import eventually, throwaway_folder
from tests.cluster_processes import ClusterProcesses, ProcessPlace
from tests.faults.ledger_kit import (
    BUCKET,
    TIMEOUT_S,
    Clients,
    Ledger,
    Writers,
    assert_content,
    equal,
    put,
    reading,
    writing,
)
from tests.packaging.packaging_kit import ROOT, environment_of, last_release, make_dist, run
from tests.patience import PATIENT_CLIENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NODES = 3
KEYS = [f"k/{number:02}" for number in range(30)]
LAUNCHER = """#!/bin/sh
# Replaces the interpreter by the one that the file names; -P: not the modules of the current folder.
shift
exec "$(cat "$0.python")" -P "$@"
"""


@pytest.fixture(scope="module")
def before() -> Iterator[Path]:
    """The interpreter of an environment with the last release."""
    with throwaway_folder() as folder:
        run("git", "archive", "--output", folder / "tree.tar", last_release(), cwd=ROOT)
        with tarfile.open(folder / "tree.tar") as archive:
            archive.extractall(folder / "tree", filter="data")
        make_dist(folder / "tree", folder / "dist", UV_NO_BUILD_ISOLATION="1", UV_OFFLINE="1")
        (wheel,) = (folder / "dist").glob("*.whl")
        yield environment_of(wheel, folder / "venv")


class Versions:
    """A cluster whose nodes run by the interpreter that each one's launcher names."""

    def __init__(self, folder: Path, first: Path) -> None:
        self.launchers = [folder / f"node-{number}.sh" for number in range(NODES)]
        for launcher in self.launchers:
            launcher.write_text(LAUNCHER)
            launcher.chmod(0o755)
            self._choose(launcher, first)
        places = [ProcessPlace(launcher=(str(launcher),)) for launcher in self.launchers]
        self.cluster = ClusterProcesses(folder / "drives", NODES, places=places, buckets={BUCKET: 2})

    def _choose(self, launcher: Path, python: Path) -> None:
        Path(f"{launcher}.python").write_text(str(python))

    def change(self, number: int, python: Path) -> None:
        """Stop a node as an operator does, and start it by another interpreter."""
        node = self.cluster.nodes[number]
        assert node.stop() == 0
        self._choose(self.launchers[number], python)
        node.start()

    def from_wheel(self) -> list[bool]:
        """Whether each node runs the installed release, by the native module that it has mapped."""
        maps = [Path(f"/proc/{node.pid}/maps").read_text() for node in self.cluster.nodes]
        assert all("_native" in text for text in maps)
        return [f"{ROOT}/storage_node" not in text for text in maps]


def round_of(clients: Clients, writers: Writers) -> None:
    """Every key has been read in every way, and changed, since."""
    writers.round()
    clients.round()


def test_nodes_are_upgraded_one_by_one_under_load_and_back_again(before: Path, tmp_path: Path) -> None:
    """As long as no node has written a newer format. A client with default options meets no error."""
    now = Path(sys.executable)
    versions = Versions(tmp_path, before)
    ledger = Ledger()
    with versions.cluster as cluster, connect(cluster.url) as client:
        put(client.bucket(BUCKET), ledger, KEYS)
        assert versions.from_wheel() == [True] * NODES
        with (
            reading(cluster.url, ledger, PATIENT_CLIENT) as clients,
            writing(cluster.url, ledger, KEYS, seed=1, options=PATIENT_CLIENT) as writers,
        ):
            for python in (now, before):
                for number in range(NODES):
                    versions.change(number, python)
                    round_of(clients, writers)
                assert versions.from_wheel() == [python == before] * NODES
            writers.stop()
            clients.round()
            clients.check()
        assert (writers.faults, writers.retries) == ([], 0)
        eventually(lambda: equal(cluster.nodes, ledger), 2 * TIMEOUT_S, interval_s=0.5)
        assert_content(cluster.url, ledger)
