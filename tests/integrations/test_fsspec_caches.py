"""fsspec's own caches over `ais://`, and how many requests libraries that open URLs cost a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.parquet
import pytest
from fsspec.implementations.cached import CachingFileSystem

from ais_loader import connect
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.objects.pinned import WHOLE_BYTES
from ais_loader.testing import NodeProcess, eventually, seeded_bytes, throwaway_folder
from tests.table import table

# fsspec's MMapCache leaves the file open that it has mapped, until it is collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DATA = seeded_bytes(3_000_001, seed=5)
SMALL = DATA[:10_000]
BLOCK_BYTES = 1 << 18


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "drive") as node:
                yield node.url


@pytest.fixture
def files(store: str) -> Iterator[AISFileSystem]:
    AISFileSystem.clear_instance_cache()
    files = fsspec.filesystem("ais", store=store)
    if files.exists("b"):
        files.rm("b", recursive=True)
    files.mkdir("b")
    files.pipe({"b/large": DATA, "b/small": SMALL, "b/empty": b"", "b/d/first": DATA[:WHOLE_BYTES]})
    yield files
    files._client.close()


def cached(kind: str, store: str, folder: Path, **options: Any) -> Any:
    return fsspec.filesystem(
        kind, target_protocol="ais", target_options={"store": store}, cache_storage=str(folder), **options
    )


@pytest.mark.parametrize("kind", ["blockcache", "filecache", "simplecache"])
def test_a_cache_of_fsspec_has_the_bytes(files: AISFileSystem, store: str, tmp_path: Path, kind: str) -> None:
    for _ in range(2):  # the second time from the cache's folder
        CachingFileSystem.clear_instance_cache()
        through = cached(kind, store, tmp_path)
        for name, data in (("large", DATA), ("small", SMALL), ("empty", b""), ("d/first", DATA[:WHOLE_BYTES])):
            if kind == "blockcache" and not data:
                continue  # fsspec maps the file that it caches, which cannot be empty
            with through.open(f"b/{name}", "rb") as file:
                assert file.read() == data
        with through.open("b/large", "rb") as file:
            file.seek(-70_000, 2)
            assert file.read(69_000) == DATA[-70_000:-1_000]
            file.seek(WHOLE_BYTES - 5)
            assert file.read(10) == DATA[WHOLE_BYTES - 5 : WHOLE_BYTES + 5]
        with pytest.raises(FileNotFoundError):
            through.open("b/nothing", "rb")
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["blockcache", "filecache", "simplecache"])
def test_a_cache_is_named_in_the_url(files: AISFileSystem, store: str, tmp_path: Path, kind: str) -> None:
    options = {"ais": {"store": store}, kind: {"cache_storage": str(tmp_path)}}
    with fsspec.open(f"{kind}::ais://b/large", "rb", **options) as file:
        assert file.read(10) == DATA[:10]
        file.seek(1_000_000)
        assert file.read() == DATA[1_000_000:]


def test_a_block_cache_keeps_only_the_blocks_that_were_read(files: AISFileSystem, store: str, tmp_path: Path) -> None:
    through = cached("blockcache", store, tmp_path)
    with through.open("b/large", "rb", block_size=BLOCK_BYTES) as file:
        file.seek(2 * BLOCK_BYTES + 100)
        assert file.read(1000) == DATA[2 * BLOCK_BYTES + 100 :][:1000]
        assert file.blocksize == BLOCK_BYTES
        assert file.cache.blocks == {2}
    with through.open("b/large", "rb", block_size=BLOCK_BYTES) as file:
        assert file.cache.blocks == {2}
        assert file.read() == DATA
    assert isinstance(through._check_file("b/large")[0]["blocks"], bool)


def test_a_cache_of_files_that_compares_versions_reads_an_overwritten_object_anew(
    files: AISFileSystem, store: str, tmp_path: Path
) -> None:
    through = cached("filecache", store, tmp_path, check_files=True)
    for data in (DATA, DATA[::-1]):  # fsspec's blockcache keeps blocks of the old version, whatever it compares
        files.pipe_file("b/large", data)
        through.fs.invalidate_cache()
        with through.open("b/large", "rb") as file:
            assert file.read() == data


@table("cache_type", ["none", "readahead", "bytes", "mmap", "blockcache", "first", "background", "all"])
@table("name", ["large", "small"])
def test_a_file_takes_any_cache_of_fsspec(files: AISFileSystem, cache_type: str, name: str) -> None:
    data = DATA if name == "large" else SMALL
    with files.open(f"b/{name}", "rb", cache_type=cache_type, block_size=BLOCK_BYTES) as file:
        assert (file.size, file.blocksize, file.info()["size"]) == (len(data), BLOCK_BYTES, len(data))
        for at in (0, 5_000, len(data) - 700, 300):
            file.seek(at)
            assert file.read(900) == data[at : at + 900]
        file.seek(0)
        assert file.read() == data
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_blocks_are_of_the_version_that_was_opened(files: AISFileSystem) -> None:
    with files.open("b/large", "rb", cache_type="none") as file:
        files.pipe_file("b/large", DATA[::-1])
        assert file._fetch_range(0, 0) == b""
        with pytest.raises(FileNotFoundError, match="version"):
            file._fetch_range(1_000_000, 1_000_010)


def test_pyarrow_opens_files_and_says_what_is_not_there(files: AISFileSystem) -> None:
    import pyarrow.fs

    through = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))
    for opening in (through.open_input_stream, through.open_input_file):
        with opening("b/small") as file:
            assert file.read() == SMALL
        for missing in ("b/nothing", "b/d", "nowhere/x"):
            with pytest.raises(FileNotFoundError):
                opening(missing)
    assert files.isfile("b/small") and not files.isfile("b/d") and not files.isfile("b/nothing")


@pytest.fixture(scope="module")
def counted() -> Iterator[NodeProcess]:
    with throwaway_folder() as folder, NodeProcess(folder / "drive", metrics=True) as node:
        yield node


def test_a_file_costs_one_request_and_another_if_pyarrow_asks_whether_it_is_one(counted: NodeProcess) -> None:
    import pyarrow.fs

    AISFileSystem.clear_instance_cache()
    files = fsspec.filesystem("ais", store=counted.url)
    names = [f"b/{at:02d}" for at in reversed(range(20))]  # in no order in which they are fetched together
    files.mkdir("b")
    files.pipe(dict.fromkeys(names, SMALL))
    through = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))

    def requests(*kinds: str) -> float:
        return sum(value for name, value in counted.numbers().items() if name.startswith(kinds))

    def require(read: Any, due: int) -> None:
        calls = ("ais_loader_batches_total", "ais_loader_requests_total")
        before = requests(*calls)
        for name in names:
            assert read(name) == SMALL
        eventually(lambda: requests(*calls) - before == due * len(names))

    def by_pyarrow(name: str) -> bytes:
        with through.open_input_stream(name) as file:
            return bytes(file.readall())

    def by_url(name: str) -> bytes:
        with fsspec.open(f"ais://{name}", store=counted.url) as file:
            return bytes(file.read())

    require(by_pyarrow, 2)
    require(by_url, 1)
    require(lambda name: files.open(name).read(), 1)
    require(files.cat_file, 1)
    files._client.close()


def test_parquet_by_pandas_and_by_known_parts(files: AISFileSystem, store: str, tmp_path: Path) -> None:
    import pandas as pd
    import pyarrow.parquet as pq

    table = pd.DataFrame({"a": range(50_000), "b": [f"{at:08d}" for at in range(50_000)]})
    with files.open("b/t.parquet", "wb") as file:
        table.to_parquet(file)
    url, options = "ais://b/t.parquet", {"store": store}
    pd.testing.assert_frame_equal(pd.read_parquet(url, storage_options=options), table)
    pd.testing.assert_frame_equal(pd.read_parquet(url, columns=["a"], storage_options=options), table[["a"]])
    with fsspec.parquet.open_parquet_file(url, columns=["a"], storage_options=options, engine="pyarrow") as file:
        assert pq.read_table(file, columns=["a"]).column("a").to_pylist() == list(range(50_000))
    with connect(store, mode="r") as client, client.open(url) as file:
        assert pq.read_table(file).num_rows == 50_000
