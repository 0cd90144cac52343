"""Gathering alone, from peers that a test lets send, fail and return step by step: it ends, within its memory, with the
right bytes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ais_loader.testing import seeded_bytes
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import EntryFault, decode_response
from ais_loader.wire.gather.hedging import Hedging, Silences
from ais_loader.wire.gather.replica_choice import NodeLoads
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.node_waits import NodeWaits
from storage_node.batch.gather import gather as module
from storage_node.batch.gather.gather import Gather
from storage_node.batch.gather.routing import ReplicaRouting
from storage_node.batch.peer_stream import PeerError, PeerRefused, PeerSilent, PeerStream, PeerUnavailable
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.settings.config import ServerConfig
from tests.faults.scripted_node import end, frame, piece
from tests.node.cluster_kit import BUCKET, Answer
from tests.node.loop_kit import run, settle, until
from tests.table import table

KiB = 1 << 10
PIECE_BYTES = 64 * KiB
LIMIT_BYTES = WINDOW_BYTES = 4 * PIECE_BYTES
TIMEOUT_S = 300.0


class Part:
    """One sub-request, and the session on which it came. The peer sends `messages` while it has credit."""

    def __init__(self, peer: Peer, stream: PeerStream, request: pb.BatchRequest) -> None:
        self.peer, self.stream, self.request = peer, stream, request
        self.credit_bytes = request.initial_credit_bytes
        self.cancelled = False
        self.messages = peer.answer(request)

    def send(self, message: pb.SessionRequest) -> None:
        """Receive what the gathering node says."""
        self.credit_bytes += message.credit.payload_bytes
        self.cancelled = self.cancelled or message.HasField("cancel")
        if self.peer.sends:
            self.go()

    def forget(self, batch_id: int) -> None:
        self.messages = []

    def go(self, most: int = 1 << 30) -> None:
        while self.messages and self.credit_bytes > 0 and most:
            message = self.messages.pop(0)
            response = decode_response(message)
            self.credit_bytes -= 0 if response.frame is None else len(response.frame.payload)
            self.stream.deliver(response)
            most -= 1

    def fail(self, error: PeerError) -> None:
        self.stream.deliver(error)


class Peer:
    """One node of the map, with all objects."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.sends = True
        self.is_reachable = True
        self.map_version = 0
        self.parts: list[Part] = []

    def open(self, stream: PeerStream, request: pb.BatchRequest) -> tuple[Part, int]:
        part = Part(self, stream, request)
        self.parts.append(part)
        if self.sends:
            part.go()
        return part, 0

    def answer(self, request: pb.BatchRequest) -> list[bytes]:
        if request.map_version < self.map_version:
            return [end(0, [], outcome=pb.End.REFUSED, error_kind="stale-map")]
        messages: list[bytes] = []
        for at, name in enumerate(request.name):
            whole = self.objects[name]
            if len(whole) <= PIECE_BYTES:
                messages.append(frame(0, {at: whole}))
                continue
            for start in range(0 if at else request.resume_offset, len(whole), PIECE_BYTES):
                messages.append(piece(0, at, whole, start, min(start + PIECE_BYTES, len(whole))))
        return [*messages, end(0, [self.objects[name] for name in request.name])]


