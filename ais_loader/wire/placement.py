"""Placement: which of several drives (or nodes, or hosts) owns an object, as a pure function of their identities.

Rendezvous hashing: every candidate draws a number from the object and its own identity, and the highest wins. When a
candidate is added or removed, only the objects that it wins or had move. Clients and nodes must compute the same owner,
so the hash and its inputs are part of the wire contract.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); weights as in Schindelhauer
and Schomaker, "Weighted distributed hash tables" (2005).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

_NEARLY_ALIKE = 1 << 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place that can own objects. `weight` is relative, usually its capacity; 0 owns nothing."""

    uuid: bytes
    weight: float = 1.0

    def __post_init__(self) -> None:
        if len(self.uuid) != 16 or not 0 <= self.weight < math.inf:
            raise ValueError(f"need a 16-byte uuid and a finite weight >= 0, got {self}")


def object_hash(bucket_uuid: bytes, name: str) -> int:
    """64-bit identity of an object for placement."""
    return xxhash.xxh3_64_intdigest(bucket_uuid + name.encode())


def _score(object_hash_value: int, candidate: Candidate) -> float:
    drawn = xxhash.xxh3_64_intdigest(candidate.uuid, seed=object_hash_value)
    # -weight / ln(u), with u uniform in (0, 1): the odds of the highest score are proportional to the weights.
    # 52 bits leave room for the half that keeps u inside the open interval.
    return -candidate.weight / math.log(((drawn >> 12) + 0.5) / 2.0**52)


def ranked(bucket_uuid: bytes, name: str, candidates: Sequence[Candidate]) -> list[int]:
    """Return the positions of the candidates that may own the object, best first. Ties go to the smaller uuid."""
    value = object_hash(bucket_uuid, name)
    eligible = [position for position, candidate in enumerate(candidates) if candidate.weight > 0]
    return sorted(eligible, key=lambda at: (-_score(value, candidates[at]), candidates[at].uuid))


def owners(bucket_uuid: bytes, names: Iterable[bytes], candidates: Sequence[Candidate]) -> list[int]:
    """Return the first of `ranked` for each name, in UTF-8. It is faster for candidates of one weight above 0."""
    weights = {candidate.weight for candidate in candidates}
    if len(weights) > 1 or not all(weights):
        return [ranked(bucket_uuid, name.decode(), candidates)[0] for name in names]
    found = []
    draw, uuids = xxhash.xxh3_64_intdigest, [candidate.uuid for candidate in candidates]
    for name in names:
        seed = draw(bucket_uuid + name)
        # A score grows with what the candidate draws. What is drawn nearly alike may have equal scores.
        drawn = [draw(uuid, seed=seed) for uuid in uuids]
        most = max(drawn)
        if sum(most - one < _NEARLY_ALIKE for one in drawn) > 1:
            found.append(ranked(bucket_uuid, name.decode(), candidates)[0])
        else:
            found.append(drawn.index(most))
    return found


def owner(bucket_uuid: bytes, name: str, candidates: Sequence[Candidate]) -> int:
    """Return the position of the candidate that owns the object.

    Raises ValueError if no candidate has a weight.
    """
    if len(candidates) == 1 and candidates[0].weight > 0:
        return 0
    order = ranked(bucket_uuid, name, candidates)
    if not order:
        raise ValueError("no candidate with a weight above 0")
    return order[0]
