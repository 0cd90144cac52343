"""Node process: a storage node of its own, started as an operator starts it, and treated worse.

A node that is killed and restarted keeps its port and its drives: clients find it again where it was.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ais_loader.testing.memory import peak_rss_bytes, reset_peak_rss, rss_bytes

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 20.0


class NodeProcess:
    """A running `ais-loader serve`. Starts at once; a context manager that stops it, whatever state it is in.

    Args:
        drives: folders of the store; made if missing.
        arguments: further arguments of `ais-loader serve`.
        environment: variables on top of this process's own.
        host: the address that it listens on.
        launcher: words in front of its command, as of `ip netns exec`, which must leave it their process.
        metrics: serve its numbers, for `numbers`.

    Raises RuntimeError, with what the node said, when it ends instead of serving; TimeoutError when it does neither.
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
    ) -> None:
        several = [drives] if isinstance(drives, str | os.PathLike) else drives
        self.drives = [Path(drive) for drive in several]
        self.port = 0
        self.peer_port = 0
        self._host = host
        self._launcher = list(launcher)
        self._metrics_url = ""
        self._arguments = [*arguments, *(["--metrics-port", "0"] if metrics else [])]
        self._environment = {**os.environ, **(environment or {})}
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed by stop()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self._log.close()
            raise

    @property
    def url(self) -> str:
        """The same for all lives of this node."""
        return f"grpc://{self._host}:{self.port}"

    @property
    def peer_endpoint(self) -> str:
        """host:port for other nodes and operators; the same for all lives."""
        return f"{self._host}:{self.peer_port}"

    @property
    def pid(self) -> int:
        """Of its process. Raises RuntimeError when it is not running."""
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs, be it frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the node is not running")
        return self._process

    def start(self) -> None:
        """Run a node that is not running; on the port that it had before, if any. Returns when it serves."""
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
            said = json.loads(self._announcement())
            self.port = int(str(said["url"]).rpartition(":")[2])
            self.peer_port = int(str(said["peer_endpoint"]).rpartition(":")[2])
            self._metrics_url = str(said.get("metrics_url", ""))
        except BaseException:
            self.kill()
            raise

    def _announcement(self) -> bytes:
        """The node's first line."""
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
        """What the node has written to standard error, in all its lives."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    # -- what can happen to it

    def kill(self) -> None:
        """End it as `kill -9` does. Returns when it is gone; harmless when it is."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as an operator does: running calls finish. Returns the exit code; 0 when it was not running.

        Raises TimeoutError, after killing it, when it does not end.
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
        """Freeze it: connections stay open, and nothing comes."""
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._running.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it, if it runs, and start it again on the same port."""
        self.kill()
        self.start()

    # -- what it costs

    def rss_bytes(self) -> int:
        """Its resident memory now."""
        return rss_bytes(self.pid)

    def peak_rss_bytes(self) -> int:
        """The most that it has been, since its start or `reset_peak_rss`."""
        return peak_rss_bytes(self.pid)

    def reset_peak_rss(self) -> None:
        """Have `peak_rss_bytes` begin anew."""
        reset_peak_rss(self.pid)

    def numbers(self) -> dict[str, float]:
        """What it counts, by name and labels as Prometheus writes them; only with `metrics`. Raises OSError."""
        with urllib.request.urlopen(self._metrics_url, timeout=CALL_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def close(self) -> None:
        """Stop it, and forget its log."""
        try:
            self.stop()
        finally:
            self._log.close()

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
