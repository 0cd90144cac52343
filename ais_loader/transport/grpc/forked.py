"""Fork hook of gRPC connections: those of this process, all together; see `fork_safety`."""

from __future__ import annotations

import contextlib
import weakref
from typing import Protocol

import grpc

from ais_loader.transport.grpc import connection


class Forked(Protocol):
    def let_go(self, *, cut: bool) -> None: ...
    def forget_inherited(self) -> None: ...


class AllForked:
    """A `ForkPart`. Holds nobody."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[Forked] = weakref.WeakSet()

    def add(self, member: Forked) -> None:
        self._members.add(member)

    def let_go(self, *, cut: bool) -> None:
        for member in self._all():
            member.let_go(cut=cut)
        connection.let_go_of_orphans(cut=cut)

    def start_and_end(self) -> None:
        grpc.insecure_channel("ipv4:127.0.0.1:9").close()  # it would connect when it is used

    def forget_inherited(self) -> None:
        for member in self._all():
            member.forget_inherited()
        connection.forget_inherited()

    def _all(self) -> list[Forked]:
        while True:
            with contextlib.suppress(RuntimeError):  # another thread has added one meanwhile
                return list(self._members)
