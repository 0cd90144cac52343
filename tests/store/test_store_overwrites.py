"""Objects that change while they are read: old bytes or new bytes, whole, and never CORRUPT."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import ObjectNotFound
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, assert_sound, drive_of, put, read, store_at

SIZES = {"small": 300, "block": BLOCK_BYTES, "large": 5 * BLOCK_BYTES + 17}
SECONDS = 1.5

READER = """
import sys, threading
from storage_node.store.store import Store
from tests.store.test_store_overwrites import look, look_until
with Store.open([sys.argv[1]], mode="r") as store:
    print("ready", flush=True)
    sys.stdin.readline()
    seen = dict[str, int]()
    print(look(store, seen), flush=True)
    end = threading.Thread(target=sys.stdin.read, daemon=True)
    end.start()
    look_until(store, lambda: not end.is_alive(), seen)
"""


def state(number: int, size: int) -> bytes:
    """The bytes of one state: any mix of two states differs from every state."""
    return number.to_bytes(4, "big") * (size // 4) + bytes(size % 4)


def check_state(data: bytes, size: int) -> int:
    number = int.from_bytes(data[:4], "big")
    assert data == state(number, size), f"a mix of states, or not one of them: {data[:16]!r}"
    return number


def look(store: Store, seen: dict[str, int]) -> int:
    """Read everything in every way; each name must only ever move forward."""
    wanted = [*SIZES, *SIZES]
    answers = batch(store, wanted)
    for name, (status, data) in zip(wanted, answers, strict=True):
        assert status == pb.OK, f"{name}: status {status}"
        number = check_state(data, SIZES[name])
        assert number >= seen.get(name, 0)
        seen[name] = number
    for name, size in SIZES.items():
        number = check_state(read(store, name, verify=True), size)
        assert number >= seen[name]
        seen[name] = number
        start = size // 3 // 4 * 4
        part = read(store, name, start=start, length=200, verify=True)
        assert part == part[:4] * 50
    return len(answers) + 2 * len(SIZES)


def look_until(store: Store, is_over: Callable[[], bool], seen: dict[str, int]) -> int:
    looks = 0
    while not is_over():
        looks += look(store, seen)
    return looks


def overwrite(store: Store, stop: threading.Event, pause: Callable[[], None], written: list[int]) -> None:
    number = 1
    while not stop.is_set():
        number += 1
        if number % 3:
            for name, size in SIZES.items():
                put(store, name, state(number, size))
        else:
            uploads = [store.stage(BUCKET, name, [state(number, size)], {}) for name, size in SIZES.items()]
            assert not any(isinstance(result, Exception) for result in store.commit_many(uploads))
        pause()
        written.append(number)


@pytest.mark.slow
@pytest.mark.parametrize("grace", [pytest.param("usual grace", marks=pytest.mark.slow), "no grace"])
def test_threads_and_processes_read_whole_states_while_objects_are_replaced(tmp_path: Path, grace: str) -> None:
    """Without grace, nearly every look-up meets a file that is gone by the time that it is opened."""
    with store_at(tmp_path / "drive") as store:
        for name, size in SIZES.items():
            put(store, name, state(1, size))
        drive = drive_of(store)
        stop, failures, looks = threading.Event(), [], []

        def pause() -> None:
            if grace == "no grace":
                drive.reap(everything=True)

        def look_here(target: Store) -> None:
            try:
                looks.append(look_until(target, stop.is_set, {}))
            except BaseException as error:
                failures.append(error)
                raise

        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, str(tmp_path / "drive")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        with Store.open([tmp_path / "drive"], mode="r") as beside:
            threads = [threading.Thread(target=look_here, args=(target,)) for target in (store, store, beside)]
            written: list[int] = []
            writer = threading.Thread(target=overwrite, args=(store, stop, pause, written))
            for thread in (writer, *threads):
                thread.start()
            for reader in readers:
                assert reader.stdin is not None
                reader.stdin.write("\n")
                reader.stdin.flush()
            began_s = time.monotonic()
            try:
                for reader in readers:  # each has looked while the writer goes on
                    assert reader.stdout is not None and int(reader.stdout.readline()) > 0
                eventually(lambda: failures or (len(written) > 5 and time.monotonic() - began_s > SECONDS))
            finally:
                stop.set()
                for reader in readers:
                    reader.communicate(timeout=180)
                for thread in (writer, *threads):
                    thread.join(timeout=180)
        assert not failures
        assert [reader.returncode for reader in readers] == [0, 0]
        assert len(looks) == 3
    assert_sound(tmp_path / "drive")


def test_writers_of_one_name_in_many_threads_end_with_the_highest_version(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        committed: list[tuple[object, bytes]] = []

        def write(thread: int) -> None:
            for number in range(60):
                data = b"%d.%d" % (thread, number)
                if number % 4:
                    committed.append((put(store, "same", data).version, data))
                else:
                    uploads = [store.stage(BUCKET, "same", [data], {}) for _ in range(3)]
                    results = store.commit_many(uploads)
                    committed.extend((result.version, data) for result in results)  # type: ignore[union-attr]

        threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=180)
        versions = [version for version, _ in committed]
        assert len(set(versions)) == len(versions) == 6 * (45 + 45)
        newest, data = max(committed, key=lambda pair: pair[0])  # type: ignore[arg-type, return-value]
        assert store.head(BUCKET, "same").version == newest
        assert read(store, "same") == data
    assert_sound(tmp_path / "drive")


@pytest.mark.slow
def test_threads_that_put_and_delete_one_name_leave_one_state(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:

        def churn(seed: int) -> None:
            for number in range(80):
                if (number + seed) % 3:
                    put(store, f"{number % 2}", os.urandom(10))
                else:
                    with contextlib.suppress(ObjectNotFound):
                        store.delete(BUCKET, f"{number % 2}")

        threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=180)
        for name, record in store.objects(BUCKET):
            assert len(read(store, name)) == record.size_bytes == 10
    assert_sound(tmp_path / "drive")
