"""Objects that wait on several nodes for their commit: the versions chosen for them, and the commit itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.ahead import Ahead
from storage_node.cluster.replication.commit_gate import CommitGate
from storage_node.cluster.replication.conditional import decide
from storage_node.cluster.replication.copy_stream import STEP_TIMEOUT_S, Copy, CopyLost, refused
from storage_node.cluster.replication.fan_out import map_version, outdated, tell_absent, tell_of_commits
from storage_node.cluster.replication.name_locks import NameLocks
from storage_node.cluster.replication.replica import from_wire, to_wire
from storage_node.cluster.replication.replica_client import Nodes, close_all, outcome
from storage_node.cluster.replication.replica_set import Candidates, Target
from storage_node.store.drive.preconditions import Condition
from storage_node.store.errors import StoreError, WriteTooLate
from storage_node.store.format import Record, Version

Result: TypeAlias = pb.ObjectInfo | StoreError
"""What became of one object."""


@dataclass(slots=True)
class Staged(Candidates):
    """One object on its way to its copies."""

    metadata: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    checksum: int = 0
    copies: list[tuple[Copy, int]] = field(default_factory=list)
    """Where it has been staged, each with the object's place in that copy's write."""
    seen: list[Version] = field(default_factory=list)
    """What the nodes have of the name."""
    clock: int = 0
    condition: Condition | None = None
    """Of what is there, besides what `not_above` says."""
    not_above: Version | None = None
    """The condition has been found to hold of this: nothing newer may have come to this node when it commits."""
    settled: Result | None = None
    """What became of it before, or in place of, its commit."""

    def take(self, copy: Copy, place: int, answer: wire.WriteResponse | CopyLost) -> None:
        """Note what a node said to the object's bytes."""
        if isinstance(answer, CopyLost):
            self.lose(answer)
            return
        one = answer.staged.object[place]
        if one.HasField("error"):
            self.lose(refused(self.target.endpoint(copy.node), one.error))
            return
        self.taking.append(copy.node)
        self.copies.append((copy, place))
        self.size_bytes, self.checksum = one.size_bytes, one.checksum
        self.clock = max(self.clock, answer.staged.clock)
        if one.HasField("newest"):
            self.seen.append(from_wire(one.newest))


