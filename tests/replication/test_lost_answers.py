"""Writes whose answers are lost take effect once, whatever others write before the client tries again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.transport.base import PutSpec
from ais_loader.transport.retry import WriteTries
from ais_loader.values.source import Source
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.coordinator import WriteCoordinator
from storage_node.server import NodeServer
from storage_node.services.compose import ComposeService
from storage_node.services.contents import ContentsService
from storage_node.services.object_reads import ObjectsService
from storage_node.settings.config import ServerConfig
from tests.faulty_link import FaultyLink
from tests.node.cluster_kit import BUCKET, LocalCluster, to_one_node
from tests.node.write_kit import Writer, cluster_of, copies_of, name_with
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # nodes, some of which have to be waited for

MiB = 1 << 20
NAMES = [f"n{at:04d}" for at in range(1024)]
LARGE = seeded_bytes(5 * MiB, seed=1)
CALLS = {
    "put": (ObjectsService, "Put"),
    "put_many": (WriteCoordinator, "put_many"),
    "delete": (ObjectsService, "Delete"),
    "delete_many": (ContentsService, "DeleteMany"),
    "compose": (ComposeService, "_write"),
}
"""What has done all of it when it returns."""


class LosingAnswers:
    """The first answer to a call is lost, `between` the commit and the connection's end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.links: list[FaultyLink] = []
        self.between: Callable[[], object] = bool
        self.armed: str | None = None
        self.lost = 0
        for call, (owner, name) in CALLS.items():
            patch.setattr(owner, name, self._losing(call, getattr(owner, name)))

    def _losing(self, call: str, method: Any) -> Any:
        async def losing(*arguments: Any) -> Any:
            answer = await method(*arguments)
            if self.armed == call:
                self.armed = None
                self.lost += 1
                await asyncio.to_thread(self.between)
                for link in self.links:
                    link.cut()
                await asyncio.sleep(30)  # cancelled: its client has gone
            return answer

        return losing


@pytest.fixture(params=["node", "cluster"])
def lossy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LosingAnswers, Bucket, Bucket]]:
    """What loses answers, the bucket of the client that loses them, and that of another one that does not."""
    losing = LosingAnswers(monkeypatch)
    with ExitStack() as held:
        if request.param == "node":
            node = held.enter_context(NodeServer([tmp_path / "drive"], ServerConfig(port=0)))
            losing.links.append(held.enter_context(FaultyLink(node.url)))
            url = node.url
            held.enter_context(connect(url)).create_bucket(BUCKET)
        else:
            cluster = held.enter_context(cluster_of(tmp_path, 3, copies=2, clients_linked=True))
            losing.links += cluster.client_links
            url = cluster.nodes[0].url
        mine = held.enter_context(connect(",".join(link.url for link in losing.links), options=PATIENT_CLIENT))
        yield losing, mine.bucket(BUCKET), held.enter_context(connect(url, options=PATIENT_CLIENT)).bucket(BUCKET)


@contextmanager
def losing_the_answer_to(losing: LosingAnswers, call: str, between: Callable[[], object]) -> Iterator[None]:
    before = losing.lost
    losing.armed, losing.between = call, between
    yield
    assert losing.lost == before + 1


def contents(bucket: Bucket) -> dict[str, bytes]:
    names = [info.name for info in bucket.objects()]
    return dict(zip(names, (item.tobytes() for item in bucket.get_batch(names)), strict=True))


@pytest.mark.parametrize("data", [b"W1", LARGE], ids=["small", "large"])
def test_readers_see_a_put_once(lossy: tuple[LosingAnswers, Bucket, Bucket], data: bytes) -> None:
    losing, mine, other = lossy
    other.put("a", b"W0")
    seen: list[object] = []

    def between() -> None:
        seen.append(other.head("a").version)
        assert other.get("a") == data
        other.put("a", b"W2")

    with losing_the_answer_to(losing, "put", between):
        info = mine.put("a", data, metadata={"key": "value"})
    assert other.get("a") == b"W2"
    assert ([info.version], info.size_bytes, dict(info.metadata)) == (seen, len(data), {"key": "value"})
    with losing_the_answer_to(losing, "put", lambda: seen.append(other.head("a").version)):
        info = mine.put("a", data)  # that nobody has replaced
    assert (info.version, other.get("a")) == (seen[-1], data) and other.head("a") == info


