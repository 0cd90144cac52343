"""ShardSamples: by number what WebDataset yields in order, and clear errors where it cannot be."""

from __future__ import annotations

import io
import os
import pickle
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import webdataset as wds
from torch.utils.data import DataLoader, RandomSampler

from ais_loader import Bucket, errors
from ais_loader.integrations.webdataset import ShardSamples, install, uninstall
from tests.tar_kit import packed_tar

DEADLINE_S = 180


def same(sample: Any) -> Any:
    return sample


def in_order(urls: list[str], **options: Any) -> Any:
    return wds.WebDataset(urls, shardshuffle=False, **options)


def test_each_sample_has_the_keys_the_fields_and_their_order_that_webdataset_yields(
    shards: list[str], bucket: Bucket
) -> None:
    samples = ShardSamples(f"ais://{bucket.name}/s-{{0..3}}.tar", store=bucket.client.url)
    expected = list(in_order(shards))
    assert len(samples) == len(expected) == 40
    assert [list(sample.items()) for sample in samples.__getitems__(range(40))] == [
        list(sample.items()) for sample in expected
    ]
    assert samples.keys() == [sample["__key__"] for sample in expected]
    drawn = random.Random(1).choices(range(-40, 40), k=100)
    assert samples.__getitems__(np.array(drawn)) == [expected[at] for at in drawn]
    assert samples[-1] == expected[-1]
    with pytest.raises(IndexError, match="sample 40 of 40"):
        samples[40]


