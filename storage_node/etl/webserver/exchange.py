"""Exchange of messages for one object of a WebSocket, from input to output. Runs in threads."""

from __future__ import annotations

from collections.abc import Iterator

from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.webserver.base import Failed, Refused, TransformServer
from storage_node.etl.webserver.node_link import NodeLinkFailed
from storage_node.etl.webserver.protocol import CHUNK_BYTES, TransformRequest, short


def exchange(
    server: TransformServer, first: pb.ServerInput, more: Iterator[pb.ServerInput]
) -> Iterator[pb.ServerOutput]:
    """Yield the response to one object. Its further messages are read from `more` up to the last one in any case."""
    body = _data(first, more)
    request = TransformRequest.of_message(first)
    try:
        output = server.perform(request, body)
        if request.put_url:
            yield _put(server, request, output)
        elif isinstance(output, bytes):
            yield from messages_of(output)
        else:
            yield from (pb.ServerOutput(data=chunk) for chunk in output)
            yield pb.ServerOutput(last=True)
    except (Refused, Failed, NodeLinkFailed) as error:
        yield pb.ServerOutput(error=short(str(error)) or type(error).__name__, last=True)
    for _ in body:  # unread input; the next object starts after it
        pass


def messages_of(output: bytes) -> Iterator[pb.ServerOutput]:
    """Yield a complete output as messages."""
    if len(output) <= CHUNK_BYTES:
        yield pb.ServerOutput(data=output, last=True)
        return
    view = memoryview(output)
    for start in range(0, len(view), CHUNK_BYTES):
        end = start + CHUNK_BYTES
        yield pb.ServerOutput(data=bytes(view[start:end]), last=end >= len(view))


def _put(server: TransformServer, request: TransformRequest, output: bytes | Iterator[bytes]) -> pb.ServerOutput:
    try:
        return pb.ServerOutput(receipt=server.put(request, output).receipt, last=True)
    except NodeLinkFailed as error:
        return pb.ServerOutput(error=short(str(error)), put_failed=True, last=True)


def _data(first: pb.ServerInput, more: Iterator[pb.ServerInput]) -> Iterator[bytes]:
    message = first
    if message.data:
        yield message.data
    while not message.last:
        message = next(more)
        yield message.data
