"""Call path: the checks and limits between a listener and a servicer, the same for every call, as its row of the call
table says. To be read from top to bottom in `_ServedCall`:

1. Its line of the audit log begins, for a call that has one. Each later step that refuses the call is in the line.
2. The token of a client is verified. It is refused before anything else is looked at; the call ends with its token.
3. The call counts toward the rate of its tenant.
4. The request is received, and each message is noted in the line, then checked against the rights of the token.
5. The call holds a slot, with deadlines for what its client sends and takes.
6. The servicer runs. The call is counted when it ends, errors by their kind, and payload bytes as they pass; in a PUT
   of many objects, each object counts as one.
7. Each response loses what the client may not see, is noted in the line, and sent.

The first error ends the call with its status.

gRPC would read the request of a unary call itself, wait for it without a limit, and keep what has arrived in memory. A
node therefore declares unary calls as calls with a stream of requests, and reads the first one itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ais_loader.errors import InvalidName, InvalidRequest, LoaderError, Overloaded, SilenceTimeout
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.redundancy import is_companion
from storage_node.context.errors import ReplicaLost
from storage_node.context.node import Node
from storage_node.limits.call_slots import CallStream, Received, tenant_of
from storage_node.limits.counters import NodeCounters, count, count_each
from storage_node.limits.tasks import end_now
from storage_node.limits.tenant_rates import TenantRates
from storage_node.security.rights.granted import Granted, lasting
from storage_node.services.call_lines import CallLine, CallLines
from storage_node.services.call_table import CALLER, CHANGE, PACKAGE, TABLE, TIMED, About, Call, Role, call_of
from storage_node.services.errors import Context, abort
from storage_node.services.token_gate import TokenGate
from storage_node.store.names import CODED_PREFIX

log = logging.getLogger(__name__)

Note: TypeAlias = Callable[[grpc.HandlerCallDetails], None]


@dataclass(frozen=True, slots=True)
class CallPath:
    """Path of the calls of one listener. Belongs to the node's event loop."""

    node: Node
    lines: CallLines | None = None
    """Lines of calls in the audit log; None if nothing is logged."""
    gate: TokenGate | None = None
    """Check of clients' tokens; None where callers need none."""
    rates: TenantRates | None = None
    """Rates of tenants; None where there are none."""
    over_lane: bool = False
    """Whether calls have the token and the origin with which their lane was opened."""


class Methods:
    """The methods of a node's services, each of the component that carries it out."""

    def __init__(self) -> None:
        self._by_path: dict[str, tuple[grpc.RpcMethodHandler, bool]] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler], *, sizes: bool = True
    ) -> None:
        """Add the methods of a service. `sizes`: pass streamed requests to the methods as `Received`."""
        self._by_path |= {f"/{service}/{name}": (handler, sizes) for name, handler in handlers.items()}

    def add(self, service: str, component: object = None, **calls: Callable[[Any], Any]) -> None:
        """Add the methods of a service. Those that `component` does not have are `calls`, which take a request alone,
        and return the answer or an awaitable."""
        described = descriptor_pool.Default().FindServiceByName(f"{PACKAGE}.{service}")
        handlers = {}
        for method in described.methods:
            kind = "_".join(
                "stream" if many else "unary" for many in (method.client_streaming, method.server_streaming)
            )
            handlers[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(component, method.name, None) or _of_request(calls[method.name]),
                message_factory.GetMessageClass(method.input_type).FromString,
                message_factory.GetMessageClass(method.output_type).SerializeToString,
            )
        self.add_registered_method_handlers(described.full_name, handlers)

    def of_lanes(self, role: Role, path: CallPath) -> dict[str, grpc.RpcMethodHandler]:
        """Return the methods that lanes serve to this role, by name."""
        calls = [call for call in TABLE.values() if call.lanes is role]
        return {call.name: self._served(f"/{PACKAGE}.{call.name}", path) for call in calls}

    def served_to(self, roles: Role, path: CallPath, note: Note | None = None) -> grpc.GenericRpcHandler:
        """Return a handler, for a server, of the methods that one of these roles may call. `note` is called first in
        each call's task."""
        return _Listed({one: self._served(one, path) for one in self._by_path if call_of(one).by & roles}, note)

    def _served(self, path_on_wire: str, path: CallPath) -> grpc.RpcMethodHandler:
        handler, sizes = self._by_path[path_on_wire]
        take = _received if sizes and handler.request_streaming else _decoded
        response = "stream" if handler.response_streaming else "unary"
        return handler._replace(
            request_streaming=True,
            request_deserializer=partial(take, handler.request_deserializer),
            unary_unary=None,
            unary_stream=None,
            **{f"stream_{response}": _ServedCall(path, call_of(path_on_wire), handler).serve},
        )


