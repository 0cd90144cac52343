"""Gateway of a node: `ais-loader gateway` in a process of its own, which ends with the node.

One that dies is started again, at the same port. Its output goes to the node's log.
"""

from __future__ import annotations

import json
import logging
import selectors
import subprocess
import sys
import threading
import time
from contextlib import suppress

from ais_loader.errors import StoreError
from ais_loader.wire.backoff import Backoff
from storage_node.settings.config import EVERY_ADDRESS, ServerConfig

log = logging.getLogger(__name__)
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
"""Longer than the gateway lets requests finish."""
_BACKOFF = Backoff(0.2, 10.0, jitter=0)
_SHORT_LIFE_S = 30.0


class GatewayProcess:
    """The gateway of one node.

    Args:
        config: The settings of the node, whose host and certificate the gateway has too.
        port: The port on which the node serves clients.
    """

    def __init__(self, config: ServerConfig, port: int) -> None:
        listen, settings = config.listen, config.gateway
        assert settings.port is not None
        self._host = listen.host
        self._port = settings.port
        scheme, self._scheme = ("grpcs://", "https://") if listen.cert_file else ("grpc://", "http://")
        near = "127.0.0.1" if listen.host in EVERY_ADDRESS else listen.host
        # The node's owner has decided whether it may listen on a network.
        self._arguments = [f"{scheme}{near}:{port}", "--host", listen.host, "--json", "--ends-with-input", "--insecure"]
        self._arguments += ["--keys", settings.keys_file, "--processes", str(settings.processes)]
        if listen.cert_file:
            self._arguments += ["--cert", listen.cert_file, "--key", listen.key_file, "--ca", listen.ca_file]
        if settings.access_log:
            self._arguments += ["--access-log", settings.access_log]
        if settings.metrics_port is not None:
            self._arguments += ["--metrics-port", str(settings.metrics_port)]
        self.metrics_url = ""
        """URL of its metrics; empty if they are not served, or not yet."""
        self._process: subprocess.Popen[str] | None = None  # guarded by _lock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ais-loader-gateway", daemon=True)

    @property
    def url(self) -> str:
        """URL at which it serves clients."""
        return f"{self._scheme}{self._host}:{self._port}"

    def start(self) -> GatewayProcess:
        """Start it, and wait until it serves. Raises StoreError with the reason if it cannot."""
        process = self._spawn()
        try:
            self._announced(process)
        except BaseException:
            self.stop()
            raise
        self._thread.start()
        return self

    def begin(self) -> None:
        """Start it, and return at once. One that cannot serve is started again and again."""
        self._thread.start()

    def stop(self) -> None:
        """Let its requests finish, and end it. May be called again."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread.is_alive():
            self._thread.join()
        if process is not None:
            _close(process)

    def _spawn(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ais_loader.cli", "gateway", *self._arguments, "--port", str(self._port)]
        pipe = subprocess.PIPE
        with self._lock:
            if self._stopping.is_set():
                raise StoreError("the gateway is stopping")
            # In a session of its own, Ctrl-C in a terminal reaches it through the node, after the node's own clients.
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
            )
            return self._process

    def _announced(self, process: subprocess.Popen[str]) -> None:
        """Wait until it serves. Raises StoreError."""
        assert process.stdout is not None and process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(START_TIMEOUT_S) else ""
        if not line:
            process.kill()
            said = process.stderr.read().strip().splitlines()
            raise StoreError(f"the gateway does not serve: {said[-1] if said else 'it says nothing'}")
        described = json.loads(line)
        self._port = int(str(described["url"]).rpartition(":")[2])
        self.metrics_url = str(described.get("metrics_url", ""))

    def _run(self) -> None:
        failures = 0
        while True:
            with self._lock:
                process = self._process
            began_s = time.monotonic()
            try:
                if process is None or process.poll() is not None:
                    process = self._spawn()
                self._log_until_end(process)
            except StoreError:  # stopping
                return
            except OSError as error:
                log.warning("the gateway cannot start: %s", error)
            if self._stopping.is_set():
                return
            failures = 0 if time.monotonic() - began_s > _SHORT_LIFE_S else failures + 1
            pause_s = _BACKOFF.pause_s(failures)
            code = process.returncode if process is not None else None
            log.warning("the gateway ended with code %s; it starts again in %.1f s", code, pause_s)
            if self._stopping.wait(pause_s):
                return

    def _log_until_end(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.warning("gateway: %s", line.rstrip())
        process.wait()
        _close(process)


def _close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        with suppress(OSError):
            stream.close()
