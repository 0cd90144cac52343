"""Replica workers: one of the processes of a host that need the same batches reads them, and the others map its slots.

Each replica draws for itself and has a position of its own. Only the work goes to the reader: the replica that has the
name of a socket, which the kernel gives to one process at a time, and frees when that one ends. The others then take
what it had sent, meet again, and ask the next reader for what is missing.

The reader begins a batch when all replicas have drawn it. So none is more than its `in_flight` batches ahead of the
slowest, which bounds the slots in use. A replica that dies or leaves is no longer waited for. Batches are sent in the
order in which replicas succeed the reader: the next one has whatever any other has had, and copies it from there.
Replicas therefore never differ, whatever a decoder draws at random.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from ais_loader.errors import InvalidRequest
from ais_loader.loading.process_workers import SLOTS_BESIDES, deliver, hang_up, packed_error, receive_file, send_file
from ais_loader.loading.replicas import Replicas, ends
from ais_loader.loading.slots import Parcel, SlotReader, SlotWriter
from ais_loader.loading.workers import FetchedBatch, Workers
from ais_loader.training.plan import first_difference
from ais_loader.training.sample_seeds import digest_seed
from ais_loader.wire.channel_options import peer_of

JOIN_S = 60.0
"""Time after which a replica that has not begun an iteration is no longer waited for."""
_TURN_S = 1.0
"""Time that a replica leaves to those before it that have not begun the iteration to become the reader."""
_RETRY_S = 0.002
_LOOK_S = 0.02
_SEND_S = 10
"""Time after which a process that takes nothing from its socket is given up."""
log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """A batch that a replica has drawn."""

    ticket: int
    named: str
    drawn: dict[str, Any]
    """Its name and the digest of its numbers, the same for all replicas."""
    data: bytes
    """The pickled work and seed."""


class ReplicaWorkers:
    """The workers of one replica for one iteration: those of the replica that reads."""

    def __init__(
        self, replicas: Replicas, described: dict[str, Any], start: Callable[[], Workers], in_flight: int
    ) -> None:
        """
        Args:
            described: The plan and the place in it. All replicas raise InvalidRequest if one of them differs.
            start: Starts the workers, if this replica reads.
        """
        self._presence = replicas.begin()
        self._iteration = replicas.iteration
        self.replicas, self._described, self.start, self.in_flight = replicas, described, start, in_flight
        self._lock = threading.Lock()
        self._unanswered: dict[int, tuple[_Asked, Future[FetchedBatch]]] = {}
        self._drawn, self._pid = 0, os.getpid()
        self._first: dict[str, Any] = {}  # as drawn
        self._failed: Exception | None = None
        self._kept: deque[tuple[int, Parcel, SlotReader]] = deque(maxlen=2 * in_flight)
        """The latest batches, with where they are: others may lack them when the reader dies."""
        self.seen: set[int] = set()
        """Replicas that had begun when this one met a reader."""
        self._closed = threading.Event()
        self._conn: Connection | None = None
        self._reader: _Reader | None = None
        self._told = "no replica reads yet"
        self._thread = threading.Thread(target=self._run, name="ais-loader-replica", daemon=True)
        self._thread.start()

    def submit(self, ticket: int, work: Any, named: str, seed: int) -> Future[FetchedBatch]:
        """Ask for the samples of `work`. Raises the errors of pickling it."""
        drawn = ({} if ticket else self._described) | {"batch": named, "digest of its numbers": _digest(work)}
        self._first = self._first or drawn
        asked = _Asked(ticket, named, drawn, bytes(ForkingPickler.dumps((work, seed))))
        future: Future[FetchedBatch] = Future()
        with self._lock:
            self._drawn = ticket + 1
            if self._failed is not None:
                future.set_exception(self._failed)
                return future
            self._unanswered[ticket] = asked, future
            if self._conn is not None:
                _send(self._conn, asked)
        return future

    def progress(self, ticket: int) -> str:
        return self._told if self._reader is None else self._reader.progress(ticket)

    def restart(self, ticket: int) -> None:
        """Restart the worker, if this replica reads. The reader comes to this batch as well."""
        if self._reader is not None:
            self._reader.restart(ticket)

    def release(self) -> Workers | None:
        """Return the workers of a replica that reads, if they have no batch left, and close the rest."""
        self._leave()
        reader, self._reader = self._reader, None
        workers = None if reader is None else reader.release()
        self._kept.clear()
        return workers

    def close(self, *, wait: bool = True) -> None:
        if os.getpid() != self._pid:  # in a child that was forked, which has none of these
            return
        self._leave()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(wait=wait)
        self._kept.clear()
        for _, future in self._unanswered.values():
            future.cancel()

    def _leave(self) -> None:
        with self._lock:
            self._closed.set()
            if self._conn is not None:
                _send(self._conn, None)
                hang_up(self._conn)
        if self._thread is not threading.current_thread():  # which may collect garbage
            self._thread.join()
        self._presence.close()

    # -- in the thread

    def _run(self) -> None:
        try:
            while (conn := self._meet()) is not None:
                self._listen(conn)
        except Exception as error:  # noqa: BLE001 - raised for all batches
            with self._lock:
                self._failed = error
            for _, future in self._unanswered.values():
                future.set_exception(error)

    def _meet(self) -> Connection | None:
        """Return a connection to the reader, which may be this process; None if this replica has left."""
        replicas, turn_s = self.replicas, time.monotonic() + _TURN_S
        while not self._closed.wait(_RETRY_S):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)  # a reader that stands still takes no connections
            if sock.connect_ex(replicas.address(f"reader in {self._iteration}")) == 0:
                if (pid := _peer_of(sock)) is None:
                    sock.close()
                    raise InvalidRequest(f"a process of another user reads with the key of {replicas}")
                self._told = f"process {pid} reads for the replicas of this host"
                return _connection(sock)
            sock.close()
            if any(self.is_expected(one, is_late=True) for one in range(replicas.index)):
                continue  # it may have a batch that this one lacks, however long it stands still
            if time.monotonic() > turn_s or not any(map(self.is_expected, range(replicas.index))):
                with contextlib.suppress(OSError):  # another replica was faster
                    self._reader = _Reader(self)
        return None

    def is_expected(self, index: int, is_late: bool = False) -> bool:
        """Whether a replica is in this iteration, or may still begin it."""
        has_begun = is_late or index in self.seen or bool(self._kept)
        return self.replicas.is_expected(index, self._iteration, has_begun=has_begun)

    def _listen(self, conn: Connection) -> None:
        """Receive batches until the reader has ended."""
        slots = SlotReader(shared_as=self.replicas.index)
        self.seen |= {one for one in range(self.replicas.count) if self.is_expected(one, is_late=True)}
        with self._lock:
            _send(conn, (self.replicas.index, min(self._unanswered, default=self._drawn)))
            for asked, _ in self._unanswered.values():
                _send(conn, asked)
            self._conn = conn
        with contextlib.suppress(EOFError, OSError, RuntimeError):
            while not self._closed.is_set():
                ticket, began_s, result = conn.recv()
                file = receive_file(conn) if isinstance(result, Parcel) and result.is_new else None
                # Small ones are copied, as the trainer may change its own.
                kept = result._replace(parts=[*map(bytes, result.parts)]) if isinstance(result, Parcel) else None
                with self._lock:
                    _, future = self._unanswered.pop(ticket, (None, Future()))  # it may come twice if asked for again
                deliver(future, slots, result, file, began_s, "the replica that reads")
                if kept is not None:
                    self._kept.append((ticket, kept, slots))
                del future  # or the batch would live until the next one comes
        with self._lock:
            self._conn = None
        _send(conn, None)  # or what this process still has would be given back
        hang_up(conn)

    def copied(self, asked: _Asked) -> Parcel | None:
        """Return a batch that this replica has had. Raises InvalidRequest for one that has begun with another batch."""
        words = "{} at the replica that reads, and {} here: if one was started again, start all of them again"
        if not asked.ticket and self._first and (told := first_difference(self._first, asked.drawn, words)):
            raise InvalidRequest(_DIFFER + told)
        return next((slots.copied(parcel) for own, parcel, slots in list(self._kept) if own == asked.ticket), None)


class _Member:
    """A replica, in the reader."""

    def __init__(self) -> None:
        self.index = -1
        self.drawn = 0
        self.wanted: dict[int, _Asked] = {}


class _Reader:
    """Reads for the replicas of this host, its own process among them, until it is closed."""

    def __init__(self, own: ReplicaWorkers) -> None:
        """`own`: The replica of this process. Raises OSError if another process reads."""
        self._own, self._replicas = own, own.replicas
        self._awaited, self._awaited_until_s = set(range(self._replicas.count)), time.monotonic() + JOIN_S
        self._conns: dict[Connection, _Member] = {}
        self._members: dict[int, Connection] = {}
        self._reading: dict[int, int] = {}
        """Batches that the workers have: their tickets there, by ticket."""
        self._tickets = itertools.count()
        self._workers: Workers | None = None
        self._sending, self._writer = threading.Lock(), SlotWriter(own.in_flight + SLOTS_BESIDES)
        self._files: dict[int | None, int] = {}
        self._closed = self._is_full = False
        self._listener = self._replicas.bound(socket.SOCK_STREAM, f"reader in {self._replicas.iteration}")
        self._listener.listen(self._replicas.count)
        self._thread = threading.Thread(target=self._run, name="ais-loader-replica-reader", daemon=True)
        self._thread.start()

    def progress(self, ticket: int) -> str:
        """Return who is waited for, in words."""
        if ticket in self._reading and self._workers is not None:
            return self._workers.progress(self._reading[ticket])
        late = self._awaited | {member.index for member in list(self._conns.values()) if member.drawn <= ticket}
        return f"this batch is not drawn by {sorted(late)} of {self._replicas.count} replicas, which are waited for"

    def restart(self, ticket: int) -> None:
        if ticket in self._reading and self._workers is not None:
            self._workers.restart(self._reading[ticket])

    def release(self) -> Workers | None:
        """Return the workers, if they have no batch, and close the rest."""
        workers = None if self._reading else self._workers
        self.close(keeps_workers=workers is not None)
        return workers

    def close(self, *, wait: bool = True, keeps_workers: bool = False) -> None:
        """End. What was sent can still be received. May be called again."""
        with contextlib.suppress(OSError):
            self._closed = True
            self._listener.shutdown(socket.SHUT_RDWR)
        if wait and self._thread is not threading.current_thread():
            self._thread.join()
        workers, self._workers = self._workers, None
        if workers is not None and not keeps_workers:
            workers.close(wait=wait)
        with self._sending:
            self._members = {}
            while self._files:
                os.close(self._files.popitem()[1])
        for conn in [*self._conns]:
            hang_up(conn)
        self._listener.close()

    # -- in the thread

    def _run(self) -> None:
        try:
            while not self._closed:
                self._look()
        except Exception:  # of the system: there are no more descriptors, for instance
            log.exception("%s no longer reads", self._replicas)
            self.close(wait=False)  # or the name would stay taken, and no other could read

    def _look(self) -> None:
        """Wait for messages, and begin what can begin."""
        for ready in wait([self._listener, *self._conns], _LOOK_S if self._awaited else None):
            if isinstance(ready, Connection):
                try:
                    self._hear(ready, ready.recv())
                except (EOFError, OSError):
                    self._drop(ready)
                continue
            try:
                sock, _ = self._listener.accept()
                if _peer_of(sock) is None:
                    sock.close()
                else:
                    self._conns[_connection(sock)] = _Member()
            except OSError as error:  # closed, or there are no more descriptors
                if not (self._closed or self._is_full):
                    self._is_full = True
                    log.warning("%s reads, and cannot be connected to: %s", self._replicas, error)
                time.sleep(_LOOK_S)
        is_late = time.monotonic() > self._awaited_until_s
        for one in [one for one in self._awaited if not self._own.is_expected(one, is_late)]:
            self._awaited.remove(one)
            with self._sending:
                self._writer.give_back(one)  # it may have died
        self._begin()

    def _hear(self, conn: Connection, message: Any) -> None:
        member = self._conns[conn]
        if message is None:
            self._drop(conn)
            self._awaited.discard(member.index)
        elif isinstance(message, _Asked):
            member.wanted[message.ticket] = message
            member.drawn = message.ticket + 1
        else:
            member.index, member.drawn = message
            self._members[member.index] = conn
            self._awaited.discard(member.index)
            self._own.seen.add(member.index)

    def _drop(self, conn: Connection) -> None:
        """Forget a connection. Its replica is waited for while it lives, as it may be about to connect again."""
        index = self._conns.pop(conn).index
        with self._sending:
            if self._members.get(index) is conn:
                del self._members[index]
                self._awaited.add(index)
        hang_up(conn)

    def _begin(self) -> None:
        """Begin the batches that all have drawn, in order."""
        while not self._awaited and self._members:
            members = [self._conns[conn] for _, conn in sorted([*self._members.items()])]
            ticket = min(itertools.chain.from_iterable(member.wanted for member in members), default=None)
            if ticket is None or ticket >= min(member.drawn for member in members):
                return
            asked = {member.index: member.wanted.pop(ticket) for member in members if ticket in member.wanted}
            first, one = next(iter(asked.items()))
            words = (f"{{}} at replica {first}, and {{}} at replica {other}" for other in asked)
            differ = filter(None, map(partial(first_difference, one.drawn), (a.drawn for a in asked.values()), words))
            if (told := next(differ, None)) is not None:
                self._send(ticket, 0.0, packed_error(InvalidRequest(_DIFFER + told)), asked)
            else:
                self._read(one, asked)

    def _read(self, one: _Asked, asked: Iterable[int]) -> None:
        try:
            if (parcel := self._own.copied(one)) is not None:
                self._send(one.ticket, 0.0, parcel, asked)
                return
            if self._workers is None:
                self._workers = self._own.start()
            work, seed = pickle.loads(one.data)
            own = self._reading[one.ticket] = next(self._tickets)
            future = self._workers.submit(own, work, one.named, seed)
        except Exception as error:  # noqa: BLE001 - raised in each replica, for this batch
            self._send(one.ticket, 0.0, packed_error(error), asked)
        else:
            future.add_done_callback(partial(self._done, one.ticket, asked))

    # -- in the threads of workers

    def _done(self, ticket: int, asked: Iterable[int], future: Future[FetchedBatch]) -> None:
        began_s = time.perf_counter()
        self._reading.pop(ticket, None)  # before a trainer has the last batch, and wants to keep the workers
        if not future.cancelled():
            try:
                self._send(ticket, began_s, future.result(), asked)
            except BaseException as error:  # noqa: BLE001 - raised in each replica, for this batch
                self._send(ticket, began_s, packed_error(error), asked)

    def _send(self, ticket: int, began_s: float, result: Any, asked: Iterable[int]) -> None:
        """Send a batch, a parcel or an error to those that have asked for it and are there."""
        with self._sending:
            present = [index for index in asked if index in self._members]
            if present and isinstance(result, FetchedBatch):
                result, file = self._writer.write(result, present)
                if file is not None:
                    before, self._files[result.slot] = self._files.get(result.slot), file
                    if before is not None:
                        os.close(before)
                result = result._replace(is_new=result.slot is not None)
            for index in present:
                conn = self._members[index]
                try:
                    conn.send((ticket, began_s, result))
                    if isinstance(result, Parcel) and result.is_new:
                        send_file(conn, self._files[result.slot])
                except OSError as error:  # it has died, which is heard of in the thread
                    if isinstance(result, Parcel) and result.slot is not None:
                        self._writer.give_back(index, result.slot)  # it has a part of the message at most
                    if isinstance(error, BlockingIOError):  # it stands still, and is not waited for
                        del self._members[index]
                        hang_up(conn)


_DIFFER = "replicas need the same plan or sampler, entries, and data-parallel rank and world_size; they differ: "


def _connection(sock: socket.socket) -> Connection:
    sock.setblocking(True)  # whatever the default timeout is
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
    conn = Connection(sock.detach())
    ends.add(conn)
    return conn


def _send(conn: Connection, message: Any) -> None:
    try:
        conn.send(message)
    except OSError:  # the reader has ended, or stands still: a part may have been sent, which nothing may follow
        hang_up(conn)


def _peer_of(sock: socket.socket) -> int | None:
    """Return the process at the other end; None if it is another user's."""
    pid, user = peer_of(sock)
    return pid if user == os.geteuid() else None


def _digest(work: Any) -> int:
    """Return a digest of what a batch has: numbers, names, or ids."""
    samples = work.tolist() if hasattr(work, "tolist") else work
    parts = [str(getattr(sample, "id", sample)) for sample in samples] if hasattr(samples, "__iter__") else [samples]
    return digest_seed(re.sub(" at 0x[0-9a-f]+", "", repr(parts)))  # the address of an object without a text of its own
