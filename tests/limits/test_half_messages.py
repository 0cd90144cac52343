"""gRPC messages that are left incomplete: what they hold is given back in time, and clients are served meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.testing import NodeProcess, eventually, seeded_bytes
from benchmarks.soak.half_messages import HalfMessages, pump_all

pytestmark = pytest.mark.slow
MiB = 1 << 20
LARGE = 31 * MiB
CONNECTIONS = 12
CONTENT = seeded_bytes(10_000, seed=3)


@contextmanager
def half_messages(node: NodeProcess, method: str) -> Iterator[list[HalfMessages]]:
    """Calls of which everything has arrived but the last byte of the message, or that the node has ended before, by
    themselves or with their connections."""
    with ExitStack() as stack:
        connections = [stack.enter_context(HalfMessages("127.0.0.1", node.port)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.call(f"/ais_loader.v1.{method}", LARGE + 1, LARGE)
        eventually(lambda: pump_all(connections) and all(one.has_sent_all or one.is_closed for one in connections))
        yield connections


def test_a_request_that_is_not_completed_ends_its_call_and_its_memory_is_used_again(tmp_path: Path) -> None:
    with NodeProcess([tmp_path], arguments=["--set", "message_timeout_s=2"]) as node:
        before = node.rss_bytes()
        for _ in range(3):
            with half_messages(node, "Objects/Head") as connections:
                eventually(
                    lambda: pump_all(connections) and all(one.ended_calls or one.is_closed for one in connections)
                )
        # Three times as much if none was used again; a round can begin while the one before is still given back.
        assert node.peak_rss_bytes() - before < 2.2 * CONNECTIONS * LARGE


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["Objects/Head", "Objects/Put", "GetBatch/Session"])
def test_incomplete_messages_give_way_when_memory_is_short(tmp_path: Path, method: str) -> None:
    limits = ["critical_memory_bytes=250 MiB", "still_s=1", "message_timeout_s=100"]
    arguments = [word for limit in limits for word in ("--set", limit)]
    with NodeProcess([tmp_path], arguments=arguments) as node:
        options = ClusterOptions(lane="grpc", retry_s=240.0)
        with connect(node.url, options=options) as client, half_messages(node, method) as connections:
            bucket = client.create_bucket("b")
            bucket.put("meanwhile", CONTENT)
            assert [item.tobytes() for item in bucket.get_batch(["meanwhile"])] == [CONTENT]
            eventually(lambda: pump_all(connections) and node.rss_bytes() < 250 * MiB)


def test_connections_beyond_the_limit_are_closed_and_others_are_served(tmp_path: Path) -> None:
    with ExitStack() as stack:
        node = stack.enter_context(NodeProcess([tmp_path], arguments=["--set", "max_connections=4"]))
        bucket = stack.enter_context(connect(node.url)).create_bucket("b")
        connections = [stack.enter_context(HalfMessages("127.0.0.1", node.port)) for _ in range(10)]
        for connection in connections:
            connection.call("/ais_loader.v1.Objects/Head", 1000, 10)
        eventually(lambda: pump_all(connections) and sum(one.is_closed for one in connections) >= 6)
        bucket.put("meanwhile", CONTENT)
        assert bucket.get("meanwhile") == CONTENT
