"""Replicas: one process of a host reads what several need, and all of them have the batches of a loader by itself.

Long because each way in which one of several processes can end, stand still or disagree has its program beside a test.
"""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
from loading_kit import LISTS, Numbers, Steps
from replica_kit import (
    BATCH,
    COUNT,
    PLAN,
    Logged,
    alone,
    collate,
    drawn_pause_s,
    had,
    new_key,
    processes,
    together,
    told,
)

from ais_loader import BatchLoader, MapDataset, ShufflePlan
from ais_loader.errors import InvalidRequest
from ais_loader.loading import replica_workers, replicas
from ais_loader.loading.slots import SlotWriter
from ais_loader.loading.workers import FetchedBatch
from ais_loader.plans import BucketPlan, MixPlan, PackPlan
from ais_loader.testing import eventually, throwaway_store
from tests.table import table

STEPS = COUNT // BATCH


def loader_of(dataset: Any, plan: Any, given: Any, **options: Any) -> BatchLoader:
    places: dict[str, Any] = {} if isinstance(plan, (list, Steps)) else {"rank": 0, "world_size": 1}
    return BatchLoader(dataset, plan, replicas=given, **places | options)


PLANS: dict[str, Any] = {
    "shuffle": lambda: PLAN,
    "mix": lambda: MixPlan({"a": 36, "b": 60}, {"a": 1, "b": 2}, batch_size=5, at_end="leave"),
    "buckets": lambda: BucketPlan([1 + at % 9 for at in range(COUNT)], [3, 9], [4, 2], block=20),
    "packs": lambda: PackPlan([2] * COUNT, 12, 2),
    "lists": lambda: [batch for batch in LISTS if batch],
    "a sampler with a state": lambda: Steps(LISTS),
}


@table("kind", [*PLANS])
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_replicas_have_the_batches_of_one_loader_and_each_is_read_once(
    tmp_path: Path, kind: str, is_large: bool
) -> None:
    own, logged = (Logged(tmp_path / name, 4096 if is_large else 2) for name in ("own", "together"))
    options: dict[str, Any] = {} if kind == "packs" else {"collate": collate}
    place = {} if kind in ("lists", "a sampler with a state") else {"rank": 0, "world_size": 1}
    expected = [told(batch) for batch in BatchLoader(own, PLANS[kind](), **place, **options)]

    def run(given: Any) -> list[Any]:
        loader = loader_of(logged, PLANS[kind](), given, **options)
        # How long ago the state of a sampler was taken depends on how far ahead it has drawn.
        state = (lambda: "") if kind == "a sampler with a state" else (lambda: json.dumps(loader.state_dict()))
        return [[told(batch), state()] for batch in loader]

    found = together(3, run)
    assert found[0] == found[1] == found[2]
    batches = [batch for batch, _ in found[0]]
    if not place:  # a loader by itself draws a seed, and replicas have that of one of them
        batches, expected = ([one | {"noise": None} for one in several] for several in (batches, expected))
    assert batches == expected
    assert [numbers for _, numbers in sorted(logged.reads())] == [numbers for _, numbers in sorted(own.reads())]


@table("workers", [0, 2])
def test_no_replica_sees_what_another_one_changes_in_its_batch(tmp_path: Path, workers: int) -> None:
    barrier = threading.Barrier(2)

    def run(given: Any) -> list[Any]:
        found = []
        for batch in loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate, workers=workers):
            barrier.wait(180)
            if given[0] == 0:
                batch["x"].fill_(-1)
                batch["noise"][:] = 0
                batch["texts"].clear()
            barrier.wait(180)
            found.append(told(batch))
        return found

    changed, kept = together(2, run)
    assert kept == alone(Logged(tmp_path / "own"), PLAN, collate=collate)
    assert all(one != other for one, other in zip(changed, kept, strict=True))