class Peers:
    """In place of the pool of sessions, and of the node that gathers."""

    def __init__(self, objects: dict[str, bytes], nodes: int, *, copies: int = 1) -> None:
        self.objects = objects
        self.peers = [Peer(objects) for _ in range(nodes)]
        self.map = cluster_pb.ClusterMap(cluster_uuid=bytes(16), version=1)
        for number in range(nodes):
            where = str(number)
            self.map.node.add(uuid=bytes([number]) * 16, host=where, endpoint=where, peer_endpoint=where, weight=1.0)
        self.map.bucket.add(name=BUCKET, uuid=bytes(16), copies=copies, min_copies=1)
        self.first_view = self.view()
        self.timeout_s = TIMEOUT_S
        self.resources: Any = SimpleNamespace(
            assembly=MemoryBudget(LIMIT_BYTES),
            hedging=Hedging(0.0),
            loads=NodeLoads(),
            node=SimpleNamespace(
                config=ServerConfig(port=0, peer_window_bytes=WINDOW_BYTES, peer_timeout_s=TIMEOUT_S),
                membership=SimpleNamespace(view=None),
                store=SimpleNamespace(hides_places=False),
                learn=self.learn,
            ),
            peers=self,
            peer_wait_s=0.0,
            recoveries=0,
            soft_errors=0,
        )

    def __getitem__(self, number: int) -> Peer:
        return self.peers[number]

    def gather(self, *nodes: list[int], **fields: Any) -> Gather:
        """Start to gather all objects. `nodes`: for each, those that are asked for it, in order."""
        request = pb.BatchRequest(bucket=[BUCKET], name=list(self.objects), **fields)
        routing = ReplicaRouting(self.first_view, b"elsewhere", request, lambda endpoint: False, NodeLoads())
        routing.left[:] = nodes or routing.left
        gather = Gather(self.resources, request, routing, NodeWaits())
        gather.start()
        return gather

    def view(self) -> ClusterView:
        known = cluster_pb.ClusterMap()
        known.CopyFrom(self.map)
        return ClusterView(known)

    def change_map(self) -> None:
        """Let all nodes act by a newer map, except for the one that gathers."""
        self.map.version += 1
        for peer in self.peers:
            peer.map_version = self.map.version

    async def learn(self, map_: cluster_pb.ClusterMap) -> None:
        self.resources.node.membership.view = ClusterView(map_)

    # -- the pool

    def open(self, endpoint: str, part: pb.BatchRequest) -> PeerStream:
        peer = self.peers[int(endpoint)]
        if not peer.is_reachable:
            raise PeerUnavailable("scripted")
        return PeerStream(endpoint, part, self.timeout_s, begin=peer.open, failed=lambda error: None)

    async def newer_map(self, endpoint: str, known: cluster_pb.ClusterMap) -> cluster_pb.ClusterMap | None:
        newest = self.view().map
        return newest if newest.version > known.version else None

    def failing_s(self, endpoint: str) -> float:
        return 0.0

    def stands_still(self, endpoint: str) -> None:
        pass


class Reader:
    """Takes the frames of a batch out, as `AssembledBatch` does."""

    def __init__(self, peers: Peers, gather: Gather) -> None:
        self.peers, self._gather = peers, gather
        self.answer = Answer()
        self.most_held_bytes = 0

    async def take(self) -> None:
        came = await self._gather.next(1 << 20)
        self.most_held_bytes = max(self.most_held_bytes, self.peers.resources.assembly.held_bytes)
        self.answer.take(came)
        self._gather.memory.release(len(came.payload))

    async def take_all(self) -> None:
        """To the end; every entry is whole then."""
        reorder = self._gather.reorder
        while len(self.answer.order) < reorder.n or not reorder.complete or reorder.held_bytes:
            await self.take()
        assert not any(self.answer.status.values()), self.answer.faults
        for at, (name, data) in enumerate(self.peers.objects.items()):
            assert self.answer.data[at] == data, name
        await self._gather.close()
        assert self.peers.resources.assembly.held_bytes == 0


def large(pieces: int, seed: int) -> bytes:
    return seeded_bytes(pieces * PIECE_BYTES, seed=seed)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF", Backoff(0.0, 0.0))
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)


# -- failures


@pytest.mark.parametrize("ordered", [True, False])
def test_an_entry_that_waits_for_a_broken_connection_does_not_wait_for_other_parts_of_its_node(ordered: bool) -> None:
    """Such a part may have no credit, and get none before this entry has come out."""

    async def work() -> None:
        peers = Peers({"p": large(5, 1), "q": large(20, 2)}, 2)
        peers[0].sends = peers[1].sends = False
        gather = peers.gather([0, 1], [1], ordered=ordered)
        reader = Reader(peers, gather)
        peers[0].parts[0].go(1)
        await reader.take()
        taking = asyncio.create_task(reader.take_all())
        peers[0].parts[0].fail(PeerSilent("scripted"))
        await until(lambda: [list(part.request.name) for part in peers[1].parts] == [["q"], ["p"]])
        peers[1].sends = True
        peers[1].parts[0].go()
        await until(lambda: gather.reorder.held_bytes == WINDOW_BYTES)
        peers[1].parts[1].fail(PeerUnavailable("scripted"))
        await taking

    run(work())


