"""Promotion from a node's folders, classes of AIStore's servers as transforms, and groups of a remote bucket."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from ais_loader.integrations.gateway.clients import Clients
from ais_loader.testing import NodeProcess
from tests.gateway.aistore.calls import action, call, job_of, succeeded
from tests.gateway.aistore.conftest import Answer
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `files`, from which the node promotes, `remote`, and `packages` with a stand-in for the SDK."""
    folder = tmp_path_factory.mktemp("gateway")
    for name in ("files", "remote", "packages/aistore-2.0.0.dist-info"):
        (folder / name).mkdir(parents=True)
    (folder / "packages/aistore-2.0.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: aistore\nVersion: 2.0.0\n"
    )
    return folder


@pytest.fixture(scope="module")
def gateway(folders: Path) -> Iterator[Served]:
    """A gateway over a node that promotes, and that runs code."""
    environment = {**os.environ, "PYTHONPATH": f"{folders / 'packages'}:{os.environ.get('PYTHONPATH', '')}"}
    arguments = ["--etl-code", "--promote-root", str(folders / "files")]
    arguments += ["--set", f"remote_file_roots={folders / 'remote'}"]
    with NodeProcess(folders / "drive", arguments=arguments, environment=environment) as node:
        clients = Clients(node.url, [ACCOUNT])
        try:
            with GatewayThread(clients, {ACCOUNT.access_key: ACCOUNT}) as running:
                yield Served(running, clients)
        finally:
            clients.close()


def stored(served: Served, bucket: str) -> dict[str, bytes]:
    handle = served.client.bucket(bucket)
    return {name: handle.get(name) for name in handle}


# -- promotion


def promote(served: Served, bucket: str, source: Path, to: str, **value: Any) -> Answer:
    message = action("promote", {"src": str(source), "obj": to, **value}, name=str(source))
    return call(served, "POST", f"objects/{bucket}", message, provider="ais")


def test_folders_are_promoted(gateway: Served, folders: Path) -> None:
    bucket = gateway.client.create_bucket("promoted")
    source = folders / "files" / "corpus"
    (source / "inner").mkdir(parents=True)
    (source / "top").write_bytes(b"top")
    (source / "inner" / "file").write_bytes(b"inner")
    assert job_of(gateway, promote(gateway, "promoted", source, "d/"))["err"] == ""
    assert stored(gateway, "promoted") == {"d/top": b"top"}
    (source / "top").write_bytes(b"other top")
    job_of(gateway, promote(gateway, "promoted", source, "d/", rcr=True))
    assert stored(gateway, "promoted") == {"d/top": b"top", "d/inner/file": b"inner"}
    job_of(gateway, promote(gateway, "promoted", source, "d/", rcr=True, ovw=True, dls=True))
    assert stored(gateway, "promoted") == {"d/top": b"other top", "d/inner/file": b"inner"}
    assert not (source / "top").exists()
    bucket.delete_prefix("d/")


def test_a_file_gets_the_name_of_the_object(gateway: Served, folders: Path) -> None:
    gateway.client.create_bucket("named")
    source = folders / "files" / "one.bin"
    source.write_bytes(b"one")
    job_of(gateway, promote(gateway, "named", source, "d/"))
    job_of(gateway, promote(gateway, "named", source, "e/renamed"))
    job_of(gateway, promote(gateway, "named", source, ""))
    assert stored(gateway, "named") == dict.fromkeys(("d/one.bin", "e/renamed", "one.bin"), b"one")


def test_files_elsewhere_are_not_promoted(gateway: Served, folders: Path) -> None:
    gateway.client.create_bucket("elsewhere")
    for source in ("/etc", str(folders), f"{folders}/files/../remote", "relative"):
        answer = promote(gateway, "elsewhere", Path(source), "d/", rcr=True)
        assert answer.status == 400, answer.body
    assert promote(gateway, "elsewhere", folders / "files" / "none", "d/").status == 403
    assert promote(gateway, "no-such", folders / "files", "d/").status == 404
    assert stored(gateway, "elsewhere") == {}


# -- transforms


