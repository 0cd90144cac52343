"""Source for Grain, without Grain: threads that read at the same time share a request, and errors do not spread."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ais_loader import Entry, errors
from ais_loader.integrations.grain import Source
from ais_loader.testing import eventually, throwaway_store

OBJECTS = {f"{at:02}": b"%d" % at for at in range(20)}
URLS = [f"ais://b/{name}" for name in OBJECTS]


class Slow:
    """A dataset whose requests wait until they are released."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.may_answer = threading.Semaphore(0)

    def __len__(self) -> int:
        return 100

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.requests.append(list(indices))
        assert self.may_answer.acquire(timeout=180)
        if 13 in indices:
            raise ArithmeticError("unlucky")
        return [-at for at in indices]


def test_reads_during_a_request_are_the_next_one() -> None:
    dataset = Slow()
    source = Source(dataset)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(source.__getitem__, 5)
        eventually(lambda: dataset.requests == [[5]])
        others = [threads.submit(source.__getitem__, at) for at in range(20, 27)]
        eventually(lambda: len(source._waiting) == 7)
        dataset.may_answer.release(2)
        assert first.result(180) == -5
        assert [one.result(180) for one in others] == [-at for at in range(20, 27)]
    assert [sorted(request) for request in dataset.requests] == [[5], list(range(20, 27))]


def test_an_error_belongs_to_its_sample() -> None:
    dataset = Slow()
    source = Source(dataset)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(source.__getitem__, 0)
        eventually(lambda: len(dataset.requests) == 1)
        others = {at: threads.submit(source.__getitem__, at) for at in (12, 13, 14)}
        eventually(lambda: len(source._waiting) == 3)
        dataset.may_answer.release(5)
        assert first.result(180) == 0
        assert (others[12].result(180), others[14].result(180)) == (-12, -14)
        with pytest.raises(ArithmeticError, match="unlucky"):
            others[13].result(180)
    dataset.may_answer.release(1)
    assert source[1] == -1


def test_a_thread_that_is_interrupted_leaves_the_others_their_turn() -> None:
    class Interrupted(Slow):
        def __getitems__(self, indices: list[int]) -> list[int]:
            answer = super().__getitems__(indices)
            if 7 in indices and len(self.requests) == 2:
                raise KeyboardInterrupt
            return answer

    dataset = Interrupted()
    source = Source(dataset)
    results: dict[int, Any] = {}

    def read(at: int) -> None:
        try:
            results[at] = source[at]
        except KeyboardInterrupt:
            results[at] = "interrupted"

    threads = [threading.Thread(target=read, args=(0,))]
    threads[0].start()
    eventually(lambda: len(dataset.requests) == 1)
    for number, at in enumerate((7, 8, 9), 1):
        threads.append(threading.Thread(target=read, args=(at,)))
        threads[-1].start()
        eventually(lambda number=number: len(source._waiting) == number)
    dataset.may_answer.release(10)
    for thread in threads:
        thread.join(180)
    assert sorted(results) == [0, 7, 8, 9]
    assert [at for at, result in results.items() if result == "interrupted"] != []
    assert len([at for at, result in results.items() if result == -at]) == 3


def test_a_source_reads_a_dataset_from_threads_and_after_pickling() -> None:
    from ais_loader import MapDataset

    with throwaway_store(OBJECTS, bucket="b") as client:
        source = Source(MapDataset(client.url, URLS))
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(source.__getitem__, range(20))) == list(OBJECTS.values())
        assert source.__getitems__(np.array([3, 19, 3])) == [b"3", b"19", b"3"]
        assert source._getitems([4, 0]) == [b"4", b"0"]
        assert source[np.int64(-1)] == b"19"
        again = pickle.loads(pickle.dumps(source))
        assert (len(again), again[7], repr(again)) == (20, b"7", repr(source))
        with pytest.raises(IndexError):
            source[20]
        missing = Source(MapDataset(client, [*URLS[:5], Entry("b", "none")]))
        with ThreadPoolExecutor(6) as threads:
            reads = [threads.submit(missing.__getitem__, at) for at in range(6)]
        assert [read.result() for read in reads[:5]] == list(OBJECTS.values())[:5]
        with pytest.raises(errors.ObjectNotFound):
            reads[5].result()


def test_the_repr_tells_other_entries_apart() -> None:
    from ais_loader import MapDataset, concat

    with throwaway_store(OBJECTS, bucket="b") as client:
        whole = repr(Source(MapDataset(client, URLS)))
        assert whole == repr(Source(MapDataset(client.url, URLS)))
        assert whole != repr(Source(MapDataset(client, [*URLS[:-1], URLS[0]])))
        both = concat([MapDataset(client, URLS[:9]), MapDataset(client, URLS[9:])])
        assert repr(Source(both)) == repr(Source(both)) != whole
        assert "20 samples" in repr(Source(both))


def test_what_is_no_map_style_dataset_is_refused() -> None:
    for wrong in ([1, 2], iter(()), None):
        with pytest.raises(TypeError, match="no map-style dataset"):
            Source(wrong)
