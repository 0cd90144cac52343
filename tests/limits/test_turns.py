"""Turns at threads: those that wait come in turn, and a tenant never has all of those for long jobs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc, ais_promote_pb2_grpc
from ais_loader.wire.generated import ais_promote_pb2 as promote_pb
from ais_loader.wire.reserved import TENANT_KEY
from storage_node.limits.fair_scheduler import JobTurns
from storage_node.services.promote import PromoteService
from tests.node.loop_kit import run, settle
from tests.node.node_kit import bucket_of, serving


def test_one_tenant_leaves_a_thread_and_others_come_in_turn() -> None:
    async def check() -> None:
        turns, done = JobTurns(3, spare=1), list[str]()
        ends = {name: asyncio.Event() for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1")}

        async def job(name: str) -> None:
            async with turns.turn(name[0]):
                done.append(name)
                await ends[name].wait()

        jobs = []
        for name in ("a1", "a2", "a3", "a4"):
            jobs.append(asyncio.create_task(job(name)))
            await settle()
        assert (done, turns.in_use, turns.waiting) == (["a1", "a2"], 2, 2)
        for name in ("b1", "b2", "c1"):
            jobs.append(asyncio.create_task(job(name)))
            await settle()
        assert done == ["a1", "a2", "b1"]
        for name, following in (("a1", "a3"), ("a2", "b2"), ("b1", "c1"), ("a3", "a4")):
            ends[name].set()
            await settle()
            assert done[-1] == following, name
        for end in ends.values():
            end.set()
        await asyncio.gather(*jobs)
        assert (turns.in_use, turns.waiting) == (0, 0)

    run(check())


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_whatever_is_begun_ended_and_cancelled_adds_up(steps: list[tuple[str, bool]], limit: int, random: Any) -> None:
    async def check() -> None:
        turns = JobTurns(limit, spare=1)
        inside: list[asyncio.Event] = []

        async def job(tenant: str) -> None:
            async with turns.turn(tenant):
                end = asyncio.Event()
                inside.append(end)
                try:
                    await end.wait()
                finally:
                    inside.remove(end)

        tasks: list[asyncio.Task[None]] = []
        for tenant, cancel in steps:
            tasks.append(asyncio.create_task(job(tenant)))
            if random.random() < 0.5:
                await settle()
            if inside and random.random() < 0.4:
                random.choice(inside).set()
            if cancel:
                random.choice(tasks).cancel()
            await settle()
            assert turns.in_use == len(inside) <= limit
            assert not turns.waiting or inside
        while inside:
            inside[0].set()
            await settle()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (turns.in_use, turns.waiting) == (0, 0)

    run(check())


@pytest.mark.slow
def test_calls_of_one_tenant_are_not_served_before_all_that_another_has_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADs through gRPC, all waiting for one reader thread: the last one comes before most of the others."""
    with serving(tmp_path, read_threads=1) as node, bucket_of(node) as bucket, ExitStack() as closing:
        bucket.put("a", b"1")
        assert node.batches is not None
        there, reading = node.batches.node, threading.Event()
        head, order = there.store.head, list[str]()
        begin, asked = there.reading.begin, Counter[str]()

        def noted(bucket: str, name: str) -> object:
            order.append(name)
            assert reading.wait(180)
            return head(bucket, "a")

        async def counted(tenant: str) -> None:
            asked[tenant] += 1  # the node has reads of its own
            await begin(tenant)

        monkeypatch.setattr(there.store, "head", noted)
        monkeypatch.setattr(there.reading, "begin", counted)
        channel = closing.enter_context(grpc.insecure_channel(node.url.removeprefix("grpc://")))
        stub = ais_objects_pb2_grpc.ObjectsStub(channel)

        def ask(tenant: str, name: str) -> grpc.Future:
            request = pb.HeadRequest(bucket="b", name=name)
            return stub.Head.future(request, metadata=((TENANT_KEY, tenant.encode()),), timeout=180)

        calls = [ask("hostile", f"hostile/{at}") for at in range(40)]
        eventually(lambda: asked["hostile"] == 40)
        calls.append(ask("modest", "modest"))
        eventually(lambda: asked["modest"] == 1)
        reading.set()
        assert {call.result().name for call in calls} == {f"hostile/{at}" for at in range(40)} | {"modest"}
        assert order.index("modest") <= 4
        eventually(lambda: (there.reading.in_use, there.reading.waiting) == (0, 0))


