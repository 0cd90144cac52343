"""The batch loader: every kind of data that cuts name, in memory after one GetBatch, and loaded by Lhotse itself."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, CutSet, MonoCut, MultiCut, Recording
from lhotse.dataset.input_strategies import AudioSamples
from lhotse_kit import (
    RATE,
    CountedLoader,
    array,
    cut,
    eager,
    encoded,
    features,
    image,
    lilcom_bytes,
    npy,
    png,
    put_audio,
    recording,
    samples,
    temporal,
)

from ais_loader import Bucket, Client, Entry, connect
from ais_loader.integrations.lhotse import AISBatchLoader
from ais_loader.testing import throwaway_folder
from tests.tar_kit import packed_tar


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "grpc":
        yield request.getfixturevalue("node").url
        return
    with throwaway_folder() as folder:
        connect(folder / "store").close()
        yield str(folder / "store")


@pytest.fixture
def loader(client: Client) -> CountedLoader:
    return CountedLoader(client)


def test_recordings_of_a_batch_are_one_request_and_load_their_samples(loader: CountedLoader, bucket: Bucket) -> None:
    cuts = eager(*put_audio(bucket, 8))
    found = loader(cuts)
    assert [one.id for one in found] == [one.id for one in cuts]
    assert [len(request) for request in loader.requests] == [8]
    for at, one in enumerate(found):
        assert one.recording.sources[0].type == "memory"
        assert np.array_equal(one.load_audio()[0], samples(1, at))


def test_every_storage_type_loads_what_was_stored(loader: CountedLoader, bucket: Bucket) -> None:
    rng = np.random.default_rng(7)
    feats, matrix, track = rng.random((100, 4), np.float32), rng.random((3, 5)), rng.integers(0, 9, 100)
    picture = rng.integers(0, 255, (6, 5, 3), np.uint8)
    audio = samples(1)
    bucket.put_many(
        [
            ("a.wav", encoded(audio)),
            ("a.flac", encoded(audio, "FLAC")),
            ("f/x.npy", npy(feats)),
            ("f/x.llc", lilcom_bytes(feats)),
            ("m.npy", npy(matrix)),
            ("t.npy", npy(track)),
            ("p.png", png(picture)),
            ("s.tar", packed_tar({"d/f.npy": npy(feats), "a.wav": encoded(audio), "p.png": png(picture)})),
        ]
    )
    root = f"ais://{bucket.name}"
    cuts = [
        cut("wav", f"{root}/a.wav"),
        cut("flac", f"{root}/a.flac"),
        cut("member", f"{root}/s.tar/a.wav"),
    ]
    cuts[0].features = features(f"{root}/f", "x.npy", 100)
    cuts[1].features = features(f"{root}/f", "x.llc", 100, "lilcom_files")
    cuts[2].features = features(f"{root}/s.tar/d", "f.npy", 100)
    cuts[0].custom = {
        "matrix": array(root, "m.npy", (3, 5)),
        "track": temporal(root, "t.npy", (100,)),
        "picture": image(root, "p.png", 5, 6),
        "packed": image(f"{root}/s.tar", "p.png", 5, 6),
        "target": recording("t", f"{root}/a.flac"),
        "llc": array(f"{root}/f/", "x.llc", (100, 4), "lilcom_files"),
        "text": "not data",
    }
    found = list(loader(CutSet.from_cuts(cuts)))
    assert len(loader.requests) == 1
    for one in found:
        assert np.array_equal(one.load_audio()[0], audio)
    assert np.array_equal(found[0].load_features(), feats)
    assert np.allclose(found[1].load_features(), feats, atol=0.01)
    assert np.array_equal(found[2].load_features(), feats)
    assert np.array_equal(found[0].load_matrix(), matrix)
    assert np.array_equal(found[0].load_track(), track)
    assert np.array_equal(found[0].load_picture(), picture)
    assert np.array_equal(found[0].load_packed(), picture)
    assert np.array_equal(found[0].load_target()[0], audio)
    assert np.allclose(found[0].load_llc(), feats, atol=0.01)
    assert found[0].custom["text"] == "not data"
    assert [value.is_in_memory for _, value in found[0].iter_data() if hasattr(value, "is_in_memory")]


def test_all_tracks_and_all_sources_are_fetched_and_each_entry_once(loader: CountedLoader, bucket: Bucket) -> None:
    one, two, three = put_audio(bucket, 3)
    both = recording("both", *(one.recording.sources[0].source, two.recording.sources[0].source))
    two_channels = MultiCut("two", start=0.0, duration=1.0, channel=[0, 1], recording=both)
    mixed = one.mix(two, snr=10).pad(duration=1.5)
    found = list(loader(eager(two_channels, mixed, one, three, one.with_id("again"))))
    assert sorted(entry.name for request in loader.requests for entry in request) == ["a/0.wav", "a/1.wav", "a/2.wav"]
    assert np.array_equal(found[0].load_audio(), np.stack([samples(1, 0), samples(1, 1)]))
    local = [cut(f"l{at}", "x").with_id(f"l{at}") for at in range(2)]
    for at, each in enumerate(local):
        each.recording.sources[0] = AudioSource("memory", [0], encoded(samples(1, at)))
    assert np.array_equal(found[1].load_audio(), local[0].mix(local[1], snr=10).pad(duration=1.5).load_audio())
    assert found[2].recording.sources[0].source is found[4].recording.sources[0].source


def test_of_two_sources_only_the_remote_one_is_replaced(loader: CountedLoader, bucket: Bucket, tmp_path: Path) -> None:
    [remote] = put_audio(bucket, 1)
    soundfile.write(tmp_path / "local.wav", samples(1, 9), RATE, subtype="PCM_16")
    sources = [
        AudioSource("file", [0], str(tmp_path / "local.wav")),
        AudioSource("url", [1], remote.recording.sources[0].source),
    ]
    whole = Recording("r", sources, RATE, RATE, 1.0)
    [found] = loader([MultiCut("m", start=0.0, duration=1.0, channel=[0, 1], recording=whole)])
    assert found.recording.sources[0] is sources[0]
    assert np.array_equal(found.load_audio(), np.stack([samples(1, 9), samples(1, 0)]))


def test_the_cuts_that_were_passed_hold_no_data_and_a_second_pass_works(loader: CountedLoader, bucket: Bucket) -> None:
    cuts = eager(*put_audio(bucket, 2))
    before = cuts.to_eager().to_dicts()
    before = list(before)
    first = loader(cuts)
    assert list(cuts.to_dicts()) == before
    again = loader(first)  # all in memory: nothing is asked for
    assert again is first
    assert [len(request) for request in loader.requests] == [2]
    assert np.array_equal(next(iter(loader(cuts))).load_audio(), next(iter(first)).load_audio())


def test_nothing_is_connected_or_logged_where_nothing_is_remote(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AIS_LOADER_URL", raising=False)
    caplog.set_level(logging.DEBUG)
    cuts = eager(cut("local", "/a.wav"), cut("elsewhere", "https://a.example/b.wav"))
    cuts[0].features = features("/f", "x.npy", 10)
    loader = AISBatchLoader()
    assert loader(cuts) is cuts
    assert loader(eager()) is not None
    assert not caplog.records


def test_it_pickles_without_what_it_has_opened_and_reads_again(url: str, bucket: Bucket) -> None:
    cuts = eager(*put_audio(bucket, 2))
    loader = AISBatchLoader(store=url)
    loader(cuts)
    again = pickle.loads(pickle.dumps(loader))
    assert np.array_equal(list(again(cuts))[1].load_audio()[0], samples(1, 1))


def test_a_list_is_answered_by_a_list(loader: CountedLoader, bucket: Bucket) -> None:
    cuts = put_audio(bucket, 2)
    found = loader(cuts)
    assert isinstance(found, list)
    assert [one.id for one in found] == [one.id for one in cuts]


def test_lazy_sets_are_refused(loader: CountedLoader, tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    eager(cut("a", "ais://b/a.wav")).to_file(path)
    with pytest.raises(ValueError, match=r"Lazy CutSets cannot be used with AISBatchLoader.*to_eager"):
        loader(CutSet.from_file(path))
    with pytest.raises(ValueError, match="to_eager"):
        loader(iter([]))


def test_single_requests_bring_the_same(client: Client, bucket: Bucket) -> None:
    loader = CountedLoader(client, force_individual=True)
    found = list(loader(eager(*put_audio(bucket, 3))))
    assert [len(request) for request in loader.requests] == [1, 1, 1]
    assert np.array_equal(found[2].load_audio()[0], samples(1, 2))


# -- windows


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT", "PCM_U8"])
@pytest.mark.parametrize("where", ["long.wav", "s.tar/long.wav"])
def test_a_trimmed_cut_fetches_its_window_and_loads_the_same_samples(
    loader: CountedLoader, bucket: Bucket, subtype: str, where: str
) -> None:
    whole = encoded(samples(60, channels=2), subtype=subtype)
    bucket.put_many([("long.wav", whole), ("s.tar", packed_tar({"long.wav": whole}))])
    long = Recording("r", [AudioSource("url", [0, 1], f"ais://{bucket.name}/{where}")], RATE, 60 * RATE, 60.0)
    starts = [0.0, 7.00003125, 31.4159, 58.0]
    cuts = [MonoCut(f"c{at}", start=at, duration=2.0, channel=1, recording=long) for at in starts]
    in_memory = Recording("r", [AudioSource("memory", [0, 1], whole)], RATE, 60 * RATE, 60.0)
    for one, start in zip(loader(cuts), starts, strict=True):
        want = MonoCut("w", start=start, duration=2.0, channel=1, recording=in_memory).load_audio()
        assert np.array_equal(one.load_audio(), want), start
    assert [len(request) for request in loader.requests] == [1, 4]  # the header, then the windows
    assert sum(entry.length or 0 for entry in loader.requests[1]) < len(whole) * 8 / 60 + 100
    loader(cuts)
    assert [len(request) for request in loader.requests[2:]] == [4]


def test_a_window_follows_what_transforms_need(loader: CountedLoader, bucket: Bucket) -> None:
    bucket.put("long.wav", encoded(samples(60)))
    whole = recording("r", f"ais://{bucket.name}/long.wav", seconds=60)
    fast = MonoCut("c", start=20.0, duration=4.0, channel=0, recording=whole).perturb_speed(1.1)
    [found] = loader([fast])
    assert loader.requests[-1][0].length
    whole.sources[0] = AudioSource("memory", [0], encoded(samples(60)))
    assert np.array_equal(
        found.load_audio(),
        MonoCut("c", start=20.0, duration=4.0, channel=0, recording=whole).perturb_speed(1.1).load_audio(),
    )


def test_rows_of_arrays_are_those_of_the_cut(loader: CountedLoader, bucket: Bucket) -> None:
    rng = np.random.default_rng(3)
    feats, track = rng.random((6000, 40), np.float32), rng.integers(0, 1 << 40, (60_000, 2))
    bucket.put_many([("f.npy", npy(feats)), ("s.tar", packed_tar({"t.npy": npy(track)}))])
    root = f"ais://{bucket.name}"
    one = MonoCut("c", start=12.0, duration=3.0, channel=0, features=features(root, "f.npy", 6000, bins=40))
    one.custom = {"track": temporal(f"{root}/s.tar", "t.npy", (60_000, 2), shift=0.001)}
    [found] = loader([one])
    assert np.array_equal(found.load_features(), feats[1200:1500])
    assert np.array_equal(found.load_track(), track[12_000:15_000])
    assert [entry.length for entry in loader.requests[-1]] == [300 * 160, 3000 * 16]
    with pytest.raises(Exception, match=r"windows=False"):
        found.features.load()


def test_what_a_batch_needs_most_of_is_fetched_whole_and_once(loader: CountedLoader, bucket: Bucket) -> None:
    bucket.put("long.wav", encoded(samples(20)))
    whole = recording("r", f"ais://{bucket.name}/long.wav", seconds=20)
    cuts = [MonoCut(f"c{at}", start=float(at), duration=4.0, channel=0, recording=whole) for at in range(0, 16, 2)]
    found = loader(cuts)
    assert loader.requests == [[Entry(bucket.name, "long.wav")]]
    assert all(
        np.array_equal(one.load_audio()[0], samples(20)[at * RATE :][: 4 * RATE])
        for at, one in zip(range(0, 16, 2), found, strict=True)
    )


@pytest.mark.parametrize("form", ["FLAC", "OGG"])
def test_other_containers_are_fetched_whole_whatever_they_are_called(
    loader: CountedLoader, bucket: Bucket, form: str
) -> None:
    data = encoded(samples(60), form)
    bucket.put("long.wav", data)
    [found] = loader([cut("c", f"ais://{bucket.name}/long.wav", seconds=2.0, start=30.0, of_seconds=60.0)])
    want, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    assert np.allclose(found.load_audio()[0], want[30 * RATE : 32 * RATE], atol=1e-4)


def test_windows_can_be_turned_off(client: Client, bucket: Bucket) -> None:
    bucket.put("long.wav", encoded(samples(60)))
    loader = CountedLoader(client, windows=False)
    [found] = loader([cut("c", f"ais://{bucket.name}/long.wav", seconds=2.0, start=30.0, of_seconds=60.0)])
    assert np.array_equal(found.recording.load_audio()[0], samples(60))


def test_a_recording_replaced_since_its_header_was_read_is_read_anew(loader: CountedLoader, bucket: Bucket) -> None:
    bucket.put("long.wav", encoded(samples(60, 1)))
    cuts = [cut("c", f"ais://{bucket.name}/long.wav", seconds=2.0, start=30.0, of_seconds=60.0)]
    loader(cuts)
    bucket.put("long.wav", encoded(samples(60, 2), subtype="FLOAT"))
    for _ in range(2):
        [found] = loader(cuts)
        assert np.array_equal(found.load_audio()[0], samples(60, 2)[30 * RATE : 32 * RATE])


# -- in Lhotse's own datasets


@pytest.mark.parametrize("tolerant", [False, True])
def test_audio_samples_collates_what_the_loader_brings(
    url: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tolerant: bool
) -> None:
    import lhotse.ais

    monkeypatch.setattr(lhotse.ais, "AISBatchLoader", AISBatchLoader)
    monkeypatch.setenv("AIS_LOADER_URL", url)
    strategy = AudioSamples(fault_tolerant=tolerant, use_batch_loader=True)
    audio, lengths, *left = strategy(eager(*put_audio(bucket, 3)))
    assert np.array_equal(audio.numpy(), np.stack([samples(1, at) for at in range(3)]))
    assert lengths.tolist() == [RATE] * 3
    assert [len(one) for one in left] == ([3] if tolerant else [])
