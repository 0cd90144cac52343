"""Operator of a cluster on Ray: `ais-loader cluster` in processes of its own, on a Ray of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ais_loader.testing.stores import throwaway_folder
from ais_loader.testing.waiting import eventually
from storage_node.ops import node_file, ray_head
from storage_node.ops.node_discovery import make_nodes
from storage_node.ops.node_file import NodeFile
from storage_node.ops.status import cluster_status

COMMAND_TIMEOUT_S = 300.0
"""More than `up` waits for Ray (120 s), for a task (60 s) and for the nodes (60 s): it says itself what was late."""
REPOSITORY = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def operating() -> Iterator[Operator]:
    """Context of an operator of a new root, whose Ray ends with it and leaves no process."""
    with throwaway_folder() as folder:
        operator = Operator(folder)
        try:
            yield operator
        finally:
            ray_head.end(operator.root)
            eventually(lambda: not operator.left_over(), interval_s=0.05)


class Operator:
    """Somebody who types `ais-loader cluster` commands for one root, with a home of their own."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._python = python
        self.root = folder / "root"
        self.home = folder / "home"
        self.home.mkdir()
        ours = ("RAY_", "AIS_LOADER_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment = kept | {"HOME": str(self.home)}
        self.sessions: set[int] = set()
        self.umask = -1
        """Umask of the commands, and so of the Ray that they start; -1: that of this process."""

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output of a command that ends with this exit code."""
        return self._done(arguments, code).stdout

    def error(self, *arguments: str, code: int = 1) -> str:
        """Standard error of a command that fails with this exit code."""
        return self._done(arguments, code).stderr

    def _done(self, arguments: Sequence[str], code: int) -> subprocess.CompletedProcess[str]:
        done = self._ended(arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def _ended(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self._python, "-m", "ais_loader.cli", "cluster", *arguments, "--root", str(self.root)],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=self.environment,
            cwd=REPOSITORY,
            umask=self.umask,
        )
        if (head := ray_head.remembered(self.root)) is not None:
            self.sessions.add(head.session)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def well(self) -> Any:
        """What `status` says once all nodes serve: a busy one may answer later than the command waits for it."""
        eventually(lambda: {node["state"] for node in self.nodes().values()} == {"serving"}, interval_s=0.2)

        def said() -> Any:
            done = self._ended(["status", "--json"])
            return json.loads(done.stdout) if done.returncode == 0 else None

        return eventually(said, interval_s=0.2)

    def make_nodes(self, count: int, *, first_port: int, drives_per_node: int = 1) -> None:
        """Create nodes that use these ports and the next ones.

        Nodes choose the first free ports by themselves. Those of another test's cluster, side by side with this one,
        would get the port of a node that was killed before it has started again.
        """
        for at, node in enumerate(make_nodes(self.root, count, drives_per_node=drives_per_node)):
            client, peer = first_port + 2 * at, first_port + 2 * at + 1
            ports = NodeFile(node.uuid, f"{ray_head.LOOPBACK}:{client}", peer=f"{ray_head.LOOPBACK}:{peer}")
            node_file.write(node.folder, ports)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """By id, as `status` tells it."""
        return {node["id"]: node for node in cluster_status(self.root)["nodes"]}

    def left_over(self) -> list[str]:
        """Processes of every Ray that was started here."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if fields[0] != "Z" and (int(fields[3]) in self.sessions or str(self.root) in command):
                    found.append(f"{folder.name}: {command}")
        return found

    def kill_everything(self) -> None:
        """As a power cut does: Ray's head and all nodes at once."""
        head = ray_head.remembered(self.root)
        assert head is not None

        def all_killed() -> bool:
            """One that was being started when its parent was killed is seen by the next look."""
            for pid in head.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not head.processes()

        eventually(all_killed)
