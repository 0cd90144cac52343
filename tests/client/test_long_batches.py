"""Readers that go straight on, over streams that they drive themselves: natively, and by grpcio's public API."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from ais_loader import Client, ClusterOptions, ObjectReader, connect, errors
from ais_loader.testing import NodeProcess, eventually, seeded_bytes, throwaway_folder
from ais_loader.transport.session import long_batch
from ais_loader.transport.session import raw_stream as direct
from tests.faulty_link import FaultyLink

MiB = 1 << 20


@cache
def data() -> bytes:
    return seeded_bytes(26 * MiB + 7, seed=5)


@pytest.fixture(scope="module")
def filled() -> Iterator[NodeProcess]:
    """Has room for two frames at a time, of all its clients."""
    with throwaway_folder() as folder, NodeProcess(folder / "drive", arguments=["--memory-mib", "8"]) as node:
        with connect(node.url) as client:
            client.create_bucket("data").put("large", data())
        yield node


@pytest.fixture(params=["native", "public"])
def client(filled: NodeProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    if request.param == "public":
        monkeypatch.setattr(direct, "cygrpc", None)
    with connect(filled.url, options=ClusterOptions(verify_payload=True, retry_s=240.0)) as client:
        yield client


def reads_alone(reader: ObjectReader) -> bool:
    return [is_long for _, is_long in reader._ahead._pending] == [True]


def test_a_stream_is_read_whole_again_and_again(client: Client) -> None:
    for _ in range(2):
        with client.bucket("data").reader("large", timeout_s=180.0) as reader:
            first = reader.read(MiB)
            assert reads_alone(reader)
            assert first + reader.read() == data()


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_a_reader_that_pauses_leaves_the_nodes_memory_to_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_batch, "FIRST_WINDOW_BYTES", long_batch.MAX_WINDOW_BYTES)
    bucket = client.bucket("data")
    with bucket.reader("large", timeout_s=180.0) as paused:
        first = paused.read(MiB)
        with connect(client._transport.url) as another, another.bucket("data").reader("large", timeout_s=180.0) as busy:
            assert busy.read() == data()
        assert reads_alone(paused)
        assert first + paused.read() == data()


def test_one_that_is_let_go_half_read_harms_no_later_one(client: Client) -> None:
    bucket = client.bucket("data")
    for read_bytes in (1, 9 * MiB):
        with bucket.reader("large", timeout_s=180.0) as reader:
            assert reader.read(read_bytes) == data()[:read_bytes]
    assert eventually(lambda: client.describe()["active_batches"] == 0)
    with bucket.reader("large", timeout_s=180.0) as reader:
        assert reader.read() == data()


@pytest.mark.slow
def test_closing_the_client_ends_a_read_that_waits(filled: NodeProcess) -> None:
    with FaultyLink(filled.url) as link, ThreadPoolExecutor(1) as pool, connect(link.url) as client:
        reader = client.bucket("data").reader("large", timeout_s=60.0)
        assert reader.read(MiB) == data()[:MiB]
        link.stall()
        reading = pool.submit(reader.read)
        eventually(lambda: reader._position > 2 * MiB or reading.done())
        client.close()
        with pytest.raises(errors.Closed):
            reading.result(timeout=180)
        assert reader.tell() == MiB
