"""What the batch loader asks for, and what its cuts are made of: Lhotse's own claims about its AISBatchLoader."""

from __future__ import annotations

import inspect
import io
import tarfile
from collections.abc import Iterator
from typing import Any

import lhotse.ais.batch_loader
import numpy as np
import pytest
from lhotse import AudioSource, MonoCut, Recording
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
from ais_loader.integrations.lhotse import AISBatchLoader, AISBatchLoaderError
from ais_loader.integrations.lhotse.needs import MEMORY_TYPES, needs_of
from ais_loader.testing import throwaway_folder
from tests.tar_kit import packed_tar


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with throwaway_folder() as folder:
        connect(folder / "store").close()
        yield str(folder / "store")


def test_the_constructor_takes_what_lhotse_and_nemo_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIS_ENDPOINT", "AIS_LOADER_URL"):
        monkeypatch.delenv(name, raising=False)
    AISBatchLoader()
    loader = AISBatchLoader(force_individual=True, skip_failed_fetches=True)
    assert loader.force_individual
    assert loader.skip_failed_fetches
    ours, theirs = (inspect.signature(one).parameters for one in (AISBatchLoader, AISBatchLoader.__base__))
    assert [name for name in theirs if name not in ours] == []


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("ais://b/a.wav", Entry("b", "a.wav")),
        ("ais://b/d/e/a.wav", Entry("b", "d/e/a.wav")),
        ("ais://b/s.tar/a.wav", Entry("b", "s.tar", "a.wav")),
        ("ais://b/s.tar/d/e/a.wav", Entry("b", "s.tar", "d/e/a.wav")),
        ("ais://b/s.tar.gz/a.wav", Entry("b", "s.tar.gz", "a.wav")),
        ("ais://b/s.tgz/a.wav", Entry("b", "s.tgz", "a.wav")),
        ("ais://b/p/s.tar.gz/t.tar/a.wav", Entry("b", "p/s.tar.gz", "t.tar/a.wav")),
        ("ais://b/x.target.wav", Entry("b", "x.target.wav")),
        ("ais://b/s.tar", Entry("b", "s.tar")),
        ("ais://b/a#b?c%20.wav", Entry("b", "a#b?c%20.wav")),
    ],
)
def test_each_form_of_a_url_is_asked_for_as_bucket_object_and_member(source: str, wanted: Entry) -> None:
    assert [need.entry for need in needs_of([cut("c", source)])] == [wanted]
    path, _, key = source.rpartition("/")
    one = MonoCut("c", start=0.0, duration=0.1, channel=0, features=features(path, key, 10))
    one.custom = {"track": temporal(path, key, (10,)), "matrix": array(path, key, (2,)), "i": image(path, key, 1, 1)}
    assert [need.entry for need in needs_of([one])] == [wanted] * 4


@pytest.mark.parametrize("source", ["/a.wav", "a.wav", "https://a.example/a.wav", "s3://b/a.wav", "ais.wav"])
def test_what_is_elsewhere_is_not_asked_for(source: str) -> None:
    one = cut("c", source)
    one.features = features("/feats", "x.npy", 100)
    one.custom = {"m": array("https://a.example", "x.npy", (2,)), "n": array("ais", "x.hdf5", (2,), "numpy_hdf5")}
    assert needs_of([one]) == []


@pytest.mark.parametrize("kind", sorted(MEMORY_TYPES))
def test_each_storage_type_becomes_the_memory_type_that_lhotse_is_told(
    client: Client, bucket: Bucket, kind: str
) -> None:
    values = np.random.default_rng(0).random((4, 3), np.float32)
    data = {"numpy_files": npy(values), "pillow_files": png(np.zeros((2, 2), np.uint8))}.get(kind, lilcom_bytes(values))
    bucket.put("d/x", data)
    one = cut("c", "/local.wav")
    path = f"ais://{bucket.name}/d"
    manifest: Any = image(path, "x", 2, 2, kind) if kind == "pillow_files" else array(path, "x", (4, 3), kind)
    one.custom = {"thing": manifest}
    [found] = CountedLoader(client)([one])
    thing = found.custom["thing"]
    assert (thing.storage_type, thing.storage_path) == (MEMORY_TYPES[kind], "")
    assert isinstance(thing.storage_key, bytes)
    assert thing.load().shape[:2] in ((4, 3), (2, 2))
    assert set(lhotse.ais.batch_loader.FILE_TO_MEMORY_TYPE) <= set(MEMORY_TYPES)


