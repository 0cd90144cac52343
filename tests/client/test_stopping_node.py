"""A node that ends calls because it stops: never the caller's `Closed`, but a node that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.wire.reserved import ERROR_KIND_KEY
from tests.table import table

MiB = 1 << 20
Ending = Callable[[grpc.ServicerContext], None]


def cancelled(context: grpc.ServicerContext) -> None:
    """As gRPC ends what is still running when its server has stopped."""
    context.abort(grpc.StatusCode.CANCELLED, "Cancelled")


def store_closed(context: grpc.ServicerContext) -> None:
    """As a call is answered that came to the store a moment too late."""
    context.set_trailing_metadata(((ERROR_KIND_KEY, errors.Closed.kind),))
    context.abort(grpc.StatusCode.INTERNAL, "the store has been closed")


@contextmanager
def ending_all(ending: Ending) -> Iterator[str]:
    """The URL of a node that ends every call so."""

    class All(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> Any:
            def end(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
                ending(context)
                yield b""

            return grpc.stream_stream_rpc_method_handler(end)

    server = grpc.server(ThreadPoolExecutor(8), handlers=[All()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@table("ending", [cancelled, store_closed])
@table(
    "call",
    [
        lambda bucket: bucket.put("a", b"1"),
        lambda bucket: bucket.put("a", bytes(5 * MiB)),
        lambda bucket: bucket.put_many([("a", b"1"), ("b", b"2")]),
        lambda bucket: bucket.delete("a"),
        lambda bucket: bucket.delete_many(["a"]),
        lambda bucket: bucket.copy("a", "b"),
        lambda bucket: bucket.get("a"),
        lambda bucket: bucket.head("a"),
        lambda bucket: bucket.summary(),
        lambda bucket: list(bucket.objects()),
        lambda bucket: list(bucket.get_batch(["a"])),
    ],
)
def test_who_meets_a_node_that_stops_is_not_told_that_he_closed_his_client(
    ending: Ending, call: Callable[[Bucket], object]
) -> None:
    with (
        ending_all(ending) as url,
        connect(url, options=ClusterOptions(retry_s=0.0)) as client,
        pytest.raises(errors.NodeUnavailable),
    ):
        call(client.bucket("b"))


def test_what_a_client_ends_itself_is_closed() -> None:
    with ending_all(cancelled) as url:
        client = connect(url)
        client.close()
        with pytest.raises(errors.Closed):
            client.bucket("b").put("a", b"1")
