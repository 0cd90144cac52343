"""Random operations against a dict: whatever the history, the store holds what the dict holds."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ais_loader.errors import ObjectNotFound
from ais_loader.testing import throwaway_folder
from storage_node.store.files.segment_format import MAX_OBJECT_BYTES
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.names import object_name_fault
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, names, put, read, store_at

# Few parts, so that names collide, are prefixes of each other, and sort differently as text and as bytes.
NAMES = st.lists(
    st.sampled_from(["a", "b", "ab", "a.", "ä", "ａ", "é", "e\u0301", "\U00010000", "\uffff", "~", " ", "0"]),
    min_size=1,
    max_size=3,
).map("/".join) | st.text(st.sampled_from("ab\U00010000\uffff"), min_size=1, max_size=6)
GOOD_NAMES = NAMES.filter(lambda name: object_name_fault(name) is None)
SIZES = st.sampled_from([0, 1, 50, 3000, 9000, MAX_OBJECT_BYTES, MAX_OBJECT_BYTES + 1, BLOCK_BYTES + 1])


def in_order(all_names: object) -> list[str]:
    return sorted(all_names, key=str.encode)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("drives", [1, 3])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=st.sets(GOOD_NAMES, max_size=30), prefix=st.text("ab/ä\U00010000", max_size=3), page=st.integers(1, 7))
def test_a_list_has_every_name_once_in_byte_order_however_it_is_cut_into_pages(
    drives: int, stored: set[str], prefix: str, page: int
) -> None:
    with (
        throwaway_folder() as folder,
        store_at(*(folder / str(n) for n in range(drives))) as store,
    ):
        for name in stored:
            put(store, name, name.encode())
        store.create_bucket("other")
        put(store, "a", b"", bucket="other")
        wanted = in_order(name for name in stored if name.startswith(prefix))
        assert names(store, prefix) == wanted
        paged: list[str] = []
        while found := [name for name, _ in store.objects(BUCKET, prefix, paged[-1] if paged else "", page)]:
            assert len(found) <= page
            paged += found
        assert paged == wanted


def test_names_that_no_object_has_are_positions_in_a_list_too(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        for name in ("a", "b", "b/c", "c"):
            put(store, name, b"")
        assert [name for name, _ in store.objects(BUCKET, "b", "a")] == ["b", "b/c"]
        assert [name for name, _ in store.objects(BUCKET, "", "aa")] == ["b", "b/c", "c"]
        assert [name for name, _ in store.objects(BUCKET, "a", "zzz")] == []
        assert [name for name, _ in store.objects(BUCKET, "", "", 0)] == []


class StoreMachine(RuleBasedStateMachine):
    """Two drives, restarts in between, groups with repeated names."""

    def __init__(self) -> None:
        super().__init__()
        self._held = contextlib.ExitStack()
        self._folder = self._held.enter_context(throwaway_folder())
        self.roots = [self._folder / "a", self._folder / "b"]
        self.model: dict[str, bytes] = {}
        self.newest: dict[str, object] = {}
        self._bytes = random.Random(0)

    @initialize()
    def open(self) -> None:
        self.store = Store.open(self.roots)
        self.store.create_bucket(BUCKET, exist_ok=True)

    @rule(name=GOOD_NAMES, size=SIZES)
    def put(self, name: str, size: int) -> None:
        data = self._bytes.randbytes(size)
        self._note(name, data, put(self.store, name, data).version)

    @rule(sizes=st.lists(st.tuples(GOOD_NAMES, SIZES), max_size=6))
    def put_many(self, sizes: list[tuple[str, int]]) -> None:
        pairs = [(name, self._bytes.randbytes(size)) for name, size in sizes]
        uploads = [self.store.stage(BUCKET, name, [data], {}, grouped=True) for name, data in pairs]
        for (name, data), record in zip(pairs, self.store.commit_many(uploads), strict=True):
            self._note(name, data, record.version)  # type: ignore[union-attr]

    def _note(self, name: str, data: bytes, version: object) -> None:
        assert name not in self.newest or version > self.newest[name]  # type: ignore[operator]
        self.model[name], self.newest[name] = data, version

    @rule(name=GOOD_NAMES)
    def delete_or_miss(self, name: str) -> None:
        if name in self.model:
            self.store.delete(BUCKET, name)
            del self.model[name]
        else:
            with pytest.raises(ObjectNotFound):
                self.store.delete(BUCKET, name)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read_a_range(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        whole = self.model[name]
        start = data.draw(st.integers(0, len(whole)))
        length = data.draw(st.integers(0, len(whole) - start))
        verify = data.draw(st.booleans())
        assert read(self.store, name, start=start, length=length, verify=verify) == whole[start : start + length]

    @rule()
    def reap(self) -> None:
        for name in ("a", "b"):
            drive_of(self.store, name).reap(everything=True)

    @rule()
    def compact(self) -> None:
        for drive in self.store.drives:
            assert drive is not None
            drive.compact_segments()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @invariant()
    def a_list_has_the_names_in_order(self) -> None:
        if hasattr(self, "store"):
            assert names(self.store) == in_order(self.model)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert contents(self.store) == self.model
            self.store.close()
            assert_sound(*self.roots)
        self._held.close()


TestStoreAgainstADict = StoreMachine.TestCase
TestStoreAgainstADict.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
