"""Jobs over the nodes of a cluster: each source once and by one node, whichever nodes and clients come and go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ais_loader import Bucket, Client, connect, errors
from ais_loader.cli import etl as etl_commands
from ais_loader.testing import eventually, seeded_bytes
from storage_node.context.node import Node
from storage_node.etl.jobs import cluster_store, manager
from storage_node.etl.jobs.job_store import stage_content
from storage_node.etl.values import Content
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.store import Store
from storage_node.store.write import Upload
from tests.etl.jobs.job_kit import Upper
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT

NAMES = {f"d/{at:03d}.txt": b"text %d" % at for at in range(200)}


class Counted:
    """The transform "upper" on each node, in one version, with the nodes that ran it."""

    def __init__(self) -> None:
        self.first = Upper()
        self.by_node: list[Upper] = []

    def __call__(self, node: Node) -> Upper:
        made = Upper()
        made.version = self.first.version
        made.answer = lambda origin, data: self.first.answer(origin, data)
        self.by_node.append(made)
        return made

    def runs(self) -> Counter[tuple[str, str]]:
        return sum((one.runs for one in self.by_node), Counter())


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def cluster(tmp_path: Path, counted: Counted) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, copies=2, transforms=counted, read_lease_s=5.0) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    url = "grpc://" + ",".join(node.endpoint for node in cluster.nodes)
    with connect(url, options=PATIENT_CLIENT) as made:
        made.create_bucket("to", copies=2)
        made.bucket(BUCKET).put_many(NAMES.items())
        yield made


def copies(cluster: LocalCluster, bucket: str) -> Counter[str]:
    """Count the copies of each object. A write on a busy machine may have missed a node, which gets its copy later."""
    return Counter(name for number in range(3) for name, _ in cluster.batches(number).node.store.objects(bucket))


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {name: bytes(bucket.get(name)) for name in bucket}


@pytest.mark.slow
def test_nodes_share_a_bucket_out_and_each_source_is_transformed_once(
    client: Client, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "DOWN_S", 3600.0)  # the part of a node that stands still is not done by another one
    steps = []
    job = client.bucket(BUCKET).transform("to", etl="upper", progress=steps.append)
    assert (job.state, job.counts.transformed, job.counts.failed) == ("done", 200, 0)
    assert steps[-1] == job.counts
    assert contents(client.bucket("to")) == {name: data.upper() for name, data in NAMES.items()}
    assert set(counted.runs().values()) == {1}
    assert all(one.runs for one in counted.by_node)
    again = client.bucket(BUCKET).transform("to", etl="upper")
    assert (again.counts.transformed, again.counts.skipped) == (0, 200)
    assert set(counted.runs().values()) == {1}


@pytest.mark.slow
def test_a_node_that_is_gone_is_done_without(client: Client, cluster: LocalCluster, counted: Counted) -> None:
    eventually(lambda: copies(cluster, BUCKET) == dict.fromkeys(NAMES, 2))
    cluster.nodes[2].stop(grace_s=0)
    job = client.bucket(BUCKET).transform("to", etl="upper")
    assert (job.state, job.counts.transformed, job.counts.failed) == ("done", 200, 0)
    assert contents(client.bucket("to")) == {name: data.upper() for name, data in NAMES.items()}
    assert set(counted.runs()) == {(name, version) for name, version in counted.runs() if name in NAMES}
    assert len(counted.runs()) == 200


@pytest.mark.slow
def test_a_job_that_nobody_waits_for_goes_on_and_may_be_stopped_listed_and_forgotten(
    client: Client, counted: Counted
) -> None:
    job = client.bucket(BUCKET).transform("to", etl="upper", name="j", wait=False)
    with connect(client.url) as other:
        same = other.etl.job("j")
        same.wait(timeout_s=180)
        assert (same.state, same.counts.transformed) == ("done", 200)
        assert [one.name for one in other.etl.jobs()] == ["j"]
        same.delete()
        with pytest.raises(errors.JobNotFound):
            job.refresh()


@pytest.mark.slow
def test_failures_are_named_and_raised_at_the_end(client: Client, counted: Counted) -> None:
    def answer(origin: object, data: bytes) -> bytes:
        if data == b"text 7":
            raise errors.TransformFailed("seven")
        return data

    counted.first.answer = answer
    with pytest.raises(errors.TransformIncomplete, match=r"left out 1 of 200 objects; first: d/007\.txt: seven"):
        client.bucket(BUCKET).transform("to", etl="upper")
    job = client.bucket(BUCKET).transform("to", etl="upper", inspect=True)
    assert [(one.name, one.error.kind) for one in job.failures()] == [("d/007.txt", "transform-failed")]


@pytest.mark.slow
def test_snapshots_are_sources(client: Client) -> None:
    bucket = client.bucket(BUCKET)
    bucket.snapshot("s")
    bucket.put("d/000.txt", b"later")
    client.bucket(BUCKET, snapshot="s").transform("to", etl="upper", prefix="d/00")
    made = contents(client.bucket("to"))
    assert made == {name: data.upper() for name, data in NAMES.items() if name.startswith("d/00")}
    assert client.bucket("to").head("d/001.txt").metadata["ais.etl-source"] == f"{BUCKET}@s/d/001.txt"


@pytest.mark.slow
def test_a_dry_run_says_what_would_become_of_what(client: Client, counted: Counted) -> None:
    planned = client.bucket(BUCKET).transform(
        "to", etl="upper", names="d/{000..002}.txt", rename={"txt": "up"}, to_prefix="x/", dry_run=True
    )
    assert [(one.source, one.result, one.refused) for one in planned] == [
        (f"d/00{at}.txt", f"x/d/00{at}.up", "") for at in range(3)
    ]
    assert not counted.runs()


@pytest.mark.slow
def test_one_object_is_copied_through_a_transform(client: Client) -> None:
    info = client.bucket(BUCKET).copy("d/001.txt", "one", to_bucket="to", etl="upper")
    assert (info.name, info.size_bytes) == ("one", 6)
    assert bytes(client.bucket("to").get("one")) == b"TEXT 1"
    with pytest.raises(errors.TransformNotFound):
        client.bucket(BUCKET).copy("d/001.txt", "one", to_bucket="to", etl="other")


@pytest.mark.slow
def test_synchronizing_deletes_results_of_sources_that_are_gone(client: Client) -> None:
    bucket, to = client.bucket(BUCKET), client.bucket("to")
    bucket.transform("to", etl="upper", prefix="d/00")
    to.put("d/mine", b"mine")
    bucket.delete_many(["d/001.txt", "d/002.txt"])
    job = bucket.transform("to", etl="upper", prefix="d/00", synchronize=True)
    assert job.counts.deleted == 2
    assert sorted(to) == sorted(["d/mine", *(f"d/00{at}.txt" for at in range(10) if at not in (1, 2))])


@pytest.mark.slow
def test_what_does_not_exist_is_refused_before_anything_begins(client: Client) -> None:
    for bucket, to, etl, error in (
        (BUCKET, "to", "other", errors.TransformNotFound),
        (BUCKET, "nowhere", "upper", errors.BucketNotFound),
        ("nowhere", "to", "upper", errors.BucketNotFound),
    ):
        with pytest.raises(error):
            client.bucket(bucket).transform(to, etl=etl)
    assert client.etl.jobs() == []


def test_a_node_of_no_cluster_has_jobs_of_its_own(tmp_path: Path, counted: Counted) -> None:
    with (
        NodeServer([tmp_path], ServerConfig(port=0), transforms=counted) as node,
        connect(node.url) as client,
    ):
        bucket = client.create_bucket("a")
        client.create_bucket("b")
        bucket.put("x", b"x")
        assert bucket.transform("b", etl="upper").counts.transformed == 1
        assert bytes(client.bucket("b").get("x")) == b"X"
        bucket.copy("x", "y", etl="upper")
        assert bytes(bucket.get("y")) == b"X"


def command(client: Client, made: click.Command, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(made, [*arguments, "--store", client.url, "--json"])
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_command_line_runs_lists_and_shows_jobs(client: Client, counted: Counted) -> None:
    given = [BUCKET, "to", "--etl", "upper", "--prefix", "d/00", "--rename", "txt=up", "--name", "j"]
    assert command(client, etl_commands.run, *given, "--dry-run")[1][0] == {
        "source": "d/000.txt",
        "result": "d/000.up",
        "refused": "",
    }
    code, [made] = command(client, etl_commands.run, *given)
    assert (code, made["state"], made["counts"]["transformed"]) == (0, "done", 10)
    assert command(client, etl_commands.jobs) == (0, [made])
    code, [shown] = command(client, etl_commands.job, "j", "--wait", "--failures")
    assert (code, shown) == (0, {**made, "failures": [], "more_failures": False})
    assert command(client, etl_commands.cancel, "j", "--forget") == (0, [made])
    assert command(client, etl_commands.jobs) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("cannot", [False, True], ids=["here", "elsewhere"])
def test_a_large_result_is_staged_by_its_owner_and_taken_by_another_where_that_cannot(
    client: Client, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, cannot: bool
) -> None:
    sources = {f"large-{at}": seeded_bytes((1 << 20) + at, seed=at) for at in range(1, 7)}
    client.bucket(BUCKET).put_many(sources.items())
    staged = []

    def stage(store: Store, bucket: str, name: str, metadata: dict[str, str], content: Content) -> Upload:
        staged.append(name)
        if cannot:
            raise errors.DriveFull("no room for it here")
        return stage_content(store, bucket, name, metadata, content)

    monkeypatch.setattr(cluster_store, "stage_content", stage)
    job = client.bucket(BUCKET).transform("to", etl="upper", pattern="large-*")
    assert (job.state, job.counts.transformed, job.counts.failed) == ("done", 6, 0)
    assert staged
    assert contents(client.bucket("to")) == {name: data.upper() for name, data in sources.items()}
    if not cannot:
        eventually(lambda: copies(cluster, "to") == dict.fromkeys(sources, 2))
