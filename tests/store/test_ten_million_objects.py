"""Store of ten million objects: it opens at once, finds them, keeps to its memory, and lists them in order."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.kit.many_objects import make_store
from storage_node.store.drive.locations import limit_bytes
from storage_node.store.drive.rocksdb_options import block_cache_bytes
from storage_node.store.machine_memory import machine_memory_bytes

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = 10_000_000
READ = 1_000_000
"""Objects that are read, of all parts of the catalog."""
DRIVE_BYTES, MEMORY_BYTES = 4 << 30, 4 << 30
"""Space that the store takes at most while it is made, and memory that the test takes."""
OPENED_S = 5.0
"""Of processor time: others may have most of the machine."""
LOCATED_BYTES = 90
"""Maximum memory for each object that was read: its location, its key, and room for growth."""
OTHER_BYTES = 256 << 20
"""Catalog entries that are cached, indexes and filters of tables, and buffers."""

READER = """
import json, random, resource, sys, time
from pathlib import Path
from ais_loader import Entry, connect
from benchmarks.kit.many_objects import BUCKET, content_of, name_of

folder, objects, read = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
page_bytes = resource.getpagesize()


def resident_bytes():
    # Without pages of files, as segments are mapped.
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * page_bytes


def read_all(numbers):
    for first in range(0, len(numbers), 2000):
        part = numbers[first : first + 2000]
        for number, item in zip(part, client.get_batch([Entry(BUCKET, name_of(number)) for number in part])):
            assert item.ok, number
            if number % 64 == 0:
                assert bytes(item.data) == content_of(number, objects), number


before = resident_bytes()
began_s = time.process_time()
client = connect(folder, mode="r")
bucket = client.bucket(BUCKET)
ends = [0, 1, objects // 2, objects - 2, objects - 1]
for number in ends:
    assert bucket.get(name_of(number)) == content_of(number, objects)
opened_s = time.process_time() - began_s
numbers = random.Random(3).sample(range(objects), read)
read_all(numbers)
first = resident_bytes()
read_all(numbers)
again = resident_bytes()
assert not bucket.exists(name_of(objects))
with open(sys.argv[4], "w") as file:
    json.dump({"opened_s": opened_s, "grown": first - before, "grown_again": again - first}, file)
"""

LISTER = """
import itertools, sys
from ais_loader import connect
from benchmarks.kit.many_objects import BUCKET, name_of

folder, objects = sys.argv[1], int(sys.argv[2])
bucket = connect(folder, mode="r").bucket(BUCKET)
names = lambda **options: [info.name for info in itertools.islice(bucket.objects(**options), 1000)]
assert names() == [name_of(number) for number in range(1000)]
assert names(start_after=name_of(objects - 501)) == [name_of(number) for number in range(objects - 500, objects)]
assert names(start_after=name_of(objects - 1)) == []
prefix = name_of(objects - 1)[:5]
assert names(prefix=prefix) == [name_of(number) for number in range(objects - 1000, objects)]
table = bucket.entries()
assert len(table) == objects
assert all(table[number].name == name_of(number) for number in range(0, objects, 997))
assert table[objects - 1].name == name_of(objects - 1)
"""


def run(program: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("many")
    free_bytes, memory_bytes = shutil.disk_usage(folder).free, machine_memory_bytes()
    if free_bytes < DRIVE_BYTES or memory_bytes < MEMORY_BYTES:
        pytest.skip(
            f"{free_bytes >> 20:,} MiB are free in {folder}, and this process may use {memory_bytes >> 20:,} MiB of "
            f"memory: {DRIVE_BYTES >> 20:,} and {MEMORY_BYTES >> 20:,} are needed"
        )
    make_store(folder / "store", OBJECTS)
    yield folder / "store"
    shutil.rmtree(folder)


@pytest.mark.exhaustive
def test_objects_are_found_and_memory_stays_within_its_bounds(store: Path, tmp_path: Path) -> None:
    """In a process that has just started. What is read once more takes no more memory."""
    run(READER, store, OBJECTS, READ, tmp_path / "found")
    found = json.loads((tmp_path / "found").read_text())
    print(f"{OBJECTS:,} objects: opened in {found['opened_s']:.2f} s; {READ:,} read: {found['grown'] >> 20} MiB more")
    assert found["opened_s"] < OPENED_S
    assert found["grown"] < block_cache_bytes() + min(READ * LOCATED_BYTES, limit_bytes()) + OTHER_BYTES
    assert found["grown_again"] < 32 << 20


@pytest.mark.exhaustive
def test_the_ends_of_listings_are_right(store: Path) -> None:
    run(LISTER, store, OBJECTS)
