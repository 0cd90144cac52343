"""Ports for servers that are told theirs before they start."""

from __future__ import annotations

import os
import random
import re
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path

_FIRST, _BLOCK = 20_000, 390
"""Ray's workers take ports below, and the kernel chooses from those above 32,767 by default."""
_turns = count(random.SystemRandom().randrange(_BLOCK))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody gets as a free one before its server is there.

    The kernel does not choose it for other sockets, and no other process of a run returns it: each has ports of its
    own.
    """
    worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % 32
    chosen_by_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(_BLOCK):
        port = _FIRST + worker * _BLOCK + next(_turns) % _BLOCK
        with suppress(OSError), socket.socket() as one:
            if port < chosen_by_kernel:
                one.bind(("127.0.0.1", port))
                return port
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