def test_folders_that_do_not_answer_hold_up_no_other_tenants_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "fast"):
        (tmp_path / "root" / name).mkdir(parents=True)
    answering, walk, walked = threading.Event(), PromoteService._walk, list[bytes]()

    def slow_walk(service: PromoteService, path: bytes, *rest: Any) -> Any:
        walked.append(path)
        assert not path.endswith(b"slow") or answering.wait(180)
        return walk(service, path, *rest)

    monkeypatch.setattr(PromoteService, "_walk", slow_walk)
    with serving(tmp_path, promote_roots=(str(tmp_path / "root"),)) as node, ExitStack() as closing:
        channel = closing.enter_context(grpc.insecure_channel(node.url.removeprefix("grpc://")))
        stub = ais_promote_pb2_grpc.PromoteStub(channel)

        def look(tenant: bytes, name: str) -> grpc.Future:
            request = promote_pb.LookRequest(path=os.fsencode(tmp_path / "root" / name), recursive=True)
            return stub.Look.future(request, metadata=((TENANT_KEY, tenant),), timeout=180)

        calls = [look(b"hostile", "slow") for _ in range(8)]
        eventually(lambda: len(walked) >= 3)
        assert look(b"modest", "fast").result(timeout=180).inode
        assert not any(call.done() for call in calls)
        answering.set()
        assert all(call.result().inode for call in calls)


class Jobs:
    """Jobs of tenants at timed turns, by a clock of its own; each tenant has always some that wait."""

    def __init__(self, limit: int, weights: dict[str, float] | None = None) -> None:
        self.now_s = 0.0
        self.turns = JobTurns(limit, weights, clock_s=lambda: self.now_s)
        self.had: dict[str, float] = {}
        self._ends: list[tuple[float, str, asyncio.Event]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, tenant: str, took_s: float, jobs: int) -> None:
        for _ in range(jobs):
            task = asyncio.ensure_future(self._job(tenant, took_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _job(self, tenant: str, took_s: float) -> None:
        async with self.turns.turn(tenant):
            over = asyncio.Event()
            self._ends.append((self.now_s + took_s, tenant, over))
            await over.wait()
        self.had[tenant] = self.had.get(tenant, 0.0) + took_s

    async def run(self, until_s: float) -> None:
        while True:
            await settle()
            self._ends.sort(key=lambda end: end[:2])
            if not self._ends or self._ends[0][0] > until_s:
                return
            self.now_s, _, over = self._ends.pop(0)
            over.set()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_tenants_have_equal_time_however_long_their_jobs_take(limit: int) -> None:
    async def run() -> None:
        jobs = Jobs(limit)
        jobs.add("long", 10.0, 200)
        jobs.add("short", 0.1, 6000)
        await jobs.run(200.0)
        assert abs(jobs.had["long"] - jobs.had["short"]) <= 10.0 * limit + 1
        assert jobs.had["long"] + jobs.had["short"] >= 200.0 * limit - 10.0 * limit - 1
        await jobs.close()

    asyncio.run(run())


def test_time_goes_by_weight_and_the_idle_save_nothing_up() -> None:
    async def run() -> None:
        jobs = Jobs(1, {"heavy": 3.0})
        jobs.add("light", 1.0, 1000)
        await jobs.run(100.0)
        jobs.add("heavy", 1.0, 1000)
        before = dict(jobs.had)
        await jobs.run(180.0)
        light, heavy = jobs.had["light"] - before["light"], jobs.had["heavy"]
        assert abs(heavy - 3 * light) <= 4  # from the moment in which it came, and not more for the time before
        await jobs.close()

    asyncio.run(run())
