"""Process workers: processes that fetch, decode and collate, and write their batches into slots of shared memory.

Each worker has a socket to the trainer, and a thread there that hands it batches: one to work on, and one whose data it
requests ahead. A worker that dies, or is ended because it stalls, is replaced, and its batches go to the worker that is
free first. No batch is lost or repeated, as a batch counts when it has arrived.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import logging
import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler, recvfds, sendfds
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Any, Literal, NamedTuple, TypeAlias

from ais_loader.errors import LoaderError
from ais_loader.extras import needs
from ais_loader.loading.slots import Parcel, SlotReader, SlotWriter
from ais_loader.loading.workers import FetchedBatch, Fetcher, WorkerProgress
from ais_loader.training.sample_seeds import SampleSeeds
from ais_loader.training.worker_exit import exit_with_trainer
from ais_loader.wire.memory_file import memory_file

with needs("torch", "BatchLoader"):
    import torch

StartMethod: TypeAlias = Literal["fork", "spawn", "forkserver"]
START_METHODS = ("fork", "spawn", "forkserver")
_HELD = 2
"""The batches that a worker has at a time: it requests the data of one while it decodes another."""
SLOTS_BESIDES = 3
"""Slots of a worker besides its share of those in flight: being written, with the trainer, and about to be dropped."""
_CLOSE_S = 1.0
_DUMP_S = 1.0
_REAPED_S = 0.2
_STAGE = struct.Struct("=Q8sd")
"""A worker's stage: whether it has begun, its name, and since when, in seconds."""
_STAGE_BYTES = 64
_starting = threading.Lock()
"""Lest a forked worker inherit the other end of a socket that is being made."""
log = logging.getLogger(__name__)


class _Task(NamedTuple):
    ticket: int
    work: Any
    named: str
    data: Any
    future: Future[FetchedBatch]


