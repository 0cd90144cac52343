"""Helpers of the loading tests: datasets and samplers of numbers, and the threads of loaders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import SequentialSampler

from ais_loader import BatchSampler, ShufflePlan
from ais_loader.plans import BucketPlan, MixPlan


class Numbers:
    """A map-style dataset: sample k is k. Some fetches take longer than others, so that batches overtake each other."""

    def __init__(self, n: int, pause_s: float = 0.0) -> None:
        self.n, self.pause_s = n, pause_s

    def __len__(self) -> int:
        return self.n

    def __getitems__(self, indices: Iterable[int]) -> list[int]:
        wanted = list(indices)
        if self.pause_s and wanted and wanted[0] % 3 == 0:
            time.sleep(self.pause_s)
        for at in wanted:
            if not 0 <= at < self.n:
                raise IndexError(f"index {at} of {self.n}")
        return wanted


class Broken(Numbers):
    """A dataset in which some samples cannot be decoded."""

    def __init__(self, n: int, bad: Iterable[int], error: type[Exception] = ValueError) -> None:
        super().__init__(n)
        self.bad, self.error = set(bad), error

    def __getitems__(self, indices: Iterable[int]) -> list[int]:
        wanted = super().__getitems__(indices)
        for at in wanted:
            if at in self.bad:
                raise self.error(f"sample {at} is broken")
        return wanted


class Held(Numbers):
    """A dataset that does not return from sample `at` until it is let go."""

    def __init__(self, n: int, at: int) -> None:
        super().__init__(n)
        self.at = at
        self.reached, self.go = threading.Event(), threading.Event()

    def __getitems__(self, indices: Iterable[int]) -> list[int]:
        wanted = super().__getitems__(indices)
        if self.at in wanted:
            self.reached.set()
            assert self.go.wait(180)
        return wanted


class Steps:
    """A sampler with a state of its own, as samplers with one have it."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Epochs(Steps):
    """A sampler that goes to its next epoch when its last batch is drawn, before the trainer has it."""

    def __init__(self, batches: list[list[int]]) -> None:
        super().__init__(batches)
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < len(self.batches):
            self.at += 1
            batch = self.batches[self.at - 1]
            if self.at == len(self.batches):
                self.at, self.epoch = 0, self.epoch + 1
                yield batch
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


N = 40
LISTS = [list(range(first, min(first + 3, N))) for first in range(0, N, 3)]
MAKERS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: ShufflePlan(N, 3, seed=5),
    "mix": lambda: MixPlan({"a": 15, "b": 25}, {"a": 1, "b": 2}, batch_size=4, at_end="leave"),
    "buckets": lambda: BucketPlan([1 + at % 9 for at in range(N)], [3, 9], [4, 2], block=20),
    "lists": lambda: LISTS,
    "generator": lambda: iter(LISTS),
    "state": lambda: Steps(LISTS),
    "epochs": lambda: Epochs(LISTS),
    "torch": lambda: TorchBatchSampler(SequentialSampler(range(N)), 3, drop_last=False),
    "batch sampler": lambda: BatchSampler(ShufflePlan(N, 3, seed=5), 0, 1),
}
"""Plans and samplers."""


def our_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("ais-loader-d"))
