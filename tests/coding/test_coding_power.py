"""Power that fails on all nodes at once, in the middle of a conversion: to fragments, back, and to other groups.

The nodes have durability="process": what is converted may have been on disks for years, and must not be lost. What
is left of each drive is computed from what its node has synced (tests/faults/power_kit.py).
"""

from __future__ import annotations

import random
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from ais_loader.wire.redundancy import companion_name
from tests.cluster_processes import ClusterProcesses
from tests.coding.test_coding_kills import progress
from tests.every_value import every_value_once, product_of
from tests.faults.fault_kit import Kind, read, serve_all
from tests.faults.power_kit import EXTENTS, Extent, PowerCut, compile_shim, find_compiler
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow

BUCKET = "b"
NODES, DATA, PARITY = 3, 2, 1
GRACE_S = 6
DRAW = random.Random(9)
OBJECTS = {f"s/{at:03}": DRAW.randbytes(DRAW.randrange(1, 40_000)) for at in range(150)} | {
    "large": DRAW.randbytes(DATA * (4 << 20) + 1)
}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler: the library that notes what was synced cannot be built")
    return compile_shim(tmp_path_factory.mktemp("shim"), compiler)


class PoweredNodes:
    """Three nodes with a coded bucket, which run until the power fails."""

    def __init__(self, cluster: ClusterProcesses, folder: Path, shim: Path) -> None:
        self.cluster, self._folder, self._shim = cluster, folder, shim
        self._starts = 0

    def run(self, *, delay_s: float, noting: bool = False, points: Mapping[int, str] | None = None) -> None:
        """Start the nodes, which code what is so old. `noting`: note what they sync. `points`: where nodes die."""
        for number, node in enumerate(self.cluster.nodes):
            node.stop()
            at = next(at for at, word in enumerate(node._arguments) if word.startswith("coding_delay_s="))
            node._arguments[at] = f"coding_delay_s={delay_s}"
            for name in ("LD_PRELOAD", "AIS_LOADER_FAILPOINT"):
                node._environment.pop(name, None)
            places = [str(self._folder / f"shadow-{number}") if noting else "", str(self._folder / f"node-{number}")]
            node._launcher = [sys.executable, "-m", "tests.faults.power_node", f"start {self._starts}", *places]
            if noting:
                node._environment["LD_PRELOAD"] = str(self._shim)
            if points and number in points:
                node._environment["AIS_LOADER_FAILPOINT"] = points[number]
        self.cluster.start()
        self.cluster.teach()

    def recode(self, data: int) -> None:
        """Change the redundancy of the bucket; 0: to copies."""
        bucket = self.cluster.map.bucket[0]
        bucket.ClearField("coding")
        if data:
            bucket.coding.data, bucket.coding.parity = data, PARITY
        self.cluster.map.version += 1
        self.cluster.teach([number for number, node in enumerate(self.cluster.nodes) if node.alive])

    def cut(self, extent: Extent) -> None:
        """Let the power fail on all nodes."""
        self.cluster.kill()
        self._starts += 1
        for number in range(NODES):
            top, left = self._folder / f"node-{number}", self._folder / f"left-{number}"
            PowerCut(top, self._folder / f"shadow-{number}", extent, seed=number).leave(left)
            shutil.rmtree(self._folder / f"shadow-{number}")
            shutil.rmtree(top)
            left.rename(top)

    def total(self, count: str) -> int:
        return sum(getattr(progress(node), count) for node in self.cluster.nodes if node.alive)

    def files_bytes(self) -> int:
        """Return the size of the files of all objects, also of those that are no longer named."""
        total = 0
        for path in self._folder.glob("node-*/drive-0/objects/**/*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size * path.is_file()
        return total

    def await_coded(self) -> None:
        """Wait until what no node has begun to code is too little for a group on each."""
        wanted = sum(map(len, OBJECTS.values())) - NODES * DATA * (64 << 10)
        eventually(lambda: self.total("bytes_coded") > wanted, timeout_s=240)

    def check(self, content: Mapping[str, bytes] = OBJECTS) -> None:
        serve_all(self.cluster)
        with connect(self.cluster.url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket(BUCKET)
            read(bucket, list(content), Kind("target", ordered=True), content=content)
            assert {info.name for info in bucket.objects()} == content.keys()

    def fail_at(self, is_there: Callable[[], bool], extent: Extent) -> None:
        """Let the power fail once something has happened, and have the nodes look at what is left."""
        eventually(is_there, timeout_s=240)
        self.cut(extent)
        self.run(delay_s=0.0)


@contextmanager
def powered(folder: Path, shim: Path) -> Iterator[PoweredNodes]:
    settings = {"coding_delay_s": 3600.0, "coding_grace_s": GRACE_S, "repair_interval_s": 0.5, "tombstone_grace_s": 1}
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with ClusterProcesses(folder, NODES, buckets={BUCKET: PARITY + 1}, arguments=arguments) as cluster:
        parent = cluster.map.bucket[0]
        cluster.map.bucket.add(
            name=companion_name(parent.uuid), uuid=uuid.uuid4().bytes, copies=1, min_copies=1, coded_of=parent.uuid
        )
        nodes = PoweredNodes(cluster, folder, shim)
        nodes.recode(DATA)
        serve_all(cluster)
        with connect(cluster.url, options=PATIENT_CLIENT) as client:
            assert client.bucket(BUCKET).put_many(OBJECTS.items()).stored == len(OBJECTS)
        yield nodes


def cuts(*points: str, slow: int) -> list[Any]:
    """Return points with all extents; all but so many, which have each point once, are exhaustive."""
    quick = every_value_once(points[-slow:], EXTENTS[::-1])[:slow]
    return product_of(points, EXTENTS, quick=quick, others=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("point", "extent"),
    cuts("code.fragments", "code.manifest", "code.swapped", "code.done", "", slow=3),
)
def test_copies_that_are_coded_survive_a_power_cut(tmp_path: Path, shim: Path, point: str, extent: Extent) -> None:
    """Without a point: when the files of the copies are gone."""
    with powered(tmp_path, shim) as nodes:
        nodes.run(delay_s=0.0, noting=True, points={0: point})
        most_bytes = 1.75 * sum(map(len, OBJECTS.values()))  # fragments, manifests, and what is too little for a group
        nodes.fail_at(lambda: not nodes.cluster.nodes[0].alive if point else nodes.files_bytes() < most_bytes, extent)
        nodes.check()
        eventually(lambda: nodes.total("groups") >= NODES and not nodes.total("short_groups"), timeout_s=240)
        nodes.check()


@pytest.mark.parametrize(("point", "extent"), cuts("put.staged:3", "put.renamed:20", "put.committed:9", "", slow=1))
def test_copies_that_come_back_survive_a_power_cut(tmp_path: Path, shim: Path, point: str, extent: Extent) -> None:
    """Without a point: when the first group has been given up."""
    with powered(tmp_path, shim) as nodes:
        nodes.run(delay_s=0.0)
        nodes.await_coded()
        nodes.run(delay_s=0.0, noting=True, points={0: point})
        eventually(lambda: nodes.total("groups") >= NODES, timeout_s=240)
        before = nodes.total("groups")
        nodes.recode(0)
        nodes.fail_at(lambda: not nodes.cluster.nodes[0].alive if point else nodes.total("groups") < before, extent)
        nodes.check()
        eventually(lambda: not nodes.total("groups"), timeout_s=240)
        nodes.check()


@pytest.mark.parametrize(("point", "extent"), cuts("code.fragments", "code.swapped", "", slow=1))
def test_what_is_coded_again_survives_a_power_cut(tmp_path: Path, shim: Path, point: str, extent: Extent) -> None:
    """Most objects are deleted, so that groups are sparse. Without a point: when a former group has been given up."""
    left = {name: data for at, (name, data) in enumerate(OBJECTS.items()) if at % 3 == 0 or name == "large"}
    with powered(tmp_path, shim) as nodes:
        nodes.run(delay_s=0.0)
        nodes.await_coded()
        with connect(nodes.cluster.url, options=PATIENT_CLIENT) as client:
            client.bucket(BUCKET).delete_many([name for name in OBJECTS if name not in left])
        nodes.run(delay_s=0.0, noting=True, points={0: point})
        nodes.fail_at(
            lambda: not nodes.cluster.nodes[0].alive if point else bool(nodes.total("groups_dissolved")), extent
        )
        nodes.check(left)
        eventually(lambda: nodes.total("groups") > 0 and not nodes.total("short_groups"), timeout_s=240)
        nodes.check(left)
