"""Workers: they turn the numbers of a batch into samples, and know nothing about positions and order."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, cast

from ais_loader import errors
from ais_loader.loading.bad_samples import BadSample, OnBad
from ais_loader.plans.pack_plan import Packs
from ais_loader.training.number_batches import checked_index, in_packs, sample_name, sample_numbers, sends_ahead
from ais_loader.training.sample_parts import places_of
from ais_loader.training.sample_seeds import COLLATE, CURRENT, SampleSeeds, read_samples, with_rng
from ais_loader.training.take_samples import HEARD
from ais_loader.values.batch import Batch
from ais_loader.values.timing import BatchTiming, Cause

Collate = Callable[[list[Any]], Any]
_OF_THE_STORE = (
    errors.AccessDenied,
    errors.Closed,
    errors.NodeUnavailable,
    errors.Overloaded,
    errors.RemoteUnavailable,
    errors.SilenceTimeout,
    errors.StaleMap,
    errors.StoreError,
)
"""Errors that say nothing about a sample: they are always raised."""


@dataclass(slots=True)
class FetchedBatch:
    """A batch as a worker delivers it."""

    batch: Any
    worker: str
    timings: list[BatchTiming] = field(default_factory=list)
    """One of each request. Empty for a dataset of another library."""
    dataset_s: float = 0.0
    """Time from the first request to the last sample, without the time before the worker began, in seconds."""
    collate_s: float = 0.0
    transfer_s: float = 0.0
    """Time that the batch took from the worker to the trainer's process, in seconds."""
    starved_s: float = 0.0
    """Part of decoding and collating in which the worker's thread was ready to run, and had no processor."""
    bad: list[BadSample] = field(default_factory=list)


@dataclass(slots=True)
class WorkerProgress:
    """Stage that a worker is in. The thread of the work writes it, and the trainer reads it."""

    worker: str
    stage: str = "request"
    since_s: float = field(default_factory=time.time)
    batches: list[Batch] = field(default_factory=list)

    def enter(self, stage: str) -> None:
        self.stage, self.since_s = stage, time.time()

    def hear(self, cause: Cause) -> None:
        """Note what the time of a batch of a store goes to now."""
        stage = "decode" if cause in ("decode", "consumer") else "receive"
        if stage != self.stage:
            self.enter(stage)

    def __str__(self) -> str:
        return f"{self.worker} is in stage {self.stage!r} since {time.strftime('%X', time.localtime(self.since_s))}"


class Workers(Protocol):
    """Processes or threads that fetch batches. `submit` is called by one thread at a time."""

    def submit(self, ticket: int, work: Any, named: str, seed: int) -> Future[FetchedBatch]:
        """Fetch the samples of `work`, and return at once. The ticket is another one for each call.

        `named`: the batch in words, for errors. `seed`: that of its random numbers.
        """

    def progress(self, ticket: int) -> str:
        """Return which worker has the work of a ticket, and its stage, in words."""

    def restart(self, ticket: int) -> None:
        """Give the work of a ticket to a new worker, and end the one that has it."""

    def close(self, *, wait: bool = True) -> None:
        """End all workers, and abandon their work. May be called again. Without `wait`, do not wait for threads."""


def run_queue_s() -> float:
    """Return how long this thread has waited for a processor since it began, in seconds; 0 if that is not known."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):  # not Linux, or without this counter
        return 0.0


class _FailedBatch:
    """A batch whose request failed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def finish(self) -> NoReturn:
        raise self._error

    packed = finish

    def close(self) -> None:
        pass


@contextmanager
def _exits_are_errors(where: str) -> Iterator[None]:
    """Raise EntryFailed for SystemExit, which would end the trainer."""
    try:
        yield
    except SystemExit as error:
        raise errors.EntryFailed(f"sys.exit({error.code!r}) was called in {where}") from error


