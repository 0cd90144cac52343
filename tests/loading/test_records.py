"""Records of batches, their sums, and the warning of a loader that waits."""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loading_kit import Held, Numbers

from ais_loader import BatchLoader, Client, Item, MapDataset, ShufflePlan
from ais_loader.errors import InvalidRequest, SilenceTimeout
from ais_loader.loading.records import BatchRecord
from ais_loader.testing import eventually, throwaway_store


def test_every_batch_has_a_record_and_they_add_up() -> None:
    records: list[BatchRecord] = []
    threads: set[str] = set()

    def note(record: BatchRecord) -> None:
        records.append(record)
        threads.add(threading.current_thread().name)

    with throwaway_store({str(at): b"data" for at in range(20)}, bucket="b") as client:
        plan = ShufflePlan(20, 4, group=2)
        loader = BatchLoader(MapDataset(client, "ais://b/"), plan, on_batch=note, rank=1, world_size=2)
        batches = len(list(loader))
    assert [record.step for record in records] == [1, 3, 5]
    assert threads == {threading.current_thread().name}
    assert [(record.entries, record.payload_bytes) for record in records] == [(4, 16)] * batches
    assert all(record.worker.startswith("ais-loader-decode-") for record in records)
    summary = loader.summary()
    assert (summary.batches, summary.entries, summary.payload_bytes) == (3, 12, 48)
    for name in ("draw_s", "wire_s", "wait_s", "collate_s"):
        assert getattr(summary, name) == pytest.approx(sum(getattr(record, name) for record in records))


def slow_sampler() -> Iterator[list[int]]:
    for at in range(8):
        time.sleep(0.02)
        yield [at]


def slow(samples: list[Any]) -> list[Any]:
    time.sleep(0.02)
    return samples


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["trainer", "draw", "receive", "decode", "collate"])
def test_the_bottleneck_is_named(stage: str) -> None:
    def decode(item: Item) -> int:
        time.sleep(0.02)
        return 0

    def bottleneck(client: Client) -> str | None:
        batches: Any = slow_sampler() if stage == "draw" else [[at] for at in range(8)]
        dataset: Any = Numbers(8)
        if stage in ("receive", "decode"):
            dataset = MapDataset(client, "ais://b/", decode if stage == "decode" else None)
        loader = BatchLoader(dataset, batches, threads=1, in_flight=1, collate=slow if stage == "collate" else None)
        for _ in loader:
            time.sleep(0.15 if stage == "trainer" else 0)
        return loader.summary().bottleneck

    size = 3_000_000 if stage == "receive" else 1
    with throwaway_store({str(at): b"d" * size for at in range(8)}, bucket="b") as client:
        # A busy machine may make another stage the slowest one, but not always the same.
        assert any(bottleneck(client) == stage for _ in range(5))


def assert_stalls(told: str, make: Callable[..., BatchLoader]) -> None:
    """The loader raises this. A busy machine may not have begun when it is asked soon."""
    for stall_s in (0.05, 1.0, 10.0):
        with pytest.raises(SilenceTimeout) as raised:
            list(make(stall_s=stall_s, on_stall="raise"))
        if re.search(told, str(raised.value)):
            return
    raise AssertionError(f"{raised.value} does not match {told!r}")


class TestStalls:
    def test_a_decoder_that_does_not_return_is_named_once_with_the_stacks(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        wanted = "rank 0, batch 4 of this iteration: no batch for {:g} s; ais-loader-decode-"
        for stall_s in (1.0, 30.0):
            dataset = Held(9, 4)
            loader = BatchLoader(dataset, [[at] for at in range(9)], stall_s=stall_s)
            found: list[Any] = []
            trainer = threading.Thread(target=lambda loader=loader, found=found: found.extend(loader))
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                trainer.start()
                eventually(lambda: caplog.records)
                dataset.go.set()
                trainer.join(180)
            assert found == [[at] for at in range(9)]
            told = [record.getMessage() for record in caplog.records if "no batch for" in record.getMessage()]
            if len(told) == 1 and wanted.format(stall_s) in told[0]:
                break  # a busy machine may have been waited for, after the first time
        [text] = told
        assert wanted.format(stall_s) in text
        assert "is in stage 'decode' since" in text
        assert "for sample 4" in text
        assert "__getitems__" in text

    def test_a_decoder_of_a_store_is_told_from_its_reads(self) -> None:
        go = threading.Event()

        def decode(item: Item) -> int:
            assert go.wait(180)
            return 0

        with throwaway_store({"a": b"data"}, bucket="b") as client:
            assert_stalls(
                r"rank 0, batch 0 .* stage 'decode' since .*, for sample 0, ais://b/a$",
                functools.partial(BatchLoader, MapDataset(client, "ais://b/", decode), [[0]]),
            )
            go.set()
            eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("ais-loader-decode")])

    def test_collate_and_the_sampler_are_named_too(self) -> None:
        go = threading.Event()

        def wait(samples: list[Any]) -> list[Any]:
            assert go.wait(180)
            return samples

        class Sampler:
            def __iter__(self) -> Iterator[list[int]]:
                yield [0]
                assert go.wait(180)
                yield [1]

        for options, told in (
            ({"batches": [[0]], "collate": wait}, r"batch 0 of this iteration: .* stage 'collate'"),
            ({"batches": Sampler()}, r"after batch 0 of this iteration: .* ais-loader-draw is in stage 'draw'"),
        ):
            go.clear()
            assert_stalls(told, functools.partial(BatchLoader, Numbers(2), **options))
            go.set()
            eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("ais-loader-d")])

    def test_threads_cannot_be_restarted(self) -> None:
        with pytest.raises(InvalidRequest, match="needs worker processes"):
            BatchLoader(Numbers(2), [[0]], on_stall="restart")
