"""Stops and deaths of workers, at places that hypothesis draws: the batches are those of one thread, never stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading_kit import MAKERS, N, Numbers
from process_kit import nothing_left, processes_of

from ais_loader import BatchLoader
from ais_loader.testing import throwaway_folder


class Mortal(Numbers):
    """A dataset whose worker dies, once each, at some samples: before or after it has them."""

    def __init__(self, n: int, deaths: Iterable[int], folder: Path) -> None:
        super().__init__(n, 0.001)
        self.deaths, self.folder = set(deaths), folder

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        wanted = list(indices)
        self._die(number for number in wanted if number % 2)
        samples = super().__getitems__(wanted)
        self._die(number for number in wanted if number % 2 == 0)
        return [np.full(3000, sample, np.int32) for sample in samples]

    def _die(self, numbers: Iterable[int]) -> None:
        for number in self.deaths.intersection(numbers):
            try:
                (self.folder / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def numbers_of(batch: list[Any]) -> list[int]:
    assert all((sample == sample[0]).all() for sample in batch)
    return [int(sample[0]) for sample in batch]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_stops_and_deaths_change_no_batch(kind: str, data: st.DataObject) -> None:
    make = MAKERS[kind]
    expected = list(BatchLoader(Numbers(N), make(), threads=1, in_flight=1))
    found: list[Any] = []
    state = None
    with throwaway_folder() as folder, nothing_left():
        deaths = data.draw(st.lists(st.integers(0, N - 1), max_size=3))
        for stop in [*data.draw(st.lists(st.integers(0, 6), max_size=2)), None]:
            loader = BatchLoader(
                Mortal(N, deaths, folder),
                make(),
                workers=data.draw(st.integers(1, 3)),
                in_flight=data.draw(st.integers(1, 6)),
                max_restarts=10,
            )
            if state is not None:
                loader.load_state_dict(state)
            killed_at = data.draw(st.integers(0, 10))
            for at, batch in enumerate(islice(loader, stop)):
                found.append(numbers_of(batch))
                del batch
                if at == killed_at:
                    for process in processes_of(loader):
                        with contextlib.suppress(ValueError):  # it has died by a drawn death, and was replaced
                            process.kill()
            loader.close()
            state = json.loads(json.dumps(loader.state_dict()))
            if len(found) == len(expected):
                break
        del loader
    assert found == expected
