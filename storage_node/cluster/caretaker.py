"""Keeps one node serving on the drives that carry its uuid, for as long as its process lives.

Whatever is missing is waited for and said, never fatal: a drive that is not mounted yet, one whose former holder has
not let go (a process that outlived its Ray), a port that is taken. A drive that appears later is taken in, by serving
anew with it. Where the node serves at another address than the map says, the map is changed.

One thread does all of it; `status` may be asked from any.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any, Literal

from storage_node.cluster import node_file
from storage_node.cluster.change import change_map
from storage_node.cluster.drives import NodeDrives, find_nodes
from storage_node.cluster.edits import set_endpoint
from storage_node.cluster.node_file import NodeFile
from storage_node.cluster.ports import free_port, is_free
from storage_node.config import ServerConfig
from storage_node.server import VERSION, NodeServer
from storage_node.store.errors import StoreNotFound

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LOOK_INTERVAL_S = 2.0
PORT_PATIENCE_S = 10.0
"""How long a node waits for the port it had, before it takes another."""
PUBLISH_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


class Caretaker:
    """Starts at `start`, which returns at once; see the module.

    Args:
        root: where to look for drives; see `drives`.
        uuid: of the node.
        host: address to listen on, and under which clients and peers reach it.
    """

    def __init__(
        self, root: Path, uuid: str, host: str, *, durability: Literal["process", "power"] = "process"
    ) -> None:
        self.uuid = uuid
        self._root = root
        self._host = host
        self._durability: Literal["process", "power"] = durability
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ais-loader-caretaker", daemon=True)
        self._lock = threading.Lock()
        self._server: NodeServer | None = None  # guarded by _lock, as all below
        self._here: NodeDrives | None = None
        self._state = "starting"
        self._problem = ""
        self._tries = 0
        self._port_waited_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """JSON-able. `state`: starting, waiting (`problem` says for what), serving, stopped."""
        with self._lock:
            server, here = self._server, self._here
            view = server.membership.view if server is not None else None
            return {
                "uuid": self.uuid,
                "name": here.name if here is not None else "",
                "state": self._state,
                "problem": self._problem,
                "tries": self._tries,
                "endpoint": self._endpoint(server),
                "pid": os.getpid(),
                "drives": [str(drive) for drive in here.drives] if here is not None else [],
                "map_version": view.version if view is not None else 0,
                "version": VERSION,
            }

    def stop(self, grace_s: float = 5.0) -> None:
        """Let running calls finish for `grace_s`, and let go of the drives. May be called again."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            server, self._server, self._state, self._problem = self._server, None, "stopped", ""
        if server is not None:
            server.stop(grace_s)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._tend()
            except Exception as error:  # noqa: BLE001 - the process is there to go on trying, and to say why
                log.warning("node %s: %s", self.uuid, error)
                with self._lock:
                    self._problem = f"{error}" or type(error).__name__
                    self._state = "serving" if self._server is not None else "waiting"
                    self._tries += 1
                if self._server is None:
                    with contextlib.suppress(OSError):  # it is for people, and said by `status`, too
                        node_file.note_problem(self._root, self.uuid, self._problem)
                self._stopping.wait(pause_s)
                self._port_waited_s += pause_s
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                with self._lock:
                    self._state, self._problem, self._tries, self._port_waited_s = "serving", "", 0, 0.0
                pause_s = FIRST_PAUSE_S
                self._stopping.wait(LOOK_INTERVAL_S)

    def _tend(self) -> None:
        here = find_nodes(self._root).node(self.uuid)
        if self._server is not None and here is not None and self._here is not None:
            appeared = set(here.drives) - set(self._here.drives)
            if appeared:
                log.warning("node %s: serving anew, with %s", self.uuid, ", ".join(map(str, sorted(appeared))))
                self._let_go()
        if self._server is None:
            if here is None:
                raise StoreNotFound(f"no drive of node {self.uuid} below {self._root}: are its drives mounted?")
            self._serve(here)
        self._publish()

    def _serve(self, here: NodeDrives) -> None:
        """Raises what NodeServer.start raises."""
        said = node_file.read(here.folder)
        kept = said.port if said is not None and said.uuid == self.uuid else 0
        config = ServerConfig(host=self._host, port=self._choose_port(kept), durability=self._durability)
        server = NodeServer(here.drives, config)
        try:
            server.start()
            node_file.write(here.folder, NodeFile(self.uuid, self._endpoint(server)))
        except BaseException:
            server.stop(grace_s=0.0)
            raise
        with self._lock:
            self._server, self._here = server, here

    def _choose_port(self, kept: int) -> int:
        if kept and is_free(self._host, kept):
            return kept
        if kept and self._port_waited_s < PORT_PATIENCE_S:
            raise OSError(f"port {kept} of {self._host}, where this node served before, is taken")
        return free_port(self._host, avoid={said.port for said in node_file.read_all(self._root)})

    def _publish(self) -> None:
        """Have the map say where this node serves. Raises ChangeFailed."""
        server = self._server
        view = server.membership.view if server is not None else None
        position = view.position.get(bytes.fromhex(self.uuid)) if view is not None else None
        if view is None or position is None:
            return
        endpoint = self._endpoint(server)
        if view.nodes[position].endpoint != endpoint:
            others = [said.endpoint for said in node_file.read_all(self._root) if said.endpoint]
            endpoints = [endpoint, *others, *(node.endpoint for node in view.nodes)]
            change_map(endpoints, set_endpoint(bytes.fromhex(self.uuid), endpoint), timeout_s=PUBLISH_TIMEOUT_S)

    def _let_go(self) -> None:
        with self._lock:
            server, self._server, self._state = self._server, None, "starting"
        if server is not None:
            server.stop()

    def _endpoint(self, server: NodeServer | None) -> str:
        return f"{self._host}:{server.port}" if server is not None else ""
