"""Limits of a machine for bytes between two processes: copying in memory, and a bare Unix socket."""

from __future__ import annotations

import multiprocessing
import socket
import time


def memcpy(size_bytes: int, count: int) -> float:
    """Blocks copied per second."""
    source, target = memoryview(bytes(size_bytes)), memoryview(bytearray(size_bytes))
    start = time.perf_counter()
    for _ in range(count):
        target[:] = source
    return count / (time.perf_counter() - start)


def _send(end: socket.socket, size_bytes: int, count: int) -> None:
    block = bytes(size_bytes)
    with end:
        for _ in range(count):
            end.sendall(block)


def unix_socket(size_bytes: int, count: int) -> float:
    """Blocks per second that one process receives from another, in Python on both sides; without the first one."""
    here, there = socket.socketpair()
    sender = multiprocessing.get_context("spawn").Process(target=_send, args=(there, size_bytes, count + 1))
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
