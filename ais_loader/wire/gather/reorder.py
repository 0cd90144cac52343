"""Reorder buffer: merges the frames of several senders into one stream; the core of a batch from several nodes.

Each sender delivers the entries assigned to it. In ordered mode, a frame comes out when all entries before it have come
out. It contains all consecutive entries that have arrived, whichever senders they came from (see `arrived`). Otherwise
frames come out as they came in, with only their indexes changed. A large entry, which comes in pieces, comes out in the
same pieces, one such entry at a time. An entry made by a transform may begin again (`Frame.begins_again`): it then
comes out from its start, whatever part of it has come out before.

Two senders may race for an entry (see `claims`): the one that was asked first, and a rival. If one of them fails and
the failure is not final, the entry is left to the other.

Pure bookkeeping: no I/O, no threads. The caller bounds memory through the senders' credit (`held_bytes_of`). In ordered
mode, the sender of the entry that is due next never has bytes held here, so a window for each sender cannot cause a
deadlock.

Shapes: n entries of the batch, k entries of one frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.wire.frame import MAX_PAYLOAD_BYTES, U8, U32, WIRE_U32, EntryFault, Frame, FrameError
from ais_loader.wire.gather.arrived import MAX_ENTRIES_PER_FRAME, Arrived
from ais_loader.wire.gather.claims import I64, NOBODY, Claims
from ais_loader.wire.gather.frame_edit import Mask, failures, first_unset, subset, torn, without
from ais_loader.wire.generated import ais_batch_pb2 as pb


class Resume(NamedTuple):
    """Where to continue an entry of which the beginning has arrived."""

    offset: int
    checksum: int
    """CRC-32C of the bytes before it."""
    version: str


@dataclass(slots=True)
class _Sender:
    positions: I64
    partial: int | None = None
    """Position of the large entry of which some pieces have arrived."""
    held_bytes: int = 0


@dataclass(slots=True)
class _Partial:
    """A large entry that has partly arrived: the requirements on its next piece."""

    due: int
    entry_size: int
    version: str
    checksum: int


class Reorder:
    """Frames of several senders in; one stream of frames out, ordered or in any order. Belongs to one thread.

    Args:
        n: Number of entries of the batch.
        first_index: Index of entry 0 in frames that come out.
        ordered: Whether frames come out in request order; False lets them out as they come.
        begun: Whether the consumer has the beginning of entry 0. It then gets no piece of another entry before the rest
            of it.

    Each entry must be assigned to one sender at a time, or to two, see `add_sender`. It comes out exactly once,
    complete or failed.
    """

    def __init__(self, n: int, first_index: int = 0, *, ordered: bool = True, begun: bool = False) -> None:
        self.n = n
        self.first_index = first_index
        self.ordered = ordered
        self.received: Mask = np.zeros(n, np.bool_)
        """Entries that have arrived completely, or failed for good: shape (n,)."""
        self.status: U8 = np.zeros(n, np.uint8)
        self.checksum: U32 = np.zeros(n, np.uint32)
        """Checksums of received entries, as in END's digest: shape (n,)."""
        self.held_bytes = 0
        """Payload bytes that have been pushed and not popped."""
        self._arrived = Arrived(n)
        self._claims = Claims(n)
        self._senders: list[_Sender] = []
        self._errors: dict[int, EntryFault] = {}
        self._partials: dict[int, _Partial] = {}
        self._damaged_at: dict[int, int] = {}
        self._pieces: dict[int, deque[tuple[int, Frame]]] = {}  # by position, until the entry has come out
        self._pieced: Mask = np.zeros(n, np.bool_)
        self._any_order: deque[tuple[int, Frame]] = deque()
        # In any order: the large entry that is coming out.
        self._streaming: int | None = 0 if begun and n else None
        self._next = 0
        self._missing = 0

    # -- senders

    def add_sender(self, positions: Sequence[int] | npt.NDArray[np.integer], *, rival: bool = False) -> int:
        """Add a sender, which will deliver these entries as its entries 0, 1, ...; return its number.

        With `rival`, the entries are assigned to one other sender already, and stay assigned to it: see `hedgeable`.

        In ordered mode, positions must ascend. An entry of which pieces have arrived must be the first: the sender
        continues where they end, see `close_sender`. Raises ValueError for entries that have arrived or belong to
        others.
        """
        mine: I64 = np.array(positions, np.int64)
        ascends = bool((mine[1:] > mine[:-1]).all())
        # Not np.unique: it imports a module at its first call, and a fork meanwhile would leave the import lock held.
        ascending = mine if ascends else np.sort(mine)
        distinct = ascends or bool((ascending[1:] != ascending[:-1]).all())
        if len(mine) and (ascending[0] < 0 or ascending[-1] >= self.n or not distinct):
            raise ValueError(f"positions must be distinct, of 0 to {self.n - 1}")
        if self.received[mine].any():
            raise ValueError("an entry has arrived already")
        if self.ordered and not ascends:
            raise ValueError("positions must ascend in ordered mode")
        begun = [at for at in self._partials if at in mine] if self._partials else []
        if begun and begun != [mine[0]]:
            raise ValueError("an entry that goes on in the middle must be the first of its sender")
        self._claims.assign(len(self._senders), mine, rival=rival)
        self._senders.append(_Sender(mine, begun[0] if begun else None))
        return len(self._senders) - 1

    def close_sender(self, sender: int) -> tuple[I64, Resume | None]:
        """End a sender. What has arrived stays.

        Returns its positions that have not arrived completely and that no other sender is to deliver; they may be
        assigned to others. Also returns where to continue the first of them, if it is a large entry of which some
        pieces have arrived.
        """
        it = self._senders[sender]
        left = self._begun_first(sender, self._claims.release(sender, self.missing_of(sender)))
        resume = self.resume_of(it.partial) if it.partial is not None and it.partial in left[:1].tolist() else None
        it.partial = None
        return left, resume

    def missing_of(self, sender: int) -> I64:
        """Return the positions that this sender is still to deliver, perhaps in a race with another."""
        mine = self._senders[sender].positions
        missing: I64 = mine[self._claims.has(sender, mine) & ~self.received[mine]]
        return missing

    def is_owed(self, position: int) -> bool:
        """Return whether a sender is to deliver this entry, or has."""
        return bool(self._claims.sender_of[position] != NOBODY)

    # -- races

    def hedgeable(self, sender: int) -> I64:
        """Return the positions that only this sender is still to deliver, in an order in which a rival may be asked for
        them."""
        missing = self.missing_of(sender)
        return self._begun_first(sender, missing[~self._claims.contested(missing)])

    def _begun_first(self, sender: int, positions: I64) -> I64:
        begun = self._senders[sender].partial
        if begun is None or begun not in positions.tolist():
            return positions
        return np.concatenate([np.array([begun], np.int64), positions[positions != begun]])

    def contested(self, sender: int, frame: Frame) -> Mask:
        """Return which entries of a sender's frame are also to be delivered by another sender: shape (k,)."""
        return self._claims.contested(self._positions(sender, frame))

    def is_beaten(self, sender: int) -> bool:
        """Return whether others have delivered everything that this sender has not, so that it is no longer needed."""
        return bool(self._claims.lost_by(sender)) and not len(self.missing_of(sender))

    def wanted(self, sender: int, frame: Frame) -> Frame | None:
        """Return a sender's frame without entries that another one has delivered or begun to deliver; None if nothing
        is left.

        Raises FrameError for entries that are not the sender's.
        """
        lost = self._claims.lost_by(sender)
        if not lost:
            return frame
        positions = self._positions(sender, frame).tolist()
        late: Mask = np.array([at in lost for at in positions], np.bool_)
        if not late.any():
            return frame
        if frame.completes_entry:
            self._claims.answered_late(sender, set(positions))
        return without(frame, late)

    def resume_of(self, position: int) -> Resume | None:
        """Return where to continue an entry of which pieces have arrived; None for one that must be sent from its
        start."""
        partial = self._partials.get(position)
        return None if partial is None else Resume(partial.due, partial.checksum, partial.version)

    def damaged_further(self, position: int) -> bool:
        """Note that a holder's replica of an entry is damaged. Return whether to ask all holders again: another one has
        reported the same, and the entry has progressed since.

        Pieces are verified before they are sent, so what has arrived is correct, and the next holder continues behind
        it. Holders whose damage lies in that part may have the rest intact. This terminates, because the entry has to
        progress each time.
        """
        offset, before = (self.resume_of(position) or (0,))[0], self._damaged_at.get(position)
        if before is not None and offset <= before:
            return False
        self._damaged_at[position] = offset
        return before is not None

    @property
    def begun(self) -> Collection[int]:
        """Entries of which some pieces, but not all, have arrived."""
        return self._partials.keys()

    def held_bytes_of(self, sender: int) -> int:
        """Return the bytes of this sender that have not been popped. Its credit should be smaller than its window by as
        much."""
        return self._senders[sender].held_bytes

    @property
    def next_sender(self) -> int | None:
        """The sender of the first entry that has not arrived; -1 if it has none, None if all entries have arrived."""
        at = self._missing = first_unset(self.received, self._missing)
        return None if at == self.n else int(self._claims.sender_of[at])

    @property
    def next_rival(self) -> int:
        """The rival sender of that entry; -1 if there is none."""
        return NOBODY if self.next_sender is None else int(self._claims.rival_of[self._missing])

    @property
    def streaming_sender(self) -> int | None:
        """In any order: the sender of the large entry that is coming out, which blocks pieces of others."""
        return None if self._streaming is None else int(self._claims.sender_of[self._streaming])

    @property
    def streaming_rival(self) -> int:
        """The rival sender of that entry; -1 if there is none."""
        return NOBODY if self._streaming is None else int(self._claims.rival_of[self._streaming])

    @property
    def complete(self) -> bool:
        """Whether all entries have arrived; some may wait to be popped."""
        return self.next_sender is None

    # -- in

    def push(self, sender: int, frame: Frame, again: Mask | None = None) -> I64:
        """Add a frame of a sender, whose indexes count the sender's own entries.

        Args:
            again: Shape (k,): failed entries that are not final, because another node is still to be asked.

        Returns the positions of the latter, which now belong to no sender.

        Raises FrameError for entries and pieces that are not due from this sender.
        """
        it = self._senders[sender]
        if not len(frame.index):
            return np.empty(0, np.int64)
        positions = self._positions(sender, frame)
        if not self._claims.has(sender, positions).all() or self.received[positions].any():
            raise FrameError(f"entry {int(frame.index[0])} of a sender came again, or was not asked for any more")
        if (frame.index[1:] <= frame.index[:-1]).any():
            raise FrameError("the entries of a frame do not ascend")
        if again is not None and again.any():
            return self._push_without(sender, frame, positions, again)
        if self._partials and (before := self._partials.get(int(positions[0]))) is not None:
            frame = torn(frame, before.due)
        for loser, at in self._claims.win(sender, positions):
            if self._senders[loser].partial == at:
                self._senders[loser].partial = None
        errors = self._moved_errors(frame, positions)
        if frame.piece is not None or it.partial is not None:
            positions, frame = self._push_begun(sender, frame, positions, errors)
            if not len(positions):
                return positions
        self.status[positions] = frame.status
        self.checksum[positions] = frame.checksum
        self.received[positions] = True
        self._hold(sender, frame.payload_bytes)
        if not self.ordered:
            self._any_order.append((sender, self._moved(frame, positions, errors)))
            return np.empty(0, np.int64)
        self._arrived.put(positions, frame)
        self._errors.update(errors)
        return np.empty(0, np.int64)

    def _positions(self, sender: int, frame: Frame) -> I64:
        mine = self._senders[sender].positions
        if len(frame.index) and int(frame.index.max()) >= len(mine):
            raise FrameError(f"entry {int(frame.index.max())} of a sender that has {len(mine)}")
        positions: I64 = mine[frame.index]
        return positions

    def fail(self, positions: Sequence[int] | npt.NDArray[np.integer], status: int, fault: EntryFault) -> None:
        """Let these entries, which must belong to no sender, come out as failed."""
        self.fail_each(positions, status, dict.fromkeys(map(int, positions), fault))

    def fail_each(
        self, positions: Sequence[int] | npt.NDArray[np.integer], status: int, faults: Mapping[int, EntryFault]
    ) -> None:
        """Like `fail`, with a separate reason for each, by position."""
        at: I64 = np.sort(np.array(positions, np.int64))
        begun: Mask = np.array([position in self._partials for position in at.tolist()], np.bool_)
        parts = [at[begun][k : k + 1] for k in range(int(begun.sum()))]
        parts += [at[~begun][k : k + MAX_ENTRIES_PER_FRAME] for k in range(0, len(at), MAX_ENTRIES_PER_FRAME)]
        for part in parts:
            sender = self.add_sender(part)
            self.push(sender, failures(status, [faults[position] for position in part.tolist()]))

    def _push_without(self, sender: int, frame: Frame, positions: I64, again: Mask) -> I64:
        if frame.size[again].any() or not frame.status[again].all():
            raise ValueError("only failed entries can be asked for again")
        left: I64 = positions[again]
        it = self._senders[sender]
        if it.partial in left.tolist():
            it.partial = None
        left = self._claims.release(sender, left)
        kept = subset(frame, ~again)
        if kept is not None:
            self.push(sender, kept)
        return left

    def _push_begun(
        self, sender: int, frame: Frame, positions: I64, errors: dict[int, EntryFault]
    ) -> tuple[I64, Frame]:
        """Process the part of a frame that belongs to a large entry; return the rest."""
        it, at = self._senders[sender], int(positions[0])
        if it.partial is not None and it.partial not in positions.tolist() and frame.piece is None and not self.ordered:
            return positions, frame
        if it.partial not in (None, at):
            raise FrameError(f"an entry arrived where the next piece of entry {it.partial} was due")
        before, piece = self._partials.get(at), frame.piece
        failed = bool(frame.status[0] != pb.OK)
        if piece is None:
            fits = failed and not frame.size[0]
        elif before is None:
            fits = piece.offset == 0
        elif frame.begins_again:
            fits = True
            self._drop_held(at)
        else:
            fits = (piece.offset, piece.entry_size, piece.version) == (before.due, before.entry_size, before.version)
        if not fits:
            raise FrameError(f"entry {at}: {piece or 'a whole entry'} arrived where {before} was due")
        only: Frame | None = frame
        if len(positions) > 1:  # a failure, then; the bytes belong to the others
            only = subset(replace(frame, content=memoryview(b"")), np.arange(len(positions)) == 0)
        assert only is not None
        self._pieces.setdefault(at, deque()).append((sender, self._moved(only, positions[:1], errors)))
        self._pieced[at] = True
        self._hold(sender, len(only.payload))
        if only.completes_entry:
            self._partials.pop(at, None)
            it.partial = None
            self.status[at], self.checksum[at] = frame.status[0], frame.checksum[0]
            self.received[at] = True
        else:
            assert piece is not None
            due = piece.offset + len(frame.payload)
            self._partials[at] = _Partial(due, piece.entry_size, piece.version, int(frame.checksum[0]))
            it.partial = at
        errors.pop(at + self.first_index, None)
        rest = subset(frame, np.arange(len(positions)) > 0)
        return positions[1:], frame if rest is None else rest

    def _drop_held(self, at: int) -> None:
        """Drop the pieces, not popped yet, of an entry that begins again."""
        for sender, piece in self._pieces[at]:
            self._hold(sender, -len(piece.payload))
        self._pieces[at].clear()

    def _hold(self, sender: int, payload_bytes: int) -> None:
        self._senders[sender].held_bytes += payload_bytes
        self.held_bytes += payload_bytes

    def _moved_errors(self, frame: Frame, positions: I64) -> dict[int, EntryFault]:
        if not frame.errors:
            return {}
        moved = dict(zip(frame.index.tolist(), (positions + self.first_index).tolist(), strict=True))
        return {moved[at]: fault for at, fault in frame.errors.items() if at in moved}

    def _moved(self, frame: Frame, positions: I64, errors: dict[int, EntryFault]) -> Frame:
        """Return the same entries under the indexes that the consumer uses."""
        if errors and len(positions) == 1:
            at = int(positions[0]) + self.first_index
            errors = {at: errors[at]} if at in errors else {}
        return Frame(
            (positions + self.first_index).astype(WIRE_U32),
            frame.size,
            frame.checksum,
            frame.status,
            frame.checksum_kind,
            frame.content,
            frame.piece,
            errors,
        )

    # -- out

    def pop(self, most_bytes: int = MAX_PAYLOAD_BYTES) -> Frame | None:
        """Return the next frame for the consumer; None if nothing can come out yet, or everything has.

        In ordered mode, it contains as many arrived entries as fit into `most_bytes`, or a single one.
        """
        return self._pop_ordered(most_bytes) if self.ordered else self._pop_any()

    def _pop_any(self) -> Frame | None:
        at = self._streaming
        if at is not None and at not in self._pieces and self.received[at]:
            at = None  # it has failed without pieces
        if at is None and not self._any_order and self._pieces:
            at = next(iter(self._pieces))
        self._streaming = at
        if at is not None and self._pieces.get(at):
            frame = self._pop_piece(at)
            if frame.completes_entry:
                self._streaming = None
            return frame
        if not self._any_order:
            return None
        sender, frame = self._any_order.popleft()
        self._hold(sender, -len(frame.payload))
        return frame

    def _pop_piece(self, at: int) -> Frame:
        sender, frame = self._pieces[at].popleft()
        self._hold(sender, -len(frame.payload))
        if frame.completes_entry:
            del self._pieces[at]
        return frame

    def _pop_ordered(self, most_bytes: int) -> Frame | None:
        first = self._next
        if first == self.n:
            return None
        if self._pieced[first]:
            if not self._pieces[first]:
                return None
            frame = self._pop_piece(first)
            if frame.completes_entry:
                self._next += 1
            return frame
        window = slice(first, min(first + MAX_ENTRIES_PER_FRAME, self.n))
        stop = self._arrived.run_stop(first, self.received[window] & ~self._pieced[window], most_bytes)
        if stop == first:
            return None
        self._next = stop
        return self._gather(first, stop)

    def _gather(self, first: int, stop: int) -> Frame:
        size = self._arrived.size[first:stop]
        content = self._arrived.take(first, stop)
        taken = np.bincount(self._claims.sender_of[first:stop], weights=size)
        for sender in np.flatnonzero(taken).tolist():
            self._hold(sender, -int(taken[sender]))
        errors: dict[int, EntryFault] = {}
        if self._errors:
            for at in (np.flatnonzero(self.status[first:stop]) + first + self.first_index).tolist():
                if (fault := self._errors.pop(at, None)) is not None:
                    errors[at] = fault
        return Frame(
            np.arange(self.first_index + first, self.first_index + stop).astype(WIRE_U32),
            size.astype(WIRE_U32),
            self.checksum[first:stop].copy(),
            self.status[first:stop].copy(),
            self._arrived.kind[first:stop].copy(),
            content,
            None,
            errors,
        )


def in_senders(positions: list[int], *, ordered: bool) -> list[list[int]]:
    """Divide entries among as many senders as they need, the one that has been begun first.

    In ordered mode, the positions of a sender ascend. An entry that was begun before earlier ones, by a node that does
    not keep to the order, gets a sender of its own.
    """
    if ordered and len(positions) > 1 and positions[0] > positions[1]:
        return [positions[:1], positions[1:]]
    return [positions]