def _of_request(call: Callable[[Any], Any]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def answer(request: Any, context: Context) -> Any:
        answered = call(request)
        return await answered if inspect.isawaitable(answered) else answered

    return answer


class _Listed(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, methods: Mapping[str, grpc.RpcMethodHandler], note: Note | None) -> None:
        self._methods, self._note = methods, note

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if self._note is not None:
            self._note(handler_call_details)
        return self._methods.get(handler_call_details.method)


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Decode a message. Raises InvalidRequest; gRPC itself would answer UNKNOWN."""
    try:
        return decode(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no message that the method takes: {error}") from None


def _received(decode: Callable[[bytes], Any], data: bytes) -> Received[Any]:
    """Decode a message and keep its size. Raises InvalidRequest."""
    return Received(_decoded(decode, data), len(data))


def _require_own(call: Call, about: Iterable[About]) -> None:
    """Refuse what would break erasure coding: clients have no companion buckets, and change no manifests. Raises
    InvalidName."""
    for one in about:
        if is_companion(one.bucket):  # with BucketNotFound, clients that know the map would try again
            raise InvalidName(f"bucket {one.bucket!r} has fragments of coded objects: use the bucket of the objects")
        if call.log == CHANGE and any(name.startswith(CODED_PREFIX) for name in one.names):
            raise InvalidName(f"names of coded groups begin with {CODED_PREFIX!r}: choose another name")


class _ServedCall:
    """One method as a listener serves it."""

    def __init__(self, path: CallPath, call: Call, handler: grpc.RpcMethodHandler) -> None:
        self._path, self._call = path, call
        self._lines = path.lines if path.lines is not None and path.lines.has(call) else None
        self._servicer: Callable[[Any, Any], Any] = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        self._takes_one, self._answers_once = not handler.request_streaming, not handler.response_streaming
        self._yields = inspect.isasyncgenfunction(self._servicer)  # otherwise it writes its responses itself
        if call.needs and not (self._takes_one or call.slots):
            raise ValueError(f"{call.name}: the messages of a stream are checked only where the call has slots")

    async def serve(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """Take steps 1 to 3 and the others, and end the call with the error of any of them."""
        path, call = self._path, self._call
        line = self._lines.begin(call, context, over_lane=path.over_lane) if self._lines is not None else None
        try:
            granted = None
            if path.gate is not None:
                granted = await path.gate.admit(call, context, over_lane=path.over_lane)
            if path.rates is not None and call.rated and (why := path.rates.take(tenant_of(context))) is not None:
                raise Overloaded(f"{why}: try again later")
            async with nullcontext() if granted is None else lasting(granted):
                response = await self._received(requests, context, line, granted)
            if line is not None and response is not None:
                line.answered(response)
            return response
        except LoaderError as error:
            if line is not None:
                line.failed(error.kind)
            await abort(context, error)
        except asyncio.CancelledError:
            if line is not None:
                line.abandoned()
            raise
        except BaseException as error:
            if line is not None:
                line.failed(LoaderError.kind)
            if isinstance(error, ReplicaLost) and path.gate is None:  # the node that calls asks again
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            if path.gate is None or path.over_lane or not _has_text(error):
                raise
            log.exception("%s failed", call.name)  # gRPC would send its text
            await abort(context, LoaderError("internal error, see the node's log"))
        finally:
            if line is not None:
                line.end()

    async def _received(
        self, requests: AsyncIterator[Any], context: Any, line: CallLine | None, granted: Granted | None
    ) -> Any:
        """Take steps 4 and 5."""
        call, streams = self._call, self._path.node.streams
        if not self._takes_one:
            if not call.slots:
                return await self._answered(requests, context, line, granted)
            look = partial(self._look, line, granted)
            with streams.open(tenant_of(context)) as stream:
                async with aclosing(stream.messages(requests, look=look, deadline=call.slots == TIMED)) as messages:
                    return await self._answered(messages, context, line, granted, stream)
        request = await self._only_request(requests, context)
        self._look(line, granted, request)
        if not call.slots:
            return await self._answered(request, context, line, granted)
        with streams.open(tenant_of(context)) as stream:
            if self._answers_once:
                await stream.keep(request.ByteSize())
            return await self._answered(request, context, line, granted, stream)

    def _look(self, line: CallLine | None, granted: Granted | None, message: Any) -> None:
        """Note what a message is about, then check that clients may do that, and that the token gives the rights to it.
        Raises LoaderError."""
        is_client = CALLER.get() is Role.CLIENT
        if line is None and granted is None and not is_client:
            return
        about = tuple(self._call.about(message))
        if line is not None:
            line.on(about, message)
        if is_client:
            _require_own(self._call, about)
        if granted is not None and self._path.gate is not None:
            self._path.gate.require(granted, self._call, about, message)

    async def _answered(
        self,
        request: Any,
        context: Any,
        line: CallLine | None,
        granted: Granted | None,
        stream: CallStream | None = None,
    ) -> Any:
        """Take steps 6 and 7; a single response is left to the caller to send."""
        call = self._call
        counting = _Counting(self._path.node.metrics, call.counts) if call.counts else None
        if not self._yields:
            with counting or nullcontext():
                response = await self._servicer(request, context)
                if counting is not None:
                    counting.take(response)
            return response if granted is None or call.shows is None else call.shows(granted, response)
        responses = self._servicer(request, context)
        async with aclosing(responses if counting is None else counting.each(responses)) as counted:
            async for response in counted:
                if granted is not None and call.shows is not None:
                    response = call.shows(granted, response)
                if line is not None:
                    line.answered(response)
                if stream is None:
                    await context.write(response)
                else:
                    await stream.waiting(context.write(response))
                    stream.slot.moved(_size_of(response))
        return None

    async def _only_request(self, requests: AsyncIterator[Any], context: Context) -> Any:
        """Receive the request of a call that has one. Raises InvalidRequest, SilenceTimeout, Overloaded."""
        slots = self._path.node.unread
        timeout_s = self._path.node.config.limits.message_timeout_s
        deadline = asyncio.timeout(timeout_s)
        slot = slots.take(tenant_of(context), lambda: end_now(deadline))
        if slot is None:
            raise Overloaded(f"the requests of {slots.held:,} calls are being received: try again later")
        try:
            with slot.waiting():
                async with deadline:
                    request = await anext(requests, None)
        except LoaderError:
            raise
        except TimeoutError:
            if slot.evicted:
                raise Overloaded("the request was not complete while memory was short: try again later") from None
            raise SilenceTimeout(
                f"the request was not complete after {timeout_s:g} s (message_timeout_s): send it without pauses"
            ) from None
        finally:
            slot.give_back()
        if request is None:
            raise InvalidRequest("a call without a request: the method takes one message")
        return request


def _has_text(error: BaseException) -> bool:
    """Whether gRPC would send the error's text."""
    return isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError)


