"""A network in memory between proposers and acceptors that drops, repeats, delays and reorders, driven by a seed.

Every message under way is in one bag; each step takes any of them, or lets a proposer give up waiting, or kills one.
Nothing but the seed decides, so that a failing run can be run again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.map_delta import carried, delta_of
from storage_node.cluster.consensus import acceptor
from storage_node.cluster.consensus.acceptor import AcceptorState, MapRefused
from storage_node.cluster.consensus.effects import Ask, Edit, NoAnswer, Pause, Request, Response, Steps
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.consensus.proposer import Proposer


def content(map_: pb.ClusterMap) -> bytes:
    """A map but for the ballot, which differs when a change was finished by another proposer."""
    copy = pb.ClusterMap()
    copy.CopyFrom(map_)
    copy.ClearField("ballot")
    return copy.SerializeToString(deterministic=True)


@dataclass
class SimulatedNode:
    uuid: bytes
    endpoint: str
    state: AcceptorState = field(default_factory=AcceptorState)
    history: dict[int, pb.ClusterMap] = field(default_factory=dict)
    """Committed maps that it was told."""

    def handle(self, request: Request) -> Response | NoAnswer:
        try:
            if isinstance(request, pb.GetMapRequest):
                known = self.state.committed
                answer = pb.GetMapResponse(node_uuid=self.uuid, version=known.version if known is not None else 0)
                base = self.history.get(request.known_version)
                if known is not None and known.version > request.known_version:
                    answer.map.CopyFrom(known)
                    if base is not None:
                        answer.ClearField("map")
                        answer.delta.CopyFrom(delta_of(base, known))
                return answer
            if isinstance(request, pb.LearnRequest):
                map_ = carried(request, self.state.committed)
                if map_ is not None:
                    self.state = acceptor.learn(self.state, map_)
                    self.history[map_.version] = map_
                assert self.state.committed is not None
                return pb.LearnResponse(version=self.state.committed.version)
            if request.node_uuid != self.uuid:
                return NoAnswer("another node")
            if isinstance(request, pb.PrepareRequest):
                self.state, prepared = acceptor.prepare(self.state, request)
                return prepared
            self.state, accepted = acceptor.accept(self.state, request)
            return accepted
        except MapRefused as error:
            return NoAnswer(str(error))


@dataclass
class Running:
    """A proposer, and what it waits for."""

    name: str
    steps: Steps
    ask: Ask | None = None
    number: int = 0
    """Of the ask: an answer to an earlier one is thrown away."""
    answers: dict[str, Response | NoAnswer] = field(default_factory=dict)
    result: pb.ClusterMap | None = None
    error: Exception | None = None
    killed: bool = False

    @property
    def over(self) -> bool:
        return self.killed or self.result is not None or self.error is not None


@dataclass(frozen=True)
class Message:
    proposer: str
    ask: int
    endpoint: str
    body: Request | Response | NoAnswer
    is_request: bool


class Network:
    def __init__(self, count: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = {f"n{at}:1": SimulatedNode(bytes([at + 1]) * 16, f"n{at}:1") for at in range(count)}
        self.running: dict[str, Running] = {}
        self.bag: list[Message] = []
        self.votes: dict[tuple[int, tuple[int, bytes]], tuple[pb.ClusterMap, set[bytes]]] = {}
        self.time_s = 0.0

    def member(self, at: int) -> pb.MapNode:
        node = self.nodes[f"n{at}:1"]
        return pb.MapNode(
            uuid=node.uuid, host=f"h{at}", endpoint=node.endpoint, peer_endpoint=node.endpoint, weight=1.0
        )

    def start(self, name: str, edit: Edit, endpoints: list[str], timeout_s: float = 300.0) -> Running:
        maps = [map_ for node in self.nodes.values() for map_ in node.history.values()]
        proposer = Proposer(
            endpoints,
            edit,
            lambda: self.time_s,
            draw=lambda: self.random.randbytes(16),
            jitter=self.random,
            known=self.random.choice([None, *maps]),
        )
        running = self.running[name] = Running(name, proposer.run(timeout_s))
        self._go_on(running)
        return running

    def _go_on(self, running: Running) -> None:
        """Let it take its answers, up to its next question."""
        try:
            answers, running.answers, running.ask = running.answers, {}, None
            step = running.steps.send(answers) if running.number else next(running.steps)
            while isinstance(step, Pause):
                self.time_s += step.duration_s
                step = running.steps.send({})
        except StopIteration as done:
            running.result = done.value
            return
        except (ChangeFailed, ValueError) as error:
            running.error = error
            return
        running.number += 1
        running.ask = step
        self.bag += [Message(running.name, running.number, to, body, True) for to, body in step.requests.items()]

    def deliver(self, message: Message) -> None:
        if message.is_request:
            node = self.nodes[message.endpoint]
            response = node.handle(message.body)  # type: ignore[arg-type]
            if isinstance(message.body, pb.AcceptRequest) and getattr(response, "accepted", False):
                map_ = node.state.accepted
                assert map_ is not None
                key = map_.version, acceptor.ballot_order(map_.ballot)
                self.votes.setdefault(key, (map_, set()))[1].add(node.uuid)
            self.bag.append(Message(message.proposer, message.ask, message.endpoint, response, False))
            return
        running = self.running[message.proposer]
        if running.over or running.ask is None or message.ask != running.number:
            return
        running.answers[message.endpoint] = message.body  # type: ignore[assignment]
        if len(running.answers) == len(running.ask.requests) or running.ask.enough(running.answers):
            self._go_on(running)

    def give_up_waiting(self, running: Running) -> None:
        if running.ask is not None and not running.over:
            for endpoint in running.ask.requests:
                running.answers.setdefault(endpoint, NoAnswer("deadline"))
            self.time_s += 1.0
            self._go_on(running)

    def step(self, *, loss: float, repeat: float, kill: float) -> bool:
        """One thing happens. False when nothing is left that could."""
        waiting = [running for running in self.running.values() if not running.over]
        if not waiting and not self.bag:
            return False
        draw = self.random.random()
        if waiting and draw < kill:
            self.random.choice(waiting).killed = True
        elif waiting and (not self.bag or draw < kill + 0.02):
            self.give_up_waiting(self.random.choice(waiting))
        elif self.bag:
            at = self.random.randrange(len(self.bag))
            message = self.bag[at]
            if self.random.random() >= repeat:
                self.bag[at] = self.bag[-1]
                self.bag.pop()
            if self.random.random() >= loss:
                self.deliver(message)
        return True

    def settle(self) -> None:
        """Without faults, until nothing is under way."""
        for _ in range(100_000):
            if not self.step(loss=0.0, repeat=0.0, kill=0.0):
                return
        raise AssertionError("the network does not come to rest")

    def committed(self) -> dict[int, pb.ClusterMap]:
        """All versions that any node was told, and that a majority has accepted. Asserts that there is one of each."""
        found: dict[int, pb.ClusterMap] = {}
        for node in self.nodes.values():
            for version, map_ in node.history.items():
                assert content(found.setdefault(version, map_)) == content(map_), f"two maps with version {version}"
        for (version, _), (map_, voters) in sorted(self.votes.items()):
            # Those who decide are the nodes of the version before; all of its own nodes for the first.
            before = found.get(version - 1)
            deciders = {node.uuid for node in (before or map_).node}
            accepted = len(voters & deciders)
            if accepted == len(deciders) if version == 1 else before is not None and 2 * accepted > len(deciders):
                assert content(found.setdefault(version, map_)) == content(map_), f"two maps with version {version}"
        return found
