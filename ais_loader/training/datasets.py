"""PyTorch datasets over a store, where a batch is one storage request.

`MapDataset` serves any sampler that runs in the DataLoader's own process. `BatchIterableDataset` reads whole batches
from a plan, several ahead of the trainer. It can save its exact position and resume there. `BatchLoader` does this for
a DataLoader with workers. Both datasets cross into worker processes by fork or by pickling. Only the store's address
crosses: each process opens its own connection at its first read.

The file is long because it describes the arguments of both datasets in full: a fifth of it is docstrings.
"""

from __future__ import annotations

import inspect
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias, cast

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.objects.bucket import Bucket
from ais_loader.plans.groups import Tail, check_world_size
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.training.number_batches import (
    checked_index,
    has_ranges,
    in_packs,
    part_digests,
    sample_numbers,
    samples_of,
)
from ais_loader.training.plan import (
    Plan,
    Position,
    WorkerShare,
    check_plan,
    parse_state,
    position_state,
    split_steps,
    worker_state,
)
from ais_loader.training.plan_sender import PlanSender
from ais_loader.training.process_client import ClientOrUrl, ProcessClient
from ais_loader.training.refused_loaders import refuse_accelerate, refuse_batches_of_batches
from ais_loader.training.run import Run, is_distributed, process_place
from ais_loader.training.sample_parts import SampleLike, SampleParts, flat_entries, mapped, pinned_sample
from ais_loader.training.take_samples import Decode, OnBatch, decoder, take_samples
from ais_loader.values.batch import Batch
from ais_loader.values.entry import EntryLike, to_entry
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.requests import OnError, batch_options

with needs("torch", "datasets"):
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info

Collate: TypeAlias = Callable[[list[Any]], Any]

_ELSEWHERE = dict.fromkeys(
    ("num_workers", "prefetch_factor", "sampler", "batch_sampler", "pin_memory", "worker_init_fn"),
    "the DataLoader takes it",
) | dict.fromkeys(
    ("batch_size", "shuffle", "drop_last"), "with MapDataset the DataLoader takes it, otherwise the plan, ShufflePlan"
)


