"""Base class of transform servers: the methods that an author writes, and what all web frameworks share.

An author overrides one of three methods: `transform` takes and returns bytes, `transform_file` takes the path of a
file, `transform_stream` takes and yields chunks. The server converts the input of each request (bytes, a file, or a URL
to fetch) to the form that the author chose.

A server executes requests of every client that reaches it. Therefore it reads no file outside of `file_roots`. It
fetches from and puts to this machine's own addresses and those in `nodes`, and no others.
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
from storage_node.etl.webserver.protocol import CHUNK_BYTES, TransformRequest, short

log = logging.getLogger(__name__)


class Refused(Exception):
    """The server does not permit the request, or cannot parse it."""


class Failed(Exception):
    """The transform raised; the message contains its error."""


class TransformServer(ABC):
    """Base of all servers. One object serves many requests concurrently, in threads; its state must be thread-safe.

    Without its web framework, a server cannot be created: MissingExtra.
    """

    file_roots: Sequence[str | os.PathLike[str]] = ()
    """Folders whose files a request may name instead of sending bytes (`fqn`): the drives of this machine's nodes."""
    nodes: Sequence[str] = ()
    """Origins of nodes on other machines, as http://10.0.0.4:7490, for fetching (`hpull`) and putting."""
    concurrency: int = 0
    """Number of objects transformed concurrently in one process; 0 means twice the number of cores."""

    # -- methods for authors

    def setup(self) -> None:  # noqa: B027 - most have none
        """Create heavy state. Called once in each process, before it serves."""

    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        """Return the output for a complete input.

        Args:
            data: The object.
            path: BUCKET/NAME, followed by /MEMBER for a member of an archive.
            args: Arguments of the request for this transform; {} if there are none.
        """
        raise NotImplementedError

    def transform_file(self, file: str, path: str, args: Any) -> bytes:
        """Like `transform`, for a file that may be read but not written."""
        raise NotImplementedError

    def transform_stream(self, chunks: Iterator[bytes], path: str, args: Any) -> Iterable[bytes]:
        """Like `transform`, in constant memory: `chunks` is the input, the yielded chunks are the output."""
        raise NotImplementedError

    # -- running

    def start(self, host: str = "127.0.0.1", port: int = 8000, *, workers: int = 1) -> None:
        """Serve until SIGTERM, SIGINT or `stop`. Must run in a process's main thread.

        Args:
            host: Address of this machine. With an address other than loopback, other machines can have their bytes
                transformed.
            workers: Number of processes, to run Python code in parallel. A process that dies is replaced.

        Raises OSError if it cannot listen.
        """
        with contextlib.closing(
            reserved(host, port) if workers > 1 else listening((host, port), family_of(host))
        ) as held:
            log.info("%s serves at %s with %d processes", type(self).__name__, self._url(held), workers)
            if workers > 1:
                processes.serve(workers, lambda: self._serve_until_told(_beside(held)))
            else:
                self._serve_until_told(held)

    def _serve_until_told(self, listener: socket.socket) -> None:
        def on_signal(number: int, frame: object) -> None:
            threading.Thread(target=self.stop, daemon=True).start()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, on_signal)
        self.setup()
        self._serve(listener)

    @contextlib.contextmanager
    def running(self, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve from a thread of this process, for tests and notebooks; yields the address. Once per object."""
        with contextlib.closing(listening((host, port), family_of(host))) as listener:
            self.setup()
            thread = threading.Thread(target=self._serve, args=(listener,), name="transform-server", daemon=True)
            thread.start()
            try:
                yield self._url(listener)
            finally:
                self.stop()
                thread.join(20)
                self._link.close()

    def _url(self, listener: socket.socket) -> str:
        host, port = listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @abstractmethod
    def _serve(self, listener: socket.socket) -> None:
        """Serve until `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Accept no more requests, finish running ones, and return soon. Called from another thread than the one that
        serves."""

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
        """Whether the author takes chunks."""
        return self._form == "transform_stream"

    def perform(self, request: TransformRequest, body: Iterable[bytes]) -> bytes | Iterator[bytes]:
        """Return the output for one object: complete, or as an iterator whose first chunk has been made already.

        Raises Refused, Failed, NodeLinkFailed. An iterator raises Failed as well.
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
            return _started(self._streamed(_chunks_of(file) if file else iter(body), request.path, args))
        if self._form == "transform_file":
            return self._of_file(file, body, request.path, args)
        data = self._read(file) if file else b"".join(body)
        return self._called(self.transform, data, request.path, args)

    def put(self, request: TransformRequest, output: bytes | Iterator[bytes]) -> Put:
        """Put the output to its destination; return what was stored there. Raises Failed, NodeLinkFailed, Refused."""
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
    """Return a listening socket. Raises OSError."""
    listener = socket.create_server(address, family=family, backlog=1024, reuse_port=reuse_port)
    # Accepted connections inherit it. asyncio would set it, but only on a listener that was created with an explicit
    # TCP protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _beside(held: socket.socket) -> socket.socket:
    """Return a listener of this process. With a shared one, a single process would accept all of a node's
    connections."""
    return listening(held.getsockname()[:2], held.family, reuse_port=True)


def reserved(host: str, port: int) -> socket.socket:
    """Reserve a port without listening: other sockets listen on it as well. Raises OSError if another server listens
    already."""
    family = family_of(host)
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            # Permits connections of an earlier server in TIME_WAIT, but no other server.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))  # another server on this port would get half of the connections
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


def _started(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Compute the first chunk, so that a transform that fails at once does so before the response starts."""
    for first in chunks:
        return itertools.chain((first,), chunks)
    return iter(())
