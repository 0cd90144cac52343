"""Actions on many objects: each has ended when its answer arrives, and its id says how, to every gateway."""

from __future__ import annotations

import http.client
import io
import itertools
import json
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ais_loader import Client, errors
from ais_loader.integrations.gateway.aistore import jobs, recent_jobs
from ais_loader.integrations.gateway.aistore.groups import expand
from ais_loader.integrations.gateway.aistore.jobs import JobOutcome, Stopping
from ais_loader.integrations.gateway.aistore.request import AISError
from ais_loader.objects.bucket import Bucket
from ais_loader.testing import eventually
from ais_loader.values.urls import is_remote
from tests.gateway.aistore.calls import action, call, job_of, succeeded
from tests.gateway.aistore.conftest import BEARER, Answer
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.test_boto3 import data
from tests.gateway.test_bundle import members
from tests.table import table

NAMES = [f"shard-{number:02}.bin" for number in range(12)]


@pytest.fixture
def filled(served: Served, bucket: str) -> dict[str, bytes]:
    objects = {name: data(at, 100 + at) for at, name in enumerate(NAMES)}
    served.client.bucket(bucket).put_many([*objects.items(), ("other", b"other")])
    return objects


def stored(served: Served, bucket: str) -> dict[str, bytes]:
    handle = served.client.bucket(bucket)
    return {name: handle.get(name) for name in handle}


def snapshot(served: Served, answer: Answer) -> dict[str, Any]:
    found = succeeded(call(served, "GET", "cluster", {"id": answer.body.decode(), "kind": ""}, what="qryxstats")).json()
    ((one,),) = found.values()
    assert one["id"] == answer.body.decode()
    assert one["is_idle"] is True
    assert one["end-time"] > one["start-time"] or one["end-time"] == one["start-time"]
    return dict(one)


