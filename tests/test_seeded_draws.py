"""Identities that decide where objects are: the same ones in each run, and each once in a run."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest

from ais_loader.wire.bucket_uuid import created_ns, draw_bucket_uuid
from storage_node.store.store import Store
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


def test_identities_of_buckets_repeat_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for run in range(2):
        monkeypatch.setattr(seeded_draws, "_drawn", Counter())
        with Store.open([tmp_path / f"{run}"], mode="a") as store:
            found.append([store.create_bucket(name).uuid for name in ("a", "b")])
    assert found[0] == found[1] and len({*found[0]}) == 2
    groups = [draw_bucket_uuid() for _ in range(2)]
    assert groups[0] != groups[1] and created_ns(groups[0].hex()) > created_ns(found[0][0])
