"""Worker process from the node's side: it is started, sent objects, watched, and ended.

Small objects are sent several at once and processed one after another; each has a result and a time limit of its own.
Whatever a worker does (raise, hang, grow, send garbage, close its socket, die) ends in a typed error for the object in
progress and, at worst, in the end of the worker. Objects without a result go to another worker. The node reads heads of
fixed size and bounded JSON from it, and counts and checksums the output itself, in memory that the worker cannot
change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ais_loader.errors import TransformError, TransformFailed, TransformRefused, TransformTimeout
from ais_loader.wire.memory_file import memory_file
from storage_node.etl.values import Content, Spool, escaped, take_content
from storage_node.etl.worker.process_limits import (
    ProcessLimits,
    folder_bytes,
    ids_of,
    kill_group,
    resident_bytes,
    start,
)
from storage_node.etl.worker.program import (
    AREA_BYTES,
    AT_WORK,
    BURST,
    FILE,
    INLINE,
    INLINE_BYTES,
    INPUTS_AT,
    IS_FILE,
    IS_IN_AREA,
    IS_INLINE,
    MAX_JSON_BYTES,
    OUTPUT_READ,
    OUTPUTS_AT,
    RAISED,
    READY,
    REPLY,
    REQUEST,
    SET_UP_NUMBER,
    SHARED,
    room_for,
)
from storage_node.limits.tasks import settled

START_TIMEOUT_S = 60.0
"""Time limit for loading a transform, which may include a model."""
_LOOK_S = 0.25
"""Interval at which a busy worker is checked."""
_LEFT_S = 1.0
"""Interval of the checks between objects, for a worker that finishes each one quickly."""
_SURE_S = 0.5
"""A worker that has replied within this time is assumed to be alive."""
_READ_BYTES = 256 << 10
_BUFFER_BYTES = 208 << 10
"""Socket buffer in each direction, if the system allows it: up to this many bytes are sent without waiting."""
_MAX_TEXT = 500
"""Maximum length of the worker's last output line in an error, in characters."""
_END_S = 0.5
"""Time that a process gets to end after its socket was closed."""


class WorkerDied(TransformFailed):
    """The worker ended during an object, by itself or from outside. Another worker may succeed."""


class WorkerInput(NamedTuple):
    """One object for a worker."""

    origin: str
    content: Content
    max_bytes: int
    """Maximum size of the output."""


class _PendingRequest:
    """A request and its outcome."""

    __slots__ = ("max_bytes", "number", "outcome", "set_up", "written_bytes")

    def __init__(self, number: int, max_bytes: int, *, set_up: bool = False) -> None:
        self.number, self.max_bytes, self.set_up = number, max_bytes, set_up
        self.outcome: Content | TransformError | TransformRefused | None = None
        self.written_bytes: int | None = None
        """Size of the output in the output file, which waits to be taken."""


