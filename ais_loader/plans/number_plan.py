"""NumberPlan: base of the plans over numbers, with groups of steps and the end of an epoch."""

from __future__ import annotations

import copy
import hashlib
import json
import operator
import sys
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import TAILS, Tail, whole_number
from ais_loader.plans.permutation import ORDER


class Drawn(NamedTuple):
    """One sample of a step."""

    number: int
    source: str | None = None
    """Name of its source in a mixture."""
    piece: tuple[int, int] | None = None
    """(start, length) of what a pack has of it."""


class NumberPlan:
    """A plan whose batches are numbers, 0 to n - 1. Every method is a pure function of its arguments.

    Attributes:
        n: The number of samples that the plan draws from.
        group: The number of steps that form one update, or None: the world size of the run that begins.
        tail: What happens if the steps of an epoch are not a multiple of the group. With "repeat", the first steps of
            the epoch are repeated, as torch's DistributedSampler does. With "drop", the last ones are left out. With
            "uneven", every step is read once, and some ranks have one step more. This suits evaluation.
        epoch_steps: The number of steps in an epoch, a multiple of the group, or None: all steps of the plan. Each
            epoch continues where the one before ended, and the plan begins anew after its last step. A mixture without
            an end thus has a length, and epochs that are parts of a large set have different samples.
    """

    n: int

    def __init__(self, *, seed: int, group: int | None, tail: Tail, epoch_steps: int | None = None) -> None:
        """Raises InvalidRequest, TypeError."""
        name = type(self).__name__
        self.seed = whole_number(name, "seed", seed, 0, 2**64 - 1)
        self.group = None if group is None else whole_number(name, "group", group, 1)
        if tail not in TAILS:
            raise InvalidRequest(f"{name}: tail={tail!r}: need 'repeat', 'drop' or 'uneven'")
        self.tail = tail
        self.epoch_steps = None if epoch_steps is None else whole_number(name, "epoch_steps", epoch_steps, 1)
        if self.epoch_steps and tail == "uneven":
            raise InvalidRequest(f"{name}: epoch_steps={epoch_steps}, tail='uneven': need 'repeat' or 'drop'")
        self._spans: tuple[tuple[int, int, int], ...] = ()
        """(epoch, first, stop) of the steps that are left out."""
        self._check_groups()

    def with_group(self, group: int) -> Self:
        """Return this plan with a group, if it has none yet. Raises InvalidRequest if it has another one."""
        if self.group not in (None, group):
            raise InvalidRequest(f"{type(self).__name__}: group={self.group}, where {group} is needed")
        if self.group == group:
            return self
        plan = copy.copy(self)
        plan.group = whole_number(type(self).__name__, "group", group, 1)
        plan._regrouped()
        plan._check_groups()
        return plan

    def without(self, steps: range, epoch: int = 0) -> Self:
        """Return this plan without a span of an epoch's steps, on all ranks. Later steps move forward.

        A position before the span is valid for both plans, and a later one for its own plan only.

        Args:
            steps: Successive steps of this plan: whole groups, so that the other updates stay as they are.

        Raises InvalidRequest.
        """
        count = self.steps(epoch)
        if steps.step != 1 or not 0 <= steps.start < steps.stop or (count is not None and steps.stop > count):
            raise InvalidRequest(f"{type(self).__name__}: without {steps!r}: need successive steps of epoch {epoch}")
        plan = copy.copy(self)
        first, last = self._moved(epoch, steps.start), self._moved(epoch, steps.stop - 1)
        within = [span for span in self._spans if span[0] == epoch and first <= span[1] <= last]
        others = [span for span in self._spans if span not in within]
        plan._spans = tuple(sorted([*others, (epoch, first, last + 1)]))
        plan._check_groups()
        return plan

    def steps(self, epoch: int) -> int | None:
        """Return the number of steps in an epoch, a multiple of the group unless `tail` is "uneven"."""
        steps = self._all_steps()
        if steps != 0 and self.epoch_steps:
            steps = self.epoch_steps
        return None if steps is None else steps - sum(stop - first for at, first, stop in self._spans if at == epoch)

    @property
    def left_out_counts(self) -> dict[str, int]:
        """The number of samples that are in no epoch, by reason."""
        return {}

    def check_not_empty(self) -> None:
        """Raise InvalidRequest if no batch is left of n > 0 samples."""
        if self.n and self._all_steps() == 0:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out_counts.items())
            less = f"less than one batch (drop_last) or than the {self.group} steps of a group (tail='drop')"
            raise InvalidRequest(f"{self!r} has no batch; it leaves out: {reasons or f'{self.n:,}, {less}'}")

    def batch(self, epoch: int, step: int) -> Any:
        """Return the numbers of a step, shape (batch,), int64. Raises IndexError for a step the epoch does not have."""
        return self._batch(*self._own_step(epoch, step))

    def at(self, epoch: int, step: int) -> list[Drawn]:
        """Return the samples of a step in the order of `batch`, with their sources. Raises IndexError as it does."""
        batch = self.batch(epoch, step)
        if isinstance(batch, list):
            return [Drawn(number, piece=(start, length)) for pack in batch for number, start, length in pack]
        return [Drawn(number) for number in batch.tolist()]

    @property
    def description(self) -> dict[str, Any]:
        """Every argument: named fields of numbers and strings."""
        return self._described(None) | {"without": [list(span) for span in self._spans]}

    @property
    def fingerprint(self) -> str:
        """Every argument, as text."""
        return json.dumps(self.description)

    def description_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return everything that decides the steps before a position. A position of another description is refused."""
        own = self._before(epoch, step)
        spans = [list(span) for span in self._spans if span[0] == epoch and span[1] < own]
        return self._described(self._since_start(epoch, own)) | ({"without": spans} if spans else {})

    def numbers_before(self, epoch: int, step: int) -> int:
        """Return a number above all those that the steps before a position may have."""
        return self.n

    def _before(self, epoch: int, step: int) -> int:
        """Return the position before a step, in steps of the plan without spans left out."""
        return self._moved(epoch, step - 1) + 1 if step else 0

    def _moved(self, epoch: int, step: int) -> int:
        """Return the step of the plan without spans left out."""
        for at, first, stop in self._spans:
            if at == epoch and step >= first:
                step += stop - first
        return step

    def _since_start(self, epoch: int, step: int) -> int:
        """Return the number of steps before a step: in its epoch or, with `epoch_steps`, in all epochs."""
        return step + epoch * (self.epoch_steps or 0)

    def _all_steps(self) -> int | None:
        steps, group = self._steps(), self.group or 1
        if steps is None or self.tail == "uneven":
            return steps
        return steps + (-steps % group if self.tail == "repeat" else -(steps % group))

    def _own_step(self, epoch: int, step: int) -> tuple[int, int]:
        """Return the epoch and the step, of those that are read once, that a step delivers. Raises IndexError."""
        epoch, step = operator.index(epoch), operator.index(step)  # those of numpy overflow
        own, steps = self._steps(), self.steps(epoch)
        if step < 0 or (steps is not None and step >= steps):
            raise IndexError(f"step {step} of an epoch with {steps} steps")
        moved = self._moved(epoch, step)
        if self.epoch_steps:
            epoch, moved = divmod(self._since_start(epoch, moved), self._all_steps() or sys.maxsize)
        return epoch, moved % own if own else moved

    def _check_groups(self) -> None:
        if self.epoch_steps and self.epoch_steps % (self.group or 1):
            raise InvalidRequest(
                f"{type(self).__name__}: epoch_steps={self.epoch_steps}: need whole groups of {self.group} steps"
            )
        for _, first, stop in self._spans:
            if self.group and (first % self.group or stop % self.group):
                raise InvalidRequest(
                    f"{type(self).__name__}: without steps {first} to {stop - 1}: need whole groups of {self.group}"
                )

    # -- for subclasses

    def _steps(self) -> int | None:
        """Return the number of steps before `tail` makes it a multiple of the group; None if the epoch has no end."""
        raise NotImplementedError

    def _batch(self, epoch: int, step: int) -> Any:
        raise NotImplementedError

    def _arguments(self, own_step: int | None) -> dict[str, Any]:
        """Return the arguments by name: those that decide what comes before a step, or all if it is None."""
        raise NotImplementedError

    def _described(self, own_step: int | None) -> dict[str, Any]:
        own = self._arguments(own_step) | {name: getattr(self, name) for name in ("group", "tail", "epoch_steps")}
        return {"kind": type(self).__name__, "order": ORDER, **own}

    def _regrouped(self) -> None:
        """Forget what depends on the group."""

    @property
    def _shown(self) -> str:
        """The arguments of all plans, for `repr`."""
        return f"group={self.group}, tail={self.tail!r}, epoch_steps={self.epoch_steps}"


def digest_of(table: npt.NDArray[Any], text: str) -> str:
    """Return a digest of numbers, equal for equal numbers of any type, and of a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for first in range(0, len(table), _DIGEST_ROWS):
        digest.update(np.ascontiguousarray(table[first : first + _DIGEST_ROWS], np.float64).data)
    return digest.hexdigest()


_DIGEST_ROWS = 1 << 16
