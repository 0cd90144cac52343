"""Batch sampler: the steps of a plan for torch's own DataLoader, and for what is built on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.training.number_batches import as_integers
from ais_loader.training.plan_position import PlanPosition, PlanRun

with needs("torch", "BatchSampler"):
    from torch.utils.data.dataloader import _BaseDataLoaderIter


def _check_caller(caller: FrameType, position: PlanPosition) -> None:
    """Learn the dataset from the DataLoader that begins an iteration.

    Raises InvalidRequest if it does not fit the plan or the loaded state, if accelerate divides the steps of one rank
    once more, and if a StatefulDataLoader, which only has an assertion for it, has a state of other workers.
    """
    user, loader = caller.f_locals.get("self"), caller.f_locals.get("loader")
    if isinstance(user, _BaseDataLoaderIter):
        position.set_dataset(user._dataset)
    shards = getattr(sys.modules.get("accelerate.data_loader"), "BatchSamplerShard", ())
    if isinstance(user, shards) and user.num_processes > 1 and position.place()[1] > 1:
        raise InvalidRequest(
            "accelerate would divide the steps of each rank among all ranks once more: do not pass a DataLoader with a "
            "BatchSampler to prepare(). It already reads the steps of its own rank"
        )
    if isinstance(state := getattr(loader, "next_iter_state", None), Mapping):
        saved = state.get("_snapshot", {}).get("_main_snapshot", {}).get("_num_workers", 0)
        if saved != (workers := getattr(loader, "num_workers", saved)):
            raise InvalidRequest(
                f"the StatefulDataLoader has num_workers={workers}, and its state is one of num_workers={saved}: "
                "torchdata resumes with the same number. Save BatchSampler.state_dict(batches) for any number"
            )


class BatchSampler:
    """The batches of a plan, as `batch_sampler` of a DataLoader over the dataset that the plan's numbers count.

    A MapDataset fetches each batch with one request. Ranks and epochs work as in a BatchLoader: each rank has its own
    steps, the next iteration reads the next epoch, and any number of ranks that divides the plan's group may resume.
    Do not pass the loader to accelerate's `prepare`, which would divide the steps of a rank once more.

    A DataLoader with workers draws batches ahead of the trainer. `state_dict(batches)` is the position of the trainer
    if it counts its batches. torchdata's StatefulDataLoader keeps the right position by itself.

    From the first iteration on, the sampler knows the dataset of its DataLoader. Iterating raises InvalidRequest if the
    dataset has another number of samples than the plan, or other entries than the state that was loaded.
    """

    def __init__(self, plan: NumberPlan, rank: int | None = None, world_size: int | None = None) -> None:
        """
        Args:
            plan: A plan of `ais_loader.plans`, over the numbers of the loader's dataset.
            rank, world_size: See BatchLoader.

        Raises InvalidRequest, TypeError.
        """
        if not isinstance(plan, NumberPlan):
            raise TypeError(f"BatchSampler: plan is a {type(plan).__name__}; need a plan of ais_loader.plans")
        self.position = PlanPosition(plan, None, rank, world_size)

    def __repr__(self) -> str:
        return f"BatchSampler({self.position.plan!r})"

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch. Raises TypeError if the epoch has no end."""
        return len(self.position)

    def __iter__(self) -> Iterator[list[Any]]:
        """Return the batches that are left in the epoch: lists of numbers or, of a PackPlan, of packs."""
        _check_caller(sys._getframe(1), self.position)
        return self._hand_out(self.position.begin())

    def _hand_out(self, run: PlanRun) -> Iterator[list[Any]]:
        for _, batch, count in run.batches():
            run.handed(count)
            yield batch if isinstance(batch, list) else list(as_integers(batch))

    @property
    def batch_sampler(self) -> BatchSampler:
        """The sampler itself: Hugging Face's Trainer sets the epoch of `loader.batch_sampler.batch_sampler`."""
        return self

    @property
    def sampler(self) -> BatchSampler:
        """The sampler itself: Lightning sets the epoch of `loader.batch_sampler.sampler`."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch that an iteration started now would read."""
        return self.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads.

        The iteration starts at the beginning of the epoch or, if it is the epoch that `load_state_dict` set, at the
        restored position.
        """
        self.position.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return a position, as numbers and strings: the same on all ranks that have had equally many batches.

        Args:
            batches: The number of batches of the latest iteration that the trainer has had. By default, all that this
                sampler has handed out. These are the same in a DataLoader without workers.
        """
        return self.position.state(batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue from this state.

        Raises InvalidRequest if it is not a state, or belongs to another plan or, after the first iteration, to other
        entries, or if the ranks cannot divide the group of steps that form one update.
        """
        self.position.load(state)
