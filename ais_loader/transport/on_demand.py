"""Node on demand, behind `node:///folder` URLs: finds the node that serves a store on this host, or starts it.

A node that is started here belongs to nobody: it has a session of its own, inherits no descriptor except its lock, and
is no child of this process. It keeps the environment of the process that started it; a client with another one has it
start again, unless it is in use. It ends by itself when no client has used it for some time. See `wire.node_folder` for
the files by which processes find it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from ais_loader import errors
from ais_loader.transport.fork_safety import GATE
from ais_loader.version import __version__
from ais_loader.wire.node_folder import NodeAddress, NodeFolder, host_id, other_variables

START_TIMEOUT_S = 90.0
"""Longest wait for a node that this or another process starts, or that is stopping."""
_IN_USE_S = 5.0
"""Time for a node that is not in use to end. A client that has just been closed may seem to use it for a moment."""
_POLL_S = 0.02
_MAX_LOG_BYTES = 1 << 20
"""Size at which a start renames the log of earlier nodes. A running node limits its log by itself."""
_LAST_LINES = 8
_MODULE = "storage_node.ops.on_demand"
_IN_BACKGROUND = '"$@" & '
"""Makes the node an orphan. Launchers, Ray among them, kill the children of the processes that they end."""
_FAILURE = re.compile(r"\[([a-z-]+)\] (.*)")
_NO_FOREIGN_FILES = {"node", "lost+found"}


class OnDemandNode:
    """The one node of this host that serves the store on these drives. Thread-safe.

    Args:
        drives: The folders of the store, in any order.
    """

    def __init__(self, drives: Sequence[str]) -> None:
        self._drives = [os.path.abspath(drive) for drive in drives]

    def endpoint(self) -> str:
        """Return HOST:PORT of the running node. Starts one if there is none, which takes about a second.

        Raises:
            StoreError: No node can be started, or none serves after START_TIMEOUT_S. The message has the last lines of
                the node's log. StoreLocked, StoreFormatError and DriveFailed, if that is the reason.
            DriveFailed: This user may not use the folder.
            Unsupported: The running node has an older version; or it is in use, and was started with other values of
                this process's variables for remote storage. One that is not in use is started again.
        """
        deadline_s, in_use_s = time.monotonic() + START_TIMEOUT_S, 0.0
        log_start: int | None = None
        asked_pid = 0
        while True:
            folder = NodeFolder(self._drives)
            with GATE.call(), _translated(folder):  # a forked child would keep the lock
                if not folder.exists:
                    _require_possible(folder)
                lock = folder.lock()
                if lock is not None:
                    try:
                        if log_start is not None:
                            raise _failure(folder, log_start)
                        log_start = self._start(folder, lock)
                    finally:
                        os.close(lock)
                elif (address := folder.address()) is not None:
                    endpoint, others = _checked(folder, address), other_variables(address.environment)
                    if not others:
                        return endpoint
                    if asked_pid != address.pid:
                        asked_pid, in_use_s = address.pid, time.monotonic() + _IN_USE_S
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(asked_pid, signal.SIGHUP)
                    elif time.monotonic() > in_use_s:
                        raise _in_use(folder, address, others)
            if time.monotonic() > deadline_s:
                raise errors.StoreError(
                    f"{folder.drive}: process {folder.pid() or 'unknown'} holds {folder.pid_path}, and has not served "
                    f"for {START_TIMEOUT_S:g} s; {folder.log_path} may say why"
                )
            time.sleep(_POLL_S)

    def _start(self, folder: NodeFolder, lock: int) -> int:
        """Start a node, which takes over the lock. Returns the size of the log before. Raises StoreError."""
        _require_possible(folder)
        folder.withdraw(lock)  # left by a node that was killed
        log = folder.open_log(_MAX_LOG_BYTES)
        try:
            log_start = os.fstat(log).st_size
            command = [sys.executable, "-m", _MODULE, str(lock), *self._drives]
            subprocess.run(
                ["/bin/sh", "-c", _IN_BACKGROUND, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                pass_fds=(lock,),
                start_new_session=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise errors.StoreError(f"{folder.drive}: no node can be started: {error}") from error
        finally:
            os.close(log)
        return log_start


@contextlib.contextmanager
def _translated(folder: NodeFolder) -> Iterator[None]:
    try:
        yield
    except errors.LoaderError:
        raise
    except OSError as error:
        raise errors.DriveFailed(
            f"{error.filename or folder.pid_path}: {error.strerror}: a node on demand is for the processes of the user "
            "who owns the folder, and must be able to write to it"
        ) from error


def _failure(folder: NodeFolder, log_start: int) -> errors.LoaderError:
    """Return the error of a node that has ended instead of serving. `log_start`: where its output begins in the log."""
    try:
        lines = folder.log_path.read_bytes()[log_start:].decode(errors="replace").splitlines()
    except OSError as error:
        lines = [str(error)]
    kind, shown = errors.StoreError.kind, "\n".join(lines[-_LAST_LINES:]) or "it was killed"
    if lines and (told := _FAILURE.fullmatch(lines[-1])) is not None:
        kind, shown = told[1], told[2]
    return errors.from_node(kind, f"no node could be started for {folder.drive}: {shown} (see {folder.log_path})")


def _require_possible(folder: NodeFolder) -> None:
    """Check that a node may be started for this drive. Raises StoreFormatError, Unsupported."""
    try:
        names = set(os.listdir(folder.drive))
    except OSError:
        return  # missing, or told when the folder is locked
    if "cluster.json" in names:
        raise errors.Unsupported(
            f"{folder.drive} is a drive of a node of a cluster, which is not started on demand: connect to grpc://HOST:PORT"
        )
    if not folder.has_store and (foreign := sorted(names - _NO_FOREIGN_FILES)):
        raise errors.StoreFormatError(
            f"{folder.drive} is not a store, and not empty either ({', '.join(foreign[:3])}); look at the path, or "
            "give an empty or new folder"
        )


def _checked(folder: NodeFolder, address: NodeAddress) -> str:
    """Return the endpoint of a running node. Raises StoreError, Unsupported."""
    if address.host != host_id():
        raise errors.StoreError(
            f"{folder.drive} is served by process {address.pid} of another host or container; connect to it by "
            "grpc://HOST:PORT"
        )
    if _numbers(address.version) < _numbers(__version__):
        raise errors.Unsupported(
            f"the node that serves {folder.drive} runs ais-loader {address.version}, and this is {__version__}: stop "
            f"it with `kill {address.pid}`, and the next client starts a new one"
        )
    return address.endpoint


def _in_use(folder: NodeFolder, address: NodeAddress, others: Sequence[str]) -> errors.Unsupported:
    return errors.Unsupported(
        f"the node that serves {folder.drive} is in use, and was started with other values of {', '.join(others)}: "
        f"stop it with `kill {address.pid}`, and the next client starts one with its own environment"
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
