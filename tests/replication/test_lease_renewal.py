"""Renewals of a read lease: of as many nodes as are needed while all answer, and of all as soon as one does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.lease_renewal import LeaseRenewal, WantedLease
from storage_node.store.replica_state import clock_s

LEASE_S = 0.12
NODES = 5


class Answered:
    """A call that has ended."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> wire.RenewLeaseResponse:
        return wire.RenewLeaseResponse(granted_s=LEASE_S)


class Peers:
    """The other nodes, as their caller, channels and methods: who was asked, and how."""

    generation = 0

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        self._endpoint = ""

    def channel(self, endpoint: str, options: object) -> Peers:
        one = Peers()
        one.asked, one.silent, one._endpoint = self.asked, self.silent, endpoint
        return one

    def unary_unary(self, path: str, *_: object, **__: object) -> Peers:
        return self

    stream_unary = unary_stream = stream_stream = unary_unary

    def __call__(self, request: object, timeout: float) -> wire.RenewLeaseResponse:
        self.asked.append(("in turn", self._endpoint))
        if self._endpoint in self.silent:
            raise grpc.RpcError
        return wire.RenewLeaseResponse(granted_s=LEASE_S)

    def future(self, request: object, timeout: float) -> Answered:
        self.asked.append(("at once", self._endpoint))
        return Answered(grpc.RpcError() if self._endpoint in self.silent else None)

    def close(self) -> None: ...


@contextmanager
def renewing(*silent: str, fails: int = 0) -> Iterator[tuple[Peers, list[str]]]:
    """Peers of a node that always holds its lease, some of them silent at first, and their endpoints. The first `fails`
    looks for what to ask for fail."""
    failures = [RuntimeError("a fault that nobody has foreseen")] * fails

    def look() -> WantedLease:
        if failures:
            raise failures.pop()
        return wanted

    peers, map_ = Peers(), pb.ClusterMap(cluster_uuid=uuid.uuid4().bytes, version=1)
    for number in range(NODES):
        map_.node.add(uuid=bytes([number] * 16), host=f"h{number}", peer_endpoint=f"n{number}:1", weight=1.0)
    peers.silent.update(silent)
    view = ClusterView(map_)
    wanted = WantedLease(view, view.nodes[0].uuid, LEASE_S)
    until_s = lambda: clock_s() + LEASE_S  # noqa: E731 - so that no pause of this machine matters
    renewal = LeaseRenewal(peers, look, until_s, lambda *_: None)  # type: ignore[arg-type]
    renewal.start()
    try:
        yield peers, [node.peer_endpoint for node in view.nodes[1:]]
    finally:
        renewal.stop(20.0)


def test_while_all_answer_as_many_as_are_needed_are_asked_and_each_is_in_turn() -> None:
    with renewing() as (peers, others):
        eventually(lambda: len(peers.asked) >= 8)
        asked = peers.asked[:8]
        assert {how for how, _ in asked} == {"in turn"}
        ends = [endpoint for _, endpoint in asked]
        assert sorted(ends[:4]) == sorted(ends[4:]) == others, "two of four at a time"


def test_as_soon_as_one_does_not_answer_all_are_asked_until_it_does() -> None:
    with renewing("n3:1") as (peers, others):
        eventually(lambda: ("in turn", "n3:1") in peers.asked)
        at = peers.asked.index(("in turn", "n3:1")) + 1
        eventually(lambda: len(peers.asked) >= at + 12)
        assert peers.asked[at : at + 12] == [("at once", endpoint) for endpoint in others] * 3
        peers.silent.clear()
        at = len(peers.asked)
        eventually(lambda: "in turn" in {how for how, _ in peers.asked[at:]})


def test_after_a_failure_that_nobody_has_foreseen_leases_are_renewed_again() -> None:
    with renewing(fails=2) as (peers, _):
        eventually(lambda: len(peers.asked) >= 4)
