"""Run: one iteration's share of a plan."""

from __future__ import annotations

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.training.plan import Position, WorkerShare

with needs("torch", "datasets"):
    from torch.utils.data import get_worker_info


class Run:
    """One iteration's share of the plan, and how much of it has been delivered."""

    def __init__(
        self,
        start: Position,
        resumed: WorkerShare | None,
        rank: int,
        world_size: int,
        worker: int,
        num_workers: int,
        mine: range,
    ) -> None:
        self.start = start
        self.mine = mine
        self.rank, self.world_size = rank, world_size
        self.worker, self.num_workers = worker, num_workers
        self.is_workers = resumed is not None or get_worker_info() is not None
        self.delivered = 0
        if resumed is not None:
            share = WorkerShare(worker, num_workers, world_size, resumed.batches)
            if share != resumed:
                raise InvalidRequest(
                    f"the state of worker {resumed.worker} of {resumed.num_workers} under {resumed.world_size} ranks "
                    f"cannot resume worker {worker} of {num_workers} under {world_size}; a state of BatchLoader could"
                )
            self.delivered = resumed.batches

    @property
    def left(self) -> range:
        """The steps that are left to deliver here."""
        return self.mine[self.delivered :]

    def position(self, batches: int) -> Position:
        """Return the position after so many batches. Ranks take turns, so each one here stands for a whole round."""
        return Position(self.start.epoch, self.start.step + batches * self.world_size)

    def share(self) -> WorkerShare:
        return WorkerShare(self.worker, self.num_workers, self.world_size, self.delivered)
