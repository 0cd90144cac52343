"""`ais://` under fsspec and the libraries that open URLs through it, over an embedded store and over gRPC."""

from __future__ import annotations

import _thread
import contextlib
import errno
import gc
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest

from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import NodeProcess, eventually, seeded_bytes, throwaway_folder
from tests.table import table

FILES = {
    "a": b"one",
    "a/b": b"two",
    "a/c/d": seeded_bytes(100_000, seed=1),
    "a/c/e f#?%20": b"literal",
    "z.bin": seeded_bytes(3_000_000, seed=2),
}


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "drive") as node:
                yield node.url


@pytest.fixture
def files(url: str) -> Iterator[AISFileSystem]:
    AISFileSystem.clear_instance_cache()
    files = fsspec.filesystem("ais", store=url)
    if files.exists("b"):
        files.rm("b", recursive=True)
    files.mkdir("b")
    files.pipe({f"b/{name}": data for name, data in FILES.items()})
    yield files
    files._client.close()


def test_it_is_found_by_its_scheme_once_installed(files: AISFileSystem, url: str) -> None:
    assert isinstance(files, AISFileSystem)
    with fsspec.open("ais://b/a/b", store=url) as file:
        assert file.read() == b"two"


def test_the_environment_says_which_store_it_is(
    files: AISFileSystem, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", url)
    files._client.close()
    AISFileSystem.clear_instance_cache()
    other = fsspec.filesystem("ais")
    assert other.cat_file("ais://b/a") == b"one"
    other._client.close()


def test_names_with_common_beginnings_are_listed_as_folders(files: AISFileSystem) -> None:
    assert files.ls("ais://b", detail=False) == ["b/a", "b/a", "b/z.bin"]  # an object, and a folder of the same name
    assert [row["type"] for row in files.ls("b")] == ["file", "directory", "file"]
    assert files.ls("b/a", detail=False) == ["b/a/b", "b/a/c"]
    assert files.ls("b/a/c/", detail=False) == ["b/a/c/d", "b/a/c/e f#?%20"]
    assert files.ls("b/z.bin")[0]["size"] == 3_000_000
    assert "b" in files.ls("", detail=False)
    assert files.find("b") == [f"b/{name}" for name in sorted(FILES)]
    assert files.glob("ais://b/a/*/d") == ["b/a/c/d"]
    assert files.du("b") == sum(map(len, FILES.values()))


@pytest.mark.every_transport
def test_what_is_not_there_is_a_file_that_is_not_found(files: AISFileSystem) -> None:
    for call in (
        lambda: files.info("b/nothing"),
        lambda: files.ls("b/nothing"),
        lambda: files.ls("nobucket"),
        lambda: files.info("nobucket/x"),
        lambda: files.open("b/nothing"),
        lambda: files.cat_file("b/nothing"),
        lambda: files.rm_file("b/nothing"),
        lambda: files.pipe_file("nobucket/x", b""),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert not files.exists("b/nothing")
    assert files.exists("b/a/c") and files.isdir("b/a/c") and files.isfile("b/a/c/d")
    with pytest.raises(IsADirectoryError):
        files.open("b")


def test_many_files_come_with_one_call_and_failures_in_their_place(files: AISFileSystem) -> None:
    assert files.cat(["b/a", "b/z.bin"]) == {"b/a": b"one", "b/z.bin": FILES["z.bin"]}
    assert files.cat("b/a/c", recursive=True) == {f"b/{name}": FILES[name] for name in ("a/c/d", "a/c/e f#?%20")}
    found = files.cat_ranges(["b/a", "b/nothing", "b/z.bin"], [0, 0, 5], [2, 2, 10])
    assert found[0] == b"on" and isinstance(found[1], FileNotFoundError) and found[2] == FILES["z.bin"][5:10]
    found = files.cat_ranges(["b/nothing", "b/a", "b/nothing"], [-2, -2, 1], [None, None, -1])
    assert found[1] == b"ne" and isinstance(found[0], FileNotFoundError) and isinstance(found[2], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        files.tail("b/nothing", 2)


def test_a_transaction_stores_all_files_but_those_that_an_exception_has_left(files: AISFileSystem) -> None:
    with files.transaction:
        files.open("b/t1", "wb").close()
        with contextlib.suppress(RuntimeError), files.open("b/a", "wb") as file:
            file.write(b"half of it")
            raise RuntimeError
        files.open("b/t2", "wb").close()
    assert [files.cat_file(f"b/{name}") for name in ("t1", "a", "t2")] == [b"", b"one", b""]
    files.rm(["b/t1", "b/t2"])


@table(("start", "end"), [(None, None), (1, 2), (0, 100), (2, None), (-2, None), (None, -1), (100, 200), (2, 1)])
def test_ranges_are_those_of_slices(files: AISFileSystem, start: int | None, end: int | None) -> None:
    assert files.cat_file("b/a", start=start, end=end) == b"one"[start:end]


def test_a_file_is_written_whole_when_it_is_closed_or_not_at_all(files: AISFileSystem) -> None:
    with files.open("b/new", "wb") as file:
        file.write(b"12")
        assert not files.exists("b/new")
        file.write(b"34")
    assert files.cat_file("b/new") == b"1234"
    with pytest.raises(RuntimeError), files.open("b/new", "wb") as file:
        file.write(b"half of it")
        raise RuntimeError
    assert files.cat_file("b/new") == b"1234"
    for mode, options in (("wb", {}), ("wt", {}), ("wb", {"compression": "gzip"}), ("wt", {"compression": "gzip"})):
        half = "half of it" if mode == "wt" else b"half of it"
        opened = fsspec.core.OpenFile(files, "b/new", mode, **options)
        with pytest.raises(RuntimeError), opened as file:
            file.write(half)
            raise RuntimeError
        assert files.cat_file("b/new") == b"1234"
    try:
        raise RuntimeError
    except RuntimeError:
        with fsspec.core.OpenFile(files, "b/new", "wb") as file:
            file.write(b"after an error")
        assert files.cat_file("b/new") == b"after an error"
    foreign = files.open("b/new", "wb")
    foreign.write(b"by another language")
    _thread.start_new_thread(foreign.close, ())  # nothing of Python calls it, as on threads of Arrow and DuckDB
    eventually(lambda: files.cat_file("b/new") == b"by another language")
    files.pipe_file("b/new", b"1234")
    with files.open("b/text", "w") as file:
        file.write("grüße\n")
    assert files.cat_file("b/text") == "grüße\n".encode()
    with pytest.raises(FileExistsError):
        files.open("b/new", "xb")
    late = files.open("b/late", "xb")
    late.write(b"second")
    files.pipe_file("b/late", b"first", mode="create")
    for create in (late.close, lambda: files.pipe_file("b/late", b"third", mode="create")):
        with pytest.raises(FileExistsError):
            create()
    assert files.cat_file("b/late") == b"first"
    with pytest.raises(OSError, match="'ab'"):
        files.open("b/new", "ab")


def test_many_files_are_created_only_where_there_is_none(files: AISFileSystem) -> None:
    with pytest.raises(FileExistsError, match="wanted none"):
        files.pipe({"b/made": b"new", "b/a": b"lost"}, mode="create")
    assert (files.cat_file("b/a"), files.cat_file("b/made")) == (b"one", b"new")
    files.pipe({"b/made": b"again", "b/a": b"replaced"}, mode="overwrite")
    assert (files.cat_file("b/a"), files.cat_file("b/made")) == (b"replaced", b"again")


def test_a_write_that_failed_is_not_stored_though_its_caller_goes_on(
    files: AISFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with files.open("b/a", "wb") as file:
        file.write(b"the beginning")
        monkeypatch.setattr(file._spool, "write", full)
        with contextlib.suppress(OSError):
            file.write(b" and the end")
    assert files.cat_file("b/a") == b"one"


CODECS = {"none": None, "gzip": "gzip", "bz2": "bz2", "xz": "xz", "zstd": "zstd", "lz4": "lz4"}


@table("codec", CODECS)
def test_text_and_compressed_files_are_written_when_they_are_closed_or_not_at_all(
    files: AISFileSystem, codec: str
) -> None:
    options = {"compression": CODECS[codec]}
    files.pipe_file("b/a", b"one")
    with files.open("b/a", "wb", **options) as file:
        file.write(b"12")
        file.write(b"34")
        assert file.writable() and files.cat_file("b/a") == b"one"
    with files.open("b/a", "rb", **options) as file:
        assert file.read() == b"1234"
    with files.transaction, files.open("b/a", "wt", encoding="latin-1", newline="\r\n", **options) as file:
        file.write("grüße\n")
    with files.open("b/a", "r", encoding="latin-1", newline="", **options) as file:
        assert file.read() == "grüße\r\n"
    before = files.cat_file("b/a")
    for mode, half in (("wb", b"half of it"), ("w", "half of it")):
        with pytest.raises(RuntimeError), files.open("b/a", mode, **options) as file:
            file.write(half)
            raise RuntimeError
        dropped = files.open("b/a", mode, **options)
        dropped.write(half)
        del dropped, file
        gc.collect()
        assert files.cat_file("b/a") == before
        files.open("b/a", mode, **options).close()
        with files.open("b/a", "rb", **options) as file:
            assert file.read() == b""
        files.pipe_file("b/a", before)
        with pytest.raises(FileExistsError):
            files.open("b/a", mode.replace("w", "x"), **options)
    with pytest.raises(OSError, match="'ab'"):
        files.open("b/a", "a", **options)
    with pytest.raises(LookupError):
        files.open("b/a", "w", encoding="no encoding", **options)
    gc.collect()
    assert files.cat_file("b/a") == before


def test_a_transaction_writes_all_its_files_or_none(files: AISFileSystem) -> None:
    with pytest.raises(RuntimeError), files.transaction:
        with files.open("b/t1", "wb") as file:
            file.write(b"1")
        raise RuntimeError
    assert not files.exists("b/t1")
    with files.transaction:
        with files.open("b/t1", "wb") as file:
            file.write(b"1")
        assert not files.exists("b/t1")
    assert files.cat_file("b/t1") == b"1"


def test_files_are_copied_moved_and_removed(files: AISFileSystem, tmp_path: Path) -> None:
    files.copy("b/z.bin", "b/copy")
    assert files.cat_file("b/copy") == FILES["z.bin"]
    files.mv("b/copy", "b/moved")
    assert (files.exists("b/copy"), files.cat_file("b/moved")) == (False, FILES["z.bin"])
    files.get("b/a/c", str(tmp_path / "got"), recursive=True)
    assert (tmp_path / "got" / "d").read_bytes() == FILES["a/c/d"]
    files.put(str(tmp_path / "got"), "b/put", recursive=True)
    assert files.cat_file("b/put/d") == FILES["a/c/d"]
    with pytest.raises(IsADirectoryError):
        files.rm("b/put")
    files.rm("b/put", recursive=True)
    assert not files.exists("b/put")


def test_buckets_are_made_and_removed_as_folders_are(files: AISFileSystem) -> None:
    files.mkdir("other")
    with pytest.raises(FileExistsError):
        files.mkdir("other")
    files.makedirs("other/x/y", exist_ok=True)
    files.pipe_file("other/x", b"1")
    with pytest.raises(OSError, match="holds objects"):
        files.rmdir("other")
    files.rm("other", recursive=True)
    assert not files.exists("other")


def test_another_content_has_another_key(files: AISFileSystem) -> None:
    before = files.ukey("b/a")
    assert files.ukey("b/a") == before
    files.pipe_file("b/a", b"one")
    assert files.ukey("b/a") != before
    assert files.modified("b/a").year >= 2024


def test_threads_that_ask_for_a_file_system_share_one_client(files: AISFileSystem, url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: fsspec.filesystem("ais", store=url), range(16)))
        assert all(other._client is files._client for other in found)
        assert set(threads.map(lambda other: other.cat_file("ais://b/a/b"), found)) == {b"two"}


def test_it_goes_to_another_process_as_its_address(files: AISFileSystem) -> None:
    copy = pickle.loads(pickle.dumps(files))
    assert copy.cat_file("b/a") == b"one"


# -- libraries


def test_pandas_writes_and_reads_tables_by_url(files: AISFileSystem, url: str) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": np.arange(1_000), "b": [f"row {at}" for at in range(1_000)]})
    options = {"store": url}
    table.to_parquet("ais://b/table.parquet", storage_options=options)
    pd.testing.assert_frame_equal(pd.read_parquet("ais://b/table.parquet", storage_options=options), table)
    table.to_csv("ais://b/table.csv", index=False, storage_options=options)
    pd.testing.assert_frame_equal(pd.read_csv("ais://b/table.csv", storage_options=options), table)


def test_pyarrow_reads_columns_and_folders_of_parquet(files: AISFileSystem) -> None:
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet as pq

    table = pa.table({"a": np.arange(200_000), "b": np.random.default_rng(1).random(200_000)})
    for part in range(3):
        with files.open(f"b/parts/{part}.parquet", "wb") as file:
            pq.write_table(table, file, row_group_size=50_000)
    with files.open("b/parts/1.parquet") as file:
        assert pq.read_table(file, columns=["b"]).equals(table.select(["b"]))
    with files._client.open("ais://b/parts/0.parquet") as file:
        assert pq.ParquetFile(file).read_row_group(2).equals(table.slice(100_000, 50_000))
    dataset = pa.dataset.dataset("b/parts", filesystem=files, format="parquet")
    assert dataset.count_rows() == 600_000
    assert dataset.to_table(columns=["a"]).num_rows == 600_000