@table("on_bad, sizes", [("skip", 7), ("substitute", 8)])
def test_replicas_skip_and_substitute_the_same_samples(tmp_path: Path, on_bad: Any, sizes: int) -> None:
    bad = [int(PLAN.batch(0, 2)[1]), int(PLAN.batch(0, 5)[0])]

    def run(given: Any) -> Any:
        loader = loader_of(Logged(tmp_path / "reads", 2, bad), PLAN, given, on_bad=on_bad)
        return [told(batch) for batch in loader], loader.bad.counts, loader.bad.names

    found = together(3, run)
    assert found[0] == found[1] == found[2]
    assert [len(batch) - 1 for batch in found[0][0]] == [sizes if step in (2, 5) else 8 for step in range(STEPS)]
    assert found[0][1] == {"ValueError": 2}


def test_an_error_is_raised_by_all_replicas_at_the_same_batch(tmp_path: Path) -> None:
    bad = [int(PLAN.batch(0, 4)[3])]

    def run(given: Any) -> Any:
        batches = iter(loader_of(Logged(tmp_path / "reads", 2, bad), PLAN, given))
        found = [told(batch) for batch in islice(batches, 4)]
        with pytest.raises(ValueError, match="has a bad sample") as caught:
            next(batches)
        return found, "\n".join(caught.value.__notes__)

    found = together(3, run)
    assert [batches for batches, _ in found] == [alone(Logged(tmp_path / "own", 2), PLAN)[:4]] * 3
    assert all("epoch 0, step 4" in notes and "the replica that reads" in notes for _, notes in found)


def test_packed_entries_of_a_store_arrive_on_all_replicas() -> None:
    objects = {f"{at:03}": bytes([at]) * (5000 + at) for at in range(COUNT)}
    with throwaway_store(objects, bucket="b") as client:
        dataset = MapDataset(client, "ais://b/")

        def run(given: Any) -> Any:
            return [[bytes(one) for one in batch] for batch in loader_of(dataset, PLAN, given, output="packed")]

        expected = [[objects[f"{at:03}"] for at in PLAN.batch(0, step)] for step in range(STEPS)]
        assert together(2, run) == [expected] * 2


def test_weights_that_a_trainer_sets_reach_all_replicas_at_the_same_step() -> None:
    plan = MixPlan({"a": 40, "b": 56}, {"a": 3, "b": 1}, batch_size=4, seed=1)

    def run(given: Any) -> Any:
        loader = loader_of(Numbers(COUNT), plan, given)
        batches = iter(loader)
        found = list(islice(batches, 3))
        begin = loader.steer({"b": 1})
        found += islice(batches, 12)
        loader.close()
        return found, begin, loader.state_dict()

    found = together(3, run)
    assert found[0] == found[1] == found[2]
    steered = plan.steered([(3 + 4, {"b": 1})])
    assert found[0][0] == [steered.batch(0, step).tolist() for step in range(15)]


@table("stopped_at", [1, 5, 11])
def test_a_state_of_any_replica_resumes_all_of_them(tmp_path: Path, stopped_at: int) -> None:
    def begin(given: Any) -> Any:
        loader = loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate)
        batches = iter(loader)
        found = [told(batch) for batch in islice(batches, stopped_at)]
        state = loader.state_dict()
        loader.close()
        return found, state

    (first, state), (_, other) = together(2, begin)

    def resume(given: Any) -> Any:
        loader = loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate)
        loader.load_state_dict(other)
        return [told(batch) for batch in loader]

    assert state == other
    rest = together(3, resume)
    assert rest[0] == rest[1] == rest[2]
    assert first + rest[0] == alone(Logged(tmp_path / "own"), PLAN, collate=collate)


@table("leaves, workers", [(0, 0), (2, 0), (0, 1)])
def test_a_replica_that_leaves_holds_nobody_up(tmp_path: Path, leaves: int, workers: int) -> None:
    logged = Logged(tmp_path / "reads")

    def run(given: Any) -> Any:
        loader = loader_of(logged, PLAN, given, collate=collate, workers=workers)
        batches = iter(loader)
        found = [told(batch) for batch in islice(batches, 3 if given[0] == leaves else COUNT)]
        loader.close()
        return found

    expected = alone(Logged(tmp_path / "own"), PLAN, collate=collate)
    assert together(3, run) == [expected[:3] if index == leaves else expected for index in range(3)]


