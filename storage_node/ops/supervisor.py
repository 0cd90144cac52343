"""Supervisor of one node: keeps it serving on the drives that carry its uuid, as long as its process lives.

A missing precondition is reported and waited for; it is never fatal: a drive that is not mounted yet, a drive that its
former process still holds (one that outlived its Ray), a port that is taken. A drive that appears later is added, if
necessary by a restart of the server. If the node serves at another address than the map has, the map is changed.

One thread does all of this; `status` may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ais_loader.errors import StoreNotFound
from ais_loader.version import __version__
from ais_loader.wire.backoff import Backoff
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import set_endpoints
from storage_node.etl.worker.environments import Environments
from storage_node.ops import cluster_identity, crash_backoff, node_file, node_log, peer_secret
from storage_node.ops import settings_store as settings_file
from storage_node.ops.gateway_process import GatewayProcess
from storage_node.ops.node_discovery import NodeDrives, find_nodes
from storage_node.ops.node_file import NodeFile, free_port, is_free, port_of, usable_peer_ports
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.settings.sources import configured, for_node

BACKOFF = Backoff(0.1, 5.0, jitter=0)
LOOK_INTERVAL_S = 2.0
PORT_PATIENCE_S = 10.0
"""How long a node waits for its former port before it takes another."""
METRICS_PORTS = 100
"""Nodes of one machine take the first free one of this many ports, starting at the configured one, for their metrics
and their gateways."""
PUBLISH_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


class CrashedBefore(Exception):
    """This node's processes have died young. The message has the time of the next attempt."""


