"""Balance: division of a group's samples into batches with nearly equal totals."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.plans.permutation import Numbers

Balance: TypeAlias = Literal["linear", "quadratic"]
BALANCES = ("linear", "quadratic")
TOLERANCE = 0.02
"""Difference of totals, as a part of their mean, at which the search for a better division ends."""
_EXCHANGES_PER_BATCH = 8
_MAX_COMPARED = 1 << 23
"""Maximum number of pairs of units to compare. It bounds the time of a group with totals that no division evens out."""
_LEAST_GAIN = 1e-12


def balanced(costs: npt.NDArray[np.float64], parts: int) -> list[Numbers]:
    """Divide m units into `parts` batches of at most ceil(m / parts) units.

    Rows of one unit for each batch are dealt from the largest unit on: the batch with the least total gets the largest
    one. Then, the batch that is farthest from the mean exchanges units with others, while this brings totals closer. If
    it cannot, the next farthest one does. The work is bounded.

    Shapes: costs (measures, m), m >= parts. The last measure decides the order. Returns the places of each batch's
    units.
    """
    count = costs.shape[1]
    if parts == 1:
        return [np.arange(count)]
    scaled = np.concatenate(
        [costs / np.maximum(costs.sum(axis=1, keepdims=True) / parts, 1e-300), [[0]] * len(costs)], 1
    )
    order = np.argsort(-costs[-1], kind="stable")
    totals = np.zeros((len(costs), parts))
    batches = np.full((-(-count // parts), parts), count)  # the place `count` stands for no unit
    for row, first in zip(batches, range(0, count, parts), strict=True):
        units = order[first : first + parts]
        lightest = np.argsort(totals[-1], kind="stable")[: len(units)]
        row[lightest] = units
        totals += scaled[:, row]
    compared, work = 0, len(batches) * batches.size
    for _ in range(_EXCHANGES_PER_BATCH * parts):
        spreads = np.ptp(totals, axis=1)
        if spreads.max() <= TOLERANCE:
            break
        farthest = np.argsort(-np.abs(totals[spreads.argmax()] - 1), kind="stable")
        for column in farthest[: (_MAX_COMPARED - compared) // work]:
            compared += work
            moved = scaled[:, batches[:, column], None, None] - scaled[:, None, batches]
            apart = (totals[:, column, None] - totals)[:, None, None]
            # Decrease of the sum of squared distances from the mean. Within a batch, it is never above 0.
            gains = (moved * apart - moved**2).sum(axis=0)
            own, row, other = np.unravel_index(int(gains.argmax()), gains.shape)
            if gains[own, row, other] > _LEAST_GAIN:
                break
        else:
            break
        exchanged = moved[:, own, row, other]
        totals[:, column] -= exchanged
        totals[:, other] += exchanged
        one, two = (own, column), (row, other)
        batches[one], batches[two] = batches[two], batches[one]
    return [column[column < count] for column in batches.T]
