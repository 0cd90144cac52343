"""A DataLoader over a plan that knows how many batches the trainer has received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.training.datasets import BatchIterableDataset
from ais_loader.training.plan_sender import MAX_STEPS, PlanSender
from ais_loader.training.run import Run

with needs("torch", "BatchLoader"):
    from torch.utils.data import DataLoader


class BatchLoader(DataLoader[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """`DataLoader(dataset, batch_size=None, ...)` for a BatchIterableDataset, with an exact position.

    Workers read ahead, so none of them knows what the trainer has seen. This loader counts a batch when it delivers it:
    `load_state_dict(loader.state_dict())` continues with the very next batch, regardless of the old and the new
    `num_workers`.

    The position after the last batch of an epoch is the beginning of the next one: the next iteration starts there,
    unless you choose another epoch with `set_epoch`. This also applies to a trainer that counts `len(loader)` batches
    and never asks for the end. After you abandon an iteration before its last batch, the next one starts where that one
    began: at the beginning of the epoch, or at the position that was loaded.
    """

    _is_accelerate_prepared = True
    """accelerate's `prepare` returns the loader as it is. It would wrap another DataLoader of an iterable dataset in a
    loader that reads rank 0's share alone and divides it among all ranks.
    """

    def __init__(self, dataset: BatchIterableDataset, *, expect_steps: int = 64, **options: Any) -> None:
        """
        Args:
            dataset: The dataset to read. Its `collate` forms the batches.
            expect_steps: The number of steps, at most 1,000, whose objects in remote buckets the store is told ahead.
                It fetches cold ones before they are read. Another thread of this process draws the plan for this. 0
                disables it. It has no effect on an embedded store that the dataset got as a path.
            options: The options of torch's DataLoader, except those that form batches or change their order.

        Raises InvalidRequest, TypeError.
        """
        if not isinstance(dataset, BatchIterableDataset):
            raise TypeError(f"need a BatchIterableDataset, got {type(dataset).__name__}; others go with a DataLoader")
        for name, reason in _REFUSED.items():
            if options.get(name):
                raise InvalidRequest(f"{name}={options[name]!r}: {reason}")
        if not options.get("in_order", True):
            raise InvalidRequest("in_order=False: with batches out of order there is no position to resume at")
        if isinstance(expect_steps, bool) or not isinstance(expect_steps, int) or not 0 <= expect_steps <= MAX_STEPS:
            raise InvalidRequest(f"expect_steps={expect_steps!r}: need an int, 0 to {MAX_STEPS}")
        self._expect_steps = expect_steps
        self._sender: PlanSender | None = None
        dataset.own_position()
        super().__init__(dataset, **{"collate_fn": _as_it_is} | options | {"batch_size": None})

    def __repr__(self) -> str:
        return f"<BatchLoader of {self.dataset!r}, num_workers={self.num_workers}>"

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch. Raises TypeError if the epoch has no end."""
        self.dataset.end_run()
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        self.dataset.end_run()
        if self._sender is not None:  # of an iteration that was abandoned
            self._sender.close()
        batches = super().__iter__()
        # After that line: without workers it makes the dataset begin a run too, and only the latest run counts.
        return self._hand_out(batches, self.dataset.begin_run())

    def _hand_out(self, batches: Iterator[Any], run: Run) -> Iterator[Any]:
        # After workers were forked, which would inherit the thread's locks.
        sender = self._sender = self.dataset.send_plan(run, self._expect_steps)
        try:
            for batch in batches:
                run.delivered += 1
                if sender is not None:
                    sender.delivered(run.delivered)
                yield batch
        finally:
            if sender is not None:
                sender.close()
        self.dataset.end_run()

    @property
    def epoch(self) -> int:
        """The epoch that an iteration started now would read."""
        self.dataset.end_run()
        return self.dataset.epoch  # type: ignore[no-any-return]  # torch is not type-checked here

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads.

        The iteration starts at the beginning of the epoch or, if it is the epoch that `load_state_dict` set, at the
        restored position.
        """
        self.dataset.end_run()
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches that the trainer has received. See `BatchIterableDataset.state_dict`.

        It consists of numbers and strings only.
        """
        return self.dataset.state_dict()  # type: ignore[no-any-return]  # torch is not type-checked here

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue from this state.

        Raises InvalidRequest if it is not a state, or belongs to another plan.
        """
        if "worker" in state:
            raise InvalidRequest("the state of one worker, as StatefulDataLoader saves it, cannot resume a BatchLoader")
        self.dataset.load_state_dict(state)


def _as_it_is(batch: Any) -> Any:
    # Instead of torch's default, which walks through every batch to turn numpy arrays into tensors.
    return batch


_REFUSED = {
    "batch_size": "the plan makes the batches",
    "batch_sampler": "the plan makes the batches; a sampler goes with MapDataset and a DataLoader",
    "sampler": "the plan decides the order; a sampler goes with MapDataset and a DataLoader",
    "shuffle": "the plan decides the order, as ShufflePlan(shuffle=True) does",
    "drop_last": "the plan decides, as ShufflePlan(drop_last=True) does",
}
