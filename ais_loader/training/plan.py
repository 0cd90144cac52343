"""Sampling plan: what a plan is, its division among ranks, and the position to resume at.

All functions here are pure: no I/O, no clock, no torch. A *step* is the number of a batch within its epoch, and is the
same in every process. Ranks own steps, never samples. Therefore, any process that knows the plan and a
position knows what is left to read, without communication.
"""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ais_loader.errors import InvalidRequest
from ais_loader.plans.groups import TAILS, Tail
from ais_loader.training.sample_parts import has_parts, parts_of
from ais_loader.values.entry import to_entry
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.pipeline import args_text, to_pipeline

STATE_VERSION = 2


class Plan(Protocol):
    """Batches as a pure function of (epoch, step). Implement it to batch by duration, by language, or without an end.

    Both methods depend only on their arguments, not on earlier calls: a loader draws steps ahead, and may draw one
    twice. It calls `batch` from several threads, never two at the same time. A plan may have a `fingerprint: str`. A
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
    steps: int | None, *, start: int = 0, rank: int = 0, world_size: int = 1, tail: Tail = "repeat"
) -> range:
    """Return the steps that one rank delivers, in its order.

    Ranks take turns from `start` on: step s belongs to rank `(s - start) % world_size`. Every step belongs to exactly
    one rank. If the ranks cannot have equally many, `tail` decides about the last round.

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
    if start < 0 or (steps is not None and steps < 0):
        raise InvalidRequest(f"start={start}, steps={steps}: need 0 or more")
    stop = sys.maxsize if steps is None else max(steps, start)
    if tail == "drop":
        stop -= (stop - start) % world_size
    elif tail == "repeat" and steps is not None:
        stop += (start - stop) % world_size
    return range(start + rank, stop, world_size)


@dataclass(frozen=True, slots=True)
class Position:
    """The position to continue from: every step of the epoch before `step` has been delivered, by some rank."""

    epoch: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        for name in ("epoch", "step"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if not 0 <= self.epoch < 2**63 or not 0 <= self.step < 2**63:
            raise InvalidRequest(f"epoch={self.epoch}, step={self.step}: need 0 or more")


def position_state(position: Position, world_size: int, plan: dict[str, Any]) -> dict[str, Any]:
    """Return a position as numbers and strings, for a checkpoint. `plan` describes the plan by named fields.

    The keys are the same for every plan and position, as torch.distributed.checkpoint needs it.
    """
    return {
        "version": STATE_VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "world_size": world_size,
        "plan": json.dumps(plan),
    }


def parse_state(state: Mapping[str, Any]) -> tuple[Position, dict[str, Any]]:
    """Parse what `position_state` returned: the position, and the plan's description.

    Raises InvalidRequest if it is not a state.
    """
    try:
        version = state["version"]
        if version != STATE_VERSION:
            raise InvalidRequest(f"state of version {version!r}; this ais_loader reads version {STATE_VERSION}")
        position = Position(operator.index(state["epoch"]), operator.index(state["step"]))
        plan = state["plan"]
        plan = dict(json.loads(plan) if isinstance(plan, str) else plan)
        group = operator.index(plan.get("group") or 0)
        for step, weights in plan.get("steering", ()):
            operator.index(step), dict(weights)
        if operator.index(state["world_size"]) < 1 or group < 0:
            raise TypeError("not a number of ranks, or not a group")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"not a state of a plan, as BatchLoader or BatchSampler saves it: {state!r}") from error
    return position, plan


def first_difference(saved: Any, own: Any, words: str = "was saved with {}, and has {}", name: str = "") -> str | None:
    """Return the first difference of two descriptions in words, or None: "was saved with batch_size 32, and has 64"."""
    if isinstance(saved, dict) and isinstance(own, dict):
        told = (
            first_difference(saved.get(key), own.get(key), words, f"{name}.{key}".strip(".")) for key in saved | own
        )
        return next(filter(None, told), None)
    return None if saved == own else words.format(f"{name} {saved!r}", repr(own))
