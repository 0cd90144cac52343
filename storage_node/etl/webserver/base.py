"""Transform server: what an author writes, and what is the same whoever serves it.

An author overrides one of three methods: `transform` takes and gives bytes, `transform_file` takes the path of a file,
`transform_stream` takes and yields chunks. Whichever form a request has, an input as bytes, as a file, or to be fetched
from a node, is brought into the form that the author chose.

A server does what it is asked by whoever reaches it. So it reads no file outside of `file_roots`, and fetches from and
puts to this machine's own addresses and those of `nodes`, and no others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage_node.etl.webserver import processes
from storage_node.etl.webserver.node_link import NodeLink, Put
from storage_node.etl.webserver.protocol import CHUNK_BYTES, Request, short

log = logging.getLogger(__name__)


class Refused(Exception):
    """What this server does not do for anybody, or a request that it cannot read."""


class Failed(Exception):
    """The transform raised; the message says what."""


class TransformServer(ABC):
    """Base of all servers. One object serves many requests at once, in threads: what it holds has to bear that."""

    file_roots: Sequence[str | os.PathLike[str]] = ()
    """Folders whose files may be named in place of bytes (`fqn`): the drives of this machine's nodes."""
    nodes: Sequence[str] = ()
    """Origins of nodes on other machines, as http://10.0.0.4:7490, to fetch from (`hpull`) and put to."""
    concurrency: int = 0
    """Objects that are transformed at once in one process; 0: twice as many as there are cores."""

    # -- what an author writes

    def setup(self) -> None:  # noqa: B027 - most have none
        """Called once in each process, before it serves: heavy state is made here."""

    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        """Make the output of the whole input.

        Args:
            data: the object.
            path: BUCKET/NAME, for a member of an archive /MEMBER behind it.
            args: what the request gave for this transform; {} where it gave nothing.
        """
        raise NotImplementedError

    def transform_file(self, file: str, path: str, args: Any) -> bytes:
        """The same, of a file that may be read and not written."""
        raise NotImplementedError

    def transform_stream(self, chunks: Iterator[bytes], path: str, args: Any) -> Iterable[bytes]:
        """The same in constant memory: `chunks` are the input, what is yielded is the output."""
        raise NotImplementedError

    # -- running

    def start(self, host: str = "127.0.0.1", port: int = 8000, *, workers: int = 1) -> None:
        """Serve until SIGTERM, SIGINT or `stop`; from a process' main thread.

        Args:
            host: of this machine; another one than loopback lets others have their bytes transformed.
            workers: processes, where Python code would wait for its own interpreter; one that dies is made anew.

        Raises OSError when it cannot listen, MissingExtra when the web framework is not installed.
        """
        self._require_framework()
        with contextlib.closing(reserved(host, port) if workers > 1 else self._bind(host, port)) as held:
            log.info("%s serves at %s with %d processes", type(self).__name__, self._url(held), workers)
            if workers > 1:
                processes.serve(workers, lambda: self._serve_until_told(self._beside(held)))
            else:
                self._serve_until_told(held)

    def _serve_until_told(self, listener: socket.socket) -> None:
        def told(number: int, frame: object) -> None:
            threading.Thread(target=self.stop, daemon=True).start()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, told)
        self.setup()
        self._serve(listener)

    @contextlib.contextmanager
    def running(self, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve from a thread of this process, for tests and notebooks; gives the address. Once for each object."""
        self._require_framework()
        with contextlib.closing(self._bind(host, port)) as listener:
            self.setup()
            thread = threading.Thread(target=self._serve, args=(listener,), name="transform-server", daemon=True)
            thread.start()
            try:
                self._await_listening()
                yield self._url(listener)
            finally:
                self.stop()
                thread.join(20)
                self._link.close()

    def _beside(self, held: socket.socket) -> socket.socket:
        """A listener of this process' own: of a shared one, one process would take all of a node's connections."""
        return listening(held.getsockname()[:2], held.family, reuse_port=True)

    def _bind(self, host: str, port: int) -> socket.socket:
        return listening((host, port), family_of(host))

    def _url(self, listener: socket.socket) -> str:
        host, port = listener.getsockname()[:2]
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    _scheme = "http"

    @abstractmethod
    def _require_framework(self) -> None:
        """Raises MissingExtra."""

    def _await_listening(self) -> None:  # noqa: B027 - most have
        """Returns at once where `_bind` has done it."""

    @abstractmethod
    def _serve(self, listener: socket.socket) -> None:
        """Until `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Take no more requests, finish those that run, return soon. From another thread than serves."""

    # -- one object

    def __init__(self) -> None:
        forms = [
            name
            for name in ("transform", "transform_file", "transform_stream")
            if getattr(type(self), name) is not getattr(TransformServer, name)
        ]
        if len(forms) != 1:
            raise TypeError(
                f"{type(self).__name__} has {' and '.join(forms) or 'none'} of transform, transform_file and "
                "transform_stream: override one"
            )
        self._form = forms[0]
        cores = len(os.sched_getaffinity(0))
        self._turns = threading.BoundedSemaphore(self.concurrency or 2 * cores)
        self._roots = tuple(os.path.join(os.path.realpath(root), "") for root in self.file_roots)
        self._link = NodeLink(self.nodes)

    @property
    def streams(self) -> bool:
        """The author takes chunks."""
        return self._form == "transform_stream"

    def perform(self, request: Request, body: Iterable[bytes]) -> bytes | Iterator[bytes]:
        """What becomes of one object: all of it, or the first chunk made and the others when they are asked for.

        Raises Refused, Failed, NodeLinkFailed. An iterator raises Failed, too.
        """
        try:
            args = json.loads(request.args) if request.args else {}
        except ValueError as error:
            raise Refused(f"the arguments are not JSON: {error}") from error
        if request.file:
            file: str | None = self._allowed(request.file)
        else:
            file = None
            if request.source_url:
                body = self._link.fetched(request.source_url, request.source_token)
        if self.streams:
            return _begun(self._streamed(_chunks_of(file) if file else iter(body), request.path, args))
        if self._form == "transform_file":
            return self._of_file(file, body, request.path, args)
        data = self._read(file) if file else b"".join(body)
        return self._called(self.transform, data, request.path, args)

    def put(self, request: Request, output: bytes | Iterator[bytes]) -> Put:
        """Pass the output on to where it is wanted; what was taken there. Raises Failed, NodeLinkFailed, Refused."""
        return self._link.put(request.put_url, request.put_token, output)

    def _called(self, transform: Any, data: Any, path: str, args: Any) -> bytes:
        with self._turns:
            try:
                output = transform(data, path, args)
            except Exception as error:
                raise self._failed(path, error) from error
        if not isinstance(output, bytes | bytearray | memoryview):
            raise Failed(f"{type(self).__name__}.{self._form} gave {type(output).__name__} where bytes are wanted")
        return bytes(output)

    def _of_file(self, file: str | None, body: Iterable[bytes], path: str, args: Any) -> bytes:
        if file is not None:
            return self._called(self.transform_file, file, path, args)
        with tempfile.NamedTemporaryFile(prefix="transform-", suffix=Path(path).suffix[:32]) as copy:
            for chunk in body:
                copy.write(chunk)
            copy.flush()
            return self._called(self.transform_file, copy.name, path, args)

    def _streamed(self, chunks: Iterator[bytes], path: str, args: Any) -> Iterator[bytes]:
        with self._turns:
            try:
                for chunk in self.transform_stream(chunks, path, args):
                    view = memoryview(chunk)
                    for start in range(0, len(view), CHUNK_BYTES):
                        yield bytes(view[start : start + CHUNK_BYTES])
            except Exception as error:
                raise self._failed(path, error) from error

    def _failed(self, path: str, error: Exception) -> Exception:
        if isinstance(error, Refused | Failed) or type(error).__module__ == NodeLink.__module__:
            return error
        log.warning("%s: %s", path, error, exc_info=error)
        return Failed(short(f"{type(error).__name__}: {error}"))

    def _allowed(self, file: str) -> str:
        if not self._roots:
            raise Refused("this server reads no files: its `file_roots` names no folder")
        found = os.path.realpath(file)
        if not found.startswith(self._roots):
            raise Refused(f"{file} is in none of the folders of this server's `file_roots`")
        return found

    @staticmethod
    def _read(file: str) -> bytes:
        try:
            with open(file, "rb", buffering=0) as opened:
                return opened.read()
        except OSError as error:
            raise Refused(f"the file cannot be read: {error}") from error


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listening(address: tuple[str, int], family: int, *, reuse_port: bool = False) -> socket.socket:
    """Raises OSError."""
    listener = socket.create_server(address, family=family, backlog=1024, reuse_port=reuse_port)
    # Its connections inherit it. asyncio would set it, but not where the listener was made without naming TCP.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def reserved(host: str, port: int) -> socket.socket:
    """Holds a port, and does not listen: others do beside it. Raises OSError where somebody listens already."""
    family = family_of(host)
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            # Beside connections of an earlier server that are timing out, and not beside another one.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))  # another server at this port would get half of the connections
            port = alone.getsockname()[1]
        holder.bind((host, port))
    except BaseException:
        holder.close()
        raise
    return holder


def _chunks_of(file: str) -> Iterator[bytes]:
    try:
        with open(file, "rb", buffering=0) as opened:
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise Refused(f"the file cannot be read: {error}") from error


def _begun(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """With the first chunk made already, so that a transform that fails at once does before anything is said."""
    for first in chunks:
        return itertools.chain((first,), chunks)
    return iter(())
