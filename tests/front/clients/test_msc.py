"""multi-storage-client over the store: what its client does with files of a folder, it does with objects."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import multistorageclient as msc
import pytest
import yaml
from multistorageclient.types import PreconditionFailedError, Range, RetryableError

import ais_loader
from ais_loader.integrations.msc import AISProvider, install
from ais_loader.objects.object_file import ObjectReader
from ais_loader.testing import NodeProcess, throwaway_folder

FILES = {
    "a.txt": b"first",
    "b/c.txt": b"second",
    "b/d/e.bin": bytes(range(256)) * 5000,
    "b2/f.txt": b"beside b",
    "empty": b"",
    "ü %2F#?.txt": b"odd",
}


@pytest.fixture(scope="module", params=["embedded", "node"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            with ais_loader.connect(folder / "store") as client:
                client.create_bucket("speech")
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "store") as node:
                with ais_loader.connect(node.url) as client:
                    client.create_bucket("speech")
                yield node.url


def profile(store: str, base_path: str, **options: Any) -> dict[str, Any]:
    install()
    return {"storage_provider": {"type": "ais", "options": {"base_path": base_path, "store": store, **options}}}


def client_of(profiles: dict[str, Any], name: str) -> msc.StorageClient:
    config = {"profiles": profiles}
    return msc.StorageClient(msc.StorageClientConfig.from_dict(config, profile=name))


@pytest.fixture
def files(store: str) -> Iterator[msc.StorageClient]:
    """A client of a new folder of the bucket, with FILES."""
    files = client_of({"p": profile(store, f"speech/{os.urandom(4).hex()}")}, "p")
    for name, data in FILES.items():
        files.write(name, data)
    yield files


@pytest.fixture
def posix(tmp_path: Path) -> msc.StorageClient:
    """The client's own provider for files, with the same."""
    options = {"base_path": str(tmp_path / "posix")}
    posix = client_of({"q": {"storage_provider": {"type": "file", "options": options}}}, "q")
    for name, data in FILES.items():
        posix.write(name, data)
    return posix


def described(rows: Any) -> list[tuple[str, str, int]]:
    return sorted((row.key.rstrip("/"), row.type, row.content_length if row.type == "file" else 0) for row in rows)


def test_listings_are_those_of_files(files: msc.StorageClient, posix: msc.StorageClient) -> None:
    for path in ("", "b", "b/", "b/d"):
        for options in ({}, {"include_directories": True}):
            assert described(files.list(path=path, **options)) == described(posix.list(path=path, **options)), path
        assert described(files.list_recursive(path=path)) == described(posix.list_recursive(path=path))
    bounded = {"start_after": "a.txt", "end_at": "b/d/e.bin"}
    assert described(files.list(path="", **bounded)) == described(posix.list(path="", **bounded))
    for pattern in ("*.txt", "b/*", "**/*.txt", "none*"):
        assert sorted(files.glob(pattern)) == sorted(posix.glob(pattern))


def test_reads_whole_in_ranges_and_through_files(files: msc.StorageClient) -> None:
    for name, data in FILES.items():
        assert files.read(name) == data
        with files.open(name, "rb") as file:
            assert file.read() == data
        info = files.info(name)
        assert (info.type, info.content_length) == ("file", len(data))
        assert files.is_file(name)
    large = FILES["b/d/e.bin"]
    for start, size in ((0, 10), (300, 70_000), (len(large) - 5, 100), (len(large) + 9, 5)):
        assert files.read("b/d/e.bin", byte_range=Range(start, size)) == large[start : start + size]
    with files.open("b/d/e.bin", "rb") as file:
        file.seek(1000)
        assert file.read(2000) == large[1000:3000]
    with files.open("a.txt", "r") as text:
        assert text.read() == "first"
    assert files.info("b").type == "directory" and not files.is_file("b")
    for missing in ("none", "b/none/"):
        with pytest.raises(FileNotFoundError, match="none"):
            files.info(missing)
    with pytest.raises(FileNotFoundError):
        files.read("none")


def test_writes_copies_deletes_and_local_copies(files: msc.StorageClient, tmp_path: Path) -> None:
    with files.open("new/w.bin", "wb") as file:
        file.write(b"written")
    files.copy("new/w.bin", "new/copy.bin")
    assert files.read("new/copy.bin") == b"written"
    (tmp_path / "up").write_bytes(b"from a file")
    files.upload_file("new/up", str(tmp_path / "up"))
    files.download_file("new/up", str(tmp_path / "deep" / "down"))
    assert (tmp_path / "deep" / "down").read_bytes() == b"from a file"
    with pytest.raises(FileNotFoundError):
        files.download_file("new/none", str(tmp_path / "no"))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["down", "up"]
    files.delete("new/up")
    with pytest.raises(FileNotFoundError):
        files.read("new/up")
    files.delete("new", recursive=True)
    assert described(files.list(path="")) == sorted((name, "file", len(data)) for name, data in FILES.items())