class Fetcher:
    """Fetches, decodes and collates. It pickles, for workers in other processes.

    A dataset with `begin(work)` is asked ahead, by the thread that submits: `begin` returns an object with `finish()`,
    which returns the samples, and `close()`. Otherwise, `__getitems__(work)` returns them, or `__getitem__` each.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate | None = None,
        on_bad: OnBad = "raise",
        *,
        packed: bool = False,
        reserve: Sequence[Any] = (),
    ) -> None:
        self.dataset, self.on_bad, self.packed, self.reserve = dataset, on_bad, packed, reserve
        self.collate = None if collate is None else with_rng(collate)
        self._begins = sends_ahead(dataset)

    def begin(self, work: Any) -> Any:
        """Request the samples ahead, if the dataset can. An error is raised by `finish`, as one of the batch."""
        if not self._begins:
            return None
        try:
            with _exits_are_errors("begin()"):
                return self.dataset.begin(work)
        except Exception as error:  # noqa: BLE001 - of any dataset
            return _FailedBatch(error)

    def finish(self, work: Any, pending: Any, progress: WorkerProgress, seeds: SampleSeeds) -> FetchedBatch:
        """Return the batch. Raises the errors of the dataset, and of `collate`."""
        HEARD.batches, HEARD.cause = progress.batches, progress.hear
        CURRENT.seeds = seeds
        progress.enter("fetch" if self._begins else "decode")  # a dataset of its own does both, unheard
        began_s, starved_s = time.perf_counter(), run_queue_s()
        try:
            samples, bad = _good_samples(self, work, pending)
            got_s = time.perf_counter()
            timings = [batch.timing for batch in progress.batches]
            progress.enter("collate")
            seeds.seed_at(COLLATE)
            with _exits_are_errors("collate()"):
                batch = samples if self.collate is None else self.collate(samples)
        finally:
            HEARD.batches = HEARD.cause = CURRENT.seeds = None
            progress.batches = []
        ended_s = time.perf_counter()
        starved_s = run_queue_s() - starved_s
        return FetchedBatch(
            batch, progress.worker, timings, got_s - began_s, ended_s - got_s, starved_s=starved_s, bad=bad
        )

    def samples(self, work: Any, pending: Any = None) -> Any:
        """Return the samples of a batch, or of a part of it."""
        if self._begins:
            pending = self.begin(work) if pending is None else pending
            return pending.packed() if self.packed else pending.finish()
        with _exits_are_errors("the dataset"):
            return in_packs(read_samples(self.dataset, sample_numbers(work)), work)

    def name_of(self, work: Any) -> str:
        """Return the name of the first sample of a batch: its entry, or its number."""
        if (own := getattr(self.dataset, "name_of", None)) is not None:
            return str(own(work))
        if not len(work):
            return "an empty batch"
        try:
            number = sample_numbers(work[:1])[0]
            is_number = hasattr(number, "__index__")
            name = sample_name(self.dataset, operator.index(number)) if is_number else places_of(number)
        except Exception:  # noqa: BLE001 - a number out of range, which the dataset reports
            name = f"sample {number}"
        return name if len(work) == 1 else f"{name}, …"


def _good_samples(fetcher: Fetcher, work: Any, pending: Any) -> tuple[Any, list[BadSample]]:
    """Return the samples of a batch without the bad ones, or with others in their place, and the bad ones.

    If the batch fails, its halves are fetched again, and theirs, until the samples that fail are found.
    """
    try:
        return fetcher.samples(work, pending), []
    except Exception as error:
        if not len(work) or isinstance(error, _OF_THE_STORE) or _policy(fetcher, error, asks=False) == "raise":
            raise
        _refuse_bad_numbers(fetcher, work)
        found = list(_each(fetcher, work, error, work, 0))
    good = [at for at, one in enumerate(found) if not isinstance(one, Exception)]
    bad, samples = [], []
    for at, one in enumerate(found):
        if not isinstance(one, Exception):
            samples.append(one)
            continue
        policy = _policy(fetcher, one)
        if policy not in ("skip", "substitute"):
            raise one
        if not good and not (policy == "substitute" and fetcher.reserve):
            raise errors.EntryFailed(f"none of the {len(found)} samples of a batch is good: {one}") from one
        bad.append(BadSample(fetcher.name_of(_part(work, at, at + 1)), type(one).__name__))
        if policy == "substitute" and fetcher.reserve:
            samples.append(_from_reserve(fetcher, at))
        elif policy == "substitute":
            samples.append(found[next((other for other in good if other > at), good[0])])
    return samples, bad


def _policy(fetcher: Fetcher, error: Exception, *, asks: bool = True) -> Any:
    """Return what is to be done about a bad sample. Without `asks`, a function of the user is not called for it."""
    if fetcher.reserve and isinstance(error, errors.ObjectDenied):
        return "substitute"
    return cast(Any, fetcher.on_bad)(error) if asks and callable(fetcher.on_bad) else fetcher.on_bad


def _from_reserve(fetcher: Fetcher, place: int) -> Any:
    """Return the substitute for the sample at this place of a batch: the same one wherever the batch is fetched."""
    seeds = cast(SampleSeeds, CURRENT.seeds)
    first = seeds.drawn("reserve", place)
    problem: Exception | None = None
    for at in range(len(fetcher.reserve)):
        seeds.seed_at(place)
        try:
            return fetcher.samples([fetcher.reserve[(first + at) % len(fetcher.reserve)]])[0]
        except _OF_THE_STORE:
            raise
        except Exception as error:  # noqa: BLE001 - of any decoder; the next one may be good
            problem = error
    raise errors.EntryFailed(f"none of the {len(fetcher.reserve)} samples of the reserve is good: {problem}")


def _each(fetcher: Fetcher, work: Any, error: Exception, whole: Any, first: int) -> Iterator[Any]:
    """Yield each sample of a batch that failed, or the error of the sample. `work` begins at `first` of the `whole`."""
    if len(work) == 1:
        yield error
        return
    middle = len(work) // 2
    for part, at in ((_part(work, 0, middle), first), (_part(work, middle, len(work)), first + middle)):
        if CURRENT.seeds is not None:
            CURRENT.seeds.seed_at(len(sample_numbers(whole[:at])) if at else 0)  # as in the whole batch
        try:
            samples = fetcher.samples(part)
        except _OF_THE_STORE:
            raise
        except Exception as part_error:  # noqa: BLE001 - of any decoder
            yield from _each(fetcher, part, part_error, whole, at)
            continue
        if isinstance(samples, (Mapping, tuple)) or len(samples) > len(part):  # a handler may have left some out
            raise errors.InvalidRequest(
                f"on_bad={fetcher.on_bad!r}: the dataset returns a {type(samples).__name__} for a batch of {len(part)} "
                f"samples, so that bad ones are not told apart; {type(error).__name__}: {error}"
            )
        yield from samples


def _part(work: Any, first: int, stop: int) -> Any:
    part = work[first:stop]
    if isinstance(work, Packs):
        part = Packs(part)
        vars(part).update(vars(work))
    return part


def _refuse_bad_numbers(fetcher: Fetcher, work: Any) -> None:
    """Raise IndexError or TypeError for numbers that the dataset does not have: the sampler is at fault."""
    numbers = sample_numbers(work)
    if hasattr(fetcher.dataset, "__len__") and not any(isinstance(number, (str, tuple, dict)) for number in numbers):
        for number in numbers:
            if hasattr(number, "__index__"):
                checked_index(number, len(fetcher.dataset))
