"""Drivers of the proposer, threaded and asyncio: `change_map` changes the map from anywhere that reaches its nodes.

There is no leader. Whoever wants a change is its proposer, and ballots separate proposers; see `proposer`.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from ais_loader.wire.closing import Closing
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as rpc
from storage_node.cluster.consensus.effects import Answers, Ask, Edit, NoAnswer, Pause, Request, Response, Steps
from storage_node.cluster.consensus.proposer import Proposer
from storage_node.context.channels import OPERATOR, Caller

CALL_TIMEOUT_S = 5.0
LEARN_TIMEOUT_S = 30.0
"""Learning a map may delete a bucket's objects."""
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # Separate connections: one that other code found broken would wait before it reconnects.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def change_map(
    endpoints: Sequence[str], edit: Edit, *, timeout_s: float = 20.0, caller: Caller = OPERATOR
) -> pb.ClusterMap:
    """Replace the map by the result of `edit`, and return once all nodes that answer know it.

    `edit` receives a copy of the committed map, which it may modify, or None if the nodes belong to no cluster. It may
    be called several times, each time with a newer map. An exception that it raises ends the change. If it returns the
    map unmodified, nothing changes. See `map.mutations`.

    Args:
        endpoints: host:port of at least one running node, as clients or as peers reach it; to create a cluster, of all
            its nodes.
        timeout_s: time limit of the whole change. A call in progress when it ends may take 5 s longer.
        caller: the identity under which the nodes are called.

    Returns the map that contains the change, or a newer one. This function maintains `version` and `change`.

    Raises:
        NoMajority: too few nodes answer; the error names the silent ones.
        Contended: other changes came first until the time limit.
        OutcomeUnknown: the answers that would tell whether the change was made are lost.
        OtherCluster: a node belongs to another cluster.
        ValueError: the edit has produced an invalid map.
    """
    proposer = Proposer(endpoints, edit, time.monotonic)
    with NodeConnections(caller) as channels:
        return drive(proposer.run(timeout_s), channels)


async def change_map_async(view: ClusterView, edit: Edit, *, timeout_s: float = 20.0, caller: Caller) -> pb.ClusterMap:
    """Change the map as `change_map` does, on an event loop and from a map that is known to be committed. If cancelled,
    the change may have been made."""
    async with aclosing(AsyncChannels(caller)) as channels:
        return await channels.change_map(view, edit, timeout_s=timeout_s)


def drive(steps: Steps, channels: NodeConnections) -> pb.ClusterMap:
    """Execute the steps of a proposer until it is done."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                time.sleep(step.duration_s)
                step = steps.send({})
            else:
                step = steps.send(channels.ask(step))
    except StopIteration as done:
        new_map: pb.ClusterMap = done.value
        return new_map


class NodeConnections(Closing):
    """Connections to nodes by endpoint, for one thread."""

    def __init__(self, caller: Caller = OPERATOR) -> None:
        self._caller = caller
        self._channels: dict[str, Any] = {}

    def ask(self, ask: Ask) -> Answers:
        """Send all requests at once and gather the answers; stops waiting when `enough` is satisfied."""
        answered: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        answers: dict[str, Response | NoAnswer] = {}
        for endpoint, request in ask.requests.items():
            if endpoint not in self._channels:
                self._channels[endpoint] = self._caller.channel(endpoint, _OPTIONS)
            call = _method(self._channels[endpoint], request).future(request, timeout=_timeout_s(request))
            call.add_done_callback(lambda call, endpoint=endpoint: answered.put((endpoint, call)))
        while len(answers) < len(ask.requests) and not ask.enough(answers):
            endpoint, call = answered.get(timeout=2 * LEARN_TIMEOUT_S)
            try:
                answers[endpoint] = call.result()
            except grpc.RpcError as error:
                answers[endpoint] = _failure(error)
            except grpc.FutureCancelledError:
                answers[endpoint] = NoAnswer("cancelled")
        return answers

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


class AsyncChannels:
    """Connections to nodes by endpoint, on one event loop. Use it with `contextlib.aclosing`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._channels: dict[str, Any] = {}

    async def change_map(
        self, view: ClusterView | None, edit: Edit, *, timeout_s: float, endpoints: Sequence[str] = ()
    ) -> pb.ClusterMap:
        """Change the map as `change_map_async` does, over these connections. `endpoints`: other ones than the map's."""
        known = None if view is None else view.map
        endpoints = endpoints or [node.peer_endpoint for node in (known.node if known is not None else ())]
        steps = Proposer(endpoints, edit, time.monotonic, known=known).run(timeout_s)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.duration_s)
                    step = steps.send({})
                else:
                    step = steps.send(await self.ask(step))
        except StopIteration as done:
            new_map: pb.ClusterMap = done.value
            return new_map

    async def ask(self, ask: Ask) -> Answers:
        """Send all requests at once and gather the answers, as `Channels.ask` does."""
        answers: dict[str, Response | NoAnswer] = {}
        calls = {
            asyncio.ensure_future(self.call(endpoint, request)): endpoint for endpoint, request in ask.requests.items()
        }
        left = set(calls)
        try:
            while left and not ask.enough(answers):
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                answers.update({calls[call]: call.result() for call in done})
        finally:
            for call in left:
                call.cancel()
        return answers

    def to(self, endpoint: str) -> Any:
        """Return a channel that connects on first use and stays open until `aclose`."""
        if endpoint not in self._channels:
            self._channels[endpoint] = self._caller.aio_channel(endpoint, _OPTIONS)
        return self._channels[endpoint]

    async def call(self, endpoint: str, request: Request) -> Response | NoAnswer:
        try:
            response: Response = await _method(self.to(endpoint), request)(request, timeout=_timeout_s(request))
            return response
        except grpc.RpcError as error:
            return _failure(error)

    async def aclose(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


def _method(channel: Any, request: Request) -> Any:
    stub = rpc.ClusterStub(channel)
    return {
        pb.GetMapRequest: stub.GetMap,
        pb.LearnRequest: stub.Learn,
        pb.PrepareRequest: stub.Prepare,
        pb.AcceptRequest: stub.Accept,
    }[type(request)]


def _timeout_s(request: Request) -> float:
    return LEARN_TIMEOUT_S if isinstance(request, pb.LearnRequest) else CALL_TIMEOUT_S


def _failure(error: Any) -> NoAnswer:
    return NoAnswer(f"{error.code().name.lower().replace('_', ' ')}: {error.details()}")
