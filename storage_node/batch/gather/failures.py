"""Failure accounting of a gathered batch: the replicas left to try for each entry, the error finally reported for it,
and the limit beyond which the whole batch fails.

A batch may be resumed within its first entry, of which the client already has the beginning. The reorder buffer does
not know about that: to it, the entry begins where the client's part ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ais_loader.errors import EntryFailed, LoaderError, ObjectReplaced
from ais_loader.wire.frame import EntryFault, Frame
from ais_loader.wire.gather.reorder import Reorder, Resume
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch.admission import is_of_groups
from storage_node.batch.gather.routing import ReplicaRouting
from storage_node.batch.resources import BatchResources
from storage_node.store.places import without_places

MAY_BE_BETTER_ELSEWHERE = (pb.NOT_FOUND, pb.CORRUPT, pb.TIMEOUT, pb.UNAVAILABLE)
"""Statuses for which another holder is asked. If several holders fail, the status that comes last in this list is
reported; but if one of them has a newer version than the requested one, the entry was replaced, whatever others
report."""
_WEIGHT: dict[int, int] = {status: weight for weight, status in enumerate(MAY_BE_BETTER_ELSEWHERE)}
_HEAVIEST = 9
_NAMES_IN_MESSAGE = 5


class Failures:
    """Failures of one batch. `fail` is called, possibly several times, when a limit has been exceeded."""

    def __init__(
        self,
        resources: BatchResources,
        request: pb.BatchRequest,
        routing: ReplicaRouting,
        fail: Callable[[LoaderError], None],
    ) -> None:
        self._resources = resources
        self._request, self._routing, self._fail = request, routing, fail
        self._is_limited = not is_of_groups(request.bucket[0], request.name[:1])  # others take the place of fragments
        self.worst: dict[int, tuple[int, EntryFault]] = {}
        """For each position: the most severe status that a node has reported, with its reason."""
        self._tried: dict[int, set[int]] = {}
        self._recoveries = self._soft_errors = 0

    def note(self, position: int, status: int, fault: EntryFault) -> None:
        node = self._resources.node
        if node.store.hides_places:
            view = node.membership.view
            endpoints = [one.peer_endpoint for one in view.nodes] if view is not None else []
            fault = replace(fault, message=without_places(fault.message, endpoints))
        before = self.worst.get(position)
        if before is None or _weight(status, fault) > _weight(*before):
            self.worst[position] = status, fault

    def try_next_holder(self, position: int, node: int, *, again: bool) -> bool:
        """Remove `node` from an entry that it did not deliver; return whether a node is left.

        Args:
            again: Ask `node` itself again after all others.
        """
        left = self._routing.left[position]
        tried = self._tried.setdefault(position, set())
        tried.add(node)
        if node in left:
            left.remove(node)
            if again:
                left.append(node)
        if not left:
            return False
        if left[0] not in tried:  # retrying unreachable nodes is limited by time instead
            self._recoveries += 1
            self._resources.recoveries += 1
            if self._is_limited and self._recoveries > self._resources.node.config.reads.max_recoveries:
                self._fail(self._too_many("had to be asked of another node", "max_recoveries"))
        return True

    def pass_over(self, position: int, node: int) -> None:
        """Note that `node` lacks an entry that has also been requested from another node."""
        self._tried.setdefault(position, set()).add(node)
        left = self._routing.left[position]
        if node in left and len(left) > 1:
            left.remove(node)

    def count_soft_error(self) -> None:
        """Count an entry that fails finally."""
        self._soft_errors += 1
        self._resources.soft_errors += 1
        if self._is_limited and self._soft_errors > self._resources.node.config.reads.max_soft_errors:
            self._fail(self._too_many("failed", "max_soft_errors"))

    def _too_many(self, what: str, setting: str) -> EntryFailed:
        worst = [
            f"{self._request.name[position]!r} ({fault.message or pb.Status.Name(status)})"
            for position, (status, fault) in list(self.worst.items())[:_NAMES_IN_MESSAGE]
        ]
        limit = getattr(self._resources.node.config.reads, setting)
        return EntryFailed(f"more than {limit:,} entries ({setting}) {what}, among them {', '.join(worst)}")


def _weight(status: int, fault: EntryFault) -> int:
    return _HEAVIEST if fault.kind == ObjectReplaced.kind else _WEIGHT.get(status, _HEAVIEST)


class Resumed:
    """The part that the client of a request already has; usually nothing."""

    def __init__(self, request: pb.BatchRequest) -> None:
        self._request = request
        self._skipped_bytes = request.resume_offset if len(request.name) else 0

    def inward(self, frame: Frame, first_position: int) -> Frame:
        """Convert a frame of a sender, whose entry 0 is at `first_position`, for the reorder buffer."""
        is_piece = frame.piece is not None and first_position == 0 and not frame.index[0]
        return _moved(frame, -self._skipped_bytes) if is_piece and not frame.begins_again else frame

    def accepted(self, frame: Frame, first_position: int) -> None:
        """Note a frame that the reorder buffer has taken. The client's part is void if its entry begins again."""
        if frame.begins_again and first_position == 0 and not frame.index[0]:
            self._skipped_bytes = 0

    def outward(self, frame: Frame) -> Frame:
        """Convert a frame of the reorder buffer for the client."""
        if self._skipped_bytes and frame.piece is not None and frame.index[0] == self._request.first_index:
            return _moved(frame, self._skipped_bytes)
        return frame

    def of(self, position: int, reorder: Reorder) -> Resume | None:
        """Return where to continue an entry of which the client, or the reorder buffer, has the beginning."""
        found, request = reorder.resume_of(position), self._request
        if found is not None:
            return found if position else found._replace(offset=found.offset + self._skipped_bytes)
        if position or not self._skipped_bytes:
            return None
        return Resume(request.resume_offset, request.resume_checksum, request.resume_version)

    def partly_received(self, positions: list[int], reorder: Reorder) -> set[int]:
        """Return those of these entries that are continued in the middle."""
        if not self._skipped_bytes and not reorder.begun:
            return set()
        return {position for position in positions if self.of(position, reorder) is not None}


def _moved(frame: Frame, by_bytes: int) -> Frame:
    assert frame.piece is not None
    piece = replace(frame.piece, offset=frame.piece.offset + by_bytes, entry_size=frame.piece.entry_size + by_bytes)
    return replace(frame, piece=piece)
