"""Drives of running nodes that fail, come, go and fill up while clients read and write.

Nothing acknowledged is lost, nothing old is read, every object has its copies again in the end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader import connect, errors
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.ops import drive_commands, node_file, peer_secret
from storage_node.ops.drive_commands import NodeOfDrives
from storage_node.ops.node_file import NodeFile
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from tests.cluster_processes import ClusterProcesses
from tests.faults.eio_kit import EioShim
from tests.faults.ledger_kit import (
    BUCKET,
    OPTIONS,
    TIMEOUT_S,
    Ledger,
    assert_content,
    content,
    equal,
    put,
    reading,
    writing,
)
from tests.peer_kit import PROCESS_OPERATOR
from tests.store.small_drive import small_drive

pytestmark = pytest.mark.slow  # real processes, killed and awaited

KEYS = [f"k{at:03}" for at in range(60)]
INTERVAL_S = 2.0
"""Between two passes of repair: copies that a full drive could not take are made by the next one."""


class Cluster:
    """Three nodes of two drives below a root, as an operator sees them."""

    def __init__(self, root: Path, processes: ClusterProcesses) -> None:
        self.root = root
        self.processes = processes
        peer_secret.make(root, PROCESS_OPERATOR.secret)
        for number, node in enumerate(processes.nodes):
            endpoint = node.url.removeprefix("grpc://")
            node_file.write(root / f"node-{number}", NodeFile(processes.uuid_of(number).hex(), endpoint))

    @property
    def nodes(self) -> list[NodeProcess]:
        return self.processes.nodes

    def node(self, number: int) -> NodeOfDrives:
        return drive_commands.find_node(drive_commands.nodes_with_drives(self.root), f"node-{number}")

    def drives(self, number: int) -> pb.ListDrivesResponse:
        # An operator gives up on a node after three seconds.
        found = eventually(lambda: self.node(number).drives)
        assert found is not None
        return found

    def folder(self, number: int, drive: int) -> Path:
        return self.root / f"node-{number}" / f"drive-{drive}"

    def states(self, number: int) -> dict[str, str]:
        return {Path(one.path).name: pb.DriveCondition.State.Name(one.state) for one in self.drives(number).drive}

    def drive(self, number: int, drive: int) -> pb.DriveCondition:
        name = f"drive-{drive}"
        return next(one for one in self.drives(number).drive if Path(one.path).name == name)

    def keeps(self, number: int, drive: int) -> bool:
        """Whether the drive has an object: its own estimate may be 0, as RocksDB's is after removals."""
        catalog = Catalog(self.folder(number, drive) / "catalog", writable=False)
        try:
            return bool(catalog.part(fmt.OBJECT_PREFIX, None, None, 1))
        finally:
            catalog.close()

    def command(self, *words: str | Path) -> str:
        """`ais-loader cluster drive ...`, as an operator types it, until the nodes answer. Raises when it fails."""

        def done() -> subprocess.CompletedProcess[str] | None:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "ais_loader.cli",
                    "cluster",
                    "drive",
                    *map(str, words),
                    "--root",
                    str(self.root),
                ],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            return None if done.returncode and "does not answer" in done.stderr else done

        answered = eventually(done)
        assert answered is not None and answered.returncode == 0, answered
        return answered.stdout

    def calm(self, number: int) -> bool:
        report = self.drives(number)
        return not report.moving and not report.refilling

    def settle(self, ledger: Ledger) -> None:
        """Wait until every object has its copies, where they belong."""
        for number in range(len(self.nodes)):
            eventually(lambda number=number: self.calm(number), TIMEOUT_S, interval_s=0.2)  # type: ignore[misc]
        eventually(lambda: equal(self.nodes, ledger), TIMEOUT_S, interval_s=0.2)


@contextmanager
def three(
    root: Path, *, min_copies: int = 2, environment: dict[str, str] | None = None, arguments: Sequence[str] = ()
) -> Iterator[tuple[Cluster, Ledger]]:
    """`min_copies`: with 1, what a write leaves on one node alone is lost with that node's drive."""
    passes = ["--set", f"repair_interval_s={INTERVAL_S}"]
    with ClusterProcesses(
        root,
        3,
        drives_per_node=2,
        buckets={BUCKET: 2},
        min_copies=min_copies,
        environment=environment,
        arguments=[*passes, *arguments],
    ) as processes:
        cluster, ledger = Cluster(root, processes), Ledger()
        with connect(processes.url, options=OPTIONS) as client:
            put(client.bucket(BUCKET), ledger, KEYS)
        yield cluster, ledger


