"""Network of simulated machines, made of this kernel's namespaces, whose cables and routes a test can cut.

This needs Linux, root and the `ip` command. `Machines.possible` says whether all of this is available. This process is
on the switch as well. A cut is silent, as with a dead switch: connections stay open, packets vanish, and no one is
notified. To run a process on a machine, start it with that machine's `launcher`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from types import TracebackType

from tests.cluster_processes import ProcessPlace

_COMMAND_TIMEOUT_S = 180.0
_NOBODY = "02:00:00:00:00:01"
"""An address that no network card here has. What is sent to it reaches the switch, and is dropped."""


class Machines:
    """A context manager for `count` machines, `places[0]` and so on. Raises RuntimeError if `ip` fails."""

    def __init__(self, count: int) -> None:
        self._name = f"ais{os.getpid() % 10**7}"
        network = f"10.231.{os.getpid() % 250}"
        self._here = f"{network}.250"
        self._held = ExitStack()
        self.places = [
            ProcessPlace(f"{network}.{number + 1}", ("ip", "netns", "exec", self._namespace(number)))
            for number in range(count)
        ]
        try:
            _ip("link", "add", self._name, "type", "bridge")
            self._held.callback(_ip, "link", "del", self._name)
            _ip("addr", "add", f"{self._here}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
            for number in range(count):
                self._connect(number)
        except BaseException:
            self._held.close()
            raise

    @staticmethod
    @functools.cache
    def possible() -> bool:
        """Return whether machines can be created here that reach each other."""
        if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        try:
            with Machines(2) as machines:
                return all(machines.reach(one, other) for one, other in ((0, 1), (1, 0), (0, None)))
        except (OSError, RuntimeError):
            return False

    @property
    def here(self) -> str:
        """This process's address on the switch."""
        return self._here

    def limit(self, number: int, bytes_per_s: int) -> None:
        """Limit what the machine sends, like a slow network card. What it receives is not limited."""
        rate = f"{bytes_per_s * 8}bit"
        at_once = str(max(64 << 10, bytes_per_s // 100))
        limited = ("qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", at_once, "latency", "100ms")
        _run("tc", "-n", self._namespace(number), *limited)

    def reach(self, one: int, other: int | None) -> bool:
        """Return whether a packet from `one` reaches `other` and returns. None stands for this process.

        A refused connection counts as reached.
        """
        target = self._here if other is None else self.places[other].address
        probe = f"import socket; socket.create_connection(({target!r}, 9), 1)"
        done = subprocess.run(
            [*self.places[one].launcher, sys.executable, "-S", "-c", probe],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
        return done.returncode == 0 or "ConnectionRefusedError" in done.stderr

    # -- faults

    def unplug(self, number: int) -> None:
        """Unplug the machine's cable."""
        _ip("link", "set", self._port(number), "down")

    def plug(self, number: int) -> None:
        _ip("link", "set", self._port(number), "up")

    def lose(self, sender: int | None, receiver: int | None) -> None:
        """Drop what `sender` sends to `receiver`, but not the reverse. None stands for this process."""
        self._neighbour(sender, "replace", receiver, "lladdr", _NOBODY, "nud", "permanent")

    def carry(self, sender: int | None, receiver: int | None) -> None:
        """Undo `lose`."""
        self._neighbour(sender, "del", receiver)

    def cut(self, one: int | None, other: int | None) -> None:
        """Drop everything between two machines, in both directions."""
        self.lose(one, other)
        self.lose(other, one)

    def mend(self, one: int | None, other: int | None) -> None:
        """Undo `cut`."""
        self.carry(one, other)
        self.carry(other, one)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Machines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- how

    def _namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _port(self, number: int) -> str:
        """The switch's end of the machine's cable."""
        return f"{self._name}p{number}"

    def _connect(self, number: int) -> None:
        name, port = self._namespace(number), self._port(number)
        _ip("netns", "add", name)
        self._held.callback(_ip, "netns", "del", name)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._held.callback(_ip, "link", "del", port)  # a namespace takes its time to go
        _ip("link", "set", port, "master", self._name, "up")
        _ip("-n", name, "addr", "add", f"{self.places[number].address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _neighbour(self, at: int | None, what: str, of: int | None, *rest: str) -> None:
        address = self._here if of is None else self.places[of].address
        where = [] if at is None else ["-n", self._namespace(at)]
        _ip(*where, "neigh", what, address, "dev", self._name if at is None else "eth0", *rest)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