class Supervisor:
    """Supervisor thread of a node. `start` returns at once; see the module.

    Args:
        root: folder with the drives; see `drives`.
        uuid: the node's uuid.
        host: address to listen on, for clients and for peers, and at which they reach it if the settings name no other.
        environments: see `NodeServer`.

    Its settings are those stored below the root when it starts to serve.
    """

    def __init__(self, root: Path, uuid: str, host: str, environments: Environments | None = None) -> None:
        self.uuid = uuid
        self._environments = environments
        self._root = root
        self._host = host
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ais-loader-supervisor", daemon=True)
        self._lock = threading.Lock()
        self._server: NodeServer | None = None  # guarded by _lock, like all below
        self._local: NodeDrives | None = None
        self._state = "starting"
        self._problem = ""
        self._tries = 0
        self._port_waited_s = 0.0
        self._settings: dict[str, Any] = {}
        self._metrics = ""
        self._gateway: GatewayProcess | None = None
        self._renewing = False
        self._rested = False
        """No more waiting because of earlier processes."""
        self._counted = False
        """The start of this process is recorded in the node's file."""
        self._lasted = False
        """This process has lived long enough."""
        self._served_at_s = 0.0
        self._rest_until_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Return the status as JSON. `state`: starting, waiting (`problem` says for what), serving, stopped."""
        with self._lock:
            server, local = self._server, self._local
            view = server.membership.view if server is not None else None
            return {
                "uuid": self.uuid,
                "name": local.name if local is not None else "",
                "state": self._state,
                "problem": self._problem,
                "tries": self._tries,
                "endpoint": server.endpoint if server is not None else "",
                "peer_endpoint": server.peer_endpoint if server is not None else "",
                "metrics_url": f"http://{self._metrics}/metrics" if server is not None and self._metrics else "",
                "gateway_url": self._gateway.url if self._gateway is not None else "",
                "settings": self._settings,
                "pid": os.getpid(),
                "drives": [str(drive) for drive in local.drives] if local is not None else [],
                "map_version": view.version if view is not None else 0,
                "version": __version__,
            }

    def stop(self, grace_s: float = 5.0) -> None:
        """Let running calls finish within `grace_s`, and close the drives. May be called again."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            server, self._server, self._state, self._problem = self._server, None, "stopped", ""
        self._stop_gateway()
        if server is not None:
            server.stop(grace_s)
            self._note_life()
            log.info("node %s: stopped", self.uuid)

    def renew(self) -> None:
        """Restart the server with the current settings: running calls finish, and clients repeat new ones by
        themselves."""
        with self._lock:
            self._renewing = True
        self._wake.set()

    def hurry(self) -> None:
        """Retry at once whatever is being waited for."""
        with self._lock:
            self._rested = True
        self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._tend()
            except Exception as error:  # noqa: BLE001 - the process exists to keep trying, and to report why
                if f"{error}" != self._problem:
                    log.warning("node %s: %s", self.uuid, error)
                with self._lock:
                    self._problem = f"{error}" or type(error).__name__
                    self._state = "serving" if self._server is not None else "waiting"
                    self._tries += 1
                if self._server is None:
                    with contextlib.suppress(OSError):  # for people; `status` reports it too
                        node_file.note_problem(self._root, self.uuid, self._problem)
                pause_s = BACKOFF.pause_s(failures)
                failures += 1
                self._pause(pause_s)
                self._port_waited_s += pause_s
            else:
                with self._lock:
                    self._state, self._problem, self._tries, self._port_waited_s = "serving", "", 0, 0.0
                failures = 0
                self._pause(LOOK_INTERVAL_S)

    def _pause(self, pause_s: float) -> None:
        self._wake.wait(pause_s)
        if not self._stopping.is_set():
            self._wake.clear()

    def _tend(self) -> None:
        with self._lock:
            renewing, self._renewing = self._renewing, False
        if renewing and self._server is not None:
            log.info("node %s: restarting, with other settings", self.uuid)
            self._stop_server()
        found = find_nodes(self._root).node(self.uuid)
        if self._server is not None and found is not None and self._local is not None:
            # The server looks for missing drives itself. One that it cannot use while it runs may need a restart.
            problems = {one: self._server.drives.problem_at(one) for one in set(found.drives) - set(self._local.drives)}
            if bad := sorted(one for one, problem in problems.items() if problem):
                log.warning("node %s: restarting, with %s", self.uuid, ", ".join(map(str, bad)))
                self._stop_server()
            elif used := tuple(one for one in found.drives if problems.get(one, "") is not None):
                with self._lock:
                    self._local = replace(found, drives=used)
        if self._server is None:
            if found is None:
                raise StoreNotFound(f"no drive of node {self.uuid} below {self._root}: are its drives mounted?")
            self._serve(found)
        self._publish()
        if not self._lasted and time.monotonic() - self._served_at_s > crash_backoff.SHORT_LIFE_S:
            self._note_life()

    def _find(self) -> tuple[Path, ...]:
        found = find_nodes(self._root).node(self.uuid)
        return found.drives if found is not None else ()

    def _serve(self, drives: NodeDrives) -> None:
        """Start the server. Raises what NodeServer.start raises, WrongSetting, CrashedBefore, OSError."""
        file = node_file.read(drives.folder)
        if file is None or file.uuid != self.uuid:
            file = NodeFile(self.uuid)
        file = crash_backoff.count_short_life(file, not self._counted)
        self._rest(drives.folder, file)
        kept = settings_file.read(self._root).values
        base = ServerConfig(
            host=self._host,
            port=(port := self._choose_port(file.port)),
            peer_host=self._host,
            peer_port=self._choose_port(port_of(file.peer), {port}, usable_peer_ports()),
            peer_secret_file=peer_secret.default_file(self._root),
        )
        settings = for_node(kept, drives.name, self.uuid)
        config = configured(base, settings)
        config = config.replace(**self._ports_near(config, file))
        born_s = time.time()
        node_file.write(drives.folder, replace(file, born_s=born_s))
        self._counted = True
        server = NodeServer(
            drives.drives,
            config,
            environments=self._environments,
            identity=cluster_identity.of_nodes(self._root),
            find=self._find,
        )
        try:
            server.start()
            listening = f"{self._host}:{server.port}"
            endpoint = server.endpoint or listening
            metrics = f"{self._host}:{server.metrics_port}" if server.metrics_port is not None else ""
            gateway = GatewayProcess(server.config, server.port) if config.gateway.port is not None else None
            measures_gateway = gateway is not None and config.gateway.metrics_port is not None
            node_file.write(
                drives.folder,
                NodeFile(
                    self.uuid,
                    endpoint,
                    listening=listening if listening != endpoint else "",
                    peer=f"{config.listen.peer_host}:{server.peer_port}",
                    metrics=metrics,
                    gateway=gateway.url if gateway is not None else "",
                    gateway_metrics=f"{self._host}:{config.gateway.metrics_port}" if measures_gateway else "",
                    born_s=born_s,
                    short_lives=file.short_lives,
                ),
            )
        except BaseException:
            server.stop(grace_s=0.0)
            with contextlib.suppress(OSError):
                node_file.write(drives.folder, file)  # the start failed, but the process did not die
            raise
        with self._lock:
            self._server, self._local, self._metrics, self._gateway = server, drives, metrics, gateway
            self._settings, self._served_at_s, self._lasted = settings, time.monotonic(), False
        if gateway is not None:
            gateway.begin()
        log.info("node %s: serving %s at %s", self.uuid, ", ".join(map(str, drives.drives)), endpoint)

    def _rest(self, folder: Path, file: NodeFile) -> None:
        """Raise CrashedBefore until the next attempt is due."""
        if self._counted or self._rested or not (pause_s := crash_backoff.rest_s(file.short_lives)):
            return
        if not self._rest_until_s:
            self._rest_until_s = time.time() + pause_s
            node_file.write(folder, file)  # a restart of the host is no short life
        if time.time() < self._rest_until_s:
            log_path = node_log.path_of(self._root, self.uuid)
            raise CrashedBefore(crash_backoff.problem(file.short_lives, self._rest_until_s, str(log_path)))

    def _note_life(self) -> None:
        """Record that this process has lived long enough, or has ended in order."""
        self._lasted = True
        file = node_file.read(self._local.folder) if self._local is not None else None
        if self._local is not None and file is not None and file.uuid == self.uuid:
            with contextlib.suppress(OSError):
                node_file.write(self._local.folder, replace(file, born_s=0.0, short_lives=0))

    def _choose_port(self, kept: int, avoid: Collection[int] = (), among: Iterable[int] | None = None) -> int:
        if kept and is_free(self._host, kept):
            return kept
        if kept and self._port_waited_s < PORT_PATIENCE_S:
            raise OSError(f"port {kept} of {self._host}, where this node served before, is taken")
        return free_port(self._host, {*self._ports_of_others(), *avoid}, among)

    def _ports_near(self, config: ServerConfig, file: NodeFile) -> dict[str, int]:
        """Choose the ports of which the settings name the first. Raises OSError."""
        wanted = {
            "metrics_port": (config.listen.metrics_port, port_of(file.metrics)),
            "gateway_port": (config.gateway.port, port_of(file.gateway)),
            "gateway_metrics_port": (config.gateway.metrics_port, port_of(file.gateway_metrics)),
        }
        chosen: dict[str, int] = {}
        for name, (first, kept) in wanted.items():
            if first is not None:
                chosen[name] = self._choose_port_near(kept, first, chosen.values())
        return chosen

    def _choose_port_near(self, kept: int, first: int, avoid: Collection[int]) -> int:
        among = range(first, min(first + METRICS_PORTS, 65_536)) if first else None
        if kept and kept not in avoid and (among is None or kept in among) and is_free(self._host, kept):
            return kept
        return free_port(self._host, avoid={*self._ports_of_others(), *avoid}, among=among)

    def _ports_of_others(self) -> set[int]:
        return set().union(*(file.ports for file in node_file.read_all(self._root)))

    def _publish(self) -> None:
        """Make the map have this node's current address. Raises ChangeFailed."""
        server = self._server
        view = server.membership.view if server is not None else None
        position = view.position.get(bytes.fromhex(self.uuid)) if view is not None else None
        if server is None or view is None or position is None:
            return
        now, member = (server.endpoint, server.peer_endpoint), view.nodes[position]
        if all(now) and (member.endpoint, member.peer_endpoint) != now:
            others = [file.endpoint for file in node_file.read_all(self._root) if file.endpoint]
            change_map(
                [server.peer_endpoint, *others, *(node.peer_endpoint for node in view.nodes)],
                set_endpoints(bytes.fromhex(self.uuid), *now),
                timeout_s=PUBLISH_TIMEOUT_S,
                caller=peer_secret.operator(self._root),
            )

    def _stop_server(self) -> None:
        with self._lock:
            server, self._server, self._state = self._server, None, "starting"
        self._stop_gateway()
        if server is not None:
            server.stop()

    def _stop_gateway(self) -> None:
        with self._lock:
            gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.stop()