def test_delete_by_list(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    value = {"objnames": [*NAMES[1:], "none"]}
    answer = call(served, "DELETE", f"buckets/{bucket}", action("delete-listrange", value), provider="ais")
    assert set(stored(served, bucket)) == {NAMES[0], "other"}
    state = job_of(served, answer)
    assert (state["kind"], state["err"], state["aborted"]) == ("delete-listrange", "", False)
    assert snapshot(served, answer)["stats"]["loc-objs"] == "11"


def test_delete_by_template(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    value = {"objnames": [], "template": "shard-{00..20..3}.bin"}
    job_of(served, call(served, "DELETE", f"buckets/{bucket}", action("delete-listrange", value)))
    assert set(stored(served, bucket)) == {*NAMES, "other"} - {f"shard-{at:02}.bin" for at in (0, 3, 6, 9)}
    value = {"template": "shard-0", "objnames": None}  # type: ignore[dict-item]
    job_of(served, call(served, "DELETE", f"buckets/{bucket}", action("delete-listrange", value)))
    assert set(stored(served, bucket)) == {"shard-10.bin", "shard-11.bin", "other"}


def test_copy_by_list(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    value = {"objnames": NAMES[1:5], "tobck": {"name": to, "provider": "ais", "namespace": None}, "prepend": "new-"}
    answer = call(served, "POST", f"buckets/{bucket}", action("copy-listrange", value))
    assert job_of(served, answer)["kind"] == "copy-listrange"
    assert stored(served, to) == {f"new-{name}": filled[name] for name in NAMES[1:5]}
    value |= {"objnames": ["none", NAMES[6]]}
    assert (
        "ObjectNotFound"
        in job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-listrange", value)))["err"]
    )
    assert f"new-{NAMES[6]}" in stored(served, to)
    value |= {"coer": True}
    assert not job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-listrange", value)))["err"]


def test_copy_of_a_bucket(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    place = {"bck_to": f"ais/@#/{to}/"}
    value = {"prefix": "shard-0", "prepend": "d/", "dry_run": True, "force": False, "latest-ver": False}
    answer = succeeded(call(served, "POST", f"buckets/{bucket}", action("copy-bck", value), **place))
    assert snapshot(served, answer)["stats"]["loc-objs"] == "10"
    assert to not in [info.name for info in served.client.buckets()]
    value |= {"dry_run": False}
    answer = call(served, "POST", f"buckets/{bucket}", action("copy-bck", value), **place)
    assert job_of(served, answer)["kind"] == "copy-bck"
    assert stored(served, to) == {f"d/{name}": filled[name] for name in NAMES[:10]}
    value |= {"prefix": "shard-1", "ext": {"bin": "raw"}}
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-bck", value), **place))
    assert stored(served, to)["d/shard-11.raw"] == filled["shard-11.bin"]


def test_copies_into_the_same_bucket_are_not_copied_again(
    served: Served, bucket: str, filled: dict[str, bytes]
) -> None:
    here, store = {"name": bucket, "provider": "ais"}, served.client.bucket(bucket)
    for message in (
        action("copy-bck", {"prepend": "z/", "ext": {"bin": "raw"}}),
        action("copy-bck", {"prepend": "s", "prefix": "s"}),
        action("copy-listrange", {"template": "", "prepend": "z/", "tobck": here}),
    ):
        with only_so_many_copies(100):
            answer = call(served, "POST", f"buckets/{bucket}", message, bck_to=f"ais/@#/{bucket}/")
        assert (answer.status, "copied again" in answer.message()) == (400, True)
    assert len(list(store)) == len(NAMES) + 1
    for message in (
        action("copy-bck", {"prepend": "z/", "prefix": "shard-", "ext": {"bin": "raw"}}),
        action("copy-listrange", {"template": "other", "prepend": "z/", "tobck": here}),
    ):
        job_of(served, call(served, "POST", f"buckets/{bucket}", message, bck_to=f"ais/@#/{bucket}/"))
    assert [name for name in store if name.startswith("z/")] == [
        *("z/other", *(f"z/{name.removesuffix('bin')}raw" for name in NAMES))
    ]


@contextmanager
def only_so_many_copies(most: int) -> Iterator[None]:
    """Any further copy fails, and ends the action."""
    copy, made = Bucket.copy, itertools.count()

    def counted(*arguments: Any, **named: Any) -> Any:
        if next(made) >= most:
            raise errors.NodeUnavailable("this goes on for ever")
        return copy(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "copy", counted)
        yield


def test_copies_are_synchronized(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    handle = served.client.bucket(bucket)
    place, value = {"bck_to": f"ais/@#/{to}/"}, {"prefix": "shard-", "prepend": "d/", "synchronize": True}
    target = served.client.create_bucket(to)
    target.put_many(
        [("d/shard-extra", b"1"), ("d/other", b"2"), ("d/a", b"3"), ("shard-x", b"4"), ("d/shard-00.bin", b"5")]
    )
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-bck", value), **place))
    kept = {"d/other": b"2", "d/a": b"3", "shard-x": b"4"}
    copies = {f"d/{name}": filled[name] for name in NAMES}
    assert stored(served, to) == copies | kept
    for name in (NAMES[0], NAMES[5], NAMES[11]):
        handle.delete(name)
        del copies[f"d/{name}"]
    dry = value | {"dry_run": True}
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-bck", dry), **place))
    assert f"d/{NAMES[5]}" in stored(served, to)
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-bck", value), **place))
    assert stored(served, to) == copies | kept
    both = call(served, "POST", f"buckets/{bucket}", action("copy-bck", value | {"ext": {"bin": "raw"}}), **place)
    assert both.status == 400


def test_copies_of_a_template_are_synchronized(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    handle = served.client.bucket(bucket)
    served.client.create_bucket(to).put_many([(name, b"old") for name in (*NAMES, "shard-12.bin", "unrelated")])
    for name in NAMES[:6]:
        handle.delete(name)
    value: dict[str, Any] = {"tobck": {"name": to}, "synchronize": True, "coer": True}
    listed = value | {"objnames": [NAMES[0], NAMES[7]]}
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-listrange", listed)))
    found = stored(served, to)
    assert (found[NAMES[0]], found[NAMES[7]]) == (b"old", filled[NAMES[7]])
    some = value | {"template": "shard-{03..08}.bin"}
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-listrange", some)))
    assert stored(served, to).keys() == {*NAMES[:3], *NAMES[6:], "shard-12.bin", "unrelated"}
    begin = value | {"template": "shard-"}
    job_of(served, call(served, "POST", f"buckets/{bucket}", action("copy-listrange", begin)))
    assert stored(served, to) == {name: filled[name] for name in NAMES[6:]} | {"unrelated": b"old"}


def test_rename_of_a_bucket(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    before = stored(served, bucket)
    answer = call(served, "POST", f"buckets/{bucket}", action("move-bck"), bck_to=f"ais/@#/{to}/")
    assert job_of(served, answer)["kind"] == "move-bck"
    assert stored(served, to) == before
    assert bucket not in [info.name for info in served.client.buckets()]
    served.client.create_bucket(bucket)
    answer = call(served, "POST", f"buckets/{bucket}", action("move-bck"), bck_to=f"ais/@#/{to}/")
    assert answer.status == 409
    assert f"ais://{to}" in answer.json()["message"]


def test_copy_and_rename_of_an_object(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    name = NAMES[2]
    missing = call(served, "PUT", f"objects/{bucket}/{name}", object_to=f"ais/@#/{to}/x")
    assert (missing.status, missing.json()["message"]) == (404, f'bucket "ais://{to}" does not exist')
    served.client.create_bucket(to)
    for more in ({}, {"etl_name": "none"}):
        other = call(served, "PUT", f"objects/{bucket}/{name}", object_to=f"aws/@#/{to}/x", **more)
        assert (other.status, other.json()["message"]) == (404, f'bucket "aws://{to}" does not exist')
    assert stored(served, to) == {}
    query = {"latest-ver": "false", "synchronize": "false"}
    succeeded(call(served, "PUT", f"objects/{bucket}/{name}", object_to=f"ais/@#/{to}/d/x", **query))
    assert stored(served, to) == {"d/x": filled[name]}
    missing = call(served, "PUT", f"objects/{bucket}/none", object_to=f"ais/@#/{to}/x")
    assert (missing.status, missing.json()["message"]) == (404, f"ais://{bucket}/none doesn't exist")
    succeeded(call(served, "POST", f"objects/{bucket}/{name}", action("rename-obj", name="renamed")))
    found = stored(served, bucket)
    assert found["renamed"] == filled[name]
    assert name not in found


def test_archive(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    value: dict[str, Any] = {"objnames": NAMES[1:4], "archname": "a.tar"}
    answer = call(served, "PUT", f"buckets/{bucket}", action("archive", value))
    assert job_of(served, answer)["kind"] == "archive"
    handle = served.client.bucket(bucket)
    expected = [(name, filled[name]) for name in NAMES[1:4]]
    assert members(handle.get("a.tar")) == expected
    value = {"template": "shard-{04..30}.bin", "archname": "a.tar", "aate": True}
    assert call(served, "PUT", f"buckets/{bucket}", action("archive", value)).status == 501
    assert members(handle.get("a.tar")) == expected
    job_of(served, call(served, "PUT", f"buckets/{bucket}", action("archive", value | {"archname": "b.tar"})))
    assert members(handle.get("b.tar")) == [(name, filled[name]) for name in NAMES[4:]]
    assert handle.get("b.tar", member=NAMES[11]) == filled[NAMES[11]]


def test_archive_into_another_bucket(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    to = f"{bucket}-to"
    value: dict[str, Any] = {"template": "shard-0", "archname": "a.zip", "isbn": True, "tobck": {"name": to}}
    job_of(served, call(served, "PUT", f"buckets/{bucket}", action("archive", value)))
    with zipfile.ZipFile(io.BytesIO(served.client.bucket(to).get("a.zip"))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            f"{bucket}/{name}": filled[name] for name in NAMES[:10]
        }
    value |= {"archname": "b", "mime": ".tgz", "isbn": False}
    job_of(served, call(served, "PUT", f"buckets/{bucket}", action("archive", value)))
    with tarfile.open(fileobj=io.BytesIO(served.client.bucket(to).get("b")), mode="r:gz") as tar:
        assert tar.getnames() == NAMES[:10]


def test_an_archive_of_missing_objects(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    value: dict[str, Any] = {"objnames": [NAMES[0], "none"], "archname": "a.tar"}
    answer = call(served, "PUT", f"buckets/{bucket}", action("archive", value))
    assert answer.status == 404
    assert "a.tar" not in stored(served, bucket)
    succeeded(call(served, "PUT", f"buckets/{bucket}", action("archive", value | {"coer": True})))
    assert members(stored(served, bucket)["a.tar"]) == [(NAMES[0], filled[NAMES[0]])]


@table(
    ("method", "name", "value"),
    [
        ("DELETE", "delete-listrange", {}),
        ("DELETE", "delete-listrange", None),
        ("DELETE", "delete-listrange", {"objnames": []}),
        ("DELETE", "delete-listrange", {"objnames": "a"}),
        ("DELETE", "delete-listrange", {"objnames": ["../a"]}),
        ("DELETE", "delete-listrange", {"template": "a{"}),
        ("DELETE", "delete-listrange", {"template": "a{9..1}"}),
        ("DELETE", "delete-listrange", {"template": "{0..99999}{0..99999}"}),
        ("DELETE", "evict-listrange", {"objnames": ["a"]}),
        ("DELETE", "evict-remote-bck", None),
        ("POST", "prefetch-listrange", {"template": "a"}),
        ("POST", "copy-listrange", {"objnames": ["a"]}),
        ("POST", "copy-bck", {}),
        ("POST", "move-bck", None),
        ("PUT", "archive", {"objnames": ["a"]}),
        ("PUT", "archive", {"objnames": ["a"], "archname": "a.txt"}),
        ("PUT", "archive", {"objnames": ["a"], "archname": "a.tar", "mime": ".rar"}),
        ("PUT", "archive", {"objnames": ["a"], "archname": "a.tar", "tobck": "b"}),
        ("POST", "no-such-action", {}),
    ],
)
def test_actions_that_are_not_valid(
    served: Served, bucket: str, filled: dict[str, bytes], method: str, name: str, value: Any
) -> None:
    before = stored(served, bucket)
    answer = call(served, method, f"buckets/{bucket}", action(name, value))
    assert answer.status == 400, answer.body
    assert answer.json()["message"]
    assert stored(served, bucket) == before


def test_actions_on_a_bucket_that_is_missing(served: Served) -> None:
    for method, name, value in (
        ("DELETE", "delete-listrange", {"objnames": ["a"]}),
        ("POST", "copy-listrange", {"objnames": ["a"], "tobck": {"name": "x"}}),
        ("PUT", "archive", {"objnames": ["a"], "archname": "a.tar"}),
    ):
        answer = call(served, method, "buckets/no-such", action(name, value))
        assert (answer.status, answer.json()["message"]) == (404, 'bucket "ais://no-such" does not exist')


def test_templates() -> None:
    assert list(expand("a-{08..11}-{0..6..3}.x")()) == [
        *("a-08-0.x", "a-08-3.x", "a-08-6.x", "a-09-0.x", "a-09-3.x", "a-09-6.x"),
        *("a-10-0.x", "a-10-3.x", "a-10-6.x", "a-11-0.x", "a-11-3.x", "a-11-6.x"),
    ]
    for wrong in ("{a..b}", "{1}", "{1..2", "1..2}", "{}", "{1..2..0}", "{{1..2}}", "{-1..2}", "{1..99999999999}"):
        with pytest.raises(AISError):
            expand(wrong)


# -- jobs


def test_jobs_that_the_store_does_by_itself(served: Served) -> None:
    answer = call(served, "PUT", "cluster", action("start", {"ID": "", "Kind": "lru", "Buckets": None}))
    assert job_of(served, answer)["kind"] == "lru"
    succeeded(call(served, "PUT", "cluster", action("stop", {"ID": answer.body.decode(), "Kind": "lru"})))
    refused = call(served, "PUT", "cluster", action("start", {"Kind": "rebalance"}))
    assert (refused.status, refused.json()["tcode"]) == (501, "ErrUnsupp")


@table("id", ["no-such-job", "g", "g0-0-0-0-0", "gzabc-1-1-1-1", "g0!-1-1-1-1", "g0" + "z" * 99])
def test_jobs_that_are_not_there(served: Served, id: str) -> None:
    for what in ("status", "qryxstats"):
        assert call(served, "GET", "cluster", {"ID": id, "Kind": "lru"}, what=what).status == 404
    assert call(served, "PUT", "cluster", action("stop", {"ID": id, "Kind": ""})).status == 400


def listed(served: Served, what: str, kind: str = "", **message: Any) -> Any:
    return succeeded(call(served, "GET", "cluster", {"kind": kind, **message}, what=what)).json()


def test_lists_of_jobs(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    started = [
        succeeded(call(served, "PUT", "cluster", action("start", {"Kind": kind}))).body.decode()
        for kind in ("lru", "lru", "cleanup")
    ]
    value = {"objnames": NAMES[:2], "tobck": {"name": f"{bucket}-to"}}
    copy = succeeded(call(served, "POST", f"buckets/{bucket}", action("copy-listrange", value))).body.decode()
    known = {job["uuid"]: job for job in listed(served, "status_all")}
    assert {*started, copy} <= known.keys()
    assert all(known[id]["end_time"] and not known[id]["err"] for id in (*started, copy))
    assert set(started[:2]) <= {job["uuid"] for job in listed(served, "status_all", "lru")}
    assert started[2] not in [job["uuid"] for job in listed(served, "status_all", "lru")]
    assert copy in [job["id"] for job in listed(served, "qryxstats", "copy-listrange")["store"]]
    # Jobs that AIStore lets idle are in the list of running ones for a while, though they have ended.
    for message in ({}, {"show_active": True}):
        assert f"copy-listrange[{copy}]" in listed(served, "running_all", **message)
    assert listed(served, "running_all", "lru") == []
    assert copy not in [job["uuid"] for job in listed(served, "status_all", show_active=True)]
    for kind in ("download", "sort"):
        assert succeeded(call(served, "GET", kind)).json() == []
        assert call(served, "POST", kind, {}).status == 501


def jobs_of(served: Served) -> recent_jobs.RecentJobs:
    """Return the jobs of the key with which `call` sends requests."""
    return recent_jobs.recent_jobs(served.client, ACCOUNT.access_key)


def test_jobs_that_ended_long_ago_are_not_listed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    id = succeeded(call(served, "PUT", "cluster", action("start", {"Kind": "lru"}))).body.decode()
    assert id in [job["uuid"] for job in listed(served, "status_all")]
    monkeypatch.setattr(recent_jobs, "LISTED_S", -1.0)
    assert listed(served, "status_all") == []
    assert succeeded(call(served, "GET", "cluster", {"ID": id}, what="status")).json()["end_time"]


def test_jobs_of_others_are_not_listed(served: Served) -> None:
    mine, theirs = jobs_of(served), recent_jobs.recent_jobs(Client(served.client._transport), ACCOUNT.access_key)
    job = theirs.begin("copy-bck", lambda: None)
    assert theirs.find(job.id) is job and mine.find(job.id) is None
    assert call(served, "PUT", "cluster", action("stop", {"ID": job.id})).status == 400
    assert not job.is_stopped


def test_many_jobs_are_forgotten(served: Served) -> None:
    jobs = recent_jobs.RecentJobs()
    running = jobs.begin("copy-bck", lambda: None)
    for _ in range(3000):
        jobs.begin("get-batch", lambda: None).end(1, 1)
    assert len(jobs.all()) <= 1001 and jobs.all()[0] is running


def test_a_running_action_is_stopped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_AT_ONCE_S", 0.0)
    ended = threading.Event()

    def endless(stopping: Stopping) -> JobOutcome:
        try:
            while True:
                stopping.check()
        finally:
            ended.set()

    response = jobs.answer_when_done(jobs_of(served), "move-bck", endless)
    (running,) = listed(served, "running_all", "move-bck")
    id = running.removeprefix("move-bck[").removesuffix("]")
    assert succeeded(call(served, "GET", "cluster", {"ID": id}, what="status")).json()["end_time"] == 0
    succeeded(call(served, "PUT", "cluster", action("stop", {"ID": id, "Kind": "move-bck"})))
    assert ended.wait(180)
    assert not isinstance(response.body, bytes)
    final = b"".join(map(bytes, response.body)).decode()
    found = succeeded(call(served, "GET", "cluster", {"ID": final}, what="status")).json()
    assert (found["aborted"], found["err"]) == (True, "ended with Stopped")
    assert listed(served, "running_all", "move-bck") == []


def batch_jobs(served: Served) -> dict[str, dict[str, Any]]:
    return {job["id"]: job for job in listed(served, "qryxstats", "get-batch").get("store", [])}


def ended_batch_jobs(served: Served, id: str) -> dict[str, dict[str, Any]]:
    """Return the jobs once this one has ended, of which its client may know before."""
    return eventually(lambda: (found := batch_jobs(served))[id]["is_idle"] and found)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_batch_is_a_job(served: Served, bucket: str, filled: dict[str, bytes], streamed: bool) -> None:
    before = batch_jobs(served)
    message = {"in": [{"objname": name} for name in NAMES], "strm": streamed}
    succeeded(call(served, "GET", f"ml/moss/{bucket}", message))
    after = batch_jobs(served)
    (id,) = after.keys() - before.keys()
    after = ended_batch_jobs(served, id)
    total = sum(len(filled[name]) for name in NAMES)
    assert after[id]["stats"]["loc-objs"] == "12" and after[id]["stats"]["loc-bytes"] == str(total)
    assert (after[id]["is_idle"], after[id]["aborted"], after[id]["err"]) == (True, False, "")
    assert f"get-batch[{id}]" in listed(served, "running_all")
    succeeded(call(served, "PUT", "cluster", action("stop", {"ID": id, "Kind": "get-batch"})))
    found = batch_jobs(served)[id]
    assert (found["aborted"], found["err"]) == (True, "stopped")
    assert f"get-batch[{id}]" not in listed(served, "running_all")


def test_a_batch_that_is_refused_is_a_job_that_failed(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    before = batch_jobs(served)
    message = {"in": [{"objname": "none"}], "strm": True}
    assert call(served, "GET", f"ml/moss/{bucket}", message).status == 404
    after = batch_jobs(served)
    (id,) = after.keys() - before.keys()
    assert ended_batch_jobs(served, id)[id]["err"] == "ended early"


def test_a_running_batch_is_stopped(served: Served, bucket: str) -> None:
    served.client.bucket(bucket).put_many([(f"{at:02}", data(at, 4 << 20)) for at in range(32)])
    before = batch_jobs(served)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=180)
    message = json.dumps({"in": [{"objname": f"{at:02}"} for at in range(32)], "strm": True})
    connection.request("GET", f"/v1/ml/moss/{bucket}", message, {"Authorization": BEARER})
    answer = connection.getresponse()
    assert answer.status == 200 and len(answer.read(1 << 20)) == 1 << 20
    after = batch_jobs(served)
    (id,) = after.keys() - before.keys()
    assert not after[id]["is_idle"] and f"get-batch[{id}]" in listed(served, "running_all")
    succeeded(call(served, "PUT", "cluster", action("stop", {"ID": id, "Kind": "get-batch"})))
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    connection.close()
    deadline_s = time.monotonic() + 180
    while not (found := batch_jobs(served)[id])["is_idle"]:
        assert time.monotonic() < deadline_s
    assert (found["aborted"], found["err"]) == (True, "stopped")
    assert int(found["stats"]["loc-objs"]) < 32


def test_a_long_action_is_answered_in_pieces(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_AT_ONCE_S", 0.0)
    monkeypatch.setattr(jobs, "_ALIVE_S", 0.01)
    going_on = threading.Event()

    def long(_: Stopping) -> JobOutcome:
        assert going_on.wait(180)
        return JobOutcome(3, 1 << 60)

    response = jobs.answer_when_done(jobs_of(served), "copy-bck", long)
    pieces = response.body
    assert not isinstance(pieces, bytes)
    first = [next(pieces), next(pieces)]
    going_on.set()
    id = b"".join([*map(bytes, first), *map(bytes, pieces)]).decode()
    assert id.startswith("00")
    assert id in [job["uuid"] for job in listed(served, "status_all", "copy-bck")]
    found = succeeded(call(served, "GET", "cluster", {"ID": id}, what="qryxstats")).json()["store"][0]
    assert (found["kind"], found["is_idle"], found["err"]) == ("copy-bck", True, "")
    assert found["stats"]["loc-objs"] == "3"
    assert found["stats"]["loc-bytes"] == str(1 << 60)


def test_a_long_action_fails(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_AT_ONCE_S", 0.0)
    going_on = threading.Event()

    def failing(_: Stopping) -> JobOutcome:
        assert going_on.wait(180)
        raise errors.DriveFull("full")

    response = jobs.answer_when_done(jobs_of(served), "archive", failing)
    going_on.set()
    assert not isinstance(response.body, bytes)
    assert b"".join(map(bytes, response.body)).endswith(b"-DriveFull")


def test_a_client_that_leaves_ends_its_action(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_AT_ONCE_S", 0.0)
    monkeypatch.setattr(jobs, "_ALIVE_S", 0.01)
    ended = threading.Event()

    def endless(stopping: Stopping) -> JobOutcome:
        try:
            while True:
                stopping.check()
        finally:
            ended.set()

    pieces = jobs.answer_when_done(jobs_of(served), "copy-bck", endless).body
    assert not isinstance(pieces, bytes)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert ended.wait(180)
    ended.clear()
    jobs.answer_when_done(jobs_of(served), "copy-bck", endless)  # the client has left before the answer began
    assert ended.wait(180)


# -- promotion


def test_no_files_are_promoted_into_a_store_without_nodes(served: Served, bucket: str) -> None:
    value = {"src": "/etc", "obj": "etc/", "rcr": True}
    answer = call(served, "POST", f"objects/{bucket}", action("promote", value, name="/etc"))
    assert answer.status == (400 if is_remote(served.client.url) else 501)
    assert stored(served, bucket) == {}
