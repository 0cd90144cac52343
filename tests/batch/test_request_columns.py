"""Batches whose columns do not fit together, or hold any value that the wire allows: each is answered with words, by a
node on its own and by one of a cluster, and its session goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import InvalidRequest
from ais_loader.testing import throwaway_folder
from ais_loader.wire.batch_columns import ENTRY_COLUMNS, PER_REQUEST
from ais_loader.wire.frame import Frame, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_replica_pb2 as replica
from storage_node.cluster.replication.replica import write_tombstones
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.node_kit import PLENTY, RawSession
from tests.store.store_kit import store_at
from tests.tar_kit import packed_tar


def any_integer(low: int, high: int) -> Callable[[Random], int]:
    few = [value for value in (-3, -2, -1, 0, 0, 1, 2, 5, 10, 11, low, high) if low <= value <= high]
    return lambda random: random.choice([*few, random.randint(low, high)])


def any_text(*likely: str) -> Callable[[Random], str]:
    return lambda random: random.choice([*likely, *likely, "\x01", "é\U0001f600", "/" * random.randrange(3)])


I64, U32, U64 = any_integer(-(1 << 63), (1 << 63) - 1), any_integer(0, (1 << 32) - 1), any_integer(0, (1 << 64) - 1)
NAME = any_text("a", "s.tar", "none", "", "a/../b", "/a")
VERSION = any_text("", "1.1.1", "1", "..", "1.99999999999999999999999.1")
MEMBER = any_text("", "m", "none", "../m")
COLUMNS: dict[str, Callable[[Random], Any]] = {
    "bucket_index": U32,
    "name": NAME,
    "member": MEMBER,
    "start": I64,
    "length": I64,
    "version": VERSION,
    "transform_index": U32,
}
FIELDS: dict[str, Callable[[Random], Any]] = {
    "first_index": U64,
    "resume_offset": U64,
    "resume_checksum": U32,
    "resume_version": VERSION,
    "map_version": U64,
    "local": lambda random: random.random() < 0.5,
    "receiver_checks": lambda random: random.random() < 0.5,
    "whole_up_to": U32,
    "coded_places": lambda random: random.random() < 0.5,
}


@pytest.fixture(scope="module", params=["alone", pytest.param("in a cluster", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as held:
        folder = held.enter_context(throwaway_folder())
        cluster = held.enter_context(LocalCluster(folder, 1 if request.param == "alone" else 2, peer_timeout_s=0.5))
        objects = {"a": b"0123456789", "s.tar": packed_tar({"m": b"member"})}
        cluster.put(objects)
        yield cluster.nodes[0].url


def drawn(random: Random) -> pb.BatchRequest:
    n = random.randrange(5)
    request = pb.BatchRequest(bucket=random.choice([[BUCKET], [BUCKET, "other"], [], [""], [BUCKET, BUCKET]]))
    for column, value in COLUMNS.items():
        length = n if column == "name" else random.choice([n, n, n, 0, 0, n + 1])
        getattr(request, column).extend([value(random) for _ in range(length)])
    for field, value in FIELDS.items():
        if random.random() < 0.3:
            setattr(request, field, value(random))
    for flag in ("verify_ranges", "fail_fast", "buffered", "ordered"):
        setattr(request, flag, random.random() < 0.5)
    request.initial_credit_bytes = PLENTY
    return request


def test_every_column_and_field_of_a_request_is_drawn() -> None:
    assert set(COLUMNS) == set(ENTRY_COLUMNS)
    assert set(FIELDS) == set(PER_REQUEST) - {"initial_credit_bytes"}


def ask(session: RawSession, batch_id: int, request: pb.BatchRequest) -> tuple[list[Frame], pb.End]:
    """Sent away by a node that is busy, as any may be on a busy machine, it asks again."""
    give_up_at = time.monotonic() + 180
    while True:
        session.send(batch_id, request)
        frames: list[Frame] = []
        while True:
            response = decode_response(next(session.call))
            assert response.batch_id == batch_id
            if response.reject is not None:
                assert response.reject.reason and time.monotonic() < give_up_at
                break
            if response.frame is not None:
                frames.append(response.frame)
            if response.end is not None:
                return frames, response.end


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
def test_any_columns_are_answered_with_words(url: str, seed: int) -> None:
    request_ = drawn(Random(seed))
    n = len(request_.name)
    with RawSession(url) as session:
        frames, end = ask(session, 1, request_)
        if end.outcome == pb.End.REFUSED:
            assert end.error_kind in ("invalid-request", "stale-map"), (end.error_kind, end.message)
            assert end.message
        else:
            assert all(len(getattr(request_, column)) in (0, n) for column in COLUMNS)
            assert sum(len(frame.index) for frame in frames if frame.completes_entry) == end.entries
            for frame in frames:
                for index, status in zip(frame.index.tolist(), frame.status.tolist(), strict=True):
                    assert not status or frame.errors[index].message
        good = pb.BatchRequest(bucket=[BUCKET], name=["a"], initial_credit_bytes=PLENTY, ordered=True)
        frames, end = ask(session, 2, good)
        assert end.outcome == pb.End.COMPLETE
        # A node whose process stood still for a moment compares its copies before it answers.
        assert b"".join(bytes(frame.payload) for frame in frames) == (b"" if end.failed_entries else b"0123456789")


def test_versions_that_are_not_those_of_the_names_are_refused(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        request = contents.BuryManyRequest(name=["a", "b"], version=[replica.ObjectVersion(epoch=1, counter=1)])
        request.bucket.name, request.bucket.uuid = "speech", store.bucket("speech").uuid_bytes
        with pytest.raises(InvalidRequest, match=r"1 versions .*of 2 names"):
            write_tombstones(store, request)
