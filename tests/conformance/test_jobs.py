"""Jobs over every transport: each source once, results that say what they were made of, and nothing made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, Stage, connect, errors
from tests.node.cluster_kit import LocalCluster
from tests.node.node_kit import serving

ALLOWED = {"etl_code": True, "etl_workers": 2}
DATA = {f"in/{at:03}.txt": b"text %d" % at for at in range(150)}


@pytest.fixture(scope="module", params=["embedded", "grpc", pytest.param("cluster", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        with connect(folder / "store") as client:
            yield filled(client)
    elif request.param == "grpc":
        with serving(folder, **ALLOWED) as node, connect(node.url) as client:
            yield filled(client)
    else:
        with (
            LocalCluster(folder, 3, copies=2, read_lease_s=120.0, **ALLOWED) as cluster,
            connect("grpc://" + ",".join(node.endpoint for node in cluster.nodes)) as client,
        ):
            yield filled(client)


def filled(client: Client) -> Client:
    assert not client.create_bucket("b", exist_ok=True).put_many(DATA.items()).failures
    for name in ("to", "to2", "to3"):
        client.create_bucket(name)
    client.etl.init("upper", lambda data: bytes(data).upper())
    client.etl.init("odd", odd)
    return client


def odd(data: memoryview) -> bytes:
    if int(bytes(data).split()[1]) % 50 == 0:
        raise ValueError("even by far")
    return bytes(data)


@pytest.mark.slow
def test_a_bucket_into_a_bucket_and_again(client: Client) -> None:
    job = client.bucket("b").transform("to", etl="upper", rename={"txt": "up"}, strip_prefix="in/", to_prefix="out/")
    assert (job.counts.seen, job.counts.transformed, job.counts.failed) == (150, 150, 0)
    found = {info.name: client.bucket("to").get(info.name) for info in client.bucket("to").objects()}
    assert found == {f"out/{at:03}.up": b"TEXT %d" % at for at in range(150)}
    metadata = client.bucket("to").head("out/007.up").metadata
    assert metadata["ais.etl-source"] == "b/in/007.txt"
    assert metadata["ais.etl-source-version"] == client.bucket("b").head("in/007.txt").version
    client.bucket("b").put("in/007.txt", b"text new")
    again = client.bucket("b").transform("to", etl="upper", rename={"txt": "up"}, strip_prefix="in/", to_prefix="out/")
    assert (again.counts.transformed, again.counts.skipped) == (1, 149)
    assert client.bucket("to").get("out/007.up") == b"TEXT NEW"
    client.bucket("b").put("in/007.txt", DATA["in/007.txt"])


@pytest.mark.slow
def test_failures_are_left_out_and_told(client: Client) -> None:
    job = client.bucket("b").transform("to2", etl="odd", wait=False)
    with pytest.raises(errors.TransformIncomplete, match="even by far"):
        job.wait(timeout_s=180)
    assert (job.counts.transformed, job.counts.failed) == (147, 3)
    assert [failure.name for failure in job.failures()] == ["in/000.txt", "in/050.txt", "in/100.txt"]
    assert len(list(client.bucket("to2").objects())) == 147


@pytest.mark.slow
def test_results_are_held_to_the_quota_of_their_bucket(client: Client) -> None:
    try:
        client.create_bucket("small", quota_objects=20)
    except errors.Unsupported:
        pytest.skip("a bucket of a cluster has no quota")
    job = client.bucket("b").transform("small", etl="upper", wait=False)
    with pytest.raises(errors.TransformIncomplete, match="a quota of 20 objects"):
        job.wait(timeout_s=180)
    assert (job.counts.transformed, job.counts.failed) == (20, 130)
    assert len(list(client.bucket("small").objects())) == 20
    with pytest.raises(errors.QuotaExceeded, match="a quota of 20 objects"):
        client.bucket("b").copy("in/003.txt", "copied", to_bucket="small", etl="upper")


def test_one_object_and_a_pipeline(client: Client) -> None:
    info = client.bucket("b").copy("in/003.txt", "copied", etl=Stage("upper") >> "upper")
    assert client.bucket("b").get("copied") == b"TEXT 3" and info.size_bytes == 6
    client.bucket("b").delete("copied")


def test_inspect_and_dry_run_write_nothing(client: Client) -> None:
    inspected = client.bucket("b").transform("to3", etl="odd", inspect=True, wait=False)
    inspected.wait(timeout_s=180)
    assert inspected.counts.failed == 3
    planned = client.bucket("b").transform("to3", etl="upper", rename={"txt": "up"}, dry_run=True)
    assert sorted(one.result for one in planned)[0] == "in/000.up"
    assert not list(client.bucket("to3").objects())
