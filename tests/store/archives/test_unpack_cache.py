"""Copies within a budget: made once, shared, evicted, and gone with the process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, Closed, CopiesBusy, DriveFailed, LoaderError
from storage_node.store.archives.unpack_cache import UnpackCache
from tests.open_files import open_files

WAIT_S = 180.0


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[UnpackCache]:
    made = UnpackCache(tmp_path / "copies", 1000)
    yield made
    made.close()
    assert made.used_bytes == 0
    assert list((tmp_path / "copies").iterdir()) == []


class Shard:
    """Unpacks to `size` octets of its number; counts how often."""

    def __init__(self, number: int, size: int = 400) -> None:
        self.number, self.size, self.unpacked = number, size, 0

    def __call__(self) -> Iterator[bytes]:
        self.unpacked += 1
        for _ in range(self.size // 100):
            yield bytes([self.number]) * 100

    def read(self, copies: UnpackCache) -> bytes:
        with copies.get(self.number, self.size, self, timeout_s=WAIT_S) as copy:
            assert copy.size_bytes == self.size
            return copy.pread(10_000, 0)


def test_a_copy_is_made_once_and_read_again(copies: UnpackCache) -> None:
    shard = Shard(1)
    assert [shard.read(copies) for _ in range(3)] == [b"\1" * 400] * 3
    assert (shard.unpacked, copies.used_bytes) == (1, 400)


def test_the_least_recently_used_copy_goes_when_room_is_needed(copies: UnpackCache) -> None:
    one, two, three = (Shard(number) for number in (1, 2, 3))
    for shard in (one, two, one, three, one, two):
        assert shard.read(copies) == bytes([shard.number]) * 400
        assert copies.used_bytes <= 1000
    assert [shard.unpacked for shard in (one, two, three)] == [1, 2, 1]


def test_an_evicted_copy_is_read_to_the_end_by_who_has_it(copies: UnpackCache) -> None:
    one = Shard(1)
    with copies.get(1, 400, one, timeout_s=WAIT_S) as copy:
        copies.drop(1)
        assert copies.used_bytes == 400
        assert copy.pread(400, 0) == b"\1" * 400
    assert copies.used_bytes == 0
    assert one.read(copies) == b"\1" * 400
    assert one.unpacked == 2


def test_many_who_ask_at_once_wait_for_one_to_make_it(copies: UnpackCache) -> None:
    entered, release = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        entered.set()
        assert release.wait(WAIT_S)
        yield b"x" * 400

    def read() -> bytes:
        with copies.get("shard", 400, slowly, timeout_s=WAIT_S) as copy:
            return copy.pread(400, 0)

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(read) for _ in range(6)]
        assert entered.wait(WAIT_S)
        entered.clear()
        release.set()
        assert [future.result(WAIT_S) for future in futures] == [b"x" * 400] * 6
    assert not entered.is_set()


def test_who_finds_no_room_or_waits_too_long_is_told_to_try_again(copies: UnpackCache) -> None:
    with (
        copies.get(1, 600, Shard(1, 600), timeout_s=WAIT_S),
        pytest.raises(CopiesBusy, match=r"others hold 600 of 1000 bytes"),
        copies.get(2, 600, Shard(2, 600), timeout_s=WAIT_S),
    ):
        pass
    assert Shard(2, 600).read(copies) == b"\2" * 600
    entered, release = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        entered.set()
        assert release.wait(WAIT_S)
        yield b"x" * 100

    def make() -> None:
        with copies.get(3, 100, slowly, timeout_s=WAIT_S):
            pass

    maker = threading.Thread(target=make)
    maker.start()
    assert entered.wait(WAIT_S)
    with pytest.raises(CopiesBusy, match="still making"), copies.get(3, 100, slowly, timeout_s=0.05):
        pass
    release.set()
    maker.join(WAIT_S)
    assert not maker.is_alive()


def test_room_that_is_given_back_is_used(tmp_path: Path) -> None:
    asked: list[int] = []
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as reading:

        def give_back(size_bytes: int) -> None:
            asked.append(size_bytes)
            kept.close()

        copies = UnpackCache(tmp_path, 1000, give_back)
        kept.enter_context(copies.get(1, 600, Shard(1, 600), timeout_s=WAIT_S))
        assert Shard(2, 600).read(copies) == b"\2" * 600
        reading.enter_context(copies.get(3, 700, Shard(3, 700), timeout_s=WAIT_S))
        with pytest.raises(CopiesBusy, match=r"others hold 700 of 1000 bytes"):
            Shard(4, 500).read(copies)
        assert asked == [600, 500]
    copies.close()


def test_a_shard_larger_than_the_budget_is_refused_before_it_is_unpacked(copies: UnpackCache) -> None:
    shard = Shard(1, 1100)
    with pytest.raises(ArchiveTooLarge, match="needs 1100 bytes, the budget for all of them is 1000"):
        shard.read(copies)
    assert shard.unpacked == 0


@pytest.mark.parametrize("size", [300, 500])
def test_a_shard_that_unpacks_to_another_size_than_its_index_says_is_damaged(copies: UnpackCache, size: int) -> None:
    with pytest.raises(ArchiveDamaged, match="its index says 400"), copies.get(1, 400, Shard(1, size), timeout_s=1):
        pass
    assert copies.used_bytes == 0
    assert Shard(1).read(copies) == b"\1" * 400


def test_all_who_wait_get_the_error_of_the_one_who_makes_it_and_the_next_one_tries_anew(
    copies: UnpackCache,
) -> None:
    entered, release = threading.Event(), threading.Event()

    def failing() -> Iterator[bytes]:
        yield b"x"
        entered.set()
        assert release.wait(WAIT_S)
        raise ArchiveDamaged("byte 7: damaged")

    def read() -> None:
        with copies.get(1, 400, failing, timeout_s=WAIT_S):
            pass

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(read)]
        assert entered.wait(WAIT_S)
        futures += [pool.submit(read) for _ in range(2)]
        release.set()
        for future in futures:
            with pytest.raises(ArchiveDamaged, match="byte 7"):
                future.result(WAIT_S)
    assert Shard(1).read(copies) == b"\1" * 400


def test_closing_ends_what_waits_and_what_is_being_made(tmp_path: Path) -> None:
    copies = UnpackCache(tmp_path, 1000)
    closed = threading.Event()

    def endless() -> Iterator[bytes]:
        while True:
            copies.close()
            closed.set()
            yield b"x"

    with pytest.raises(Closed), copies.get(1, 1000, endless, timeout_s=1):
        pass
    assert closed.is_set()
    with pytest.raises(Closed):
        Shard(1).read(copies)
    assert copies.used_bytes == 0


def test_a_folder_that_is_gone_is_told_as_the_drive_that_failed(copies: UnpackCache, tmp_path: Path) -> None:
    (tmp_path / "copies").rename(tmp_path / "moved")
    with pytest.raises(DriveFailed, match="the folder is gone"):
        Shard(1).read(copies)
    (tmp_path / "moved").rename(tmp_path / "copies")
    assert Shard(1).read(copies) == b"\1" * 400


@pytest.mark.slow
def test_a_process_that_dies_leaves_nothing_and_what_it_could_leave_is_swept(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from storage_node.store.archives.unpack_cache import UnpackCache\n"
        "def half():\n"
        "    yield b'x' * 500\n"
        "    os._exit(9)\n"
        "with UnpackCache(Path(sys.argv[1]), 1000).get(1, 1000, half, timeout_s=1): pass\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=180, check=False)
    assert (died.returncode, list(tmp_path.iterdir())) == (9, [])
    (tmp_path / "77.abc.unpacking").write_bytes(b"")
    (tmp_path / "someone else's").write_bytes(b"kept")
    UnpackCache(tmp_path, 1000).close()
    assert os.listdir(tmp_path) == ["someone else's"]


def test_descriptors_are_given_back_under_a_crowd(copies: UnpackCache, tmp_path: Path) -> None:
    shards = [Shard(number, 300) for number in range(8)]
    failures: list[LoaderError] = []

    def crowd(seed: int) -> None:
        for step in range(60):
            shard = shards[(seed * 7 + step * step) % 8]
            try:
                assert shard.read(copies) == bytes([shard.number]) * 300
            except CopiesBusy:
                pass  # three copies fit
            except LoaderError as error:
                failures.append(error)

    threads = [threading.Thread(target=crowd, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    assert failures == []
    assert len(open_files(tmp_path)) <= 3  # the copies that the budget allows
    assert copies.used_bytes <= 1000
