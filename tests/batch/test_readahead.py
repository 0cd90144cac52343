"""Read-ahead: announced is what comes next, within the limits; it begins when drives are waited for, and ends."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.readahead import AHEAD_BYTES, Readahead
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.frame_plan import FrameSpan, plan_frames
from tests.node.node_kit import RawSession, batch_of, bucket_of, serving
from tests.store.batch_read_kit import content

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT

MIB = 1 << 20


class Recorded:
    """A batch of frames of given sizes that notes what of it is announced."""

    def __init__(self, sizes: list[int], found_bytes: int = MIB) -> None:
        self.sizes = np.array(sizes, np.int64)
        self.found_bytes = found_bytes
        self.announced: list[tuple[int, int]] = []
        self.waits = False
        self.go_on = threading.Event()
        self.go_on.set()

    def planned(self) -> Iterator[FrameSpan]:
        return plan_frames(self.sizes, target_bytes=MIB)

    def waited(self) -> bool:
        waits, self.waits = self.waits, False
        return waits

    def announce(self, span: FrameSpan) -> int:
        assert self.go_on.wait(180)
        self.announced.append((span.first, span.offset))
        return min(self.found_bytes, span.payload_bytes)

    @property
    def batch(self) -> StoreBatch:
        return cast(StoreBatch, self)


@pytest.fixture
def readahead() -> Iterator[Readahead]:
    made = Readahead(64 * MIB, threads=1)
    yield made
    made.close()


def test_nothing_is_announced_until_a_frame_had_to_wait(readahead: Readahead) -> None:
    batch = Recorded([MIB] * 6)
    ahead, spans = readahead.of(batch.batch), list(batch.planned())
    ahead.reading(spans[0])
    ahead.reading(spans[1])
    assert (batch.announced, readahead.memory.held_bytes) == ([], 0)
    batch.waits = True
    ahead.reading(spans[2])
    eventually(lambda: batch.announced == [(3, 0), (4, 0), (5, 0)])  # what is being read needs no announcement
    assert readahead.memory.held_bytes == 3 * MIB
    for span in spans[3:]:
        ahead.reading(span)
    assert readahead.memory.held_bytes == 0
    assert readahead.announced_bytes == 3 * MIB
    batch.waits = True
    ahead.close()
    other = Recorded([MIB] * 3)
    readahead.of(other.batch).reading(FrameSpan(0, 1, MIB))  # another batch expects the same from its start
    eventually(lambda: other.announced == [(1, 0), (2, 0)])


def test_a_large_entry_is_left_to_the_kernel(readahead: Readahead) -> None:
    batch = Recorded([10, 6 * MIB, 10])
    ahead, spans = readahead.of(batch.batch), list(batch.planned())
    ahead.reading(spans[1])
    batch.waits = True
    ahead.reading(spans[2])
    assert not readahead.expecting
    readahead.expect()
    ahead.reading(spans[3])
    eventually(lambda: batch.announced == [(2, 0)])
    assert readahead.memory.held_bytes == 10
    ahead.close()
    assert readahead.memory.held_bytes == 0


def test_frames_of_many_entries_are_left_to_the_reader(readahead: Readahead) -> None:
    batch = Recorded([10_000] * 600 + [2 * MIB] * 3 + [10_000] * 200)
    ahead, spans = readahead.of(batch.batch), list(batch.planned())
    ahead.reading(spans[0])
    batch.waits = True
    ahead.reading(spans[1])
    assert not readahead.expecting
    readahead.expect()
    ahead.reading(spans[2])
    eventually(lambda: batch.announced == [(600, 0), (601, 0), (602, 0)])
    ahead.close()


def test_it_ends_when_frames_are_found_in_the_page_cache(readahead: Readahead) -> None:
    batch = Recorded([MIB] * 40, found_bytes=0)
    readahead.expect()
    ahead, spans = readahead.of(batch.batch), list(batch.planned())
    ahead.reading(spans[0])
    eventually(lambda: not readahead.expecting)
    eventually(lambda: len(batch.announced) == AHEAD_BYTES // MIB)
    ahead.reading(spans[10])
    assert len(batch.announced) == AHEAD_BYTES // MIB
    assert not readahead.expecting
    batch.waits, batch.found_bytes = True, 1
    ahead.reading(spans[11])
    eventually(lambda: len(batch.announced) == AHEAD_BYTES // MIB + 11)
    assert readahead.expecting


def test_it_ends_when_reading_is_quicker_than_the_threads_and_waits_for_nothing(readahead: Readahead) -> None:
    batch = Recorded([MIB] * 10)
    batch.go_on.clear()
    readahead.expect()
    ahead, spans = readahead.of(batch.batch), list(batch.planned())
    ahead.reading(spans[0])
    eventually(lambda: readahead._workers._work_queue.qsize() == 8)  # the first is under way
    for span in spans[1:4]:
        ahead.reading(span)
        assert readahead.expecting
    ahead.reading(spans[4])
    assert not readahead.expecting
    ahead.close()
    batch.go_on.set()


def test_what_is_announced_stays_within_the_limits_of_the_batch_and_of_the_node() -> None:
    readahead = Readahead(AHEAD_BYTES + 2 * MIB, threads=2)
    first, second = Recorded([MIB] * 100), Recorded([MIB] * 100)
    readahead.expect()
    ahead, other = readahead.of(first.batch), readahead.of(second.batch)
    ahead.reading(FrameSpan(0, 1, MIB))
    other.reading(FrameSpan(0, 1, MIB))
    eventually(lambda: (len(first.announced), len(second.announced)) == (AHEAD_BYTES // MIB, 2))
    assert readahead.memory.held_bytes == AHEAD_BYTES + 2 * MIB
    ahead.reading(FrameSpan(1, 2, MIB))
    eventually(lambda: len(first.announced) == AHEAD_BYTES // MIB + 1)
    assert sorted(first.announced)[-1] == (AHEAD_BYTES // MIB + 1, 0)
    ahead.close()
    other.close()
    other.close()
    assert readahead.memory.held_bytes == 0
    readahead.close()


def test_what_has_not_begun_when_its_batch_ends_is_never_announced(readahead: Readahead) -> None:
    batch = Recorded([MIB] * 10)
    batch.go_on.clear()
    readahead.expect()
    ahead = readahead.of(batch.batch)
    ahead.reading(FrameSpan(0, 1, MIB))
    eventually(lambda: readahead._workers._work_queue.qsize() == 8)
    ahead.close()
    batch.go_on.set()
    done = Recorded([MIB] * 2)
    readahead.of(done.batch).reading(FrameSpan(0, 1, MIB))
    eventually(lambda: done.announced == [(1, 0)])
    assert batch.announced == [(1, 0)]


def test_with_no_bytes_allowed_nothing_is_announced() -> None:
    readahead = Readahead(0, threads=1)
    batch = Recorded([MIB] * 4)
    batch.waits = True
    ahead = readahead.of(batch.batch)
    ahead.reading(FrameSpan(0, 1, MIB))
    ahead.reading(FrameSpan(1, 2, MIB))
    assert (batch.announced, readahead.expecting) == ([], False)
    readahead.close()


def test_a_node_that_stops_announces_nothing_more(readahead: Readahead) -> None:
    batch = Recorded([MIB] * 4)
    readahead.expect()
    readahead.close()
    readahead.of(batch.batch).reading(FrameSpan(0, 1, MIB))
    assert (batch.announced, readahead.memory.held_bytes) == ([], 0)


def chill(folder: Path) -> None:
    os.sync()
    for path in (folder / "drive" / "objects").rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"buffered": True}, {"local": True}])
def test_a_node_reads_ahead_of_cold_batches_and_the_bytes_are_the_same(tmp_path: Path, fields: dict[str, Any]) -> None:
    sizes = [700_000] * 12 + [5_500_000, 10, 900_000]
    with serving(tmp_path) as node, bucket_of(node) as bucket, RawSession(node.url) as session:
        assert node.batches is not None
        readahead = node.batches.resources.readahead
        names = [f"k{at}" for at in range(len(sizes))]
        for at, name in enumerate(names):
            bucket.put(name, content(at, sizes[at]))
        request = batch_of(names, **fields)
        warm, end = session.ask(1, request)
        assert (readahead.announced_bytes, readahead.memory.held_bytes) == (0, 0)
        chill(tmp_path)
        cold, cold_end = session.ask(2, request)
        assert (end.digest, end.payload_bytes, end.entries) == (cold_end.digest, sum(sizes), len(sizes))
        assert b"".join(bytes(frame.payload) for frame in cold) == b"".join(bytes(frame.payload) for frame in warm)
        assert (end.outcome, end.failed_entries) == (pb.End.COMPLETE, 0)
        if _forgets(tmp_path):
            assert 0 < readahead.announced_bytes <= sum(sizes)
        eventually(lambda: readahead.memory.held_bytes == 0)
        fetched = readahead.announced_bytes
        numbers = itertools.count(3)
        # On a busy machine what is in memory may seem to have been waited for.
        eventually(lambda: session.ask(next(numbers), request) and not readahead.expecting)
        session.ask(next(numbers), request)
        assert readahead.announced_bytes == fetched  # it is all in the page cache


def _forgets(folder: Path) -> bool:
    """Whether this file system lets go of its pages, and can tell."""
    probe = folder / "probe"
    probe.write_bytes(bytes(8192))
    fd = os.open(probe, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(fd, [bytearray(8192)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
