"""Messages that are none, sent to every method of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader.wire.generated import ais_promote_pb2 as wire
from ais_loader.wire.generated import ais_promote_pb2_grpc as rpc
from ais_loader.wire.reserved import ERROR_KIND_KEY
from benchmarks.soak.fuzz import Method, methods
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.table import table

GARBAGE = b"\x0a\xff\xff\xff\xff\x0f"
TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    folder: Path = tmp_path_factory.mktemp("node")
    with (
        NodeServer([folder / "drive"], ServerConfig(port=0)) as node,
        grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel,
    ):
        yield channel


@table("method", methods(), ids=lambda method: method.path)
def test_what_is_no_message_is_an_invalid_argument(channel: grpc.Channel, method: Method) -> None:
    sides = (method.descriptor.client_streaming, method.descriptor.server_streaming)
    call = getattr(channel, "_".join("stream" if streaming else "unary" for streaming in sides))(method.path)
    with pytest.raises(grpc.RpcError) as raised:
        answer = call(iter([GARBAGE]) if sides[0] else GARBAGE, timeout=TIMEOUT_S)
        if sides[1]:
            list(answer)
    error = raised.value
    if error.code() != grpc.StatusCode.UNIMPLEMENTED:  # of a service that has another listener
        assert (error.code(), dict(error.trailing_metadata()).get(ERROR_KIND_KEY)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid-request",
        )


def test_a_path_of_bytes_that_are_no_text_is_refused_by_its_name(channel: grpc.Channel) -> None:
    said = rpc.PromoteStub(channel).Look(wire.LookRequest(path=b"/\xff\xfe"), timeout=TIMEOUT_S)
    assert (said.error.kind, said.outside) == ("source-refused", True)
    assert "\\udcff" in said.error.message
