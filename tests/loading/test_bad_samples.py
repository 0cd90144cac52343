"""Bad samples: raised, skipped or substituted, counted by reason, and never a reason for another number of batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from loading_kit import Broken, Numbers

from ais_loader import BatchLoader, Entry, Item, Lines, MapDataset, ShufflePlan, concat
from ais_loader.errors import EntryFailed, InvalidRequest, NodeUnavailable, ObjectNotFound
from ais_loader.plans import BucketPlan, PackPlan
from ais_loader.testing import throwaway_node, throwaway_store

BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_by_default_the_error_is_raised_in_the_place_of_its_batch() -> None:
    found = []
    with pytest.raises(ValueError, match="sample 6 is broken"):
        for batch in BatchLoader(Broken(10, [6]), BATCHES, in_flight=5):
            found.append(batch)
    assert found == BATCHES[:1]


@pytest.mark.parametrize(
    ("on_bad", "bad", "expected"),
    [
        ("skip", [1, 2, 7], [[0, 3], [4, 5, 6], [8, 9]]),
        ("substitute", [1, 2, 7, 9], [[0, 3, 3, 3], [4, 5, 6, 4], [8, 8]]),
        (lambda error: "substitute" if "7" in str(error) else "skip", [0, 7], [[1, 2, 3], [4, 5, 6, 4], [8, 9]]),
    ],
)
def test_bad_samples_are_skipped_or_substituted(on_bad: Any, bad: list[int], expected: list[list[int]]) -> None:
    loader = BatchLoader(Broken(10, bad), BATCHES, on_bad=on_bad)
    assert list(loader) == expected
    assert dict(loader.bad.counts) == {"ValueError": len(bad)}
    assert loader.bad.names == {"ValueError": [f"sample {at}" for at in bad]}


def test_a_function_may_raise_some() -> None:
    loader = BatchLoader(Broken(10, [6]), BATCHES, on_bad=lambda error: "raise")
    with pytest.raises(ValueError, match="sample 6"):
        list(loader)


def test_a_batch_without_a_good_sample_is_an_error() -> None:
    for on_bad in ("skip", "substitute"):
        with pytest.raises(EntryFailed, match="none of the 2 samples of a batch is good: sample 8"):
            list(BatchLoader(Broken(10, [8, 9]), BATCHES, on_bad=on_bad))  # type: ignore[arg-type]


@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
def test_an_empty_batch_that_fails_raises_its_own_error(on_bad: Any) -> None:
    class NeverEmpty(Numbers):
        def __getitems__(self, indices: Iterable[int]) -> list[int]:
            wanted = super().__getitems__(indices)
            return [max(wanted), *wanted][1:]

    batches = iter(BatchLoader(NeverEmpty(10), [[1], []], on_bad=on_bad))
    assert next(batches) == [1]
    with pytest.raises(ValueError, match="empty"):
        next(batches)


def test_errors_of_the_store_are_always_raised() -> None:
    with pytest.raises(NodeUnavailable):
        list(BatchLoader(Broken(10, [1], NodeUnavailable), BATCHES, on_bad="skip"))


def test_max_bad_ends_the_run() -> None:
    loader = BatchLoader(Broken(10, [1, 5, 6]), BATCHES, on_bad="skip", max_bad=1)
    batches = iter(loader)
    assert next(batches) == [0, 2, 3]
    with pytest.raises(EntryFailed, match=r"3 samples are bad, more than max_bad=1: .*'sample 1'"):
        next(batches)


@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
def test_all_ranks_keep_equally_many_batches(on_bad: Any) -> None:
    plan = ShufflePlan(40, 4, seed=2)
    ranks = [BatchLoader(Broken(40, [3, 8, 30]), plan, rank=rank, world_size=2, on_bad=on_bad) for rank in range(2)]
    found = [list(rank) for rank in ranks]
    assert [len(rank) for rank in found] == [5, 5]
    sizes = {len(batch) for rank in found for batch in rank}
    assert sizes == {4} if on_bad == "substitute" else sizes <= {2, 3, 4}
    expected = {number for number in range(40) if number not in (3, 8, 30)}
    assert {number for rank in found for batch in rank for number in batch} == expected


def test_substitutes_keep_the_bounds_of_a_bucket() -> None:
    lengths = [1 + at % 20 for at in range(80)]
    plan = BucketPlan(lengths, [10, 20], [6, 3])
    loader = BatchLoader(Broken(80, [7, 33]), plan, on_bad="substitute")
    for step, batch in enumerate(loader):
        assert len(batch) == len(plan.with_group(1).batch(0, step))
        assert len(batch) * max(lengths[at] for at in batch) <= 60


def test_entries_that_fail_and_decoders_that_raise() -> None:
    def decode(item: Item) -> int:
        if item.tobytes() == b"3":
            raise ArithmeticError("three")
        return int(item.tobytes())

    with throwaway_store({str(at): str(at).encode() for at in range(6)}, bucket="b") as client:
        entries = [f"ais://b/{name}" for name in ("0", "1", "gone", "3", "4", "5")]
        for dataset in (
            MapDataset(client, entries, decode),
            concat([MapDataset(client, entries[:2], decode), MapDataset(client, entries[2:], decode)]),
        ):
            loader = BatchLoader(dataset, [[0, 2, 1], [3, 4, 5]], on_bad="skip")
            assert list(loader) == [[0, 1], [4, 5]]
            assert loader.bad.names == {
                "ObjectNotFound": ["sample 2, ais://b/gone"],
                "ArithmeticError": ["sample 3, ais://b/3"],
            }
        for dataset, bad in ((MapDataset(client, entries), [2]), (MapDataset(client, entries, decode), [0, 2])):
            with pytest.raises(ObjectNotFound) as raised:
                list(BatchLoader(dataset, [bad]))
            assert raised.value.__notes__[0] == "sample 2 of its dataset, ais://b/gone"
        tokens = [f"ais://b/{name}" for name in ("0", "gone", "1", "4")]
        packs = PackPlan([1] * 4, 1, 4, item_bytes=1)
        found = list(BatchLoader(MapDataset(client, tokens), packs, on_bad="substitute"))
        assert sorted({pack[0] for pack in found[0]}) == [b"0", b"1", b"4"]
        assert len(found[0]) == 4


def broken(item: Item) -> None:
    raise ArithmeticError


def test_a_bad_part_of_an_object_is_named_with_its_range_and_a_bad_line_with_its_number() -> None:
    texts = {"a.jsonl": b"[0]\n\n[1]\n", "b.jsonl": b"[2]\r\n{3}\n[4]"}
    with throwaway_store(texts, bucket="b") as client:
        lines = Lines(client, "ais://b/", json.loads)
        loader = BatchLoader(lines + lines, [[0, 3, 1], [7, 8, 9]], on_bad="skip")
        assert list(loader) == [[[0], [1]], [[2], [4]]]
        bad = "ais://b/b.jsonl, bytes 5 to 9, line 2"
        assert loader.bad.names == {"JSONDecodeError": [f"sample 3, {bad}", f"sample 8, {bad}"]}
        with pytest.raises(ValueError) as raised:
            list(BatchLoader(lines, [[2, 3]]))
        assert raised.value.__notes__ == [
            f"raised by decode() for sample 3 of its dataset, {bad}",
            "raised for batch 0 of this iteration, of sample 2, ais://b/b.jsonl, bytes 0 to 5, line 1, …",
        ]
        parts = MapDataset(client, [Entry("b", "a.jsonl", None, 4), Entry("b", "b.jsonl", None, 1, 2)], broken)
        for at, place in enumerate(("ais://b/a.jsonl, from byte 4", "ais://b/b.jsonl, bytes 1 to 3")):
            with pytest.raises(ArithmeticError) as raised_by_decode:
                parts[at]
            assert raised_by_decode.value.__notes__ == [f"raised by decode() for sample {at} of its dataset, {place}"]


def leaves(items: Any) -> bytes:
    (item,) = items if isinstance(items, tuple) else (items,)
    if item.tobytes() == b"1":
        sys.exit("no way")
    return bytes(item.tobytes())


class Leaving(Numbers):
    """A dataset of its own kind, whose sample 1 ends the process."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, number: int) -> int:
        return sys.exit("no way") if number == 1 else number


