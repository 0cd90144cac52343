"""Put groups: who shares a group, who waits for whom, and what each caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ais_loader.errors import DriveFull, LoaderError, VersionConflict
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.put_groups import PutGroups
from tests.node.loop_kit import settle, until

TIMEOUT_S = 180.0


class Committer:
    """Commits groups when they are let go; the first one that is in progress is `gates[0]`."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.gates: list[asyncio.Event] = []

    async def __call__(self, objects: Sequence[pb.SmallObject]) -> list[str | LoaderError]:
        self.groups.append([small.name for small in objects])
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return [
            VersionConflict(small.name) if small.name.startswith("conflict") else f"stored {small.name}"
            for small in objects
        ]

    async def begun(self, count: int) -> None:
        await until(lambda: len(self.groups) >= count)


def small(name: str, size_bytes: int = 1) -> pb.SmallObject:
    return pb.SmallObject(name=name, data=bytes(size_bytes))


def test_what_arrives_while_one_is_stored_is_stored_together_and_each_gets_its_own_outcome() -> None:
    async def check() -> None:
        committer = Committer()
        groups: PutGroups[str] = PutGroups(committer, 0.0, groups=1)
        puts = [asyncio.create_task(groups.put(small(name))) for name in ("a", "b", "conflict", "d")]
        await committer.begun(1)
        assert committer.groups == [["a"]]
        committer.gates[0].set()
        await committer.begun(2)
        assert committer.groups == [["a"], ["b", "conflict", "d"]]
        committer.gates[1].set()
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["stored a", "stored b", "conflict", "stored d"]
        assert isinstance(outcomes[2], VersionConflict) and groups.is_idle

    asyncio.run(check())


def test_a_group_that_hangs_does_not_hold_up_others() -> None:
    async def check() -> None:
        committer = Committer()
        groups: PutGroups[str] = PutGroups(committer, 0.0, groups=1, stall_s=0.01)
        puts = [asyncio.create_task(groups.put(small(name))) for name in ("a", "b", "c")]
        await committer.begun(2)
        later = asyncio.create_task(groups.put(small("d")))
        await committer.begun(3)
        assert committer.groups == [["a"], ["b", "c"], ["d"]]
        committer.gates[2].set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await later == "stored d"
        assert not any(put.done() for put in puts)
        for gate in committer.gates:
            gate.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await asyncio.gather(*puts) == ["stored a", "stored b", "stored c"]

    asyncio.run(check())


def test_a_caller_that_leaves_takes_nothing_from_the_others() -> None:
    async def check() -> None:
        committer = Committer()
        groups: PutGroups[str] = PutGroups(committer, 0.0, groups=1)
        first = asyncio.create_task(groups.put(small("a")))
        await committer.begun(1)
        waiting = [asyncio.create_task(groups.put(small(name))) for name in ("b", "c")]
        await settle()
        first.cancel()
        waiting[0].cancel()
        await committer.begun(2)
        committer.gates[1].set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await waiting[1] == "stored c"
        with pytest.raises(asyncio.CancelledError):
            await first
        assert groups.is_idle

    asyncio.run(check())


@pytest.mark.parametrize("error", [DriveFull("full"), OSError("gone")])
def test_a_group_that_fails_fails_for_each_of_its_callers(error: Exception) -> None:
    async def check() -> None:
        begun = asyncio.Event()

        async def fail(objects: Sequence[pb.SmallObject]) -> list[str | LoaderError]:
            await begun.wait()
            raise error

        groups: PutGroups[str] = PutGroups(fail, 0.0, groups=1)
        puts = [asyncio.create_task(groups.put(small(name))) for name in ("a", "b", "c")]
        await settle()
        begun.set()
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert outcomes == [error] * 3 and groups.is_idle

    asyncio.run(check())


def test_a_large_backlog_is_stored_in_bounded_groups() -> None:
    async def check() -> None:
        committer = Committer()
        groups: PutGroups[str] = PutGroups(committer, 0.0, groups=1)
        puts = [asyncio.create_task(groups.put(small(f"{at}", 64 << 10))) for at in range(200)]
        for at in range(100):
            await committer.begun(at + 1)
            committer.gates[at].set()
            if sum(map(len, committer.groups)) == 200:
                break
        async with asyncio.timeout(TIMEOUT_S):
            assert await asyncio.gather(*puts) == [f"stored {at}" for at in range(200)]
        assert [len(group) for group in committer.groups] == [1, 64, 64, 64, 7]

    asyncio.run(check())