def test_a_thousand_objects_are_put_once(lossy: tuple[LosingAnswers, Bucket, Bucket]) -> None:
    losing, mine, other = lossy
    mine.put_many((name, b"W0") for name in NAMES)
    replaced: dict[str, bytes] = {}

    def between() -> None:
        found = contents(other)
        replaced.update({name: b"W2" for name in NAMES[::3] if found[name] == b"W1"})
        assert replaced
        other.put_many(replaced.items())

    with losing_the_answer_to(losing, "put_many", between):
        assert mine.put_many((name, b"W1") for name in NAMES).stored == len(NAMES)
    assert contents(other) == {name: replaced.get(name, b"W1") for name in NAMES}


def test_a_deletion_deletes_nothing_that_was_put_after_it(lossy: tuple[LosingAnswers, Bucket, Bucket]) -> None:
    losing, mine, other = lossy
    other.put("a", b"W1")
    with losing_the_answer_to(losing, "delete", lambda: other.put("a", b"W2")):
        mine.delete("a")
    assert other.get("a") == b"W2"
    with losing_the_answer_to(losing, "delete", bool):
        mine.delete("a")  # it is found to be done, rather than that there is no such object
    with pytest.raises(errors.ObjectNotFound):
        other.get("a")
    with losing_the_answer_to(losing, "delete", lambda: other.put("b", b"W3")):
        mine.delete("b", if_version=other.put("b", b"W2").version)
    assert other.get("b") == b"W3"


def test_many_deletions_delete_nothing_that_was_put_after_them(lossy: tuple[LosingAnswers, Bucket, Bucket]) -> None:
    losing, mine, other = lossy
    other.put_many((name, b"W1") for name in NAMES)
    replaced: dict[str, bytes] = {}

    def between() -> None:
        left = {info.name for info in other.objects()}  # nodes that are not as fast have not deleted theirs yet
        replaced.update({name: b"W2" for name in NAMES[::2] if name not in left})
        assert replaced
        other.put_many(replaced.items())

    with losing_the_answer_to(losing, "delete_many", between):
        assert mine.delete_many([*NAMES, "none"], on_error="return").deleted == len(NAMES)
    assert contents(other) == replaced


def test_copies_and_appends_and_uploads_are_made_once(lossy: tuple[LosingAnswers, Bucket, Bucket]) -> None:
    losing, mine, other = lossy
    other.put("from", b"W1", metadata={"key": "value"})
    with losing_the_answer_to(losing, "compose", lambda: other.put("to", b"W2")):
        assert mine.copy("from", "to").size_bytes == 2
    assert other.get("to") == b"W2"
    with losing_the_answer_to(losing, "compose", lambda: other.append("to", b"+other")):
        mine.append("to", b"+mine")
    assert other.get("to") == b"W2+mine+other"
    with losing_the_answer_to(losing, "compose", lambda: other.put("from", b"W3")):
        mine.set_metadata("from", {"key": "other"})
    assert (other.get("from"), dict(other.head("from").metadata)) == (b"W3", {})
    upload = mine.multipart("up")
    upload.put_part(1, LARGE)
    upload.put_part(2, b"end")
    with losing_the_answer_to(losing, "compose", lambda: other.put("up", b"W2")):
        upload.complete()
    assert other.get("up") == b"W2"


# -- nodes that cannot be asked


def put_again(data: bytes, *, repeat_ms: int = 0) -> Mapping[str, object]:
    return {"condition": pb.PutCondition(write_id=data.rjust(16, b"i"), repeat_ms=repeat_ms)}


