"""Small files that are opened in order arrive together: the bytes, the properties, and when writes are seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from ais_loader import Bucket, connect
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.objects.pinned import WHOLE_BYTES
from ais_loader.testing import NodeProcess, eventually, seeded_bytes, throwaway_folder
from integrations.fsspec.files_ahead import FIRST_FILES, FIRST_RUN

COUNT = 300
DATA = seeded_bytes(WHOLE_BYTES + COUNT)
NAMES = [f"{at // 50}/{at:05d}" for at in range(COUNT)]
SIZES = [10_000, 1, 0, 70_000, WHOLE_BYTES, WHOLE_BYTES + 1, 5]
CONTENT = {name: DATA[at : at + SIZES[at % len(SIZES)]] for at, name in enumerate(NAMES)}
WARM = NAMES[: FIRST_RUN + 2]
"""Opens after which the next file is here."""
NEXT = NAMES[FIRST_RUN + 3]
assert FIRST_FILES >= 4


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with throwaway_folder() as folder, NodeProcess(folder, metrics=True) as node:
        yield node


@pytest.fixture
def bucket(node: NodeProcess) -> Iterator[Bucket]:
    """The bucket of another client, whose writes the file system cannot see."""
    with connect(node.url) as client:
        bucket = client.create_bucket("b", exist_ok=True)
        bucket.delete_prefix("", everything=True)
        bucket.put_many(CONTENT.items())
        bucket.set_metadata(NAMES[40], {"language": "fr"})
        yield bucket


@pytest.fixture
def files(node: NodeProcess, bucket: Bucket) -> Iterator[AISFileSystem]:
    AISFileSystem.clear_instance_cache()
    files = fsspec.filesystem("ais", store=node.url)
    yield files
    files._client.close()


def read(files: AISFileSystem, name: str) -> bytes:
    with files.open(f"b/{name}") as file:
        return bytes(file.read())


def requests(node: NodeProcess) -> float:
    kinds = ("ais_loader_batches_total", "ais_loader_requests_total")
    return sum(value for name, value in node.numbers().items() if name.startswith(kinds))


def warmed(files: AISFileSystem) -> AISFileSystem:
    for name in WARM:
        assert read(files, name) == CONTENT[name]
    return files


def test_files_in_order_have_their_bytes_and_properties(files: AISFileSystem, bucket: Bucket) -> None:
    for name in NAMES:
        with files.open(f"b/{name}") as file:
            assert file.info == bucket.head(name)
            assert (file.read(3), file.read()) == (CONTENT[name][:3], CONTENT[name][3:])
            file.seek(0)
            assert file.read() == CONTENT[name]


@pytest.fixture
def kept_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched ahead does not become too old, on however slow a machine."""
    monkeypatch.setattr("integrations.fsspec.files_ahead.MAX_AGE_S", 3600.0)


@pytest.mark.usefixtures("kept_long")
def test_files_in_order_take_few_requests(node: NodeProcess, files: AISFileSystem) -> None:
    import pyarrow.fs

    through = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))
    small = [name for name in NAMES if 0 < len(CONTENT[name]) <= WHOLE_BYTES]
    others = [name for name in NAMES if name not in small]
    before = requests(node)
    for name in NAMES:
        with through.open_input_stream(f"b/{name}") as file:
            assert file.readall() == CONTENT[name]
    assert requests(node) - before <= len(small) / 4 + 3 * len(others)


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("order", ["shuffled", "backwards", "every third", "again and again"])
def test_any_other_order_takes_a_request_for_each_and_few_more(
    node: NodeProcess, bucket: Bucket, files: AISFileSystem, order: str
) -> None:
    names = {
        "shuffled": random.Random(3).sample(NAMES, COUNT),
        "backwards": NAMES[::-1],
        "every third": NAMES[::3],
        "again and again": [NAMES[0]] * 50,
    }[order]
    bucket.put_many((name, DATA[:1000]) for name in NAMES)
    before = requests(node)
    for name in names:
        assert read(files, name) == DATA[:1000]
    assert requests(node) - before <= 1.2 * len(names)


@pytest.mark.parametrize("through", ["the same", "another"])
def test_what_this_process_writes_through_ais_is_seen_at_once(files: AISFileSystem, through: str) -> None:
    writer = files if through == "the same" else AISFileSystem(files._url, skip_instance_cache=True)
    for data in (b"one", b"another"):
        warmed(files)
        writer.pipe_file(f"b/{NEXT}", data)
        assert (read(files, NEXT), files.info(f"b/{NEXT}")["size"]) == (data, len(data))
    warmed(files)
    writer.rm_file(f"b/{NEXT}")
    assert not files.exists(f"b/{NEXT}")
    with pytest.raises(FileNotFoundError):
        files.open(f"b/{NEXT}")


def test_what_others_write_is_seen_after_a_second_or_on_demand(files: AISFileSystem, bucket: Bucket) -> None:
    warmed(files)
    bucket.put(NEXT, b"one")
    files.invalidate_cache()
    assert read(files, NEXT) == b"one"
    warmed(files)
    bucket.put(NEXT, b"another")
    path = f"b/{NEXT}"
    eventually(lambda: files.info(path)["size"] == 7)
    assert read(files, NEXT) == b"another"
    bucket.delete(NEXT)
    eventually(lambda: not files.exists(path))


def test_a_file_that_appears_between_two_others_is_found(files: AISFileSystem, bucket: Bucket) -> None:
    warmed(files)
    between = f"{WARM[-1]}a"
    bucket.put(between, b"between")
    assert read(files, between) == b"between"
    assert read(files, NEXT) == CONTENT[NEXT]


def test_each_thread_has_its_own_order(files: AISFileSystem) -> None:
    def part(first: int) -> list[bytes]:
        return [read(files, name) for name in NAMES[first : first + 75]]

    with ThreadPoolExecutor(4) as threads:
        found = [data for some in threads.map(part, range(0, COUNT, 75)) for data in some]
    assert found == list(CONTENT.values())


@pytest.mark.slow
def test_a_node_that_restarts_between_two_files_loses_none(node: NodeProcess, files: AISFileSystem) -> None:
    warmed(files)
    node.restart()
    assert [read(files, name) for name in NAMES[len(WARM) :]] == list(CONTENT.values())[len(WARM) :]
