"""A server that speaks GetBatch as a test tells it to: byte for byte, wrong or right, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import Frame, Piece, encode_prefix
from ais_loader.wire.generated import ais_batch_pb2 as pb

Answer = Callable[[int, pb.BatchRequest], Iterable[bytes]]
"""From a batch's id and request to the messages that answer it. Raise to break the session."""


class ScriptedNode:
    """Answers every batch with `answer`; `requests` is what was asked, in order. A context manager."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[pb.BatchRequest] = []
        self.cancelled: list[int] = []
        self.credit: list[int] = []
        self.over = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        handler = grpc.stream_stream_rpc_method_handler(
            self._session, request_deserializer=pb.SessionRequest.FromString, response_serializer=bytes
        )
        methods = grpc.method_handlers_generic_handler("ais_loader.v1.GetBatch", {"Session": handler})
        self._server.add_generic_rpc_handlers((methods,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def _session(self, requests: Iterator[pb.SessionRequest], context: Any) -> Iterator[bytes]:
        for message in requests:
            event = message.WhichOneof("event")
            if event == "request":
                self.requests.append(message.request)
                yield from self.answer(message.batch_id, message.request)
            elif event == "credit":
                self.credit.append(message.credit.payload_bytes)
            elif event == "cancel":
                self.cancelled.append(message.batch_id)

    def __enter__(self) -> ScriptedNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.stop(None).wait(180)


def frame(batch_id: int, parts: dict[int, bytes], *, status: int = pb.OK, **changes: Any) -> bytes:
    """A frame of whole entries, by index; `changes` replace its fields."""
    data = list(parts.values())
    made = Frame(
        index=np.array(list(parts), np.uint32),
        size=np.array([len(part) for part in data], np.uint32),
        checksum=np.array([crc32c(part) for part in data], np.uint32),
        status=np.full(len(data), status, np.uint8),
        checksum_kind=np.ones(len(data), np.uint8),
        content=memoryview(b"".join(data)),
    )
    for name, value in changes.items():
        setattr(made, name, value)
    # Not by `encode_frame`, which refuses what does not add up.
    prefix, _ = encode_prefix(
        batch_id,
        index=made.index,
        size=made.size,
        checksum=made.checksum,
        status=made.status,
        checksum_kind=made.checksum_kind,
        payload_bytes=len(made.payload),
        piece=made.piece,
        errors=made.errors,
    )
    return prefix + made.payload


def piece(batch_id: int, index: int, whole: bytes, start: int, stop: int, version: str = "1", **changes: Any) -> bytes:
    """The bytes start .. stop of an entry."""
    changes = {"checksum": np.array([crc32c(whole[:stop])], np.uint32), **changes}
    return frame(batch_id, {index: whole[start:stop]}, piece=Piece(start, len(whole), version), **changes)


def end(batch_id: int, parts: list[bytes], **changes: Any) -> bytes:
    """The END of a batch whose entries, all of them OK, had these bytes."""
    checksums = b"".join(crc32c(part).to_bytes(4, "little") for part in parts)
    fields = {"entries": len(parts), "digest": crc32c(bytes(len(parts)) + checksums), **changes}
    return pb.SessionResponse(batch_id=batch_id, end=pb.End(**fields)).SerializeToString()


def reject(batch_id: int, retry_after_ms: int = 1) -> bytes:
    message = pb.Reject(retry_after_ms=retry_after_ms, reason="scripted")
    return pb.SessionResponse(batch_id=batch_id, reject=message).SerializeToString()