def leave_collating(samples: list[Any]) -> Any:
    sys.exit("no way")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sys_exit_is_an_error_of_its_sample(workers: int) -> None:
    with throwaway_store({str(at): str(at).encode() for at in range(3)}, bucket="b") as client:
        urls = [f"ais://b/{at}" for at in range(3)]
        sets = [MapDataset(client.url, urls, leaves), MapDataset(client.url, [(url,) for url in urls], leaves)]
        for dataset in (*sets, sets[0] + sets[1], Leaving(3)):
            loader = BatchLoader(dataset, [[0, 1, 2]], on_bad="skip", workers=workers)
            assert [len(batch) for batch in loader] == [2]
            assert dict(loader.bad.counts) == {"EntryFailed": 1}
            with pytest.raises(EntryFailed, match=r"sys\.exit\('no way'\)"):
                list(BatchLoader(dataset, [[0, 1, 2]], workers=workers))
        with pytest.raises(EntryFailed, match=r"for sample 1 of its dataset, ais://b/1"):
            sets[0][1]
        with pytest.raises(EntryFailed, match=r"sys\.exit\('no way'\) was called in collate"):
            list(BatchLoader(sets[0], [[0]], collate=leave_collating, workers=workers))


@pytest.mark.slow
def test_a_request_that_is_refused_when_it_is_sent_counts_as_its_bad_entry() -> None:
    with throwaway_node({str(at): str(at).encode() for at in range(3)}, bucket="b") as node:
        dataset = MapDataset(node.url, [Entry("b", "0"), Entry("none", "1", etl="no-such-transform"), Entry("b", "2")])
        loader = BatchLoader(dataset, [[0, 1, 2]], on_bad="skip")
        assert list(loader) == [[b"0", b"2"]]
        assert loader.bad.counts.total() == 1