def test_a_batch_that_a_trainer_keeps_after_it_has_left_stays_as_it_is(tmp_path: Path) -> None:
    kept: list[Any] = []

    def run(given: Any) -> Any:
        loader = loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate)
        if given[0] == 1:
            kept.append(next(iter(loader)))
            loader.close()
            return []
        return [told(batch) for _ in range(1) for batch in loader]

    expected = alone(Logged(tmp_path / "own"), PLAN, collate=collate)
    assert together(2, run) == [expected, []]
    assert told(kept[0]) == expected[0]


@table("in_flight", [1, 3])
def test_a_replica_is_at_most_in_flight_batches_ahead_of_the_slowest(tmp_path: Path, in_flight: int) -> None:
    logged = Logged(tmp_path / "reads")
    go, ahead = threading.Event(), []

    def run(given: Any) -> Any:
        loader = loader_of(logged, PLAN, given, collate=collate, in_flight=in_flight, stall_s=None)
        batches = iter(loader)
        found = [told(next(batches)) for _ in range(2)]
        if given[0] == 2:
            assert go.wait(180)
        for batch in batches:
            found.append(told(batch))
            ahead.append(given[0])
        return found

    def let_go() -> None:
        eventually(lambda: len(ahead) == 2 * in_flight)
        time.sleep(0.2)  # would there be more, they had come
        assert sorted(ahead) == [0] * in_flight + [1] * in_flight
        assert len(logged.reads()) == 2 + in_flight
        go.set()

    judge = threading.Thread(target=let_go)
    judge.start()
    found = together(3, run)
    judge.join()
    assert go.is_set() and found == [alone(Logged(tmp_path / "own"), PLAN, collate=collate)] * 3


def test_one_that_does_not_begin_is_named_then_left_out_and_joins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_workers, "JOIN_S", 3600)
    progress = replica_workers._Reader.progress

    def told_and_late(reader: Any, ticket: int) -> str:
        reader._awaited_until_s -= 3600
        return progress(reader, ticket)

    monkeypatch.setattr(
        replica_workers.ReplicaWorkers,
        "progress",
        lambda one, ticket: told_and_late(eventually(lambda: one._reader), ticket),
    )
    began = threading.Event()
    key = new_key()

    def run(given: Any) -> Any:
        if given[0] == 1:
            assert began.wait(180)
        batches = iter(loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate, stall_s=0.2))
        found = [told(next(batches))]
        began.set()
        return found + [told(batch) for batch in batches]

    found = together(2, run, key)
    assert found == [alone(Logged(tmp_path / "own"), PLAN, collate=collate)] * 2
    assert "this batch is not drawn by [1] of 2 replicas" in caplog.text


def started_again(given: tuple[int, int, str]) -> None:
    """The next loader of this replica has the name that it would have in a process of its own."""
    replicas._loaders[given[2], given[0]] -= 1


def test_a_replica_that_is_started_again_and_resumes_elsewhere_is_refused_at_once(tmp_path: Path) -> None:
    has_tried = threading.Event()

    def run(given: Any) -> Any:
        batches = iter(loader := loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate))
        found = [told(batch) for batch in islice(batches, 4)]
        if not given[0]:
            assert has_tried.wait(180)
            return found + [told(batch) for batch in batches]
        state = loader.state_dict()
        loader.close()
        started_again(given)
        again = loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate)
        again.load_state_dict(state)
        try:
            with pytest.raises(InvalidRequest, match=r"they differ: step 0 at .* and 4 here: if one was started"):
                next(iter(again))
        finally:
            has_tried.set()
        return found

    expected = alone(Logged(tmp_path / "own"), PLAN, collate=collate)
    assert together(2, run) == [expected, expected[:4]]


def test_a_replica_that_is_started_again_later_waits_for_nobody(tmp_path: Path) -> None:
    has_read = threading.Event()

    def run(given: Any) -> Any:
        loader = loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate)
        found = [told(batch) for batch in loader]
        batches = iter(loader)
        found += [told(batch) for batch in islice(batches, 2)]
        if not given[0]:
            assert has_read.wait(180)
            return found + [told(batch) for batch in batches]
        loader.close()
        started_again(given)
        try:
            options: dict[str, Any] = {"stall_s": replica_workers.JOIN_S / 2, "on_stall": "raise"}
            return [
                told(batch) for batch in loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate, **options)
            ]
        finally:
            has_read.set()

    first, again = together(2, run)
    assert first == alone(Logged(tmp_path / "own"), PLAN, 2, collate=collate)
    assert again == first[:STEPS]


