"""The call table says of every method, and of every message, what the tables say that it replaces."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from storage_node.lane.calls import ObjectBytes
from storage_node.rights.granted import Granted
from storage_node.rights.methods import needs_of_methods
from storage_node.rights.tokens import TokenClaims
from storage_node.services import access, audit_guard, token_gate
from storage_node.services.call_table import COMMAND, NO_RIGHTS, OPENS, PATIENT, TABLE, TIMED
from storage_node.services.compose import ComposeService
from storage_node.services.contents import ContentsService
from storage_node.services.etl import EtlService
from storage_node.services.objects import ObjectsService
from storage_node.services.remote import RemoteBucketsService
from tests.node.contract_kit import methods

pytestmark = pytest.mark.slow

NAMES = ("", "speech", "speech-secret", "text", "none")
SCOPES = (
    *([f"{bucket}:{right}"] for bucket in ("speech", "*", "text") for right in ("read", "list", "write", "delete")),
    *([f"{bucket}:{right}"] for bucket in ("speech", "*") for right in ("admin", "promote", "etl-use", "etl-create")),
    ["speech:read,list,etl-job", "text:write,etl-job"],
    ["speech:read,list,write,etl-job,delete"],
    ["speech:read", "text:read,write"],
    ["speech:admin,remote,read"],
    ["speech:admin,remote,read", "fast:profile"],
    ["speech:etl-create,etl-install"],
    ["*:read,list,write,delete,admin,promote,etl-use,etl-create,etl-job,etl-code,etl-install,remote,profile"],
)


def jobs(name: str) -> tuple[str, str] | None:
    return {"speech": ("speech", "text"), "text": ("text", "text")}.get(name)


def granted(scopes: list[str]) -> Granted:
    return Granted(TokenClaims("tenant", "store", tuple(scopes), "id", 0, 1 << 40, 0))


def requests(method: str) -> Iterator[Any]:
    """Messages of a method, with every value of its names of buckets and objects."""
    make = GetMessageClass(methods()[method].input_type)
    yield make()
    fields = [field.name for field in make.DESCRIPTOR.fields if isinstance(getattr(make(), field.name), str)]
    named = [name for name in fields if name in ("bucket", "name", "to_bucket", "to_name", "drive", "path", "member")]
    for values in itertools.product(NAMES, repeat=min(2, len(named))):
        request: Any = make(**dict(zip(named, values, strict=False)))
        if method.startswith("Etl/Copy"):
            request.to_name = "x"
        yield request
    if method in ("Buckets/CreateBucket", "Buckets/SetBucket"):
        for name, profile in itertools.product(NAMES, ("", "fast")):
            yield make(name=name, remote={"url": "s3://b/", "profile": profile})
    for one, other in itertools.product(NAMES, repeat=2):
        yield from special(method, one, other)


def special(method: str, one: str, other: str) -> Iterator[Any]:
    """Messages with names inside other messages."""
    if method == "Objects/Put":
        yield pb.PutRequest(header=pb.PutHeader(bucket=one, name=other))
        yield pb.PutRequest(data=b"x")
        yield ObjectBytes(memoryview(b"x"))
    if method == "Objects/PutMany":
        yield pb.PutManyRequest(object=[pb.SmallObject(bucket=one, name="x"), pb.SmallObject(bucket=other, name="y")])
    if method in ("Contents/DeleteMany", "Contents/HeadMany", "RemoteBuckets/Warm", "RemoteBuckets/Evict"):
        yield GetMessageClass(methods()[method].input_type)(bucket=one, name=["x", "y"])
    if method == "Compose/Compose":
        request = compose_pb.ComposeRequest(object=pb.PutHeader(bucket=one, name="x"))
        request.part.add(data=b"x")
        yield request
        request.part.add().range.bucket = other
        yield request
    if method == "RemoteBuckets/Expect":
        yield remote_pb.ExpectRequest(bucket=[one, other])
    if method == "Etl/InitTransform":
        for requirement in ([], ["numpy"]):
            yield etl_pb.InitTransformRequest(transform={"name": one, "python": {"requirement": requirement}})
    if method == "Etl/StartJob":
        for synchronize in (False, True):
            job = etl_pb.TransformJob(name=one, bucket=one, to_bucket=other, synchronize=synchronize)
            yield etl_pb.StartJobRequest(job=job)
    if method == "Etl/CopyObject":
        yield etl_pb.CopyObjectRequest(bucket=one, to_bucket=other, stage=[{"name": "s"}])
    if method == "Tokens/RevokeToken":
        yield GetMessageClass(methods()[method].input_type)(token={"id": one})
    if method == "Cluster/Accept":
        yield GetMessageClass(methods()[method].input_type)(map={"version": 7})


def outcome(check: Any, *arguments: Any) -> tuple[type, str] | None:
    try:
        check(*arguments)
    except LoaderError as error:
        return type(error), str(error)
    return None


def test_who_may_call_what() -> None:
    assert {name: call.by.value for name, call in TABLE.items()} == {n: role.value for n, role in access.TABLE.items()}
    assert {name for name, call in TABLE.items() if not call.rated} == access.UNRATED
    assert {name for name, call in TABLE.items() if call.strangers} == access.STRANGERS
    assert {name for name, call in TABLE.items() if call.finds_peers} == set(token_gate._FOR_OPERATORS)
    assert [name for name, call in TABLE.items() if call.lanes] == ["Objects/Put", "Objects/PutMany"]


def test_rights_of_each_message() -> None:
    before = needs_of_methods(jobs)
    assert {name for name, call in TABLE.items() if call.needs is not None} == set(before)
    checked = 0
    for method, need in before.items():
        call = TABLE[method]
        assert (call.shows is None) == (need.shown is None), method
        for scopes in map(granted, SCOPES):
            for request in requests(method):
                if method == "RemoteBuckets/RefreshInventory" and not request.bucket:
                    continue  # a later message, which a token for some buckets was refused

                def check(scopes: Granted = scopes, request: Any = request, method: str = method) -> None:
                    call = TABLE[method]
                    if callable(call.needs):
                        call.needs(scopes, request, jobs)
                    elif call.needs:
                        for about in call.about(request):
                            scopes.require(call.needs, about.bucket)

                assert outcome(check) == outcome(need.check, scopes, request), (method, scopes.scopes.texts, request)
                checked += 1
        if getattr(need.check, "__name__", "") == "_nothing":
            assert call.needs == NO_RIGHTS, method
    assert checked > 20_000


def test_what_clients_see_of_each_answer() -> None:
    answers: dict[str, Any] = {
        "Buckets/ListBuckets": pb.ListBucketsResponse(bucket=[{"name": name} for name in NAMES]),
        "RemoteBuckets/RemoteUsage": remote_pb.RemoteUsageResponse(row=[{"bucket": n} for n in NAMES], expected_keys=3),
        "RemoteBuckets/PendingUploads": remote_pb.PendingUploadsResponse(bucket=[{"bucket": name} for name in NAMES]),
        "Etl/ListTransforms": etl_pb.ListTransformsResponse(
            transform=[{"transform": {"name": name}} for name in NAMES]
        ),
        "Etl/ListJobs": etl_pb.ListJobsResponse(
            job=[{"job": {"bucket": one, "to_bucket": other}} for one in NAMES for other in NAMES]
        ),
        "Objects/PutMany": pb.PutManyResponse(
            result=[{"info": {"name": "x"}}, {"error": {"kind": "k", "message": "/data/x is broken"}}]
        ),
        "Contents/DeleteMany": contents_pb.DeleteManyResponse(
            failure=[{"position": 1, "error": {"kind": "k", "message": "10.1.2.3:7480 is broken"}}]
        ),
    }
    before = needs_of_methods(jobs)
    for method, answer in answers.items():
        old, new = before[method].shown, TABLE[method].shows
        assert old is not None and new is not None
        for scopes in map(granted, SCOPES):
            some, others = type(answer)(), type(answer)()
            some.CopyFrom(answer)
            others.CopyFrom(answer)
            assert new(scopes, some) == old(scopes, others), method


def test_lines_of_each_message() -> None:
    before = {name: ("change", one) for name, one in audit_guard.CHANGES.items()}
    before |= {name: ("read", one) for name, one in audit_guard.READS.items()}
    logged = {name: call for name, call in TABLE.items() if call.log}
    assert [name for name, call in logged.items() if call.log == OPENS] == list(audit_guard.OPENS)
    assert [name for name, call in logged.items() if call.log == COMMAND] == ["Cluster/Accept"]
    assert {n for n, call in logged.items() if call.log != OPENS} == set(before)
    for method, (event, describe) in before.items():
        call = logged[method]
        assert call.log in (event, COMMAND)
        for request in requests(method):
            line = audit_guard._CallLine(describe)
            describe(line, request)
            new = audit_guard._CallLine(describe)
            for about in call.about(request):
                new.on(about.bucket, *about.names, member=about.member)
            if call.target is not None:
                new.target = str(call.target(request))
            assert new.made({}, names=True)() == line.made({}, names=True)(), (method, request)


def test_slots_and_counts() -> None:
    services = (ObjectsService, ComposeService, ContentsService, RemoteBucketsService, EtlService)
    for method, call in TABLE.items():
        service, _, name = method.partition("/")
        found = next((one for one in services if one.__name__ == f"{service}Service"), None)
        source = inspect.getsource(getattr(found, name)) if found is not None else ""
        decorators = source[: source.find("async def")]
        assert bool(call.slots) == ("@bounded" in decorators), method
        assert (call.slots == PATIENT) == ("deadline=False" in decorators), method
        assert (call.slots == TIMED) == ("@bounded" in decorators and "deadline=False" not in decorators), method
        assert call.counts == (
            decorators.split('counted("')[1].split('"')[0]
            if 'counted("' in decorators
            else (decorators.split('counted_stream("')[1].split('"')[0] if "counted_stream" in decorators else "")
        ), method
