"""Ray actor of a storage node: Ray places its process and starts it again, and has no part in anything else.

The class is plain; whoever starts it makes the actor of it (`ray_actors`), so that this module needs no Ray. What
an actor must not do decides its shape: an exception in `__init__` ends an actor for good, whatever `max_restarts`
says, so `__init__` raises nothing and waits for nothing. The node's server has a thread and an event loop of its own,
and outlives the actor's loop for as long as draining takes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from storage_node.ops import node_log
from storage_node.ops.ray_environments import RayEnvironments
from storage_node.ops.serve import keep_freed_memory
from storage_node.ops.supervisor import Supervisor

HOOK_GRACE_S = 2.0


class StorageNodeActor:
    """See `Supervisor` for the arguments and for `status`."""

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
        """Serve anew with the settings that are kept now; returns at once."""
        self._node.renew()

    def hurry(self) -> None:
        """Try at once what is being waited for."""
        self._node.hurry()

    def stop(self, grace_s: float = 5.0) -> None:
        """Drain: running calls finish, for `grace_s`; then the drives are free. The process waits to be ended."""
        self._node.stop(grace_s)

    def __ray_shutdown__(self) -> None:
        """Called by Ray where it ends the process with a warning."""
        self._node.stop(HOOK_GRACE_S)
