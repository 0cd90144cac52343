"""One client for all file systems of this process that mean the same store.

fsspec makes a file system for each thread that asks for one, and libraries ask from many; an embedded store has one
writer at a time, and a node should not be connected to once for each thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import ais_loader
from ais_loader import Client, errors

_clients: WeakValueDictionary[str, Client] = WeakValueDictionary()
_lock = threading.Lock()


def shared_client(url: str | None, connect_options: Mapping[str, Any]) -> Client:
    """The client of this store with these options; a new one when nobody has one that is open.

    Raises what `connect` raises.
    """
    key = f"{os.getpid()} {url!r} {sorted(connect_options.items())!r}"
    with _lock:
        client = _clients.get(key)
        if client is None or client.closed:
            client = _clients[key] = _connect(url, connect_options)
        return client


def _connect(url: str | None, options: Mapping[str, Any]) -> Client:
    try:
        return ais_loader.connect(url, **options)
    except errors.StoreLocked:
        if "mode" in options:
            raise
        # Most who name a file mean to read it, and that takes no lock. Who writes is told then.
        return ais_loader.connect(url, **options, mode="r")


def _after_fork_in_child() -> None:
    # Another thread may have held it, and is not here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
