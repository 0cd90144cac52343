"""Two nodes race for entries of a batch, told step by step what to send and when."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from ais_loader.testing import seeded_bytes
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.merged_stream import MergedStream
from ais_loader.transport.cluster.substream import SENDER_WINDOW_BYTES
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.session.batch_stream import StreamPolicy
from ais_loader.transport.session.session import Receiver
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from tests.faults.scripted_node import end, frame

pytestmark = pytest.mark.slow

PATIENCE_S = 180.0
NODES = [b"a" * 16, b"b" * 16]
BATCH_ID = 1


class Sender:
    """A node as a client's session with it: what was asked of it, what it may send, and what the test has it send."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[tuple[pb.BatchRequest, Receiver]] = queue.SimpleQueue()
        self.granted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._inbox: Receiver

    def session(self) -> Sender:
        return self

    def begin(self, request: pb.BatchRequest, inbox: Receiver) -> int:
        self._begun.put((request, inbox))
        return BATCH_ID

    def grant(self, batch_id: int, payload_bytes: int) -> None:
        self.granted.put(payload_bytes)

    def cancel(self, batch_id: int) -> None:
        pass

    def asked(self) -> list[str]:
        request, self._inbox = self._begun.get(timeout=PATIENCE_S)
        return list(request.name)

    def send(self, parts: dict[int, bytes]) -> None:
        self._inbox.put(decode_response(frame(BATCH_ID, parts)))

    def end(self, parts: list[bytes]) -> None:
        self._inbox.put(decode_response(end(BATCH_ID, parts)))


def two_nodes() -> Members:
    known = cluster_pb.ClusterMap(version=1, cluster_uuid=b"c" * 16)
    for number, node in enumerate(NODES):
        known.node.add(uuid=node, host=f"h{number}", endpoint=f"127.0.0.1:{number + 1}", weight=1.0, number=number)
    known.bucket.add(name="b", uuid=b"d" * 16, copies=2, min_copies=1)
    return Members(ClusterView(known), ClusterOptions(retry_s=PATIENCE_S, verify_payload=True))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_node_that_lost_a_window_full_of_entries_may_still_send_the_others(
    ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was silent, and the budget was enough to ask another one for most of what it owed, but not for all."""
    members = two_nodes()
    senders = dict(zip(NODES, (Sender(), Sender()), strict=True))
    monkeypatch.setattr(members, "calls", lambda node: cast(NodeCalls, senders[node]))
    monkeypatch.setattr(members, "preferred", lambda found, key, buckets: found)
    drawn = [f"k{number}" for number in range(4_000)]
    names = [name for name in drawn if members.holders("b", [name])[0][0] == NODES[0]][:1_100]
    data = [seeded_bytes(5_000, seed=at) for at in range(len(names))]
    request = pb.BatchRequest(bucket=["b"], name=names, ordered=ordered)
    stream = MergedStream(request, members, StreamPolicy(PATIENCE_S, PATIENCE_S, verify_payload=True))
    silent, quick = senders[NODES[0]], senders[NODES[1]]
    taken = threading.Event()

    def send() -> int:
        assert silent.asked() == names
        raced = len(quick.asked())
        assert SENDER_WINDOW_BYTES // 5_000 < raced < len(names)
        quick.send(dict(enumerate(data[:raced])))
        quick.end(data[:raced])
        assert taken.wait(PATIENCE_S)
        late = SENDER_WINDOW_BYTES // 5_000 + 1
        silent.send(dict(enumerate(data[:late])))
        more = silent.granted.get(timeout=PATIENCE_S / 2)
        silent.send({at: data[at] for at in range(late, len(data))})
        silent.end(data)
        return more

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        came: dict[int, bytes] = {}
        for part in stream:
            at = 0
            for index, size in zip(part.index.tolist(), part.size.tolist(), strict=True):
                came[index] = bytes(part.payload[at : at + size])
                at += size
            if len(came) >= stream.hedged > 0:
                taken.set()
        assert sending.result() > 0
    assert [came[at] for at in range(len(names))] == data
    members.close()
