"""Reads of coded objects on six nodes: whole ones, ranges, members, under faults of up to two of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.coding.coded_kit import CodedCluster

pytestmark = pytest.mark.slow

DRAW = random.Random(7)
SMALL = {f"small/{at:03}": DRAW.randbytes(DRAW.randrange(1, 40_000)) for at in range(120)} | {"empty": b""}
LARGE = {"large": DRAW.randbytes(9_000_001), "middle": DRAW.randbytes(1_500_000)}


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodedCluster]:
    with CodedCluster(tmp_path_factory.mktemp("coded")) as cluster:
        cluster.put_coded(SMALL)
        for name, data in LARGE.items():
            cluster.put_coded({name: data})
        cluster.put({"plain": b"plain bytes"})
        yield cluster


def test_a_batch_has_the_bytes_in_its_order(coded: CodedCluster) -> None:
    names = [*SMALL, "plain", *LARGE, "small/000", "missing"]
    random.Random(1).shuffle(names)
    answer = coded.ask(names)
    objects = {**SMALL, **LARGE, "plain": b"plain bytes"}
    assert answer.order == list(range(len(names)))
    for at, name in enumerate(names):
        if name == "missing":
            assert answer.status[at] == pb.NOT_FOUND
        else:
            assert answer.status[at] == pb.OK, (name, answer.faults.get(at))
            assert answer.data[at] == objects[name], name
    coded.settle()
