"""Pages of lists: made on reader threads, bounded in bytes, and nothing lost between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.errors import NodeUnavailable
from ais_loader.objects.bucket import one_level
from ais_loader.objects.client import Client
from ais_loader.transport.grpc.node_calls import NodeCalls
from ais_loader.transport.listings import names_of_page
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.names_block import NamesBlock
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.server import NodeServer
from storage_node.services import object_reads
from storage_node.store.listing import PAGE_BYTES
from tests.node.node_kit import serving
from tests.tar_kit import packed_tar

METADATA = {"note": "x" * 4000}
COUNT = 600


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    with serving(tmp_path) as node:
        yield node


@pytest.fixture
def client(node: NodeServer) -> Iterator[Client]:
    with connect(node.url) as client:
        yield client


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of those that build rows of pages."""
    found: set[str] = set()
    info_of = object_reads.info_of

    def noted(*arguments: Any) -> pb.ObjectInfo:
        found.add(threading.current_thread().name)
        return info_of(*arguments)

    monkeypatch.setattr(object_reads, "info_of", noted)
    return found


@pytest.mark.slow
def test_a_page_of_objects_is_made_on_a_reader_thread_and_ends_by_bytes(
    node: NodeServer, client: Client, threads: set[str]
) -> None:
    names = [f"n{at:03}" for at in range(COUNT)]
    bucket = client.create_bucket("pages")
    store = node.batches.node.store
    uploads = [store.stage("pages", name, [b"x"], METADATA, grouped=True) for name in names]
    store.commit_many(uploads)
    transport = NodeCalls(node.url, ClusterOptions())
    pages, after = [], ""
    while True:
        request = pb.ListRequest(bucket="pages", start_after=after, page_size=10_000)
        pages.append(page := transport.list_page(request, has_others=False))
        if not page.more:
            break
        after = page.next
    transport.close()
    assert [info.name for page in pages for info in page.object] == names
    assert all(page.ByteSize() < 1.1 * PAGE_BYTES for page in pages)
    assert len(pages) == -(-COUNT * 4000 // PAGE_BYTES)
    assert threads and all(name.startswith("ais-loader-read") for name in threads)
    assert [info.name for info in bucket.objects(page_size=10_000)] == names


@pytest.mark.slow
def test_a_page_of_names_is_made_on_a_reader_thread_and_ends_by_bytes(
    node: NodeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    class Noted(NamesBlock):
        @classmethod
        def of(cls, names: Sequence[bytes]) -> Self:
            threads.add(threading.current_thread().name)
            return super().of(names)

    monkeypatch.setattr(object_reads, "NamesBlock", Noted)
    names = [f"{at:04}" + "n" * 1000 for at in range(3000)]
    client.create_bucket("pages").put_many([(name, b"") for name in names])
    transport = NodeCalls(node.url, ClusterOptions())
    request = pb.ListRequest(bucket="pages", names_only=True, page_size=7)
    page = transport.list_page(request, has_others=False)
    transport.close()
    assert len(page.names) >= PAGE_BYTES and page.ByteSize() < 1.01 * PAGE_BYTES
    assert (page.more, page.object) == (True, [])
    assert [name.decode() for name in names_of_page(page).to_list()] == names[: len(page.name_lengths) // 2]
    assert page.next == names[len(page.name_lengths) // 2 - 1]
    assert threads and all(name.startswith("ais-loader-read") for name in threads)


def test_damaged_columns_are_told() -> None:
    assert names_of_page(pb.ListResponse()).to_list() == []
    for lengths in (b"", b"\x01\x00", b"\x03\x00\x01", b"\x02\x00\x01\x00"):
        with pytest.raises(NodeUnavailable, match="do not fit"):
            names_of_page(pb.ListResponse(names=b"ab", name_lengths=lengths))


@pytest.mark.parametrize("owned", [True, False])
def test_one_level_takes_few_pages_of_a_node_that_has_to_ask_others_too(
    client: Client, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    """Such a node answers with all objects: then a folder is left after a page."""
    names = [f"{folder}/{at:03}" for folder in ("a", "b", "b/c") for at in range(200)]
    bucket = client.create_bucket("pages")
    bucket.put_many([(name, b"") for name in [*names, "a0", "z"]])
    if not owned:
        monkeypatch.setattr(WriteCoordinator, "owns", lambda *_: False)
    pages: list[pb.ListRequest] = []
    list_page = NodeCalls.list_page

    def noted(self: NodeCalls, request: pb.ListRequest, *, has_others: bool) -> pb.ListResponse:
        pages.append(request)
        return list_page(self, request, has_others=has_others)

    monkeypatch.setattr(NodeCalls, "list_page", noted)
    found = [one if isinstance(one, str) else one.name for one in one_level(bucket, page_size=10)]
    assert found == ["a/", "a0", "b/", "z"]
    assert len(pages) == (1 if owned else 3)
    assert list(one_level(bucket, "b/", page_size=100_000))[-1] == "b/c/"


def test_a_page_of_members_ends_by_bytes(node: NodeServer, client: Client) -> None:
    names = [f"{at:02}/" + "m" * 60_000 for at in range(40)]
    bucket = client.create_bucket("pages")
    bucket.put("s.tar", packed_tar(dict.fromkeys(names, b"")))
    transport = NodeCalls(node.url, ClusterOptions())
    page = transport.member_page(pb.ListMembersRequest(bucket="pages", name="s.tar", page_size=10_000))
    transport.close()
    assert page.next and page.ByteSize() < PAGE_BYTES + 100_000
    assert [member.name for member in bucket.members("s.tar", page_size=10_000)] == names


@pytest.mark.slow
def test_a_page_of_versions_ends_by_bytes(node: NodeServer, client: Client) -> None:
    names = [f"{at:04}" + "v" * 900 for at in range(1500)]
    client.create_bucket("pages").put_many([(name, b"") for name in names])
    store = node.batches.node.store
    request = replica.wire.VersionsRequest(limit=10_000)
    request.bucket.name, request.bucket.uuid = "pages", store.bucket("pages").uuid_bytes
    found = []
    while True:
        page = replica.versions(store, request)
        assert page.ByteSize() < 1.2 * PAGE_BYTES
        found += [state.name for state in page.object]
        if not page.next:
            break
        request.start_after = page.next
    assert found == names
