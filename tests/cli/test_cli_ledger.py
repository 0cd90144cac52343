"""`ais-loader ledger`: the samples of any step, named from a saved position alone, are those that the run has had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, Entry, Item, ShufflePlan
from ais_loader.plans import BucketPlan, MixPlan, PackPlan
from ais_loader.testing import throwaway_store
from ais_loader.training.ledger import ledger
from tests.cli.kit import Run
from tests.table import table

NAMES = [f"en/{at:02}" for at in range(40)]
SIZES = [50 + 7 * at for at in range(40)]


@pytest.fixture(scope="module")
def speech() -> Iterator[Client]:
    objects = {name: bytes([at]) * size for at, (name, size) in enumerate(zip(NAMES, SIZES, strict=True))}
    with throwaway_store(objects, bucket="speech") as client:
        yield client


def label(item: Item) -> list[tuple[str, int]]:
    """A sample whose k-th element says that it is the k-th of its object."""
    return [(item.entry.name, at) for at in range(len(item.data))]


@table("kind", ["shuffle", "mix", "bucket", "pack"])
def test_every_step_of_every_rank_is_named(speech: Client, kind: str) -> None:
    from ais_loader import BatchLoader, MapDataset
    from ais_loader import concat as concat_of

    plan = {
        "shuffle": ShufflePlan(40, 3, group=4, seed=5).without(range(4, 8)),
        "mix": MixPlan({"a": 15, "b": 25}, [(0, {"a": 1, "b": 1}), (3, {"b": 1})], batch_size=4, group=4),
        "bucket": BucketPlan(SIZES, [100, 200, 400], [4, 3, 2], group=4),
        "pack": PackPlan(SIZES, 300, 2, group=4),
    }[kind]
    entries = [Entry("speech", name, version=None) for name in NAMES]
    samples: Any = MapDataset(speech, entries, label)
    if kind == "mix":
        samples = concat_of([MapDataset(speech, entries[:15], label), MapDataset(speech, entries[15:], label)])
    states, had = [], {}
    for rank in range(2):
        loader = BatchLoader(samples, plan, rank=rank, world_size=2)
        for at, batch in enumerate(islice(loader, 4)):
            had[2 * at + rank] = [piece for pack in batch for piece in pack] if kind == "pack" else batch
        states.append(loader.state_dict())
    assert states[0] == states[1]
    for step, batch in had.items():
        lines = ledger(BatchLoader(samples, plan, rank=0, world_size=1), states[0], step)
        expected = []
        for line in lines:
            start, length = line.get("piece", (0, SIZES[line["number"]]))
            assert (line["bucket"], line["name"]) == ("speech", NAMES[line["number"]])
            assert (line["step"], line["rank"]) == (step, step % 2)
            assert line.get("source") == (None if kind != "mix" else "a" if line["number"] < 15 else "b")
            expected.append([(line["name"], at) for at in range(start, start + length)])
        assert batch == expected


@pytest.fixture
def state_file(speech: Client, tmp_path: Path) -> Path:
    from ais_loader import BatchLoader, MapDataset

    plan = ShufflePlan(40, 3, seed=5, group=2).without(range(2, 4))
    loader = BatchLoader(MapDataset(speech, "ais://speech/en/"), plan, rank=0, world_size=2)
    for _ in islice(loader, 3):
        pass
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    return path


def step_of(result: Any) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["name"] for line in result.stdout.splitlines()]


def test_a_shuffle_plan_is_rebuilt_from_the_state(run: Run, speech: Client, state_file: Path) -> None:
    plan = ShufflePlan(40, 3, seed=5, group=2)
    arguments = ["ledger", state_file, "--store", speech.url, "--json", "--entries", "ais://speech/en/"]
    for step, own_step in ((0, 0), (1, 1), (2, 4), (5, 7)):
        result = run(*arguments, "--step", str(step))
        assert step_of(result) == [NAMES[at] for at in plan.batch(0, own_step)]
    fetched = run("batch", "-", "--store", speech.url, "--json", stdin=result.stdout.encode())
    assert [json.loads(line)["name"] for line in fetched.stdout.splitlines()] == step_of(result)
    assert step_of(run(*arguments, "--step", "3", "--epoch", "2")) == [NAMES[at] for at in plan.batch(2, 3)]
    shown = run(*arguments[:-3], "--entries", "ais://speech/en/", "--step", "5")
    assert shown.stdout.splitlines()[0].split() == ["1", str(plan.batch(0, 7)[0]), f"speech/{step_of(result)[0]}"]


_TRAINER = """
from torch.utils.data import DataLoader
from ais_loader import BatchSampler, MapDataset
from ais_loader.plans import PackPlan

SIZES = [50 + 7 * at for at in range(40)]
dataset = MapDataset({store!r}, "ais://speech/en/")

def new_loader():
    return DataLoader(dataset, batch_sampler=BatchSampler(PackPlan(SIZES, 300, 2)), collate_fn=list)

if __name__ == "__main__":
    raise SystemExit("not to be run")
"""


def test_any_loader_can_be_named_by_its_file(run: Run, speech: Client, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    from ais_loader import BatchSampler, MapDataset

    program, state = tmp_path / "train.py", tmp_path / "state.json"
    program.write_text(_TRAINER.format(store=speech.url))
    plan = PackPlan(SIZES, 300, 2)
    sampler = BatchSampler(plan)
    for _ in islice(DataLoader(MapDataset(speech, "ais://speech/en/"), batch_sampler=sampler, collate_fn=list), 3):
        pass
    state.write_text(json.dumps(sampler.state_dict()))
    result = run("ledger", state, "--step", "1", "--json", "--loader", f"{program}:new_loader")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    pieces = [piece for pack in plan.batch(0, 1) for piece in pack]
    assert [(line["name"], *line["piece"]) for line in lines] == [(NAMES[at], *piece) for at, *piece in pieces]
    for wrong, told in (("nowhere.py:new_loader", "need FILE.py:NAME"), (f"{program}:SIZES", "need a BatchLoader")):
        refused = run("ledger", state, "--step", "1", "--loader", wrong)
        assert refused.exit_code and told in refused.stderr
    refused = run("ledger", state, "--step", "1", "--store", speech.url, "--entries", "ais://speech/en/")
    assert refused.exit_code == 1 and "the state of PackPlan does not hold all" in refused.stderr


def test_what_does_not_fit_the_state_is_refused(run: Run, speech: Client, state_file: Path, tmp_path: Path) -> None:
    arguments = ["--store", speech.url, "--entries"]
    for words, told in (
        (["--step", "99", *arguments, "ais://speech/en/"], "step 99 of an epoch with 12 steps"),
        (["--step", "0", *arguments, "ais://speech/en/0"], "n=40 numbers, for 10 samples"),
        (["--step", "0"], "give either --loader or --entries"),
    ):
        result = run("ledger", state_file, *words)
        assert result.exit_code and told in result.stderr
    for text, told in (("no", "is not JSON"), ("[]", "has no JSON object"), ('{"plan": 5}', "not a state of a plan")):
        (tmp_path / "other").write_text(text)
        result = run("ledger", tmp_path / "other", "--step", "0", *arguments, "ais://speech/en/")
        assert result.exit_code == 1 and told in result.stderr
