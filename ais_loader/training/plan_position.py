"""Plan position: where this rank is in a plan, for BatchLoader and BatchSampler, and the state that describes it."""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.plans.groups import Tail, check_world_size, whole_number
from ais_loader.plans.mix_plan import MixPlan, Weights
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.training.number_batches import part_digests
from ais_loader.training.plan import Plan, Position, first_difference, parse_state, position_state, split_steps
from ais_loader.training.sample_seeds import digest_seed

with needs("torch", "datasets"):
    import torch.distributed

log = logging.getLogger(__name__)


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


class PlanRun:
    """One iteration's share of a plan, and how much of it the trainer has received."""

    def __init__(self, position: PlanPosition, start: Position, world_size: int, mine: range) -> None:
        self._position, self.begun_from = position, position.start
        self.start, self.world_size, self._mine = start, world_size, mine
        self.delivered = 0

    @property
    def left(self) -> range:
        """The steps that are left to deliver here."""
        return self._mine[self.delivered :]

    def batches(self) -> Iterator[tuple[int, Any, int]]:
        """Yield (step, batch of the plan, number of batches with this one)."""
        for count, step in enumerate(self._mine, 1):
            yield step, self.draw(step), count

    def draw(self, step: int) -> Any:
        return self._position.draw(self.start.epoch, step)

    def seed(self, step: int, batch: Any) -> int:
        """Return the seed of a batch's random numbers."""
        return digest_seed(getattr(self._position.plan, "seed", None), self.start.epoch, step)

    def named(self, step: int) -> str:
        """Return a batch in words, by the epoch and step that a state has."""
        return f"epoch {self.start.epoch}, step {step}"

    def handed(self, count: int) -> None:
        """Note that the trainer receives this batch, the `count`-th: the latest one decides the position."""
        self.delivered = count
        self._position.run = self

    def ended(self) -> None:
        """Note that all batches were delivered."""
        self._position.end_run()


