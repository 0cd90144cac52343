"""Locations that processes share: a new reader knows all of them, and none of them is ever wrong."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from ais_loader.errors import DriveFailed
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.drive import shared_locations
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.drive.locations import Locations, find
from storage_node.store.format import object_key
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.segment_kit import put_group
from tests.store.store_kit import BUCKET, drive_of, put, store_at
from tests.table import table

COUNT = 1_600
"""Enough for a table in a file."""
NAMES = [f"{at:05}" for at in range(COUNT)]
DEADLINE_S = 180.0


def content(name: str, number: int) -> bytes:
    """A name, a number and bytes that both determine: no other object has them."""
    return f"{name} {number:06} ".encode() + random.Random(f"{name} {number}").randbytes(40)


def fill(store: Store, number: int, names: Sequence[str] = NAMES) -> None:
    for first in range(0, len(names), 100):
        put_group(store, {name: content(name, number) for name in names[first : first + 100]})


def file_in(root: Path) -> Path:
    return root / "catalog" / "locations"


def known(store: Store, names: Sequence[str] = NAMES) -> int:
    """Count the names whose locations are known without a look at the catalog."""
    n = len(names)
    prefix = object_key(store.bucket(BUCKET).uuid_bytes, "")
    columns = np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint32)
    return n - find(drive_of(store).locations(), prefix, list(names), *columns).count(None)


def numbers(store: Store, names: Sequence[str] = NAMES) -> list[int | None]:
    """Read objects; return the number with which each was put last, None for one that is not there. All bytes are
    compared."""
    found: list[int | None] = []
    for name, (status, data) in zip(names, batch(store, list(names)), strict=True):
        if status == pb.NOT_FOUND:
            found.append(None)
            continue
        assert status == pb.OK, (name, status)
        number = int(data.split()[1])
        assert data == content(name, number)
        found.append(number)
    return found


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sealed")
    with store_at(root) as store:
        fill(store, 0)
    return root


@contextmanager
def reading(*roots: Path) -> Iterator[Store]:
    with Store.open(roots, mode="r") as store:
        yield store


def test_a_new_reader_knows_all_locations(sealed: Path) -> None:
    for _ in range(2):
        with reading(sealed) as store:
            assert known(store) == COUNT
            assert numbers(store) == [0] * COUNT
            assert known(store, ["other", *NAMES[:5]]) == 5


def test_a_reader_after_another_writer_shares_anew(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
    with store_at(tmp_path) as store:
        put_group(store, {name: content(name, 1) for name in NAMES[:7]})
        store.delete(BUCKET, NAMES[7])
        put(store, NAMES[8], content(NAMES[8], 1))
    due = [1] * 7 + [None, 1] + [0] * (COUNT - 9)
    for is_known in (False, True):
        with reading(tmp_path) as reader:
            assert known(reader) == is_known * (COUNT - 1)
            assert numbers(reader) == due
            assert drive_of(reader).fill.wait(DEADLINE_S)
            assert known(reader) == COUNT - 1
            assert numbers(reader) == due


def test_a_reader_beside_a_writer_learns_only_what_has_changed(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
        with reading(tmp_path) as reader:
            assert known(reader) == COUNT
            assert numbers(reader) == [0] * COUNT
            for number in range(1, 5):
                put_group(store, {name: content(name, number) for name in NAMES[:50]})
                put(store, NAMES[50], content(NAMES[50], number))
                store.delete(BUCKET, NAMES[50 + number])
                assert known(reader) == COUNT - number
                gone = range(51, 51 + number)
                due = [number if at <= 50 else None if at in gone else 0 for at in range(COUNT)]
                assert numbers(reader) == due
            fill(store, 9, [f"more-{at}" for at in range(3 * COUNT)])  # it moves to a larger file
            assert known(reader, [f"more-{at}" for at in range(3 * COUNT)]) == 3 * COUNT
            assert numbers(reader, ["more-0", NAMES[0]]) == [9, 4]


def test_a_commit_that_fails_ends_the_sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
        with reading(tmp_path) as reader:
            assert known(reader) == COUNT
            with monkeypatch.context() as patch, pytest.raises(DriveFailed):
                catalog = drive_of(store).catalog
                apply = catalog._apply

                def fail(batch: WriteBatch, *, sync: bool, is_commit: bool) -> None:
                    if drive_of(store)._cache._changing:  # not what is only tidied up
                        raise DriveFailed("nobody knows what the log has")
                    apply(batch, sync=sync, is_commit=is_commit)

                patch.setattr(catalog, "_apply", fail)
                put(store, NAMES[0], content(NAMES[0], 1))
            assert known(reader) == 0
            assert numbers(reader) == [0] * COUNT
            put(store, NAMES[1], content(NAMES[1], 1))
        with reading(tmp_path) as reader:
            assert numbers(reader) == [0, 1] + [0] * (COUNT - 2)


def test_a_reader_that_has_scanned_shares_what_it_found(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
    file_in(tmp_path).unlink()
    with reading(tmp_path) as reader:
        assert known(reader) == 0
        assert numbers(reader) == [0] * COUNT
        assert drive_of(reader).fill.wait(DEADLINE_S)
        assert known(reader) == COUNT
        assert numbers(reader) == [0] * COUNT
    with reading(tmp_path) as reader:
        assert known(reader) == COUNT
        assert numbers(reader) == [0] * COUNT


# -- files that must not be believed


def rewrite(path: Path, data: bytes | bytearray) -> None:
    """Change a file where it is: processes have mapped it."""
    with path.open("r+b") as opened:
        opened.write(data)


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 20, 2_000))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    rewrite(path, data)


def flip_where_it_is_used(path: Path, draw: random.Random) -> None:
    """Bytes that are not zero are those of the head, of rows, of the index, of keys and paths."""
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    used = np.flatnonzero(data)
    used = used[used >= (32 if draw.random() < 0.7 else 0)]
    for at in draw.choices(used.tolist(), k=draw.choice((1, 50, 5_000))):
        data[at] ^= 1 << draw.randrange(8)
    rewrite(path, data.tobytes())


def shuffle_words(path: Path, draw: random.Random) -> None:
    """Rows, index and positions that are sound, but elsewhere."""
    data = np.frombuffer(path.read_bytes(), "<u4").copy()
    for _ in range(500):
        one, other = draw.randrange(1024, len(data) - 8), draw.randrange(1024, len(data) - 8)
        size = draw.choice((1, 8))
        kept = data[one : one + size].copy()
        data[one : one + size] = data[other : other + size]
        data[other : other + size] = kept
    rewrite(path, data.tobytes())


def cut(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.choice((0, 1, 31, 32, 4096, draw.randrange(path.stat().st_size))))


def enlarge(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.choice((path.stat().st_size + 1, path.stat().st_size * 2, 1 << 40)))


def make_huge(path: Path, draw: random.Random) -> None:
    """A head that promises 200 million rows, and a file of that size."""
    rows, keys = 3 << 26, 1 << 31
    with path.open("r+b") as opened:
        opened.seek(40)
        opened.write(struct.pack("=2Q", rows, keys))
    os.truncate(path, 4096 + rows * 36 + rows // 3 * 16 + keys)


def overwrite(path: Path, draw: random.Random) -> None:
    rewrite(path, draw.randbytes(path.stat().st_size))


DAMAGE = [flip, flip_where_it_is_used, shuffle_words, cut, enlarge, make_huge, overwrite]
Damage = Callable[[Path, random.Random], None]


@table("damage", DAMAGE)
def test_damage_never_gives_a_wrong_byte(sealed: Path, tmp_path: Path, damage: Damage) -> None:
    kept = tmp_path / "kept"
    shutil.copyfile(file_in(sealed), kept)
    for seed in range(3):
        draw = random.Random(seed)
        damage(file_in(sealed), draw)
        with reading(sealed) as store:
            assert numbers(store, NAMES[:300]) == [0] * 300
        file_in(sealed).write_bytes(kept.read_bytes())  # the same inode


@table("damage", [flip, flip_where_it_is_used, shuffle_words, cut, overwrite])
def test_damage_to_the_table_of_a_running_writer(tmp_path: Path, damage: Damage) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
        with reading(tmp_path) as reader:
            assert known(reader) == COUNT
            damage(file_in(tmp_path), random.Random(5))
            for number in (1, 2):
                names = random.Random(number).sample(NAMES, 300)
                put_group(store, {name: content(name, number) for name in names})
                assert set(numbers(store, names)) == set(numbers(reader, names)) == {number}
                for of in (store, reader):
                    assert not {*numbers(of)} - {0, 1, 2}
    with reading(tmp_path) as reader:
        assert set(numbers(reader, names)) == {2}


def test_the_table_of_another_place_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, copy = tmp_path / "one", tmp_path / "other", tmp_path / "copy"
    with store_at(one) as store, store_at(other) as second:
        fill(store, 0)
        fill(second, 1)
    shutil.copytree(one, copy, symlinks=True)
    with reading(copy) as store:
        assert known(store) == 0
        assert numbers(store) == [0] * COUNT
    with monkeypatch.context() as patch:
        patch.setattr(shared_locations, "host_id", lambda: "the same machine after its next start")
        with reading(one) as store:
            assert known(store) == 0
    os.replace(file_in(other), file_in(one))
    with reading(one) as store:
        assert known(store) == 0
        assert numbers(store) == [0] * COUNT


def test_an_older_table_is_ignored(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
    os.link(file_in(tmp_path), tmp_path / "older")
    file_in(tmp_path).unlink()
    with store_at(tmp_path) as store:
        fill(store, 1)
    os.replace(tmp_path / "older", file_in(tmp_path))
    with reading(tmp_path) as store:
        assert known(store) == 0
        assert numbers(store) == [1] * COUNT


@table("how", ["mode", "link"])
def test_a_file_that_others_can_change_is_ignored(tmp_path: Path, how: str) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
    if how == "mode":
        file_in(tmp_path).chmod(0o620)
    else:
        os.rename(file_in(tmp_path), tmp_path / "elsewhere")
        file_in(tmp_path).symlink_to(tmp_path / "elsewhere")
    with reading(tmp_path) as store:
        assert known(store) == 0


def test_several_drives_share_their_tables_while_nothing_moves(tmp_path: Path) -> None:
    roots = [tmp_path / f"{at}" for at in range(3)]
    names = [f"{at}" for at in range(6_000)]
    with store_at(*roots) as store:
        fill(store, 0, names)
    with reading(*roots) as reader:
        assert sum(file_in(root).exists() for root in roots) == 3
        n = len(names)
        columns = np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint32)
        tables: list[Locations] = [table for drive in reader.drives if drive for table in drive.locations()]
        prefix = object_key(reader.bucket(BUCKET).uuid_bytes, "")
        assert None not in find(tuple(tables), prefix, names, *columns)
        assert numbers(reader, names) == [0] * n


# -- other processes


def _write(root: str, first: int, pipe: Connection) -> None:
    """Overwrite, delete and put groups, and say after each which number all objects of the group have at least."""
    with Store.open([Path(root)], compact_bytes_per_s=1 << 30) as store:
        draw, number = random.Random(first), first
        while not pipe.poll():
            names = draw.sample(NAMES, 60)
            put_group(store, {name: content(name, number) for name in names})
            pipe.send((number, names))
            put(store, alone := draw.choice(NAMES), content(alone, number + 1))
            pipe.send((number + 1, [alone]))
            number += 2
            if number % 40 == 1:
                drive_of(store).reap(everything=True)


def _read(root: str, seed: int, pipe: Connection) -> None:
    """Read and verify groups; answer with the numbers of those that are asked for."""
    with Store.open([Path(root)], mode="r") as store:
        draw = random.Random(seed)
        while True:
            while not pipe.poll():
                numbers(store, draw.sample(NAMES, 128))
            if (names := pipe.recv()) is None:
                return
            pipe.send(numbers(store, names))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readers_beside_a_writer_that_compacts_and_is_killed(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        fill(store, 0)
    spawn = multiprocessing.get_context("spawn")
    newest = dict.fromkeys(NAMES, 0)
    ends = [spawn.Pipe() for _ in range(8)]
    readers = [spawn.Process(target=_read, args=(str(tmp_path), at, there)) for at, (_, there) in enumerate(ends)]
    for reader in readers:
        reader.start()
    try:
        for life in range(4):
            here, there = spawn.Pipe()
            writer = spawn.Process(target=_write, args=(str(tmp_path), 1 + 100_000 * life, there))
            writer.start()
            there.close()
            until_s = time.monotonic() + 5
            with pytest.raises(EOFError):
                while True:
                    assert here.poll(DEADLINE_S)
                    number, names = here.recv()
                    newest.update(dict.fromkeys(names, number))
                    if time.monotonic() > until_s and writer.is_alive():
                        os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join(DEADLINE_S)
            asked_s = time.monotonic()
            while time.monotonic() < asked_s + 1.2:  # by then, each reader has caught up
                time.sleep(0.1)
            for pipe, _ in ends:
                pipe.send(NAMES)
                assert pipe.poll(DEADLINE_S)
                for name, found in zip(NAMES, pipe.recv(), strict=True):
                    # What was being written when the writer was killed may be there or not.
                    assert found is not None and found >= newest[name]
    finally:
        for (pipe, _), reader in zip(ends, readers, strict=True):
            pipe.send(None)
            reader.join(DEADLINE_S)
    assert [reader.exitcode for reader in readers] == [0] * 8
    with store_at(tmp_path) as store:
        found = numbers(store)
        assert not {None} & {*found}