class Upper:
    """A server as in AIStore's SDK. It does not serve here."""

    def __init__(self) -> None:
        self.suffix = os.environ["SUFFIX"]
        assert os.environ["AIS_TARGET_URL"]

    def transform(self, data: bytes, path: str, etl_args: str) -> bytes:
        if data == b"fail":
            raise ValueError("not this one")
        return b"|".join((data.upper(), path.encode(), etl_args.encode(), self.suffix.encode()))


@pytest.fixture(scope="module")
def upper(gateway: Served) -> str:
    """The name of a transform, of a class that was sent as AIStore's SDK sends it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        payload = base64.b64encode(cloudpickle.dumps(Upper)).decode()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    environment = [{"name": "ETL_CLASS_PAYLOAD", "value": payload}, {"name": "SUFFIX", "value": "!"}]
    message = {
        "name": "etl-upper",
        "communication": "hpush://",
        "init_timeout": "5m",
        "obj_timeout": "45s",
        "support_direct_put": True,
        "runtime": {"image": f"aistorage/runtime_python:{PYTHON}", "env": environment},
    }
    assert succeeded(call(gateway, "PUT", "etl", message)).body.decode() == "etl-etl-upper"
    again = call(gateway, "PUT", "etl", message)
    assert (again.status, again.json()["message"]) == (409, "etl job etl-upper already exists")
    bucket = gateway.client.create_bucket("etl")
    bucket.put_many([("a.txt", b"aa"), ("b.txt", b"bb")])
    return "etl-upper"


@pytest.mark.slow
def test_objects_are_transformed(gateway: Served, upper: str) -> None:
    got = succeeded(call(gateway, "GET", "objects/etl/a.txt", etl_name=upper))
    assert got.body == b"AA|etl/a.txt||!"
    got = succeeded(call(gateway, "GET", "objects/etl/a.txt", etl_name=upper, etl_args="plain text"))
    assert got.body == b"AA|etl/a.txt|plain text|!"
    got = succeeded(call(gateway, "GET", "objects/etl/a.txt", etl_name=upper, etl_args='{"a":1}'))
    assert got.body == b'AA|etl/a.txt|{"a":1}|!'
    got = succeeded(call(gateway, "GET", "objects/etl/a.txt", etl_name=upper, etl_pipeline=upper))
    assert got.body == b"AA|ETL/A.TXT||!|etl/a.txt||!"
    succeeded(call(gateway, "PUT", "objects/etl/a.txt", object_to="ais/@#/etl/made", etl_name=upper))
    assert gateway.client.bucket("etl").get("made") == b"AA|etl/a.txt||!"
    gateway.client.bucket("etl").delete("made")
    missing = call(gateway, "GET", "objects/etl/a.txt", etl_name="no-such")
    assert (missing.status, missing.json()["message"]) == (404, "etl job no-such does not exist")
    missing = call(gateway, "GET", "objects/etl/none", etl_name=upper)
    assert (missing.status, missing.json()["message"]) == (404, "ais://etl/none doesn't exist")


@pytest.mark.slow
def test_buckets_are_transformed(gateway: Served, upper: str) -> None:
    def ended(answer: Answer) -> dict[str, Any]:
        gateway_job = succeeded(answer).body.decode()
        for job in [one for one in jobs_of(gateway) if one.name == gateway_job]:
            job.wait(timeout_s=180)
        return job_of(gateway, answer)

    value: dict[str, Any] = {"id": upper, "prefix": "a", "prepend": "new/", "ext": {"txt": "out"}, "dry_run": True}
    dry = ended(call(gateway, "POST", "buckets/etl", action("etl-bck", value), bck_to="ais/@#/etl/"))
    assert (dry["kind"], dry["err"]) == ("etl-bck", "")
    value["dry_run"] = False
    ended(call(gateway, "POST", "buckets/etl", action("etl-bck", value), bck_to="ais/@#/etl-to/"))
    assert stored(gateway, "etl-to") == {"new/a.out": b"AA|etl/a.txt||!"}
    listed = {"id": upper, "objnames": ["b.txt"], "tobck": {"name": "etl-to", "provider": "ais"}, "pipeline": None}
    made = call(gateway, "POST", "buckets/etl", action("etl-listrange", listed))
    assert ended(made)["kind"] == "etl-listrange"
    assert stored(gateway, "etl-to")["b.txt"] == b"BB|etl/b.txt||!"
    jobs = succeeded(call(gateway, "GET", "cluster", {"kind": "etl-listrange"}, what="status_all")).json()
    assert [job["uuid"] for job in jobs] == [made.body.decode()]
    assert succeeded(call(gateway, "GET", f"etl/{upper}", uuid=made.body.decode())).json()["obj_errors"] == []


def jobs_of(served: Served) -> list[Any]:
    return served.client.etl.jobs()


@pytest.mark.slow
def test_transforms_are_stopped_and_deleted(gateway: Served, upper: str) -> None:
    (row,) = succeeded(call(gateway, "GET", "etl")).json()
    assert (row["id"], row["stage"]) == (upper, "Running")
    assert succeeded(call(gateway, "GET", f"etl/{upper}")).json()["init_msg"]["name"] == upper
    (logs,) = succeeded(call(gateway, "GET", f"etl/{upper}/logs")).json()
    base64.b64decode(logs["logs"], validate=True)
    succeeded(call(gateway, "POST", f"etl/{upper}/stop"))
    assert succeeded(call(gateway, "GET", "etl")).json()[0]["stage"] == "Aborted"
    assert call(gateway, "GET", "objects/etl/a.txt", etl_name=upper).status == 422
    succeeded(call(gateway, "POST", f"etl/{upper}/start"))
    succeeded(call(gateway, "GET", "objects/etl/a.txt", etl_name=upper))
    succeeded(call(gateway, "DELETE", f"etl/{upper}"))
    for method, path in (("GET", "etl/none"), ("POST", "etl/none/stop"), ("DELETE", f"etl/{upper}")):
        answer = call(gateway, method, path)
        assert (answer.status, "etl job" in answer.json()["message"]) == (404, True)


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        ({"image": "some/image:latest"}, "container"),
        ({"image": "aistorage/runtime_python:2.7", "env": [{"name": "ETL_CLASS_PAYLOAD", "value": "AA=="}]}, "Python"),
        (None, "container"),
    ],
)
def test_containers_are_not_supported(gateway: Served, runtime: Any, reason: str) -> None:
    answer = call(gateway, "PUT", "etl", {"name": "etl-image", "communication": "hpush://", "runtime": runtime})
    assert (answer.status, answer.json()["tcode"]) == (501, "ErrUnsupp")
    assert reason in answer.json()["message"]


def test_no_code_runs_where_nobody_allowed_it(served: Served) -> None:
    environment = [{"name": "ETL_CLASS_PAYLOAD", "value": base64.b64encode(cloudpickle.dumps(int)).decode()}]
    runtime = {"image": f"aistorage/runtime_python:{PYTHON}", "env": environment}
    answer = call(served, "PUT", "etl", {"name": "etl-code", "communication": "hpush://", "runtime": runtime})
    assert (answer.status, answer.json()["tcode"]) == (501, "ErrUnsupp")


# -- remote buckets


def test_groups_of_a_remote_bucket(gateway: Served, folders: Path) -> None:
    for number in range(6):
        (folders / "remote" / f"o{number}").write_bytes(bytes([number]) * 1000)
    bucket = gateway.client.create_bucket("remote", remote=f"file://{folders / 'remote'}")

    def warm() -> set[str]:
        return {info.name for info in bucket.objects() if info.is_stored}

    assert warm() == set()
    chosen = {"objnames": ["o1", "o2"]}
    job_of(gateway, call(gateway, "POST", "buckets/remote", action("prefetch-listrange", chosen)))
    assert warm() == {"o1", "o2"}
    template = {"template": "o{3..9}"}
    assert job_of(gateway, call(gateway, "POST", "buckets/remote", action("prefetch-listrange", template)))["err"] == ""
    assert warm() == {"o1", "o2", "o3", "o4", "o5"}
    job_of(gateway, call(gateway, "DELETE", "buckets/remote", action("evict-listrange", {"template": "o{2..4}"})))
    assert warm() == {"o1", "o5"}
    succeeded(call(gateway, "DELETE", "buckets/remote", action("evict-remote-bck"), keep_bck_md="False"))
    assert warm() == set()
    assert bucket.get("o3") == bytes([3]) * 1000
