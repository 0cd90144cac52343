"""Groups of steps: G successive steps form one update, whatever number of ranks takes turns in them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.plans.permutation import Numbers

Tail: TypeAlias = Literal["repeat", "drop", "uneven"]
"""Choice of what ranks do at the end of an epoch whose steps they cannot divide equally."""
TAILS = ("repeat", "drop", "uneven")


def check_world_size(group: int, world_size: int, step: int = 0) -> None:
    """Raise InvalidRequest if these ranks cannot take equal turns in every group of `group` steps from a step on."""
    if group % world_size:
        possible = ", ".join(str(size) for size in range(1, group + 1) if not group % size)
        raise InvalidRequest(
            f"world_size={world_size}: {group} steps of the plan form one update, which these ranks cannot divide "
            f"equally; possible world sizes are {possible}"
        )
    if step % group % world_size:
        raise InvalidRequest(
            f"world_size={world_size}: the position, step {step}, is inside an update of {group} steps, and its rest "
            "cannot be divided equally; resume with the former world size, or from the end of an update"
        )


def whole_number(owner: str, name: str, value: Any, least: int, most: int = 2**62) -> int:
    """Return an argument as an int. Raises TypeError, and InvalidRequest if it is not `least` to `most`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; need an int")
    number = int(value.__index__())
    if not least <= number <= most:
        raise InvalidRequest(
            f"{owner}: {name}={number}: need "
            + (f"at least {least}" if number < least and most == 2**62 else f"{least} to {most}")
        )
    return number


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