class MapDataset(Dataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """A map-style dataset of n entries, for a DataLoader with any sampler.

    `__getitems__` fetches a whole batch with one request.

    Indices work like those of a list: -n to n - 1, of any integer type. Others raise IndexError, or TypeError if they
    are not integers.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[SampleLike] | Bucket | os.PathLike[str],
        decode: Decode | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        bucket: str | None = None,
        pinned: bool = False,
        on_error: OnError = "raise",
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url: A Client, or the address that each process connects to at its first read.
            entries: Entry values, ais:// URLs, or results of `Bucket.objects`. A list or tuple of whole objects of one
                bucket is stored as an `EntryTable`. Any other sequence is kept as it is, and indexed only for what is
                read. You can also pass a bucket, or the single str "ais://bucket/prefix": the objects whose names begin
                with the prefix are then listed immediately, in the order of names. The URL of a remote place, such as
                "s3://corpus/v3/en/", creates a remote bucket for the cloud bucket if there is none. The path of a
                saved `EntryTable` opens it, without a listing: all processes of a machine share its memory.
                An element may also be a tuple or a dict of entries, which form one sample and are fetched with the same
                request. `Bucket.samples` lists those of shards.
            decode: A function from an Item to a sample, such as those of `ais_loader.decoders`. For a sample of several
                entries, it gets a tuple or a dict of Items, in the same form. It runs in the process that fetched the
                batch. `item.data` is a view, so copy what you want to keep. The function must be picklable if workers
                are spawned. Without `decode`, a sample is bytes.
            transform: A function from a sample to a sample. It runs after `decode`, in the same process. Samples of
                failed entries do not pass through it.
            bucket: The bucket of those entries that are plain names.
            pinned: Whether to pin the listed objects to their current versions. If such an object is replaced later,
                reading it raises ObjectNotFound. A table is pinned if it was listed so.
            on_error: With "raise", the first failed entry raises its error out of the DataLoader, with its own type.
                With "placeholder", its sample is None, or what `decode` returns for an item that is not `ok`. One
                failed entry of several counts as a failure of the sample: the error's note names the sample and the
                entry, and `decode` gets all of its Items.
            timeout_s: The longest time to wait for the next data, in seconds.
            retry_s: With the URL of storage nodes: how long to keep trying to reach a node that does not answer, in
                seconds. The default is that of ClusterOptions. A Client has its own.
            on_batch: A function that is called with the `BatchTiming` of every fetched batch, in the process that
                fetched it: the worker. It must be picklable if workers are spawned.
            options: Further fields of BatchOptions.

        Raises InvalidRequest, TypeError, and the errors of listing. Reading raises the errors of `Client.get_batch`,
        and those of `decode` and `transform`.
        """
        self._client = ProcessClient(client_or_url, retry_s)
        self._decode = decoder(decode, transform)
        self._on_batch = on_batch
        self._bucket = bucket
        self._entries = entry_sequence(self._client, entries, bucket, pinned)
        self._options = _checked_options(MapDataset, options, on_error, timeout_s)

    def __repr__(self) -> str:
        return f"<MapDataset of {len(self._entries):,} entries, {self._client!r}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the sample at an index, or the list of samples in a slice, with one request."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self._entries))))
        return self.__getitems__((index,))[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the samples at these indices, in order, with one request. The DataLoader calls this per batch.

        For the packs of a PackPlan's batch, it returns the list of each pack's pieces.
        """
        count = len(self._entries)
        wanted = [checked_index(index, count) for index in sample_numbers(indices)]
        entries = self._entries
        are_pieces = has_ranges(indices)
        if self._decode is None and isinstance(entries, EntryTable) and not (are_pieces or entries.is_pinned):
            batch = self._client.get().bucket(entries.bucket).get_batch(entries.names(wanted), **self._options)
        else:
            samples = samples_of(entries, wanted, indices, self._bucket)
            parts = SampleParts.of(samples, wanted)
            batch = self._request(samples if parts is None else parts.entries)
            return in_packs(take_samples(batch, self._decode, self._on_batch, parts), indices, are_pieces=are_pieces)
        return in_packs(take_samples(batch, self._decode, self._on_batch), indices)

    def __add__(self, other: Any) -> Dataset[Any]:
        """Return `ais_loader.concat([self, other])`."""
        from ais_loader.training.concat import concat

        return concat([self, other])

    # -- for `concat`

    @property
    def _request_key(self) -> Hashable:
        # Datasets with equal keys can fetch their entries with one request.
        return self._client.address, self._client.options, tuple(sorted(self._options.items()))

    def _entry(self, at: int) -> Any:
        return mapped(self._entries[at], lambda entry: to_entry(entry, self._bucket))

    def _request(self, entries: Sequence[Any]) -> Batch:
        batch: Batch = self._client.get().get_batch(entries, bucket=self._bucket, **self._options)
        return batch


class BatchIterableDataset(IterableDataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """An iterable-style dataset of whole batches, in a plan's order.

    Use it with `BatchLoader`, or with `DataLoader(batch_size=None, num_workers=k)`.

    Shapes: A batch of B entries is a list of B samples in the plan's order, or what `collate` makes of that list. A
    sample is what `decode` returns for an item, or bytes without it.

    Iterating yields one epoch: the batches of this rank or, in a DataLoader's worker, those of this worker. The loader
    therefore delivers the plan's order for any `num_workers`. While you use a batch, the next `in_flight` batches are
    in flight.

    An iteration starts at the position that `set_epoch` or `load_state_dict` set last. The position does not advance by
    itself: without `set_epoch`, every iteration is the same. (`BatchLoader` does advance it.)
    """

    def __init__(
        self,
        samples: ClientOrUrl | Dataset[Any],
        plan: Plan,
        decode: Decode | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        bucket: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        in_flight: int = 3,
        tail: Tail | None = None,
        collate: Collate | None = None,
        on_error: OnError = "raise",
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            samples: A map-style dataset with `__getitems__`, whose samples the plan's numbers stand for. All of a
                MapDataset's own arguments apply. Other datasets, such as that of `concat`, read one batch at a time in
                each worker. For a plan of your own that returns entries: a Client, or the store's address.
            plan: A plan of `ais_loader.plans`, or another object with the pure functions `batch(epoch, step)` and
                `steps(epoch)`. See `Plan`.
            decode, transform, bucket, on_error, timeout_s, retry_s, on_batch, options: See MapDataset. Only for a plan
                that returns entries.
            rank, world_size: The part of the plan to read here. By default, they come from torch.distributed when the
                iteration starts, or else from the environment (RANK, WORLD_SIZE). If neither is set, everything is
                read.
            in_flight: The number of batches to request ahead, per worker.
            tail: What to do at the end of an epoch if there is not one batch left for every rank. With "repeat", the
                ranks without one repeat the first batches of the epoch, as torch's DistributedSampler repeats samples.
                With "drop", no rank reads the last batches. In both cases, all ranks have equally many batches. With
                "uneven", every batch is read exactly once, and some ranks have one batch more. This suits evaluation.
                Training that waits for all ranks at every step, such as DistributedDataParallel, would hang. Plans over
                numbers have a `tail` of their own. For other plans, the default is "repeat".
            collate: A function from a list of samples to a batch. It runs in the process that fetched the batch.
                Without it, a batch is that list.

        Raises InvalidRequest, TypeError.
        """
        if not callable(getattr(plan, "batch", None)) or not callable(getattr(plan, "steps", None)):
            raise TypeError(
                f"a plan has batch(epoch, step) and steps(epoch), got {type(plan).__name__}; "
                "a sampler goes with MapDataset and a DataLoader, and entries go with MapDataset"
            )
        if (rank is None) != (world_size is None):
            raise InvalidRequest(f"rank={rank}, world_size={world_size}: give both or neither")
        own_tail = plan.tail if isinstance(plan, NumberPlan) else None
        if tail is not None and own_tail is not None and tail != own_tail:
            raise InvalidRequest(f"tail={tail!r}: the plan has tail={own_tail!r}")
        self._tail: Tail = own_tail or tail or "repeat"
        split_steps(0, rank=rank or 0, world_size=1 if world_size is None else world_size, tail=self._tail)
        if in_flight < 1:
            raise InvalidRequest(f"in_flight={in_flight}: need at least 1")
        self.plan = plan
        self._grouped: NumberPlan | None = None
        self._group = 0
        """The plan's group in the state that was loaded, or 0."""
        self._samples: Any = None
        self._entries: Sequence[SampleLike] | None = None
        self._digests: list[tuple[int, str]] | None = None
        if hasattr(samples, "__getitems__"):
            given = (decode, transform, bucket, retry_s, on_batch, None if on_error == "raise" else on_error)
            if any(one is not None for one in given) or options or timeout_s != 30.0:
                raise InvalidRequest("a dataset of samples has its own decode, transform, and options")
            self._samples = samples
        else:
            self._client = ProcessClient(samples, retry_s)
            self._decode = decoder(decode, transform)
            self._on_batch, self._bucket = on_batch, bucket
            self._options = _checked_options(BatchIterableDataset, options, on_error, timeout_s)
        if fetches_entries(self._samples):
            for name in ("_client", "_decode", "_on_batch", "_bucket", "_options", "_entries"):
                setattr(self, name, getattr(self._samples, name))
            self._samples = None
        if isinstance(plan, NumberPlan):
            if not self._is_numbered:
                raise InvalidRequest(
                    "the plan has numbers, which need a dataset: BatchIterableDataset(MapDataset(store, entries, "
                    "decode), plan)"
                )
            count = len(self._samples if self._entries is None else self._entries)
            if count != plan.n:
                raise InvalidRequest(f"the plan has n={plan.n:,} numbers, for {count:,} samples")
        self._collate = collate
        self._place = None if rank is None or world_size is None else (rank, world_size)
        self._in_flight = in_flight
        self._start = Position()
        self._share: WorkerShare | None = None
        self._run: Run | None = None
        self._find_start = False
        # The start where workers that outlive an iteration can see it: (epoch, step, group) in shared memory.
        self._shared_start = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._owner_pid = os.getpid()
        self._drawing = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        refuse_accelerate(sys._getframe(1), self.place)  # a spawned worker does not know who asks
        state = self.__dict__ | {"_run": None, "_drawing": None}
        if self._place is None and is_distributed():
            state["_place"] = self.place()  # a spawned worker could not ask: its process group is not set up
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._drawing = threading.Lock()
        self._shared_start.share_memory_()  # no change when it arrived as shared memory, as it does in a worker

    def __repr__(self) -> str:
        return f"<BatchIterableDataset of {self.plan!r}, {self._client if self._samples is None else self._samples!r}>"

    @property
    def _is_numbered(self) -> bool:
        return self._samples is not None or self._entries is not None

    def _plan(self, step: int = 0) -> Plan:
        """Return the plan with its group of steps, which these ranks can divide from a step on.

        The group of a plan without one is that of the loaded state, or else the world size.
        """
        if not isinstance(self.plan, NumberPlan):
            return self.plan
        world_size = self.place()[1]
        group = self._group or self.plan.group or world_size
        if self._grouped is None or self._grouped.group != group:
            self._grouped = self.plan.with_group(group)
        check_world_size(group, world_size, step)
        return self._grouped

    def _fingerprint(self, position: Position, share: WorkerShare | None = None) -> str | None:
        """Return a text that two runs have in common if the plan gave them the same batches before a position."""
        plan = self._plan()
        if not isinstance(plan, NumberPlan):
            return getattr(plan, "fingerprint", None)
        step = position.step + (0 if share is None else share.batches * share.num_workers * share.world_size)
        if self._digests is None:
            self._digests = part_digests(getattr(self._samples, "datasets", []) if self._entries is None else [self])
        used = plan.numbers_before(position.epoch, step)
        entries = ",".join(digest for first, digest in self._digests if first < used)
        return f"{plan.fingerprint_at(position.epoch, step)} entries={entries}"

    def own_position(self) -> None:
        """For BatchLoader: A rank that got this dataset from its launcher shares no position with the others."""
        if self._owner_pid != os.getpid():
            self._shared_start = self._shared_start.clone().share_memory_()
            self._owner_pid = os.getpid()

    def place(self) -> tuple[int, int]:
        """Return (rank, world_size) of this process.

        Raises InvalidRequest if the environment sets only one of them, or if they are not numbers.
        """
        return process_place() if self._place is None else self._place

    def __len__(self) -> int:
        """Return the number of batches of this rank in the whole epoch, wherever the iteration starts.

        Raises TypeError if the epoch has no end.
        """
        steps = self._plan().steps(self.epoch)
        if steps is None:
            raise TypeError("the plan's epoch has no end, and so no length")
        rank, world_size = self.place()
        return len(split_steps(steps, rank=rank, world_size=world_size, tail=self._tail))

    @property
    def epoch(self) -> int:
        """The epoch that an iteration started now would read."""
        return self._begin(self._start).epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads.

        The iteration starts at the beginning of the epoch or, if it is the epoch that `load_state_dict` set, at the
        restored position. A running iteration is not affected.
        """
        if epoch != self.epoch:
            self._move(Position(operator.index(epoch), 0), None)

    def _begin(self, position: Position) -> Position:
        """Return the position, or the beginning of the next epoch if no rank has a batch left in this one."""
        if position.step and (steps := self._plan().steps(position.epoch)) is not None:
            # Rank 0 has a batch whenever another rank has one.
            left = split_steps(steps, start=position.step, world_size=self.place()[1], tail=self._tail)
            return position if left else Position(position.epoch + 1)
        return position

    def _move(self, start: Position, share: WorkerShare | None) -> None:
        self._start, self._share, self._run = start, share, None
        self._find_start = False
        if get_worker_info() is None:
            self._shared_start[:] = torch.tensor((start.epoch, start.step, self._group))

    def begin_run(self) -> Run:
        """For BatchLoader: Restart the count at the position set last. `state_dict` reads the latest run's count."""
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info is not None else (0, 1)
        if info is not None:
            # A worker begins with the position that it was made with or given; used again, it looks where that is now.
            if self._find_start:
                *start, self._group = self._shared_start.tolist()
                self._start, self._share = Position(*start), None
            self._find_start = True
        rank, world_size = self.place()
        start = self._begin(self._start) if self._share is None else self._start
        mine = split_steps(
            self._plan(start.step).steps(start.epoch),
            start=start.step,
            rank=rank,
            world_size=world_size,
            worker=worker,
            num_workers=num_workers,
            tail=self._tail,
        )
        self._run = Run(start, self._share, rank, world_size, worker, num_workers, mine)
        return self._run

    def end_run(self) -> None:
        """For BatchLoader: If the latest run has delivered all its batches, the next one reads the next epoch."""
        if self._run is not None and not self._run.left:
            self._move(Position(self._run.start.epoch + 1), None)

    def __iter__(self) -> Iterator[Any]:
        refuse_batches_of_batches(sys._getframe(1))
        refuse_accelerate(sys._getframe(1), self.place)
        return self._deliver(self.begin_run())

    def _deliver(self, run: Run) -> Iterator[Any]:
        drawn: deque[Sequence[Any]] = deque()
        """Batches of the plan whose samples have not arrived."""

        def batches() -> Iterator[Sequence[Any]]:
            for step in run.left:
                drawn.append(self.draw(run.start.epoch, step))
                yield drawn[-1]

        for samples in self._read(batches()):
            batch = drawn.popleft()
            if self._is_numbered:
                are_pieces = self._samples is None and has_ranges(batch)
                samples = in_packs(samples, batch, are_pieces=are_pieces)
            result = samples if self._collate is None else self._collate(samples)
            run.delivered += 1
            yield result

    def _read(self, drawn: Iterator[Sequence[Any]]) -> Iterator[list[Any]]:
        """Return the samples of each batch of the plan."""
        if self._samples is not None:
            yield from (list(self._samples.__getitems__(sample_numbers(batch))) for batch in drawn)
            return
        waiting: deque[SampleParts | None] = deque()
        """Parts of the requested samples that have not arrived."""

        def wanted() -> Iterator[Sequence[Any]]:
            for batch in drawn:
                samples = self._fetched(batch)
                parts = SampleParts.of(samples, sample_numbers(batch) if self._is_numbered else None)
                waiting.append(parts)
                yield samples if parts is None else parts.entries

        for batch in self._client.get().get_batches(
            wanted(), in_flight=self._in_flight, bucket=self._bucket, **self._options
        ):
            yield take_samples(batch, self._decode, self._on_batch, waiting.popleft())

    def draw(self, epoch: int, step: int) -> Sequence[Any]:
        """Return the plan's batch of a step. Past the end of the epoch's steps, ranks repeat: `split_steps`."""
        plan = self._plan()
        step %= plan.steps(epoch) or sys.maxsize
        if get_worker_info() is not None:  # has its own plan, and perhaps a lock that was inherited while it was held
            return plan.batch(epoch, step)
        with self._drawing:
            return plan.batch(epoch, step)

    def _fetched(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Return the samples that a batch of the plan needs, each as its entry or entries."""
        if self._entries is None:
            return batch
        return samples_of(self._entries, sample_numbers(batch), batch, self._bucket)

    def send_plan(self, run: Run, expect_steps: int) -> PlanSender | None:
        """For BatchLoader: Begin to tell the store what a run will read; None if this is of no use there."""
        if not expect_steps or not run.left or self._samples is not None or not self._client.is_shared:
            return None
        epoch = run.start.epoch

        def draw(step: int) -> Sequence[EntryLike]:
            samples = self._fetched(self.draw(epoch, step))
            return [to_entry(entry, self._bucket) for entry in flat_entries(samples)]

        return PlanSender(self._client, draw, run.left, expect_steps, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches that the latest iteration has yielded, as numbers and strings only.

        After the last batch of an epoch, this is the beginning of the next one.

        The state is the same on all ranks that have had the same number of batches, and it is valid for all of them:
        you can resume with any number of ranks and workers if you load the same state in each. The state that a
        *worker* returns, as torchdata's StatefulDataLoader requests it, applies only to that worker. It can be resumed
        only with the same number of workers and ranks.
        """
        run = self._run
        start, share = self._start, self._share
        if run is not None:
            if not run.is_workers:
                return self.state_after(run, run.delivered)
            start, share = run.start, run.share()
        if share is not None:
            return worker_state(start, share, self._fingerprint(start, share), self._plan_group())
        start = self._begin(start)
        return position_state(start, self.place()[1], self._fingerprint(start), self._plan_group())

    def state_after(self, run: Run, batches: int) -> dict[str, Any]:
        """For BatchSampler: Return the position after this number of a run's batches."""
        position = self._begin(run.position(batches))
        return position_state(position, run.world_size, self._fingerprint(position), self._plan_group())

    def _plan_group(self) -> int | None:
        return getattr(self._plan(), "group", None)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue from this state.

        Raises InvalidRequest if it is not a state, or belongs to another plan, or if the ranks cannot divide the group
        of steps that form one update.
        """
        position, share, group = parse_state(state)
        before, self._group = self._group, group
        try:
            check_plan(state["plan"], self._fingerprint(position, share))
            self._plan(position.step)
        except BaseException:
            self._group = before
            raise
        self._move(position, share)


def fetches_entries(dataset: Any) -> bool:
    """Whether a dataset's samples are its entries after its decoder, so that others can fetch them with theirs."""
    own = type(dataset)
    return isinstance(dataset, MapDataset) and all(
        getattr(own, name) is getattr(MapDataset, name) for name in ("__getitem__", "__getitems__", "__len__")
    )


def _checked_options(kind: type[Any], options: dict[str, Any], on_error: OnError, timeout_s: float) -> dict[str, Any]:
    chosen = {"on_error": on_error, "timeout_s": timeout_s, **options}
    if not batch_options(
        kind.__name__,
        chosen,
        _ELSEWHERE,
        parameters=sorted(set(inspect.signature(kind).parameters) - {"self", "options"}),
    ).ordered:
        raise InvalidRequest("ordered=False: a dataset's samples come in the order of their indices")
    return chosen


def entry_sequence(
    client: ProcessClient, entries: Iterable[SampleLike] | Bucket | os.PathLike[str], bucket: str | None, pinned: bool
) -> Sequence[SampleLike]:
    """Return the entries, listed if necessary. Raises InvalidRequest, TypeError, and the errors of listing."""
    if isinstance(entries, os.PathLike) or (isinstance(entries, str) and _is_file(entries)):
        entries = EntryTable.open(entries)
    elif isinstance(entries, str):
        entries = client.listed(entries, pinned=pinned)
    elif isinstance(entries, Bucket):
        entries = entries.entries(pinned=pinned)
    indexable = hasattr(entries, "__getitem__") and hasattr(entries, "__len__")
    if isinstance(entries, (bytes, Mapping, Set)) or not (indexable or isinstance(entries, Iterable)):
        raise TypeError(
            "entries must be a sequence of Entry values or ais:// URLs, a bucket, or the URL of a prefix, got "
            f"{type(entries).__name__}"
        )
    if pinned and isinstance(entries, EntryTable) and not entries.is_pinned:
        raise InvalidRequest("pinned=True: the table has no versions; list it with Bucket.entries(pinned=True)")
    if not indexable:
        entries = list(entries)
    if not isinstance(entries, (list, tuple)):
        return cast(Sequence[SampleLike], entries)
    if pinned:
        entries = [pinned_sample(sample) for sample in entries]
    if flat_entries(entries) is not entries:
        return entries
    return EntryTable.of(entries, bucket) or entries


def _is_file(text: str) -> bool:
    return "://" not in text and os.path.isfile(os.path.expanduser(text))
