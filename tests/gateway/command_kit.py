"""The command `ais-loader gateway` in a process of its own."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "ais_loader.cli", "gateway"]
TIMEOUT_S = 180.0


def key_file(folder: Path, content: Any, mode: int = 0o600, name: str = "keys.json") -> Path:
    path = folder / name
    path.touch(mode)
    path.chmod(mode)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


class GatewayCommand:
    """A running gateway. As a context manager, it is stopped at the end, and killed if it does not stop."""

    def __init__(self, store: str, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed at the end
        command = [*COMMAND, store, "--port", "0", "--json", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        try:
            assert self.process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                assert selector.select(TIMEOUT_S), "it does not serve"
            self.told: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
            assert self.told, self.log()
        except BaseException:
            self.end(signal.SIGKILL)
            self._log.close()
            raise

    @property
    def url(self) -> str:
        return str(self.told["url"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def log(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def children(self) -> list[int]:
        """Process ids of the processes that serve."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split() if b"spawn_main" in _command_of(int(pid))]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> GatewayCommand:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()
        self._log.close()


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def s3_at(url: str, key: str, secret: str, *, attempts: int = 1, **options: Any) -> Any:
    """Return a client of boto3, by default without repetitions."""
    import boto3
    from botocore.config import Config

    retries: Any = {"total_max_attempts": attempts, "mode": "standard"}
    config = Config(retries=retries, read_timeout=180, connect_timeout=180)
    return boto3.client(
        "s3",
        "us-east-1",
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=config,
        **options,
    )
