"""Peer: a server of another project that runs already, and that a benchmark measures beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Peer:
    """A server: its name in the tables, its address, and its processes on this machine, if they are known."""

    name: str
    url: str
    pids: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> Peer:
        """Read `NAME=URL[,PID]...`. Raises click.BadParameter."""
        name, _, rest = text.partition("=")
        url, *pids = rest.split(",")
        if not name or not url.startswith("http://") or not all(pid.isdigit() for pid in pids):
            raise click.BadParameter(f"{text!r}: need NAME=URL[,PID]..., such as garage=http://127.0.0.1:3900,1234")
        return cls(name, url.rstrip("/"), tuple(map(int, pids)))


def _read_all(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[Peer, ...]:
    return tuple(map(Peer.read, texts))


peer_option: Any = click.option(
    "--peer", "peers", multiple=True, callback=_read_all, metavar="NAME=URL[,PID]...",
    help="Measure this running server too; processor time is that of the processes. May be repeated.",
)  # fmt: skip
