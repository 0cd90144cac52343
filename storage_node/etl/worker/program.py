"""Worker: the process in which a transform runs, one object at a time, and its protocol with the node.

A node runs it as `python -m storage_node.etl.worker.program FD`, restricted by `process_limits.py`. It imports as
little as possible, because a worker is started when there is work, and again when one has died.

An author writes a function, or a class that is instantiated once in each worker, for heavy state:

    def shout(data: memoryview, suffix: str = "!") -> bytes: ...        # args by name
    class Embed:
        def __init__(self): self.model = ...
        def __call__(self, data: memoryview) -> bytes: ...              # or a method `transform`
    def stream(chunks: Iterator[memoryview]) -> Iterator[bytes]: ...    # streaming=True: in constant memory
    def by_path(path: str) -> bytes: ...                                # path=True: a file to open and read

A function with a parameter `origin` receives "bucket/name" in it. The returned or yielded values are bytes-like.

The protocol runs over a socket pair: heads of fixed size, followed by JSON, followed by bytes. Small inputs and outputs
are sent inline. Larger inputs are in a memory file that both processes have mapped, or in a file whose descriptor is
sent along. Larger outputs go to a spool file that the node has sent; the worker then waits until the node has taken the
output. The node does not trust the worker: it counts and checksums the data itself, and never unpickles anything. A
reply carries the number of its request, so that a duplicate reply, or one from a process that the transform has forked,
is never mistaken for another object's.

Small objects are sent in bursts: one request for many objects, whose inputs are stored one after another in an area
that both processes have mapped, and so are their outputs. The replies are in the same order, several of them per send.
A field of the area contains the number of the object in progress. The area is sealed against shrinking, because access
to a page that no longer exists would kill the node.
"""

from __future__ import annotations

import inspect
import json
import mmap
import os
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from storage_node.etl.worker.process_limits import ProcessLimits, die_with_parent, enter
from storage_node.etl.worker.sandbox import TRUNCATE_ABI, Offered, Sandbox, adopt_orphans, end_children
from storage_node.settings.command_template import FILES, WrongArgument, parse

REQUEST = struct.Struct("<QIQB")
"""Number, bytes of JSON, bytes of data, location of the data. The JSON lists the descriptors that are sent along."""
REPLY = struct.Struct("<QBQI")
"""Number of the request, kind, bytes of data, bytes of JSON. The JSON follows, and then the data if it is inline."""
INLINE, SHARED, FILE, OUTPUT_READ, BURST = 0, 1, 2, 3, 4
"""Location of an input: inline behind the request, in the memory file, or in a file of its own. OUTPUT_READ is not a
request: the node has read the output file. BURST: the inputs of several requests are in the area, and the JSON has
their sizes."""
READY, IS_INLINE, IS_FILE, RAISED, IS_IN_AREA = 0, 1, 2, 3, 4
AT_WORK = struct.Struct("<Q")
"""Field at the start of the area: number of the request in progress."""
_ALIGNED = 64
INPUTS_AT, BURST_BYTES = 64 << 10, 1 << 20
"""Layout of the area: start of a burst's inputs, and the maximum size of the inputs and of the outputs that follow."""
OUTPUTS_AT = INPUTS_AT + BURST_BYTES
AREA_BYTES = OUTPUTS_AT + BURST_BYTES
SET_UP_NUMBER = 1
"""Number of the first request; the others follow consecutively."""
INLINE_BYTES = 64 << 10
CHUNK_BYTES = 1 << 20
MAX_JSON_BYTES = 1 << 20
_MAX_FDS = 4
_ANSWER_S = 0.005
"""Time that replies of a burst are buffered to be sent together."""
_READ_BYTES = 256 << 10
_MAX_TEXT = 2000
"""Maximum length of an error, in characters."""
_STDERR_BYTES = 16 << 10
"""The end of a command's stderr, of this size, goes to the log of its transform."""
_LAST_LINES, _LAST_CHARACTERS = 5, 400
"""Lines and characters of that end that the error of the object has."""


