"""PyTorch datasets over a store, where a batch is one storage request.

`MapDataset` serves any sampler that runs in the DataLoader's own process; `BatchIterableDataset` reads whole batches
from a plan, several ahead of the trainer, and can say its exact place and resume there (`BatchLoader` does so for a
DataLoader with workers). Both cross into worker processes by fork or by pickling: what crosses is the store's address,
and each process makes a connection of its own at its first read.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from typing import Any, TypeAlias, cast

from ais_loader.batch import Batch
from ais_loader.bucket import Bucket
from ais_loader.client import Client, connect
from ais_loader.entry import Entry, EntryLike, Item, ObjectInfo, to_entry
from ais_loader.entry_table import EntryTable
from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from ais_loader.plan import Plan, Position, WorkerShare, parse_state, position_state, split_steps, worker_state
from ais_loader.requests import OnError, batch_options
from ais_loader.timing import BatchTiming
from ais_loader.urls import SCHEME, store_folders

with needs("torch", "datasets"):
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
    from torch.utils.data._utils.fetch import _BaseDatasetFetcher

ClientOrUrl: TypeAlias = Client | str | os.PathLike[str]
Decode: TypeAlias = Callable[[Item], Any]
Collate: TypeAlias = Callable[[list[Any]], Any]
OnBatch: TypeAlias = Callable[[BatchTiming], object]

_ELSEWHERE = dict.fromkeys(
    ("num_workers", "prefetch_factor", "sampler", "batch_sampler", "pin_memory", "worker_init_fn"),
    "the DataLoader takes it",
) | dict.fromkeys(
    ("batch_size", "shuffle", "drop_last"), "with MapDataset the DataLoader takes it, otherwise the plan, ShufflePlan"
)


class ProcessClient:
    """The client that datasets use in this process: the caller's own, or one opened from a URL at the first read.

    One opened here only reads, so that any number of workers can have an embedded store open beside its writer.
    """

    def __init__(self, client_or_url: ClientOrUrl) -> None:
        if not isinstance(client_or_url, (Client, str, os.PathLike)):
            raise TypeError(
                f"need a Client, or a store's URL or path, before what is read, got {type(client_or_url).__name__}"
            )
        if not isinstance(client_or_url, Client) and not os.fspath(client_or_url).startswith("grpc://"):
            store_folders(os.fspath(client_or_url))  # an address that is none is told here, not in a worker
        self._given = client_or_url if isinstance(client_or_url, Client) else os.fspath(client_or_url)
        self._opened: Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def __repr__(self) -> str:
        return repr(self._given.url if isinstance(self._given, Client) else self._given)

    def listed(self, url: str, *, pinned: bool) -> Sequence[Entry]:
        """Entries of the objects below the prefix `ais://bucket/prefix`. Raises InvalidRequest if there are none."""
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not bucket:
            hint = f"; did you mean 'ais://{url}/'?" if "/" not in url else ""
            raise InvalidRequest(f"{url!r}: need a list of entries, or the URL of a prefix, ais://bucket/prefix{hint}")
        with ExitStack() as opened:  # closed again, lest what is forked afterwards inherit it
            given = self._given
            client = given if isinstance(given, Client) else opened.enter_context(connect(given, mode="r"))
            found = client.bucket(bucket).entries(prefix, pinned=pinned)
        if not found:
            raise InvalidRequest(f"{url!r}: no object of bucket {bucket!r} has a name that begins with {prefix!r}")
        return found

    def get(self) -> Client:
        if isinstance(self._given, Client):
            return self._given
        if self._opened is None:
            self._opened = connect(self._given, mode="r")
        return self._opened


def take_samples(batch: Batch, decode: Decode | None, on_batch: OnBatch | None = None) -> list[Any]:
    """The samples of one fetched batch, in order: what a dataset hands on, and in a worker what crosses to the trainer.

    Nothing in them refers to the batch's buffers unless `decode` kept a view. This is the one place to change how a
    batch's bytes reach another process.
    """
    with batch:
        batch.between_frames = "decode"
        samples = batch.tobytes() if decode is None else list(_decoded(batch, decode))
    if on_batch is not None:
        on_batch(batch.timing)
    return samples


def _decoded(batch: Batch, decode: Decode) -> Iterator[Any]:
    for item in batch:
        try:
            yield decode(item)
        except Exception as error:
            entry = to_entry(item.entry)
            where = f"ais://{entry.bucket}/{entry.name}" + (f"/{entry.member}" if entry.member else "")
            error.add_note(f"raised by decode() for entry {item.index} of its batch, {where}")
            raise


class _Transformed:
    """A decoder and what is done to its samples; those of entries that failed are as the decoder leaves them."""

    def __init__(self, decode: Decode | None, transform: Callable[[Any], Any]) -> None:
        self._decode, self._transform = decode, transform

    def __call__(self, item: Item) -> Any:
        if not item.ok:
            return None if self._decode is None else self._decode(item)
        return self._transform(item.tobytes() if self._decode is None else self._decode(item))


def _decoder(decode: Decode | None, transform: Callable[[Any], Any] | None) -> Decode | None:
    """Raises TypeError."""
    for name, given in (("decode", decode), ("transform", transform)):
        if given is not None and not callable(given):
            raise TypeError(f"{name} is a {type(given).__name__}: need a function")
    return decode if transform is None else _Transformed(decode, transform)


class MapDataset(Dataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """n entries by number, for a DataLoader with any sampler. `__getitems__` fetches a whole batch with one request.

    Numbers count like a list's: -n to n - 1, of any integer type; others raise IndexError, or TypeError for no integer.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        decode: Decode | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        bucket: str | None = None,
        pinned: bool = False,
        on_error: OnError = "raise",
        timeout_s: float = 30.0,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url: a Client, or where to connect to, in each process at its first read.
            entries: Entry values, ais:// URLs, or what `Bucket.objects` lists. A list or tuple of one bucket's whole
                objects is stored as an `EntryTable`; any other sequence is kept as it is, and asked for only what is
                read. Or a bucket, or the one str "ais://bucket/prefix": the objects whose names begin with it, listed
                here and now, in the order of names.
            decode: an Item to a sample, as those of `ais_loader.decoders` do. It runs where the batch was fetched;
                `item.data` is a view, so copy what is to be kept. Must pickle if workers are spawned. Without it a
                sample is bytes.
            transform: a sample to a sample, after `decode` and where that runs. Those of entries that failed are left
                as they are.
            bucket: what entries that are mere names are of.
            pinned: of what is listed, the versions that it has now: an object that is replaced later raises
                ObjectNotFound when it is read.
            on_error: "raise": the first entry that failed raises its error out of the DataLoader, with its own type.
                "placeholder": its sample is None, or what `decode` makes of an item that is not `ok`.
            timeout_s: the longest silence, in seconds.
            on_batch: called with the `BatchTiming` of every batch that was fetched, where it was: in the worker. Must
                pickle if workers are spawned.
            options: further fields of BatchOptions.

        Raises InvalidRequest, TypeError, and what listing raises. Reading raises what `Client.get_batch` does, and
        what `decode` and `transform` raise.
        """
        self._client = ProcessClient(client_or_url)
        self._decode = _decoder(decode, transform)
        self._bucket = bucket
        self._entries = _sequence(self._client, entries, bucket, pinned)
        self._on_batch = on_batch
        self._options = _checked_options("MapDataset", options, on_error, timeout_s)

    def __repr__(self) -> str:
        return f"<MapDataset of {len(self._entries):,} entries, {self._client!r}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int | slice) -> Any:
        """The sample at an index, or a list of those of a slice, by one request."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self._entries))))
        return self.__getitems__((index,))[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """The samples at these indices, in their order, by one request; the DataLoader calls it for each batch."""
        count = len(self._entries)
        wanted = [_position(index, count) for index in _as_integers(indices)]
        client, entries = self._client.get(), self._entries
        if self._decode is None and isinstance(entries, EntryTable):
            batch = client.bucket(entries.bucket).get_batch(entries.names(wanted), **self._options)
        else:
            batch = client.get_batch([entries[at] for at in wanted], bucket=self._bucket, **self._options)
        return take_samples(batch, self._decode, self._on_batch)


class BatchIterableDataset(IterableDataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """Whole batches in a plan's order, for `BatchLoader`, or `DataLoader(batch_size=None, num_workers=k)`.

    Shapes: of a batch of B entries a list of B samples, in the plan's order, or what `collate` makes of it. A sample is
    what `decode` makes of an item, without it bytes.

    Iterating yields one epoch: the batches of this rank, and in a DataLoader's worker those of this worker, such that
    the loader delivers the plan's order whatever `num_workers` is. The next `in_flight` batches are under way while one
    is being used.

    An iteration starts at the position that was set last, by `set_epoch` or `load_state_dict`. It does not move on by
    itself: without `set_epoch` every iteration is the same. (`BatchLoader` moves on.)
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        plan: Plan,
        decode: Decode | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        in_flight: int = 3,
        even_ranks: bool = False,
        collate: Collate | None = None,
        on_error: OnError = "raise",
        timeout_s: float = 30.0,
        on_batch: OnBatch | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, decode, transform, on_error, timeout_s, on_batch, options: as for MapDataset.
            plan: `batch(epoch, step)` and `steps(epoch)`, pure functions; see `Plan`.
            rank, world_size: which part of the plan is read here. Without them torch.distributed is asked when the
                iteration starts, then the environment (RANK, WORLD_SIZE), and else all of it is.
            in_flight: batches requested ahead, per worker.
            even_ranks: leave out the end of an epoch that not every rank has a batch of. Without it nothing is left
                out, and some ranks get one batch more: a training that waits for all ranks at every step would hang.
            collate: a list of samples to a batch, where it was fetched. Without it a batch is that list.

        Raises InvalidRequest, TypeError.
        """
        if not callable(getattr(plan, "batch", None)) or not callable(getattr(plan, "steps", None)):
            raise TypeError(
                f"a plan has batch(epoch, step) and steps(epoch), got {type(plan).__name__}; "
                "a sampler goes with MapDataset and a DataLoader, entries with MapDataset or in a ShufflePlan"
            )
        if (rank is None) != (world_size is None):
            raise InvalidRequest(f"rank={rank}, world_size={world_size}: give both or neither")
        if rank is not None and world_size is not None:
            split_steps(0, rank=rank, world_size=world_size)
        if in_flight < 1:
            raise InvalidRequest(f"in_flight={in_flight}: need at least 1")
        self.plan = plan
        self._client = ProcessClient(client_or_url)
        self._decode = _decoder(decode, transform)
        self._collate = collate
        self._on_batch = on_batch
        self._place = None if rank is None or world_size is None else (rank, world_size)
        self._in_flight = in_flight
        self._even_ranks = even_ranks
        self._options = _checked_options("BatchIterableDataset", options, on_error, timeout_s)
        self._start = Position()
        self._share: WorkerShare | None = None
        self._run: Run | None = None
        self._look_for_start = False
        # The start position where workers that outlive an iteration can see it: (epoch, step) in shared memory.
        self._shared_start = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._owner_pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_run": None}
        if self._place is None and _distributed():
            state["_place"] = self.place()  # a spawned worker could not ask: its process group is not set up
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared_start.share_memory_()  # no change when it arrived as shared memory, as it does in a worker

    def __repr__(self) -> str:
        return f"<BatchIterableDataset of {self.plan!r}, {self._client!r}>"

    def own_position(self) -> None:
        """For BatchLoader: a rank that was given this dataset by its launcher shares no position with the others."""
        if self._owner_pid != os.getpid():
            self._shared_start = self._shared_start.clone().share_memory_()
            self._owner_pid = os.getpid()

    def place(self) -> tuple[int, int]:
        """(rank, world_size) of this process. Raises InvalidRequest when the environment has one of them only."""
        if self._place is not None:
            return self._place
        if _distributed():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not rank and not world_size:
            return 0, 1
        try:
            return int(rank), int(world_size)
        except ValueError:
            raise InvalidRequest(f"environment: RANK={rank!r}, WORLD_SIZE={world_size!r}: need two numbers") from None

    def __len__(self) -> int:
        """Batches of this rank in the whole epoch, wherever the iteration starts. Raises TypeError if it has no end."""
        steps = self.plan.steps(self._start.epoch)
        if steps is None:
            raise TypeError("the plan's epoch has no end, and so no length")
        rank, world_size = self.place()
        return len(split_steps(steps, rank=rank, world_size=world_size, even_ranks=self._even_ranks))

    @property
    def epoch(self) -> int:
        """The epoch that an iteration started now would read."""
        return self._start.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch: from its beginning, or, if it is the epoch that `load_state_dict` set,
        from the place restored. An iteration under way is not affected."""
        if epoch != self._start.epoch:
            self._move(Position(operator.index(epoch), 0), None)

    def _move(self, start: Position, share: WorkerShare | None) -> None:
        self._start, self._share, self._run = start, share, None
        self._look_for_start = False
        if get_worker_info() is None:
            self._shared_start[0], self._shared_start[1] = start.epoch, start.step

    def begin_run(self) -> Run:
        """For BatchLoader: count anew, from the position set last. `state_dict` reads the latest run's count."""
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info is not None else (0, 1)
        if info is not None:
            # A worker begins with the position that it was made with or given; used again, it looks where that is now.
            if self._look_for_start:
                self._start, self._share = Position(*self._shared_start.tolist()), None
            self._look_for_start = True
        rank, world_size = self.place()
        self._run = Run(self._start, self._share, rank, world_size, worker, num_workers)
        return self._run

    def end_run(self, run: Run) -> None:
        """For BatchLoader: the run reached its epoch's end, so the next one reads the next epoch."""
        if run is self._run:
            self._move(Position(run.start.epoch + 1, 0), None)

    def __iter__(self) -> Iterator[Any]:
        _refuse_batches_of_batches(sys._getframe(1).f_locals.get("self"))
        run = self.begin_run()
        return self._deliver(run, run.steps(self.plan, self._even_ranks))

    def _deliver(self, run: Run, steps: range) -> Iterator[Any]:
        plan, epoch = self.plan, run.start.epoch
        wanted = (plan.batch(epoch, step) for step in steps)
        for batch in self._client.get().get_batches(wanted, in_flight=self._in_flight, **self._options):
            samples = take_samples(batch, self._decode, self._on_batch)
            result = samples if self._collate is None else self._collate(samples)
            run.delivered += 1
            yield result

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that the latest iteration has yielded: numbers and strings only.

        It is the same on all ranks that have had equally many batches, and stands for all of them: it resumes with any
        number of ranks and workers, all given the same state. What a *worker* says of itself (torchdata's
        StatefulDataLoader asks there) is about that worker, and resumes with equally many workers and ranks only.
        """
        fingerprint = getattr(self.plan, "fingerprint", None)
        run = self._run
        if run is None:
            if self._share is not None:
                return worker_state(self._start, self._share, fingerprint)
            return position_state(self._start, self.place()[1], fingerprint)
        if run.is_workers:
            return worker_state(run.start, run.share(), fingerprint)
        return position_state(run.position(), run.world_size, fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state says. Raises InvalidRequest: no state, or one of another plan."""
        position, share = parse_state(state, getattr(self.plan, "fingerprint", None))
        self._move(position, share)


class Run:
    """One iteration's share of the plan, and how much of it has been handed out."""

    def __init__(
        self, start: Position, resumed: WorkerShare | None, rank: int, world_size: int, worker: int, num_workers: int
    ) -> None:
        self.start = start
        self.rank, self.world_size = rank, world_size
        self.worker, self.num_workers = worker, num_workers
        self.is_workers = resumed is not None or get_worker_info() is not None
        self.delivered = 0
        if resumed is not None:
            here = WorkerShare(worker, num_workers, world_size, resumed.batches)
            if here != resumed:
                raise InvalidRequest(
                    f"the state of worker {resumed.worker} of {resumed.num_workers} under {resumed.world_size} ranks "
                    f"cannot resume worker {worker} of {num_workers} under {world_size}; a state of BatchLoader could"
                )
            self.delivered = resumed.batches

    def steps(self, plan: Plan, even_ranks: bool) -> range:
        """What is left to deliver here."""
        mine = split_steps(
            plan.steps(self.start.epoch),
            start=self.start.step,
            rank=self.rank,
            world_size=self.world_size,
            worker=self.worker,
            num_workers=self.num_workers,
            even_ranks=even_ranks,
        )
        return mine[self.delivered :]

    def position(self) -> Position:
        """Ranks take turns, so each batch handed out here stands for a whole round."""
        return Position(self.start.epoch, self.start.step + self.delivered * self.world_size)

    def share(self) -> WorkerShare:
        return WorkerShare(self.worker, self.num_workers, self.world_size, self.delivered)


def _distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _checked_options(dataset: str, options: dict[str, Any], on_error: OnError, timeout_s: float) -> dict[str, Any]:
    chosen = {"on_error": on_error, "timeout_s": timeout_s, **options}
    if not batch_options(dataset, chosen, _ELSEWHERE).ordered:
        raise InvalidRequest("ordered=False: a dataset's samples come in the order of their indices")
    return chosen


def _refuse_batches_of_batches(asks: object) -> None:
    """Raises InvalidRequest if what asks for an iterator is a DataLoader's fetcher that makes batches of its own."""
    if isinstance(asks, _BaseDatasetFetcher) and asks.auto_collation:
        raise InvalidRequest(
            "BatchIterableDataset yields whole batches, and this DataLoader would make batches of them: give the plan "
            "the batch_size, and use BatchLoader(dataset), or DataLoader(dataset, batch_size=None)"
        )


def _sequence(
    client: ProcessClient, entries: Iterable[EntryLike] | Bucket, bucket: str | None, pinned: bool
) -> Sequence[EntryLike]:
    """What is listed is listed here. Raises InvalidRequest, TypeError, and what listing raises."""
    if isinstance(entries, str):
        entries = client.listed(entries, pinned=pinned)
    elif isinstance(entries, Bucket):
        entries = entries.entries(pinned=pinned)
    indexable = hasattr(entries, "__getitem__") and hasattr(entries, "__len__")
    if isinstance(entries, (bytes, Mapping, Set)) or not (indexable or isinstance(entries, Iterable)):
        raise TypeError(
            "entries must be a sequence of Entry values or ais:// URLs, a bucket, or the URL of a prefix, got "
            f"{type(entries).__name__}"
        )
    if not indexable:
        entries = list(entries)
    if not isinstance(entries, (list, tuple)):
        return cast(Sequence[EntryLike], entries)
    if pinned:
        entries = [entry.entry(pinned=True) if isinstance(entry, ObjectInfo) else entry for entry in entries]
    return EntryTable.of(entries, bucket) or entries


def _as_integers(indices: Iterable[int]) -> Iterable[int]:
    # A numpy array or a tensor gives Python integers all at once; a list may hold any kind of integer.
    tolist = getattr(indices, "tolist", None)
    return indices if tolist is None else tolist()


def _position(index: Any, count: int) -> int:
    try:
        at = operator.index(index)
    except TypeError:
        raise TypeError(f"a dataset's index is an int or a slice, not {index!r}; get_batch fetches by name") from None
    if not -count <= at < count:
        raise IndexError(f"index {at} of a dataset of {count:,} entries")
    return at + count if at < 0 else at
