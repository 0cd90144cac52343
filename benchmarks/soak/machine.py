"""Machines that a soak's nodes run on: each with a wall clock that jumps, drives that fill up, and a network.

Clock and drives are made by a small library between the node and the kernel, where there is a C compiler; the network
of this kernel's namespaces, where it allows them: any two machines are parted. Elsewhere each node stands behind a
link, and whoever is cut off is so for all.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from contextlib import ExitStack
from pathlib import Path

from ais_loader.testing import NodeProcess
from tests.cluster_processes import ProcessPlace
from tests.faulty_link import FaultyLink
from tests.machines_kit import Machines

_SOURCE = Path(__file__).with_name("machine_shim.c")
_STATE = struct.Struct("qq")


class Shim:
    """Layer between one node and its kernel."""

    def __init__(self, scratch: Path, folder: Path) -> None:
        """`folder`: where the node's drives are."""
        library = scratch / "machine_shim.so"
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        self.works = compiler is not None
        if compiler is not None and not library.exists():
            command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
        path = scratch / f"{folder.name}.shim"
        path.write_bytes(_STATE.pack(0, 0))
        with open(path, "r+b") as file:
            self._state = mmap.mmap(file.fileno(), _STATE.size)
        self.environment = {
            "LD_PRELOAD": str(library),
            "SOAK_SHIM_STATE": str(path),
            "SOAK_SHIM_FOLDER": os.path.realpath(folder),
        }
        if not self.works:
            self.environment = {}

    @property
    def ahead_s(self) -> float:
        """Seconds by which the wall clock is ahead of this machine's. May be set at any time."""
        return float(_STATE.unpack(self._state[:])[0]) / 1e9

    @ahead_s.setter
    def ahead_s(self, value: float) -> None:
        self._state[:8] = struct.pack("q", int(value * 1e9))

    @property
    def full(self) -> bool:
        return bool(_STATE.unpack(self._state[:])[1])

    @full.setter
    def full(self, value: bool) -> None:
        self._state[8:] = struct.pack("q", int(value))


class Network:
    """Places of up to `count` nodes, and what is cut between them; None stands for the clients."""

    def __init__(self, count: int, held: ExitStack, *, namespaces: bool = True) -> None:
        self.machines = held.enter_context(Machines(count)) if namespaces and Machines.possible() else None
        self._held = held
        self._links: dict[int, tuple[FaultyLink, FaultyLink]] = {}
        """Without namespaces: that of each node's clients, and that of its peers."""
        self._lost: list[tuple[int | None, int | None]] = []

    @property
    def parts_any_two(self) -> bool:
        return self.machines is not None

    def place(self, number: int) -> ProcessPlace:
        return self.machines.places[number] if self.machines is not None else ProcessPlace()

    def advertised(self, number: int) -> list[str]:
        """Arguments of a node, before it runs."""
        if self.machines is not None:
            return []
        if number not in self._links:
            clients, peers = (self._held.enter_context(FaultyLink("grpc://127.0.0.1:1")) for _ in range(2))
            self._links[number] = clients, peers
        clients, peers = self._links[number]
        return ["--advertise", f"127.0.0.1:{clients.port}", "--set", f"peer_advertise=127.0.0.1:{peers.port}"]

    def endpoints(self, number: int, node: NodeProcess) -> tuple[str, str]:
        """Where clients and where peers reach a node."""
        if number not in self._links:
            return node.url.removeprefix("grpc://"), node.peer_endpoint
        clients, peers = self._links[number]
        clients.lead_to(node.url)
        peers.lead_to(f"grpc://{node.peer_endpoint}")
        return f"127.0.0.1:{clients.port}", f"127.0.0.1:{peers.port}"

    def cut(self, one: int, other: int | None, *, one_way: bool = False) -> None:
        """Nothing comes from `one` to `other`, nor back unless `one_way`."""
        if self.machines is None:
            self._links[one][0 if other is None else 1].stall()
            return
        for sender, receiver in ((one, other), (other, one))[: 1 if one_way else 2]:
            if (sender, receiver) not in self._lost:
                self.machines.lose(sender, receiver)
                self._lost.append((sender, receiver))

    def mend(self, one: int, other: int | None) -> None:
        if self.machines is None:
            self._links[one][0 if other is None else 1].flow()
            return
        for pair in ((one, other), (other, one)):
            if pair in self._lost:
                self._lost.remove(pair)
                self.machines.carry(*pair)


class OneMachine(Network):
    """Nothing is ever cut, and nothing stands between the nodes and their clients, so that lanes can be used."""

    def advertised(self, number: int) -> list[str]:
        return []