def room_for(size_bytes: int) -> int:
    """Return the bytes of the area that an object occupies: its size, rounded up so that the next object is aligned."""
    return -(-size_bytes // _ALIGNED) * _ALIGNED


class CallFailed(Exception):
    """Raised with the message for the object's entry."""


class CallInput:
    """Input of one call."""

    def __init__(self, data: memoryview | None, fd: int, offset: int, size_bytes: int) -> None:
        self.data, self.fd, self.offset, self.size_bytes = data, fd, offset, size_bytes

    def view(self) -> memoryview:
        """Return all bytes; a file is mapped."""
        if self.data is not None:
            return self.data
        if not self.size_bytes:
            return memoryview(b"")
        skip = self.offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self.fd, self.size_bytes + skip, prot=mmap.PROT_READ, offset=self.offset - skip)
        return memoryview(mapped)[skip:]

    def chunks(self) -> Iterator[memoryview]:
        if self.data is not None:
            for at in range(0, len(self.data), CHUNK_BYTES):
                yield self.data[at : at + CHUNK_BYTES]
            return
        for at in range(0, self.size_bytes, CHUNK_BYTES):
            part = os.pread(self.fd, min(CHUNK_BYTES, self.size_bytes - at), self.offset + at)
            if not part:
                raise CallFailed(f"its input ended after {at:,} of {self.size_bytes:,} bytes")
            yield memoryview(part)

    def file(self, *, own: bool = False) -> str:
        """Return a path that opens the input, from this process and from its children, until the call ends.

        Args:
            own: Whether it must be a private copy, so that the object cannot be changed through it.
        """
        whole = self.data is None and self.offset == 0 and os.fstat(self.fd).st_size == self.size_bytes and not own
        if not whole:
            from ais_loader.wire.memory_file import memory_file  # which few workers need

            fd = memory_file("input")
            for part in self.chunks():
                _write(fd, part)
            self.close()
            self.data, self.fd, self.offset = None, fd, 0
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Message(NamedTuple):
    number: int
    place: int
    size_bytes: int
    header: dict[str, Any]
    data: bytes
    fds: dict[str, int]


