"""Random numbers of samples: equal seeds repeat them with any workers, also when a run is stopped and resumed."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, Subset

import ais_loader
from ais_loader import BatchLoader, MapDataset, ShufflePlan, concat
from ais_loader.plans import MixPlan
from ais_loader.values.entry import Item

N, BATCH = 14, 4
BAD = 5
ROWS = {"threads": 1}, {"threads": 2}, {"workers": 1}, {"workers": 2}


def decode(item: Item) -> torch.Tensor:
    return torch.frombuffer(bytearray(item.data), dtype=torch.uint8).float().view(1, 4, 4)


def decode_noisy(item: Item, rng: np.random.Generator) -> torch.Tensor:
    return decode(item) + float(rng.normal())


class Flip(torch.nn.Module):
    """A flip and a crop with the generator of each sample."""

    def forward(self, image: torch.Tensor, *, rng: np.random.Generator) -> torch.Tensor:
        image = image.flip(-1) if rng.random() < 0.5 else image
        at = int(rng.integers(3))
        return torch.cat([image[:, at : at + 2].flatten(), torch.tensor([rng.random(), rng.random()])])


class GlobalFlip(torch.nn.Module):
    """The same with the generators of the process, as torchvision's transforms have it."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = image.flip(-1) if torch.rand(1) < 0.5 else image
        at = int(torch.randint(0, 3, (1,)))
        return torch.cat([image[:, at : at + 2].flatten(), torch.tensor([random.random(), np.random.rand()])])