# -- what is refused


def test_replicas_that_differ_are_refused_with_the_difference(tmp_path: Path) -> None:
    cases: dict[str, Any] = {
        "another seed": (
            lambda index: loader_args(ShufflePlan(COUNT, BATCH, seed=index)),
            "seed 0 at replica 0",
        ),
        "another rank": (lambda index: loader_args(PLAN, rank=index, world_size=2), "rank and world_size"),
        "another list": (lambda index: ((Numbers(COUNT), [[index, 2]]), {}), "digest"),
        "another number of lists": (lambda index: ((Numbers(COUNT), [[1], [2], [3]][: index + 1]), {}), ""),
    }
    for case, (arguments, expected) in cases.items():

        def run(given: Any, arguments: Any = arguments) -> str:
            positional, options = arguments(given[0])
            try:
                return str(len(list(BatchLoader(*positional, replicas=given, **options))))
            except InvalidRequest as error:
                return str(error)

        found = together(2, run)
        if not expected:
            assert found == ["1", "2"], case
            continue
        assert all(text.startswith("replicas need the same plan or sampler") and expected in text for text in found), (
            case
        )


def loader_args(plan: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    return (Numbers(COUNT), plan), {"rank": 0, "world_size": 1} | options


def test_other_entries_of_the_same_plan_are_refused(tmp_path: Path) -> None:
    with throwaway_store({f"{at:03}": bytes([at]) for at in range(2 * COUNT)}, bucket="b") as client:
        names = [f"ais://b/{at:03}" for at in range(2 * COUNT)]

        def run(given: Any) -> str:
            dataset = MapDataset(client, names[given[0] : given[0] + COUNT])
            with pytest.raises(InvalidRequest, match="they differ: entries"):
                next(iter(loader_of(dataset, PLAN, given)))
            return "refused"

        assert together(2, run) == ["refused"] * 2


@table(
    "given, options, message",
    [
        ((2, 2, "k"), {}, "replicas: index"),
        ((0, 0, "k"), {}, "replicas: count"),
        ((0, 57, "k"), {}, "replicas: count"),
        ((0, 2, ""), {}, "with a key that is a text"),
        ((0, 2), {}, r"need \(index, count, key\)"),
        ((0, 2, "k"), {"rank": 1}, "give both or neither"),
        ((0.5, 2, "k"), {}, "replicas: index"),
    ],
)
def test_what_is_no_replica_is_refused(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidRequest, TypeError), match=message):
        BatchLoader(Numbers(COUNT), PLAN, replicas=given, **options)


def test_a_group_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a group of torch\.distributed with this process"):
        BatchLoader(Numbers(COUNT), PLAN, replicas=7)


def test_pinned_memory_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="replicas share memory"):
        BatchLoader(Numbers(COUNT), PLAN, workers=1, pin_memory=True, replicas=(0, 2, "k"))


def test_more_ranks_than_replicas_need_the_rank_of_the_data_parallel_dimension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(InvalidRequest, match="the rank and size of the data-parallel dimension"):
        BatchLoader(Numbers(COUNT), PLAN, replicas=(1, 4, "k"))
    assert len(BatchLoader(Numbers(COUNT), PLAN, replicas=(5, 8, "k"))) == STEPS
    assert len(BatchLoader(Numbers(COUNT), PLAN, replicas=(1, 4, "k"), rank=1, world_size=2)) == STEPS // 2


def test_two_processes_with_one_index_are_refused(tmp_path: Path) -> None:
    key = new_key()
    first = loader_of(Numbers(COUNT), PLAN, (0, 2, key))
    first.start_prefetch()
    with processes("fork", tmp_path, 1, 1, {"replicas": (0, 2, key)}, target=_refused) as (other,):
        other.join(240)
    first.close()
    assert "replica 0 of 2 is here already" in (tmp_path / "told").read_text()


