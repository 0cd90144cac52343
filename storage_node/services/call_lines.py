"""Lines of calls in the audit log, and the origin of the sessions and lanes that calls open.

Every call that changes something gets one line when it ends, also one that was refused or broke off; with
`audit_level="reads"`, calls that return bytes of objects too. A PUT of many objects has one line for all of them. Lines
of batches are those of their sessions (`audit.reads`).

Calls that are refused for want of a valid token have no line: whoever can reach the node could fill the log with them.
They are counted (`ais_loader_refusals_total`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ais_loader.errors import AccessDenied
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.limits.call_slots import tenant_of
from storage_node.security.audit.log import AuditLog
from storage_node.security.audit.reads import digest_of, named
from storage_node.security.audit.subject import (
    CALL,
    CLIENT,
    NOBODY,
    NODE,
    OPERATOR,
    ORIGIN,
    SESSION,
    CallOrigin,
    Subject,
    source_of,
)
from storage_node.services.call_table import CALLER, CHANGE, OPENS, READ, About, Call, Role
from storage_node.settings.config import ServerConfig

MAX_ENTRIES = 10_000
"""Number of objects from which a PUT of many objects gets another line."""
_BY = {Role.PEER: NODE, Role.OPERATOR: OPERATOR}


class CallLines:
    """Lines of a node's calls. Belongs to the node's event loop."""

    def __init__(self, log: AuditLog, config: ServerConfig) -> None:
        self._log, self._config = log, config

    def has(self, call: Call) -> bool:
        """Whether a call has a line, or opens what has some."""
        return bool(call.log) and (call.log != READ or self._config.audit.logs_reads)

    def begin(self, call: Call, context: Any, *, over_lane: bool) -> CallLine | None:
        """Begin the line of a call; None if it only opens something. `over_lane`: of a lane, which has its origin
        already."""
        if not over_lane:
            transport = SESSION if call.log == OPENS else CALL
            ORIGIN.set(CallOrigin(_BY.get(CALLER.get(), CLIENT), source_of(context.peer()), transport))
        if call.log == OPENS or (call.log != CHANGE and ORIGIN.get().by == NODE):
            return None
        return CallLine(self, call, context)

    def append(self, line: CallLine, call: Call, claimed: str) -> None:
        subject = Subject.current()
        is_refused = line.outcome == AccessDenied.kind and subject.token == NOBODY
        if is_refused and self._config.listen.token_key_file and subject.origin.by == CLIENT:
            return
        event = READ if call.log == READ else CHANGE
        fields = {"event": event, "call": call.name, "transport": subject.origin.transport, **subject.fields(claimed)}
        self._log.append(line.made(fields, names=self._config.audit.names), line.entries + 1)


class CallLine:
    """Content of the line of one call. A call with many objects has several, one after another."""

    def __init__(self, lines: CallLines, call: Call, context: Any) -> None:
        self._lines, self._call, self._context = lines, call, context
        self._is_part = False
        self.outcome = "ok"
        self._target = ""
        self._reset()

    def _reset(self) -> None:
        self._buckets: set[str] = set()
        self._objects: list[tuple[str, str, str]] = []
        self._done = self._failures = self._bytes = 0
        self._version = ""

    @property
    def entries(self) -> int:
        return len(self._objects)

    def on(self, about: Iterable[About], message: Any) -> None:
        """Note what a message is about."""
        for bucket, names, member in about:
            self._buckets.add(bucket)
            self._objects += [(bucket, name, member) for name in names]
        if self._call.target is not None:
            self._target = str(self._call.target(message))

    def failed(self, outcome: str) -> None:
        if self.outcome == "ok":
            self.outcome = outcome

    def abandoned(self) -> None:
        """Note that the call was cancelled. Its client may do so when each of several objects has its result."""
        if not self.entries or self._done + self._failures < self.entries:
            self.failed("abandoned")

    def end(self) -> None:
        if self.entries or not self._is_part:
            self._lines.append(self, self._call, tenant_of(self._context))

    def answered(self, response: Any) -> None:
        """Note what a response says, and append a line of what the call has done, if that is much."""
        self._take(response)
        if self.entries >= MAX_ENTRIES:
            self.end()
            self._reset()
            self._is_part = True

    def _take(self, response: Any) -> None:
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
        elif isinstance(response, contents_pb.DeleteManyResponse | contents_pb.DenyResponse):
            self._failures += len(response.failure)
            self._done = self.entries - self._failures

    def _stored(self, info: pb.ObjectInfo) -> None:
        self._done += 1
        self._bytes += info.size_bytes
        self._version = info.version

    def made(self, fields: dict[str, Any], *, names: bool) -> Callable[[], dict[str, Any]]:
        """Return the function that makes the line, with these fields first."""
        objects, buckets, target, outcome = self._objects, self._buckets, self._target, self.outcome
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
