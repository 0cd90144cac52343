"""Who may be in gRPC, or open a catalog, while the process forks: nobody but the thread that forks, however long it
takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ais_loader.fork_barrier import ForkBarrier
from ais_loader.testing import eventually

DEADLINE_S = 180.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def go_in(barrier: ForkBarrier) -> str:
    with barrier.call():
        return "been in"


def waits(barrier: ForkBarrier, task: Future[Any]) -> bool:
    """Whether the task has come to wait at the barrier, and stays there."""
    eventually(lambda: task.running() and barrier._changed._waiters)  # type: ignore[attr-defined]
    return not task.done()


def test_nobody_goes_in_before_the_fork_is_over(pool: ThreadPoolExecutor) -> None:
    barrier = ForkBarrier()
    barrier.close()
    entering = pool.submit(go_in, barrier)
    assert waits(barrier, entering)
    assert barrier.wait_until_empty(0.0)
    barrier.open()
    assert entering.result(DEADLINE_S) == "been in"


def test_a_fork_waits_for_who_is_inside_who_may_go_in_again(pool: ThreadPoolExecutor) -> None:
    barrier, inside, again, out = ForkBarrier(), threading.Event(), threading.Event(), threading.Event()

    def stay() -> str:
        with barrier.call():
            inside.set()
            assert again.wait(DEADLINE_S)
            went = go_in(barrier)
            assert out.wait(DEADLINE_S)
            return went

    staying = pool.submit(stay)
    assert inside.wait(DEADLINE_S)
    barrier.close()
    again.set()
    assert not barrier.wait_until_empty(0.02)
    out.set()
    assert barrier.wait_until_empty(DEADLINE_S)
    assert staying.result(DEADLINE_S) == "been in"


def test_the_thread_that_forks_goes_in_and_is_not_waited_for() -> None:
    barrier = ForkBarrier()
    with barrier.call():
        barrier.close()
        assert go_in(barrier) == "been in"
        assert barrier.wait_until_empty(0.0)
        barrier.open()
    assert barrier.wait_until_empty(0.0)


def test_forks_of_two_threads_come_one_after_the_other(pool: ThreadPoolExecutor) -> None:
    barrier, forks, go_on = ForkBarrier(), threading.Event(), threading.Event()

    def fork() -> None:
        barrier.close()
        forks.set()
        assert go_on.wait(DEADLINE_S)
        barrier.open()

    barrier.close()
    forking = pool.submit(fork)
    assert waits(barrier, forking)
    assert not forks.is_set()
    barrier.open()
    assert forks.wait(DEADLINE_S)
    barrier.open()  # by a thread that does not fork, which had none to end
    entering = pool.submit(go_in, barrier)
    assert waits(barrier, entering)
    go_on.set()
    assert (forking.result(DEADLINE_S), entering.result(DEADLINE_S)) == (None, "been in")


def test_a_fork_in_a_handler_of_a_signal_during_a_fork_does_not_open_the_gate(pool: ThreadPoolExecutor) -> None:
    barrier = ForkBarrier()
    barrier.close()
    barrier.close()
    barrier.open()
    entering = pool.submit(go_in, barrier)
    assert waits(barrier, entering)
    barrier.open()
    assert entering.result(DEADLINE_S) == "been in"


def test_a_child_that_was_forked_inside_finds_the_gate_open_and_whole(pool: ThreadPoolExecutor) -> None:
    barrier = ForkBarrier()
    with barrier.call():
        barrier.close()
        barrier.open_in_child()
    assert pool.submit(go_in, barrier).result(DEADLINE_S) == "been in"
    barrier.close()
    assert barrier.wait_until_empty(0.0)
