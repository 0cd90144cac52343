"""In-process node, and a client that speaks its protocol by hand, message by message."""

from __future__ import annotations

import queue
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from ais_loader import Bucket, connect
from ais_loader.wire.answer_check import digest
from ais_loader.wire.frame import Frame, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

CALL_TIMEOUT_S = 180.0
PLENTY = 1 << 40


@contextmanager
def kept_port() -> Iterator[int]:
    """A port for a node that stops and may start again, which nobody else gets as a free one meanwhile."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server sets it: both may be bound
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@contextmanager
def serving(folder: Path, **config: Any) -> Iterator[NodeServer]:
    with NodeServer([folder / "drive"], ServerConfig(port=0, **config)) as node:
        yield node


@contextmanager
def bucket_of(node: NodeServer, name: str = "b") -> Iterator[Bucket]:
    with connect(node.url) as client:
        yield client.create_bucket(name, exist_ok=True)


def scrape(node: NodeServer) -> str:
    """Return its metrics, as Prometheus gets them."""
    url = f"http://127.0.0.1:{node.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=CALL_TIMEOUT_S) as response:
        return str(response.read().decode())


def batch_of(names: list[str], *, bucket: str = "b", credit: int = PLENTY, **fields: Any) -> pb.BatchRequest:
    return pb.BatchRequest(bucket=[bucket], name=names, initial_credit_bytes=credit, **fields)


class RawSession:
    """A GetBatch session. `receive` returns the next message, whatever it is; raises grpc.RpcError at the end."""

    def __init__(self, url: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.channel = grpc.insecure_channel(
            url.removeprefix("grpc://"),
            options=[("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        )
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        open_session = self.channel.stream_stream("/ais_loader.v1.GetBatch/Session")
        self.call = open_session(iter(self._outgoing.get, None), timeout=timeout_s)

    def send(self, batch_id: int, event: pb.BatchRequest | pb.Credit | pb.Cancel | None = None) -> None:
        field = {pb.BatchRequest: "request", pb.Credit: "credit", pb.Cancel: "cancel"}.get(type(event))
        request = pb.SessionRequest(batch_id=batch_id, **({field: event} if field else {}))
        self.send_bytes(request.SerializeToString())

    def send_bytes(self, message: bytes) -> None:
        self._outgoing.put(message)

    def receive(self) -> pb.SessionResponse:
        return pb.SessionResponse.FromString(next(self.call))

    def receive_frame(self) -> Frame:
        found = decode_response(next(self.call)).frame
        assert found is not None
        return found

    def answer(self, batch_id: int) -> tuple[list[Frame], pb.End]:
        """All frames of a batch, and its END, without its waits; messages of other batches are not expected."""
        frames = []
        while True:
            response = decode_response(next(self.call))
            assert response.batch_id == batch_id
            assert response.reject is None
            if response.frame is not None:
                frames.append(response.frame)
            if response.end is not None:
                response.end.ClearField("waits")
                response.end.ClearField("wait_us")  # of the reads before, and a test's machine may be slow
                return frames, response.end

    def ask(self, batch_id: int, request: pb.BatchRequest) -> tuple[list[Frame], pb.End]:
        self.send(batch_id, request)
        return self.answer(batch_id)

    def end(self) -> None:
        """The client has no more to say."""
        self._outgoing.put(None)

    def __enter__(self) -> RawSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self.end()
        self.channel.close()


def columns(frames: list[Frame]) -> tuple[list[int], list[int], list[int], int]:
    """Indexes, sizes and statuses over all frames, and the digest that END should carry."""
    status = np.concatenate([frame.status for frame in frames])
    checksum = np.concatenate([frame.checksum for frame in frames])
    index = [int(at) for frame in frames for at in frame.index]
    return index, [int(size) for frame in frames for size in frame.size], status.tolist(), digest(status, checksum)
