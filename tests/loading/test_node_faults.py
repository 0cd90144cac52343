"""Storage nodes that are killed, freeze or come back under a loader: its batches are those of a node that never did."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from process_kit import nothing_left

from ais_loader import BatchLoader, ClusterOptions, MapDataset, ShufflePlan, connect
from ais_loader.errors import NodeUnavailable, SilenceTimeout
from ais_loader.testing import NodeProcess, eventually, throwaway_node

COUNT, BATCH = 48, 4
OBJECTS = {f"{at:03}": bytes([at]) * 20_000 for at in range(COUNT)}
PLAN = ShufflePlan(COUNT, BATCH, seed=5)
EXPECTED = [[int(at) for at in PLAN.batch(epoch, step)] for epoch in range(2) for step in range(COUNT // BATCH)]
PROCESSES = pytest.param(2, marks=pytest.mark.fresh_process)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running() -> Iterator[NodeProcess]:
    with throwaway_node(OBJECTS, bucket="b") as node:
        yield node


@pytest.fixture
def node(running: NodeProcess) -> Iterator[NodeProcess]:
    yield running
    if running.alive:
        running.resume()
    else:
        running.start()


@contextmanager
def loader(
    node: NodeProcess, workers: int, *, timeout_s: float = 180, retry_s: float = 240, **options: Any
) -> Iterator[BatchLoader]:
    with connect(node.url, options=ClusterOptions(retry_s=retry_s)) as client:
        dataset = MapDataset(client, "ais://b/", timeout_s=timeout_s)
        with BatchLoader(dataset, PLAN, workers=workers, in_flight=4, **options) as batches:
            yield batches


def number_of(batch: list[bytes]) -> list[int]:
    """The numbers of the samples of a batch, which must be whole."""
    assert all(sample == OBJECTS[f"{sample[0]:03}"] for sample in batch)
    return [sample[0] for sample in batch]


def freeze(node: NodeProcess) -> threading.Thread:
    node.pause()
    return later(1.0, node.resume)


def kill(node: NodeProcess) -> threading.Thread:
    node.kill()
    return later(0.5, node.start)


def later(wait_s: float, step: Callable[[], object]) -> threading.Thread:
    timer = threading.Timer(wait_s, step)
    timer.start()
    return timer


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, PROCESSES])
@pytest.mark.parametrize("fault", [kill, freeze, NodeProcess.restart])
def test_a_fault_changes_no_batch(node: NodeProcess, workers: int, fault: Any) -> None:
    found, ending = [], None
    with nothing_left():
        with loader(node, workers) as batches:
            for _ in range(2):
                for batch in batches:
                    found.append(number_of(batch))
                    if len(found) == 3:
                        ending = fault(node)
        if ending is not None:
            ending.join(180)
        assert node.alive
    assert found == EXPECTED


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, PROCESSES])
@pytest.mark.parametrize("fault", [NodeProcess.kill, NodeProcess.pause])
def test_a_node_that_stays_away_is_an_error_behind_whole_batches_and_the_position_is_kept(
    node: NodeProcess, workers: int, fault: Any
) -> None:
    for patience_s in (1, 30):
        found = until_it_is_away(node, workers, fault, patience_s)
        if len(found) >= 3:  # a busy node may not even have begun after the first time
            break
    assert found == EXPECTED[: COUNT // BATCH]


def until_it_is_away(node: NodeProcess, workers: int, fault: Any, patience_s: float) -> list[list[int]]:
    """Return the batches up to an error after the third, and those of a resume."""
    found: list[list[int]] = []
    with nothing_left():
        with loader(node, workers, timeout_s=patience_s, retry_s=patience_s) as batches:
            with pytest.raises((NodeUnavailable, SilenceTimeout)) as raised:
                for batch in batches:
                    found.append(number_of(batch))
                    if len(found) == 3:
                        fault(node)
            if len(found) < 3:
                return found
            assert len(found) < COUNT // BATCH
            first = EXPECTED[len(found)][0]
            assert f"raised for epoch 0, step {len(found)}, of sample {first}, ais://b/" in raised.value.__notes__[-1]
            state = batches.state_dict()
        node.resume() if node.alive else node.start()
        with loader(node, 0) as again:
            again.load_state_dict(state)
            found += [number_of(batch) for batch in again]
        del raised
    return found


@pytest.mark.parametrize("workers", [0, PROCESSES])
def test_a_wait_for_a_frozen_node_is_told_with_its_stage(
    node: NodeProcess, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    for stall_s in (1.0, 30.0):
        caplog.clear()
        with caplog.at_level(logging.WARNING), loader(node, workers, stall_s=stall_s) as batches:
            running = iter(batches)
            found = [number_of(next(running))]
            node.pause()
            thawing = threading.Thread(
                target=lambda: (eventually(lambda: "no batch for" in caplog.text), node.resume())
            )
            thawing.start()
            found += [number_of(batch) for batch in running]
            thawing.join()
        assert found == EXPECTED[: COUNT // BATCH]
        if "is in stage 'receive' since" in caplog.text:
            return  # a slow worker may have been waited for, after the first time
    raise AssertionError(caplog.text)
