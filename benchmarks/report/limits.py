"""Limits of a machine for bytes between two processes: copying in memory, and bare sockets."""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import time


def memcpy(size_bytes: int, count: int) -> float:
    """Blocks copied per second."""
    source, target = memoryview(bytes(size_bytes)), memoryview(bytearray(size_bytes))
    start = time.perf_counter()
    for _ in range(count):
        target[:] = source
    return count / (time.perf_counter() - start)


def _send(end: socket.socket, size_bytes: int, count: int, *, from_file: bool) -> None:
    with end, tempfile.TemporaryFile() as file:
        block = bytes(size_bytes)
        file.write(block)
        file.flush()
        for _ in range(count):
            if from_file:
                end.sendfile(file, 0, size_bytes)
            else:
                end.sendall(block)


def _pair(*, tcp: bool) -> tuple[socket.socket, socket.socket]:
    if not tcp:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
    return here, there


def through_socket(size_bytes: int, count: int, *, tcp: bool = False, from_file: bool = False) -> float:
    """Blocks per second that one process receives from another, in Python on both sides; without the first one.

    `from_file`: by sendfile, from the page cache.
    """
    here, there = _pair(tcp=tcp)
    sender = multiprocessing.get_context("spawn").Process(
        target=_send, args=(there, size_bytes, count + 1), kwargs={"from_file": from_file}
    )
    sender.start()
    there.close()
    here.settimeout(60)
    buffer = memoryview(bytearray(size_bytes))
    try:
        with here:
            start = 0.0
            for number in range(count + 1):
                got = 0
                while got < size_bytes:
                    if not (came := here.recv_into(buffer[got:])):
                        raise ConnectionError("the sender ended before it had sent everything")
                    got += came
                if not number:
                    start = time.perf_counter()
            return count / (time.perf_counter() - start)
    finally:
        sender.terminate()
        sender.join(10)
