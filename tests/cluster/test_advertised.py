"""Nodes that others reach by an address that is not their own, as behind a proxy or a container's port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess
from ais_loader.testing.stores import throwaway_folder
from ais_loader.testing.waiting import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_bucket, create_cluster
from storage_node.ops.ask_nodes import ask_node
from tests.faulty_link import FaultyLink
from tests.node.node_kit import kept_port
from tests.patience import PATIENT_CLIENT
from tests.peer_kit import PROCESS_OPERATOR

HOST = "127.0.0.1"
NAMES = [f"{number:03d}" for number in range(40)]
PATIENCE_S = 600.0
"""A node that is not taken back would serve what it has after this time, and make the test no wiser."""


class Behind:
    """A node, and the link through which alone others know it."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.port = held.enter_context(kept_port())
        self.link = held.enter_context(FaultyLink(f"grpc://{HOST}:{self.port}"))
        self.outer = self.link.url.removeprefix("grpc://")
        self.node = held.enter_context(
            NodeProcess(
                folder,
                arguments=[
                    "--port",
                    str(self.port),
                    "--advertise",
                    self.outer,
                    "--set",
                    f"reconcile_patience_s={PATIENCE_S:g}",
                ],
            )
        )
        self.member = pb.MapNode(
            uuid=bytes.fromhex(ask_node(self.outer).uuid),
            host=str(folder),
            endpoint=self.outer,
            peer_endpoint=self.node.peer_endpoint,
        )

    @property
    def is_trusted(self) -> bool:
        """Whether it has compared its copies with the others' since it started."""
        progress = ask_node(self.outer, PROCESS_OPERATOR).progress
        return progress is not None and not progress.doubtful_bucket and not progress.silent


@pytest.fixture
def nodes() -> Iterator[list[Behind]]:
    with throwaway_folder() as folder, ExitStack() as held:
        yield [Behind(folder / f"node-{number}", held) for number in range(3)]


@pytest.mark.slow
def test_a_node_behind_a_proxy_is_taken_back_under_the_address_that_it_advertises(nodes: list[Behind]) -> None:
    endpoints = [one.outer for one in nodes]
    change_map(endpoints, create_cluster([one.member for one in nodes]), caller=PROCESS_OPERATOR)
    change_map(endpoints, create_bucket("b", copies=2), caller=PROCESS_OPERATOR)
    with connect(f"grpc://{','.join(endpoints)}", options=PATIENT_CLIENT) as client:
        bucket = client.bucket("b")
        bucket.put_many((name, name.encode() * 100) for name in NAMES)
        nodes[1].node.kill()
        bucket.put_many((name, name.encode() * 200) for name in NAMES[::2])
        nodes[1].node.start()
        assert eventually(lambda: nodes[1].is_trusted)
        wanted = [name.encode() * (200 if number % 2 == 0 else 100) for number, name in enumerate(NAMES)]
        assert bucket.get_batch(NAMES).tobytes() == wanted
    # Nobody has put the inner address into the map, and the copies are equal on all nodes.
    answer = ask_node(endpoints[0])
    assert answer.map is not None and [node.endpoint for node in answer.map.node] == endpoints
    with connect(f"grpc://{nodes[1].outer}", options=PATIENT_CLIENT) as client:
        assert client.bucket("b").get_batch(NAMES).tobytes() == wanted


@pytest.mark.slow
def test_a_node_whose_proxy_has_moved_says_so_in_the_map(nodes: list[Behind]) -> None:
    endpoints = [one.outer for one in nodes]
    change_map(endpoints, create_cluster([one.member for one in nodes]), caller=PROCESS_OPERATOR)
    nodes[2].node.kill()
    with FaultyLink(f"grpc://{HOST}:{nodes[2].port}") as moved:
        outer = moved.url.removeprefix("grpc://")
        with NodeProcess(nodes[2].node.drives, arguments=["--port", str(nodes[2].port), "--advertise", outer]):

            def told() -> bool:
                map_ = ask_node(endpoints[0]).map
                return map_ is not None and [node.endpoint for node in map_.node] == [*endpoints[:2], outer]

            assert eventually(told)