class Commits:
    """Carries staged objects over the line. Belongs to the node's event loop."""

    def __init__(self, nodes: Nodes, ahead: Ahead) -> None:
        self._nodes = nodes
        self._ahead = ahead
        self.names = NameLocks()
        """Held by whoever changes one of them."""
        self.gate = CommitGate()
        self._running: set[asyncio.Future[Any]] = set()

    async def settle(self) -> None:
        """Wait for commits that have begun; each has a deadline."""
        if self._running:
            await asyncio.wait(self._running, timeout=STEP_TIMEOUT_S)

    def track(self, step: asyncio.Future[Any]) -> None:
        """Have `settle` wait for it."""
        self._running.add(step)
        step.add_done_callback(self._running.discard)

    async def commit(self, entries: Sequence[Staged], copies: Sequence[Copy]) -> list[Result]:
        """Choose versions and have all copies commit, then close all `copies`; one result for each entry, in order.

        Goes on when the caller is cancelled: a client that gives up is no reason to leave copies that differ.
        """
        task = asyncio.ensure_future(self._commit_and_close(entries, copies))
        self.track(task)
        return await asyncio.shield(task)

    async def _commit_and_close(self, entries: Sequence[Staged], copies: Sequence[Copy]) -> list[Result]:
        membership = self._nodes.node.membership
        version = min(entry.target.epoch for entry in entries) if entries else 0
        if membership is not None:
            membership.in_use.hold(version)
        try:
            async with self.names.hold((entry.target.bucket.uuid, entry.name) for entry in entries):
                for entry in entries:
                    entry.settled = entry.shortage() or outdated(self._nodes, entry)
                await self._decide([entry for entry in entries if entry.settled is None])
                going = [entry for entry in entries if entry.settled is None]
                async with self.gate.passing(entry.target.bucket.uuid for entry in going):
                    done = iter(await self._commit_all(going, copies) if going else [])
                ended = {id(entry) for entry in going}
                return [next(done) if id(entry) in ended else entry.settled or entry.unfinished(0) for entry in entries]
        finally:
            if membership is not None:
                membership.in_use.end(version)
            await close_all(copies)

    async def _decide(self, entries: Sequence[Staged]) -> None:
        """Look whether the conditions hold of those that have one, and settle those of which they do not."""
        by_target: dict[int, list[tuple[Staged, Condition]]] = {}
        for entry in entries:
            if entry.condition is not None:
                by_target.setdefault(id(entry.target), []).append((entry, entry.condition))
        for mine in by_target.values():
            target = mine[0][0].target
            wanted = [(entry.name, condition) for entry, condition in mine]
            for (entry, _), decided in zip(mine, await decide(self._nodes, target, wanted), strict=True):
                if isinstance(decided, StoreError):
                    entry.settled = decided
                elif decided.landed is not None:
                    entry.settled = landed_info(target, entry.name, decided.landed)
                elif target.position not in entry.taking:
                    entry.settled = entry.without_its_first_owner()
                else:
                    entry.not_above = decided.there.version
                    entry.seen.append(decided.there.version)
                    entry.clock = max(entry.clock, decided.there.clock)

    async def _commit_here_first(
        self, entries: Sequence[Staged], requests: dict[int, list[wire.CommitObject]]
    ) -> dict[int, wire.WriteResponse | CopyLost]:
        """Where entries have a condition: commit them on this node, and give up those of which it does not hold by now.

        Returns the answers, by the copies' ids; none where no entry has one.
        """
        deciding = [entry for entry in entries if entry.not_above is not None]
        copies = {
            id(copy): copy for entry in deciding for copy, _ in entry.copies if copy.node == entry.target.position
        }
        answers: dict[int, wire.WriteResponse | CopyLost] = {}
        for key, copy in copies.items():
            commit = wire.WriteCommit(object=requests[key])
            answers[key] = await outcome(copy.ask(wire.WriteRequest(commit=commit), STEP_TIMEOUT_S))
        for entry in deciding:
            for copy, place in entry.copies:
                if (answer := answers.get(id(copy))) is not None:
                    entry.settled = _refusal(entry, answer, place)
            if entry.settled is not None:
                for copy, place in entry.copies:
                    requests[id(copy)][place] = wire.CommitObject()
        return answers

    async def _commit_all(self, entries: Sequence[Staged], copies: Sequence[Copy]) -> list[Result]:
        await self._ask_former(entries)
        try:
            versions = await self._nodes.node.read(self._choose, entries, self._ahead.leap(entries))
        except StoreError as error:
            return [error for _ in entries]
        modified_ns = time.time_ns()
        requests = {id(copy): [wire.CommitObject() for _ in range(copy.objects)] for copy in copies}
        parts = {id(copy): copy for entry in entries for copy, _ in entry.copies}
        for entry, version in zip(entries, versions, strict=True):
            for copy, place in entry.copies:
                one = wire.CommitObject(version=to_wire(version), modified_ns=modified_ns)
                if entry.not_above is not None and copy.node == entry.target.position:
                    one.not_above.CopyFrom(to_wire(entry.not_above))
                requests[id(copy)][place] = one
        by_map = map_version(self._nodes)
        await tell_absent(self._nodes, entries, versions, [entry.taking for entry in entries])
        by_copy = await self._commit_here_first(entries, requests)
        rest = {key: copy for key, copy in parts.items() if key not in by_copy}
        answers = await asyncio.gather(
            *(
                outcome(copy.ask(wire.WriteRequest(commit=wire.WriteCommit(object=requests[key])), STEP_TIMEOUT_S))
                for key, copy in rest.items()
            )
        )
        by_copy |= dict(zip(rest, answers, strict=True))
        for key, copy in parts.items():
            answer = by_copy[key]
            if not isinstance(answer, CopyLost):
                self._nodes.heard_of_map(entries[0].target.endpoint(copy.node), answer.committed.map_version)
        done = [[] if entry.settled is not None else _committed(entry, by_copy) for entry in entries]
        told = not any(done) or await tell_of_commits(self._nodes, entries, versions, done, by_map=by_map)
        return [
            entry.settled or _result(entry, version, modified_ns, len(there), told)
            for entry, version, there in zip(entries, versions, done, strict=True)
        ]

    def _choose(self, entries: Sequence[Staged], leap: int) -> list[Version]:
        store = self._nodes.node.store
        clock = max([store.clock, *(entry.clock for entry in entries)]) + leap
        membership = self._nodes.node.membership
        for entry in entries:
            if membership is not None and membership.view is not entry.target.view:
                # Begun by an older map: what was committed by the newer one must not outrank it, if it came before.
                here = store.newest_entry(entry.target.bucket.uuid, entry.name)
                entry.seen += [here.version] if here is not None else []
        return [store.next_version(entry.target.number, entry.target.epoch, entry.seen, clock) for entry in entries]

    async def _ask_former(self, entries: Sequence[Staged]) -> None:
        """While objects move, their former owners may have newer ones than the owners do."""
        asked: dict[tuple[int, int], list[Staged]] = {}
        targets: dict[int, Target] = {}
        for entry in entries:
            for node in entry.target.former(entry.name):
                if node not in entry.taking:
                    targets[id(entry.target)] = entry.target
                    asked.setdefault((id(entry.target), node), []).append(entry)

        async def ask(target: Target, node: int, mine: Sequence[Staged]) -> None:
            answer = await outcome(self._nodes.newest(target, node, [entry.name for entry in mine]))
            if not isinstance(answer, CopyLost):
                for entry, found in zip(mine, answer.object, strict=True):
                    entry.clock = max(entry.clock, answer.clock)
                    if found.HasField("version"):
                        entry.seen.append(from_wire(found.version))

        await asyncio.gather(*(ask(targets[key], node, mine) for (key, node), mine in asked.items()))


