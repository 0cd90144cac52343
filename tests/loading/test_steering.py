"""A trainer sets the weights of its running mixture: every rank draws them from one step on, and every resume does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading_kit import Numbers

from ais_loader import BatchLoader, ShufflePlan
from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan
from ais_loader.testing import eventually
from ais_loader.training.ledger import ledger
from ais_loader.training.plan import Position
from tests.example_count import examples
from tests.table import table

SIZES = {"web": 40, "code": 25, "books": 9}
START = {"web": 3.0, "code": 1.0}
UPDATES, GROUP = 6, 8
STEPS = UPDATES * GROUP
WEIGHTS = st.dictionaries(st.sampled_from([*SIZES]), st.floats(0.05, 4) | st.integers(1, 5), min_size=1)


def mixture(**options: Any) -> MixPlan:
    return MixPlan(SIZES, START, **{"batch_size": 3, "seed": 5, "group": GROUP} | options)


def of_buckets(**options: Any) -> MixPlan:
    sources = {name: BucketPlan([1 + at % 9 for at in range(5 * n)], [5, 9], [2, 1]) for name, n in SIZES.items()}
    return MixPlan(sources, START, seed=5, group=GROUP, **options)


def ranks_of(
    plan: MixPlan, world_size: int, state: dict[str, Any] | None = None, in_flight: int = 2
) -> list[BatchLoader]:
    found = []
    for rank in range(world_size):
        samples = Numbers(plan.n)
        found.append(BatchLoader(samples, plan, rank=rank, world_size=world_size, in_flight=in_flight, threads=1))
        if state is not None:
            found[-1].load_state_dict(state)
    return found


def forever(loader: BatchLoader) -> Iterator[list[int]]:
    while True:
        yield from loader


def trained(
    ranks: list[BatchLoader], signals: dict[int, dict[str, float]], first: int, stop: int
) -> Iterator[tuple[int, list[list[int]], dict[str, Any]]]:
    """Train from step `first` to `stop`, all epochs counted, and steer after the updates that have a signal.

    Yields the step before each round, the batches of the ranks in it, and the state after it.
    """
    batches = [forever(rank) for rank in ranks]
    for step in range(first, stop, len(ranks)):
        had = [next(one) for one in batches]
        update, rest = divmod(step + len(ranks), GROUP)
        if not rest and update in signals:
            assert len({rank.steer(signals[update]) for rank in ranks}) == 1
        states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        assert all(state == states[0] for state in states)
        yield step, had, states[0]
    for rank in ranks:
        rank.close()


def planned(plan: MixPlan, signals: dict[int, dict[str, float]], in_flight: int) -> list[list[int]]:
    """The batches of a plan that has had these weights from the beginning, as its argument."""
    begins = {(update + in_flight + 1) * GROUP: weights for update, weights in signals.items()}
    other = MixPlan(
        dict(zip(plan.names, plan._given, strict=True)),
        [(0, START), *sorted(begins.items())],
        batch_size=plan.batch_size,
        seed=5,
        group=GROUP,
    )
    return [other.batch(0, step).tolist() for step in range(STEPS)]


@pytest.mark.slow
@pytest.mark.parametrize("new_plan", [mixture, of_buckets])
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_steered_run_that_is_killed_at_any_step_repeats_itself_with_any_number_of_ranks(
    new_plan: Callable[..., MixPlan], data: st.DataObject
) -> None:
    epoch_steps = data.draw(st.sampled_from([None, 3 * GROUP]))
    in_flight = data.draw(st.integers(1, 3))
    signals = data.draw(st.dictionaries(st.integers(1, UPDATES), WEIGHTS, max_size=4))
    plan = new_plan(epoch_steps=epoch_steps)
    expected = planned(plan, signals, in_flight)
    checkpoints: dict[int, dict[str, Any] | None] = {0: None}
    found: list[list[int]] = []
    for step, had, state in trained(ranks_of(plan, 4, in_flight=in_flight), signals, 0, STEPS):
        found += had
        checkpoints[step + 4] = state
    assert found == expected
    for killed_at in range(STEPS):  # also between the batches of two ranks, which a checkpoint never is
        first = killed_at - killed_at % 4
        world_size = data.draw(st.sampled_from([size for size in (1, 2, 4, 8) if first % GROUP % size == 0]))
        resumed = ranks_of(plan, world_size, checkpoints[first], in_flight)
        rest = [batch for _, had, _ in trained(resumed, signals, first, STEPS) for batch in had]
        assert rest == expected[first:], f"killed at step {killed_at}, resumed with {world_size} ranks"


class Watched(Numbers):
    """A dataset that counts the batches that were drawn."""

    drawn = 0

    def __getitems__(self, indices: Iterable[int]) -> list[int]:
        self.drawn += 1
        return super().__getitems__(indices)


@table("from_record", [False, True])
def test_what_is_drawn_keeps_its_weights(from_record: bool) -> None:
    plan, begins = mixture(group=1), []
    samples = Watched(plan.n)

    def steer(record: Any) -> None:
        if record.step == 4:
            eventually(lambda: samples.drawn == 5 + 3)
            begins.append(loader.steer({"books": 1}))

    loader = BatchLoader(samples, plan, in_flight=3, on_batch=steer if from_record else None, threads=3)
    batches = iter(loader)
    had = list(islice(batches, 5))
    if not from_record:
        eventually(lambda: samples.drawn == 5 + 3)
        begins.append(loader.steer({"books": 1}))
    (begin,) = begins
    assert begin == Position(0, 8 if from_record else 9)
    had += islice(batches, 10)
    assert had[: begin.step] == [plan.batch(0, step).tolist() for step in range(begin.step)]
    assert all(number >= 65 for batch in had[begin.step :] for number in batch)
    lines = [[line["number"] for line in ledger(loader, loader.state_dict(), step)] for step in range(15)]
    assert lines == had
    assert {line["source"] for line in ledger(loader, loader.state_dict(), begin.step)} == {"books"}
    loader.close()


def test_a_state_brings_its_weights_and_no_others() -> None:
    plan = mixture(epoch_steps=GROUP)
    (loader,) = ranks_of(plan, 1)
    before = loader.state_dict()
    assert loader.steer({"code": 1}) == Position(3, 0)
    assert loader.steer({"code": 0.5, "books": 2}) == Position(3, 0)  # the later one counts
    steered = json.loads(json.dumps(loader.state_dict()))
    assert before.keys() == steered.keys()
    assert loader.position.plan.steering == ((3 * GROUP, {"code": 0.5, "books": 2.0}),)  # type: ignore[attr-defined]
    loader.load_state_dict(before)
    (other,) = ranks_of(plan, 1, steered)
    assert [list(one) for one in (loader, other) for _ in range(3)][:3] == [
        [plan.batch(epoch, step).tolist() for step in range(GROUP)] for epoch in range(3)
    ]
    assert next(iter(loader)) == plan.batch(3, 0).tolist()
    assert next(iter(other)) == plan.steered([(3 * GROUP, {"code": 1, "books": 4})]).batch(3, 0).tolist()
    for steering in (5, [[1]], [["x", {}]], [[1, 2]]):
        described = json.loads(steered["plan"]) | {"steering": steering}
        with pytest.raises(InvalidRequest, match="not a state of a plan"):
            loader.load_state_dict(steered | {"plan": json.dumps(described)})
    lost = json.loads(other.state_dict()["plan"])
    del lost["steering"]
    with pytest.raises(InvalidRequest, match="another plan"):
        loader.load_state_dict(other.state_dict() | {"epoch": 4, "plan": json.dumps(lost)})


def test_steps_left_out_and_weights_of_the_plan_come_in_their_places() -> None:
    plan = MixPlan(SIZES, [(0, START), (60, {"web": 1})], batch_size=3, group=4).without(range(8, 16))
    (loader,) = ranks_of(plan, 1, in_flight=1)
    assert loader.steer({"books": 1}) == Position(0, 8)
    sources = [set(loader.position.plan.sources(0, step)) for step in range(60)]  # type: ignore[attr-defined]
    assert [at for at, names in enumerate(sources) if names == {"books"}] == [*range(8, 52)]
    assert sources[52:] == [{"web"}] * 8


def test_what_cannot_be_steered_is_refused() -> None:
    for at_end in ("stop", "leave"):
        with pytest.raises(InvalidRequest, match="only a mixture with at_end='repeat'"):
            ranks_of(mixture(at_end=at_end), 1)[0].steer(START)
    with pytest.raises(InvalidRequest, match="ShufflePlan: only a MixPlan has weights"):
        BatchLoader(Numbers(9), ShufflePlan(9, 2)).steer(START)
    with pytest.raises(InvalidRequest, match="of a sampler have no weights"):
        BatchLoader(Numbers(9), [[1, 2]]).steer(START)
    (loader,) = ranks_of(MixPlan(SIZES | {"none": 0}, START, batch_size=3), 1)
    wrong: list[tuple[Any, str]] = [
        ({"wiki": 1}, "weight of 'wiki': the sources are web, code, books, none"),
        ({"none": 1}, "source 'none' is empty"),
        ({"web": 0}, "need one above 0"),
        ({"web": float("nan")}, "need a number, 0 or more"),
        ([0.5, 0.5], "need a mapping"),
    ]
    for weights, told in wrong:
        with pytest.raises(InvalidRequest, match=told):
            loader.steer(weights)
    loader.set_epoch(1)
    with pytest.raises(InvalidRequest, match="it needs epoch_steps"):
        loader.steer(START)
    assert "steering" not in json.loads(loader.state_dict()["plan"])
    small = MixPlan({"a": ShufflePlan(90, 1), "b": ShufflePlan(2, 1, tail="drop")}, {"a": 1}, group=4)
    with pytest.raises(InvalidRequest, match="source 'b' has fewer steps than its group"):
        ranks_of(small, 1)[0].steer({"b": 1})


class Patient(torch.distributed.FileStore):
    """A store whose ranks begin to wait for the last one when they have all called but that one."""

    def wait(self, keys: list[str], timeout: Any) -> None:
        eventually(lambda: sum(self.check([key]) for key in keys) >= len(keys) - 1)
        super().wait(keys, timeout)


def test_a_rank_that_steers_otherwise_is_named_on_all_ranks(tmp_path: Path) -> None:
    """Ranks are threads, each with a store of its own."""
    met = threading.Barrier(4)

    def told(case: str, rank: int) -> str:
        plan = mixture(seed=len(case), group=4)
        loader = BatchLoader(Numbers(plan.n), plan, rank=rank, world_size=4)
        batches, store = iter(loader), Patient(str(tmp_path / case), 4)
        had = list(islice(batches, 3 if (case, rank) == ("later", 3) else 2))
        weights = {"weights": {"code": 1 + rank // 2}, "wrong": {"wiki" if rank == 1 else "web": 1}}.get(case, START)
        try:
            if (case, rank) == ("silent", 1):
                return "has gone on"
            return str(loader.steer(weights, store=store, timeout_s=0.5 if case == "silent" else 60))
        except InvalidRequest as error:
            had += islice(batches, 10 - len(had))  # nothing was changed
            assert had == [plan.batch(0, step).tolist() for step in range(rank, 40, 4)]
            return str(error)
        finally:
            loader.close()
            met.wait(180)

    with ThreadPoolExecutor(4) as threads:
        found = {
            case: list(threads.map(told, [case] * 4, range(4)))
            for case in ("equal", "weights", "later", "wrong", "silent")
        }
    differs = "rank {0} steers otherwise than rank 0: rank 0 has {1}, and rank {0} {2}"
    wrong = "MixPlan: weight of 'wiki': the sources are web, code, books"
    silent = found.pop("silent")
    assert found == {
        "equal": [str(Position(0, (2 + 3 + 1) * 4))] * 4,
        "weights": [differs.format(2, "weights.code 1.0", "2.0")] * 4,
        "later": [differs.format(3, "step 24", "28")] * 4,
        "wrong": [wrong if rank == 1 else f"rank 1 refuses the weights: {wrong}" for rank in range(4)],
    }
    assert silent.pop(1) == "has gone on"
    assert all(one.startswith("rank 1 of 4 has not called steer within 0.5 s, as rank ") for one in silent)