class Worker:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received, self._at = b"", 0
        """Received bytes, and the number of them that have been parsed."""
        self._fds: list[int] = []
        """Received descriptors, in order, of messages that have not been parsed."""
        self._ahead: deque[_Message] = deque()
        self._shared, self.output, self._number = -1, -1, 0
        self._area = -1
        self._inputs: memoryview | None = None
        """Inputs in the area, mapped at the first burst."""
        self._written: mmap.mmap | None = None
        """The area, mapped for writing."""
        self._output_at = 0
        """Offset in the area of the next output of a burst; 0 outside of a burst."""
        self._answers = bytearray()
        """Replies that have not been sent yet."""
        self._run: Callable[[CallInput, dict[str, Any]], Any] = _nothing

    def serve(self) -> None:
        while (message := self._ahead.popleft() if self._ahead else self._read()) is not None:
            self._number = message.number
            if message.place == BURST:
                self._serve_burst(message.header)
            else:
                self._serve_one(message.header, self._source(message))
                self._flush()

    def _serve_one(self, header: dict[str, Any], source: CallInput) -> None:
        try:
            if "setup" in header:
                self._set_up(header["setup"], source)
                self._reply(READY)
            else:
                self._deliver(self._run(source, header))
        except CallFailed as failed:
            self._reply(RAISED, error=str(failed))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | BrokenPipeError):
                raise
            self._reply(RAISED, error=_error_text(error))
            traceback.print_exc()
        finally:
            source.close()

    def _serve_burst(self, header: dict[str, Any]) -> None:
        if self._inputs is None or self._written is None:
            self._inputs = memoryview(mmap.mmap(self._area, OUTPUTS_AT, prot=mmap.PROT_READ))
            self._written = mmap.mmap(self._area, AREA_BYTES)
        at, self._output_at = INPUTS_AT, OUTPUTS_AT
        sent_s = time.monotonic()
        for origin, size_bytes in zip(header["origins"], header["sizes"], strict=True):
            AT_WORK.pack_into(self._written, 0, self._number)
            source = CallInput(self._inputs[at : at + size_bytes], -1, 0, size_bytes)
            self._serve_one({"args": header["args"], "origin": origin}, source)
            at += room_for(size_bytes)
            self._number += 1
            if (now_s := time.monotonic()) - sent_s > _ANSWER_S:
                self._flush()
                sent_s = now_s
        self._flush()
        self._output_at = 0

    def _leave(self) -> None:
        """Close everything in a process that the transform has forked, which must not reply, not even in the burst that
        it was forked in."""
        for fd in (self._socket.detach(), self._shared, self.output, self._area):
            if fd >= 0:
                os.close(fd)
        self._shared = self.output = self._area = -1
        if self._written is not None:
            self._written.close()

    # -- the wire

    def _source(self, message: _Message) -> CallInput:
        _, place, size_bytes, header, data, came = message
        self._shared, self._area = came.get("shared", self._shared), came.get("area", self._area)
        self._use_output(came)
        if place == FILE:
            return CallInput(None, came["input"], header["offset"], size_bytes)
        if place == SHARED:
            return CallInput(memoryview(mmap.mmap(self._shared, size_bytes, prot=mmap.PROT_READ)), -1, 0, size_bytes)
        return CallInput(memoryview(data), -1, 0, size_bytes)

    def _use_output(self, came: dict[str, int]) -> None:
        if "output" in came:
            if self.output >= 0:
                os.close(self.output)
            self.output = came["output"]

    def _read(self) -> _Message | None:
        """Return the next message of the node; None if the node has closed the socket."""
        if self._at == len(self._received) and not self._more():
            return None
        number, json_bytes, size_bytes, place = REQUEST.unpack(self._exactly(REQUEST.size))
        header = json.loads(self._exactly(json_bytes))
        names = header.pop("fds", ())
        fds, self._fds = self._fds[: len(names)], self._fds[len(names) :]
        data = self._exactly(size_bytes) if place == INLINE else b""
        return _Message(number, place, size_bytes, header, data, dict(zip(names, fds, strict=True)))

    def _exactly(self, size_bytes: int) -> bytes:
        while len(self._received) - self._at < size_bytes:
            if not self._more():
                sys.exit(0)
        at, self._at = self._at, self._at + size_bytes
        return self._received[at : self._at]

    def _more(self) -> bool:
        """Receive more. Descriptors arrive with the first byte of their message, and a single receive never goes past
        them."""
        left = self._received[self._at :]
        data, fds, _, _ = socket.recv_fds(self._socket, _READ_BYTES, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        self._fds += fds
        self._received, self._at = left + data if left else data, 0
        return bool(data)

    def _wait_until_read(self) -> None:
        """Wait until the node has taken the output file, which is then free for the next object. Requests that arrive
        meanwhile are queued."""
        while (message := self._read()) is not None:
            if message.place == OUTPUT_READ:
                self._use_output(message.fds)
                return
            self._ahead.append(message)
        sys.exit(0)

    def _reply(self, kind: int, data: bytes | memoryview = b"", size_bytes: int = 0, **fields: object) -> None:
        text = json.dumps(fields).encode() if fields else b""
        self._answers += REPLY.pack(self._number, kind, len(data) or size_bytes, len(text))
        self._answers += text
        self._answers += data
        if len(self._answers) > _READ_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._answers:
            self._socket.sendall(self._answers)
            self._answers.clear()

    def _deliver(self, result: Any) -> None:
        if result is None or isinstance(result, str):
            raise CallFailed(
                f"it returned {type(result).__name__}: need bytes, or with streaming=True an iterator of bytes"
            )
        if isinstance(result, _Written):
            self._deliver_file(result.size_bytes)
            return
        try:
            view = _bytes_of(result)
        except TypeError:
            raise CallFailed(f"it returned {type(result).__name__}: need bytes, or something with a buffer") from None
        if self._output_at and self._written is not None and self._output_at + len(view) <= AREA_BYTES:
            self._written[self._output_at : self._output_at + len(view)] = view
            self._output_at += room_for(len(view))
            self._reply(IS_IN_AREA, size_bytes=len(view))
        elif len(view) <= INLINE_BYTES:
            self._reply(IS_INLINE, view)
        else:
            self._deliver_file(self.write([view]))

    def _deliver_file(self, size_bytes: int) -> None:
        self._reply(IS_FILE, size_bytes=size_bytes)
        self._flush()
        self._wait_until_read()

    def write(self, parts: Iterable[Any]) -> int:
        """Overwrite the output file in place. Pages of the previous output are reused, which is cheaper than freeing
        and allocating them."""
        os.lseek(self.output, 0, os.SEEK_SET)
        size_bytes = sum(_write(self.output, part) for part in parts)
        os.ftruncate(self.output, size_bytes)
        return size_bytes

    # -- the transform

    def _set_up(self, setup: dict[str, Any], source: CallInput) -> None:
        if setup["kind"] == "command":
            self._run = _Command(setup, self).run
            return
        if (running := f"{sys.version_info[0]}.{sys.version_info[1]}") != setup["python"]:
            raise CallFailed(
                f"it was pickled by Python {setup['python']}, and Python {running} runs it: init it from that"
            )
        # A process that the transform forks must not reply, and must not keep the socket open.
        os.register_at_fork(after_in_child=self._leave)
        _require(setup["requirements"])
        try:
            import cloudpickle
        except ImportError as error:
            raise CallFailed(f"no cloudpickle: run `{sys.executable} -m pip install cloudpickle` ({error})") from error
        function = cloudpickle.loads(bytes(source.view()))
        if isinstance(function, type):
            function = function()
        function = function.transform if hasattr(function, "transform") else function
        if not callable(function):
            raise CallFailed(f"{setup['name']} is no function, and has no method transform")
        self._run = _Function(function, setup, self).run


class _Written:
    """An output that has already been written to the output file."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class _Function:
    def __init__(self, function: Callable[..., Any], setup: dict[str, Any], worker: Worker) -> None:
        self._function, self._worker = function, worker
        self._streaming, self._path = setup["streaming"], setup["path"]
        try:
            self._wants_origin = "origin" in inspect.signature(function).parameters
        except (TypeError, ValueError):
            self._wants_origin = False

    def run(self, source: CallInput, header: dict[str, Any]) -> Any:
        arguments = json.loads(header["args"]) if header["args"] else {}
        if not isinstance(arguments, dict):
            raise CallFailed(f"args: need an object of names and values, got {type(arguments).__name__}")
        if self._wants_origin:
            arguments.setdefault("origin", header["origin"])
        given = source.file() if self._path else source.chunks() if self._streaming else source.view()
        result = self._function(given, **arguments)
        if self._streaming and not isinstance(result, bytes | bytearray | memoryview):
            return _Written(self._worker.write(result))
        return result


class _Command:
    def __init__(self, setup: dict[str, Any], worker: Worker) -> None:
        self._line = parse(setup["argument"])
        self._fixed: dict[str, Any] = setup["args"]
        self._usage: str = setup["usage"]
        self._bases: dict[str, str] = {kind: kind + setup[f"{kind}_suffix"] for kind in FILES}
        self._offered = None if setup["sandbox"] is None else Offered(**setup["sandbox"])
        self._readable: list[str] = setup["readable"]
        self._worker = worker
        self._runs = 0
        adopt_orphans()

    def run(self, source: CallInput, header: dict[str, Any]) -> Any:
        given = json.loads(header["args"]) if header["args"] else {}
        if not isinstance(given, dict):
            raise CallFailed(f"args: need an object of names and values, got {type(given).__name__}")
        self._runs += 1
        folder = os.path.abspath(
            f"run-{self._runs}"
        )  # a folder per object, so that files of one object are not there for the next
        try:
            words = self._line.fill(self._fixed | given, {kind: f"{folder}/{self._bases[kind]}" for kind in FILES})
        except WrongArgument as error:
            raise CallFailed(f"args: {error}{self._usage}") from None
        os.mkdir(folder, 0o700)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._run_words(words, source, folder)
            if self._line.uses("output"):
                self._take_output(place, words[0])
            return _Written(os.fstat(self._worker.output).st_size)
        finally:
            os.close(place)
            shutil.rmtree(folder, ignore_errors=True)

    def _run_words(self, words: list[str], source: CallInput, folder: str) -> None:
        """Run the command. Returns when it and everything that it has started have ended. Raises CallFailed."""
        by_file, to_file = self._line.uses("input"), self._line.uses("output")
        offered, sandbox = self._offered, None
        # Older versions of Landlock let a command truncate files that it may only read.
        path = source.file(own=offered is not None and 0 < offered.landlock_abi < TRUNCATE_ABI)
        os.ftruncate(self._worker.output, 0)
        os.lseek(self._worker.output, 0, os.SEEK_SET)

        def in_child() -> None:
            if by_file:  # the command becomes this process, and its children may open its descriptors
                os.symlink(f"/proc/{os.getpid()}/fd/{source.fd}", f"{folder}/{self._file_name('input')}")
            if sandbox is not None:
                sandbox.enter()
            die_with_parent()

        try:
            with open(path if not by_file else os.devnull, "rb") as stdin, open("stderr", "w+b") as stderr:
                if offered is not None:
                    outputs = (self._worker.output, stderr.fileno())
                    sandbox = Sandbox(offered, folder, self._readable, source.fd, outputs)
                try:
                    done = subprocess.run(
                        words,
                        cwd=folder,
                        env=os.environ | {"HOME": folder, "TMPDIR": folder},
                        stdin=stdin,
                        stdout=stderr if to_file else self._worker.output,
                        stderr=stderr,
                        pass_fds=(source.fd,) if by_file else (),
                        check=False,
                        preexec_fn=in_child,
                    )
                except PermissionError as error:
                    held = " in the sandbox of commands (etl_command_paths: what they may read)" if sandbox else ""
                    raise CallFailed(f"{words[0]} cannot be run{held}: {error.strerror}") from error
                except FileNotFoundError as error:
                    raise CallFailed(f"{words[0]}: {error.strerror}") from error
                finally:
                    end_children()
                stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
                text = stderr.read().decode(errors="replace").strip()
        finally:
            if sandbox is not None:
                sandbox.close()
        if done.returncode:
            text += f"\n{shlex.join(words)} ended with {done.returncode}"
        if text:
            print(text, file=sys.stderr, flush=True)
        if done.returncode:
            lines = last_lines(text.rpartition("\n")[0]) or "it wrote nothing to stderr"
            raise CallFailed(f"{os.path.basename(words[0])} ended with {done.returncode}: {lines}")

    def _take_output(self, place: int, program: str) -> None:
        """Copy {output} into the output file. Links and devices are rejected, because this process may open files that
        the command may not. Raises CallFailed."""
        try:
            fd = os.open(
                self._file_name("output"),
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
                dir_fd=place,
            )
        except FileNotFoundError:
            raise CallFailed(f"{os.path.basename(program)} wrote no {{output}}") from None
        except OSError as error:
            raise CallFailed(
                f"{os.path.basename(program)}: its {{output}} is no regular file: {error.strerror}"
            ) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CallFailed(f"{os.path.basename(program)}: its {{output}} is no regular file")
        with open(fd, "rb") as written, open(self._worker.output, "wb", closefd=False) as output:
            shutil.copyfileobj(written, output, CHUNK_BYTES)

    def _file_name(self, kind: str) -> str:
        return self._bases[kind] + self._line.suffixes.get(kind, "")


def last_lines(text: str) -> str:
    """Return the end of a command's output: the reason of a failure comes after banners and warnings."""
    return "\n".join(text.splitlines()[-_LAST_LINES:])[-_LAST_CHARACTERS:]


def missing_of(requirements: Sequence[str]) -> list[str]:
    """Return the packages that this interpreter lacks, or has in an unsuitable version, each with what is installed."""
    if not requirements:
        return []
    from importlib import metadata

    from packaging.requirements import Requirement

    missing = []
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            missing.append(f"{text} (not installed)")
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            missing.append(f"{text} (there is {found})")
    return missing


def _require(requirements: list[str]) -> None:
    """Raise CallFailed if packages are missing."""
    if missing := missing_of(requirements):
        raise CallFailed(
            f"{sys.executable} has not what it needs: {', '.join(missing)}; install it there, or set etl_python "
            "(with etl_install, Ray installs it)"
        )


def _bytes_of(value: Any) -> memoryview:
    """Return the bytes of a value with a contiguous buffer. Raises TypeError."""
    view = memoryview(value)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty view of several dimensions cannot be cast


def _write(fd: int, part: Any) -> int:
    view = _bytes_of(part)
    at = 0
    while at < len(view):
        at += os.write(fd, view[at:])
    return at


def _error_text(error: BaseException) -> str:
    """Return the error, and the place in the transform's own code where it was raised."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" ({frames[-1].name}, line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return text[:_MAX_TEXT] + where


def _nothing(source: CallInput, header: dict[str, Any]) -> Any:
    raise CallFailed("a call before its set-up")


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)  # not inherited by programs that it starts
    try:
        enter(ProcessLimits(**json.loads(sys.argv[2])))
    except OSError as error:
        text = json.dumps({"error": str(error), "refused": True}).encode()
        sock.sendall(REPLY.pack(SET_UP_NUMBER, RAISED, 0, len(text)) + text)
        return
    Worker(sock).serve()


if __name__ == "__main__":
    main()
