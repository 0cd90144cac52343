"""Batch loader: the trainer draws batches from a plan or sampler, and workers fetch, decode and collate them ahead."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ais_loader.errors import Closed, InvalidRequest
from ais_loader.loading.bad_samples import POLICIES, BadSamples, OnBad, reserve_of
from ais_loader.loading.engine import ON_STALL, Engine, OnStall, StallWatch
from ais_loader.loading.places import SamplerPosition, SamplerRun
from ais_loader.loading.process_workers import START_METHODS, ProcessWorkers, StartMethod
from ais_loader.loading.records import BatchRecord, Summary, explained
from ais_loader.loading.replica_workers import ReplicaWorkers
from ais_loader.loading.replicas import Replicas, placed
from ais_loader.loading.slots import check_pinning
from ais_loader.loading.thread_workers import ThreadWorkers
from ais_loader.loading.workers import Collate, Fetcher, Workers
from ais_loader.name_matching import names_unknown_options
from ais_loader.plans.groups import Tail, whole_number
from ais_loader.plans.mix_plan import MixPlan, Weights
from ais_loader.plans.number_plan import NumberPlan
from ais_loader.training.batch_sampler import BatchSampler
from ais_loader.training.concat import concat
from ais_loader.training.datasets import hides_failures
from ais_loader.training.number_batches import fetches_entries
from ais_loader.training.plan import Plan, Position
from ais_loader.training.plan_position import PlanPosition, PlanRun, compare_ranks, is_distributed
from ais_loader.training.plan_sender import MAX_STEPS, PlanSender
from ais_loader.training.steering import steer
from ais_loader.wire.closing import Closing

if TYPE_CHECKING:
    from ais_loader.training.forecast import Forecast

Output: TypeAlias = Literal["samples", "packed"]
OUTPUTS = ("samples", "packed")


class BatchLoader(Closing):
    """An iterable of the batches of a plan or sampler, with an exact position. Each iteration is one epoch.

    A thread of the trainer's process draws numbers, `in_flight` batches ahead. Workers fetch, decode and collate them,
    and know nothing about positions. The order of batches therefore does not depend on workers, and neither does the
    state: `load_state_dict(loader.state_dict())` continues with the very next batch, whatever the old and the new
    number of workers are.

    With a plan, the position after the last batch of an epoch is the beginning of the next one: the next iteration
    starts there, unless you choose another epoch with `set_epoch`. This also applies to a trainer that counts
    `len(loader)` batches and never asks for the end. After you abandon an iteration before its last batch, the next one
    starts where that one began: at the beginning of the epoch, or at the position that was loaded. A warning says so
    once, unless `set_epoch` is called. For epochs that are parts of a plan, give the plan `epoch_steps`.

    An iteration ends, with its threads, when it is exhausted, abandoned or closed, or raises. A loader has one
    iteration at a time: a new one, `start_prefetch` and `load_state_dict` end the one before, which raises Closed if it
    is asked for another batch and has any left. Use a loader in one thread at a time.
    """

    _is_accelerate_prepared = True
    """accelerate's `prepare` returns the loader as it is."""

    @names_unknown_options(
        {
            "num_workers": "worker processes are workers=",
            "batch_size": "the plan of batches has it, such as ShufflePlan(len(dataset), batch_size=...)",
            "shuffle": "the plan of batches draws the order, such as ShufflePlan(len(dataset), batch_size=...)",
            "sampler": "the second argument is a plan, or a batch sampler",
            "batch_sampler": "the second argument is a plan, or a batch sampler",
            "drop_last": "the plan of batches has it, as tail=",
            "collate_fn": "it is collate= here",
            "prefetch_factor": "in_flight= is the number of batches that are drawn and not delivered",
            "timeout": "stall_s= and on_stall= say what happens when no batch comes",
            "multiprocessing_context": "the start method of workers is context=",
        }
    )
    def __init__(
        self,
        dataset: Any,
        batches: Plan | Iterable[Any],
        *,
        workers: int = 0,
        threads: int = 2,
        in_flight: int = 3,
        collate: Collate | None = None,
        output: Output = "samples",
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        on_bad: OnBad = "raise",
        max_bad: int | None = None,
        reserve: int | Sequence[Any] = (),
        on_batch: Callable[[BatchRecord], object] | None = None,
        stall_s: float | None = 60.0,
        on_stall: OnStall = "wait",
        expect_steps: int = 64,
        context: StartMethod = "fork",
        max_restarts: int = 3,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        replicas: Any = None,
    ) -> None:
        """
        Args:
            dataset: Turns numbers into samples: a MapDataset, Lines, TokenWindows, what `concat` returns, or any object
                with `__getitems__` or `__getitem__`. Several threads call it at the same time. A dataset may also have
                `begin(numbers)`, which requests samples ahead and returns an object with `finish()` and `close()`.
                With a MixPlan, a mapping of its sources' names to datasets, in any order.
            batches: A plan of `ais_loader.plans`, or another object with the pure functions `batch(epoch, step)` and
                `steps(epoch)` (see `Plan`), or a batch sampler: any iterable of lists of numbers. A plan of your own
                may return entries instead, for a MapDataset.
            workers: The number of worker processes. 0 means threads of this process. Workers seed `random`, `numpy` and
                `torch` before each sample by its place in the plan, whatever worker has it.
            threads: The number of threads that fetch, decode and collate, without worker processes.
            in_flight: The number of batches that are drawn and not delivered: requested, being decoded, or ready.
            collate: A function from a list of samples to a batch. It runs in the worker. Without it, a batch is that
                list. It may take `rng`, as `decode` of a MapDataset.
            output: With "packed", a batch is a PackedBatch, or what `collate` makes of one: the entries of a MapDataset
                without a decoder, end to end in one array, which crosses from worker processes without a copy.
            rank, world_size: The part of the plan to read here. By default, they come from torch.distributed when the
                iteration starts, or else from the environment (RANK, WORLD_SIZE). If neither is set, everything is
                read. A sampler decides by itself. With a plan, all ranks of torch.distributed begin their first
                iteration together, and compare plan, entries and position.
            tail: What a plan without a `tail` of its own does at the end of an epoch if there is not one batch left for
                every rank: "repeat" (the default), "drop" or "uneven". See NumberPlan.
            on_bad: What to do about a sample whose entry fails or whose decoder raises. "raise" raises the error.
                "skip" leaves it out: the batch is smaller, and all ranks still have equally many. "substitute" puts the
                next good sample of the same batch in its place. Or a function from the error to one of these. Errors of
                the store, such as NodeUnavailable, are raised. So is EntryFailed for a batch without a good sample.
                All but "raise" need a dataset with on_error="raise": placeholders raise nothing.
            reserve: Substitutes for samples whose objects are denied (`Bucket.deny`), and with on_bad="substitute" for
                all bad ones: samples of the dataset, by number or as the plan's batches have them. Or their number K:
                the last K of the dataset, which a plan of n = len(dataset) - K does not draw. Which one is taken
                depends on the plan's seed, the epoch, the step and the place in the batch, so that it is the same for
                any number of ranks and workers, and after a resume. Not for packs.
            max_bad: The number of bad samples beyond which EntryFailed is raised; at least 0.
            on_batch: A function that is called in the trainer with the BatchRecord of every batch.
            stall_s: Time without a batch after which a warning says which worker does what, in seconds, with the stacks
                of all threads. None disables it.
            on_stall: Whether to "wait" on, to "raise" SilenceTimeout, or to "restart" the worker (processes only).
            expect_steps: The number of steps, at most 1,000, whose objects in remote buckets the store is told ahead.
                It fetches cold ones before they are read. 0 disables it. It has no effect on an embedded store that the
                dataset got as a path, and none for a sampler.
            context: How worker processes are started: "fork", "spawn" or "forkserver". All but "fork" pickle the
                dataset and `collate`.
            max_restarts: The number of workers of an iteration that may be replaced because they died or stalled. What
                they had is given to others. After that, LoaderError names the worker's signal, the step, and the first
                entry.
            persistent_workers: Whether worker processes, once an iteration has delivered all its batches, are kept for
                the next one, until the loader is closed. They keep the dataset as it was when they started, so they do
                not see what the trainer changes in it between epochs.
            pin_memory: Whether the shared memory that workers write into is page-locked. Needs workers and CUDA. Small
                batches, and those that find no free memory, are not.
            replicas: The processes that need the same batches, such as the ranks of a tensor, context or pipeline
                group: a ProcessGroup or DeviceMesh of torch.distributed, or (index, count, key) of the processes of
                this host. One process on each host reads, and the others map its shared memory. If it dies or leaves,
                another one reads on. By default, a plan is divided among the groups; `rank` and `world_size` are those
                of the data-parallel dimension. All of its processes make the loader, and begin its iterations, with the
                same arguments. None is more than `in_flight` batches ahead of the slowest one on its host.

        Raises InvalidRequest, TypeError.
        """
        for name, value, least in (("workers", workers, 0), ("threads", threads, 1), ("in_flight", in_flight, 1)):
            whole_number("BatchLoader", name, value, least)
        whole_number("BatchLoader", "max_restarts", max_restarts, 0)
        if context not in START_METHODS:
            raise InvalidRequest(f"context={context!r}: need one of {', '.join(START_METHODS)}")
        if persistent_workers and not workers:
            raise InvalidRequest("persistent_workers=True: it needs worker processes, workers=1 or more")
        if pin_memory:
            if not workers:
                raise InvalidRequest("pin_memory=True: it is the memory of worker processes that is page-locked")
            if replicas is not None:
                raise InvalidRequest("pin_memory=True: replicas share memory, of which none can lock its copy")
            check_pinning()
        expect_steps = whole_number("BatchLoader", "expect_steps", expect_steps, 0, MAX_STEPS)
        if not callable(on_bad) and on_bad not in POLICIES:
            raise InvalidRequest(f"on_bad={on_bad!r}: need one of {', '.join(POLICIES)}, or a function")
        if (on_bad != "raise" or reserve) and hides_failures(dataset):
            raise InvalidRequest(
                f"on_bad={on_bad!r}: the dataset has on_error='placeholder', so that failed entries raise nothing, and "
                "neither on_bad nor a reserve applies to them; leave out one of the two"
            )
        if max_bad is not None:
            whole_number("BatchLoader", "max_bad", max_bad, 0)
        if on_stall not in ON_STALL or not (stall_s is None or 0 < stall_s <= threading.TIMEOUT_MAX):
            raise InvalidRequest(f"stall_s={stall_s!r}, on_stall={on_stall!r}: need seconds, and {', '.join(ON_STALL)}")
        if on_stall == "restart" and not workers:
            raise InvalidRequest("on_stall='restart': a thread cannot be ended; it needs worker processes")
        plan = batches.position.plan if isinstance(batches, BatchSampler) else batches
        if isinstance(dataset, Mapping) and isinstance(plan, MixPlan):
            named = {str(name): one for name, one in dataset.items()}
            dataset = concat({name: named.pop(name) for name in plan.names if name in named} | named)
        if not (hasattr(dataset, "__getitems__") or hasattr(dataset, "__getitem__") or hasattr(dataset, "begin")):
            raise TypeError(f"a dataset turns numbers into samples, got {type(dataset).__name__}; need a MapDataset")
        if output not in OUTPUTS:
            raise InvalidRequest(f"output={output!r}: need one of {', '.join(OUTPUTS)}")
        is_plain = fetches_entries(dataset) and dataset.is_raw and on_bad == "raise" and not reserve
        if output == "packed" and not is_plain:
            raise InvalidRequest(
                "output='packed': it needs a MapDataset without decode and transform, on_bad='raise', and no reserve"
            )
        is_plan = callable(getattr(batches, "batch", None))
        self._replicas: Replicas | None = None
        spans = is_plan and rank is None and not isinstance(replicas, (tuple, type(None)))
        if replicas is not None:
            self._replicas, rank, world_size = placed(replicas, rank, world_size, has_plan=is_plan)
        held_back = reserve_of(dataset, reserve, plan)
        self.position = _position(dataset, batches, rank, world_size, tail, isinstance(reserve, int) and len(held_back))
        if isinstance(self.position, PlanPosition):
            self.position.is_of_replicas = spans
        self.dataset, self.batches = dataset, batches
        self.bad = BadSamples(max_bad)
        """The samples that were skipped or substituted."""
        self._fetcher = Fetcher(dataset, collate, on_bad, packed=output == "packed", reserve=held_back)
        self._worker_count, self._threads, self._in_flight = workers, threads, in_flight
        self._processes: dict[str, Any] = {
            "context": context,
            "in_flight": in_flight,
            "max_restarts": max_restarts,
            "pin_memory": pin_memory,
        }
        self._persistent = persistent_workers
        self._kept: ProcessWorkers | None = None
        """Workers of the iteration before, for the next one."""
        self._on_batch, self._stall_s, self._on_stall = on_batch, stall_s, on_stall
        self._expect_steps = expect_steps
        self._summary = Summary(workers=workers or threads)
        self._running: _Iteration | None = None
        self._ahead: _Iteration | None = None
        """An iteration that was started ahead of its first batch."""

    def __repr__(self) -> str:
        return f"<BatchLoader of {self.batches!r}, {self.dataset!r}>"

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch. Raises TypeError if it is not known."""
        return len(self.position)

    def __iter__(self) -> Iterator[Any]:
        """Return the batches that are left in the epoch."""
        started, self._ahead = self._ahead, None
        if started is None:
            self._end_iterations("iter(loader)")
            started = _Iteration(self)
        self._running = started
        return self._hand_out(started)

    def _hand_out(self, iteration: _Iteration) -> Iterator[Any]:
        if not iteration.is_open():
            return
        left_s: float | None = None
        try:
            engine = iteration.start()
            while True:
                began_s = time.perf_counter()
                if left_s is not None:
                    self._summary.trainer_s += began_s - left_s
                if (taken := engine.take()) is None:
                    break
                ticket, fetched = taken
                left_s = time.perf_counter()
                record = BatchRecord.of(fetched, step=ticket.step, draw_s=ticket.draw_s, wait_s=left_s - began_s)
                self._summary.add(record)
                self.bad.add(fetched.bad)
                if self._on_batch is not None:
                    self._on_batch(record)
                iteration.handed(ticket.place)
                batch = fetched.batch
                del taken, fetched, ticket  # or the batch would live until the next one comes
                yield batch
                del batch
            if iteration.is_open():
                self._keep(engine)
        finally:
            iteration.close()

    def _keep(self, engine: Engine) -> None:
        """Keep the workers of an engine, which has delivered all its batches, for the next iteration."""
        if self._persistent and self._kept is None:
            workers: Workers | None = engine.release()
            workers = workers.release() if isinstance(workers, ReplicaWorkers) else workers
            self._kept = workers if isinstance(workers, ProcessWorkers) else None

    def start_prefetch(self) -> None:
        """Start to draw and fetch the next iteration's batches now, before its first `next`. Ends a running one."""
        if self._ahead is None:
            self._end_iterations("start_prefetch()")
            self._ahead = _Iteration(self)
            self._ahead.start()

    def _workers(self) -> Workers:
        if self._worker_count:
            kept, self._kept = self._kept, None
            if kept is not None and kept.begin_again():
                return kept
            return ProcessWorkers(self._fetcher, self._worker_count, **self._processes)
        return ThreadWorkers(self._fetcher, self._threads)

    @property
    def sampler(self) -> Any:
        """None: raises AttributeError for accelerate's `skip_first_batches`, which does not know the epoch."""
        raise AttributeError(
            "a BatchLoader has no sampler to skip batches of: resume at the exact batch with load_state_dict; "
            "Hugging Face's Trainer also needs ignore_data_skip=True"
        )

    @property
    def epoch(self) -> int | None:
        """The epoch that an iteration started now would read. None for a sampler without epochs."""
        return self.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads.

        The iteration starts at the beginning of the epoch or, if it is the epoch that `load_state_dict` set, at the
        restored position. A running iteration of a plan is not affected. With a sampler, this is the `set_epoch` of the
        sampler, or else of the one that it draws from. Raises InvalidRequest if none of them has any.
        """
        if epoch != self.epoch:
            self._end_ahead()
        self.position.set_epoch(epoch)

    @property
    def batch_sampler(self) -> Any:
        """An object whose `sampler` is the loader: Lightning sets the epoch of `loader.batch_sampler.sampler`.

        Raises AttributeError for a sampler without epochs.
        """
        if not self.position.has_epochs:
            raise AttributeError(f"{type(self.batches).__name__} has no epochs")
        return SimpleNamespace(sampler=self)

    def summary(self) -> Summary:
        """Return the sums of all records so far. `summary().bottleneck` names the stage that the run waits for."""
        return self._summary

    def explain(self) -> str:
        """Return what the run has waited for so far, in a sentence that begins with the cause and says what helps.

        The cause is one of `ais_loader.loading.records.CAUSES`.
        """
        return explained(self._summary)

    def forecast(self, state: Mapping[str, Any] | None = None, **options: Any) -> Forecast:
        """Return the requests, bytes and waiting of the next epochs, before they run.

        The options are those of `ais_loader.training.forecast.forecast`: epochs, step_s, store, cloud, cache_bytes.
        Raises InvalidRequest, and the errors of reading.
        """
        from ais_loader.training.forecast import forecast

        return forecast(self, state, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches that the trainer has received.

        With a plan, it consists of numbers and strings, is the same on all ranks that have had the same number of
        batches, and is valid for any number of ranks and workers. With a sampler, it is the sampler's own state. If the
        sampler cannot provide it, or it would take too long after each batch, it is an earlier one, or the beginning of
        the epoch, with the number of batches since. The beginning has the epoch, and the state of the generator.

        Raises InvalidRequest for a sampler that draws at random without a torch.Generator of its own.
        """
        return self.position.state()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration continue from this state.

        With a plan and torch.distributed, all ranks have to call this, and they compare what they load.

        Raises InvalidRequest if it is not a state, if the ranks cannot divide the group of steps that form one update,
        if a rank loads another state, or, if `strict`, with the first difference of the plan or sampler.
        """
        self._end_iterations("load_state_dict()")
        self._end_kept()
        error: Exception | None = None
        try:
            self.position.load(state, strict=strict)
        except Exception as found:  # noqa: BLE001 - raised below, after all ranks have met
            error = found
        if isinstance(self.position, PlanPosition) and is_distributed():
            compare_ranks(_digest(state), error, "the state", "loads another state than rank 0")
        elif error is not None:
            raise error

    def steer(self, weights: Weights, *, store: Any = None, timeout_s: float = 60.0) -> Position:
        """Change the weights of a running MixPlan with at_end="repeat". Returns the position where they begin.

        It is `in_flight` + 1 groups of steps after the group that the position is in: what may have been drawn keeps
        its weights, and calls between two updates have the same effect for any number of ranks. The weights are part of
        the state. They hold until the next call, or until a step for which the plan has others.

        All ranks have to call this after the same step, with the same weights, within `timeout_s` seconds. They compare
        in the store of torch.distributed or, for a loader with a `world_size` of its own, in `store` if it is given: a
        `torch.distributed.FileStore` or another one, new for each start.

        Raises InvalidRequest with the rank that differs or has not called, TypeError: nothing is changed then.
        """
        if not isinstance(self.position, PlanPosition):
            raise InvalidRequest("steer: the batches of a sampler have no weights; need a MixPlan")
        begin = steer(self.position, weights, self._in_flight + 1, store, timeout_s)
        for iteration in (self._running, self._ahead):
            if iteration is not None:
                iteration.send_anew()
        return begin

    def close(self) -> None:
        """End the running iteration, if any, with its threads, and all workers. It yields no more batches, quietly.

        This waits for what the threads are doing: one draw, one decode each, or the timeout of a silent store. May be
        called again.
        """
        self._end_iterations()
        self._end_kept()
        if self._replicas is not None:
            self._replicas.close()

    def _end_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _end_iterations(self, by: str = "") -> None:
        self._end_ahead()
        if self._running is not None:
            self._running.close(by)
            self._running = None

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __del__(self) -> None:
        if {"_ahead", "_running"} <= self.__dict__.keys():
            self._end_iterations()  # one that was started ahead, and never iterated over, ends only here
        if self.__dict__.get("_kept") is not None:
            self._end_kept()


class _Iteration:
    """One iteration. Its run of the position and its threads begin with `start`: `set_epoch` applies until then."""

    run: PlanRun | SamplerRun

    def __init__(self, loader: BatchLoader) -> None:
        self._position = loader.position
        self._begin = loader._workers, loader._in_flight, loader._fetcher.name_of
        self._replicas = loader._replicas
        self._watch = StallWatch(loader._stall_s, loader._on_stall, loader.position.place()[0])
        self._dataset, self._expect_steps = loader.dataset, loader._expect_steps
        self._draws_numbers = isinstance(loader.batches, NumberPlan)
        self._engine: Engine | None = None
        self._sender: PlanSender | None = None
        self._sent_from = 0  # batches that were delivered before the sender's first step
        self._ended_by: str | None = None
        """The call that has ended it; "" if the trainer wanted it to end."""

    def is_open(self) -> bool:
        """Return whether it has not been closed. Raises Closed if a call for another one has, before the last batch."""
        if self._ended_by and not (self._engine is not None and self._engine.has_delivered_all):
            raise Closed(
                f"this iteration of the loader was ended by {self._ended_by} before its last batch: a loader has one "
                "iteration at a time; make a second BatchLoader of the same dataset for another one"
            )
        return self._ended_by is None

    def start(self) -> Engine:
        """Start the threads, unless they have been."""
        if self._engine is None:
            _, in_flight, name_of = self._begin
            self.run = self._position.begin()
            self._engine = Engine(self.run, self._workers(in_flight), in_flight, name_of, self._watch)
        return self._engine

    def _workers(self, in_flight: int) -> Workers:
        if (replicas := self._replicas) is None or replicas.count == 1:
            return self._start_workers()
        described: dict[str, Any] = {}
        if isinstance(self._position, PlanPosition):
            described = {"rank and world_size": self._position.place()} | self._position.described()
        return ReplicaWorkers(replicas, described, self._start_workers, in_flight)

    def _start_workers(self) -> Workers:
        """Start the workers that read here, and tell the store what they will read."""
        self._sent_from, self._sender = self.run.delivered, self._send_plan()
        return self._begin[0]()

    def _send_plan(self) -> PlanSender | None:
        """Begin to tell the store what will be read; None if this is of no use there."""
        run, dataset = self.run, self._dataset
        if not (isinstance(run, PlanRun) and self._expect_steps and run.left and fetches_entries(dataset)):
            return None
        if not dataset._client.is_shared:
            return None
        return PlanSender(
            dataset._client,
            lambda step: dataset.wanted(run.draw(step)),
            run.left,
            self._expect_steps,
            getattr(dataset, "buckets", None) if self._draws_numbers else None,
        )

    def send_anew(self) -> None:
        """Tell the store once more what will be read, after a change of the plan."""
        if self._sender is not None and self._ended_by is None and isinstance(self.run, PlanRun):
            self._sender.close()
            self._sent_from, self._sender = self.run.delivered, self._send_plan()

    def handed(self, place: Any) -> None:
        """Note that the trainer receives a batch."""
        self.run.handed(place)
        if self._sender is not None:
            self._sender.delivered(place - self._sent_from)

    def close(self, by: str = "") -> None:
        if self._ended_by is None:
            self._ended_by = by
        if self._engine is not None:
            self._engine.close()
            if self._engine.has_delivered_all:
                self.run.ended()
        if self._sender is not None:
            self._sender.close()


def _position(
    dataset: Any, batches: Any, rank: int | None, world_size: int | None, tail: Tail | None, held_back: int
) -> PlanPosition | SamplerPosition:
    if isinstance(batches, BatchSampler) and rank is None and world_size is None and tail is None:
        batches.position.set_dataset(dataset, held_back)
        return batches.position
    if callable(getattr(batches, "batch", None)) and callable(getattr(batches, "steps", None)):
        return PlanPosition(batches, dataset, rank, world_size, tail, held_back)
    if isinstance(batches, (str, bytes, Mapping)) or not (
        isinstance(batches, Iterable) or hasattr(batches, "__getitem__")
    ):
        raise TypeError(
            f"batches is a {type(batches).__name__}; need a plan, with batch(epoch, step) and steps(epoch), or a batch "
            "sampler"
        )
    if rank is not None or world_size is not None or tail is not None:
        raise InvalidRequest(f"rank={rank}, world_size={world_size}, tail={tail!r}: a sampler decides by itself")
    return SamplerPosition(batches, dataset)


def _digest(state: Any) -> str:
    try:
        return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=16).hexdigest()
    except TypeError:
        return "not a state"
