"""Ray actor of a storage node: Ray places its process and restarts it, and is involved in nothing else.

The class is plain; `ray_actors` turns it into an actor, so that this module does not need Ray. The limits of an actor
decide its shape: an exception in `__init__` ends an actor permanently, whatever `max_restarts` is, so `__init__` raises
nothing and waits for nothing. The node's server has a thread and an event loop of its own, and outlives the actor's
loop while it drains.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from storage_node.ops import node_log
from storage_node.ops.ray_environments import RayEnvironments
from storage_node.ops.supervisor import Supervisor
from storage_node.store.machine_memory import keep_freed_memory

HOOK_GRACE_S = 2.0


class StorageNodeActor:
    """A storage node as a Ray actor. See `Supervisor` for the arguments and for `status`."""

    def __init__(self, root: str, uuid: str, host: str) -> None:
        os.umask(0o077)  # logs, and the files of catalogs
        keep_freed_memory()
        with contextlib.suppress(OSError):  # a node without a log is better than none
            node_log.begin(Path(root), uuid)
        self._node = Supervisor(Path(root), uuid, host, RayEnvironments(host))
        self._node.start()

    def status(self) -> dict[str, Any]:
        return self._node.status()

    def renew(self) -> None:
        """Restart the server with the current settings; returns at once."""
        self._node.renew()

    def hurry(self) -> None:
        """Retry at once what is being waited for."""
        self._node.hurry()

    def stop(self, grace_s: float = 5.0) -> None:
        """Drain: running calls finish within `grace_s`; then the drives are closed. The process itself remains."""
        self._node.stop(grace_s)

    def __ray_shutdown__(self) -> None:
        """Called by Ray when it ends the process with a warning."""
        self._node.stop(HOOK_GRACE_S)