def kind_of(call: Callable[[], object]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return str(dict(caught.value.trailing_metadata())["ais-error-kind"])


def test_what_a_silent_node_may_have_done_alone_is_not_done_over_what_came_after_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, linked=True, reach_timeout_s=0.5) as cluster:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        with Writer(cluster.nodes[0].url) as first, Writer(cluster.nodes[1].url) as second:
            second.put(name, b"W0")
            for link in cluster.links:
                link.refuse()
            began_s = time.monotonic()

            def age_ms() -> int:
                return int((time.monotonic() - began_s) * 1000) + 1

            lost = first.put(name, b"W1", **put_again(b"W1"))
            second.put(name, b"W2", **put_again(b"W2"))
            repeat = kind_of(lambda: second.put(name, b"W1", **put_again(b"W1", repeat_ms=age_ms())))
            assert repeat == "node-unavailable"
            tries = WriteTries(b"W1".rjust(16, b"i"), began_s)
            spec = PutSpec(bucket=BUCKET, name=name, metadata={}, tries=tries)
            with (
                closing(to_one_node(cluster.nodes[1].url, retry_s=0.3)) as transport,
                pytest.raises(errors.OutcomeUnknown, match="read what there is"),
            ):
                transport.put(spec, Source(b"W1"))
            assert copies_of(cluster, name)[1][1] == b"W2"
            # What it has overwritten itself, and what was there long before, is not in the way.
            second.put("new", b"W1", **put_again(b"N1", repeat_ms=100))
            for link in cluster.links:
                link.accept()

            def known() -> bool:
                try:
                    return second.put(name, b"W1", **put_again(b"W1", repeat_ms=age_ms())).version == lost.version
                except grpc.RpcError:
                    return False

            eventually(known)
            assert {data for _, data in copies_of(cluster, name).values()} <= {b"W1", b"W2"}
            assert copies_of(cluster, name)[1][1] == b"W2"


def test_what_all_owners_took_part_in_tells_that_a_silent_one_has_not_done_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, linked=True, reach_timeout_s=0.5) as cluster:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        with Writer(cluster.nodes[1].url) as second:
            second.put(name, b"W0")
            cluster.links[0].refuse()
            second.put(name, b"W1", **put_again(b"W1", repeat_ms=100))
            assert copies_of(cluster, name)[1][1] == b"W1"


# -- a node that is not there yet


@pytest.mark.parametrize("many", [False, True])
def test_a_deletion_waits_for_a_node_that_restarts(tmp_path: Path, many: bool) -> None:
    node = NodeServer([tmp_path / "drive"], ServerConfig(port=0)).start()
    again = NodeServer([tmp_path / "drive"], ServerConfig(port=node.port))
    try:
        with connect(node.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(1) as thread:
            bucket = client.create_bucket(BUCKET)
            bucket.put("a", b"data")
            node.stop(grace_s=0.0)
            began = threading.Event()

            def delete() -> object:
                began.set()
                return bucket.delete_many(["a"]).deleted if many else bucket.delete("a")

            deleting = thread.submit(delete)
            assert began.wait(180)
            with pytest.raises(TimeoutError):
                deleting.result(0.3)
            again.start()
            assert deleting.result(180) == (1 if many else None)
            assert list(bucket.objects()) == []
    finally:
        node.stop()
        again.stop()


def test_a_bulk_put_that_nobody_acknowledges_waits_as_long_as_one_object_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing, names = LosingAnswers(monkeypatch), NAMES[:300]
    with cluster_of(tmp_path, 3, copies=2, clients_linked=True) as cluster:
        losing.links += cluster.client_links

        def refuse_all() -> None:
            for link in cluster.client_links:
                link.refuse()

        url = ",".join(link.url for link in cluster.client_links)
        with connect(url, options=ClusterOptions(retry_s=1.0)) as client:
            with losing_the_answer_to(losing, "put_many", refuse_all):
                began_s = time.monotonic()
                summary = client.bucket(BUCKET).put_many([(name, b"W1") for name in names], on_error="return")
                took_s = time.monotonic() - began_s
            assert took_s < len(names) / 3, "one wait for each node's objects together, rather than 300"
        kinds = {failure.name: type(failure.error) for failure in summary.failures}
        assert set(kinds.values()) <= {errors.OutcomeUnknown, errors.NodeUnavailable}
        assert errors.OutcomeUnknown in kinds.values()
        for link in cluster.client_links:
            link.accept()
        with connect(cluster.nodes[0].url) as client:
            stored = {info.name for info in client.bucket(BUCKET).objects()}
        assert set(names) - set(kinds) <= stored
        assert not stored & {name for name, kind in kinds.items() if kind is errors.NodeUnavailable}
