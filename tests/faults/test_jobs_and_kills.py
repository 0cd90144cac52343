"""Jobs whose client, workers and nodes are killed: every source has one right result in the end, and none is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from ais_loader.testing.node import peer_secret_file
from ais_loader.wire.generated import ais_etl_pb2 as pb
from tests.cluster_processes import ClusterProcesses
from tests.faults.counted_jobs_kit import NAMES, OBJECTS, counting, require_right, runs
from tests.faults.fault_kit import serve_all
from tests.faults.ledger_kit import endpoints
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow
WAIT_S = 240.0
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def cluster_with_transform(root: Path, counts: Path) -> Iterator[ClusterProcesses]:
    counts.mkdir()
    # Nodes wait for one that stands still, as on a busy machine, and write without those that are dead.
    arguments = ["--set", "etl_code=true", "--set", "etl_workers=2", "--set", "reach_timeout_s=20"]
    with ClusterProcesses(root, buckets={"from": 2, "to": 2}, arguments=arguments) as cluster:
        python = {
            "pickle": cloudpickle.dumps(counting(str(counts))),
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        }
        cluster.map.transform.append(pb.Transform(name="upper", uuid=uuid.uuid4().bytes, python=python))
        cluster.map.version += 1
        cluster.teach()
        yield cluster


CLIENT = """
import sys
from ais_loader import ClusterOptions, connect
connect(sys.argv[1]).bucket("from").transform("to", etl="upper", name="j")
"""


def workers(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def begin_dying(cluster: ClusterProcesses, at: int, step: str) -> subprocess.Popen[bytes]:
    """A controller that dies in the middle of a change of the map, at this step."""
    task = {
        "endpoints": endpoints(cluster.nodes),
        "buckets": [f"half-{at}"],
        "die": step,
        "peer_secret_file": str(peer_secret_file()),
    }
    command = [sys.executable, "-m", "tests.faults.changing_process", json.dumps(task)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


def require_killed(controller: subprocess.Popen[bytes]) -> None:
    assert controller.wait(WAIT_S) == -signal.SIGKILL


def test_a_job_of_ten_thousand_objects_survives_all_that_may_die(tmp_path: Path) -> None:
    """Its client, workers, controllers in the middle of changes, and nodes."""
    with (
        cluster_with_transform(tmp_path / "nodes", tmp_path / "counts") as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        client.bucket("from").put_many(NAMES.items())
        serve_all(cluster)
        asking = subprocess.Popen([sys.executable, "-c", CLIENT, cluster.url])
        try:
            eventually(lambda: len(runs(tmp_path / "counts")) > 100, interval_s=0.1)
        finally:
            asking.kill()
            asking.wait()
        controllers = [begin_dying(cluster, at, step) for at, step in enumerate(("accepted:1", "prepared:3"))]
        for pid in workers(cluster.nodes[0].pid):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(runs(tmp_path / "counts")) > 500, interval_s=0.1)
        cluster.kill([1])  # and it comes back
        eventually(lambda: len(runs(tmp_path / "counts")) > 1500, interval_s=0.1)
        cluster.start([1])
        controllers.append(begin_dying(cluster, 2, "accepted:2"))
        eventually(lambda: len(runs(tmp_path / "counts")) > 2500, interval_s=0.1)
        cluster.kill([2])  # for the rest of the job
        job = client.etl.job("j")
        assert job.state == "running"  # all of that was in the middle of it
        for controller in controllers:
            require_killed(controller)
        counts = job.wait(timeout_s=WAIT_S)
        assert (job.state, counts.transformed + counts.skipped, counts.failed) == ("done", OBJECTS, 0)
        cluster.start([2])  # results of the time when another node was away may have their only copy on it
        serve_all(cluster)
        require_right(client)
        # What was under way when something died is done again, and nothing else: more of it on a quick machine.
        assert OBJECTS <= len(runs(tmp_path / "counts")) < OBJECTS + 5000

        def is_all_there() -> bool:
            """Unless a node stands still, and does not say what it has."""
            again = client.bucket("from").transform("to", etl="upper")
            assert (again.counts.transformed + again.counts.skipped, again.counts.failed) == (OBJECTS, 0)
            return again.counts.transformed == 0

        eventually(is_all_there)


def test_a_job_survives_controllers_that_die_in_the_middle_of_changes(tmp_path: Path) -> None:
    some = dict(list(NAMES.items())[:600])
    with (
        cluster_with_transform(tmp_path / "nodes", tmp_path / "counts") as cluster,
        connect(cluster.url, options=PATIENT_CLIENT) as client,
    ):
        client.bucket("from").put_many(some.items())
        require_killed(begin_dying(cluster, 0, "accepted:1"))  # which whoever begins the job comes upon
        job = client.bucket("from").transform("to", etl="upper", wait=False)
        require_killed(begin_dying(cluster, 1, "prepared:3"))
        require_killed(begin_dying(cluster, 2, "accepted:2"))
        counts = job.wait(timeout_s=WAIT_S)
        assert (job.state, counts.transformed + counts.skipped, counts.failed) == ("done", len(some), 0)
        to = client.bucket("to")
        assert sorted(to) == sorted(some)
        assert to.get_batch(list(some)).tobytes() == [data.upper() for data in some.values()]
        # A node whose calls fail for five seconds counts as down: another one does its part, then, as well.
        ran = Counter(runs(tmp_path / "counts"))
        assert ran.keys() == set(some.values()) and max(ran.values()) <= 2
