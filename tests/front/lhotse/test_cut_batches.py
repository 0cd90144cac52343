"""What a sampler draws, fetched and decoded ahead: order, errors in their places, exact states, and no thread left."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler, K2SpeechRecognitionDataset, SimpleCutSampler
from lhotse.dataset.input_strategies import AudioSamples
from lhotse.dataset.sampling import RoundRobinSampler
from lhotse.dataset.sampling.base import TimeConstraint

import ais_loader
from ais_loader import Bucket, Client
from ais_loader.errors import SilenceTimeout
from ais_loader.integrations.lhotse import AISBatchLoaderError
from ais_loader.integrations.lhotse.cut_batches import CutBatches
from ais_loader.loading import places
from ais_loader.testing import NodeProcess, eventually, throwaway_folder

RATE = 8000
COUNT = 60


def sound(number: int) -> np.ndarray:
    length = RATE // 10 + 37 * number
    return (np.random.default_rng(number).integers(-9000, 9000, length) / 32768).astype(np.float32)


def wav(number: int) -> bytes:
    packed = io.BytesIO()
    soundfile.write(packed, sound(number), RATE, format="WAV", subtype="PCM_16")
    return packed.getvalue()


def cut(number: int, url: str = "") -> MonoCut:
    length, name = len(sound(number)), f"cut-{number:02d}"
    source = AudioSource("url", [0], url or f"ais://b/{name}.wav")
    recording = Recording(name, [source], RATE, length, length / RATE)
    supervision = SupervisionSegment(name, name, 0, length / RATE, text=name)
    return MonoCut(name, 0, length / RATE, 0, [supervision], recording=recording)


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with throwaway_folder() as folder:
        with ais_loader.connect(folder / "store") as client:
            fill(client)
        yield folder / "store"


def fill(client: Client) -> Bucket:
    bucket = client.create_bucket("b")
    bucket.put_many((f"cut-{number:02d}.wav", wav(number)) for number in range(COUNT))
    return bucket


@pytest.fixture(autouse=True)
def named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", str(path))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = our_threads()  # of a test that failed
    yield
    assert our_threads() == before


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ais-loader-d")]


@pytest.fixture
def lazily(tmp_path: Path) -> Callable[[], CutSet]:
    """All cuts, read anew from a manifest each time, as a training does."""
    CutSet.from_cuts(map(cut, range(COUNT))).to_file(tmp_path / "cuts.jsonl")
    return lambda: CutSet.from_jsonl_lazy(tmp_path / "cuts.jsonl")


def simple(cuts: CutSet) -> Any:
    return SimpleCutSampler(cuts.to_eager(), max_cuts=7, shuffle=True, seed=3)


def dynamic(cuts: CutSet) -> Any:
    return DynamicCutSampler(cuts, max_duration=1.5, shuffle=True, seed=3)


def bucketing(cuts: CutSet) -> Any:
    return DynamicBucketingSampler(cuts, max_duration=1.5, num_buckets=3, buffer_size=40, shuffle=True, seed=3)


def constrained(cuts: CutSet) -> Any:
    limit = TimeConstraint(max_duration=1.5)
    return DynamicBucketingSampler(cuts, constraint=limit, num_buckets=3, buffer_size=40, shuffle=True, seed=3)


def in_turns(cuts: CutSet) -> Any:
    return RoundRobinSampler(simple(cuts), dynamic(cuts))


SAMPLERS = [simple, dynamic, bucketing, constrained, in_turns]
Make = Callable[[CutSet], Any]


def ids(batches: Any) -> list[list[str]]:
    return [[one.id for one in batch] for batch in batches]


def drawn(sampler: Any) -> list[list[str]]:
    """What the sampler draws by itself."""
    found, batches = iter(sampler), []
    while (batch := next(found, None)) is not None:
        batches.append(batch)
    return ids(batches)


class Sounds:
    """A dataset: samples by the cut's id."""

    def __getitem__(self, cuts: CutSet) -> dict[str, np.ndarray]:
        return {one.id: one.load_audio()[0] for one in cuts}


