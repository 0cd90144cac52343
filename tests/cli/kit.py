"""What tests of the command line share: running it as a process of its own, and reading past it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from click.testing import Result

from ais_loader.objects.client import connect

TIMEOUT_S = 180.0


class Run(Protocol):
    """`ais-loader` with these arguments, in this process, on the store of the test."""

    def __call__(self, *arguments: str | Path, stdin: bytes = b"") -> Result: ...


class Stored:
    """What a bucket holds."""

    def __init__(self, url: str, bucket: str) -> None:
        self._url = url
        self._bucket = bucket

    def names(self) -> list[str]:
        with connect(self._url, mode="r") as client:
            return [info.name for info in client.bucket(self._bucket).objects()]

    def contents(self) -> dict[str, bytes]:
        with connect(self._url, mode="r") as client:
            bucket = client.bucket(self._bucket)
            return {info.name: bucket.get(info.name) for info in bucket.objects()}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ais_loader.cli", *map(str, arguments)]


def environment(store: str | None = None) -> dict[str, str]:
    """This process's, with no other store than `store`, and standard output buffered as it is for users."""
    ours = ("AIS_LOADER_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept if store is None else kept | {"AIS_LOADER_URL": store}


def run_process(
    *arguments: str | Path, store: str | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments), input=stdin, capture_output=True, timeout=TIMEOUT_S, env=environment(store)
    )


def but_for_waiting(messages: bytes) -> bytes:
    """Return what a process has written to standard error, without what it has told on a slow machine."""
    return re.sub(rb"waiting for .*\n", b"", messages)
