"""Three ways to the audio of a minibatch: sequential shards, a GET for each sample, one GetBatch.

Above each is the same sampler, Lhotse's dynamic buckets. Below `get` and `getbatch` it chooses among all cuts and names
what it wants; `shards` has only what the shards bring next, shuffled within a buffer, as an iterable dataset has.
"""

from __future__ import annotations

import random
import tarfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler as Sampler
from lhotse.dataset.sampling.dynamic_bucketing import estimate_duration_buckets
from lhotse.utils import fastcopy

from ais_loader import Client, Entry
from ais_loader.integrations.lhotse import AISBatchLoader, CutBatches
from examples.canary.batch import CanaryBatch, Collate, cut_of
from examples.canary.corpus import BUCKET, Task
from examples.speech.corpus import CorpusError

SourceName: TypeAlias = Literal["shards", "get", "getbatch"]
SHUFFLE_BUFFER = 64
"""Cuts among which sequential shards are shuffled."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch, and the seconds until its bytes had arrived, in total and for each sample.

    If batches are requested ahead, it is the remaining wait of the trainer, including decoding.
    """

    batch: CanaryBatch
    fetch_s: float
    sample_s: tuple[float, ...]
    decoded_ahead: bool = False
    """Whether other threads decoded it while the trainer was busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Settings that determine which cuts form a batch. Equal values give equal batches."""

    max_duration_s: float = 40.0
    """Maximum duration of a batch with its padding, in seconds of audio."""
    num_buckets: int = 4
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    def sampler(
        self, cuts: CutSet, bins: Sequence[float], *, shared: bool = True, buffer_size: int = 10_000
    ) -> Sampler:
        """`shared`: all ranks have these cuts, and each takes its part of the batches."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using DynamicBucketingSampler with an eagerly")
            return Sampler(
                cuts,
                max_duration=self.max_duration_s,
                duration_bins=bins,
                buffer_size=buffer_size,
                shuffle=True,
                seed=self.seed,
                rank=self.rank if shared else 0,
                world_size=self.world_size if shared else 1,
            )

    def bins(self, cuts: CutSet) -> list[float]:
        """Where the buckets part, in seconds, such that each has as much audio."""
        bins: list[float] = estimate_duration_buckets(cuts, self.num_buckets)
        return bins


class Source(ABC):
    """The batches of one epoch each time it is iterated; its state names the batch after the one taken last."""

    def __init__(self, sampler: Sampler, collate: Collate) -> None:
        self.sampler = sampler
        self.collate = collate

    @abstractmethod
    def __iter__(self) -> Iterator[Step]: ...

    def endless(self) -> Generator[Step, None, None]:
        """Epoch after epoch, in another order each, from where the state is."""
        while True:
            taken = 0
            for step in self:
                taken += 1
                yield step
            if not taken:
                raise CorpusError("there is nothing to read for this rank: fewer shards or batches than processes")
            self.sampler.set_epoch(self.sampler.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.sampler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lhotse draws that many batches again, from metadata alone where the sampler has metadata alone."""
        self.sampler.load_state_dict(dict(state))

    def close(self) -> None:  # noqa: B027  # most have nothing under way
        """End what is under way."""


class SingleGets(Source):
    """A request for each recording, one after another, as a map-style dataset without GetBatch has."""

    def __init__(self, client: Client, sampler: Sampler, collate: Collate) -> None:
        super().__init__(sampler, collate)
        self._bucket = client.bucket(BUCKET)

    def __iter__(self) -> Iterator[Step]:
        for cuts in self.sampler:
            sample_s: list[float] = []
            filled = CutSet.from_cuts([self._fetched(cut, sample_s) for cut in cuts])
            yield Step(self.collate[filled], sum(sample_s), tuple(sample_s))

    def _fetched(self, cut: MonoCut, sample_s: list[float]) -> MonoCut:
        entry = Entry.from_url(cut.recording.sources[0].source)
        asked = time.perf_counter()
        data = self._bucket.get(entry.name, member=entry.member)
        sample_s.append(time.perf_counter() - asked)
        return with_audio(cut, data)


