"""Identities that decide where objects are: the same ones in each run, and each once in a run."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from tests import seeded_draws

DRAWS = 100


def drawn() -> list[uuid.UUID]:
    return [uuid.uuid4() for _ in range(DRAWS)]


def test_they_repeat_by_seed_and_by_who_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, value in [("_forks", 0), ("SEED", -1), ("_drawing", ["another test"]), ("_process", "0.1")]:
        with monkeypatch.context() as patch:
            patch.setattr(seeded_draws, name, value)
            for _ in range(2):
                patch.setattr(seeded_draws, "_drawn", Counter())  # a new run
                found.append(drawn())
    assert found[::2] == found[1::2]
    assert len({identity for drawn in found for identity in drawn}) == 4 * DRAWS


def test_a_test_that_is_run_again_draws_others() -> None:
    first = drawn()
    assert not {*first} & {*drawn()}


def test_what_places_nothing_stays_random(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Counter(seeded_draws._drawn)
    exec("import uuid\nuuid.uuid4()", {"__name__": "ais_loader.objects.multipart"})
    assert seeded_draws._drawn == before