def _committed(entry: Staged, answers: dict[int, wire.WriteResponse | CopyLost]) -> list[int]:
    """The nodes that have it now."""
    committed: list[int] = []
    for copy, place in entry.copies:
        answer = answers[id(copy)]
        if isinstance(answer, CopyLost):
            entry.lose(answer)
        elif answer.committed.object[place].HasField("error"):
            entry.lose(refused(entry.target.endpoint(copy.node), answer.committed.object[place].error))
        else:
            committed.append(copy.node)
    return committed


def _refusal(entry: Staged, answer: wire.WriteResponse | CopyLost, place: int) -> StoreError | None:
    """Why this node did not commit an entry."""
    if isinstance(answer, CopyLost):
        return answer.refusal or entry.unfinished(0)
    one = answer.committed.object[place]
    if not one.HasField("error"):
        return None
    refusal = refused(entry.target.endpoint(entry.target.position), one.error).refusal
    return entry.unfinished(0) if isinstance(refusal, WriteTooLate) else refusal


def landed_info(target: Target, name: str, record: Record) -> pb.ObjectInfo:
    """Of what another try of a write has stored."""
    return pb.ObjectInfo(
        bucket=target.bucket.name,
        name=name,
        size_bytes=record.size_bytes,
        version=str(record.version),
        checksum=record.checksum,
        modified_ns=record.modified_ns,
        metadata=record.metadata,
    )


def _result(entry: Staged, version: Version, modified_ns: int, committed: int, told: bool) -> Result:
    """Stored, when enough nodes have it, and all others that it concerns know of it."""
    if committed < entry.target.min_copies or not told:
        return entry.unfinished(committed)
    return pb.ObjectInfo(
        bucket=entry.target.bucket.name,
        name=entry.name,
        size_bytes=entry.size_bytes,
        version=str(version),
        checksum=entry.checksum,
        modified_ns=modified_ns,
        metadata=entry.metadata,
    )