def _refused(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    replicas._loaders.clear()  # as in a process of its own
    try:
        next(iter(loader_of(Numbers(COUNT), plan, options["replicas"])))
    except InvalidRequest as error:
        (folder / "told").write_text(str(error))


# -- deaths


def expected_lines(folder: Path, epochs: int) -> list[Any]:
    loader = BatchLoader(Logged(folder / "own"), PLAN, collate=collate, rank=0, world_size=1)
    return [[told(batch), loader.state_dict()] for _ in range(epochs) for batch in loader]


def judge(folder: Path, count: int, epochs: int, killed: set[int]) -> None:
    """Each replica has had the batches of a loader by itself, in order, each once: all of them, unless it died."""
    expected = expected_lines(folder, epochs)
    for index in range(count):
        found = had(folder, index)
        assert found == expected[: len(found)], f"replica {index}"
        assert index in killed or len(found) == len(expected), f"replica {index} has {len(found)} batches"


def kill_reader(folder: Path, found: list[Any], after: int, killed: set[int]) -> int:
    """Kill the process that has read last, or is to read next, once there are so many reads. Returns its index."""
    logged = Logged(folder / "reads")
    eventually(lambda: len(logged.reads()) >= after)
    alive = {one.pid: index for index, one in enumerate(found) if index not in killed}
    index = next((alive[pid] for pid, _ in reversed(logged.reads()) if pid in alive), min(alive.values()))
    found[index].kill()
    found[index].join(240)
    return index


def wait_for(found: list[Any], killed: set[int]) -> None:
    for index, one in enumerate(found):
        # Not `join`, which also waits for the children of a process that was killed.
        eventually(lambda one=one: one.exitcode is not None, 240)  # type: ignore[misc]
        assert one.exitcode == (-signal.SIGKILL if index in killed else 0), f"replica {index}: {one.exitcode}"


def test_all_but_one_die_and_it_reads_on(tmp_path: Path) -> None:
    with processes("fork", tmp_path, 4, 2, {"on_batch": _pause, "held": range(4)}) as found:
        killed = {kill_reader(tmp_path, found, 3, set())}
        killed.add(kill_reader(tmp_path, found, 8, killed))
        rest = [index for index in range(4) if index not in killed]
        for index in rest[1:]:
            found[index].kill()
        (tmp_path / "go").touch()
        wait_for(found, killed | {*rest[1:]})
    judge(tmp_path, 4, 2, killed | {*rest[1:]})


def _pause(record: Any) -> None:
    time.sleep(0.01)


@pytest.mark.slow
@table("workers", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_readers_that_are_killed_at_any_moment_cost_no_batch(tmp_path: Path, workers: int, seed: int) -> None:
    draws = random.Random(seed)
    with processes("fork", tmp_path, 4, 3, {"workers": workers, "on_batch": _pause}) as found:
        killed: set[int] = set()
        logged = Logged(tmp_path / "reads")
        for _ in range(3):
            before = len(logged.reads())
            eventually(lambda before=before: len(logged.reads()) >= min(before + draws.randrange(1, 5), 3 * STEPS))
            time.sleep(drawn_pause_s(draws))
            alive = [index for index in range(4) if index not in killed and found[index].is_alive()]
            if len(alive) < 2:
                break
            index = alive[0] if draws.random() < 0.8 else draws.choice(alive)  # the first one is the one that reads
            found[index].kill()
            found[index].join(240)
            if found[index].exitcode:
                killed.add(index)
        wait_for(found, killed)
    judge(tmp_path, 4, 3, killed)
    assert len(logged.reads()) <= 3 * STEPS + 3 * len(killed)  # those that were in flight with a reader that was killed


@pytest.mark.slow
@pytest.mark.timeout(600)
@table("workers, context", [(0, "fork"), (1, "spawn")])
def test_spawned_replicas_survive_their_reader(tmp_path: Path, workers: int, context: str) -> None:
    options = {"workers": workers, "context": context, "on_batch": _pause, "in_flight": 2, "held": range(3)}
    with processes("spawn", tmp_path, 3, 2, options) as found:
        logged = Logged(tmp_path / "reads")
        eventually(lambda: len(logged.reads()) >= 3, 300)
        found[0].kill()
        (tmp_path / "go").touch()
        for index, one in enumerate(found):
            one.join(300)
            assert one.exitcode == (0 if index else -signal.SIGKILL)
    judge(tmp_path, 3, 2, {0})


@pytest.mark.slow
@table("width, still_s", [(2, 0), (4096, 0), (2, 0.5)])
@table("killed_after", [1, 2])
def test_a_batch_that_only_some_have_had_is_the_same_for_all(
    tmp_path: Path, width: int, killed_after: int, still_s: float
) -> None:
    """The reader dies between two sends of a batch, whose decoder draws other numbers each time.

    The next one may then stand still for longer than those behind it wait for a replica that has not begun.
    """
    options = {"width": width, "killed_after": killed_after, "still_s": still_s}
    with processes("fork", tmp_path, 4, 1, options, target=_reader_dies_while_it_sends) as found:
        wait_for(found, {0})
    batches = [had(tmp_path, index) for index in range(1, 4)]
    assert batches[0] == batches[1] == batches[2] and len(batches[0]) == STEPS


def _reader_dies_while_it_sends(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    class Noise(Numbers):
        def __getitems__(self, indices: Any) -> Any:
            return [np.frombuffer(os.urandom(4 * options["width"]), np.int32) for _ in indices]

    if options["still_s"]:
        replica_workers._TURN_S = 0.1
    if given[0] == 1:
        meet = replica_workers.ReplicaWorkers._meet

        def stand_still(replica: Any) -> Any:
            time.sleep(options["still_s"] if replica.seen else 0)  # it has met a reader before
            return meet(replica)

        replica_workers.ReplicaWorkers._meet = stand_still  # type: ignore[method-assign]
    if given[0] == 0:
        sends, send = [0], replica_workers.Connection.send

        def counted(conn: Any, message: Any) -> None:
            send(conn, message)
            if isinstance(message, tuple) and message[0] == 5 and len(message) == 3:
                sends[0] += 1
                if sends[0] > killed_after:
                    os.kill(os.getpid(), signal.SIGKILL)

        killed_after = options["killed_after"]
        replica_workers.Connection.send = counted  # type: ignore[method-assign]
    loader = loader_of(Noise(COUNT), plan, given, collate=np.stack, in_flight=3)
    with (folder / f"had-{given[0]}").open("w") as file:
        for batch in loader:
            file.write(json.dumps(told(batch)) + "\n")
            batch[:] = 0


@pytest.mark.slow
def test_a_reader_that_stands_still_within_a_message_loses_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing from its sockets for so long that the others give up sending, in the middle of a message."""
    monkeypatch.setattr(replica_workers, "_SEND_S", 1)
    send, look, looks = replica_workers.Connection.send, replica_workers._Reader._look, []
    stands_still, gave_up = threading.Event(), list[Any]()

    def send_or_note(conn: Any, message: Any) -> None:
        try:
            send(conn, message)
        except BlockingIOError:
            gave_up.append(conn)
            raise

    def look_or_stand_still(reader: Any) -> None:
        looks.append(reader)
        if len(looks) == 12:
            stands_still.set()
            eventually(lambda: len(gave_up) >= 2)
        look(reader)

    monkeypatch.setattr(replica_workers.Connection, "send", send_or_note)
    monkeypatch.setattr(replica_workers._Reader, "_look", look_or_stand_still)
    size = 100_000  # pickled, more than a socket takes
    batches = [list(range(at, at + size)) for at in range(24)]

    def run(given: Any) -> list[Any]:
        loader = loader_of(Firsts(), batches, given, collate=np.stack, in_flight=2)
        return [told(batch) for batch in loader]

    assert together(2, run) == [alone(Firsts(), batches, collate=np.stack, in_flight=2, rank=None, world_size=None)] * 2
    assert stands_still.is_set() and gave_up


@table("error", [BlockingIOError, BrokenPipeError])
@table("fails_at", ["message", "file"])
def test_a_batch_that_did_not_reach_a_replica_leaves_its_slot_to_the_next(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError], fails_at: str
) -> None:
    """It stands still or has hung up, lives on, and connects again: nothing else would give the slot back."""
    reader = object.__new__(replica_workers._Reader)
    reader._sending, reader._writer, reader._files = threading.Lock(), SlotWriter(1), {}
    sent = list[Any]()

    def fail(*_: Any) -> None:
        raise error

    gone, here = (SimpleNamespace(send=sent.append) for _ in range(2))
    if fails_at == "message":
        gone.send = fail
    send_file = lambda conn, file: fail() if conn is gone else None  # noqa: E731
    monkeypatch.setattr(replica_workers, "send_file", send_file)
    monkeypatch.setattr(replica_workers, "hang_up", lambda conn: None)
    reader._members = cast(Any, {0: gone, 1: here})
    try:
        for ticket in range(2):
            reader._send(ticket, 0.0, FetchedBatch(np.full(50_000, ticket), "worker"), [0, 1])
            _, _, parcel = sent[-1]
            assert parcel.slot == 0 and [*reader._writer._slots[0][:2]] == [0, 1]
            reader._writer.give_back(1)  # it has dropped the batch
            reader._members = cast(Any, {0: gone, 1: here})
    finally:
        os.close(reader._files[0])


class Firsts:
    """A batch is the first number, many times."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [np.full(8192, numbers[0], np.int32)] * 2


def test_a_reader_without_descriptors_is_told_once_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, tries = socket.socket.accept, list[float]()

    def no_more(sock: Any) -> Any:
        if "ais-loader-replica-reader" in threading.current_thread().name:
            tries.append(time.monotonic())
            if len(tries) < 20:
                raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", no_more)
    found = together(
        2, lambda given: [told(one) for one in loader_of(Logged(tmp_path / "r"), PLAN, given, collate=collate)]
    )
    assert found == [alone(Logged(tmp_path / "own"), PLAN, collate=collate)] * 2
    assert tries[19] - tries[0] >= 19 * 0.9 * replica_workers._LOOK_S
    assert caplog.text.count("cannot be connected to: [Errno 24] Too many open files") == 1


def test_a_child_of_the_reader_does_not_hide_its_death(tmp_path: Path) -> None:
    with processes("fork", tmp_path, 2, 1, {}, target=_reader_has_a_child) as found:
        wait_for(found, {0})
        child = int((tmp_path / "child").read_text())
        os.kill(child, signal.SIGKILL)  # it has lived until now
    assert had(tmp_path, 1) == alone(Logged(tmp_path / "own"), PLAN, collate=collate)


def _reader_has_a_child(folder: Path, given: Any, epochs: int, options: dict[str, Any], plan: Any) -> None:
    with (folder / f"had-{given[0]}").open("w") as file:
        for step, batch in enumerate(loader_of(Logged(folder / "reads"), plan, given, collate=collate)):
            if (step, given[0]) == (3, 0):
                child = os.fork()
                if not child:
                    signal.pause()
                (folder / "child").write_text(str(child))
                os.kill(os.getpid(), signal.SIGKILL)
            file.write(json.dumps(told(batch)) + "\n")


@pytest.mark.slow
def test_a_frozen_replica_holds_the_others_back_and_goes_on(tmp_path: Path) -> None:
    with processes("fork", tmp_path, 3, 2, {"on_batch": _pause, "in_flight": 2, "held": [2]}) as found:
        logged = Logged(tmp_path / "reads")
        eventually(lambda: len(logged.reads()) >= 4)
        os.kill(found[2].pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(found[2].pid).status() == psutil.STATUS_STOPPED)
        (tmp_path / "go").touch()
        at = len(had(tmp_path, 2))
        eventually(lambda: len(had(tmp_path, 0)) >= at + 2)
        time.sleep(0.3)
        assert max(len(had(tmp_path, index)) for index in (0, 1)) <= at + 3
        os.kill(found[2].pid, signal.SIGCONT)
        wait_for(found, set())
    judge(tmp_path, 3, 2, set())
    assert len(logged.reads()) == 2 * STEPS


@pytest.mark.slow
def test_nothing_is_left_by_replicas(tmp_path: Path) -> None:
    def run(given: Any) -> int:
        loader = loader_of(Logged(tmp_path / "reads"), PLAN, given, collate=collate)
        return len([None for _ in range(3) for _ in loader])

    def left() -> tuple[int, list[str]]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), [t.name for t in threading.enumerate() if "replica" in t.name]

    together(3, run)
    before = left()
    assert together(3, run) == [3 * STEPS] * 3
    eventually(lambda: left()[0] <= before[0] and not left()[1])
    eventually(lambda: gc.collect() >= 0 and "ais-loader-slot" not in Path("/proc/self/maps").read_text())


@pytest.mark.slow
def test_workers_that_are_kept_read_in_the_next_epoch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_workers, "_TURN_S", 3600)  # the same replica reads in every epoch
    logged = Logged(tmp_path / "reads")

    def run(given: Any) -> Any:
        with loader_of(logged, PLAN, given, workers=2, persistent_workers=True, collate=collate) as loader:
            return [told(batch) for _ in range(3) for batch in loader]

    assert together(2, run) == [alone(Logged(tmp_path / "own"), PLAN, 3, collate=collate)] * 2
    assert len({pid for pid, _ in logged.reads()}) == 2 and len(logged.reads()) == 3 * STEPS


def test_nothing_of_an_iteration_that_has_ended_is_kept(tmp_path: Path) -> None:
    logged = Logged(tmp_path / "reads")

    def run(given: Any) -> BatchLoader:
        loader = loader_of(logged, PLAN, given, collate=collate)
        assert len([None for _ in loader]) == STEPS
        return loader

    loaders = together(2, run)
    eventually(lambda: gc.collect() >= 0 and "ais-loader-slot" not in Path("/proc/self/maps").read_text())
    assert loaders


def test_a_reader_that_fails_is_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, readers = replica_workers._Reader._read, list[Any]()

    def failing(self: Any, one: Any, asked: Any) -> None:
        if self not in readers:
            readers.append(self)
        if one.ticket == 3 and len(readers) == 1:
            raise MemoryError("no more of it")
        read(self, one, asked)

    monkeypatch.setattr(replica_workers._Reader, "_read", failing)
    logged = Logged(tmp_path / "reads")
    found = together(2, lambda given: [told(batch) for batch in loader_of(logged, PLAN, given, collate=collate)])
    assert found == [alone(Logged(tmp_path / "own"), PLAN, collate=collate)] * 2
    assert len(readers) > 1


@table("workers", [0, 1])
def test_a_default_timeout_of_sockets_changes_nothing(tmp_path: Path, workers: int) -> None:
    logged = Logged(tmp_path / "reads")

    def run(given: Any) -> list[Any]:
        return [told(batch) for batch in loader_of(logged, PLAN, given, collate=collate, workers=workers)]

    socket.setdefaulttimeout(5)
    try:
        assert together(2, run) == [alone(Logged(tmp_path / "own"), PLAN, collate=collate)] * 2
    finally:
        socket.setdefaulttimeout(None)


def test_a_child_that_reads_as_its_parent_is_refused(tmp_path: Path) -> None:
    loader = loader_of(Numbers(COUNT), PLAN, (0, 2, new_key()))
    loader.start_prefetch()
    child = multiprocessing.get_context("fork").Process(target=_read_again, args=(loader, tmp_path))
    child.start()
    child.join(240)
    loader.close()
    assert "replica 0 of 2 is here already" in (tmp_path / "told").read_text()


def _read_again(loader: BatchLoader, folder: Path) -> None:
    try:
        loader._ahead = None
        next(iter(loader))
    except InvalidRequest as error:
        (folder / "told").write_text(str(error))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nothing_that_another_user_sends_is_unpickled(tmp_path: Path) -> None:
    given = (0, 2, new_key())
    with loader_of(Numbers(COUNT), PLAN, given) as loader:
        loader.start_prefetch()
        assert loader._replicas is not None
        args = loader._replicas.address("reader in 0"), tmp_path / "called"
        stranger = multiprocessing.get_context("fork").Process(target=_intrude, args=args)
        tmp_path.chmod(0o777)
        stranger.start()
        stranger.join(240)
    assert stranger.exitcode == 0 and not (tmp_path / "called").exists()


class _Touches:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return self.path.touch, ()


def _intrude(address: str, path: Path) -> None:
    os.setuid(65534)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    eventually(lambda: sock.connect_ex(address) == 0)
    conn = replica_workers._connection(sock)
    with pytest.raises((EOFError, OSError)):  # it hangs up
        conn.send(_Touches(path))
        conn.recv()
