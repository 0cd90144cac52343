"""Audit guard: the lines of calls in the audit log, and the origin of the sessions and lanes that calls open.

Every call that changes something gets one line when it ends, also one that was refused or broke off; with
`audit_level="reads"`, calls that return bytes of objects too. A PUT of many objects has one line for all of them. Lines
of batches are those of their sessions (`audit.reads`).

Calls that are refused for want of a valid token have no line: whoever can reach the node could fill the log with them.
They are counted (`ais_loader_refusals_total`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc

from ais_loader.errors import AccessDenied
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ERROR_KIND_KEY
from storage_node.audit.log import AuditLog
from storage_node.audit.reads import READ, digest_of, named
from storage_node.audit.subject import CALL, CLIENT, NOBODY, NODE, OPERATOR, ORIGIN, SESSION, Origin, Subject, source_of
from storage_node.limits.call_slots import Received, tenant_of
from storage_node.services.access import CALLER, Role
from storage_node.services.calls import answering
from storage_node.settings.config import ServerConfig

CHANGE = "change"
MAX_ENTRIES = 10_000
"""Number of objects from which a PUT of many objects gets another line."""
_ABANDONED = "abandoned"
_BY = {Role.PEER: NODE, Role.OPERATOR: OPERATOR}

Describe: TypeAlias = Callable[["_CallLine", Any], None]
"""Notes what a message of a call is about."""


def _bucket(field: str = "bucket") -> Describe:
    return lambda line, request: line.on(getattr(request, field))


def _target(field: str) -> Describe:
    def describe(line: _CallLine, request: Any) -> None:
        line.target = str(getattr(request, field))

    return describe


def _object(line: _CallLine, request: Any) -> None:
    line.on(request.bucket, request.name)


def _put(line: _CallLine, request: Any) -> None:
    # Over a lane, the bytes of an object come as another type.
    if isinstance(request, pb.PutRequest) and request.HasField("header"):
        line.on(request.header.bucket, request.header.name)


def _put_many(line: _CallLine, request: pb.PutManyRequest) -> None:
    for small in request.object:
        line.on(small.bucket, small.name)


def _named(line: _CallLine, request: Any) -> None:
    line.on(request.bucket, *request.name)


def _get(line: _CallLine, request: pb.GetRequest) -> None:
    line.on(request.bucket, request.name, member=request.member)


def _compose(line: _CallLine, request: compose_pb.ComposeRequest) -> None:
    line.on(request.object.bucket, request.object.name)


def _snapshot(line: _CallLine, request: Any) -> None:
    line.on(request.bucket)
    line.target = request.name


def _inventory(line: _CallLine, request: Any) -> None:
    if request.bucket:  # in the first message
        line.on(request.bucket)


def _transform(line: _CallLine, request: etl_pb.InitTransformRequest) -> None:
    line.target = request.transform.name


def _job(line: _CallLine, request: etl_pb.StartJobRequest) -> None:
    line.on(request.job.bucket)
    line.on(request.job.to_bucket)
    line.target = request.job.name


def _copy(line: _CallLine, request: etl_pb.CopyObjectRequest) -> None:
    line.on(request.to_bucket, request.to_name)


def _token(line: _CallLine, request: Any) -> None:
    line.target = request.token.id


def _map(line: _CallLine, request: Any) -> None:
    line.target = f"map {request.map.version}"


_name, _drive = _target("name"), _target("drive")
CHANGES: Mapping[str, Describe] = {
    "Buckets/CreateBucket": _bucket("name"),
    "Buckets/SetBucket": _bucket("name"),
    "Buckets/DeleteBucket": _bucket("name"),
    "Objects/Put": _put,
    "Objects/PutMany": _put_many,
    "Objects/Delete": _object,
    "Compose/Compose": _compose,
    "Contents/DeleteMany": _named,
    "RemoteBuckets/Evict": _named,
    "RemoteBuckets/RefreshInventory": _inventory,
    "Snapshots/CreateSnapshot": _snapshot,
    "Snapshots/DeleteSnapshot": _snapshot,
    "Promote/Run": _bucket(),
    "Etl/InitTransform": _transform,
    "Etl/SetTransform": _name,
    "Etl/DeleteTransform": _name,
    "Etl/StartJob": _job,
    "Etl/StopJob": _name,
    "Etl/DeleteJob": _name,
    "Etl/CopyObject": _copy,
    "Tokens/RevokeToken": _token,
    "Drives/AddDrive": _target("path"),
    "Drives/RetireDrive": _drive,
    "Drives/ReinstateDrive": _drive,
    "Drives/ForgetDrive": _drive,
    "Drives/DisableDrive": _drive,
    "Drives/EnableDrive": _drive,
    "Cluster/Accept": _map,
}
"""Calls that change something."""
READS: Mapping[str, Describe] = {"Objects/Get": _get, "Compose/TarEnd": _object}
"""Calls that return bytes of objects, or names of an archive's members."""
OPENS = ("GetBatch/Session", "GetBatch/OpenLane")
"""Calls that open what later lines come from."""


