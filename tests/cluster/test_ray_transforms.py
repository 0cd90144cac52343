"""Transforms and jobs of a cluster on Ray: what Ray makes for them, and what its loss does to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, Entry, connect
from ais_loader.errors import TransformFailed
from ais_loader.testing.stores import throwaway_folder
from ais_loader.testing.waiting import eventually
from storage_node.ops import ray_head
from tests.cluster.operator_kit import Operator
from tests.etl import wheel_kit
from tests.faults.counted_jobs_kit import NAMES, OBJECTS, counting, require_right, runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # half a minute each on a quiet machine
UP_AGAIN_S = 120.0


def thin_environment(folder: Path) -> str:
    """An interpreter with all that this one has. Ray makes environments by copying the one that it runs in."""
    made = [sys.executable, "-m", "virtualenv", "--no-download", "--no-periodic-update", "--symlinks", str(folder)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with throwaway_folder() as folder:
        operator = Operator(folder, thin_environment(folder / "environment"))
        try:
            yield operator
        finally:
            ray_head.end(operator.root)
            eventually(lambda: not operator.left_over(), interval_s=0.05)


@pytest.fixture(scope="module")
def client(operator: Operator) -> Iterator[Client]:
    options = ("--etl-code", "--set", "etl_install=true", "--set", "etl_workers=2")
    operator.make_nodes(2, first_port=9700)
    said = operator.json("up", "--host-per-node", "--no-dashboard", *options)
    with connect(said["url"], options=ClusterOptions(retry_s=UP_AGAIN_S)) as client:
        for bucket in ("from", "to"):
            client.create_bucket(bucket, copies=2)
        yield client


def test_packages_that_a_transform_requires_are_installed_by_ray(client: Client, tmp_path: Path) -> None:
    bucket = client.create_bucket("texts", copies=1)
    names = [f"{at}" for at in range(60)]  # so many that both nodes have some
    bucket.put_many([(name, b"abc") for name in names])
    wheel = wheel_kit.wheel(tmp_path)
    client.etl.init("shout", wheel_kit.shouting, requirements=[f"{wheel_kit.NAME} @ file://{wheel}"])
    items = client.get_batch([Entry("texts", name, etl="shout") for name in names])
    assert [item.tobytes() for item in items] == [b"ABC!"] * len(names)

    def both_run() -> bool:
        nodes = client.etl.get("shout").nodes  # of those that answer in time
        return len(nodes) == 2 and all(node.state == "running" and node.objects for node in nodes)

    eventually(both_run)

    none = f"no-such-package @ file://{tmp_path}/no_such_package-1.0-py3-none-any.whl"
    with pytest.raises(TransformFailed, match=r"environment with no-such-package .* cannot be made: ERROR: .*No such"):
        client.etl.init("none", wheel_kit.shouting, requirements=[none])
    assert [one.name for one in client.etl.list()] == ["shout"]
    client.etl.delete("shout")


@pytest.mark.exhaustive
def test_a_job_of_ten_thousand_objects_survives_the_loss_of_rays_head(
    operator: Operator, client: Client, tmp_path: Path
) -> None:
    """Nodes go with it sooner or later, and `up` ends what is left of them."""
    client.bucket("from").put_many(NAMES.items())
    client.etl.init("upper", counting(str(tmp_path)))
    client.bucket("from").transform("to", etl="upper", name="j", wait=False)
    eventually(lambda: len(runs(tmp_path)) > 2000, interval_s=0.1)
    head = ray_head.remembered(operator.root)
    assert head is not None
    gcs = [pid for pid in head.processes() if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text()]
    for pid in gcs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert gcs and len(runs(tmp_path)) < OBJECTS
    eventually(lambda: not head.answers())
    operator.json("up", "--no-dashboard")
    job = client.etl.job("j")
    counts = job.wait(timeout_s=UP_AGAIN_S)
    assert (job.state, counts.failed) == ("done", 0)
    require_right(client)
    # What was under way is done again, and nothing else.
    assert OBJECTS <= len(runs(tmp_path)) < OBJECTS + 1000
    again = client.bucket("from").transform("to", etl="upper")
    assert (again.counts.transformed, again.counts.skipped) == (0, OBJECTS)