class ProcessWorkers:
    """Worker processes, which live until they are closed, and end within seconds after a trainer that was killed."""

    def __init__(
        self,
        fetcher: Fetcher,
        workers: int,
        *,
        context: StartMethod = "fork",
        in_flight: int = 3,
        max_restarts: int = 3,
        pin_memory: bool = False,
    ) -> None:
        """
        Args:
            max_restarts: The number of workers that may be replaced, all together. After that, all batches fail.
        """
        self._fetcher, self._context, self._pin_memory = fetcher, context, pin_memory
        self._slots = -(-in_flight // workers) + SLOTS_BESIDES
        self._restarts_left = self._max_restarts = max_restarts
        self._pid = os.getpid()
        self._tasks: PriorityQueue[tuple[float, int, _Task | None]] = PriorityQueue()
        self._order = itertools.count()
        self._idle: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._failed: LoaderError | None = None
        self._told_full = False
        self._workers: list[_Worker] = []
        try:
            for at in range(workers):
                self._workers.append(self._start(at))
        except BaseException:
            self.close(wait=False)
            raise
        self._keepers = [
            threading.Thread(target=self._keep, args=(at,), name=f"ais-loader-worker-{at}", daemon=True)
            for at in range(workers)
        ]
        for keeper in self._keepers:
            keeper.start()

    def begin_again(self) -> bool:
        """Prepare for another iteration, whose tickets may begin anew. Returns False if they can no longer work."""
        with self._lock:
            self._restarts_left = self._max_restarts
            if self._failed is None and os.getpid() == self._pid:
                return True
        self.close(wait=False)
        return False

    def submit(self, ticket: int, work: Any, named: str, seed: int) -> Future[FetchedBatch]:
        """Fetch the samples of `work`. Raises the errors of pickling it."""
        packed = bytes(ForkingPickler.dumps(work))  # apart, so that an error of unpickling it has a ticket
        task = _Task(ticket, work, named, ForkingPickler.dumps((ticket, packed, seed)), Future())
        self._put(task)
        return task.future

    def progress(self, ticket: int) -> str:
        """Return which worker has the work of a ticket, and its stage. The stacks of its threads are logged."""
        with self._lock:
            worker = self._holder(ticket)
            if worker is None:
                return "no worker has begun it"
            stage = worker.stage()  # before a signal, which may interrupt what stalls
            log.warning("stacks of %s:\n%s", worker.name, worker.stacks())
            return f"{worker.name} is in stage {stage[1]}"

    def restart(self, ticket: int) -> None:
        with self._lock:
            worker = self._holder(ticket)
            for one in self._workers if worker is None else [worker]:  # all workers stall, and none can begin it
                one.has_stalled = True
                one.process.kill()
                hang_up(one.conn)

    def close(self, *, wait: bool = True) -> None:
        if os.getpid() != self._pid:  # in a child that was forked, which has none of these
            return
        with self._lock:
            self._closed = True
        for _ in self._workers:
            self._tasks.put((-1, next(self._order), None))
        for worker in self._workers:
            hang_up(worker.conn)
        deadline_s = time.monotonic() + (_CLOSE_S if wait else 0)
        for worker in self._workers:
            worker.process.join(max(0.0, deadline_s - time.monotonic()))
            worker.process.kill()
        for keeper in self.__dict__.get("_keepers", ()):
            if keeper is not threading.current_thread():
                keeper.join()
        for worker in self._workers:
            worker.close()
        while not self._tasks.empty():
            task = self._tasks.get()[2]
            if task is not None:
                task.future.cancel()
        self._workers = []

    def _put(self, task: _Task) -> None:
        with self._lock:
            if self._failed is None:
                self._tasks.put((task.ticket, next(self._order), task))
                return
        task.future.set_exception(self._failed)

    def _holder(self, ticket: int) -> _Worker | None:
        return next((worker for worker in self._workers if ticket in worker.held), None)

    def _start(self, at: int) -> _Worker:
        others = [worker.conn for worker in self._workers] if self._context == "fork" else []
        return _Worker(self._context, at, (_Sent(self._fetcher), self._slots), others, self._pin_memory)

    # -- in the thread of each worker

    def _keep(self, at: int) -> None:
        try:
            while self._hand_out(at):
                worker = self._workers[at]
                if worker.conn in wait([worker.conn, worker.process.sentinel]) and self._receive(worker):
                    continue
                worker.process.kill()
                worker.process.join()
                hang_up(worker.conn)  # what it has sent can be read, and then the end, whoever has inherited its socket
                while worker.held and self._receive(worker):
                    pass
                if not self._replace(at, worker):
                    return
        except BaseException as error:  # noqa: BLE001 - of code of the user's, for instance; nobody else would learn it
            with self._lock:
                told = f"{self._workers[at].name} cannot be served: {traceback.format_exception_only(error)[0].strip()}"
                self._failed = self._failed or LoaderError(told)
            self._put_back(self._workers[at].held.values())

    def _hand_out(self, at: int) -> bool:
        """Hand batches to a worker. Wait for one if it has none. Returns whether to go on."""
        held = self._workers[at].held
        while len(held) < _HELD and not (held and self._idle):
            if not held:
                self._idle.add(at)
            try:
                _, _, task = self._tasks.get(block=not held)
            except Empty:
                break
            finally:
                self._idle.discard(at)
            if task is None:
                self._tasks.put((-1, next(self._order), None))
                break
            held[task.ticket] = task
            with contextlib.suppress(OSError):  # it has died, which is found out below
                self._workers[at].conn.send_bytes(task.data)
        return bool(held)

    def _receive(self, worker: _Worker) -> bool:
        """Receive a batch or an error. Returns False if the worker has died."""
        try:
            ticket, began_s, result = worker.conn.recv()
            if ticket is None:
                worker.failure = error_of(result, worker.name)
                return False
            file = receive_file(worker.conn) if isinstance(result, Parcel) and result.is_new else None
        except (EOFError, OSError, RuntimeError, MemoryError, pickle.UnpicklingError):
            return False
        if isinstance(result, Parcel) and result.failure and not self._told_full:
            self._told_full = True
            log.warning("no shared memory for batches (%s): they go through sockets, which is slower", result.failure)
        deliver(worker.held.pop(ticket).future, worker.slots, result, file, began_s, worker.name)
        return True

    def _replace(self, at: int, worker: _Worker) -> bool:
        """Start another worker in the place of one that died. Returns whether to go on."""
        lost = [worker.held[ticket] for ticket in sorted(worker.held)]
        with self._lock:
            if self._closed:
                for task in lost:
                    task.future.cancel()
                return False
            if self._failed is None and worker.has_failed_to_start:
                self._failed = LoaderError(
                    f"{worker.name} {worker.end} before its first batch, and so would others; its traceback is "
                    + ("below" if worker.failure else "on standard error")
                )
                for note in getattr(worker.failure, "__notes__", ()):
                    self._failed.add_note(note)
            elif self._failed is None and self._restarts_left:
                self._restarts_left -= 1
                worker.close()
                try:
                    self._workers[at] = self._start(at)
                except Exception as error:  # noqa: BLE001 - of fork, or of pickling the dataset
                    self._failed = LoaderError(f"{worker.name} {worker.end}, and no other could be started: {error}")
            elif self._failed is None:
                first = f"at {lost[0].named}, {self._fetcher.name_of(lost[0].work)}" if lost else "without work"
                self._failed = LoaderError(f"{worker.name} {worker.end}, {first}, and may not be replaced again")
        return self._put_back(lost)

    def _put_back(self, lost: Iterable[_Task]) -> bool:
        """Let any worker take these batches. If there may be none, all that wait fail. Returns whether to go on."""
        for task in lost:
            self._put(task)
        while self._failed is not None:
            with contextlib.suppress(Empty):
                if (left := self._tasks.get_nowait()[2]) is not None:
                    left.future.set_exception(self._failed)
                    continue
                self._tasks.put((-1, next(self._order), None))
            break
        return self._failed is None


class _Worker:
    """A worker process, in the trainer."""

    def __init__(
        self, method: StartMethod, at: int, work: tuple[_Sent, int], others: list[Connection], pin_memory: bool
    ) -> None:
        self.held: dict[int, _Task] = {}
        self.slots = SlotReader(pin_memory=pin_memory)
        self.has_stalled = False
        self.failure: Exception | None = None
        """Its error, if it could not begin."""
        self.exitcode: int | None = 0
        self.notes: int | None = memory_file("ais-loader-notes")
        context = multiprocessing.get_context(method)
        with _starting:
            self.conn, end = context.Pipe()
            self.process: Any = context.Process(  # type: ignore[attr-defined]
                target=_run,
                args=(end, f"worker {at}", *work, [*others, self.conn] if method == "fork" else []),
                name=f"ais-loader-worker-{at}",
                daemon=True,
            )
            try:
                self.process.start()
                with contextlib.suppress(OSError):  # it has died already
                    send_file(self.conn, self.notes)
            except BaseException:
                self.conn.close()
                os.close(self.notes)
                raise
            finally:
                end.close()
        self.name = f"worker {at} (pid {self.process.pid})"

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self.exitcode if self.notes is None else self.process.exitcode
        if self.failure is not None:
            return f"failed with {type(self.failure).__name__}: {self.failure}"
        if self.has_stalled:
            return "stalled, and was ended"
        if code is None:
            return "ended"
        names = (one.name for one in signal.Signals if one == -code)
        return f"was killed by {next(names, f'signal {-code}')}" if code < 0 else f"ended with status {code}"

    @property
    def has_failed_to_start(self) -> bool:
        """Whether it ended by itself before it had begun."""
        killed = (None, -signal.SIGKILL, -signal.SIGTERM)
        return self.failure is not None or not (self.stage()[0] or self.has_stalled or self.process.exitcode in killed)

    def stage(self) -> tuple[bool, str]:
        """Return whether it has begun, and its stage in words."""
        data = b"" if self.notes is None else os.pread(self.notes, _STAGE.size, 0)
        has_begun, name, since_s = _STAGE.unpack(data) if data else (0, b"", 0.0)
        if not has_begun:
            return False, "'start'"
        return True, f"{name.rstrip(bytes(1)).decode()!r} since {time.strftime('%X', time.localtime(since_s))}"

    def stacks(self) -> str:
        if self.notes is None or not self.stage()[0]:
            return "not available: it has not begun"
        size = os.fstat(self.notes).st_size
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(self.process.pid, signal.SIGUSR1)
        deadline_s, text = time.monotonic() + _DUMP_S, b""
        while time.monotonic() < deadline_s:
            before, text = text, os.pread(self.notes, 1 << 20, size)
            if text and text == before:
                break
            time.sleep(0.02)
        return text.decode(errors="replace")

    def close(self) -> None:
        """Free what it had, once it has ended. May be called again."""
        if self.notes is not None:
            self.process.join()
            deadline_s = time.monotonic() + _REAPED_S
            while self.process.exitcode is None and time.monotonic() < deadline_s:
                time.sleep(0.001)  # another thread was told of its end, and is about to note it
            self.exitcode = self.process.exitcode
            with contextlib.suppress(ValueError):  # nobody was told, as the trainer ignores SIGCHLD
                self.process.close()
            self.conn.close()
            os.close(self.notes)
            self.notes = None


# -- in the worker


class _NotedProgress(WorkerProgress):
    """Progress that the trainer can read, also while this process stalls."""

    notes: mmap.mmap

    def enter(self, stage: str) -> None:
        self.stage = stage
        _STAGE.pack_into(self.notes, 0, 1, stage.encode(), time.time())


class _Sent:
    """A fetcher on its way to a worker. It is unpickled by `take`, so that an error can be reported to the trainer."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher: Fetcher | bytes = fetcher

    def __getstate__(self) -> dict[str, bytes]:
        return {"_fetcher": bytes(ForkingPickler.dumps(self._fetcher))}

    def take(self) -> Fetcher:
        return pickle.loads(self._fetcher) if isinstance(self._fetcher, bytes) else self._fetcher


def _run(conn: Connection, name: str, sent: _Sent, slots: int, others: list[Connection]) -> None:
    exit_with_trainer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer ends its workers
    for other in others:
        other.close()
    os.register_at_fork(after_in_child=conn.close)  # a child that kept it open would hide the death of this process
    torch.set_num_threads(1)  # the threads of a forked trainer do not exist here
    try:
        fetcher = sent.take()
    except BaseException as error:
        conn.send((None, 0.0, packed_error(error)))
        raise
    notes = receive_file(conn)
    os.ftruncate(notes, _STAGE_BYTES)
    os.lseek(notes, 0, os.SEEK_END)
    _NotedProgress.notes = mmap.mmap(notes, _STAGE_BYTES)
    progress = _NotedProgress(name)
    faulthandler.register(signal.SIGUSR1, notes, all_threads=True)
    tasks: SimpleQueue[tuple[int, Any, Any, int] | None] = SimpleQueue()
    threading.Thread(target=_begin, args=(conn, fetcher, tasks), name="ais-loader-begin", daemon=True).start()
    writer = SlotWriter(slots)
    progress.enter("request")  # a batch that it has is with the other thread
    while (task := tasks.get()) is not None:
        ticket, work, pending, seed = task
        file = None
        try:
            if isinstance(pending, BaseException):
                raise pending
            fetched = fetcher.finish(work, pending, progress, SampleSeeds(seed, owns_process=True))
            progress.enter("transfer")
            began_s = time.perf_counter()
            result: Any
            result, file = writer.write(fetched)
        except BaseException as error:  # noqa: BLE001 - raised in the trainer
            began_s, result = 0.0, packed_error(error)
        with contextlib.suppress(OSError):  # the trainer has hung up, and `tasks` ends
            conn.send((ticket, began_s, result))
            if file is not None:
                send_file(conn, file)
        if file is not None:
            os.close(file)
        progress.enter("request")
        del task, work, pending


def _begin(conn: Connection, fetcher: Fetcher, tasks: SimpleQueue[tuple[int, Any, Any, int] | None]) -> None:
    """Receive batches, and request their samples ahead."""
    with contextlib.suppress(Exception):  # the trainer has hung up, or there is no memory for its message
        while True:
            ticket, packed, seed = conn.recv()
            work = pending = None
            try:
                work = pickle.loads(packed)
                pending = fetcher.begin(work)
            except BaseException as error:  # noqa: BLE001 - raised in the trainer
                pending = error
            tasks.put((ticket, work, pending, seed))
    tasks.put(None)


# -- at both ends


def hang_up(conn: Connection) -> None:
    """End a connection for all who have it. What has been sent can still be received."""
    with contextlib.suppress(OSError), _end_of(conn) as end:
        end.shutdown(socket.SHUT_RDWR)


def send_file(conn: Connection, file: int) -> None:
    with _end_of(conn) as end:
        sendfds(end, [file])


def receive_file(conn: Connection) -> int:
    with _end_of(conn) as end:
        return recvfds(end, 1)[0]


@contextlib.contextmanager
def _end_of(conn: Connection) -> Iterator[socket.socket]:
    """Yield a socket of the connection, which stays as it is: any other type would give it the default timeout."""
    # Not of a copy: where descriptors have run out, a connection has to be ended all the same.
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, conn.fileno())
    try:
        yield end
    finally:
        end.detach()


def deliver(
    future: Future[FetchedBatch], slots: SlotReader, result: Any, file: int | None, began_s: float, sender: str
) -> None:
    """Set a future to the batch or the error that has arrived. `file`: that of a new slot, which is closed."""
    if not isinstance(result, Parcel):
        future.set_exception(error_of(result, sender))
        return
    try:
        fetched: FetchedBatch = slots.read(result, file)
    except BaseException as error:  # noqa: BLE001 - raised where the batch is consumed
        future.set_exception(error.with_traceback(None))  # it would keep the slots
        return
    fetched.transfer_s = time.perf_counter() - began_s
    future.set_result(fetched)


def packed_error(error: BaseException) -> tuple[bytes, str]:
    """Return the error for the trainer, with its type if it can be pickled, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - any error in a class of the caller's
        data = pickle.dumps(RuntimeError(traceback.format_exception_only(error)[0].strip()))  # its text may raise, too
    return data, text


def error_of(failure: tuple[bytes, str], name: str) -> Exception:
    data, text = failure
    try:
        error: BaseException = pickle.loads(data)
        if not isinstance(error, Exception):  # SystemExit would end the trainer
            error = RuntimeError(repr(error))
    except BaseException as problem:  # noqa: BLE001 - of a class that is not here, or the user's
        error = RuntimeError(f"an error that cannot be unpickled here ({type(problem).__name__}); see below")
    with contextlib.suppress(Exception):  # of a class that takes no notes
        error.add_note(f"raised in {name}:\n{text}")
    return error