class GetBatches(Source):
    """One request a batch, asked for when it is wanted: what a map-style dataset with an AISBatchLoader does."""

    def __init__(self, url: str, sampler: Sampler, collate: Collate) -> None:
        super().__init__(sampler, collate)
        self._loader = AISBatchLoader(store=url)

    def __iter__(self) -> Iterator[Step]:
        for cuts in self.sampler:
            asked = time.perf_counter()
            filled = self._loader(cuts)
            fetch_s = time.perf_counter() - asked
            yield Step(self.collate[filled], fetch_s, (fetch_s / len(filled),) * len(filled))


class GetBatchesAhead(Source):
    """One request a batch, the next ones under way and decoded while the trainer computes."""

    def __init__(self, url: str, sampler: Sampler, collate: Collate, *, ahead: int) -> None:
        super().__init__(sampler, collate)
        self._batches = CutBatches(sampler, collate, in_flight=ahead + 1, threads=1, store=url)

    def __iter__(self) -> Iterator[Step]:
        steps = iter(self._batches)
        while True:
            asked = time.perf_counter()
            batch = next(steps, None)
            if batch is None:
                return
            fetch_s = time.perf_counter() - asked
            yield Step(batch, fetch_s, (fetch_s / len(batch.ids),) * len(batch.ids), decoded_ahead=True)

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches.load_state_dict(state)

    def close(self) -> None:
        self._batches.close()


class SequentialShards(Source):
    """Shards from one end to the other, in an order shuffled by epoch; each rank has shards of its own."""

    def __init__(self, client: Client, tasks: Sequence[Task], buckets: Buckets, collate: Collate) -> None:
        self._stream = ShardStream(client, tasks, buckets)
        bins = buckets.bins(CutSet.from_cuts(map(cut_of, tasks)))
        cuts = CutSet(self._stream)
        super().__init__(buckets.sampler(cuts, bins, shared=False, buffer_size=SHUFFLE_BUFFER), collate)

    def __iter__(self) -> Iterator[Step]:
        self._stream.epoch = self.sampler.epoch
        batches = iter(self.sampler)
        while True:
            asked = time.perf_counter()
            cuts = next(batches, None)
            if cuts is None:
                return
            fetch_s = time.perf_counter() - asked
            yield Step(self.collate[cuts], fetch_s, tuple(cut.custom["read_s"] for cut in cuts))


class ShardStream:
    """The cuts of an epoch with their audio, as the shards bring them."""

    def __init__(self, client: Client, tasks: Sequence[Task], buckets: Buckets) -> None:
        self._client = client
        self._buckets = buckets
        self._shards: dict[str, dict[str, list[Task]]] = {}
        for task in tasks:
            shard, _, member = task.audio_filepath.partition(".tar/")
            self._shards.setdefault(f"{shard}.tar", {}).setdefault(member, []).append(task)
        self.epoch = 0

    def __iter__(self) -> Iterator[MonoCut]:
        order = sorted(self._shards)
        random.Random(f"{self._buckets.seed} {self.epoch}").shuffle(order)
        for shard in order[self._buckets.rank :: self._buckets.world_size]:
            yield from self._read(shard)

    def _read(self, shard: str) -> Iterator[MonoCut]:
        wanted = self._shards[shard]
        with self._client.open(f"ais://{BUCKET}/{shard}") as file, tarfile.open(fileobj=file, mode="r|") as tar:
            began = time.perf_counter()
            for member in tar:
                content = tar.extractfile(member)
                data = content.read() if content is not None else b""
                read_s = time.perf_counter() - began
                for task in wanted.get(member.name, ()):
                    cut = with_audio(cut_of(task), data)
                    cut.custom["read_s"] = read_s
                    yield cut
                began = time.perf_counter()


def with_audio(cut: MonoCut, data: bytes) -> MonoCut:
    """The cut with its recording's bytes in memory; the one given is not changed."""
    source = fastcopy(cut.recording.sources[0], type="memory", source=data)
    return fastcopy(cut, recording=fastcopy(cut.recording, sources=[source]))