@pytest.mark.parametrize("on_bad", ["skip", "substitute", lambda error: "skip"])
def test_placeholders_hide_what_on_bad_is_for_and_are_refused_with_it(on_bad: Any) -> None:
    with throwaway_store({"0": b"0"}, bucket="b") as client:
        patient = MapDataset(client, ["ais://b/0", "ais://b/gone"], on_error="placeholder")
        for dataset in (patient, MapDataset(client, ["ais://b/0"]) + patient):
            with pytest.raises(InvalidRequest, match="on_error='placeholder', so that failed entries raise nothing"):
                BatchLoader(dataset, [[0, 1]], on_bad=on_bad)
        assert list(BatchLoader(patient, [[0, 1]])) == [[b"0", None]]


@pytest.mark.parametrize("max_bad", [-1, 2**70])
def test_max_bad_is_a_count(max_bad: int) -> None:
    with pytest.raises(InvalidRequest, match="max_bad"):
        BatchLoader(Numbers(1), [[0]], max_bad=max_bad)


def test_numbers_without_a_bad_sample_are_not_counted() -> None:
    loader = BatchLoader(Numbers(10), BATCHES, on_bad="skip")
    assert list(loader) == BATCHES
    assert loader.bad.counts.total() == 0


class Collated(Broken):
    """A dataset that returns a whole batch at once, as those of Lhotse do."""

    def __getitems__(self, numbers: list[int]) -> Any:
        return {"inputs": super().__getitems__(numbers), "texts": [str(number) for number in numbers]}

    def begin(self, numbers: list[int]) -> Any:
        return SimpleNamespace(finish=lambda: self.__getitems__(numbers), close=lambda: None)


def test_bad_samples_of_a_dataset_that_returns_whole_batches_are_not_told_apart() -> None:
    with BatchLoader(Collated(10, [6]), BATCHES, on_bad="skip") as loader:
        batches = iter(loader)
        assert next(batches)["inputs"] == BATCHES[0]
        with pytest.raises(InvalidRequest, match=r"a dict for a batch of 2 samples, .* ValueError: sample 6 is broken"):
            next(batches)