class PlanPosition:
    """The position of one rank in a plan.

    After the last batch of an epoch, it is the beginning of the next one. If an iteration is abandoned, the next one
    begins where it began, with one warning; `state` counts its batches.
    """

    has_epochs = True

    def __init__(
        self,
        plan: Plan,
        dataset: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        held_back: int = 0,
    ) -> None:
        """`dataset`, `held_back`: See `set_dataset`. Raises InvalidRequest."""
        if (rank is None) != (world_size is None):
            raise InvalidRequest(f"rank={rank}, world_size={world_size}: give both or neither")
        if rank is not None and world_size is not None:
            rank, world_size = (whole_number("ranks", "rank or world_size", one, 0) for one in (rank, world_size))
        own_tail = plan.tail if isinstance(plan, NumberPlan) else None
        if tail is not None and own_tail is not None and tail != own_tail:
            raise InvalidRequest(f"tail={tail!r}: the plan has tail={own_tail!r}")
        self._tail: Tail = own_tail or tail or "repeat"
        split_steps(0, rank=rank or 0, world_size=1 if world_size is None else world_size, tail=self._tail)
        self.plan, self._held_back = plan, 0
        self._given_place = None if rank is None or world_size is None else (rank, world_size)
        self.is_of_replicas = False
        """Whether several ranks of torch.distributed have the same place, and all of them have one."""
        self._grouped: NumberPlan | None = None
        self._group = 0
        """The plan's group in the state that was loaded, or 0."""
        self._dataset: Any = None
        self._digests: list[tuple[int, str]] | None = None
        self._unchecked: tuple[Position, dict[str, Any]] | None = None
        """A position that was loaded before the dataset was known, and what it says about the plan."""
        self.start = Position()
        """The beginning of the next run, unless the latest one has delivered all its batches."""
        self.run: PlanRun | None = None
        """The run that has begun or delivered last."""
        self._warns_of_repeats = True
        self._is_first = True
        """Whether no run has begun: the ranks compare their plans, and one warning tells what is left out."""
        self._drawing = threading.Lock()
        self.set_dataset(dataset, held_back)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"run": None, "_drawing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._drawing = threading.Lock()

    def set_dataset(self, dataset: Any, held_back: int = 0) -> None:
        """Set the dataset whose samples the plan's numbers count, if it is known.

        `held_back`: The number of its last samples that the plan does not draw. Raises InvalidRequest if it has another
        number of samples, or other entries than a state that was loaded.
        """
        if dataset is None or (dataset is self._dataset and held_back == self._held_back):
            return
        if (
            isinstance(self.plan, NumberPlan)
            and hasattr(dataset, "__len__")
            and len(dataset) != self.plan.n + held_back
        ):
            less = f", of which reserve= holds {held_back:,} back" if held_back else ""
            raise InvalidRequest(f"the plan has n={self.plan.n:,} numbers, for {len(dataset):,} samples{less}")
        if isinstance(self.plan, MixPlan):
            _check_sources(self.plan.source_sizes, dataset)
        self._dataset, self._held_back, self._digests = dataset, held_back, None
        if self._unchecked is not None:
            position, described = self._unchecked
            _compare(described, self._description(position))
            self._unchecked = None

    def place(self) -> tuple[int, int]:
        """Return (rank, world_size) of this process. Raises InvalidRequest for a wrong environment."""
        return self._given_place or process_place()

    def peers(self) -> tuple[int, int]:
        """Return (rank, number) among the processes that compare what they read."""
        return process_place() if self.is_of_replicas else self.place()

    def bound(self, step: int = 0) -> Plan:
        """Return the plan with its group of steps, which these ranks can divide from a step on.

        The group of a plan without one is that of the loaded state, or else the world size.
        """
        if not isinstance(self.plan, NumberPlan):
            return self.plan
        world_size = self.place()[1]
        group = self.plan.group or self._group or world_size
        if self._grouped is None or self._grouped.group != group:
            grouped = self.plan.with_group(group)
            grouped.check_not_empty()
            self._grouped = grouped
        check_world_size(group, world_size, step)
        return self._grouped

    def draw(self, epoch: int, step: int) -> Any:
        """Return the plan's batch of a step. Past the end of the epoch's steps, ranks repeat: `split_steps`."""
        plan = self.bound()
        with self._drawing:
            return plan.batch(epoch, step % (plan.steps(epoch) or sys.maxsize))

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch. Raises TypeError if the epoch has no end."""
        steps = self.bound().steps(self.epoch)
        if steps is None:
            warn_of_no_length()
            raise TypeError("the plan's epoch has no end, and so no length; epoch_steps=N gives it one")
        rank, world_size = self.place()
        return len(split_steps(steps, rank=rank, world_size=world_size, tail=self._tail))

    @property
    def epoch(self) -> int:
        """The epoch that an iteration started now would read."""
        self.end_run()
        return self._begin(self.start).epoch

    def set_epoch(self, epoch: int) -> None:
        self._warns_of_repeats = False
        if epoch != self.epoch:
            self._move(Position(operator.index(epoch), 0))

    def _begin(self, position: Position) -> Position:
        """Return the position, or the beginning of the next epoch if no rank has a batch left in this one."""
        if position.step and (steps := self.bound().steps(position.epoch)) is not None:
            # Rank 0 has a batch whenever another rank has one.
            left = split_steps(steps, start=position.step, world_size=self.place()[1], tail=self._tail)
            return position if left else Position(position.epoch + 1)
        return position

    def _move(self, start: Position) -> None:
        self.start, self.run = start, None

    def begin(self) -> PlanRun:
        """Return a run over the steps that are left."""
        self.end_run()
        rank, world_size = self.place()
        if self._is_first:
            self._check_first(*self.peers())
            self._is_first = False
        start = self._begin(self.start)
        before = self.run
        if before is not None and before.delivered and before.begun_from is self.start and self._warns_of_repeats:
            self._warns_of_repeats = False
            warn_of_repeat(f"epoch {start.epoch}, step {start.step}", before.delivered)
        steps = self.bound(start.step).steps(start.epoch)
        mine = split_steps(steps, start=start.step, rank=rank, world_size=world_size, tail=self._tail)
        self.run = PlanRun(self, start, world_size, mine)
        return self.run

    def _check_first(self, rank: int, world_size: int) -> None:
        """Compare plan, entries and position with those of the other ranks, and warn of samples that are left out."""
        own: dict[str, Any] = {}
        error: Exception | None = None
        are_all = is_distributed() and world_size == torch.distributed.get_world_size()
        try:
            if are_all:  # digests of entries take time
                own = self.described()
            else:
                self.bound(self.start.step)
        except Exception as found:  # noqa: BLE001 - raised by compare_ranks, after all ranks have met
            error = found
        if are_all:
            compare_ranks(own, error, "the plan", "reads another plan, other entries or another part than rank 0")
        elif error is not None:
            raise error
        if rank == 0 and isinstance(self.plan, NumberPlan) and (counts := self.plan.left_out_counts):
            told = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
            log.warning("of %s samples, no epoch of the plan has these: %s", f"{self.plan.n:,}", told)

    def described(self) -> dict[str, Any]:
        """Return what is read from here on, for a comparison with other processes."""
        start, plan = self._begin(self.start), self.bound(self.start.step)
        described = {"epoch": start.epoch, "step": start.step} | self._description(start, sys.maxsize)
        return described | (plan.description if isinstance(plan, NumberPlan) else {})

    def end_run(self) -> None:
        """If the latest run has delivered all its batches, the next one reads the next epoch, or the one set since."""
        if self.run is not None and not self.run.left:
            chosen = self.run.begun_from is not self.start
            self._move(self.start if chosen else Position(self.run.start.epoch + 1))

    def state(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position after so many batches of the latest run: by default, those delivered.

        It is the same on all ranks that have had the same number of batches, and is valid for any number of ranks.
        """
        run, world_size = self.run, self.place()[1]
        position = self.start
        if run is not None and (run.left or batches is not None or run.begun_from is self.start):
            count, world_size = run.delivered if batches is None else batches, run.world_size
            # Ranks take turns, so each batch here stands for a whole round.
            position = Position(run.start.epoch, run.start.step + count * world_size)
        position = self._begin(position)
        return position_state(position, world_size, self._description(position))

    def steered(self, weights: Weights, groups: int) -> tuple[Position, MixPlan]:
        """Return the plan with these weights, for `use`, and the position from which on they hold.

        It is `groups` groups of steps after the one that the position is in, for any rank and any number of ranks.
        """
        at, _ = parse_state(self.state())
        if not isinstance(plan := self.bound(), MixPlan):
            raise InvalidRequest(f"{type(plan).__name__}: only a MixPlan has weights that a trainer can set")
        if at.epoch and not plan.epoch_steps:
            raise InvalidRequest(f"epoch {at.epoch} of a mixture without an end: it needs epoch_steps")
        group = plan.group or 1
        epoch, step = at.epoch, (at.step // group + groups) * group
        while (steps := plan.steps(epoch)) is not None and step >= steps:
            epoch, step = epoch + 1, step - steps
        begin = plan._own_step(epoch, step)[1]
        steered = plan.steered([*(one for one in plan.steering if one[0] < begin), (begin, weights)])
        steered.check_not_empty()  # whether each source can fill a group
        return Position(epoch, step), steered

    def use(self, plan: MixPlan) -> None:
        """Draw from this plan from now on. It has the same batches as before wherever some may have been drawn."""
        assert isinstance(self.plan, MixPlan)
        self.plan, self._grouped = self.plan.steered(plan.steering), plan

    def _description(self, position: Position, used: int | None = None) -> dict[str, Any]:
        """Return what two plans have in common if they gave the same batches before a position; {} if unknown.

        `used`: A number above those whose entries are compared. By default, above those before the position.
        """
        plan = self.bound()
        if not isinstance(plan, NumberPlan):
            return {"fingerprint": plan.fingerprint} if hasattr(plan, "fingerprint") else {}
        described = plan.description_at(position.epoch, position.step)
        if self._dataset is None:
            return described | {"entries": None}
        if self._digests is None:
            own = [self._dataset] if hasattr(self._dataset, "_entries") else []
            self._digests = part_digests(getattr(self._dataset, "datasets", own))
        used = plan.numbers_before(position.epoch, position.step) if used is None else used
        return described | {"entries": [digest for first, digest in self._digests if first < used]}

    def load(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next run continue from this state.

        Raises InvalidRequest if it is not a state, or if the ranks cannot divide the group of steps that form one
        update, or, if `strict`, with the first difference of the plan.
        """
        position, described = parse_state(state)
        before = self.plan, self._group, self._grouped
        try:
            self._group = described.get("group") or 0
            if isinstance(self.plan, MixPlan):
                self.plan, self._grouped = self.plan.steered(described.get("steering", ())), None
            self.bound(position.step)
            if strict:
                _compare(described, self._description(position))
        except BaseException:
            self.plan, self._group, self._grouped = before
            raise
        self._unchecked = (position, described) if strict and self._dataset is None else None
        self._move(position)


def _check_sources(sizes: dict[str, int], dataset: Any) -> None:
    """Raise InvalidRequest unless a dataset has the sources of a mixture in its order, as far as that can be seen."""
    own = getattr(dataset, "source_sizes", None)
    if own is not None:
        if list(own.items()) != list(sizes.items()):
            raise InvalidRequest(f"the plan has the sources {sizes}, and the dataset {own}: need the same order")
    elif len(sizes) > 1 and (ends := getattr(dataset, "cumulative_sizes", None)):
        if not {0, *ends}.issuperset(itertools.accumulate(sizes.values())):
            raise InvalidRequest(
                f"the plan has the sources {sizes}, and the dataset parts that end at {ends}: concatenate them in the "
                "plan's order, or by name: concat({name: dataset})"
            )
        if len(filled := [size for size in sizes.values() if size]) > len({*filled}):
            raise InvalidRequest(
                f"some of the plan's sources {sizes} have equally many samples, so that their order in the dataset is "
                "not known: pass the datasets by name, concat({name: dataset})"
            )


def compare_ranks(
    own: Any, error: Exception | None, subject: str, differs: str, gather: Callable[[Any], list[Any]] | None = None
) -> None:
    """Compare a value of each rank with that of rank 0. All ranks have to call this.

    Raises `error`, or InvalidRequest on all other ranks, with the first rank that has an error or another value.
    """
    mine = (own, None if error is None else str(error))
    found: list[Any] = gather(mine) if gather else [None] * torch.distributed.get_world_size()
    if gather is None:
        torch.distributed.all_gather_object(found, mine)
    if error is not None:
        raise error
    for rank, (other, told) in enumerate(found):
        if told is not None:
            raise InvalidRequest(f"rank {rank} refuses {subject}: {told}")
        if told := first_difference(found[0][0], other, f"rank 0 has {{}}, and rank {rank} {{}}"):
            raise InvalidRequest(f"rank {rank} {differs}" + (f": {told}" if isinstance(own, dict) else ""))


def _compare(saved: dict[str, Any], own: dict[str, Any]) -> None:
    """Raise InvalidRequest with the first difference of two descriptions of a plan. None stands for unknown entries."""
    if saved.get("entries") is None or own.get("entries") is None:
        saved, own = ({key: one[key] for key in one if key != "entries"} for one in (saved, own))
    if saved and own and (told := first_difference(saved, own)):
        raise InvalidRequest(f"the state belongs to another plan: it {told}")


def warn_of_repeat(beginning: str, batches: int) -> None:
    """Warn that an iteration begins where the one before did, of which the trainer has had some batches."""
    log.warning(
        "an iteration begins at %s once more, as the one before was abandoned, with %d of its batches delivered; for "
        "other samples, call set_epoch first, or give the plan epoch_steps",
        beginning,
        batches,
    )


@functools.cache
def warn_of_no_length() -> None:
    """Warn, under Lightning, that its checkpoints skip a batch of a loader without a length."""
    if {"lightning.pytorch", "pytorch_lightning"} & sys.modules.keys():
        log.warning(
            "a loader without a length: Lightning fetches one batch ahead of the step, which a run that resumes from "
            "its checkpoint does not have; give the plan epoch_steps, or the sampler a length"
        )
