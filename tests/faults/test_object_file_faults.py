"""A file over an object goes on from its last byte through broken connections and nodes that restart."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from ais_loader import Bucket, ClusterOptions, ObjectFile, ObjectReader, connect, errors
from ais_loader.testing import NodeProcess, SeededObjects, seeded_bytes, throwaway_folder
from tests.faulty_link import FaultyLink
from tests.patience import PATIENT_CLIENT
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

MiB = 1 << 20


@cache
def data() -> bytes:
    return seeded_bytes(48 * MiB + 5, seed=3)


MEMBERS = SeededObjects({f"{at}.bin": (3 * MiB + at, at) for at in range(8)})


OBJECTS: dict[str, Callable[[], bytes]] = {"small": lambda: data()[:10_000], "large": data}


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    """Killed and frozen by tests here; each leaves it running."""
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        with connect(node.url, options=PATIENT_CLIENT) as client:
            bucket = client.create_bucket("b")
            for name, content in OBJECTS.items():
                bucket.put(name, content())
            bucket.put("shard.tar", packed_tar(MEMBERS))
        yield node


@pytest.fixture
def link(node: NodeProcess) -> Iterator[FaultyLink]:
    with FaultyLink(node.url) as link:
        yield link


@pytest.mark.parametrize("read_bytes", [50_000, 5 * MiB, -1])
def test_a_connection_that_breaks_again_and_again_leaves_no_trace_in_the_bytes(
    link: FaultyLink, read_bytes: int
) -> None:
    with connect(link.url, options=PATIENT_CLIENT) as client, client.open("ais://b/large") as file:
        link.cut_every(7 * MiB)
        parts = list(iter(lambda: file.read(read_bytes), b""))
        made = link.connections_made
    assert b"".join(parts) == data()
    assert made >= 6


def test_tarfile_extracts_over_a_connection_that_breaks(link: FaultyLink) -> None:
    with (
        connect(link.url, options=PATIENT_CLIENT) as client,
        client.bucket("b").reader("shard.tar") as reader,
    ):
        link.cut_every(4 * MiB)
        with tarfile.open(fileobj=reader, mode="r|") as archive:
            found = {}
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    assert found == MEMBERS
    assert link.connections_made >= 5


def test_a_node_killed_and_started_again_in_mid_read_goes_unnoticed(node: NodeProcess) -> None:
    with (
        connect(node.url, options=PATIENT_CLIENT) as client,
        client.bucket("b").open("large", read_ahead_bytes=2 * MiB) as file,
    ):
        first = file.read(10 * MiB)
        node.restart()
        buffer = bytearray(len(data()) - len(first))
        assert file.readinto(buffer) == len(buffer)
    assert first + buffer == data()


@pytest.mark.parametrize("read_ahead_bytes", [MiB, 8 * MiB])
@pytest.mark.parametrize("opened", [Bucket.open, Bucket.reader])
@pytest.mark.sampled(2)
def test_a_silent_node_ends_the_read_in_time_and_it_can_be_read_on(
    node: NodeProcess, opened: Callable[..., ObjectFile | ObjectReader], read_ahead_bytes: int
) -> None:
    with (
        connect(node.url) as client,
        opened(client.bucket("b"), "large", timeout_s=12.0, read_ahead_bytes=read_ahead_bytes) as file,
    ):
        first = file.read(4 * MiB)
        node.pause()
        try:
            with pytest.raises(errors.SilenceTimeout):
                file.read()
            assert file.tell() == len(first)
        finally:
            node.resume()
        assert file.read() == data()[len(first) :]


@pytest.mark.parametrize("name", ["small", "large"])
@pytest.mark.parametrize("opened", [Bucket.open, Bucket.reader])
def test_a_connection_that_breaks_while_a_file_is_opened_goes_unnoticed(
    link: FaultyLink, name: str, opened: Callable[..., ObjectFile | ObjectReader]
) -> None:
    due = OBJECTS[name]()
    with connect(link.url, options=PATIENT_CLIENT) as client:
        client.bucket("b").get("small")
        for after_bytes in (1, 60, 5_000):  # in the answer's header, and in the first bytes
            link.cut_after(after_bytes)
            with opened(client.bucket("b"), name) as file:
                assert file.read() == due
    assert link.connections_made >= 4


@pytest.mark.parametrize("opened", [Bucket.open, Bucket.reader])
def test_a_connection_that_breaks_after_a_file_was_opened_goes_unnoticed(
    link: FaultyLink, opened: Callable[..., ObjectFile | ObjectReader]
) -> None:
    with (
        connect(link.url, options=PATIENT_CLIENT) as client,
        opened(client.bucket("b"), "large") as file,
    ):
        made = link.connections_made
        link.cut_after(1)
        assert file.read(9 * MiB) == data()[: 9 * MiB]
        assert link.connections_made > made


def test_a_silent_node_ends_the_opening_in_time(node: NodeProcess) -> None:
    with connect(node.url, options=ClusterOptions(retry_s=1)) as client:
        bucket = client.bucket("b")
        assert bucket.open("small").read() == OBJECTS["small"]()
        node.pause()
        try:
            with pytest.raises(errors.SilenceTimeout):
                bucket.open("small", timeout_s=1.0)
        finally:
            node.resume()
        assert bucket.open("small").read() == OBJECTS["small"]()
