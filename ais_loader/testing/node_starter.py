"""Starter of nodes: a process that has imported all that a node needs, and forks for each node that is started.

Imports are nine tenths of the processor time of a node's start. A forked process runs the command line as a started one
does, from its arguments on. The starter is used only where nothing else can tell the two apart: by the process that has
called `use_starter`, for nodes without a launcher that have the environment of that moment.

The starter has one thread and no open store, so that forks are safe. It ends with the process that has started it.

Protocol, on a socket that keeps messages apart: a request is a JSON object with the node's arguments and its working
directory, and comes with the descriptors of the node's standard streams and of a socket of its own. On the latter, the
starter sends the process id with a pidfd, and the exit code when the process has ended.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

_ANSWER_TIMEOUT_S = 90.0
_MESSAGE_BYTES = 1 << 16
_COMMAND = "ais_loader.cli"
_IMPORTED = ("ais_loader.cli", "storage_node.cli.serve", "storage_node.ops.serve")
_OF_ONE_TEST = "PYTEST_CURRENT_TEST"
_ONE_THREAD = "OPENBLAS_NUM_THREADS"
"""Set in the starter, whose import of numpy would otherwise start threads."""


class ForkedNode:
    """The process of a node, with the methods of `subprocess.Popen` that `NodeProcess` needs."""

    def __init__(self, requests: socket.socket, words: Sequence[str], log: IO[bytes]) -> None:
        self._code: int | None = None
        self._ending = threading.Lock()
        self._answers, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        self.stdout: IO[bytes] = open(reading, "rb", buffering=0)  # noqa: SIM115 - closed by its owner
        try:
            with open(os.devnull, "rb") as nothing, answers:
                request = json.dumps({"words": list(words), "folder": os.getcwd()}).encode()
                streams = [nothing.fileno(), writing, log.fileno()]
                socket.send_fds(requests, [request], [*streams, answers.fileno()])
            os.close(writing)
            self._answers.settimeout(_ANSWER_TIMEOUT_S)
            answer, descriptors, _, _ = socket.recv_fds(self._answers, _MESSAGE_BYTES, 1)
            if not answer:
                raise RuntimeError("the starter of nodes has ended")
            self.pid = int(answer)
            [self._pidfd] = descriptors
        except BaseException:
            self.stdout.close()
            self._answers.close()
            raise

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal. Harmless if the process has ended."""
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return  # it has ended since

    def kill(self) -> None:
        """Kill the process. Harmless if it has ended."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        if self._code is None and select.select([self._answers], [], [], timeout_s)[0]:
            with self._ending:  # several threads may ask
                if self._code is None:
                    answer = self._answers.recv(_MESSAGE_BYTES)
                    if not answer:
                        raise RuntimeError("the starter of nodes has ended")
                    self._code = int(answer)
                    os.close(self._pidfd)
        return self._code

    def __del__(self) -> None:
        self._answers.close()  # not earlier: another thread may wait at it


class _Starter:
    """The socket of a starter, which is created by the first request."""

    def __init__(self) -> None:
        self.made_by = os.getpid()
        self.environment = _compared(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    def requests(self) -> socket.socket:
        with self._starting:
            if self._process is None:
                self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = subprocess.Popen(
                        [sys.executable, "-c", f"from {__name__} import main; main()", str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,  # as a node's
                        pass_fds=[theirs.fileno()],
                        env={**self.environment, _ONE_THREAD: "1"},
                    )
            return self._requests

    def stop(self) -> None:
        if self._process is not None:
            self._requests.shutdown(socket.SHUT_RDWR)  # also for forks of this process, which have inherited it
            self._requests.close()
            self._process.communicate()


_starter: _Starter | None = None


def use_starter() -> None:
    """Start nodes by forks from now on, in this process and with its present environment."""
    global _starter
    if _ONE_THREAD not in os.environ:
        _starter = _Starter()


def stop_starter() -> None:
    """Stop the starter, if this process has one. Nodes that still run can only be killed by their ids."""
    global _starter
    starter, _starter = _starter, None
    if starter is not None and starter.made_by == os.getpid():
        starter.stop()


atexit.register(stop_starter)


def fork_node(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> ForkedNode | None:
    """Start `ais-loader` with these arguments. None if a fork is not what was asked for, or would differ."""
    starter = _starter
    if starter is None or starter.made_by != os.getpid() or _compared(environment) != starter.environment:
        return None
    return ForkedNode(starter.requests(), words, log)


def _compared(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != _OF_ONE_TEST}


# -- in the starter


def _serve(requests: socket.socket) -> None:
    """Fork for each request until the socket is closed. Returns in forked processes as well, ready to be a node."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is also for the process that has started it, which decides
    running: dict[int, tuple[int, socket.socket]] = {}
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for ready in [key.fd for key, _ in selector.select()]:
            if ready in running:
                selector.unregister(ready)
                os.close(ready)
                pid, answers = running.pop(ready)
                _send_code(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
            if not message:
                return
            answers = socket.socket(fileno=descriptors.pop())
            pid = os.fork()
            if pid == 0:
                selector.close()
                for pidfd, (_, other) in running.items():
                    os.close(pidfd)
                    other.close()
                answers.close()
                _become_a_node(json.loads(message), descriptors)
                return
            for stream in descriptors:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, answers
            selector.register(pidfd, selectors.EVENT_READ)
            socket.send_fds(answers, [str(pid).encode()], [pidfd])


def _send_code(answers: socket.socket, code: int) -> None:
    with answers:
        try:
            answers.send(str(code).encode())
        except OSError:
            return  # nobody waits for it


def _become_a_node(request: dict[str, object], streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(str(request["folder"]))
    os.environ.pop(_ONE_THREAD)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:] = request["words"]  # type: ignore[call-overload]


def main() -> None:
    """Be the starter, with the descriptor of its socket as the argument."""
    for name in _IMPORTED:
        importlib.import_module(name)
    own_pid = os.getpid()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _serve(requests)
    if os.getpid() != own_pid:
        runpy.run_module(_COMMAND, run_name="__main__", alter_sys=True)
