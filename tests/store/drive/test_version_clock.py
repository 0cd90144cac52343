"""The version clock: never backwards, above all it has heard of, over restarts, crashes, and wall clocks that jump."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import InvalidRequest, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.preconditions import parse_version
from storage_node.store.drive.version_clock import MAX_COUNTER, RESERVED_MS, VersionClock, at_ms, ms_of
from storage_node.store.format import Version
from storage_node.store.store import Store
from storage_node.store.store_record import SnapshotRecord, StoreRecord, decode, encode
from tests.store.drive.test_versions import put_copy
from tests.store.store_kit import BUCKET, drive_of, put, store_at
from tests.table import table

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
T = 1_800_000_000_000


class Wall:
    def __init__(self, now_ms: int = T) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def opened(root: Path, wall: Wall) -> Store:
    store = Store.open([root], clock=VersionClock(wall))
    store.create_bucket(BUCKET, exist_ok=True)
    return store


def as_after_a_crash(store: Store, folder: Path) -> Path:
    """What is on the drive now, as a process that is killed leaves it."""
    for _ in range(10):
        try:
            shutil.copytree(drive_of(store).root, folder, symlinks=True)
            return folder
        except shutil.Error:  # the catalog has just merged tables, and removed some before they were copied
            shutil.rmtree(folder)
    raise AssertionError("the catalog does not come to rest")


# -- by itself


@given(
    steps=st.lists(
        st.one_of(
            st.just(("take", 0)),
            st.tuples(st.just("wall"), st.sampled_from([-YEAR_MS, -HOUR_MS, -1, 1, 5, HOUR_MS, YEAR_MS])),
            st.tuples(st.just("hear"), st.integers(0, at_ms(T + 2 * HOUR_MS))),
        ),
        max_size=40,
    )
)
def test_numbers_only_rise_whatever_the_wall_clock_does_and_others_say(steps: Sequence[tuple[str, int]]) -> None:
    wall = Wall()
    clock = VersionClock(wall)
    last = 0
    for what, number in steps:
        if what == "wall":
            wall.now_ms = max(0, wall.now_ms + number)
        elif what == "hear":
            clock.advance_past(number)
            last = max(last, number)
        else:
            taken = clock.take()
            assert taken > last
            assert ms_of(taken) >= wall.now_ms
            last = taken
        assert clock.highest >= last


def test_a_clock_follows_the_wall_clock_as_long_as_that_goes_on() -> None:
    wall = Wall()
    clock = VersionClock(wall)
    taken = [clock.take() for _ in range(3)]
    wall.now_ms += 1
    taken.append(clock.take())
    assert taken == [at_ms(T), at_ms(T) + 1, at_ms(T) + 2, at_ms(T + 1)]
    assert clock.ahead_ms == 0
    wall.now_ms -= HOUR_MS
    assert clock.ahead_ms == HOUR_MS


@settings(max_examples=50)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["write", "hear"]), st.integers(0, 2)), max_size=30))
def test_of_clocks_that_cannot_hear_each_other_the_later_number_is_the_higher(
    steps: Sequence[tuple[int, str, int]],
) -> None:
    wall = Wall()
    clocks = [VersionClock(wall) for _ in range(3)]
    last = 0
    for at, what, other in steps:
        wall.now_ms += 1
        if what == "hear":
            clocks[at].advance_past(clocks[other].highest)
        else:
            number = clocks[at].take()
            assert number > last
            last = number


@table("number", [MAX_COUNTER + 1, 2**63, 2**64 - 1, 2**64, -1 - MAX_COUNTER])
def test_a_number_that_no_clock_gives_is_refused_and_changes_nothing(number: int) -> None:
    wall = Wall()
    clock = VersionClock(wall)
    before = clock.take()
    if number > 0:
        with pytest.raises(InvalidRequest, match="no version clock gives"):
            clock.advance_past(number)
    else:
        clock.advance_past(number)
    assert clock.highest == before
    assert clock.take() == before + 1


def test_what_is_the_last_number_of_all_can_be_gone_beyond(tmp_path: Path) -> None:
    with opened(tmp_path / "drive", Wall()) as store:
        put_copy(store, "a", b"1", Version(1, MAX_COUNTER, 1))
        assert put(store, "a", b"2").version > Version(1, MAX_COUNTER, 1)
    with opened(tmp_path / "drive", Wall()) as store:
        assert store.clock.highest > MAX_COUNTER
        assert put(store, "b", b"3").counter > MAX_COUNTER


# -- over the lives of a store


@pytest.mark.slow
@table("how", ["copy", "tombstone", "tombstones", "heard", "cut"])
@table("ending", ["closed", "killed"])
def test_what_was_heard_of_outlives_the_process(tmp_path: Path, how: str, ending: str) -> None:
    far = Version(1, at_ms(T + 30_000) + 7, 3)
    store = opened(tmp_path / "drive", Wall())
    with store:
        put(store, "other", b"1")
        if how == "copy":
            put_copy(store, "a", b"x", far)
        elif how == "tombstone":
            store.delete(BUCKET, "a", far, keep_tombstone=True)
        elif how == "tombstones":
            store.write_tombstones(BUCKET, [("a", far, b"")])
        elif how == "heard":
            store.replicas.advance_past(far.counter)
        else:
            store.clock.advance_past(far.counter)
            store.snapshots.create(BUCKET, "s")
        assert store.replicas.clock >= far.counter
        left = as_after_a_crash(store, tmp_path / "killed")
    root = left if ending == "killed" else tmp_path / "drive"
    with opened(root, Wall()) as store:
        assert store.replicas.clock >= far.counter
        assert put(store, "new", b"").counter > far.counter
        store.snapshots.create(BUCKET, "all")
        names = ["new", "other"] + (["a"] if how == "copy" else [])
        assert [name for name, _ in store.objects(f"{BUCKET}@all")] == sorted(names)


def test_no_number_comes_twice_over_crashes_with_a_wall_clock_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s: list[float] = []
    monkeypatch.setattr("storage_node.store.drive.version_clock.time.sleep", waited_s.append)
    root = tmp_path / "0"
    given: list[int] = []
    for life in range(1, 4):
        with opened(root, Wall()) as store:
            given += [store.replicas.next_version(1, []).counter for _ in range(3)]
            given.append(put(store, "a", b"%d" % life).counter)
            root = as_after_a_crash(store, tmp_path / str(life))
    assert given == sorted(set(given))
    assert waited_s and all(0 < one <= RESERVED_MS / 1000 for one in waited_s)


def test_a_clock_that_was_closed_in_good_order_is_not_ahead(tmp_path: Path) -> None:
    wall = Wall()
    with opened(tmp_path / "drive", wall) as store:
        put(store, "a", b"1")
    with opened(tmp_path / "drive", wall) as store:
        assert store.clock.ahead_ms == 0


def test_after_a_crash_a_clock_is_ahead_by_what_was_reserved_and_no_more(tmp_path: Path) -> None:
    wall = Wall()
    with opened(tmp_path / "drive", wall) as store:
        put(store, "a", b"1")
        left = as_after_a_crash(store, tmp_path / "killed")
    with opened(left, wall) as store:
        assert 0 < store.clock.ahead_ms <= RESERVED_MS
    wall.now_ms += RESERVED_MS + 1
    with opened(as_copy(left, tmp_path / "later"), wall) as store:
        assert store.clock.ahead_ms == 0


def test_a_clock_does_not_run_ahead_however_often_its_process_is_killed(tmp_path: Path) -> None:
    wall = Wall()
    root = tmp_path / "0"
    for life in range(1, 11):
        with opened(root, wall) as store:
            put(store, "a", b"%d" % life)
            root = as_after_a_crash(store, tmp_path / str(life))
        wall.now_ms += 10
    assert ahead_ms(root, wall) <= RESERVED_MS + 10


def ahead_ms(root: Path, wall: Wall) -> int:
    with opened(root, wall) as store:
        return store.clock.ahead_ms


def as_copy(root: Path, folder: Path) -> Path:
    return Path(shutil.copytree(root, folder, symlinks=True))


def test_a_number_costs_a_write_only_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall()
    with opened(tmp_path / "drive", wall) as store:
        limits = []
        write = Catalog.write
        catalog = drive_of(store).catalog

        def noting(self: Catalog, batch: WriteBatch, *, sync: bool) -> None:
            write(self, batch, sync=sync)
            limits.append(catalog.get(fmt.CLOCK_KEY))

        monkeypatch.setattr(Catalog, "write", noting)
        for _ in range(200):
            wall.now_ms += 50  # ten seconds in all
            store.replicas.next_version(1, [])
        assert len(limits) <= 11
        assert len(set(limits)) == len(limits)


@table("jump_ms", [-YEAR_MS, -HOUR_MS, HOUR_MS, YEAR_MS])
def test_writes_go_on_above_after_the_wall_clock_has_jumped(tmp_path: Path, jump_ms: int) -> None:
    wall = Wall()
    with opened(tmp_path / "drive", wall) as store:
        versions = [put(store, "a", b"1").version]
        wall.now_ms += jump_ms
        versions.append(put(store, "a", b"2").version)
        store.snapshots.create(BUCKET, "s")
        versions.append(put(store, "a", b"3").version)
        wall.now_ms = T + 1
    with opened(tmp_path / "drive", wall) as store:
        versions.append(put(store, "a", b"4").version)
        assert versions == sorted(set(versions))
        assert bytes(b"".join(store_read(store, f"{BUCKET}@s", "a"))) == b"2"


def store_read(store: Store, bucket: str, name: str) -> list[bytes]:
    drive, record = store.locate(bucket, name)
    return list(drive.files.read(record))


def test_drives_of_one_store_share_its_clock(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        names = [f"n{at}" for at in range(40)]
        put_copy(store, "n0", b"far", Version(1, store.clock.take() + at_ms(50_000), 3))
        counters = [put(store, name, b"near").counter for name in names]
        assert counters == sorted(set(counters))
    with Store.open([tmp_path / "a"]) as store:  # whichever is left, it knows
        assert store.clock.highest >= counters[-1]


# -- stores that were made before there was a clock


def test_a_store_made_before_is_read_once_and_goes_on_above_all_that_is_in_it(tmp_path: Path) -> None:
    wall = Wall()
    with opened(tmp_path / "drive", wall) as store:
        put_copy(store, "a", b"x", Version(3, at_ms(T + HOUR_MS), 2))
        store.delete(BUCKET, "b", Version(3, at_ms(T + 2 * HOUR_MS), 2), keep_tombstone=True)
    forget_clock(tmp_path / "drive")
    with opened(tmp_path / "drive", wall) as store:
        assert store.clock.highest == at_ms(T + 2 * HOUR_MS)
        assert int.from_bytes(drive_of(store).catalog.get(fmt.CLOCK_KEY) or b"", "big") > at_ms(T + 2 * HOUR_MS)
        store.snapshots.create(BUCKET, "s")
        assert [name for name, _ in store.objects(f"{BUCKET}@s")] == ["a"]


def forget_clock(root: Path) -> None:
    catalog = Catalog(root / "catalog", writable=True)
    batch = WriteBatch(raw_mode=True)
    batch.delete(fmt.CLOCK_KEY)
    catalog.write(batch, sync=True)
    catalog.close()


def test_a_limit_that_no_clock_ever_has_is_refused_at_the_opening(tmp_path: Path) -> None:
    with opened(tmp_path / "drive", Wall()):
        pass
    catalog = Catalog(tmp_path / "drive" / "catalog", writable=True)
    batch = WriteBatch(raw_mode=True)
    batch.put(fmt.CLOCK_KEY, b"\xff" * 8)
    catalog.write(batch, sync=True)
    catalog.close()
    with pytest.raises(StoreFormatError, match="version clock"):
        opened(tmp_path / "drive", Wall())


# -- two stores that fail in turn


@pytest.mark.parametrize("hears", [True, False])
def test_holders_that_fail_in_turn_keep_the_later_of_two_writes(tmp_path: Path, hears: bool) -> None:
    """A is down, W1 goes to B, which had been killed once; B is down, W2 goes to A."""
    wall = Wall()
    a, b = tmp_path / "a", tmp_path / "b"
    for root in (a, b):
        with opened(root, wall) as store:
            put_copy(store, "x", b"W0", Version(1, at_ms(T) + 1, 1))
    for life in ("killed", "once more"):
        with opened(b, wall) as store:
            store.replicas.next_version(2, [])
            b = as_after_a_crash(store, tmp_path / f"b {life}")
        wall.now_ms += RESERVED_MS + 1
    with opened(b, wall) as store:
        first = store.replicas.next_version(2, [store.head(BUCKET, "x").version])
        put_copy(store, "x", b"W1", first)
        heard = store.replicas.clock
    wall.now_ms += 5
    with opened(a, wall) as store:
        if hears:
            store.replicas.advance_past(heard)
        second = store.replicas.next_version(1, [store.head(BUCKET, "x").version])
        put_copy(store, "x", b"W2", second)
    assert second > first
    with opened(b, wall) as store:
        put_copy(store, "x", b"W2", second)
        assert store_read(store, BUCKET, "x") == [b"W2"]


# -- numbers from texts and files


@table(
    "text",
    ["1." + "9" * 5000 + ".0", f"{2**32}.1.0", f"1.{2**64}.0", f"1.1.{2**32}", "1.1", "1.1.1.1", "1.-1.0", "1.¹.0"],
)
def test_a_version_in_a_request_that_there_cannot_be_is_the_requests_fault(text: str) -> None:
    with pytest.raises(InvalidRequest, match="need a version as ObjectInfo shows it"):
        parse_version(text)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_version_is_read_back_as_it_is_shown(epoch: int, counter: int, node: int) -> None:
    assert parse_version(str(Version(epoch, counter, node))) == Version(epoch, counter, node)


@table("change", [{"epoch": 0}, {"epoch": 2**32}, {"cut": 2**62}, {"cut": -1}])
def test_a_record_with_numbers_that_there_cannot_be_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    record = StoreRecord("ab" * 16, ("cd" * 16,), epoch=change.get("epoch", 1)).with_snapshot(
        "ef" * 16, "s", SnapshotRecord(change.get("cut", 7), 1)
    )
    with pytest.raises(StoreFormatError):
        decode(encode(record), tmp_path)


@table("generation", ["ffffffffffffffffff", "4000000000000000", "-1", "", "x"])
def test_a_file_of_a_generation_that_no_drive_comes_to_is_none_of_ours(generation: str) -> None:
    with pytest.raises(StoreFormatError):
        fmt.generation_of_path(b"00/00/" + b"ab" * 14 + b"." + generation.encode())


# -- cuts below what there is


def test_a_snapshot_that_would_lack_an_object_is_not_made_and_the_next_one_has_it(tmp_path: Path) -> None:
    wall = Wall()
    with opened(tmp_path / "drive", wall) as store:
        put(store, "before", b"1")
        put_copy(store, "ahead", b"2", Version(1, at_ms(T + 5_000), 3))
        store.clock = VersionClock(wall)
        store.snapshots._clock = store.clock  # one that has not heard of it
        store.clock.take()
        with pytest.raises(StoreFormatError, match="would lack 'ahead'"):
            store.snapshots.create(BUCKET, "s")
        assert store.snapshots.of(BUCKET) == []
        store.snapshots.create(BUCKET, "s")
        assert [name for name, _ in store.objects(f"{BUCKET}@s")] == ["ahead", "before"]
