"""Every order in which a few nodes can push, ask, look, take away and learn maps, for the copies of one object.

What is decided is decided by the product's own `plan` and `reported_version`; this adds what is done one after another
in `Repair`, each step of which may come before or after any step of another node. A step is what one node does without
waiting. States are explored until none is new, so what holds in all of them holds whatever the timing.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from storage_node.cluster.repair.plan import NamePage, State, plan, questions
from storage_node.context.membership import reported_version
from storage_node.store.format import Version

Slip: TypeAlias = Literal[
    "", "asks by any map", "looks before it notes", "is not held", "is not checked", "asks once", "takes what it sends"
]
"""What a node could do wrong. "": nothing."""
SLIPS: tuple[Slip, ...] = ("asks by any map", "looks before it notes", "is not held", "is not checked")
"""Each of which loses copies."""
OLD, DEAD = 1, 2
"""Versions where the newest is a tombstone whose time is over."""


class Said(NamedTuple):
    """What an owner has said so far: the map by which it acts, and what it has. None: not yet."""

    version: int | None = None
    has: int | None = None


class Pass(NamedTuple):
    """A node looks whether it may take away what it has."""

    map: int
    has: int
    said: tuple[Said, ...] = ()
    """By all that are asked."""
    again: bool = False
    """They are asked for the second time."""
    step: Literal["asks", "decided", "takes", "has taken"] = "asks"


class Node(NamedTuple):
    knows: int
    """A map, by its number."""
    has: int
    """A version of the object; 0: none."""
    under_way: Pass | None = None
    sends: int | None = None
    """To which node it has an old object on its way."""


Nodes: TypeAlias = tuple[Node, ...]


@dataclass(frozen=True)
class Model:
    """`owners[map]`: who owns the object by each map, one after the other."""

    owners: Sequence[tuple[int, ...]]
    slip: Slip = ""
    dead: bool = False
    """The newest version is a tombstone: it may go when nothing older is left."""

    def lost(self, has: Sequence[int]) -> list[Nodes] | None:
        """The shortest way to a state in which the newest version is lost, from one in which all know the first map.

        Lost is an object that nobody has, or a tombstone that nobody has while somebody has the object. None: there is
        no such way.
        """
        start: Nodes = tuple(Node(0, version) for version in has)
        came_from: dict[Nodes, Nodes | None] = {start: None}
        newest, left = max(has), collections.deque([start])
        while left:
            nodes = left.popleft()
            there = {node.has for node in nodes}
            if newest not in there and (not self.dead or OLD in there):
                way: list[Nodes] = []
                state: Nodes | None = nodes
                while state is not None:
                    way.append(state)
                    state = came_from[state]
                return way[::-1]
            for after in self._next(nodes):
                if after not in came_from:
                    came_from[after] = nodes
                    left.append(after)
        return None

    def _next(self, nodes: Nodes) -> Iterator[Nodes]:
        for at, node in enumerate(nodes):
            owners = self.owners[node.knows]
            if node.knows + 1 < len(self.owners):
                yield _with(nodes, at, node._replace(knows=node.knows + 1))
            yield from self._push(nodes, at, node, owners)
            if node.under_way is None:
                if node.has and (at not in owners or self._may_be_forgotten(node.has)):
                    yield _with(nodes, at, node._replace(under_way=self._asking(nodes, at, node)))
            else:
                yield from (_with(nodes, at, after) for after in self._goes_on(nodes, at, node, node.under_way))

    def _may_be_forgotten(self, version: int) -> bool:
        return self.dead and version == DEAD

    def _push(self, nodes: Nodes, at: int, node: Node, owners: Sequence[int]) -> Iterator[Nodes]:
        if node.sends is not None:
            there = nodes[node.sends]
            arrived = _with(nodes, node.sends, there._replace(has=max(there.has, OLD)))
            yield _with(arrived, at, node._replace(sends=None))
        for other in owners:
            there = nodes[other]
            if other == at or there.has >= node.has or (self._may_be_forgotten(node.has) and not there.has):
                continue
            if not self.dead or node.has == DEAD:
                yield _with(nodes, other, there._replace(has=node.has))
            elif node.sends is None and (
                node.under_way is None or node.under_way.step != "takes" or self.slip == "takes what it sends"
            ):
                yield _with(nodes, at, node._replace(sends=other))

    def _asking(self, nodes: Nodes, at: int, node: Node) -> Pass:
        return Pass(node.knows, node.has, tuple(Said() for _ in self._asked(node.knows, node.has, at, nodes)))

    def _asked(self, map_: int, has: int, here: int, nodes: Nodes) -> tuple[int, ...]:
        return asked(here, len(nodes), self.owners[map_], has, self._may_be_forgotten(has))

    def _goes_on(self, nodes: Nodes, at: int, node: Node, now: Pass) -> Iterator[Node]:
        if now.step == "asks":
            others = self._asked(now.map, now.has, at, nodes)
            for which, (other, said) in enumerate(zip(others, now.said, strict=True)):
                if None not in said:
                    continue
                notes = self._told(nodes[other]) if said.version is None else said.version
                looks = nodes[other].has if said.has is None else said.has
                if (said.has is None) == (said.version is None):  # the first of the two
                    heard = Said(None, looks) if self.slip == "looks before it notes" else Said(notes, None)
                else:
                    heard = Said(notes, looks)
                after = (*now.said[:which], heard, *now.said[which + 1 :])
                yield node._replace(under_way=now._replace(said=after))
            if not any(None in said for said in now.said):
                answers = tuple((other, *said) for other, said in zip(others, now.said, strict=True))
                sure, ripe = self.slip == "asks by any map", self._may_be_forgotten(now.has)
                goes = decides(at, len(nodes), self.owners[now.map], now.map, now.has, ripe, answers, sure)
                decided = now._replace(said=(), step="decided")
                if goes == "forget" and not now.again and self.slip != "asks once":
                    decided = self._asking(nodes, at, node)._replace(map=now.map, has=now.has, again=True)
                yield node._replace(under_way=decided if goes else None)
        elif now.step == "decided":
            goes = node.knows == now.map or self.slip == "is not checked"
            yield node._replace(under_way=now._replace(step="takes") if goes else None)
        elif now.step == "takes":
            has = node.has if node.has > now.has else 0
            if node.sends is not None and self.slip != "takes what it sends":
                has = node.has
            yield node._replace(has=has, under_way=now._replace(step="has taken"))
        else:
            yield node._replace(under_way=None)

    def _told(self, node: Node) -> int:
        now = node.under_way
        held = now is not None and now.step in ("takes", "has taken") and self.slip != "is not held"
        return reported_version(node.knows, [now.map] if now is not None and held else [])


def _with(nodes: Nodes, at: int, node: Node) -> Nodes:
    return (*nodes[:at], node, *nodes[at + 1 :])


@functools.cache
def asked(here: int, nodes: int, owners: tuple[int, ...], has: int, ripe: bool) -> tuple[int, ...]:
    """Whom the product would ask about what it has."""
    return tuple(sorted(questions(NamePage(["k"], [_state(has)], [list(owners)], [ripe]), here, nodes)))


@functools.cache
def decides(
    here: int,
    nodes: int,
    owners: tuple[int, ...],
    map_: int,
    has: int,
    ripe: bool,
    said: tuple[tuple[int, int, int], ...],
    sure: bool,
) -> Literal["", "drop", "forget"]:
    """What the product would do with what it has."""
    page = NamePage(["k"], [_state(has, dead=ripe)], [list(owners)], [ripe])
    answers = {other: {"k": _state(version) if version else None} for other, _, version in said}
    by_this_map = {other for other, acts_by, _ in said if sure or acts_by == map_}
    work = plan(page, here, nodes, answers, by_this_map)
    return "drop" if work.drop else "forget" if work.forget else ""


def _state(version: int, *, dead: bool = False) -> State:
    return State(Version(1, version), dead, 1)
