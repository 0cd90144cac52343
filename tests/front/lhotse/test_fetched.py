"""Datasets that read cut by cut, with one request for each batch: the same tensors as over files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lhotse import AudioSource, CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment
from lhotse.dataset import CutMix, K2SpeechRecognitionDataset, SimpleCutSampler
from lhotse.dataset.input_strategies import OnTheFlyFeatures
from lhotse_kit import Counted
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, connect
from ais_loader.integrations.lhotse import AISBatchLoader, AISBatchLoaderError, Fetched, install
from ais_loader.testing import throwaway_folder
from tests.data import Utterance, utterances

DEADLINE_S = 180
MAX_SECONDS = 20.0


def cut_of(utterance: Utterance, kind: str, source: str) -> MonoCut:
    frames = round(utterance.duration_s * utterance.sampling_rate_hz)
    whole = Recording(
        utterance.name, [AudioSource(kind, [0], source)], utterance.sampling_rate_hz, frames, utterance.duration_s
    )
    said = SupervisionSegment(utterance.name, utterance.name, 0, utterance.duration_s, text=utterance.text)
    return MonoCut(utterance.name, 0, utterance.duration_s, 0, [said], recording=whole)


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    with throwaway_folder() as folder:
        with connect(folder / "store") as client:
            bucket = client.create_bucket("speech")
            bucket.put_many((one.name, one.path) for one in utterances())
        yield folder / "store"


@pytest.fixture(scope="module")
def over_files() -> CutSet:
    return CutSet.from_cuts(cut_of(one, "file", str(one.path)) for one in utterances())


@pytest.fixture(scope="module")
def over_the_store() -> CutSet:
    return CutSet.from_cuts(cut_of(one, "url", f"ais://speech/{one.name}") for one in utterances())


def features() -> OnTheFlyFeatures:
    return OnTheFlyFeatures(Fbank(FbankConfig(sampling_rate=8000)))


def sampler(cuts: CutSet) -> SimpleCutSampler:
    return SimpleCutSampler(cuts, max_duration=MAX_SECONDS, shuffle=True, seed=2)


def loaded(dataset: Any, cuts: CutSet, **options: Any) -> list[dict[str, Any]]:
    return list(DataLoader(dataset, sampler=sampler(cuts), batch_size=None, **options))


def check_equal(batches: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(batches) == len(expected) > 10
    for one, other in zip(batches, expected, strict=True):
        assert torch.equal(one["inputs"], other["inputs"])
        assert one["supervisions"].keys() == other["supervisions"].keys()
        for key, value in one["supervisions"].items():
            wanted = other["supervisions"][key]
            assert torch.equal(value, wanted) if isinstance(value, torch.Tensor) else value == wanted


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The entries of each request of any AISBatchLoader in this process."""
    connected = AISBatchLoader.client.fget
    counts: list[list[Any]] = []

    def client(self: AISBatchLoader) -> Counted:
        counted = Counted(connected(self))
        counted.requests = counts
        return counted

    monkeypatch.setattr(AISBatchLoader, "client", property(client))
    return counts


def test_features_on_the_fly_are_those_over_files_with_one_request_for_each_batch(
    store: Path, over_files: CutSet, over_the_store: CutSet, requests: list[list[Any]]
) -> None:
    dataset = K2SpeechRecognitionDataset(input_strategy=features())
    expected = loaded(dataset, over_files)
    check_equal(loaded(Fetched(dataset, store=store), over_the_store), expected)
    assert [len(request) for request in requests] == [len(batch["supervisions"]["text"]) for batch in expected]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_every_kind_fetch(store: Path, over_files: CutSet, over_the_store: CutSet, method: str) -> None:
    dataset = K2SpeechRecognitionDataset(input_strategy=features())
    with warnings.catch_warnings(action="ignore"):
        workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method, "timeout": DEADLINE_S}
        batches = loaded(Fetched(dataset, store=store), over_the_store, **workers)
    check_equal(batches, loaded(dataset, over_files))


def test_a_batch_loader_requests_ahead(store: Path, over_files: CutSet, over_the_store: CutSet) -> None:
    dataset = K2SpeechRecognitionDataset(input_strategy=features())
    batches = list(BatchLoader(Fetched(dataset, store=store), sampler(over_the_store), threads=1))
    check_equal(batches, loaded(dataset, over_files))


def test_the_installed_store_is_the_default_and_a_last_transform_fetches_what_was_mixed_in(
    store: Path, over_files: CutSet, over_the_store: CutSet, requests: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AISBatchLoader, "store", AISBatchLoader.store)
    install(store)

    def mixing(noise: CutSet, last: Callable[[CutSet], CutSet] | None) -> K2SpeechRecognitionDataset:
        mix = CutMix(noise.subset(first=10), p=1.0, snr=10, seed=3, preserve_id=True)
        return K2SpeechRecognitionDataset(
            cut_transforms=[mix] if last is None else [mix, last], input_strategy=features()
        )

    expected = loaded(mixing(over_files, None), over_files)
    dataset = mixing(over_the_store, AISBatchLoader())
    check_equal(loaded(Fetched(dataset), over_the_store), expected)
    assert len(requests) == 2 * len(expected)


def test_a_recording_that_is_gone_is_told_by_name(store: Path, over_the_store: CutSet) -> None:
    dataset = Fetched(K2SpeechRecognitionDataset(input_strategy=features()), store=store, strict=True)
    gone = over_the_store[0].map_supervisions(lambda said: said)
    gone.recording.sources[0].source = "ais://speech/gone.flac"
    with pytest.raises(AISBatchLoaderError, match=r"ais://speech/gone\.flac: NOT_FOUND"):
        dataset[CutSet.from_cuts([over_the_store[1], gone])]


@pytest.mark.parametrize("missing", [0, 1])
def test_no_cut_of_several_sets_is_left_out_alone(store: Path, over_the_store: CutSet, missing: int) -> None:
    gone = over_the_store[0].map_supervisions(lambda said: said)
    gone.recording.sources[0].source = "ais://speech/gone.flac"
    sets = [CutSet.from_cuts(over_the_store[at] for at in (1, 2)), CutSet.from_cuts([over_the_store[3]])]
    sets[missing] = CutSet.from_cuts([gone, *sets[missing]])
    dataset = Fetched(None, store=store, skip_failed_fetches=True)
    with pytest.raises(
        AISBatchLoaderError, match="only 3 of 4 cuts are whole, and none of several sets is left out alone"
    ):
        dataset[tuple(sets)]
