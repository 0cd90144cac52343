"""Sample seeds: random numbers that depend on a sample's place in a run, and not on the worker that decodes it.

A sample's seed is a digest of the plan's seed, the epoch, the step and the place in the batch, as Grain derives it from
a record's place in the stream: a sample that a mixture repeats is augmented differently each time. A function with an
argument `rng` gets a generator of this seed. Worker processes also seed `random`, `numpy` and `torch` with it. Threads
share these generators, and leave them alone.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ais_loader.extras import needs

with needs("torch", "datasets"):
    import torch

BATCH, COLLATE = 0, -1
"""Places that stand for the batch as a whole, and for collating it. Samples have those from 1 on."""


def digest_seed(*parts: Any) -> int:
    """Return a seed of 63 bits that depends on these numbers and strings."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


def drawn_seed() -> int:
    """Return a seed that is drawn from torch's generator, as torch's DataLoader draws one."""
    return int(torch.empty((), dtype=torch.int64).random_())


class SampleSeeds:
    """The seeds of one batch. Use it in one thread."""

    def __init__(self, batch_seed: int, *, owns_process: bool = False) -> None:
        """`owns_process`: whether no other thread of the process uses its global generators."""
        self._batch_seed, self._owns_process = batch_seed, owns_process
        self.seed_at(BATCH)

    def drawn(self, *parts: Any) -> int:
        """Return a number that depends on the batch and on `parts`."""
        return digest_seed(self._batch_seed, *parts)

    def seed_at(self, place: int) -> None:
        """Seed what happens at this place. The next sample is at the one behind it."""
        self.next_place = place + 1
        self._seed = digest_seed(self._batch_seed, place)
        self._rng: np.random.Generator | None = None
        if self._owns_process:
            random.seed(self._seed)
            np.random.seed(self._seed % (1 << 32))
            torch.default_generator.manual_seed(self._seed)  # torch.manual_seed also looks for devices

    def rng(self) -> np.random.Generator:
        """Return the generator of the current place."""
        if self._rng is None:
            self._rng = np.random.default_rng(self._seed)
        return self._rng


class _Current(threading.local):
    seeds: SampleSeeds | None = None


CURRENT = _Current()
"""The seeds of the batch that this thread decodes. None outside a BatchLoader."""


def seed_next_sample() -> None:
    if CURRENT.seeds is not None:
        CURRENT.seeds.seed_at(CURRENT.seeds.next_place)


def read_samples(dataset: Any, numbers: Sequence[Any]) -> list[Any]:
    """Return samples of a dataset of any library."""
    if (many := getattr(dataset, "__getitems__", None)) is not None:
        return list(many(numbers))
    samples = []
    for number in numbers:
        seed_next_sample()
        samples.append(dataset[number])
    return samples


def with_rng(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function, or one that passes it the current generator if it has an argument `rng`."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        _, *others = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # of a builtin, or without arguments
        return function
    is_given = isinstance(function, functools.partial) and "rng" in function.keywords
    takes_rng = any(one.name == "rng" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in others)
    return functools.partial(_call, function) if takes_rng and not is_given else function


def _call(function: Callable[..., Any], value: Any) -> Any:
    """Call a function with the current generator. Outside a BatchLoader, it is seeded by torch's."""
    rng = np.random.default_rng(drawn_seed()) if CURRENT.seeds is None else CURRENT.seeds.rng()
    return function(value, rng=rng)