def _size_of(message: Any) -> int:
    """Return the payload bytes of a response; for a header, its encoded size, because it is progress as well."""
    data = getattr(message, "data", b"")
    return len(data) or message.ByteSize()


class _Counting:
    """Counts one call; a context manager around it."""

    def __init__(self, counts: NodeCounters, operation: str) -> None:
        self._counts, self._operation, self._whole = counts, operation, True

    def take(self, response: object) -> None:
        counts = self._counts
        if isinstance(response, pb.GetResponse):
            count(counts.request_bytes, "get", len(response.data))
        elif isinstance(response, pb.PutManyResponse):
            self._whole = False
            for result in response.result:
                count_each(counts, self._operation, [result.error.kind])  # "" if there is no error
                count(counts.request_bytes, "put", result.info.size_bytes)
        elif isinstance(response, pb.ListResponse):
            counts.listed_objects += len(response.object)
        elif isinstance(response, pb.ObjectInfo) and self._operation == "put":
            count(counts.request_bytes, "put", response.size_bytes)

    async def each(self, responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Yield the responses of a call. What the caller does with them is not part of the call."""
        with self:
            async with aclosing(responses):
                async for response in responses:
                    self.take(response)
                    yield response

    def __enter__(self) -> _Counting:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        failed_as = error.kind if isinstance(error, LoaderError) else "internal"
        # A client that needs nothing more cancels its call, which is not an error.
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            failed_as = ""
        if self._whole or failed_as:
            count_each(self._counts, self._operation, [failed_as])