class AuditGuard:
    """Lines of a node's calls. Belongs to the node's event loop."""

    def __init__(self, log: AuditLog, config: ServerConfig) -> None:
        self._log, self._names = log, config.audit.names
        self._needs_tokens = bool(config.listen.token_key_file)
        self._logged: dict[str, tuple[str, Describe]] = {name: (CHANGE, one) for name, one in CHANGES.items()}
        if config.audit.logs_reads:
            self._logged |= {name: (READ, one) for name, one in READS.items()}

    def guard(self, path: str, handler: grpc.RpcMethodHandler, *, over_lane: bool = False) -> grpc.RpcMethodHandler:
        """Return a handler that logs its calls. `over_lane`: of a lane, which has its origin already."""
        method = path.rpartition(".")[2]
        logged = self._logged.get(method)
        if logged is None and method not in OPENS:
            return handler
        field, answered = answering(handler)

        async def call(requests: AsyncIterator[Any], context: Any) -> Any:
            if not over_lane:
                transport = SESSION if method in OPENS else CALL
                by = _BY.get(CALLER.get(), CLIENT)
                ORIGIN.set(Origin(by, source_of(context.peer()), transport))
            if logged is None or (ORIGIN.get().by == NODE and (logged[0] == READ or method == "Cluster/Accept")):
                return await answered(requests, context)
            line = _CallLine(logged[1])
            try:
                async with aclosing(line.asked(requests)) as asked:
                    answer = await answered(asked, _Watched(context, line, self._append_part(logged[0], method)))
                if answer is not None:
                    line.answered(answer)
                return answer
            except asyncio.CancelledError:
                if not line.is_answered:  # a client that has all answers may cancel its call
                    line.failed(_ABANDONED)
                raise
            except BaseException:
                line.failed("internal")  # unless the call has told its client another error
                raise
            finally:
                self._append(logged[0], method, line, tenant_of(context))

        return handler._replace(**{field: call})

    def _append_part(self, event: str, method: str) -> Callable[[_CallLine, Any], None]:
        """Return a function that appends the line of what a call has done, if that is much."""

        def append(line: _CallLine, context: Any) -> None:
            if line.entries >= MAX_ENTRIES:
                self._append(event, method, line, tenant_of(context))
                line.begin()

        return append

    def _append(self, event: str, method: str, line: _CallLine, claimed: str) -> None:
        subject = Subject.current()
        is_refused = line.outcome == AccessDenied.kind and subject.token == NOBODY
        if is_refused and self._needs_tokens and subject.origin.by == CLIENT:
            return
        if line.is_part and not line.entries:
            return
        fields = {"event": event, "call": method, "transport": subject.origin.transport, **subject.fields(claimed)}
        self._log.append(line.made(fields, names=self._names), line.entries + 1)


class _CallLine:
    """Content of the line of one call."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self.is_part = False
        self.outcome = "ok"
        self.target = ""
        self._reset()

    def _reset(self) -> None:
        self._buckets: set[str] = set()
        self._objects: list[tuple[str, str, str]] = []
        self._done = self._failures = self._bytes = 0
        self._version = ""

    def begin(self) -> None:
        """Begin the next line of the same call."""
        self._reset()
        self.is_part = True

    @property
    def entries(self) -> int:
        return len(self._objects)

    @property
    def is_answered(self) -> bool:
        """Whether each of several objects has its result."""
        return self.entries > 0 and self._done + self._failures >= self.entries

    def on(self, bucket: str, *names: str, member: str = "") -> None:
        self._buckets.add(bucket)
        self._objects += [(bucket, name, member) for name in names]

    def failed(self, outcome: str) -> None:
        if self.outcome == "ok":
            self.outcome = outcome

    async def asked(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the messages of a call, and note what they are about."""
        async for request in requests:
            self._describe(self, request.message if isinstance(request, Received) else request)
            yield request

    def answered(self, response: Any) -> None:
        """Note what a response says."""
        if isinstance(response, pb.ObjectInfo):
            self._stored(response)
        elif isinstance(response, pb.PutManyResponse):
            for result in response.result:
                if result.HasField("error"):
                    self._failures += 1
                else:
                    self._stored(result.info)
        elif isinstance(response, pb.GetResponse):
            if response.HasField("header"):
                self._version = response.header.info.version
            self._bytes += len(response.data)
        elif isinstance(response, compose_pb.ComposeResponse | etl_pb.CopyObjectResponse):
            if response.HasField("info"):
                self._stored(response.info)
        elif isinstance(response, contents_pb.DeleteManyResponse):
            self._failures += len(response.failure)
            self._done = self.entries - self._failures
        elif isinstance(response, compose_pb.TarEndResponse):
            self._version = response.version

    def _stored(self, info: pb.ObjectInfo) -> None:
        self._done += 1
        self._bytes += info.size_bytes
        self._version = info.version

    def made(self, fields: dict[str, Any], *, names: bool) -> Callable[[], dict[str, Any]]:
        """Return the function that makes the line, with these fields first."""
        objects, buckets, target, outcome = self._objects, self._buckets, self.target, self.outcome
        done, failures, size_bytes, version = self._done, self._failures, self._bytes, self._version

        def make() -> dict[str, Any]:
            found = {**fields, "outcome": outcome, "buckets": sorted(buckets)}
            if target:
                found["target"] = target
            if objects:
                found |= {"digest": digest_of(objects), "entries": len(objects)}
                found |= {"done": done} if done else {}
                found |= {"failed": failures} if failures else {}
                found |= {"version": version} if version and len(objects) == 1 else {}
                found |= {"names": named(objects)} if names else {}
            return found | ({"bytes": size_bytes} if size_bytes else {})

        return make


class _Watched:
    """The context of a call, with its line."""

    def __init__(self, context: Any, line: _CallLine, append_part: Callable[[_CallLine, Any], None]) -> None:
        self._context, self._line, self._append_part = context, line, append_part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: Any) -> None:
        self._line.answered(response)
        self._append_part(self._line, self._context)
        await self._context.write(response)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._line.failed(dict(trailing_metadata).get(ERROR_KIND_KEY, "internal"))
        await self._context.abort(code, details, trailing_metadata)
        raise AssertionError("gRPC's abort raises")
