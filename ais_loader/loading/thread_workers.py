"""Thread workers: threads of the trainer's process fetch, decode and collate, without copies between processes."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

from ais_loader.errors import Unsupported
from ais_loader.loading.workers import FetchedBatch, Fetcher, WorkerProgress
from ais_loader.training.sample_seeds import SampleSeeds


class _ThreadTask(NamedTuple):
    ticket: int
    work: Any
    pending: Any
    seeds: SampleSeeds
    future: Future[FetchedBatch]


class ThreadWorkers:
    """Threads that share a queue. They are daemons: one that never returns does not keep the process from ending."""

    def __init__(self, fetcher: Fetcher, threads: int) -> None:
        self._fetcher = fetcher
        self._tasks: SimpleQueue[_ThreadTask | None] = SimpleQueue()
        self._progress: dict[int, WorkerProgress] = {}
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"ais-loader-decode-{at}", daemon=True) for at in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: int, work: Any, named: str, seed: int) -> Future[FetchedBatch]:
        future: Future[FetchedBatch] = Future()
        progress = self._progress[ticket] = WorkerProgress(threading.current_thread().name)
        pending = self._fetcher.begin(work)
        progress.enter("queue")
        self._tasks.put(_ThreadTask(ticket, work, pending, SampleSeeds(seed), future))
        return future

    def progress(self, ticket: int) -> str:
        return str(self._progress.get(ticket, "no worker"))

    def restart(self, ticket: int) -> None:
        raise Unsupported("on_stall='restart': a thread cannot be ended; it needs worker processes")

    def close(self, *, wait: bool = True) -> None:
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():  # which may collect garbage
                thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._closed:
                _abandon(task)
                continue
            progress = self._progress[task.ticket]
            progress.worker = threading.current_thread().name
            try:
                task.future.set_result(self._fetcher.finish(task.work, task.pending, progress, task.seeds))
            except BaseException as error:  # noqa: BLE001 - raised where the batch is consumed
                task.future.set_exception(error)
            self._progress.pop(task.ticket, None)
            del task  # or its batch would live until the next one comes


def _abandon(task: _ThreadTask) -> None:
    task.future.cancel()
    if task.pending is not None:
        task.pending.close()