class Plain:
    """A dataset of another library, whose samples are read one by one."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number, random.random(), np.random.rand(), float(torch.rand(1))])


def mix(samples: list[torch.Tensor], rng: np.random.Generator) -> torch.Tensor:
    return torch.stack(samples) * float(rng.beta(1, 1))


def fail_once(item: Item, rng: np.random.Generator) -> torch.Tensor:
    if item.data[0] == BAD:
        raise ValueError("bad")
    return decode_noisy(item, rng)


def dataset(folder: Path, decode: Any = decode, transform: Any = None, n: int = N) -> MapDataset:
    if not folder.exists():
        with ais_loader.connect(folder) as client:
            client.create_bucket("images").put_many((f"{at:02}", bytes(range(at, at + 16))) for at in range(N))
    return MapDataset(str(folder), [f"ais://images/{at:02}" for at in range(n)], decode, transform=transform)


def epochs(loader: BatchLoader, count: int = 2) -> list[list[Any]]:
    with loader:
        return [[np.asarray(sample).tolist() for batch in loader for sample in batch] for _ in range(count)]


def stopped_and_resumed(make: Any, first: dict[str, int], second: dict[str, int]) -> list[Any]:
    """The samples of epoch 1 with a stop after two batches."""
    with make(**first) as loader, make(**second) as resumed:
        loader.set_epoch(1)
        batches = iter(loader)
        found = [np.asarray(sample).tolist() for _ in range(2) for sample in next(batches)]
        resumed.load_state_dict(loader.state_dict())
        return found + [np.asarray(sample).tolist() for batch in resumed for sample in batch]


def check(make: Any, rows: Any) -> None:
    expected = epochs(make(**rows[0]))
    assert expected[0] != expected[1]
    for row, other in zip(rows, (*rows[1:], rows[0]), strict=True):
        assert epochs(make(**other)) == expected
        assert stopped_and_resumed(make, row, other) == expected[1]


def plan() -> ShufflePlan:
    return ShufflePlan(N, BATCH, seed=3)


def test_functions_with_a_generator_repeat_in_threads_and_at_a_resume(tmp_path: Path) -> None:
    samples = dataset(tmp_path / "store", decode_noisy, Flip())
    for collate in (None, mix):
        check(functools.partial(BatchLoader, samples, plan(), collate=collate), ROWS[:2])
    first, other = (epochs(BatchLoader(samples, ShufflePlan(N, BATCH, seed=seed)), 1)[0] for seed in (3, 4))
    assert not {tuple(sample) for sample in first} & {tuple(sample) for sample in other}


def test_ranks_have_the_random_numbers_of_one(tmp_path: Path) -> None:
    samples, pairs = dataset(tmp_path / "store", decode_noise), ShufflePlan(N, BATCH, seed=3, group=2)
    ranks = [list(BatchLoader(samples, pairs, rank=rank, world_size=2)) for rank in range(2)]
    assert list(BatchLoader(samples, pairs)) == [batch for turn in zip(*ranks, strict=True) for batch in turn]


def test_samplers_repeat_by_their_epoch_or_generator(tmp_path: Path) -> None:
    samples = dataset(tmp_path / "store", decode_noisy)

    def distributed(**row: int) -> BatchLoader:
        return BatchLoader(
            samples, TorchBatchSampler(DistributedSampler(range(N), num_replicas=1, rank=0), BATCH, False), **row
        )

    expected = epochs(distributed(threads=1), 1)
    with distributed() as loader:
        loader.set_epoch(1)
        expected += epochs(loader, 1)
    assert expected[0] != expected[1]
    assert stopped_and_resumed(distributed, {"threads": 1}, {"threads": 2}) == expected[1]

    def drawing(**row: int) -> BatchLoader:
        generator = torch.Generator().manual_seed(1)
        return BatchLoader(
            samples, TorchBatchSampler(RandomSampler(range(N), generator=generator), BATCH, False), **row
        )

    whole = epochs(drawing(threads=1))
    assert epochs(drawing(threads=2)) == whole
    with drawing() as loader, drawing() as resumed:
        list(loader)
        batches = iter(loader)
        found = [np.asarray(sample).tolist() for sample in next(batches)]
        resumed.load_state_dict(loader.state_dict())
        assert found + [np.asarray(sample).tolist() for batch in resumed for sample in batch] == whole[1]

    def in_order() -> list[list[Any]]:
        torch.manual_seed(5)
        return epochs(BatchLoader(samples, TorchBatchSampler(SequentialSampler(range(N)), BATCH, False)))

    first = in_order()
    assert first == in_order() and first[0] != first[1]


def test_every_sample_has_random_numbers_of_its_own(tmp_path: Path) -> None:
    """Also one that a mixture repeats, those of several data sets, and of a batch with a bad sample."""
    noisy, few = (dataset(tmp_path / "store", decode_noise, n=n) for n in (N, 2))
    mixture = MixPlan({"few": 2}, {"few": 1}, batch_size=6, epoch_steps=4)
    assert len(set(epochs(BatchLoader(few, mixture), 1)[0])) == 24
    both = concat([few, noisy, Subset(noisy, range(4))])
    assert len(set(epochs(BatchLoader(both, ShufflePlan(len(both), 5)), 1)[0])) == len(both)
    bad = dataset(tmp_path / "store", fail_once)
    good = dict(
        zip(plan_numbers(), epochs(BatchLoader(dataset(tmp_path / "store", decode_noisy), plan()), 1)[0], strict=True)
    )
    found = epochs(BatchLoader(bad, plan(), on_bad="skip"), 1)[0]
    assert found == [sample for number, sample in good.items() if number != BAD]


def decode_noise(item: Item, rng: np.random.Generator) -> float:
    return float(rng.random())


def plan_numbers() -> list[int]:
    return [int(number) for step in range(plan().steps(0) or 0) for number in plan().batch(0, step)]


def test_other_loaders_give_a_generator_that_torch_seeds(tmp_path: Path) -> None:
    samples = dataset(tmp_path / "store", decode_noise)
    drawn = []
    for _ in range(2):
        torch.manual_seed(2)
        drawn.append([samples[0], samples[0]])
    assert drawn[0] == drawn[1] and drawn[0][0] != drawn[0][1]


def test_an_rng_of_the_callers_own_is_kept(tmp_path: Path) -> None:
    own = functools.partial(decode_noise, rng=np.random.default_rng(1))
    assert dataset(tmp_path / "store", own)[0] == np.random.default_rng(1).random()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["global", "argument", "another library"])
def test_transforms_repeat_in_worker_processes_and_at_a_resume(tmp_path: Path, kind: str) -> None:
    transform = GlobalFlip() if kind == "global" else Flip()
    samples = Plain() if kind == "another library" else dataset(tmp_path / "store", transform=transform)
    check(functools.partial(BatchLoader, samples, plan()), ROWS if kind == "argument" else ROWS[2:])