def test_threads_that_download_one_file_get_all_of_it(
    files: msc.StorageClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, path, chunks = files._storage_provider, tmp_path / "down", ObjectReader.chunks
    large = b"l" * (5 << 20)
    files.write("large", large)
    others: list[bytes] = []

    def with_another(self: ObjectReader) -> Iterator[memoryview]:
        for at, chunk in enumerate(chunks(self)):
            if at == 1 and not others:
                others.append(b"")
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(provider.download_file, "large", str(path)).result(180)
                others.append(path.read_bytes())
            yield chunk

    monkeypatch.setattr(ObjectReader, "chunks", with_another)
    provider.download_file("large", str(path))
    assert path.read_bytes() == others[1] == large
    assert [one.name for one in tmp_path.iterdir()] == ["down"]


def test_attributes_links_and_conditions(files: msc.StorageClient) -> None:
    files.write("tagged", b"1", attributes={"speaker": "ann"})
    assert files.info("tagged").metadata == {"speaker": "ann"}
    files.make_symlink("link", "b/c.txt")
    assert files.read("link") == FILES["b/c.txt"]
    provider = files._storage_provider
    assert isinstance(provider, AISProvider)
    first = files.info("a.txt").etag
    with pytest.raises(PreconditionFailedError):
        provider.put_object("a.txt", b"again", if_none_match="*")
    provider.put_object("a.txt", b"second", if_match=first)
    with pytest.raises(PreconditionFailedError):
        provider.put_object("a.txt", b"third", if_match=first)
    with pytest.raises(PreconditionFailedError):
        provider.delete_object("a.txt", if_match=first)
    assert files.read("a.txt") == b"second"
    provider.delete_objects(["a.txt", "none", "b/c.txt"])
    assert not files.is_file("a.txt") and not files.is_file("b/c.txt")


def test_options_of_aistores_own_provider_are_refused(store: str) -> None:
    with pytest.raises(ValueError, match="endpoint: not an option of ais-loader's provider"):
        client_of({"p": profile(store, "speech", endpoint="http://10.0.0.5:51080")}, "p")


def test_a_store_that_does_not_answer_is_worth_another_try() -> None:
    with throwaway_folder() as folder, NodeProcess(folder / "store") as node:
        provider = AISProvider("speech", node.url)
        with ais_loader.connect(node.url) as client:
            client.create_bucket("speech").put("a", b"1")
        assert provider.get_object("a") == b"1"
        node.kill()
        with pytest.raises(RetryableError):
            provider.get_object("a")


def read_in_worker(files: msc.StorageClient) -> bytes:
    data: bytes = files.read("a.txt")
    return data


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_bundle_needs_no_call_in_workers_of_any_kind(store: str, method: str) -> None:
    folder = f"speech/{method}"
    options = {"base_path": folder, "store": store}
    bundle = {"provider_bundle": {"type": "ais_loader.integrations.msc.AISBundle", "options": options}}
    files = client_of({"p": bundle}, "p")
    files.write("a.txt", b"for workers")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(read_in_worker, (pickle.loads(pickle.dumps(files)),)) == b"for workers"


def test_paths_of_the_scheme_need_no_profile(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", store)
    install()
    with msc.open("ais://speech/implicit/a.txt", "wb") as file:
        file.write(b"by URL")
    assert msc.open("ais://speech/implicit/a.txt", "rb").read() == b"by URL"
    with ais_loader.connect(store, mode="r") as client:
        assert client.bucket("speech").get("implicit/a.txt") == b"by URL"


def test_a_script_names_the_bundle_in_its_configuration_only(store: str, tmp_path: Path) -> None:
    options = {"base_path": "speech/script", "store": store}
    bundle = {"provider_bundle": {"type": "ais_loader.integrations.msc.AISBundle", "options": options}}
    (tmp_path / "msc.yaml").write_text(yaml.safe_dump({"profiles": {"corpus": bundle}}))
    script = (
        "import multistorageclient as msc\n"
        "with msc.open('msc://corpus/a/b.txt', 'w') as file: file.write('hello')\n"
        "print(msc.open('msc://corpus/a/b.txt').read(), msc.glob('msc://corpus/**/*.txt'))\n"
    )
    environment = {**os.environ, "MSC_CONFIG": str(tmp_path / "msc.yaml")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.stdout == "b'hello' ['msc://corpus/a/b.txt']\n", done.stderr
