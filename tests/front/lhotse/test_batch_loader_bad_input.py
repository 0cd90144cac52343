"""The batch loader and what is missing, broken, hostile or oddly named: told, and nothing else harmed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lhotse import AudioSource, CutSet, MonoCut
from lhotse.ais.batch_loader import AISBatchLoaderError as LhotseLoaderError
from lhotse.audio import AudioLoadingError
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
    npy,
    put_audio,
    recording,
    samples,
    temporal,
)

from ais_loader import Bucket, Client, connect
from ais_loader.integrations.lhotse import AISBatchLoader, AISBatchLoaderError, FetchFailed
from ais_loader.testing import NodeProcess, throwaway_folder
from tests.tar_kit import packed_tar


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with throwaway_folder() as folder:
        connect(folder / "store").close()
        yield str(folder / "store")


@pytest.fixture
def loader(client: Client) -> CountedLoader:
    return CountedLoader(client)


def tolerant(loader: Any, cuts: CutSet) -> list[str]:
    """Of a fault-tolerant caller, the cuts that are left."""
    strategy = AudioSamples(fault_tolerant=True)
    strategy.use_batch_loader, strategy.ais_batch_loader = True, loader
    audio, _, left = strategy(cuts)
    assert len(audio) == len(left)
    return [one.id for one in left]


def with_one_bad(bucket: Bucket, url: str) -> CutSet:
    good = put_audio(bucket, 3)
    return eager(good[0], cut("bad", url), good[1], good[2])


MISSING = {
    "object": ("ais://{bucket}/no.wav", r"no\.wav: NOT_FOUND"),
    "member": ("ais://{bucket}/s.tar/no.wav", r"s\.tar/no\.wav: MEMBER_NOT_FOUND"),
    "bucket": ("ais://no-such-bucket/a.wav", r"no-such-bucket/a\.wav: NOT_FOUND"),
    "empty": ("ais://{bucket}/empty.wav", r"empty\.wav: OK: it is empty"),
    "truncated": ("ais://{bucket}/cut.wav", r"."),
    "noise": ("ais://{bucket}/noise.wav", r"."),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_cannot_be_loaded_costs_its_cut_where_that_is_tolerated_and_raises_where_not(
    loader: CountedLoader, bucket: Bucket, what: str
) -> None:
    bucket.put_many(
        [
            ("s.tar", packed_tar({"a.wav": encoded(samples(1))})),
            ("empty.wav", b""),
            ("cut.wav", encoded(samples(1))[:9000]),
            ("noise.wav", b"no audio at all"),
        ]
    )
    url, message = MISSING[what]
    cuts = with_one_bad(bucket, url.format(bucket=bucket.name))
    assert tolerant(loader, cuts) == ["a-0", "a-1", "a-2"]
    found = list(loader(cuts))
    assert np.array_equal(found[3].load_audio()[0], samples(1, 2))
    with pytest.raises(Exception, match=message) as raised:
        found[1].load_audio()
    # What is cut off is told by its duration, as Lhotse does for files.
    assert isinstance(raised.value, AudioLoadingError) or what == "truncated"


def test_strict_raises_one_error_that_names_all_that_failed(client: Client, bucket: Bucket) -> None:
    root = f"ais://{bucket.name}"
    cuts = eager(*put_audio(bucket, 1), cut("x", f"{root}/x.wav"), cut("y", f"{root}/y.tar/y.wav"))
    with pytest.raises(AISBatchLoaderError, match=r"2 of 3 entries.*x\.wav: NOT_FOUND.*y\.tar/y\.wav: NOT_FOUND") as no:
        CountedLoader(client, strict=True)(cuts)
    assert isinstance(no.value, LhotseLoaderError)
    assert str(type(no.value)("one string")) == str(pickle.loads(pickle.dumps(type(no.value)("one string"))))
    assert str(FetchFailed("a")) == "a"


def test_failed_cuts_are_left_out_when_asked_for(
    client: Client, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    cuts = with_one_bad(bucket, f"ais://{bucket.name}/x.wav")
    found = CountedLoader(client, skip_failed_fetches=True)(cuts)
    assert [one.id for one in found] == ["a-0", "a-1", "a-2"]
    assert "x.wav: NOT_FOUND" in caplog.text


@pytest.mark.parametrize("options", [{}, {"skip_failed_fetches": True}, {"strict": True}])
def test_a_batch_of_which_nothing_is_left_says_why(client: Client, bucket: Bucket, options: dict[str, Any]) -> None:
    cuts = eager(cut("x", f"ais://{bucket.name}/x.wav"), cut("y", f"ais://{bucket.name}/y.wav"))
    with pytest.raises(AISBatchLoaderError, match=r"no cut of the batch is whole.*x\.wav.*y\.wav"):
        CountedLoader(client, **options)(cuts)


def test_a_node_that_does_not_answer_fails_the_batch_with_a_reason(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "drive") as node, connect(node.url) as client:
        cuts = eager(*put_audio(client.create_bucket("b"), 2))
        loader = CountedLoader(client, timeout_s=1.0)
        node.pause()
        with pytest.raises(AISBatchLoaderError, match=r"a/0\.wav: (TIMEOUT|UNAVAILABLE)"):
            loader(cuts)
        node.resume()
        assert len(loader(cuts)) == 2


def test_features_arrays_and_images_that_are_missing_say_so_when_they_are_loaded(
    loader: CountedLoader, bucket: Bucket
) -> None:
    root = f"ais://{bucket.name}"
    good, bad = put_audio(bucket, 2)
    bad.features = features(root, "no.npy", 10)
    bad.custom = {
        "matrix": array(root, "no1.npy", (2, 2)),
        "track": temporal(root, "no2.npy", (100,)),
        "picture": image(root, "no3.png", 2, 2),
    }
    found = list(loader(eager(good, bad)))
    assert np.array_equal(found[1].load_audio()[0], samples(1, 1))
    for load, name in (("features", "no"), ("matrix", "no1"), ("track", "no2"), ("picture", "no3")):
        with pytest.raises(AudioLoadingError, match=rf"{name}\.[np]+[yg]: NOT_FOUND"):
            getattr(found[1], f"load_{load}")()


class Hostile:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("start", [0.0, 4.0])
def test_nothing_that_came_from_the_store_is_unpickled(
    loader: CountedLoader, bucket: Bucket, tmp_path: Path, start: float
) -> None:
    mark = tmp_path / "mark"
    objects = np.array([Hostile(mark)] * 100_000, dtype=object)
    bucket.put_many(
        [("h.npy", npy(objects, allow_pickle=True)), ("p.npy", pickle.dumps(Hostile(mark))), ("p.png", pickle.dumps(1))]
    )
    root = f"ais://{bucket.name}"
    one = MonoCut("c", start=start, duration=1.0, channel=0, features=features(root, "h.npy", 100_000))
    one.custom = {"matrix": array(root, "p.npy", (2, 2)), "picture": image(root, "p.png", 2, 2)}
    [found] = loader([one])
    for load in (found.load_features, found.load_matrix, found.load_picture):
        with pytest.raises(Exception, match=r"pickle|allow_pickle|identify image"):
            load()
    assert not mark.exists()


def test_names_are_literal(loader: CountedLoader, bucket: Bucket) -> None:
    names = ["a#b.wav", "a?b=c.wav", "a%20b.wav", "ä b.wav", "x.target.wav", "x.tar", "d.tarball/x.wav"]
    bucket.put_many((name, encoded(samples(1, at))) for at, name in enumerate(names))
    found = loader(eager(*(cut(name, f"ais://{bucket.name}/{name}") for name in names)))
    for at, one in enumerate(found):
        assert np.array_equal(one.load_audio()[0], samples(1, at)), one.id


def test_an_unknown_storage_type_raises_where_it_is_remote_and_is_left_alone_where_not(
    loader: CountedLoader, bucket: Bucket
) -> None:
    [good] = put_audio(bucket, 1)
    good.custom = {"local": array("/somewhere", "x", (2,), "numpy_hdf5"), "here": array("", "x", (2,), "memory_raw")}
    [found] = loader([good])
    assert found.custom["local"] is good.custom["local"]
    good.custom = {"chunks": array(f"ais://{bucket.name}/c.lca", "0,10", (2,), "lilcom_chunky")}
    with pytest.raises(AISBatchLoaderError, match=r"lilcom_chunky.*numpy_files"):
        loader([good])


def test_a_custom_field_that_names_what_the_cut_names_is_fetched_once(loader: CountedLoader, bucket: Bucket) -> None:
    [good] = put_audio(bucket, 1)
    source = good.recording.sources[0].source
    good.custom = {"target": recording("t", source), "other": recording("o", source)}
    [found] = loader([good])
    assert [len(request) for request in loader.requests] == [1]
    assert np.array_equal(found.load_target(), found.load_other())
    assert np.array_equal(found.load_target()[0], samples(1, 0))


def test_a_url_without_a_name_says_what_is_needed(loader: CountedLoader) -> None:
    with pytest.raises(Exception, match="need both a bucket and a name"):
        loader([cut("c", "ais://bucket")])


def test_placeholders_and_sources_of_other_kinds_stay_as_they_are(loader: CountedLoader, bucket: Bucket) -> None:
    [good] = put_audio(bucket, 1)
    others = [AudioSource("shar", [1], ""), AudioSource("command", [2], "cat x"), AudioSource("memory", [3], b"1")]
    good.recording.sources += others
    [found] = loader([good])
    assert found.recording.sources[1:] == others
    assert found.recording.sources[0].type == "memory"


def test_a_store_that_is_open_for_writing_in_this_process_is_read(
    url: str, client: Client, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", url)  # `client` holds it for writing
    loader = AISBatchLoader()
    cuts = eager(*put_audio(bucket, 2))
    assert np.array_equal(list(loader(cuts))[1].load_audio()[0], samples(1, 1))
    bucket.put("a/1.wav", encoded(samples(1, 5)))
    assert np.array_equal(list(loader(cuts))[1].load_audio()[0], samples(1, 5))


def test_no_store_named_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_LOADER_URL", raising=False)
    with pytest.raises(Exception, match="AIS_LOADER_URL"):
        AISBatchLoader()(eager(cut("a", "ais://b/a.wav")))


def test_a_shorter_recording_in_the_place_of_one_that_was_known_is_not_mixed_with_it(
    loader: CountedLoader, bucket: Bucket
) -> None:
    bucket.put("long.wav", encoded(samples(60, 1)))
    cuts = eager(cut("c", f"ais://{bucket.name}/long.wav", seconds=2.0, start=50.0, of_seconds=60.0))
    loader(cuts)
    bucket.put("long.wav", encoded(samples(20, 2)))
    [found] = list(loader(cuts))
    with pytest.raises(Exception, match=r"."):
        assert found.load_audio().shape == (1, 2 * RATE)
