"""Ledger: the exact samples of any step, from a plan and a saved position. No data is read."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from ais_loader.errors import InvalidRequest
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.plans.permutation import ORDER
from ais_loader.plans.shuffle_plan import ShufflePlan
from ais_loader.training.batch_sampler import BatchSampler
from ais_loader.training.number_batches import are_entries, entry_of, sample_numbers, samples_of
from ais_loader.training.plan import parse_state
from ais_loader.training.plan_position import PlanPosition
from ais_loader.training.process_client import ProcessClient
from ais_loader.training.sample_parts import flat_entries, parts_of
from ais_loader.values.entry import Entry, ObjectInfo


def ledger(loader: Any, state: Mapping[str, Any], step: int, epoch: int | None = None) -> list[dict[str, Any]]:
    """Return one mapping for each entry of a step's samples, in the order of the batch.

    Args:
        loader: A BatchLoader of a plan, or a DataLoader with a BatchSampler.
        state: A position of the run. Steps before it are exactly those that the run has had.
        step: A step of the plan.
        epoch: Its epoch. By default, that of the position.

    The keys are `step`, `rank`, `number`, `source` (of a mixture), `piece` ([start, length] that a pack has of the
    sample), and `bucket`, `name`, `member`, `version`, `start`, `length` as in an Entry, in bytes. Those without a
    value are left out. A version is known if the dataset's entries have one.

    Raises InvalidRequest, for instance if the position belongs to another plan, and IndexError for a step that the
    epoch does not have.
    """
    position, dataset = begun(loader, state)
    epoch = state["epoch"] if epoch is None else epoch
    plan = position.bound()
    if not isinstance(plan, NumberPlan):
        return [{"step": step} | _fields(entry) for entry in dataset.wanted(plan.batch(epoch, step))]
    lines = []
    for number, source, piece in plan.at(epoch, step):
        line = {"step": step, "rank": step % state["world_size"], "number": number, "source": source, "piece": piece}
        known = {key: value for key, value in line.items() if value is not None}
        lines += [known | _fields(entry) for entry in parts_of(entry_of(dataset, number))]
    return lines


def leaves(loader: Any, state: Mapping[str, Any], only: tuple[int, int] | None = None) -> Iterator[list[Any]]:
    """Yield the steps before a position for a certificate; with `only`, that (epoch, step) if it is one.

    A step is [epoch, step, entries], with [bucket, name, member, version, checksum, ranges] of each entry that it
    requests, in order. Versions are compared with those that the store has, whose checksums are known.

    Raises InvalidRequest as `ledger` does, and for entries without a version, or with one that is not stored any more.
    """
    position, dataset = begun(loader, state)
    plan = position.bound()
    if not isinstance(plan, NumberPlan):
        raise InvalidRequest("a certificate needs a plan of ais_loader.plans")
    known: dict[tuple[str, str], ObjectInfo | None] = {}
    with store_of(dataset).opened() as client:
        for epoch, step in (place for place in _places(plan, state) if only in (None, place)):
            entries = step_entries(dataset, plan.batch(epoch, step))
            for bucket in {entry.bucket for entry in entries}:
                names = [*{one.name for one in entries if one.bucket == bucket and (bucket, one.name) not in known}]
                known |= zip([(bucket, name) for name in names], client.bucket(bucket).head_many(names), strict=True)
            yield [epoch, step, [_certified(entry, known[entry.bucket, entry.name]) for entry in entries]]


def step_entries(dataset: Any, batch: Any) -> Sequence[Entry]:
    """Return the entries that a batch of a plan requests, in order."""
    if are_entries(batch):
        return dataset.wanted(batch)  # type: ignore[no-any-return]
    numbers = sample_numbers(batch)
    samples: Any = {number: entry_of(dataset, number) for number in numbers}
    return flat_entries(samples_of(samples, numbers, batch, None))


def store_of(dataset: Any) -> ProcessClient:
    """Return the client of the one store that a dataset reads. Raises InvalidRequest if it is not one."""
    clients: list[Any] = [getattr(part, "_client", None) for part in getattr(dataset, "datasets", [dataset])]
    if None in clients or len({client.address for client in clients}) > 1:
        raise InvalidRequest("need datasets of ais_loader, of one store")
    return clients[0]  # type: ignore[no-any-return]


def reads_of(loader: Any, state: Mapping[str, Any], bucket: str, names: Container[str]) -> Iterator[dict[str, Any]]:
    """Yield `epoch`, `step`, `rank` and `name` where a run, up to a position, has requested objects of these names or
    would have been given them: substitutes from a reserve are not known. Raises InvalidRequest as `ledger` does."""
    position, dataset = begun(loader, state)
    plan = position.bound()
    for epoch, step in _places(plan, state):
        for entry in step_entries(dataset, plan.batch(epoch, step)):
            if entry.bucket.partition("@")[0] == bucket and entry.name in names:
                yield {"epoch": epoch, "step": step, "rank": step % state["world_size"], "name": entry.name}


def _places(plan: Any, state: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield (epoch, step) of all steps before a position."""
    last = state["epoch"], state["step"]
    counts = ((epoch, last[1] if epoch == last[0] else plan.steps(epoch) or 0) for epoch in range(last[0] + 1))
    return ((epoch, step) for epoch, count in counts for step in range(count))


def _certified(entry: Entry, info: ObjectInfo | None) -> list[Any]:
    if entry.version is None and "@" not in entry.bucket:
        raise InvalidRequest(f"{entry} has no version: a certificate needs a dataset with pinned=True, or a snapshot")
    if info is None or not info.is_stored or entry.version not in (None, info.version):
        raise InvalidRequest(f"{entry}: this version is not stored any more, so its checksum is not known")
    ranges = [list(one) for one in entry.ranges or ((entry.start, entry.length),)]
    return [entry.bucket, entry.name, entry.member or "", info.version, info.checksum, ranges]


def plan_of(state: Mapping[str, Any]) -> ShufflePlan:
    """Return the ShufflePlan that a state describes. Raises InvalidRequest if it is that of another plan."""
    _, found = parse_state(state)
    if (found.get("kind"), found.get("order")) != ("ShufflePlan", ORDER):
        raise InvalidRequest(
            f"the state of {found.get('kind')} does not hold all that its plan was made of: pass --loader"
        )
    names = ("n", "batch_size", "seed", "shuffle", "drop_last", "block", "group", "tail")
    plan = ShufflePlan(**{name: found[name] for name in names}, epoch_steps=found.get("epoch_steps"))
    plan._spans = tuple((epoch, first, stop) for epoch, first, stop in found.get("without", ()))
    return plan


def begun(loader: Any, state: Mapping[str, Any]) -> tuple[PlanPosition, Any]:
    """Return the plan of a loader at this position, for one rank, and its dataset. Raises InvalidRequest."""
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "batch_sampler", None)
    own = sampler.position if isinstance(sampler, BatchSampler) else getattr(loader, "position", None)
    if not isinstance(own, PlanPosition):
        raise InvalidRequest(
            f"need a BatchLoader of a plan, or a DataLoader with a BatchSampler; got {type(loader).__name__}"
        )
    position = PlanPosition(own.plan, dataset, rank=0, world_size=1, tail=own._tail, held_back=own._held_back)
    position.load(state)
    return position, dataset


def _fields(entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    fields = {key: getattr(entry, key) for key in ("bucket", "name", "member", "version", "start", "length")}
    return {key: value for key, value in fields.items() if value is not None and (key, value) != ("start", 0)}