def test_a_drive_that_fails_under_load_is_disabled_and_replaced_and_no_client_notices(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    shim = EioShim(tmp_path, root / "node-1" / "drive-0")
    with three(root, environment=shim.environment) as (cluster, ledger):
        with (
            reading(cluster.processes.url, ledger) as clients,
            writing(cluster.processes.url, ledger, KEYS, seed=7) as writers,
        ):
            clients.round()
            shim.break_drive()
            eventually(lambda: cluster.states(1)["drive-0"] == "DISABLED", TIMEOUT_S, interval_s=0.2)
            assert "I/O errors within" in cluster.drive(1, 0).problem
            clients.round(2)
            writers.round()
            said = cluster.command("replace", "drive-0", "--node", "node-1")
            assert "drive-2: active" in said and "drive-0" not in said
            clients.round(2)
            writers.round()
            writers.stop()
            cluster.settle(ledger)
            clients.round()
            clients.check()
        assert cluster.states(1) == {"drive-1": "ACTIVE", "drive-2": "ACTIVE"}
        assert_content(cluster.processes.url, ledger)
        assert cluster.keeps(1, 2)


def test_a_drive_that_fails_is_given_up_by_itself_after_its_grace(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    shim = EioShim(tmp_path, root / "node-2" / "drive-1")
    with three(root, environment=shim.environment, arguments=["--set", "drive_grace_s=1"]) as (cluster, ledger):
        with reading(cluster.processes.url, ledger) as clients:
            shim.break_drive("read")
            eventually(lambda: cluster.states(2) == {"drive-0": "ACTIVE"}, TIMEOUT_S, interval_s=0.2)
            cluster.settle(ledger)
            clients.round()
            clients.check()
        assert_content(cluster.processes.url, ledger)


@pytest.mark.parametrize("change", ["add", pytest.param("retire", marks=pytest.mark.exhaustive)])
def test_objects_move_between_drives_under_load_and_over_a_kill(tmp_path: Path, change: str) -> None:
    # Until the node is killed, the second object waits for longer than a machine stands still, even a small one.
    with three(tmp_path, arguments=["--set", "drive_move_bytes_per_s=2"]) as (cluster, ledger):
        node = cluster.nodes[0]
        with connect(cluster.processes.url, options=OPTIONS) as client:
            put(client.bucket(BUCKET), ledger, [f"large{at:02}9" for at in range(24)])
        with (
            reading(cluster.processes.url, ledger) as clients,
            writing(cluster.processes.url, ledger, KEYS, seed=11) as writers,
        ):
            clients.round()
            if change == "add":
                cluster.command("add", "--node", "node-0")
                node.drives.append(cluster.folder(0, 2))
            else:
                cluster.command("retire", "drive-0", "--node", "node-0")
            eventually(lambda: cluster.drives(0).objects_moved, TIMEOUT_S)
            assert cluster.drives(0).moving, "it is killed in the middle"
            node.kill()
            node._arguments[node._arguments.index("drive_move_bytes_per_s=2")] = "drive_move_bytes_per_s=100000"
            writers.round()
            node.start()
            clients.round(2)
            writers.round()
            writers.stop()
            if change == "retire":
                eventually(lambda: cluster.states(0) == {"drive-1": "ACTIVE"}, TIMEOUT_S, interval_s=0.2)
            cluster.settle(ledger)
            clients.round()
            clients.check()
        if change == "add":
            assert cluster.states(0) == {f"drive-{at}": "ACTIVE" for at in range(3)}
            assert cluster.keeps(0, 2)
        else:
            node.restart()
            assert cluster.states(0) == {"drive-1": "ACTIVE"}, "its folder says that it is not the node's any more"
        assert_content(cluster.processes.url, ledger)


def test_a_full_drive_takes_no_write_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_drive(tmp_path, monkeypatch) as small:
        if small.kind != "mounted":
            pytest.skip("nobody but root can mount a file system, and nothing can be injected into other processes")
        small.root.mkdir()
        (tmp_path / "cluster" / "node-0").mkdir(parents=True)
        (tmp_path / "cluster" / "node-0" / "drive-0").symlink_to(small.root)
        with three(tmp_path / "cluster", min_copies=1) as (cluster, ledger), connect(cluster.processes.url) as client:
            bucket = client.bucket(BUCKET)
            with reading(cluster.processes.url, ledger) as clients:
                clients.round()
                small.leave(0)
                stored, failed = 0, list[str]()
                for at in range(40):
                    key = f"new{at:03}9"  # large ones
                    number = ledger.begin(key, alive=True)
                    try:
                        bucket.put(key, content(key, number), metadata={"number": str(number)})
                    except errors.LoaderError as error:
                        assert isinstance(error, errors.DriveFull | errors.NodeUnavailable), error
                        failed.append(key)  # some node may have it
                        continue
                    ledger.done(key, number, alive=True)
                    stored += 1
                assert stored, "most belong elsewhere, or have their copies elsewhere for now"
                clients.round()
                small.release()
                put(bucket, ledger, [*KEYS[:20], *failed])
                cluster.settle(ledger)
                clients.round()
                clients.check()
            assert "DISABLED" not in cluster.states(0).values(), "a full drive is no failing one"
            assert_content(cluster.processes.url, ledger)