@pytest.mark.parametrize("make", SAMPLERS)
def test_batches_come_in_the_samplers_order_with_their_data(lazily: Callable[[], CutSet], make: Make) -> None:
    expected = drawn(make(lazily()))
    batches = list(CutBatches(make(lazily()), Sounds(), threads=3))
    assert [list(batch) for batch in batches] == expected
    for batch in batches:
        for name, samples in batch.items():
            np.testing.assert_array_equal(samples, sound(int(name[-2:])))


def test_without_a_dataset_the_cuts_come_with_their_data_in_memory(lazily: Callable[[], CutSet]) -> None:
    cuts = lazily().to_eager()
    sampler = SimpleCutSampler(cuts, max_cuts=10)
    for batch in CutBatches(sampler):
        assert isinstance(batch, CutSet)
        assert {one.recording.sources[0].type for one in batch} == {"memory"}
    assert {one.recording.sources[0].type for one in cuts} == {"url"}, "the sampler's own cuts hold no data"


def test_a_sampler_of_several_sets_gives_tuples(lazily: Callable[[], CutSet]) -> None:
    sampler = DynamicCutSampler(lazily(), lazily(), max_cuts=9)
    for first, second in CutBatches(sampler):
        assert ids([first]) == ids([second])
        np.testing.assert_array_equal(first[0].load_audio(), second[0].load_audio())


def test_datasets_of_lhotse_find_their_data_in_memory(lazily: Callable[[], CutSet]) -> None:
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples())
    sampler = SimpleCutSampler(lazily().to_eager(), max_cuts=8)
    with CutBatches(sampler, dataset) as batches:
        for batch in batches:
            texts = batch["supervisions"]["text"]
            for row, text, length in zip(batch["inputs"], texts, batch["supervisions"]["num_samples"], strict=True):
                np.testing.assert_array_equal(row[:length].numpy(), sound(int(text[-2:])))


class Counted:
    """A sampler that says how many batches were drawn of it, and fails in the place of one of them."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.drawn = 0
        self._count, self._fails_at = count, fails_at

    def __iter__(self) -> Iterator[CutSet]:
        for number in range(self._count):
            if number == self._fails_at:
                raise RuntimeError("the manifest is damaged")
            self.drawn += 1
            yield CutSet.from_cuts([cut(number)])


@pytest.mark.parametrize(("in_flight", "threads"), [(1, 1), (3, 2), (5, 8)])
def test_no_more_is_drawn_than_may_be_under_way(in_flight: int, threads: int) -> None:
    sampler = Counted(40)
    for handed, _ in enumerate(CutBatches(sampler, Sounds(), in_flight=in_flight, threads=threads), 1):
        assert sampler.drawn <= handed + in_flight
        if handed == 10:
            eventually(lambda: sampler.drawn == 10 + in_flight)
    assert handed == 40


@pytest.mark.parametrize("options", [{"in_flight": 0}, {"threads": 0}])
def test_numbers_below_one_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ais_loader.errors.InvalidRequest, match="need at least 1"):
        CutBatches(Counted(1), **options)


class Missing:
    """A sampler of which one batch names an object that is not there."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __iter__(self) -> Iterator[CutSet]:
        for number in range(12):
            yield CutSet.from_cuts([cut(number), cut(20, "ais://b/gone.wav") if number == self._at else cut(20)])


class FailsOn:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, cuts: CutSet) -> list[str]:
        if self._name in [one.id for one in cuts]:
            raise ZeroDivisionError("decoding failed")
        return [one.id for one in cuts]


@pytest.mark.parametrize(
    ("make", "error", "why", "handed"),
    [
        (lambda: CutBatches(Missing(5), strict=True), AISBatchLoaderError, "gone.wav", 5),
        (lambda: CutBatches(Counted(12, fails_at=6)), RuntimeError, "the manifest is damaged", 6),
        (lambda: CutBatches(Counted(12), FailsOn("cut-07"), threads=4), ZeroDivisionError, "decoding failed", 7),
        (lambda: CutBatches(Missing(0), Sounds()), ais_loader.errors.LoaderError.__mro__[1], "gone.wav", 0),
    ],
)
def test_what_fails_is_raised_in_its_place(
    make: Callable[[], CutBatches], error: type[Exception], why: str, handed: int
) -> None:
    batches = make()
    taken = 0
    with pytest.raises(error, match=why) as raised:
        for _ in batches:
            taken += 1
    assert taken == handed
    assert our_threads() == []
    if error is not RuntimeError:
        assert f"raised for batch {handed} of this iteration, of cuts cut-{handed:02d}" in raised.value.__notes__[-1]


