"""A lane spoken by hand, byte by byte, from either end."""

from __future__ import annotations

import socket
from typing import Any

import grpc

from ais_loader.testing import NodeProcess
from ais_loader.wire.frame import Response, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_batch_pb2_grpc as rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import FAILED, GREETING, HEADER, MAGIC, MESSAGE, VERSION
from storage_node.server import NodeServer

TIMEOUT_S = 180.0


def offer_of(node: NodeServer) -> pb.OpenLaneResponse:
    return offers_of(node, 1)[0]


def offers_of(node: NodeServer | NodeProcess, count: int) -> list[pb.OpenLaneResponse]:
    """Places for so many lanes, asked for by one connection."""
    with grpc.insecure_channel(f"127.0.0.1:{node.port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        open_lane = rpc.GetBatchStub(channel).OpenLane
        return [open_lane(pb.OpenLaneRequest(port=node.port), timeout=TIMEOUT_S) for _ in range(count)]


class RawLane:
    """The client's end. Reads of it end after TIMEOUT_S."""

    def __init__(self, offer: pb.OpenLaneResponse, *, tcp: bool = False) -> None:
        if tcp:
            self.socket = socket.create_connection(("127.0.0.1", offer.tcp_port), timeout=TIMEOUT_S)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(f"\0{offer.unix_name}")

    def greet(self, token: bytes, version: int = VERSION) -> tuple[int, bytes]:
        """The kind of what the node says to it, and that."""
        self.socket.sendall(GREETING.pack(MAGIC, version, token))
        return self.receive()

    def send(self, batch_id: int, **event: Any) -> None:
        message = pb.SessionRequest(batch_id=batch_id, **event).SerializeToString()
        self.socket.sendall(HEADER.pack(len(message), MESSAGE) + message)

    def exactly(self, size_bytes: int) -> bytes:
        """Fewer where the node has ended the connection."""
        data = b""
        while len(data) < size_bytes and (part := self.socket.recv(size_bytes - len(data))):
            data += part
        return data

    def receive(self) -> tuple[int, bytes]:
        size_bytes, kind = HEADER.unpack(self.exactly(HEADER.size))
        return kind, self.exactly(size_bytes)

    def response(self) -> Response:
        kind, message = self.receive()
        assert kind == MESSAGE
        return decode_response(message)

    def is_ended(self) -> bool:
        """Waits for it: nothing but the end comes any more."""
        return self.socket.recv(1) == b""

    def __enter__(self) -> RawLane:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def open_lane(node: NodeServer, *, tcp: bool = False) -> RawLane:
    offer = offer_of(node)
    lane = RawLane(offer, tcp=tcp)
    lane.greet(offer.token)
    return lane


def error_of(kind: int, message: bytes) -> objects_pb.Error:
    assert kind == FAILED
    return objects_pb.Error.FromString(message)