class WorkerProcess:
    """One worker. Belongs to one event loop; one call at a time.

    Args:
        memory_bytes: Limit of its resident memory; it is ended beyond it.
        folder_bytes: Limit of the files in its folder, likewise.
        on_thread: Runs a function that may wait for a drive.
        log: Receives what it writes to stdout and stderr.
    """

    def __init__(
        self,
        spool: Spool,
        memory_bytes: int,
        folder_bytes: int,
        on_thread: Callable[..., Awaitable[Any]],
        log: Callable[[bytes], None],
    ) -> None:
        self._spool, self._on_thread, self._log = spool, on_thread, log
        self._memory_bytes, self._folder_bytes = memory_bytes, folder_bytes
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr = -1
        self._last_stderr = b""
        self._shared = self._output = self._area_fd = -1
        self._area: mmap.mmap | None = None
        """See worker.py."""
        self._output_at = 0
        """Offset in the area of the next output; 0 if none is expected there."""
        self._folder: str | None = None
        self._killed_for: TransformFailed | TransformTimeout | None = None
        self._ending = False
        self._deadline_s = float("inf")
        self._look: asyncio.TimerHandle | None = None
        self._checked_at_s = 0.0
        self._received = bytearray()
        self._number = SET_UP_NUMBER - 1
        self._requests: deque[_PendingRequest] = deque()
        """Requests without a reply; the worker processes the first one."""
        self._timeout_s = 0.0
        self._wake: asyncio.Future[None] | None = None
        self._silent = False
        """Whether the socket is closed."""
        self.idle_since_s = 0.0

    @property
    def alive(self) -> bool:
        process = self._process
        if process is None or self._ending or self._silent or process.returncode is not None:
            return False
        # A system call costs as much as a small object. A worker that dies just now is detected when the next object is
        # sent.
        return time.monotonic() - self.idle_since_s < _SURE_S or process.poll() is None

    async def start(
        self, setup: dict[str, Any], code: bytes, process_limits: ProcessLimits, *, python: str, user: str
    ) -> None:
        """Start the worker. Returns when it is ready. Raises TransformFailed with the reason, TransformRefused,
        OSError."""
        try:
            self._folder = str(self._spool.new_folder(ids_of(user) if user else None))
        except PermissionError as error:
            if not user:
                raise
            raise TransformRefused(f"etl_user={user}: the node may not become it ({error})") from error
        argv = [python or sys.executable, "-m", "storage_node.etl.worker.program"]
        try:
            self._socket, remote = socket.socketpair()
            with remote:
                self._stderr, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    os.set_blocking(writing, True)
                    argv += [str(remote.fileno()), json.dumps(process_limits.as_json())]
                    self._process = start(argv, Path(self._folder), remote.fileno(), writing, user)
                finally:
                    os.close(writing)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            self._loop.add_reader(self._stderr, self._read_stderr)
            self._loop.add_reader(self._socket, self._readable)
            self._shared = memory_file("inputs")
            self._output = self._spool.new_file()
            self._area_fd = memory_file("area", sealed_bytes=AREA_BYTES)  # no worker changes its size
            self._area = mmap.mmap(self._area_fd, AREA_BYTES)
            setup_request = _PendingRequest(self._number + 1, 0, set_up=True)
            fds = {"shared": self._shared, "output": self._output, "area": self._area_fd}
            request = _request(setup_request, {"setup": setup, "fds": list(fds)}, INLINE, len(code), code)
            await self._exchange([setup_request], request, [*fds.values()], START_TIMEOUT_S)
            if isinstance(setup_request.outcome, Exception):
                raise setup_request.outcome
        except WorkerDied as error:
            self._read_stderr()
            output = self._last_stderr.decode(errors="replace").strip().rpartition("\n")[2][:_MAX_TEXT]
            await self.close()
            raise TransformFailed(f"{argv[0]}: {error}: {output or 'it wrote nothing'}") from error
        except BaseException:
            await self.close()
            raise

    async def run(
        self, inputs: Sequence[WorkerInput], args: str, timeout_s: float
    ) -> list[Content | TransformError | None]:
        """Return the outcome of each input, processed in order; None for an input without a reply because of another
        input. If it cannot be determined which of several inputs ended the worker, no further input gets an outcome. If
        the call is cancelled, the worker is ended.

        Args:
            inputs: One input, or several that are in memory, fit into a burst and have at most INLINE_BYTES each.
            timeout_s: Time limit for each of them.
        """
        calls = [_PendingRequest(self._number + at, each.max_bytes) for at, each in enumerate(inputs, 1)]
        fds: list[int] = []
        data = self._single(calls[0], inputs[0], args, fds) if len(inputs) == 1 else self._burst(calls, inputs, args)
        try:
            await self._exchange(calls, data, fds, timeout_s)
        except asyncio.CancelledError:
            self.kill()
            for one in calls:
                if isinstance(one.outcome, Content):
                    one.outcome.close()
            raise
        return [one.outcome for one in calls]  # type: ignore[misc]

    def _single(self, request: _PendingRequest, each: WorkerInput, args: str, fds: list[int]) -> bytes:
        content = each.content
        header: dict[str, Any] = {"args": args, "origin": each.origin}
        self._output_at = 0
        if content.data is None:
            fds.append(content.fd)
            header |= {"fds": ["input"], "offset": content.offset}
            return _request(request, header, FILE, content.size_bytes)
        if content.size_bytes > INLINE_BYTES:
            os.ftruncate(self._shared, content.size_bytes)
            os.pwrite(self._shared, content.data, 0)
            return _request(request, header, SHARED, content.size_bytes)
        return _request(request, header, INLINE, content.size_bytes, content.data)

    def _burst(self, requests: Sequence[_PendingRequest], inputs: Sequence[WorkerInput], args: str) -> bytes:
        assert self._area is not None
        at, self._output_at = INPUTS_AT, OUTPUTS_AT
        sizes = []
        for _, content, _ in inputs:
            size_bytes = content.size_bytes
            self._area[at : at + size_bytes] = content.data  # type: ignore[assignment]
            at += room_for(size_bytes)
            sizes.append(size_bytes)
        header = {"args": args, "origins": [each.origin for each in inputs], "sizes": sizes}
        return _request(requests[0], header, BURST, len(inputs))

    # -- the wire

    async def _exchange(self, requests: list[_PendingRequest], data: bytes, fds: list[int], timeout_s: float) -> None:
        """Send requests and wait until each has its outcome, or the worker has ended. Raises OSError of this node."""
        self._number += len(requests)
        self._requests.extend(requests)
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._watch()
        try:
            try:
                await self._send(data, fds)
            except OSError:  # it may have sent the reason before it ended
                while self._receive():
                    pass
                self._stop_reading()
            while self._requests:
                first = self._requests[0]
                if first.written_bytes is not None:
                    await self._take_written(first)
                elif self._silent:
                    self._give_up(await self._ended())
                else:
                    self._wake = self._loop.create_future()
                    await self._wake
        finally:
            self._wake = None
            self._requests.clear()
            self._deadline_s = float("inf")
            if self._look is not None:
                self._look.cancel()
                self._look = None
            self.idle_since_s = time.monotonic()
            # A worker that finishes each object quickly is never checked while busy, so it is checked here.
            if self.idle_since_s - self._checked_at_s > _LEFT_S and (found := self._outgrown()) is not None:
                self._log(f"{found}\n".encode())
                self.kill()

    async def _send(self, data: bytes, fds: list[int]) -> None:
        assert self._socket is not None
        while fds:
            try:
                sent = socket.send_fds(self._socket, [data[: REQUEST.size]], fds)
                data, fds = data[sent:], []
            except BlockingIOError:  # the socket is full: wait until the worker has read
                await self._writable()
        if data:
            await self._loop.sock_sendall(self._socket, data)

    async def _writable(self) -> None:
        assert self._socket is not None
        room = asyncio.Event()
        self._loop.add_writer(self._socket, room.set)
        try:
            await room.wait()
        finally:
            self._loop.remove_writer(self._socket)

    async def _take_written(self, first: _PendingRequest) -> None:
        """Take the contents of the output file; the worker waits for that."""
        size_bytes, first.written_bytes = first.written_bytes or 0, None
        if size_bytes > first.max_bytes:
            first.outcome = _too_much(size_bytes, first.max_bytes)
        elif (found_bytes := os.fstat(self._output).st_size) != size_bytes:
            self.kill()
            self._give_up(TransformFailed(f"it said {size_bytes:,} bytes, and wrote {found_bytes:,}"))
            return
        else:
            content = first.outcome = await self._on_thread(take_content, self._output, size_bytes)
            if content.fd >= 0:
                os.close(self._output)
                self._output = -1
        self._answered()
        fds: list[int] = []
        try:
            if self._output < 0:
                await settled(asyncio.ensure_future(self._on_thread(self._new_output)))
                fds = [self._output]
            text = json.dumps({"fds": ["output"] if fds else []}).encode()
            await self._send(REQUEST.pack(0, len(text), 0, OUTPUT_READ) + text, fds)
        except OSError:  # of the drive or of the socket: the output is valid all the same
            self.kill()
        self._parse()

    def _new_output(self) -> None:
        self._output = self._spool.new_file()

    def _readable(self) -> None:
        self._receive()
        if self._silent or not self._requests or self._requests[0].written_bytes is not None:
            wake, self._wake = self._wake, None
            if wake is not None and not wake.done():
                wake.set_result(None)

    def _receive(self) -> bool:
        """Return whether anything was received."""
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if data:
            self._received += data
            self._parse()
        else:
            self._stop_reading()
        return bool(data)

    def _stop_reading(self) -> None:
        assert self._socket is not None
        self._loop.remove_reader(self._socket)
        self._silent = True

    def _parse(self) -> None:
        """Parse the complete messages among the received bytes."""
        received, at = self._received, 0
        while len(received) - at >= REPLY.size and not (self._requests and self._requests[0].written_bytes is not None):
            number, kind, of_data, of_json = REPLY.unpack_from(received, at)
            first = self._requests[0] if self._requests else None
            if first is None or not self._makes_sense(first, number, kind, of_data, of_json):
                twice = SET_UP_NUMBER <= number < (self._number + 1 if first is None else first.number)
                received.clear()
                self._end_confused(
                    WorkerDied("its worker answered an earlier object twice, and was ended") if twice else _nonsense()
                )
                return
            json_at = at + REPLY.size
            data_at = json_at + of_json
            stop = data_at + (of_data if kind == IS_INLINE else 0)
            if len(received) < stop:
                break
            try:
                if kind == RAISED:
                    reply = json.loads(received[json_at:data_at])
                    error = TransformRefused if reply.get("refused") else TransformFailed
                    first.outcome = error(escaped(str(reply.get("error"))))
                elif kind == IS_FILE:
                    first.written_bytes = of_data
                elif kind in (IS_INLINE, IS_IN_AREA):
                    if of_data > first.max_bytes:
                        first.outcome = _too_much(of_data, first.max_bytes)
                    elif kind == IS_INLINE:
                        first.outcome = Content.of(bytes(received[data_at:stop]))
                    else:
                        assert self._area is not None
                        first.outcome = Content.of(self._area[self._output_at : self._output_at + of_data])
                    if kind == IS_IN_AREA:
                        self._output_at += room_for(of_data)
            except (ValueError, AttributeError):  # invalid JSON, or JSON of another type
                received.clear()
                self._end_confused(_nonsense())
                return
            at = stop
            if first.written_bytes is None:
                self._answered()
        del received[:at]

    def _answered(self) -> None:
        """Remove the first request, which has its outcome. The time limit of the next one starts."""
        self._requests.popleft()
        self._deadline_s = time.monotonic() + self._timeout_s

    def _makes_sense(self, request: _PendingRequest, number: int, kind: int, of_data: int, of_json: int) -> bool:
        wanted = (READY, RAISED) if request.set_up else (IS_INLINE, IS_FILE, RAISED, IS_IN_AREA)
        return (
            number == request.number
            and kind in wanted
            and of_json <= MAX_JSON_BYTES
            and (kind != IS_INLINE or of_data <= INLINE_BYTES)
            and (kind != IS_IN_AREA or (self._output_at > 0 and self._output_at + of_data <= AREA_BYTES))
        )

    def _give_up(self, error: TransformError) -> None:
        """Fail the request that the worker was processing. Earlier ones may be done without having a reply yet; they
        get no outcome."""
        if not self._requests:
            return
        assert self._area is not None
        (at_work,) = AT_WORK.unpack_from(self._area, 0)
        at = at_work - self._requests[0].number
        self._requests[at if 0 <= at < len(self._requests) else 0].outcome = error
        self._requests.clear()

    def _end_confused(self, error: TransformError) -> None:
        """End the worker after an invalid message. Among several requests, the one that sent it cannot be determined,
        because replies are buffered."""
        self.kill()
        if len(self._requests) == 1:
            self._requests[0].outcome = error
        self._requests.clear()

    async def _ended(self) -> TransformFailed | TransformTimeout:
        """Return why the socket was closed."""
        assert self._process is not None
        deadline_s = time.monotonic() + _END_S
        while (code := self._process.poll()) is None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        if self._killed_for is not None:
            return self._killed_for
        self.kill()
        how = "closed its socket" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with {code}"
        return WorkerDied(f"its worker {how} in the middle of it")

    # -- watching

    def _watch(self) -> None:
        wait_s = min(_LOOK_S, max(0.0, self._deadline_s - time.monotonic()))
        self._look = self._loop.call_later(wait_s, self._check)

    def _check(self) -> None:
        assert self._process is not None
        if time.monotonic() >= self._deadline_s:
            self._killed_for = TransformTimeout("it took too long, and was ended (timeout_s)")
        elif self._process.poll() is not None:
            pass  # a process that it has started keeps the socket open
        elif (found := self._outgrown()) is not None:
            self._killed_for = found
        else:
            self._watch()
            return
        self.kill()

    def _outgrown(self) -> TransformFailed | None:
        """Return the limit that the worker exceeds; None if there is none. Files may stem from earlier objects."""
        if self._process is None or self._folder is None:
            return None
        self._checked_at_s = time.monotonic()
        if (resident := resident_bytes(self._process.pid)) > self._memory_bytes:
            return TransformFailed(
                f"its worker had {resident:,} bytes in memory, at most {self._memory_bytes:,} may be (memory_bytes)"
            )
        if (written := folder_bytes(Path(self._folder), self._folder_bytes)) > self._folder_bytes:
            return WorkerDied(
                f"its worker had {written:,} bytes in the files of its folder, at most {self._folder_bytes:,} may be "
                "(twice output_bytes)"
            )
        return None

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._stderr, 64 << 10)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._last_stderr = data
            self._log(data)
        else:
            self._loop.remove_reader(self._stderr)

    # -- the end

    def kill(self) -> None:
        """Kill the worker. Pending calls are woken, even if a process of another session keeps the socket open."""
        self._ending = True
        if self._process is not None:
            kill_group(self._process.pid)
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End the worker and wait for it. May be called again, and for one that was not started."""
        if self._look is not None:
            self._look.cancel()
        self.kill()
        # First the steps that need no waiting, because the caller may be cancelled.
        if self._socket is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        if self._stderr >= 0:
            self._loop.remove_reader(self._stderr)
        for fd in (self._stderr, self._shared, self._output, self._area_fd):
            if fd >= 0:
                os.close(fd)
        self._stderr = self._shared = self._output = self._area_fd = -1
        if self._area is not None:
            self._area.close()
        process, folder, self._folder = self._process, self._folder, None
        if process is not None:
            await settled(asyncio.ensure_future(self._on_thread(process.wait)))
        if folder is not None:
            await self._on_thread(shutil.rmtree, folder, True)


def _request(
    request: _PendingRequest, header: dict[str, Any], place: int, size_bytes: int, data: bytes | memoryview = b""
) -> bytes:
    text = json.dumps(header).encode()
    return b"".join((REQUEST.pack(request.number, len(text), size_bytes, place), text, data))


def _too_much(size_bytes: int, max_bytes: int) -> TransformFailed:
    return TransformFailed(f"it made {size_bytes:,} bytes, at most {max_bytes:,} are allowed")


def _nonsense() -> TransformFailed:
    return TransformFailed("its worker said what makes no sense: it wrote to the socket of the node itself")
