"""`ais-loader bench --s3` against moto's server and against our gateway: figures, errors, and what is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ais_loader.bench.calls import WRONG_BYTES, Calls, connected, numbers
from ais_loader.bench.conductor import finish, prepare
from ais_loader.bench.filling import MARKER, remove
from ais_loader.bench.plan import OF_S3, WORKLOADS, BenchPlan
from ais_loader.bench.s3_client import S3Bucket
from ais_loader.bench.tally import BenchTally
from ais_loader.bench.worker import measure
from ais_loader.cli import main
from ais_loader.errors import AccessDenied, InvalidRequest, NodeUnavailable
from ais_loader.testing import throwaway_folder
from storage_node.gateway.clients import Clients
from storage_node.gateway.keys import Account
from storage_node.gateway.serve import GatewayThread
from tests.remote.s3_server import CREDENTIALS, S3Client, S3Server
from tests.table import table

SMALL: dict[str, Any] = {"size": "100..3000", "objects": 30, "range_bytes": 64, "epochs": 1, "verify": True}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with S3Server() as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    account = Account(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    with throwaway_folder() as folder:
        clients = Clients(str(folder / "store"), [account])
        try:
            with GatewayThread(clients, {account.access_key: account}) as running:
                yield running.url
        finally:
            clients.close()


@pytest.fixture(params=["moto", "gateway"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def called(plan: BenchPlan) -> BenchTally:
    with connected(plan) as client:
        tally = BenchTally()
        measure(Calls(plan, client, 0).run, numbers(plan, 0, plan.epochs), threading.Event(), tally)
    return tally


def prepared(plan: BenchPlan) -> bool:
    with connected(plan) as client:
        return prepare(client, plan)


@pytest.mark.slow
@pytest.mark.parametrize("workload", OF_S3)
def test_each_workload_moves_every_object_once(workload: str, endpoint: str, bucket_name: str) -> None:
    plan = BenchPlan(workload=workload, url=endpoint, s3=True, bucket=bucket_name, **SMALL)
    assert prepared(plan) == (workload != "put")
    tally = called(plan)
    assert not tally.errors
    assert tally.calls == tally.objects == 30
    assert tally.size_bytes == (64 * 30 if workload == "ranges" else sum(plan.sizes.of(at) for at in range(30)))
    assert not prepared(plan)
    finish(plan)
    with connected(plan) as client:
        written = list(client.bucket(bucket_name).objects("written/"))  # type: ignore[arg-type]
        left = remove(client, bucket_name)
    assert written == []
    assert left == (1 if workload == "put" else 32)


@pytest.mark.slow
def test_a_bucket_that_cannot_be_marked_is_not_left_behind(
    endpoint: str, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = BenchPlan(workload="put", url=endpoint, s3=True, bucket=bucket_name, **SMALL)

    def refuse(*_: object) -> None:
        raise NodeUnavailable("307 Temporary Redirect")

    with monkeypatch.context() as patched:
        patched.setattr(S3Bucket, "put", refuse)
        with pytest.raises(NodeUnavailable, match="307"):
            prepared(plan)
    prepared(plan)


@pytest.mark.slow
def test_other_bytes_and_missing_objects_are_errors_by_kind(endpoint: str, bucket_name: str) -> None:
    plan = BenchPlan(workload="get", url=endpoint, s3=True, bucket=bucket_name, **SMALL)
    prepared(plan)
    with connected(plan) as client:
        client.bucket(bucket_name).put(plan.name(3), b"x" * plan.sizes.of(3))
    assert called(plan).errors == {WRONG_BYTES: 1}
    with connected(plan) as client:
        client.bucket(bucket_name).delete_prefix(plan.prefix)
    assert called(plan).errors == {"object-not-found": 30}


def test_a_bucket_of_other_data_is_left_alone(moto: str) -> None:
    server = S3Client(int(moto.rpartition(":")[2]))
    bucket = server.bucket()
    server.put(bucket, "mine", b"data")
    plan = BenchPlan(workload="get", url=moto, s3=True, bucket=bucket, **SMALL)
    with connected(plan) as client:
        with pytest.raises(InvalidRequest, match="not made by"):
            prepare(client, plan)
        with pytest.raises(InvalidRequest, match="not made by"):
            remove(client, bucket)
    assert server.keys(bucket) == ["mine"]


@pytest.mark.slow
def test_a_wrong_key_and_an_endpoint_that_is_not_there(
    gateway: str, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = BenchPlan(workload="get", url=gateway, s3=True, bucket=bucket_name, **SMALL)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied):
        prepared(plan)
    assert called(plan).errors == {"denied": 30}
    nowhere = BenchPlan(workload="get", url="http://127.0.0.1:1", s3=True, retry_s=0.1, **SMALL)
    with pytest.raises(NodeUnavailable):
        prepared(nowhere)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_measures_an_endpoint_and_removes_its_bucket(gateway: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    told = run(
        "--s3", gateway, "mixed", "--objects", 40, "--size", "1KiB", "--bucket", "of-the-command", "--epochs", 2,
        "--warm-up", 0, "--verify", "--processes", 2, "--json", file, "--clean",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = json.loads(file.read_text())
    assert (found["objects"], found["bytes"], found["calls"], found["errors"]) == (80, 80 << 10, 80, {})
    assert found["latency_ms"]["p50"] <= found["latency_ms"]["p99"] <= found["latency_ms"]["max"]
    assert found["plan"]["s3"] is True
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in file.read_text()
    plan = BenchPlan(workload="get", url=gateway, s3=True, bucket="of-the-command", **SMALL)
    with connected(plan) as client:
        assert not client.bucket(plan.bucket).exists(MARKER)


@table(
    ("arguments", "says"),
    [
        *((("--s3", "http://127.0.0.1:1", name), "no workload of S3") for name in WORKLOADS if name not in OF_S3),
        (("get", "--s3", "127.0.0.1:9000"), "is a URL such as http://"),
        (("get", "--s3", "http://127.0.0.1:1", "--store", "x"), "exclude each other"),
        (("get", "--s3", "http://127.0.0.1:1", "--ray"), "exclude each other"),
        (("get", "--s3", "http://127.0.0.1:1", "--cold"), "cold is about stores"),
        (("get", "--s3", "http://127.0.0.1:1", "--copies", "2"), "copies is about stores"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_requested(arguments: tuple[str, ...], says: str) -> None:
    told = run(*arguments)
    assert told.exit_code != 0
    assert says in told.output


@pytest.mark.slow
def test_missing_keys_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    told = run("get", "--s3", "http://127.0.0.1:1")
    assert told.exit_code != 0
    assert "AWS_SECRET_ACCESS_KEY" in told.output
