"""Claims: the lane that is to deliver each entry of a batch, or two that race for it, or none.

Whichever of two delivers any of an entry first has it from then on, so that no entry is ever made of two answers; what
the other one sends of it, once, is passed over.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.wire.gather.frame_edit import Mask

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]

NOBODY = -1


class Claims:
    """Of n entries, by their positions; lanes by their numbers."""

    def __init__(self, n: int) -> None:
        self.lane_of: I32 = np.full(n, NOBODY, np.int32)
        self.rival_of: I32 = np.full(n, NOBODY, np.int32)
        self._raced = False
        self._lost: dict[int, set[int]] = {}

    def give(self, lane: int, positions: I64, *, rival: bool) -> None:
        """To a lane: what nobody has, or with `rival` what one other lane has. Raises ValueError for anything else."""
        if (self.rival_of[positions] != NOBODY).any():
            raise ValueError("two lanes race for an entry already")
        if ((self.lane_of[positions] == NOBODY) == rival).any():
            raise ValueError("an entry belongs to another lane, or one to race for belongs to none")
        (self.rival_of if rival else self.lane_of)[positions] = lane
        self._raced = self._raced or rival

    def has(self, lane: int, positions: I64) -> Mask:
        """Which of these entries the lane is to deliver."""
        found: Mask = self.lane_of[positions] == lane
        return found | (self.rival_of[positions] == lane) if self._raced else found

    def contested(self, positions: I64) -> Mask:
        found: Mask = self.rival_of[positions] != NOBODY
        return found

    def release(self, lane: int, positions: I64) -> I64:
        """Take entries from a lane that has them and delivered nothing; returns those that nobody has now."""
        if not self._raced:
            self.lane_of[positions] = NOBODY
            return positions
        contested = self.contested(positions)
        kept, free = positions[contested], positions[~contested]
        self.lane_of[kept] = np.where(self.lane_of[kept] == lane, self.rival_of[kept], self.lane_of[kept])
        self.rival_of[kept] = NOBODY
        self.lane_of[free] = NOBODY
        return free

    def win(self, lane: int, positions: I64) -> list[tuple[int, int]]:
        """The lane has begun to deliver these entries, which it has; returns who lost which, as (lane, position)."""
        if not self._raced:
            return []
        lost: list[tuple[int, int]] = []
        for at in positions[self.contested(positions)].tolist():
            first, second = int(self.lane_of[at]), int(self.rival_of[at])
            loser = second if first == lane else first
            self.lane_of[at], self.rival_of[at] = lane, NOBODY
            self._lost.setdefault(loser, set()).add(at)
            lost.append((loser, at))
        return lost

    def lost_by(self, lane: int) -> set[int]:
        """Entries that others have delivered, or begun to, and of which this lane may still send its answer."""
        return self._lost.get(lane, set())

    def answered_late(self, lane: int, positions: set[int]) -> None:
        """The lane has answered these after all; a second time would be wrong."""
        self._lost[lane] -= positions
