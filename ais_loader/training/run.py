"""Run: one iteration's share of a plan, and the place of this process among those that share it."""

from __future__ import annotations

import os

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.training.plan import Position, WorkerShare

with needs("torch", "datasets"):
    import torch.distributed
    from torch.utils.data import get_worker_info


def is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def process_place() -> tuple[int, int]:
    """Return (rank, world_size) of this process, from torch.distributed or else from the environment.

    Raises InvalidRequest if the environment sets only one of them, or if they are not numbers.
    """
    if is_distributed():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not rank and not world_size:
        return 0, 1
    try:
        return int(rank), int(world_size)
    except ValueError:
        raise InvalidRequest(f"environment: RANK={rank!r}, WORLD_SIZE={world_size!r}: need two numbers") from None


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
