"""One client for each store and process, whichever integration asks; the store is the one named at that time."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from ais_loader import connect, errors
from ais_loader.integrations.shared_store import StoreReference, shared_store
from ais_loader.testing import throwaway_folder


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Path, Path]]:
    """Two stores with the same name in them, each with its own content."""
    with throwaway_folder() as folder:
        for name in ("one", "two"):
            with connect(folder / name) as client:
                client.create_bucket("b").put("a", name.encode())
        yield folder / "one", folder / "two"


def content(store: StoreReference) -> bytes:
    return store.reader().bucket("b").get("a")


def test_fsspec_reads_the_store_that_the_environment_names_now(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (*stores, stores[0]):
        monkeypatch.setenv("AIS_LOADER_URL", str(path))
        with fsspec.open("ais://b/a") as file:
            assert file.read() == path.name.encode()
        assert fsspec.filesystem("ais") is fsspec.filesystem("ais", store=str(path))
    monkeypatch.delenv("AIS_LOADER_URL")
    with pytest.raises(errors.InvalidRequest, match="AIS_LOADER_URL"):
        fsspec.filesystem("ais")


def test_a_file_system_that_is_held_stays_with_its_store(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", str(stores[0]))
    files = fsspec.filesystem("ais")
    monkeypatch.setenv("AIS_LOADER_URL", str(stores[1]))
    assert files.cat_file("b/a") == pickle.loads(pickle.dumps(files)).cat_file("b/a") == b"one"


def test_a_reference_without_a_url_follows_the_environment_and_one_with_a_url_does_not(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    following, staying = StoreReference(), StoreReference(stores[0])
    for path in stores:
        monkeypatch.setenv("AIS_LOADER_URL", f"file://{path}")
        assert content(following) == content(pickle.loads(pickle.dumps(following))) == path.name.encode()
        assert content(staying) == content(pickle.loads(pickle.dumps(staying))) == b"one"
        assert following.reader() is shared_store(path).reader(), "another client of the same store"


def test_a_reference_opens_nothing_before_it_is_used() -> None:
    nowhere = pickle.loads(pickle.dumps(StoreReference("grpc://127.0.0.1:1,file")))
    with pytest.raises(errors.InvalidRequest):
        nowhere.reader()


def test_what_is_written_through_one_reference_is_read_through_another(tmp_path: Path) -> None:
    writing, reading = StoreReference(tmp_path / "s"), StoreReference(f"file://{tmp_path / 's'}")
    with writing.writer() as client:
        client.create_bucket("b").put("a", b"written")
    assert content(reading) == b"written"


def _tell(store: StoreReference, answers: multiprocessing.SimpleQueue[bytes]) -> None:
    answers.put(content(store))


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.fresh_process
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_reference_in_use_reads_in_processes_of_every_kind(stores: tuple[Path, Path], method: str) -> None:
    store = StoreReference(stores[1])
    assert content(store) == b"two"
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_tell, args=(store, answers))
    child.start()
    child.join(180)
    assert child.exitcode == 0
    assert answers.get() == b"two"


def test_an_address_without_its_scheme_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(errors.InvalidRequest, match="need grpc://localhost:7480"),
        StoreReference("localhost:7480").writer(),
    ):
        pass
    assert not list(tmp_path.iterdir())
