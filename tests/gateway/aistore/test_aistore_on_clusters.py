"""A cluster behind the gateway: a node is killed between the requests of an upload, an append and a read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader.integrations.gateway.clients import Clients
from ais_loader.testing import eventually
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all
from tests.gateway.aistore.conftest import Ais
from tests.gateway.aistore.test_aistore_lists import names
from tests.gateway.gateway_thread import GatewayThread

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ClusterProcesses, Ais]]:
    with ClusterProcesses(tmp_path, 3) as running:
        clients = Clients(running.url, [])
        try:
            with GatewayThread(clients, None) as gateway:
                yield running, Ais(gateway.port, "")
        finally:
            clients.close()


def test_a_node_is_killed(cluster: tuple[ClusterProcesses, Ais]) -> None:
    running, ais = cluster
    mirror = {"mirror": {"enabled": True, "copies": 2}}
    assert ais("POST", "buckets/b", {"action": "create-bck", "value": mirror}).status == 200
    objects = {f"o{number:02d}": random.Random(number).randbytes(number * 1000) for number in range(40)}
    for name, data in objects.items():
        ais.put("b", name, data)
    ais.put("b", "large", random.Random(99).randbytes(5 << 20))
    upload = ais("POST", "objects/b/parts", {"action": "mpt-upload"}).body.decode()
    ais.put("b", "parts", b"1" * 400_000, uploadId=upload, partNumber="1")
    handle = ais.put("b", "o01", b"more", append_type="append").headers["ais-append-handle"]

    serve_all(running)
    running.kill([2])

    for name, data in objects.items():
        answer = eventually(lambda name=name: (found := ais.get("b", name)).status == 200 and found)
        assert answer.body == data, name
    assert ais.get("b", "large", {"Range": "bytes=1000000-"}).body == random.Random(99).randbytes(5 << 20)[1_000_000:]
    assert names(ais, "b", pagesize=7) == ["large", *objects]
    ais.put("b", "parts", b"2" * 400_000, uploadId=upload, partNumber="2")
    value = [{"part-number": number, "etag": ""} for number in (1, 2)]
    ended = ais("POST", f"objects/b/parts?uploadId={upload}", {"action": "mpt-complete", "value": value})
    assert ended.status == 200, ended
    assert ais.get("b", "parts").body == b"1" * 400_000 + b"2" * 400_000
    handle = ais.put("b", "o01", b" again", append_type="append", append_handle=handle).headers["ais-append-handle"]
    assert ais("PUT", "objects/b/o01", b"", append_type="flush", append_handle=handle).status == 200
    assert ais.get("b", "o01").body == objects["o01"] + b"more again"
    ais.put("b", "new", b"written without the node")
    assert ais.get("b", "new").body == b"written without the node"


def test_too_few_nodes_are_told_as_such(cluster: tuple[ClusterProcesses, Ais]) -> None:
    running, ais = cluster
    assert ais("POST", "buckets/b", {"action": "create-bck"}).status == 200
    stored = [f"o{number}" for number in range(12)]
    for name in stored:
        ais.put("b", name, name.encode())

    running.kill([1, 2])

    with ThreadPoolExecutor(len(stored)) as threads:
        answers = list(threads.map(lambda name: ais.get("b", name), stored))
    assert {answer.status for answer in answers} == {200, 503}
    for name, answer in zip(stored, answers, strict=True):
        if answer.status == 503:
            assert answer.headers["retry-after"] and answer.message()
        else:
            assert answer.body == name.encode()
