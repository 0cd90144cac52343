"""Node process: a real storage node, started as an operator starts it, but treated worse.

A node that is killed and restarted keeps its port and its drives, so that clients find it again.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from ais_loader.testing.memory import peak_rss_bytes, reset_peak_rss, rss_bytes
from ais_loader.wire.closing import Closing

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 180.0


_making_secret = threading.Lock()


def peer_secret_file() -> Path:
    """Return the file with the peer secret of all nodes that this process starts. It is removed when the process exits.

    Nodes are given it unless their arguments set `peer_secret_file`.
    """
    with _making_secret:  # nodes are started in threads, and all share one secret
        return _peer_secret_file()


@functools.cache
def _peer_secret_file() -> Path:
    made_by, path = os.getpid(), Path(tempfile.mkdtemp(prefix="ais-loader-testing-")) / "peer-secret"
    path.touch(0o600)
    path.write_text(secrets.token_hex(32) + "\n")

    def remove() -> None:
        if os.getpid() == made_by:  # not in a fork
            shutil.rmtree(path.parent, ignore_errors=True)

    atexit.register(remove)
    return path


def _reserved_port(host: str) -> socket.socket | None:
    """Return a socket that keeps a port for a node that is not running: no connection from this machine gets it. None
    if the host is in another network, as a node that is started in a namespace.

    It does not listen, so a server with SO_REUSEADDR, as gRPC's are, can bind the same port.
    """
    (family, _, _, _, address), *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    except OSError:
        reserved.close()
        return None
    return reserved


class NodeProcess(Closing):
    """A running `ais-loader serve`. It starts immediately. As a context manager, it stops the node in any state.

    Args:
        drives: The folders of the store. Missing ones are created.
        arguments: Further arguments of `ais-loader serve`.
        environment: Environment variables in addition to this process's own.
        host: The address to listen on.
        launcher: Words to put before the command, such as those of `ip netns exec`. They must replace their own process
            with the node.
        metrics: Whether the node serves its metrics, for `numbers`.
        own_secret: Whether the node creates its own peer secret. By default, it has that of `peer_secret_file`, as do
            all nodes that this process starts.
        identity: The identity folder with which the node uses TLS. It is created if it is missing.

    Raises RuntimeError, with the node's output, if the node exits instead of serving; TimeoutError if it does neither.
    """

    def __init__(
        self,
        drives: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        launcher: Sequence[str] = (),
        metrics: bool = False,
        own_secret: bool = False,
        identity: str | os.PathLike[str] | None = None,
    ) -> None:
        several = [drives] if isinstance(drives, str | os.PathLike) else drives
        self.drives = [Path(drive) for drive in several]
        self._ports = [_reserved_port(host) for _ in range(2)]
        self.port, self.peer_port = (0 if one is None else one.getsockname()[1] for one in self._ports)
        self._host = host
        self._launcher = list(launcher)
        self.metrics_url = ""
        """The URL of its metrics, or an empty string if it does not serve them."""
        self.gateway_url = ""
        """The URL of its gateway; empty if it has none."""
        self._arguments = [*arguments, *(["--metrics-port", "0"] if metrics else [])]
        self.ca_file = "" if identity is None else str(Path(identity) / "ca.pem")
        """The CA of the node's certificate; empty without TLS."""
        if identity is not None:
            self._arguments += ["--secure", "--identity", str(identity)]
        if not own_secret and not any("peer_secret_file" in word for word in arguments):
            self._arguments += ["--set", f"peer_secret_file={peer_secret_file()}"]
        self._environment = {**os.environ, **(environment or {})}
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed by stop()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self._discard()
            raise

    @property
    def url(self) -> str:
        """The node's URL, which stays the same over all restarts."""
        return f"{'grpcs' if self.ca_file else 'grpc'}://{self._host}:{self.port}"

    @property
    def peer_endpoint(self) -> str:
        """The host:port for other nodes and operators, whatever it advertises. Stays the same over all restarts."""
        return f"{self._host}:{self.peer_port}"

    @property
    def pid(self) -> int:
        """The id of its process. Raises RuntimeError if it is not running."""
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether its process is running, even if it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the node is not running")
        return self._process

    def start(self) -> None:
        """Start the node after `kill` or `stop`, on its previous port. Returns when it serves."""
        if self._process is not None:
            raise RuntimeError("the node is running")
        command = [*self._launcher, sys.executable, "-m", "ais_loader.cli", "serve", "--json"]
        command += ["--host", self._host, "--port", str(self.port)]
        if not self._host.startswith("127."):
            command.append("--insecure")
        command += ["--peer-host", self._host, "--peer-port", str(self.peer_port)]
        for drive in self.drives:
            command += ["--drive", str(drive)]
        self._process = subprocess.Popen(
            command + self._arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
        )
        try:
            announced = json.loads(self._announcement())
            self.port = int(str(announced["url"]).rpartition(":")[2])
            self.peer_port = int(announced["peer_port"])  # others may reach it elsewhere
            self.metrics_url = str(announced.get("metrics_url", ""))
            self.gateway_url = str(announced.get("gateway_url", ""))
        except BaseException:
            self.kill()
            raise

    def _announcement(self) -> bytes:
        """Return the node's first line of output."""
        stdout = self._running.stdout
        assert stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"the node did not serve within {START_TIMEOUT_S:g} s: {self.log()}")
                part = os.read(stdout.fileno(), 4096)
                if not part:
                    raise RuntimeError(f"the node ended with code {self._running.wait()}: {self.log()}")
                line += part
        return line

    def log(self) -> str:
        """Return what the node has written to standard error, over all restarts."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    # -- what can happen to it

    def kill(self) -> None:
        """Kill the node, as with `kill -9`. Returns when it is gone. Harmless if it already is."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the node as an operator does: running calls finish. Returns the exit code, or 0 if it was not running.

        Raises TimeoutError, after killing it, if it does not end.
        """
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGCONT)  # a paused process does not see SIGTERM
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(f"the node did not stop within {STOP_TIMEOUT_S:g} s: {self.log()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def pause(self) -> None:
        """Freeze the node: connections stay open, but nothing is sent. Returns when all of its threads stand still."""
        running = self._running
        running.send_signal(signal.SIGSTOP)
        # One thread takes the signal. Until it is scheduled, which a busy machine delays, the others go on.
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._running.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill the node, if it is running, and start it again on the same port."""
        self.kill()
        self.start()

    # -- what it costs

    def rss_bytes(self) -> int:
        """Return its current resident memory."""
        return rss_bytes(self.pid)

    def peak_rss_bytes(self) -> int:
        """Return the peak of its resident memory since its start or `reset_peak_rss`."""
        return peak_rss_bytes(self.pid)

    def reset_peak_rss(self) -> None:
        """Reset `peak_rss_bytes`."""
        reset_peak_rss(self.pid)

    def numbers(self) -> dict[str, float]:
        """Return its metrics, by name and labels as Prometheus writes them. Needs `metrics`. Raises OSError."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self.metrics_url, timeout=CALL_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def close(self) -> None:
        """Stop the node, and discard its log."""
        try:
            self.stop()
        finally:
            self._discard()

    def _discard(self) -> None:
        self._log.close()
        for port in self._ports:
            if port is not None:
                port.close()
