"""Placement: pure, stable, fair, and moving no more than it must."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire import placement
from ais_loader.wire.placement import Candidate, object_hash, owner, owners, ranked
from tests.table import table

BUCKET = bytes(range(16))


def candidates(count: int, weight: float = 1.0) -> list[Candidate]:
    rng = random.Random(count)
    return [Candidate(uuid.UUID(int=rng.getrandbits(128)).bytes, weight) for _ in range(count)]


NAMES = [f"train/{at:05d}.flac" for at in range(20_000)]


def test_the_owners_of_known_objects_never_change() -> None:
    """Part of the wire contract: data on drives was placed by these very numbers."""
    drives = [Candidate(bytes([at]) * 16) for at in range(5)]
    assert object_hash(BUCKET, "a") == 0x7EEE9871CC369C8F
    assert [owner(BUCKET, name, drives) for name in ("a", "b", "train/0001.wav", "é", "音声/x")] == [0, 0, 0, 2, 2]
    assert ranked(BUCKET, "a", drives) == [0, 1, 2, 3, 4]


@given(name=st.text(max_size=50), seed=st.integers(0, 2**32), count=st.integers(1, 8))
def test_the_order_of_candidates_does_not_matter(name: str, seed: int, count: int) -> None:
    if any("\ud800" <= character <= "\udfff" for character in name):
        return
    drives = candidates(count)
    shuffled = random.Random(seed).sample(drives, count)
    in_order = [drives[at].uuid for at in ranked(BUCKET, name, drives)]
    assert in_order == [shuffled[at].uuid for at in ranked(BUCKET, name, shuffled)]
    assert shuffled[owner(BUCKET, name, shuffled)].uuid == in_order[0]
    assert sorted(in_order) == sorted(drive.uuid for drive in drives)


@table("weights", [[1.0], [1.0] * 2, [1.0] * 7, [2.0, 1.0], [0.0, 1.0, 1.0]])
def test_owners_of_many_names_are_those_of_each(weights: list[float]) -> None:
    drives = [Candidate(one.uuid, weight) for one, weight in zip(candidates(len(weights)), weights, strict=True)]
    names = [*NAMES[:3000], "é", "音声/x"]
    assert owners(BUCKET, map(str.encode, names), drives) == [owner(BUCKET, name, drives) for name in names]


def test_candidates_that_draw_nearly_alike_are_ranked_as_one_name_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_NEARLY_ALIKE", 1 << 63)
    drives = candidates(3)
    assert owners(BUCKET, map(str.encode, NAMES[:500]), drives) == [owner(BUCKET, name, drives) for name in NAMES[:500]]


def test_equal_candidates_own_equal_shares() -> None:
    drives = candidates(5)
    shares = Counter(owner(BUCKET, name, drives) for name in NAMES)
    # Five standard deviations of a binomial with p = 1/5.
    tolerance = 5 * math.sqrt(len(NAMES) * 0.2 * 0.8)
    assert all(abs(shares[at] - len(NAMES) / 5) < tolerance for at in range(5))


def test_shares_follow_the_weights() -> None:
    weights = [1.0, 2.0, 4.0, 0.5]
    drives = [Candidate(drive.uuid, weight) for drive, weight in zip(candidates(4), weights, strict=True)]
    shares = Counter(owner(BUCKET, name, drives) for name in NAMES)
    for at, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(shares[at] - len(NAMES) * share) < 5 * math.sqrt(len(NAMES) * share * (1 - share))


def test_a_candidate_without_weight_owns_nothing() -> None:
    drives = [*candidates(3), Candidate(b"z" * 16, 0.0)]
    assert 3 not in {owner(BUCKET, name, drives) for name in NAMES[:1000]}
    assert 3 not in ranked(BUCKET, "a", drives)


def test_only_objects_of_a_candidate_that_goes_move() -> None:
    drives = candidates(6)
    left = drives[:2] + drives[3:]
    for name in NAMES[:3000]:
        before = drives[owner(BUCKET, name, drives)]
        after = left[owner(BUCKET, name, left)]
        assert after == before or before == drives[2]


def test_the_same_name_in_another_bucket_is_placed_independently() -> None:
    drives = candidates(4)
    other = bytes(16)
    same = sum(owner(BUCKET, name, drives) == owner(other, name, drives) for name in NAMES[:4000])
    assert abs(same - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_without_candidates_nobody_owns() -> None:
    for drives in ([], [Candidate(b"z" * 16, 0.0)]):
        with pytest.raises(ValueError, match="no candidate"):
            owner(BUCKET, "a", drives)


@table(("identity", "weight"), [(b"short", 1.0), (b"z" * 16, -1.0), (b"z" * 16, math.inf), (b"z" * 16, math.nan)])
def test_a_candidate_that_cannot_be_is_refused(identity: bytes, weight: float) -> None:
    with pytest.raises(ValueError, match="need a 16-byte uuid"):
        Candidate(identity, weight)