def test_order_is_kept_where_some_are_shared_and_some_are_local(client: Client, bucket: Bucket) -> None:
    cuts = put_audio(bucket, 5)
    cuts = [cuts[3], cut("local", "/x.wav"), cuts[0], cuts[3].with_id("again"), cuts[4], cuts[1]]
    loader = CountedLoader(client)
    found = loader(eager(*cuts))
    assert [one.id for one in found] == ["a-3", "local", "a-0", "again", "a-4", "a-1"]
    assert [entry.name for entry in loader.requests[0]] == ["a/3.wav", "a/0.wav", "a/4.wav", "a/1.wav"]
    for one, at in zip(found, [3, None, 0, 3, 4, 1], strict=True):
        assert at is None or np.array_equal(one.load_audio()[0], samples(1, at))


# -- Shar pointers, of Lhotse 2; a loader brings what they point at to both


def pointer(bucket: Bucket, tar: bytes, name: str, suffix: str = "") -> str:
    """Of a member of s.tar: from where its headers begin."""
    before = 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            stop = member.offset_data + -(-member.size // 512) * 512
            if member.name == name:
                return f"ais://{bucket.name}/s.tar?o={before}&e={stop}{suffix}"
            before = stop
    raise AssertionError(name)


LONG = "d/" + "x" * 150 + ".wav"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("suffix", ["", "&n={name}", "&n={name}&s=1"])
def test_what_shar_pointers_point_at_is_part_of_the_batch(
    client: Client, bucket: Bucket, form: int, suffix: str
) -> None:
    values = np.random.default_rng(1).random((100, 4), np.float32)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, data in ((LONG, encoded(samples(1))), ("f.npy", npy(values)), ("f.llc", lilcom_bytes(values))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    bucket.put("s.tar", file.getvalue())

    def at(name: str) -> str:
        return pointer(bucket, file.getvalue(), name, suffix.format(name=name.replace("/", "%2F")))

    whole = Recording("r", [AudioSource("shar_ptr", [0], at(LONG))], RATE, RATE, 1.0)
    one = MonoCut("c", start=0.0, duration=1.0, channel=0, recording=whole)
    one.features = features("", at("f.npy"), 100, "shar_ptr_array")
    one.custom = {"track": temporal("", at("f.llc"), (100, 4), "shar_ptr_array")}
    loader = CountedLoader(client)
    [found] = loader([one])
    assert [len(request) for request in loader.requests] == [3]
    assert np.array_equal(found.load_audio()[0], samples(1))
    assert np.array_equal(found.load_features(), values)
    assert np.allclose(found.load_track(), values, atol=0.01)


def test_a_pointer_into_a_shard_that_was_replaced_finds_its_member_by_name_or_says_so(
    client: Client, bucket: Bucket
) -> None:
    old = packed_tar({"a.wav": encoded(samples(1, 1)), "b.wav": encoded(samples(1, 2))})
    bucket.put("s.tar", packed_tar({"b.wav": encoded(samples(1, 2)), "a.wav": encoded(samples(1, 1))}))
    sources = [pointer(bucket, old, "a.wav", suffix) for suffix in ("&n=a.wav", "&n=a.wav&s=1", "&n=b.wav")]
    cuts = [cut(f"c{at}", source) for at, source in enumerate(sources)]
    for one in cuts:
        one.recording.sources[0].type = "shar_ptr"
    found = list(CountedLoader(client)(eager(*cuts)))
    assert np.array_equal(found[0].load_audio()[0], samples(1, 1))
    with pytest.raises(Exception, match=r"b\.wav.*lies there"):
        found[1].load_audio()
    assert np.array_equal(found[2].load_audio()[0], samples(1, 2))
    bad = cut("bad", f"ais://{bucket.name}/s.tar")
    bad.recording.sources[0].type = "shar_ptr"
    with pytest.raises(AISBatchLoaderError, match="no Shar pointer"):
        CountedLoader(client)([bad])


def test_recordings_without_remote_sources_stay_the_same_objects(client: Client, bucket: Bucket) -> None:
    [remote] = put_audio(bucket, 1)
    local = cut("local", "/x.wav")
    remote.custom = {"target": recording("t", "/y.wav")}
    found = list(CountedLoader(client)([remote, local]))
    assert found[1] is local
    assert found[0].custom["target"] is remote.custom["target"]
    assert found[0] is not remote
