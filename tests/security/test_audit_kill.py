"""An audit log of a node that is killed while it writes: what is there is whole, and the chain goes on."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path

import pytest

from ais_loader import connect, errors
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.waiting import eventually
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.security.audit_kit import files_of, lines_in, run, verify

pytestmark = pytest.mark.slow


def test_a_killed_node_goes_on_with_its_chain(tmp_path: Path) -> None:
    log = tmp_path / "drive" / "audit"
    settings = ["--set", "audit_level=reads", "--set", "audit_file_bytes=20000", "--set", "audit_files=1000"]
    with NodeProcess(tmp_path / "drive", arguments=settings) as node:
        for _ in range(3):
            before = len(lines_in(log))
            done = threading.Event()

            def write(url: str = node.url, done: threading.Event = done) -> None:
                with connect(url) as client:
                    bucket = client.create_bucket("b", exist_ok=True)
                    while not done.is_set():
                        try:
                            bucket.put("x", b"x")
                            bucket.get("x")
                        except errors.LoaderError:
                            return

            writing = threading.Thread(target=write)
            writing.start()
            try:
                eventually(lambda before=before: len(lines_in(log)) > before + 100)  # type: ignore[misc]
                node.kill()
            finally:
                done.set()
                node.start()
                writing.join(180)
            assert not writing.is_alive()
        eventually(lambda: sum(line["event"] == "open" and line["start"] for line in lines_in(log)) == 4)
    verdict = verify(files_of(log))
    assert (verdict.problem, verdict.lost, verdict.is_closed) == ("", 0, True)
    assert verdict.files > 3
    assert "ok " in run("verify", tmp_path / "drive")


def test_lines_are_counted(tmp_path: Path) -> None:
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0, metrics_port=0)) as node, connect(node.url) as client:
        client.create_bucket("b")

        def numbers() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=180) as response:
                return str(response.read().decode())

        eventually(lambda: 'ais_loader_audit_lines_total{outcome="written"} 2.0' in numbers())
        assert 'ais_loader_audit_lines_total{outcome="lost"} 0.0' in numbers()