def test_a_tolerant_dataset_leaves_out_what_is_missing() -> None:
    class Tolerant:
        def __getitem__(self, cuts: CutSet) -> list[str]:
            return [one.id for one in AudioSamples(fault_tolerant=True)(cuts)[2]]

    batches = list(CutBatches(Missing(5), Tolerant()))
    assert [len(batch) for batch in batches] == [2] * 5 + [1] + [2] * 6


def test_a_dataset_that_stalls_is_told_from_its_data() -> None:
    go = threading.Event()

    class Slow:
        def __getitem__(self, cuts: CutSet) -> list[str]:
            assert go.wait(60)
            return [one.id for one in cuts]

    batches = CutBatches(Counted(40), Slow(), stall_s=0.3, on_stall="raise")
    with pytest.raises(
        SilenceTimeout, match=r"batch 0 of this iteration: .* in stage 'decode' since .*, for cuts cut-00"
    ):
        next(iter(batches))
    go.set()
    eventually(lambda: our_threads() == [])


def test_nothing_remote_needs_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_LOADER_URL")
    (tmp_path / "a.wav").write_bytes(wav(1))
    local = Recording.from_file(tmp_path / "a.wav", recording_id="a").to_cut()
    [batch] = CutBatches(SimpleCutSampler(CutSet.from_cuts([local]), max_cuts=1))
    np.testing.assert_array_equal(batch[0].load_audio()[0], sound(1))


def test_no_thread_outlives_an_iteration_that_is_broken_off_closed_or_begun_anew() -> None:
    batches = CutBatches(Counted(40))
    for _ in batches:
        break
    assert our_threads() == []
    under_way = iter(batches)
    next(under_way)
    again = iter(batches)
    assert next(again)[0].id == "cut-00"
    with pytest.raises(ais_loader.errors.Closed, match=r"ended by iter\(loader\)"):
        next(under_way)
    batches.close()
    batches.close()
    assert next(again, None) is None
    never_begun = iter(batches)
    del never_begun


# -- states


@pytest.mark.parametrize("make", SAMPLERS)
@pytest.mark.parametrize("handed", [0, 1, 5])
def test_a_state_goes_on_after_the_batch_that_was_handed_out(
    lazily: Callable[[], CutSet], make: Make, handed: int
) -> None:
    expected = drawn(make(lazily()))
    with CutBatches(make(lazily()), in_flight=3) as batches:
        running = iter(batches)
        assert ids(next(running) for _ in range(handed)) == expected[:handed]
        state = pickle.loads(pickle.dumps(batches.state_dict()))
    resumed = CutBatches(make(lazily()), in_flight=3)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    with Requests() as requests:
        assert ids(resumed) == expected[handed:]
    assert len(requests.entries) == sum(map(len, expected[handed:])), "what was handed out is not fetched again"


