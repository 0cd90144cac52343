"""Node on demand: `python -m storage_node.ops.on_demand LOCK DRIVE...`, which clients of `node:///` URLs run.

Its clients reach it by a Unix socket in the node folder, which is closed to other users.

LOCK is the inherited descriptor that holds the lock of the drives' node folder. Standard error is the node's log. If
the node cannot start, its last line is "[KIND] MESSAGE", from which the client makes its error.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from ais_loader.errors import LoaderError, StoreError
from ais_loader.wire.node_folder import NodeFolder

IDLE_EXIT_S = 600.0


def main(arguments: Sequence[str]) -> None:
    lock, drives = int(arguments[0]), arguments[1:]
    os.set_inheritable(lock, False)
    os.umask(0o077)  # the log, which comes first
    try:
        from storage_node.ops import node_log
        from storage_node.ops.serve import run_node
        from storage_node.settings.config import ServerConfig
        from storage_node.settings.host_patterns import ANY

        folder = NodeFolder(drives)
        node_log.log_to(folder.log_path, with_stderr=True)
        config = ServerConfig().replace(port=0, idle_exit_s=IDLE_EXIT_S, remote_hosts=(ANY,))
        socket_path = folder.make_socket_path()
        try:
            run_node(drives, config, lambda *_: None, lock=lock, socket_path=socket_path)
        finally:
            if socket_path.parent != folder.path:
                shutil.rmtree(socket_path.parent, ignore_errors=True)
    except LoaderError as error:
        sys.exit(f"[{error.kind}] {error}")
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"[{StoreError.kind}] {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
