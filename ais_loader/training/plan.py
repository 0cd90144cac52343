"""Sampling plan: what a plan is, its division among ranks and workers, and the position to resume at.

All functions here are pure: no I/O, no clock, no torch. A *step* is the number of a batch within its epoch, and is the
same in every process. Ranks and workers own steps, never samples. Therefore, any process that knows the plan and a
position knows what is left to read, without communication.
"""

from __future__ import annotations

import hashlib
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import TAILS, Tail
from ais_loader.plans.permutation import ORDER
from ais_loader.training.sample_parts import has_parts, parts_of
from ais_loader.values.entry import to_entry
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.pipeline import args_text, to_pipeline

STATE_VERSION = 1


class Plan(Protocol):
    """Batches as a pure function of (epoch, step). Implement it to batch by duration, by language, or without an end.

    Every worker process has its own copy and asks it for different steps, in any order and perhaps twice. Both methods
    must therefore depend only on their arguments, not on earlier calls. In the trainer's process, BatchLoader asks from
    another thread, never two at the same time for a batch. A plan may have a `fingerprint: str`. A
    position that was saved under one fingerprint is then refused under another.
    """

    def steps(self, epoch: int) -> int | None:
        """Return the number of batches in the epoch, or None if it never ends."""

    def batch(self, epoch: int, step: int) -> Sequence[Any]:
        """Return one batch, in delivery order, for 0 <= step < steps(epoch).

        It has entries or, for a dataset of samples, their numbers.
        """


def entries_digest(entries: Sequence[Any], bucket: str | None) -> str:
    """Return a digest of what the entries fetch, in their order: that of a table by its own method. An element may be
    several entries. For an EntryTable and equal entries in any other form it is the same."""
    if callable(own := getattr(entries, "digest", None)):
        digest_of_table: str = own()
        return digest_of_table
    table = None if any(map(has_parts, entries)) else EntryTable.of(entries, bucket)
    if table is not None:
        return table.digest()
    digest = hashlib.blake2b(digest_size=16)
    for at in range(len(entries)):
        sample: Any = entries[at]
        if has_parts(sample):
            digest.update(repr(list(sample) if isinstance(sample, dict) else len(sample)).encode())
        for part in parts_of(sample):
            entry = to_entry(part, bucket)
            # `opaque` is left out: it is not fetched, and may have no stable representation.
            fields = (entry.bucket, entry.name, entry.member, entry.start, entry.length, entry.version, entry.ranges)
            stages = () if entry.etl is None else to_pipeline(entry.etl, entry.args).stages
            transforms = [(stage.name, args_text(stage.args)) for stage in stages]
            digest.update(repr((*fields, transforms)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def split_steps(
    steps: int | None,
    *,
    start: int = 0,
    rank: int = 0,
    world_size: int = 1,
    worker: int = 0,
    num_workers: int = 1,
    tail: Tail = "repeat",
) -> range:
    """Return the steps that one worker of one rank delivers, in its order.

    Ranks take turns from `start` on: step s belongs to rank `(s - start) % world_size`. Within a rank, workers take
    turns too. A DataLoader collects from them in the same way, so that it restores the rank's order exactly, for any
    `num_workers`.

    Every step belongs to exactly one worker of one rank. If the ranks cannot have equally many, `tail` decides about
    the last round.

    Args:
        steps: The number of steps in the epoch. None if it has no end. The range then extends to 2**63.
        start: The first step that no rank has delivered. It may be past the end.
        tail: With "repeat", ranks that have no step left repeat the first ones of the epoch, as torch's
            DistributedSampler does: a number n >= steps in the range stands for step `n % steps`. With "drop", the last
            `(steps - start) % world_size` steps belong to no rank. With "uneven", some ranks have one step more than
            the others.

    Raises InvalidRequest.
    """
    if tail not in TAILS:
        raise InvalidRequest(f"tail={tail!r}: need 'repeat', 'drop' or 'uneven'")
    if not 0 <= rank < world_size:
        raise InvalidRequest(f"rank={rank} of world_size={world_size}: need 0 <= rank < world_size")
    if not 0 <= worker < num_workers:
        raise InvalidRequest(f"worker={worker} of num_workers={num_workers}: need 0 <= worker < num_workers")
    if start < 0 or (steps is not None and steps < 0):
        raise InvalidRequest(f"start={start}, steps={steps}: need 0 or more")
    stop = sys.maxsize if steps is None else max(steps, start)
    if tail == "drop":
        stop -= (stop - start) % world_size
    elif tail == "repeat" and steps is not None:
        stop += (start - stop) % world_size
    return range(start + rank, stop, world_size)[worker::num_workers]


@dataclass(frozen=True, slots=True)
class Position:
    """The position to continue from: every step of the epoch before `step` has been delivered, by some rank."""

    epoch: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.epoch < 2**63 or not 0 <= self.step < 2**63:
            raise InvalidRequest(f"epoch={self.epoch}, step={self.step}: need 0 or more")


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """How far one worker has come with its share of the steps that a `Position` leaves."""

    worker: int
    num_workers: int
    world_size: int
    batches: int


def position_state(
    position: Position, world_size: int, fingerprint: str | None, group: int | None = None
) -> dict[str, Any]:
    """Return a position as numbers and strings, for a checkpoint. `group` is that of a plan over numbers."""
    return ({} if group is None else {"group": group}) | {
        "version": STATE_VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "world_size": world_size,
        "plan": fingerprint,
    }


def worker_state(
    position: Position, share: WorkerShare, fingerprint: str | None, group: int | None = None
) -> dict[str, Any]:
    """Return the position of one worker. Only the same worker of an equal division can resume it."""
    return position_state(position, share.world_size, fingerprint, group) | {
        "worker": share.worker,
        "num_workers": share.num_workers,
        "batches": share.batches,
    }


def parse_state(state: Mapping[str, Any]) -> tuple[Position, WorkerShare | None, int]:
    """Parse what `position_state` or `worker_state` returned: the position, the worker's share, and the group or 0.

    Raises InvalidRequest if it is not a state.
    """
    try:
        version = state["version"]
        if version != STATE_VERSION:
            raise InvalidRequest(f"state of version {version!r}; this ais_loader reads version {STATE_VERSION}")
        position = Position(operator.index(state["epoch"]), operator.index(state["step"]))
        world_size = operator.index(state["world_size"])
        group = operator.index(state.get("group", 0))
        if group < 0 or (state["plan"] is not None and not isinstance(state["plan"], str)):
            raise TypeError("not a group or a fingerprint")
        share = None
        if "worker" in state:
            worker, num_workers, batches = (operator.index(state[key]) for key in ("worker", "num_workers", "batches"))
            share = WorkerShare(worker, num_workers, world_size, batches)
    except (KeyError, TypeError) as error:
        raise InvalidRequest(f"not a state of a BatchIterableDataset or BatchLoader: {state!r}") from error
    return position, share, group


def check_plan(saved: str | None, loaded: str | None) -> None:
    """Raise InvalidRequest if a state was saved under the fingerprint of another plan."""
    if saved is None or loaded is None or saved == loaded:
        return
    if saved.startswith("ShufflePlan entries=") and f"order={ORDER}" in loaded:
        raise InvalidRequest(
            f"the state has the order of an earlier ShufflePlan, by numpy's Philox; this plan has order {ORDER!r}. It "
            "cannot resume there: begin with the next epoch"
        )
    raise InvalidRequest(f"the state belongs to another plan: saved under {saved!r}, loaded under {loaded!r}")