class Requests:
    """Counts what clients of this process ask for."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __enter__(self) -> Requests:
        self._get_batch = Client.get_batch

        def counting(client: Client, entries: Any, **options: Any) -> Any:
            self.entries += entries
            return self._get_batch(client, entries, **options)

        Client.get_batch = counting  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Client.get_batch = self._get_batch  # type: ignore[method-assign]


@pytest.mark.parametrize("make", SAMPLERS)
def test_a_state_may_be_taken_of_what_was_resumed_and_in_the_second_epoch(
    lazily: Callable[[], CutSet], make: Make
) -> None:
    first = make(lazily())
    drawn(first)
    first.set_epoch(1)
    expected = drawn(first)
    batches = CutBatches(make(lazily()))
    list(batches)
    batches.set_epoch(1)
    for _ in range(3):
        running = iter(batches)
        found = ids(next(running) for _ in range(2))
        assert found == expected[:2]
        del expected[:2]
        state = batches.state_dict()
        batches.close()
        batches = CutBatches(make(lazily()))
        batches.load_state_dict(state)
    assert batches.epoch == 1
    assert ids(batches) == expected


@pytest.mark.parametrize("make", [simple, dynamic, bucketing, in_turns])
def test_the_state_is_the_samplers_own(
    lazily: Callable[[], CutSet], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CHEAP_S", 10.0)
    expected = drawn(make(lazily()))
    with CutBatches(make(lazily())) as batches:
        running = iter(batches)
        next(running)
        next(running)
        state = batches.state_dict()
    sampler = make(lazily())
    sampler.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert drawn(sampler) == expected[2:]
    plain = make(lazily())
    iter(plain)
    next(plain)
    saved = plain.state_dict()
    batches = CutBatches(make(lazily()))
    batches.load_state_dict(saved)
    assert ids(batches) == expected[1:]


def test_a_state_that_costs_much_is_taken_rarely_and_what_follows_is_counted(
    lazily: Callable[[], CutSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CHEAP_S", 0.0)
    monkeypatch.setattr(places, "MAX_COST", 1e-9)
    expected = drawn(bucketing(lazily()))
    with CutBatches(bucketing(lazily())) as batches:
        running = iter(batches)
        for _ in range(4):
            next(running)
        state = batches.state_dict()
    assert state[places.SINCE] == 4
    resumed = CutBatches(bucketing(lazily()))
    resumed.load_state_dict(state)
    running = iter(resumed)
    assert ids(next(running) for _ in range(3)) == expected[4:7]
    state = resumed.state_dict()
    resumed.close()
    assert state[places.SINCE] == 2
    resumed = CutBatches(bucketing(lazily()))
    resumed.load_state_dict(state)
    assert ids(resumed) == expected[7:]


def test_the_beginning_of_another_sampler_is_refused(lazily: Callable[[], CutSet]) -> None:
    batches = CutBatches(Counted(5))
    next(iter(batches))
    state = batches.state_dict()
    batches.close()
    with pytest.raises(ais_loader.errors.InvalidRequest, match="'Counted', here 'DynamicCutSampler'"):
        CutBatches(dynamic(lazily())).load_state_dict(state)
    shorter = CutBatches(Counted(0))
    shorter.load_state_dict(state)
    with pytest.raises(ais_loader.errors.InvalidRequest, match="ends after 0 of the 1 batches"):
        list(shorter)


@pytest.mark.parametrize("sets_epochs", [False, True])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("make", SAMPLERS)
def test_a_state_of_an_epochs_end_resumes_with_the_next_epoch(
    lazily: Callable[[], CutSet], make: Make, counts: bool, sets_epochs: bool
) -> None:
    expected = drawn(make(lazily()))
    never_stopped, batches, resumed = (CutBatches(make(lazily())) for _ in range(3))
    assert ids(never_stopped) == expected
    running = iter(batches)
    assert ids(islice(running, len(expected) if counts else None)) == expected
    resumed.load_state_dict(batches.state_dict())
    batches.close()
    if sets_epochs:
        resumed.set_epoch(1)
        never_stopped.set_epoch(1)
    assert ids(resumed) == ids(never_stopped) != []


def test_a_failed_batch_comes_again_when_it_is_resumed(lazily: Callable[[], CutSet]) -> None:
    expected = drawn(dynamic(lazily()))
    batches = CutBatches(dynamic(lazily()), FailsOn(expected[3][0]))
    found = []
    with pytest.raises(ZeroDivisionError):
        for batch in batches:
            found.append(batch)
    resumed = CutBatches(dynamic(lazily()))
    resumed.load_state_dict(batches.state_dict())
    assert found + ids(resumed) == expected


def test_a_node_that_dies_fails_the_batch_that_it_had_and_training_goes_on_from_its_state(
    lazily: Callable[[], CutSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = drawn(dynamic(lazily()))
    with NodeProcess(tmp_path / "drive") as node:
        monkeypatch.setenv("AIS_LOADER_URL", node.url)
        with ais_loader.connect(node.url) as client:
            fill(client)
        batches = CutBatches(dynamic(lazily()), strict=True, in_flight=2, timeout_s=3)
        found: list[list[str]] = []
        with pytest.raises(AISBatchLoaderError, match=r"UNAVAILABLE|TIMEOUT"):
            for batch in batches:
                found += ids([batch])
                if len(found) == 3:
                    node.kill()
        assert 3 <= len(found) <= 6
        node.start()
        batches.load_state_dict(batches.state_dict())
        assert found + ids(batches) == expected