@table("ordered", [True, False])
@table("begun", [True, False])
def test_the_rival_of_a_silent_sender_gets_credit_even_if_the_budget_is_exhausted(ordered: bool, begun: bool) -> None:
    async def work() -> None:
        peers = Peers({"p": large(5, 1)}, 2)
        peers.resources.hedging = Hedging(1.0)
        peers.resources.hedging.parts = Silences(first_s=TIMEOUT_S)
        peers[0].sends = False
        gather = peers.gather([0, 1], ordered=ordered)
        reader = Reader(peers, gather)
        if begun:
            peers[0].parts[0].go(1)
            await reader.take()
        peers.resources.assembly.acquire_anyway(LIMIT_BYTES)
        taking = asyncio.create_task(reader.take())
        await settle()
        peers.resources.hedging.parts = Silences(0.0, 0.0)
        gather._watch._check()
        await taking
        peers.resources.assembly.release(LIMIT_BYTES)
        await reader.take_all()

    run(work())


# -- memory


def test_in_any_order_others_do_not_fill_the_memory_while_a_large_entry_has_lost_its_sender() -> None:
    """Its next holder is busy with another large entry, whose pieces cannot come out before its own."""

    async def work() -> None:
        peers = Peers({"p": large(5, 1), "q": large(80, 2)}, 2)
        peers[0].sends = peers[1].sends = False
        gather = peers.gather([0, 1], [1])
        reader = Reader(peers, gather)
        peers[0].parts[0].go(1)
        await reader.take()
        peers[0].parts[0].fail(PeerSilent("scripted"))
        await settle()
        peers[1].sends = True
        peers[1].parts[0].go()
        await reader.take_all()
        assert reader.most_held_bytes <= LIMIT_BYTES + 2 * PIECE_BYTES

    run(work())


# -- maps


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(module, "clock_s", lambda: self.now_s)


def test_the_map_may_change_again_and_again_during_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def work() -> None:
        peers = Peers({"p": large(5, 1)}, 1)
        peers.change_map()
        gather = peers.gather()
        [peer], reader = peers.peers, Reader(peers, gather)
        peer.sends = False
        for changes in range(1, 4):
            await until(lambda changes=changes: len(peer.parts) == 1 + changes)
            peer.parts[-1].go(1)
            await reader.take()
            peers.change_map()
            clock.now_s += 2 * TIMEOUT_S
            peer.parts[-1].fail(PeerRefused("scripted", "stale-map"))
        peer.sends = True
        await reader.take_all()

    run(work())


def test_a_part_that_was_requested_by_an_older_map_may_refuse_entries_at_any_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    async def work() -> None:
        view = Peers({}, 2).first_view
        names = {
            at: [f"n{k}" for k in range(99) if view.owners(view.buckets[BUCKET], f"n{k}") == [at]] for at in (0, 1)
        }
        peers = Peers({name: name.encode() for name in [names[0][0], *names[1][:2]]}, 2)
        peers.resources.assembly.limit_bytes = 4 * WINDOW_BYTES
        peers[1].sends = False
        peers[0].map_version = peers.map.version = 2
        gather = peers.gather()
        [slow] = peers[1].parts
        reader = Reader(peers, gather)
        await until(lambda: len(peers[0].parts) == 2)
        peers[1].sends = True
        for at in range(2):
            clock.now_s += 2 * TIMEOUT_S
            slow.messages = [frame(0, {at: b""}, status=pb.UNAVAILABLE, errors={at: EntryFault("gone", "stale-map")})]
            slow.go()
            await settle()
        slow.fail(PeerSilent("scripted"))
        await reader.take_all()

    run(work())


def test_a_peer_that_refuses_by_no_newer_map_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def work() -> None:
        peers = Peers({"p": b"p"}, 1)
        peers[0].map_version = 2
        gather = peers.gather()
        await until(lambda: len(peers[0].parts) > 3)
        clock.now_s += 2 * TIMEOUT_S
        came = await gather.next(1 << 20)
        assert came.status.tolist() == [pb.UNAVAILABLE]
        await gather.close()

    run(work())


# -- the end


def test_nothing_is_requested_any_more_after_the_end() -> None:
    """A node that cannot be reached is noted in the next turn of the event loop."""

    async def work() -> None:
        peers = Peers({"p": b"p"}, 2)
        peers[0].is_reachable = False
        gather = peers.gather([0, 1])
        await gather.close()
        await settle()
        assert not peers[1].parts and not gather._paused
        assert peers.resources.assembly.held_bytes == 0
        assert {load.backlog_s for load in peers.resources.loads.of(["0", "1"]).values()} == {0.0}

    run(work())
