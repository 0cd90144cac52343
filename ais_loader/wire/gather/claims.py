"""Claims: which sender is to deliver each entry of a batch; there may be two that race for it, or none.

The first of two senders to deliver any part of an entry owns it from then on, so that no entry is made of two
responses. What the other one sends of it, once, is ignored.
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
    """Claims on n entries, by their positions; senders by their numbers."""

    def __init__(self, n: int) -> None:
        self.sender_of: I32 = np.full(n, NOBODY, np.int32)
        self.rival_of: I32 = np.full(n, NOBODY, np.int32)
        self._raced = False
        self._lost: dict[int, set[int]] = {}

    def assign(self, sender: int, positions: I64, *, rival: bool) -> None:
        """Give entries to a sender: unclaimed ones, or, with `rival`, entries of one other sender. Raises ValueError
        otherwise."""
        if (self.rival_of[positions] != NOBODY).any():
            raise ValueError("two senders race for an entry already")
        if ((self.sender_of[positions] == NOBODY) == rival).any():
            raise ValueError("an entry belongs to another sender, or one to race for belongs to none")
        (self.rival_of if rival else self.sender_of)[positions] = sender
        self._raced = self._raced or rival

    def has(self, sender: int, positions: I64) -> Mask:
        """Return which of these entries the sender is to deliver."""
        found: Mask = self.sender_of[positions] == sender
        return found | (self.rival_of[positions] == sender) if self._raced else found

    def contested(self, positions: I64) -> Mask:
        found: Mask = self.rival_of[positions] != NOBODY
        return found

    def release(self, sender: int, positions: I64) -> I64:
        """Take entries from a sender that has delivered nothing of them; return those that are unclaimed now."""
        if not self._raced:
            self.sender_of[positions] = NOBODY
            return positions
        contested = self.contested(positions)
        kept, free = positions[contested], positions[~contested]
        self.sender_of[kept] = np.where(self.sender_of[kept] == sender, self.rival_of[kept], self.sender_of[kept])
        self.rival_of[kept] = NOBODY
        self.sender_of[free] = NOBODY
        return free

    def win(self, sender: int, positions: I64) -> list[tuple[int, int]]:
        """Record that the sender has begun to deliver these entries; return the losers, as (sender, position)."""
        if not self._raced:
            return []
        lost: list[tuple[int, int]] = []
        for at in positions[self.contested(positions)].tolist():
            first, second = int(self.sender_of[at]), int(self.rival_of[at])
            loser = second if first == sender else first
            self.sender_of[at], self.rival_of[at] = sender, NOBODY
            self._lost.setdefault(loser, set()).add(at)
            lost.append((loser, at))
        return lost

    def lost_by(self, sender: int) -> set[int]:
        """Return entries that other senders deliver, and that this sender may still send once."""
        return self._lost.get(sender, set())

    def answered_late(self, sender: int, positions: set[int]) -> None:
        """Record that the sender has sent these entries after all; a second time would be an error."""
        self._lost[sender] -= positions
