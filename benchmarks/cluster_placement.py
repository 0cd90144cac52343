"""Balance of placement: how evenly it fills 1,000 hosts, and what it moves.

`ais_loader.wire.cluster_map.HostPlacement` itself, over drawn hashes.

HostPlacement sees an object only as 64 bits. `uniformity` shows on real names that those are as good as drawn at
random, so objects can be drawn. Scoring every host for 10^8 objects would be 10^11 scores (a quarter of an hour of this
machine); instead a sample is placed, compared host by host with what its weight promises (a chi-square test, which
would find shares that differ from their promise), and 10^8 objects are then drawn from those shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from ais_loader.wire.cluster_map import HostPlacement, Place, object_hashes

CHUNK = 1024
"""Objects placed at once: their scores for 1,000 hosts are 8 MB."""
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def placement(weights: F64) -> HostPlacement:
    """One node on each host; a weight of 0 leaves its host out."""
    return HostPlacement(
        [
            Place(at, f"host-{at:04d}", xxhash.xxh3_64_intdigest(f"node-{at:04d}".encode()), float(weight))
            for at, weight in enumerate(weights)
            if weight
        ]
    )


def _chunks(objects: int, seed: int) -> list[tuple[int, int]]:
    return [(seed * 1_000_003 + at, min(CHUNK, objects - at)) for at in range(0, objects, CHUNK)]


def shares(weights: F64, objects: int, seed: int) -> I64:
    """How many of `objects` drawn objects each host owns."""
    places, counted = placement(weights), np.zeros(len(weights), np.int64)
    for chunk_seed, count in _chunks(objects, seed):
        hashes = np.random.default_rng(chunk_seed).integers(0, 2**64, count, np.uint64)
        counted += np.bincount(places.owners(hashes, 1)[:, 0], minlength=len(weights))
    return counted


@dataclass(frozen=True, slots=True)
class Movement:
    """Fractions of all objects."""

    moved: float
    needed: float
    """The least that any placement with these weights could move."""
    needless: float
    """Moved from a host whose share did not fall, or to one whose share did not rise."""


def movement(before: F64, after: F64, objects: int, seed: int) -> Movement:
    """What changes owner when weights change. The shorter list is filled up with hosts that were not there."""
    hosts = max(len(before), len(after))
    old, new = (np.pad(weights, (0, hosts - len(weights))) for weights in (before, after))
    change = new / new.sum() - old / old.sum()
    places = placement(old), placement(new)
    moved = needless = 0
    for chunk_seed, count in _chunks(objects, seed):
        hashes = np.random.default_rng(chunk_seed).integers(0, 2**64, count, np.uint64)
        was, now = (each.owners(hashes, 1)[:, 0] for each in places)
        moves = was != now
        moved += int(moves.sum())
        # Rendezvous: an object leaves only a host whose own weight fell, or goes to one whose own weight rose.
        needless += int((moves & (new[was] >= old[was]) & (new[now] <= old[now])).sum())
    return Movement(moved / objects, float(change[change > 0].sum()), needless / objects)


def uniformity(names: int) -> tuple[float, float, float]:
    """Of the hashes of that many real names, in standard deviations from what uniform hashes would give.

    Chi-square over 4,096 cells of their high bits, the same of the low bits, and the worst of the 64 bits'.
    """
    made = [f"train/en/{number // 5000:04d}/common_voice_{number:08d}.wav" for number in range(names)]
    hashes = object_hashes(bytes(range(16)), made)
    found = []
    for cells in (hashes >> np.uint64(52), hashes & np.uint64(4095)):
        counts = np.bincount(cells.astype(np.int64), minlength=4096)
        chi_square = float(((counts - names / 4096) ** 2).sum() / (names / 4096))
        found.append((chi_square - 4095) / (2 * 4095) ** 0.5)
    bits = [int(((hashes >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    worst = max(abs(count - names / 2) / (names / 4) ** 0.5 for count in bits)
    return found[0], found[1], worst


@dataclass(frozen=True, slots=True)
class Balance:
    objects: int
    chi_square_sd: float
    """Sampled shares against the weights: standard deviations from what chance gives; over about 3 would be a fault."""
    sampled_max: float
    sampled_max_expected: float
    """The same of perfectly drawn owners."""
    full_sd: float
    """Of a host's load over its due, with 10^8 objects."""
    full_max: float
    full_min: float


def balance(weights: F64, objects: int, seed: int, full: int = 10**8) -> Balance:
    due = weights / weights.sum()
    counted = shares(weights, objects, seed)
    chi_square = float(((counted - objects * due) ** 2 / (objects * due)).sum())
    degrees = len(weights) - 1
    random = np.random.default_rng(seed)
    drawn = [float((random.multinomial(objects, due) / (objects * due)).max()) for _ in range(50)]
    loads = random.multinomial(full, due) / (full * due)
    return Balance(
        objects,
        (chi_square - degrees) / (2 * degrees) ** 0.5,
        float((counted / (objects * due)).max()),
        float(np.mean(drawn)),
        float(loads.std()),
        float(loads.max()),
        float(loads.min()),
    )
