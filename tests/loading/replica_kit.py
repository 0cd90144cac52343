"""Replicas of a test: in threads of this process, and in processes that are killed."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ais_loader import BatchLoader
from ais_loader.plans import ShufflePlan
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.testing import eventually

COUNT, BATCH, WIDTH = 96, 8, 4096
HELD_AFTER = 6
"""Batches after which replicas that are held wait: a test that kills or stops them comes before their end."""
PLAN = ShufflePlan(COUNT, BATCH, seed=3)
_keys = itertools.count()


class Logged:
    """Sample n is an array of the number n, and a text. Each read is a line with the process and the numbers."""

    def __init__(self, log: Path, width: int = WIDTH, bad: Iterable[int] = ()) -> None:
        self.log, self.width, self.bad = log, width, set(bad)

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, numbers: Iterable[int]) -> list[Any]:
        numbers = list(map(int, numbers))
        with self.log.open("a") as file:
            file.write(json.dumps([os.getpid(), numbers]) + "\n")
        if self.bad.intersection(numbers):
            raise ValueError(f"{numbers} has a bad sample")
        return [(np.full(self.width, number, np.int32), f"text {number}") for number in numbers]

    def reads(self) -> list[tuple[int, list[int]]]:
        """Return the process and the numbers of each read, those of a line that is cut off left out."""
        lines = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        return [(pid, numbers) for pid, numbers in map(json.loads, lines)]


def collate(samples: list[Any], *, rng: Any = None) -> dict[str, Any]:
    arrays, texts = zip(*samples, strict=True)
    return {"x": torch.from_numpy(np.stack(arrays)), "texts": list(texts), "noise": rng.integers(1 << 60, size=3)}


def told(batch: Any) -> Any:
    """Return all that a batch has, for comparisons: bytes, types and shapes."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        data = np.asarray(batch).tobytes()
        return [type(batch).__name__, str(batch.dtype), list(batch.shape), blake2b(data, digest_size=9).hexdigest()]
    if isinstance(batch, dict):
        return {key: told(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [type(batch).__name__, *map(told, batch)]
    if isinstance(batch, (bytes, memoryview)):
        return ["bytes", bytes(batch).hex()]
    return batch


def new_key() -> str:
    return f"test {os.getpid()} {next(_keys)}"


def together(count: int, run: Callable[[tuple[int, int, str]], Any], key: str = "") -> list[Any]:
    """Return what `run` returns for each of several replicas, in threads of this process."""
    key = key or new_key()
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, [(index, count, key) for index in range(count)]))


def alone(dataset: Any, plan: Any, epochs: int = 1, **options: Any) -> list[Any]:
    """Return all that the batches of a loader without replicas have."""
    loader = BatchLoader(dataset, plan, **{"rank": 0, "world_size": 1} | options)
    return [told(batch) for _ in range(epochs) for batch in loader]


def train(folder: Path, given: tuple[int, int, str], epochs: int, options: dict[str, Any], plan: NumberPlan) -> None:
    """Write what each batch has, and the state after it, and change the batch in place.

    The replicas in `options["held"]` go on behind HELD_AFTER batches once there is a file "go".
    """
    index, held, trained = given[0], options.pop("held", ()), 0
    loader = BatchLoader(
        Logged(folder / "reads"), plan, **{"collate": collate, "rank": 0, "world_size": 1, "replicas": given} | options
    )
    with (folder / f"had-{index}").open("w") as had:
        for _ in range(epochs):
            for batch in loader:
                had.write(json.dumps([told(batch), loader.state_dict()]) + "\n")
                had.flush()
                batch["x"].mul_(index + 2)
                batch["noise"] += index
                batch["texts"].clear()
                trained += 1
                if trained == HELD_AFTER and index in held:
                    eventually((folder / "go").exists)
    (folder / f"done-{index}").touch()


@contextmanager
def processes(
    method: str, folder: Path, count: int, epochs: int, options: dict[str, Any], target: Any = train, plan: Any = PLAN
) -> Iterator[list[Any]]:
    context = multiprocessing.get_context(method)
    key = new_key()
    found = [
        context.Process(target=target, args=(folder, (index, count, key), epochs, options, plan))  # type: ignore[attr-defined]
        for index in range(count)
    ]
    try:
        for one in found:
            one.start()
        yield found
    finally:
        for one in found:
            one.kill()
            one.join(180)


def had(folder: Path, index: int) -> list[Any]:
    """Return what a replica has written, without a line that is cut off."""
    path = folder / f"had-{index}"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def drawn_pause_s(draws: random.Random) -> float:
    return draws.choice([0.0, 0.001, 0.005, 0.02, 0.05, 0.1])
