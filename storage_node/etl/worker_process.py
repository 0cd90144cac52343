"""Worker process, as the node has it: started, asked one thing at a time, watched, and ended.

Whatever a worker does - raise, hang, grow, lie, close its socket, die - ends in an error of the object that it had,
typed, and at worst in the end of the worker. The node reads heads of fixed size and bounded JSON from it, and counts
and sums the output itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ais_loader.errors import TransformFailed, TransformRefused, TransformTimeout
from storage_node.etl.fences import Fences, group_of, kill_group, resident_bytes, start
from storage_node.etl.spool import Spool, taken
from storage_node.etl.values import Content
from storage_node.etl.worker import (
    FILE,
    INLINE,
    INLINE_BYTES,
    IS_FILE,
    IS_INLINE,
    MAX_JSON_BYTES,
    RAISED,
    READY,
    REPLY,
    REQUEST,
    SET_UP_NUMBER,
    SHARED,
)
from storage_node.tasks import settled

START_TIMEOUT_S = 60.0
"""To load what a transform needs, which may be a model."""
_LOOK_S = 0.25
"""How often a worker that is at work is looked at."""
_SURE_S = 0.5
"""It has answered no longer ago, and so is alive."""
_READ_BYTES = 64 << 10
_TOLD = 500
"""Characters of what it wrote last, in an error."""
_END_S = 0.5
"""For the end of a process to be seen, whose socket has been closed."""


class WorkerDied(TransformFailed):
    """It ended in the middle of an object, by itself or by something outside: another one may do better."""


class WorkerProcess:
    """Belongs to one event loop; has one thing to do at a time.

    Args:
        memory_bytes: of it in memory, beyond which it is ended.
        on_thread: runs a function that may wait for a drive.
        log: takes what it writes to stdout and stderr.
    """

    def __init__(
        self,
        spool: Spool,
        memory_bytes: int,
        on_thread: Callable[..., Awaitable[Any]],
        log: Callable[[bytes], None],
    ) -> None:
        self._spool, self._memory_bytes, self._on_thread, self._log = spool, memory_bytes, on_thread, log
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr = -1
        self._heard_last = b""
        self._shared = self._output = -1
        self._folder: str | None = None
        self._killed_for: TransformFailed | TransformTimeout | None = None
        self._ending = False
        self._deadline_s = float("inf")
        self._look: asyncio.TimerHandle | None = None
        self._received = bytearray()
        self._number = SET_UP_NUMBER - 1
        self.idle_since_s = 0.0

    @property
    def alive(self) -> bool:
        process = self._process
        if process is None or self._ending or process.returncode is not None:
            return False
        # To ask the system costs as much as a small object. One that dies in this moment is found out when it is asked.
        return time.monotonic() - self.idle_since_s < _SURE_S or process.poll() is None

    async def start(self, setup: dict[str, Any], code: bytes, fences: Fences, *, python: str, user: str) -> None:
        """Returns when it is ready. Raises TransformFailed with what went wrong, TransformRefused, OSError."""
        here, there = socket.socketpair()
        self._folder = str(self._spool.new_folder())
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stderr = reading
        try:
            if user:
                group_of(user)
                shutil.chown(self._folder, user)
            os.set_blocking(writing, True)
            argv = [python or sys.executable, "-m", "storage_node.etl.worker", str(there.fileno())]
            argv.append(json.dumps(fences.as_json()))
            self._process = start(argv, Path(self._folder), there.fileno(), writing, user)
        except BaseException:
            here.close()
            await self.close()
            raise
        finally:
            there.close()
            os.close(writing)
        here.setblocking(False)
        self._socket = here
        self._loop.add_reader(reading, self._heard)
        self._shared, self._output = os.memfd_create("inputs"), self._spool.new_file()
        try:
            fds = {"shared": self._shared, "output": self._output}
            await self._exchange({"setup": setup}, fds, code, INLINE, len(code), START_TIMEOUT_S, READY)
        except WorkerDied as error:
            self._heard()
            said = self._heard_last.decode(errors="replace").strip().rpartition("\n")[2][:_TOLD]
            await self.close()
            raise TransformFailed(f"{argv[0]}: {error}: {said or 'it wrote nothing'}") from error
        except BaseException:
            await self.close()
            raise

    async def run(self, said: dict[str, Any], content: Content, timeout_s: float, max_bytes: int) -> Content:
        """What it makes of an input. Cancelled, it is ended.

        Raises TransformFailed, TransformTimeout, WorkerDied.
        """
        fds: dict[str, int] = {}
        data: bytes | memoryview = b""
        place = INLINE
        if content.data is None:
            fds["input"], said["offset"], place = content.fd, content.offset, FILE
        elif content.size_bytes > INLINE_BYTES:
            place = SHARED
            os.ftruncate(self._shared, content.size_bytes)
            os.pwrite(self._shared, content.data, 0)
        else:
            data = content.data
        if self._output < 0:
            self._output = fds["output"] = await self._on_thread(self._spool.new_file)
        try:
            kind, size_bytes, made = await self._exchange(
                said, fds, data, place, content.size_bytes, timeout_s, IS_INLINE, IS_FILE
            )
        except asyncio.CancelledError:
            self.kill()
            raise
        if size_bytes > max_bytes:
            raise TransformFailed(f"it made {size_bytes:,} bytes, at most {max_bytes:,} are allowed")
        if kind == IS_INLINE:
            return Content.of(made)
        if (there := os.fstat(self._output).st_size) != size_bytes:
            self.kill()
            raise TransformFailed(f"it said {size_bytes:,} bytes, and wrote {there:,}")
        output, with_file = await self._on_thread(taken, self._output, size_bytes)
        if with_file:
            self._output = -1
        return output  # type: ignore[no-any-return]

    # -- the wire

    async def _exchange(
        self,
        said: dict[str, Any],
        fds: dict[str, int],
        data: bytes | memoryview,
        place: int,
        size_bytes: int,
        timeout_s: float,
        *wanted: int,
    ) -> tuple[int, int, bytes]:
        assert self._socket is not None
        if fds:
            said = {**said, "fds": list(fds)}
        text = json.dumps(said).encode()
        self._number += 1
        head = REQUEST.pack(self._number, len(text), size_bytes, place)
        self._deadline_s = time.monotonic() + timeout_s
        self._watch()
        try:
            if fds:
                socket.send_fds(self._socket, [head], list(fds.values()))
                head = b""
            await self._loop.sock_sendall(self._socket, b"".join((head, text, data)))
            number, kind, of_data, of_json = REPLY.unpack(await self._exactly(REPLY.size))
            if SET_UP_NUMBER <= number < self._number:
                self.kill()
                raise WorkerDied("its worker answered an earlier object twice, and was ended")
            if (
                number != self._number
                or of_json > MAX_JSON_BYTES
                or kind not in (*wanted, RAISED)
                or (kind == IS_INLINE and of_data > INLINE_BYTES)
            ):
                raise self._nonsense()
            told = json.loads(await self._exactly(of_json)) if of_json else {}
            if kind == RAISED:
                raise (TransformRefused if told.get("refused") else TransformFailed)(str(told.get("error")))
            return kind, of_data, await self._exactly(of_data) if kind == IS_INLINE else b""
        except (OSError, EOFError) as error:
            raise await self._ended() from error
        except (ValueError, AttributeError) as error:  # JSON that is none, or another thing than it should be
            raise self._nonsense() from error
        finally:
            self._deadline_s = float("inf")
            if self._look is not None:
                self._look.cancel()
                self._look = None
            self.idle_since_s = time.monotonic()

    async def _exactly(self, size_bytes: int) -> bytes:
        assert self._socket is not None
        while len(self._received) < size_bytes:
            part = await self._loop.sock_recv(self._socket, max(_READ_BYTES, size_bytes - len(self._received)))
            if not part:
                raise EOFError
            self._received += part
        data = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return data

    def _nonsense(self) -> TransformFailed:
        self.kill()
        return TransformFailed("its worker said what makes no sense: it wrote to the socket of the node itself")

    async def _ended(self) -> TransformFailed | TransformTimeout:
        """Why nothing comes from it any more."""
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
        self._look = self._loop.call_later(wait_s, self._looked)

    def _looked(self) -> None:
        assert self._process is not None
        if time.monotonic() >= self._deadline_s:
            self._killed_for = TransformTimeout("it took too long, and was ended (timeout_s)")
        elif self._process.poll() is not None:
            pass  # something that it has started holds its socket open
        elif (resident := resident_bytes(self._process.pid)) > self._memory_bytes:
            self._killed_for = TransformFailed(
                f"its worker had {resident:,} bytes in memory, at most {self._memory_bytes:,} may be (memory_bytes)"
            )
        else:
            self._watch()
            return
        self.kill()

    def _heard(self) -> None:
        try:
            data = os.read(self._stderr, 64 << 10)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard_last = data
            self._log(data)
        else:
            self._loop.remove_reader(self._stderr)

    # -- the end

    def kill(self) -> None:
        """Whoever waits for an answer is told, also where a process of another session holds the socket open."""
        self._ending = True
        if self._process is not None:
            kill_group(self._process.pid)
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End it, and wait until it has. May be called again, and for one that has not started."""
        if self._look is not None:
            self._look.cancel()
        self.kill()
        # First what needs no waiting: who waits may be cancelled.
        if self._socket is not None:
            self._socket.close()
        if self._stderr >= 0:
            self._loop.remove_reader(self._stderr)
        for fd in (self._stderr, self._shared, self._output):
            if fd >= 0:
                os.close(fd)
        self._stderr = self._shared = self._output = -1
        process, folder, self._folder = self._process, self._folder, None
        if process is not None:
            await settled(asyncio.ensure_future(self._on_thread(process.wait)))
        if folder is not None:
            await self._on_thread(shutil.rmtree, folder, True)
