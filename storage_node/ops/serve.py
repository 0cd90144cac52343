"""Main function of a node's process: serve until a signal arrives."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ais_loader.version import __version__
from ais_loader.wire.node_folder import NodeAddress, NodeFolder, environment_digests, host_id, unix_endpoint
from storage_node.ops.gateway_process import GatewayProcess
from storage_node.server import NodeServer
from storage_node.settings.config import EVERY_ADDRESS, ServerConfig
from storage_node.store.machine_memory import keep_freed_memory

log = logging.getLogger(__name__)
_LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.02
_IDLE_POLL_S = 1.0
_GARBAGE = 50_000
"""New objects after which garbage is collected: those of hundreds of requests in flight, which have none."""


def run_node(
    drives: Sequence[str | os.PathLike[str]],
    config: ServerConfig,
    announce: Callable[[NodeServer, GatewayProcess | None], None],
    *,
    lock: int | None = None,
    identity: Path | None = None,
    socket_path: Path | None = None,
) -> None:
    """Start a node and its gateway, if the settings have one, and call `announce` when they accept connections. Serve
    until SIGTERM or SIGINT, or until the node has been idle for `idle_exit_s`. Clients of this host find it by the node
    folder of its drives. If one of them has started it, SIGHUP ends it as soon as it is not in use.

    Must run on the main thread. `lock`: descriptor of the lock of that folder, if this process has inherited it.
    `identity`, `socket_path`: see `NodeServer`. Raises what NodeServer.start raises; StoreError if the gateway cannot
    serve.
    """
    os.umask(0o077)  # logs, and the files of catalogs
    stopping, asked = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if lock is not None:
        signal.signal(signal.SIGHUP, lambda *_: asked.set())
    keep_freed_memory()
    node = NodeServer(drives, config, makes_secret=True, identity=identity, socket_path=socket_path).start()
    folder = NodeFolder(drives)
    gateway = GatewayProcess(node.config, node.port) if config.gateway.port is not None else None
    try:
        if gateway is not None:
            gateway.start()
        lock = _published(folder, lock, node, socket_path)
        gc.freeze()  # collections need not look again at what lives as long as the node
        gc.set_threshold(_GARBAGE)
        announce(node, gateway)
        _wait_for_signals(stopping, asked, node, config.limits.idle_exit_s)
    finally:
        if lock is not None:
            with suppress(OSError):
                folder.withdraw(lock)
        if gateway is not None:
            gateway.stop()
        node.stop()
        if lock is not None:
            os.close(lock)


def _published(folder: NodeFolder, lock: int | None, node: NodeServer, socket_path: Path | None) -> int | None:
    """Let clients of this host find the node. Returns the folder's lock; None if they cannot find it. Raises OSError if
    the lock was inherited: a client waits for the node."""
    host = "127.0.0.1" if node.config.listen.host in EVERY_ADDRESS else node.config.listen.host
    endpoint = f"{host}:{node.port}" if socket_path is None else unix_endpoint(socket_path)
    environment = environment_digests() if lock is not None else {}
    address = NodeAddress(endpoint, os.getpid(), __version__, host_id(), environment)
    if lock is not None:
        folder.publish(lock, address)
        return lock
    ends_at_s = time.monotonic() + _LOCK_WAIT_S
    try:
        # A client that has just found no node may hold it, until the one that it starts finds the store in use.
        while lock is None and (lock := folder.lock()) is None and time.monotonic() < ends_at_s:
            time.sleep(_LOCK_POLL_S)
        if lock is not None:
            folder.publish(lock, address)
            return lock
        log.warning("%s is locked by another process: clients cannot find this node by node:///", folder.pid_path)
    except OSError as error:
        log.warning("%s: %s: clients cannot find this node by node:///", folder.path, error.strerror)
        if lock is not None:
            os.close(lock)
    return None


def _wait_for_signals(until: threading.Event, asked: threading.Event, node: NodeServer, idle_exit_s: float) -> None:
    """Wait until a signal handler has set `until`, or the node has been idle for `idle_exit_s`, unless that is 0. Once
    one has set `asked`, wait until the node is idle.

    The kernel may deliver a signal to any thread, especially in a process that continues after a SIGSTOP. Python runs
    the handler on this thread, but waiting on the event would not wake this thread for it.
    """
    woken, waking = socket.socketpair()
    with woken, waking:
        waking.setblocking(False)
        if idle_exit_s:
            woken.settimeout(min(_IDLE_POLL_S, idle_exit_s / 4))
        before = signal.set_wakeup_fd(waking.fileno())
        try:
            while not until.is_set():
                with suppress(TimeoutError):
                    woken.recv(64)
                if idle_exit_s and node.idle_s() >= idle_exit_s:
                    log.info("no client has used this node for %g s (idle_exit_s): it exits", idle_exit_s)
                    return
                if asked.is_set() and node.idle_s():
                    log.info("a client has another environment, and none uses this node: it exits")
                    return
        finally:
            signal.set_wakeup_fd(before)
