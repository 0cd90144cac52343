"""Replicas: processes that need the same batches, and their part of a plan: that of the data-parallel dimension."""

from __future__ import annotations

import os
import socket
import weakref
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.loading.slots import READERS
from ais_loader.plans.groups import whole_number
from ais_loader.training.plan_position import is_distributed, process_place
from ais_loader.training.sample_seeds import digest_seed
from ais_loader.training.steering import gathered
from ais_loader.wire.node_folder import host_id

with needs("torch", "BatchLoader"):
    import torch.distributed

MEET_S = 300.0
"""Time in which all ranks have to make their loaders."""
_loaders: Counter[Any] = Counter()
"""Loaders of this process by what they share with others: each has another key."""
ends: weakref.WeakSet[socket.socket | Connection] = weakref.WeakSet()
"""Sockets of this process. A child that kept them open would hide the death of its parent."""


def _after_fork_in_child() -> None:
    for end in list(ends):
        end.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Replicas:
    """The processes of one host that read the same batches, and which of them this is.

    They see each other by abstract names of sockets, which the kernel frees with the process that has them.
    """

    def __init__(self, index: int, count: int, key: str) -> None:
        """`key`: Text that they share, and others on the host do not."""
        self.index, self.count, self._key = index, count, key
        self.iteration = -1
        self._alive: socket.socket | None = None

    def __repr__(self) -> str:
        return f"replica {self.index} of {self.count}"

    def begin(self) -> socket.socket:
        """Return a socket that tells the others of another iteration. Raises InvalidRequest if the index is taken."""
        try:
            presence = self.bound(socket.SOCK_DGRAM, f"{self.index} in {self.iteration + 1}")  # before `alive`
            if self._alive is None or self._alive.fileno() == -1:  # closed, in a child that was forked
                self._alive = self.bound(socket.SOCK_DGRAM, f"{self.index} alive")
        except OSError as error:
            raise InvalidRequest(
                f"{self} is here already ({error}): each process needs an index of its own, and each group of replicas "
                "a key of its own"
            ) from error
        self.iteration += 1
        return presence

    def address(self, use: str) -> str:
        return f"\0ais-loader-replicas/{self._key}/{use}"

    def bound(self, kind: int, use: str) -> socket.socket:
        """Return a socket with this name. Raises OSError if another one has it."""
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.setblocking(True)  # whatever the default timeout is
        ends.add(sock)
        try:
            sock.bind(self.address(use))
        except OSError:
            sock.close()
            raise
        return sock

    def is_expected(self, index: int, iteration: int, *, has_begun: bool) -> bool:
        """Whether a replica is in an iteration, or may still begin it. `has_begun`: it has done so already."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            uses = (f"{index} alive", f"{index} in {iteration}")
            alive, here = (probe.connect_ex(self.address(use)) == 0 for use in uses)
        return here or (not has_begun and alive == bool(iteration))  # where it lives, it has had the first one

    def close(self) -> None:
        """Let the others no longer wait for this one, until it begins another iteration."""
        if self._alive is not None:
            self._alive.close()
            self._alive = None

    __del__ = close


def placed(
    given: Any, rank: int | None, world_size: int | None, *, has_plan: bool
) -> tuple[Replicas, int | None, int | None]:
    """Return the replicas of this host, and the rank and world_size of their data-parallel dimension, for a plan.

    `given`: (index, count, key), or a group of torch.distributed: then all of its ranks have to call this or, for a
    plan without a rank, all ranks there are. Raises InvalidRequest, TypeError.
    """
    is_derived = has_plan and rank is None
    if isinstance(given, tuple):
        index, count, key = given if len(given) == 3 else (None, None, None)
        if not isinstance(key, str) or not key:
            raise InvalidRequest(f"replicas={given!r}: need (index, count, key), with a key that is a text")
        count = whole_number("replicas", "count", count, 1, READERS)
        index = whole_number("replicas", "index", index, 0, count - 1)
        if is_derived:
            if process_place()[1] not in (1, count):
                raise InvalidRequest(
                    f"replicas={given!r} of {process_place()[1]} ranks: rank= and world_size= have to say which part "
                    "of the plan they read: the rank and size of the data-parallel dimension"
                )
            rank, world_size = 0, 1
        _loaders[key, index] += 1
        return Replicas(index, count, f"{digest_seed(key, _loaders[key, index]):x}"), rank, world_size
    group = given.get_group() if hasattr(given, "get_group") else given
    if not (is_distributed() and isinstance(group, torch.distributed.ProcessGroup)):
        raise TypeError(
            f"replicas={given!r}: need (index, count, key), or a group of torch.distributed with this process in it"
        )
    own, ranks = torch.distributed.get_rank(), torch.distributed.get_process_group_ranks(group)
    called = range(torch.distributed.get_world_size()) if is_derived else ranks
    use = digest_seed(*called)
    _loaders[use] += 1
    keys = {other: f"ais-loader replicas {use} {_loaders[use]} {other}" for other in called}
    mine = {"ranks": ranks, "place": [rank, world_size], "host": host_id(), "key": os.urandom(16).hex()}
    store = torch.distributed.distributed_c10d._get_default_store()
    found = dict(zip(called, gathered(store, keys, own, MEET_S, "made its loader of replicas", mine), strict=True))
    for one, told in found.items():
        for other in told["ranks"]:
            if other not in found or any(found[other][name] != told[name] for name in ("ranks", "place")):
                raise InvalidRequest(
                    f"replicas: rank {one} is one of {told['ranks']}, with rank and world_size {told['place']}, and "
                    f"rank {other} is not: all ranks of a group need the same group, rank and world_size"
                )
    if is_derived:
        groups = sorted({tuple(one["ranks"]) for one in found.values()})
        rank, world_size = groups.index(tuple(ranks)), len(groups)
    here = [one for one in ranks if found[one]["host"] == mine["host"]]
    if len(here) > READERS:
        raise InvalidRequest(f"replicas: {len(here)} of one group on a host, more than {READERS}")
    return Replicas(here.index(own), len(here), found[here[0]]["key"]), rank, world_size