def test_the_store_that_is_installed_is_the_one_that_is_read(
    shards: list[str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", str(tmp_path / "none"))
    samples = ShardSamples(shards)  # of `install`, in the fixture
    expected = list(in_order(shards))
    assert samples.__getitems__(range(40)) == expected
    uninstall()
    assert pickle.loads(pickle.dumps(samples))[7] == expected[7]
    with pytest.raises(errors.StoreNotFound):
        ShardSamples(shards)
    install(str(tmp_path / "none"))
    assert ShardSamples(shards, store=bucket.client.url)[7] == expected[7]


def test_lengths_come_from_the_index(shards: list[str], bucket: Bucket) -> None:
    samples = ShardSamples(shards, store=bucket.client)
    expected = list(in_order(shards))
    assert samples.sizes_bytes("json").tolist() == [len(sample["json"]) for sample in expected]
    assert samples.sizes_bytes("nothing").tolist() == [-1] * 40
    assert samples.sizes_bytes().tolist() == [
        sum(len(value) for name, value in sample.items() if not name.startswith("__")) for sample in expected
    ]
    assert samples.versions() == {url: bucket.head(url.rpartition("/")[2]).version for url in shards}
    assert [entry.member for entry in samples.entries(0)] == ["000.TXT", "000.target.cls", "000.json"]


def first_two_fields(name: str) -> bool:
    return not name.endswith(".json")


def without_folder(name: str) -> str:
    return name.replace("part.0/", "moved-")


def test_files_are_selected_and_renamed_as_by_webdataset(shards: list[str], bucket: Bucket) -> None:
    options: dict[str, Any] = {"select_files": first_two_fields, "rename_files": without_folder}
    samples = ShardSamples(shards, store=bucket.client, **options)
    assert samples.__getitems__(range(len(samples))) == list(in_order(shards, **options))
    assert "moved-001" in samples.keys()  # noqa: SIM118 - a list


def picture(shade: int) -> bytes:
    target = io.BytesIO()
    PIL.Image.new("RGB", (4, 3), (shade, 0, 255)).save(target, "PNG")
    return target.getvalue()


def test_the_decoders_and_maps_of_webdataset_do_what_they_do_there(bucket: Bucket, installed: None) -> None:
    url = f"ais://{bucket.name}/p.tar.gz"
    with wds.TarWriter(url) as writer:
        for at in range(6):
            writer.write(
                {"__key__": f"{at}", "png": picture(at), "cls": at, "json": {"at": at}, "note.txt.gz": "packed"}
            )
    for how in ("rgb8", "pil", "torchrgb"):
        ours = [dict(sample) for sample in ShardSamples(url, store=bucket.client).decode(how).__getitems__(range(6))]
        theirs = list(in_order([url]).decode(how))
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys() and one["note.txt.gz"] == other["note.txt.gz"] == "packed"
            np.testing.assert_array_equal(np.asarray(one["png"]), np.asarray(other["png"]))
    pairs = ShardSamples(url, store=bucket.client).decode("rgb8").to_tuple("json", "cls").map_tuple(dict, float)
    assert pairs.__getitems__([4, 0]) == [({"at": 4}, 4.0), ({"at": 0}, 0.0)]
    renamed = ShardSamples(url, store=bucket.client).rename(label="cls").decode()
    assert renamed[3] == list(in_order([url]).rename(label="cls").decode())[3]


@pytest.mark.parametrize("call", ["shuffle", "batched", "select", "slice", "unbatched"])
def test_what_is_for_a_sampler_is_refused(call: str, bucket: Bucket) -> None:
    bucket.put("s.tar", packed_tar({"k.txt": b"text"}))
    with pytest.raises(TypeError, match="for the sampler and the DataLoader"):
        getattr(ShardSamples(f"ais://{bucket.name}/s.tar", store=bucket.client), call)(2)


@pytest.mark.parametrize(
    "how", ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_workers_and_any_sampler_get_each_sample_once(how: str, shards: list[str], bucket: Bucket) -> None:
    samples = ShardSamples(shards, store=bucket.client.url).map(same)
    assert pickle.loads(pickle.dumps(samples))[7] == samples[7]
    loader: DataLoader[Any] = DataLoader(
        samples,  # type: ignore[arg-type]  # map-style, but no Dataset of torch's
        batch_size=8,
        sampler=RandomSampler(samples),  # type: ignore[arg-type]
        num_workers=2,
        multiprocessing_context=how,
        collate_fn=same,
        timeout=DEADLINE_S,
    )
    came = [sample for batch in loader for sample in batch]
    assert len(came) == 40 and came != list(in_order(shards))
    assert sorted(came, key=str) == sorted(in_order(shards), key=str)


def test_batches_are_asked_for_ahead_and_are_those_of_the_sampler(
    shards: list[str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = ShardSamples(shards, store=bucket.client).map(same)
    order = random.Random(2).sample(range(40), 40)
    wanted = [order[at : at + 6] for at in range(0, 40, 6)]
    drawn: list[list[int]] = []

    def sampler() -> Iterator[list[int]]:
        for numbers in wanted:
            drawn.append(numbers)
            yield numbers

    requests: list[int] = []
    get_batch = bucket.client.get_batch
    monkeypatch.setattr(
        bucket.client, "get_batch", lambda entries, **options: requests.append(1) or get_batch(entries, **options)
    )
    came = []
    for batch in samples.batches(sampler(), in_flight=3):
        came.append(batch)
        assert len(drawn) == len(requests) == min(len(wanted), len(came) + 2)
    monkeypatch.undo()
    assert came == [samples.__getitems__(numbers) for numbers in wanted]


def test_a_batch_that_fails_ahead_fails_in_its_turn_or_goes_on_without_its_sample(
    shards: list[str], bucket: Bucket
) -> None:
    strict = ShardSamples(shards, store=bucket.client)
    passed_over: list[Exception] = []
    tolerant = ShardSamples(shards, store=bucket.client, handler=lambda error: passed_over.append(error) or True)
    bucket.delete("s-3.tar")
    wanted = [[0, 1], [2, 30], [3, 4]]
    reader = strict.batches(wanted)
    assert [sample["__key__"] for sample in next(reader)] == [strict.keys()[0], strict.keys()[1]]
    with pytest.raises(errors.ObjectNotFound, match="was deleted after its samples were listed"):
        next(reader)
    keys = strict.keys()
    found = [[sample["__key__"] for sample in batch] for batch in tolerant.batches(wanted)]
    assert found == [[keys[0], keys[1]], [keys[2]], [keys[3], keys[4]]]
    assert [type(error) for error in passed_over] == [errors.ObjectNotFound]
    with pytest.raises(errors.InvalidRequest, match="in_flight=0"):
        strict.batches(wanted, in_flight=0)


def test_a_shard_that_was_replaced_or_deleted_says_so(shards: list[str], bucket: Bucket) -> None:
    samples = ShardSamples(shards, store=bucket.client)
    tolerant = ShardSamples(shards, store=bucket.client, handler=wds.ignore_and_continue)
    stopping = ShardSamples(shards, store=bucket.client, handler=wds.ignore_and_stop)
    expected = list(in_order(shards))
    bucket.put("s-1.tar", packed_tar({"other.txt": b"new"}))
    bucket.delete("s-2.tar")
    assert samples.__getitems__([35, 3]) == [expected[35], expected[3]]  # the others are as they were
    with pytest.raises(
        errors.ObjectNotFound, match=r"s-1\.tar was replaced by version .* after its samples were listed"
    ):
        samples.__getitems__([0, 15])
    with pytest.raises(errors.ObjectNotFound, match=r"s-2\.tar was deleted after its samples were listed"):
        samples[25]
    assert tolerant.__getitems__([0, 15, 35]) == [expected[0], expected[35]]
    assert stopping.__getitems__([0, 15, 35]) == [expected[0]]
    with pytest.raises(LookupError, match="passed over"):
        tolerant[15]


def test_a_field_that_stands_twice_in_a_sample_is_an_error_and_a_key_in_two_places_is_one_sample(
    bucket: Bucket, installed: None
) -> None:
    bucket.put("twice.tar", packed_tar({"k.txt": b"one", "k.TXT": b"two"}))
    with pytest.raises(ValueError, match=r"twice\.tar: k\.TXT: duplicate file name"):
        ShardSamples(f"ais://{bucket.name}/twice.tar", store=bucket.client)
    bucket.put("apart.tar", packed_tar([("k.txt", b"one"), ("l.txt", b"two"), ("k.cls", b"3")]))
    samples = ShardSamples([f"ais://{bucket.name}/apart.tar"] * 2, store=bucket.client)
    assert samples.keys() == ["k", "l"] * 2
    found = [(one.get("txt"), one.get("cls")) for one in samples.__getitems__(range(4))]
    assert found == [(b"one", b"3"), (b"two", None)] * 2
    bucket.put("hidden.tar", packed_tar([("k.txt", b"one"), ("l.txt", b"two"), ("k.txt", b"three")]))
    with pytest.raises(errors.ArchiveError, match=r"hidden\.tar: 1 of its files have the name of a later one"):
        ShardSamples(f"ais://{bucket.name}/hidden.tar", store=bucket.client)


def test_what_cannot_be_listed_is_told_when_the_list_is_made(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for urls, error in [
        (f"ais://{bucket.name}/none.tar", errors.ObjectNotFound),
        ("ais://no-such-bucket/s.tar", errors.BucketNotFound),
        ("/data/s.tar", errors.InvalidRequest),
        ([], errors.InvalidRequest),
    ]:
        with pytest.raises(error):
            ShardSamples(urls, store=bucket.client)
    bucket.put("plain.txt", b"no archive")
    with pytest.raises(errors.NotAnArchive):
        ShardSamples(f"ais://{bucket.name}/plain.txt", store=bucket.client)
    monkeypatch.delenv("AIS_LOADER_URL", raising=False)
    with pytest.raises(errors.InvalidRequest, match="AIS_LOADER_URL"):
        ShardSamples(f"ais://{bucket.name}/s.tar")


def test_the_store_of_the_environment_is_read(shards: list[str], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_LOADER_URL", url)
    assert ShardSamples(shards)[0] == next(iter(in_order(shards)))


def killed(sample: Any) -> Any:
    if sample["__key__"].endswith("5"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


@pytest.mark.slow
def test_a_worker_that_is_killed_in_mid_batch_is_an_error_of_the_trainer(shards: list[str], bucket: Bucket) -> None:
    loader: DataLoader[Any] = DataLoader(
        ShardSamples(shards, store=bucket.client.url).map(killed),  # type: ignore[arg-type]
        batch_size=4,
        num_workers=1,
        collate_fn=same,
        timeout=DEADLINE_S,
    )
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)


def test_names_are_literal(bucket: Bucket, installed: None, tmp_path: Path) -> None:
    name = "s #?%20 é.tar"
    bucket.put(name, packed_tar({"a #?%20.x.target.wav": b"one", "a #?%20.wav": b"two"}))
    url = f"ais://{bucket.name}/{name}"
    samples = ShardSamples([url], store=bucket.client)
    assert samples[0] == {"__key__": "a #?%20", "__url__": url, "x.target.wav": b"one", "wav": b"two"}
    assert [samples[0]] == list(in_order([url]))
