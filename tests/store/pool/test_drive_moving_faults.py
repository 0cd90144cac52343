"""Whatever goes wrong while objects move to another drive, each of them is found, and listed, where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.transactions import Transactions
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.pool import rebalance
from storage_node.store.store import Store
from tests.store.drives_kit import WANTED, store_with
from tests.store.store_kit import assert_sound, contents

PLACES: dict[str, tuple[type, str]] = {
    "staging": (Drive, "stage"),
    "writing": (StagedFile, "write"),
    "reading": (RawFiles, "read"),
    "looking": (Drive, "newest"),
    "committing": (Drive, "commit"),
    "syncing": (Drive, "sync"),
    "dropping": (Transactions, "drop"),
    "scanning": (Catalog, "scan"),
}
ERRORS = [MemoryError("no memory"), KeyboardInterrupt(), RuntimeError("a defect"), OSError(24, "too many open files")]


class Fails:
    """Every n-th call of a method."""

    def __init__(self, patched: pytest.MonkeyPatch, owner: type, name: str, error: BaseException, every: int) -> None:
        self.raised = calls = 0
        whole = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % every == 0:
                self.raised += 1
                raise error
            return whole(*args, **kwargs)

        patched.setattr(owner, name, call)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots) as opened:
        yield opened


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.sampled(16)
def test_an_error_of_any_kind_hides_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    monkeypatch.setattr(rebalance, "_GROUP", 8)
    store.pool.add_drive(tmp_path / "c")
    with monkeypatch.context() as patched:
        fails = Fails(patched, *PLACES[place], error, every=3)
        for _ in range(12):
            with contextlib.suppress(KeyboardInterrupt):
                store.pool.move_some(10, 1 << 20)
    assert fails.raised
    assert contents(store) == WANTED
    for _ in range(100):
        if not store.pool.move_some(20, 1 << 20).left_estimate:
            break
    assert not store.pool.moving and contents(store) == WANTED
    roots = [drive.root for drive in store.drives if drive is not None]
    store.close()
    with Store.open(roots) as again:
        assert contents(again) == WANTED
    assert_sound(*roots)


def test_drives_are_asked_once_more_before_nobody_looks_for_what_they_had(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a group is taken for moved that was not."""
    store.pool.add_drive(tmp_path / "c")
    with monkeypatch.context() as patched:
        patched.setattr(rebalance._Step, "_move_to", lambda *_: None)
        patched.setattr(rebalance, "_MAX_SCANNED", 200)
        for _ in range(20):
            assert store.pool.move_some(20, 1 << 20).left_estimate > 0
    assert store.pool.moving and contents(store) == WANTED
    while store.pool.moving:
        store.pool.move_some(20, 1 << 20)
    assert contents(store) == WANTED
