"""TokenWindows: ranges of arrays of tokens, one request per batch, and arrays that are refused."""

from __future__ import annotations

import gzip
import io
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zstandard
from datasets_kit import RecordingTransport
from torch.utils.data import DataLoader

from ais_loader import (
    BatchLoader,
    Bucket,
    Client,
    Entry,
    Lines,
    MapDataset,
    TokenWindows,
    concat,
    errors,
)
from ais_loader.plans import ShufflePlan
from tests.store.archives.archive_kit import in_zip
from tests.table import table
from tests.tar_kit import packed_tar

_draw = np.random.default_rng(7)
ARRAYS = {
    "a.npy": _draw.integers(0, 2**16, 1000, np.uint16),
    "b.bin": _draw.integers(0, 2**16, 777, np.uint16),
    "c.npy": _draw.integers(0, 2**16, 9, np.uint16),  # shorter than a window
    "d.npy": _draw.integers(0, 2**16, 200_000, np.uint16),  # of several blocks of the checksums
    "e.bin": _draw.integers(0, 2**16, 0, np.uint16),
}


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, array, **options)
    return target.getvalue()


def windows(window: int, stride: int | None = None) -> list[list[int]]:
    """The tokens of every window, by slices of the arrays."""
    return [
        array[start : start + window].tolist()
        for array in ARRAYS.values()
        for start in range(0, len(array) - window + 1, stride or window)
    ]


def as_lists(samples: list[Any]) -> list[list[int]]:
    return [sample.tolist() for sample in samples]


@pytest.fixture
def tokens(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("tokens")
    for name, array in ARRAYS.items():
        bucket.put(f"train/{name}", npy(array) if name.endswith(".npy") else array.tobytes())
    yield bucket
    store.delete_bucket("tokens", force=True)


@pytest.fixture
def recorded(local_store: Client) -> Iterator[RecordingTransport]:
    bucket = local_store.create_bucket("tokens")
    for name, array in ARRAYS.items():
        bucket.put(f"train/{name}", npy(array) if name.endswith(".npy") else array.tobytes())
    transport = RecordingTransport(local_store.url.removeprefix("file://"))
    yield transport
    transport.close()
    local_store.delete_bucket("tokens", force=True)


@pytest.mark.slow
@table(("window", "stride"), [(64, None), (65, 64), (64, 10), (7, 100), (1, 1000)])
def test_windows_are_slices_of_the_arrays(tokens: Bucket, window: int, stride: int | None) -> None:
    dataset = TokenWindows(tokens.client, "ais://tokens/train/", window, dtype="uint16", stride=stride)
    expected = windows(window, stride)
    assert len(dataset) == len(expected)
    drawn = [*np.random.default_rng(1).integers(-len(expected), len(expected), 200).tolist(), 0, len(expected) - 1, -1]
    assert as_lists(dataset.__getitems__(drawn)) == [expected[at] for at in drawn]
    assert as_lists(dataset[3:9]) == expected[3:9]
    sample = dataset[1]
    assert (sample.dtype, sample.shape) == (np.uint16, (window,))
    sample[:] = 0  # its own memory
    assert dataset[1].tolist() == expected[1]
    with pytest.raises(IndexError):
        dataset[len(expected)]


@pytest.mark.slow
def test_headers_are_one_request_and_a_batch_is_one(recorded: RecordingTransport) -> None:
    client = Client(recorded)
    dataset = TokenWindows(client, "ais://tokens/train/", 64, dtype=np.uint16)
    assert recorded.requests == [5]  # their first bytes
    loader = DataLoader(dataset, batch_size=1000, shuffle=True)
    batches = list(loader)
    assert recorded.requests == [5, 1000, 1000, 1000, len(dataset) - 3000]
    assert all(batch.dtype == torch.uint16 for batch in batches)
    assert sorted(torch.cat(batches).tolist()) == sorted(windows(64))
    raw = TokenWindows(client, client.bucket("tokens").entries("train/", pattern="*.bin"), 64, dtype="uint16")
    assert recorded.requests[5:] == [2]
    assert len(raw) == 777 // 64


def test_bytes_in_another_order_and_other_sizes(tokens: Bucket) -> None:
    values = np.array([1, 2, 70000, 4, 5])
    tokens.put("big.bin", values.astype(">u4").tobytes())
    tokens.put("big.npy", npy(values.astype(">u4")))
    tokens.put("long.npy", npy(values))
    for name in ("big.bin", "big.npy"):
        dataset = TokenWindows(tokens.client, [name], 3, dtype=">u4", bucket="tokens")
        assert dataset[0].tolist() == [1, 2, 70000]
        assert dataset[0].dtype == np.dtype("uint32")
    assert TokenWindows(tokens.client, [Entry("tokens", "long.npy")], 5, dtype=int)[0].tolist() == values.tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_plan_draws_windows_and_resumes(tokens: Bucket) -> None:
    def loader(stride: int = 64) -> BatchLoader:
        dataset = TokenWindows(tokens.client.url, "ais://tokens/train/", 64, dtype="uint16", stride=stride)
        plan = ShufflePlan(len(dataset), 500, seed=3)
        return BatchLoader(dataset, plan)

    expected, plan = windows(64), ShufflePlan(len(windows(64)), 500, seed=3)
    first = loader()
    running = iter(first)
    head = [next(running), next(running)]
    state = first.state_dict()
    again = loader()
    again.load_state_dict(state)
    got = [as_lists(batch) for batch in [*head, *again]]
    assert got == [[expected[at] for at in plan.batch(0, step)] for step in range(plan.steps(0) or 0)]
    tokens.put("train/a.npy", npy(ARRAYS["a.npy"]))
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader().load_state_dict(state)


def test_sums_fetch_with_one_request(recorded: RecordingTransport) -> None:
    client = Client(recorded)
    entries = client.bucket("tokens").entries("train/")
    first = TokenWindows(client, entries[:1], 64, dtype="uint16", transform=np.sum)
    second = TokenWindows(client, entries[1:], 64, dtype="uint16")
    both = first + second
    expected = windows(64)
    assert len(both) == len(expected) == len(concat([first, second]))
    recorded.requests.clear()
    got = both.__getitems__([0, 20, 5, -1])
    assert recorded.requests == [4]
    assert [got[0], got[2]] == [sum(expected[0]), sum(expected[5])]
    assert as_lists([got[1], got[3]]) == [expected[20], expected[-1]]
    mixed = first + MapDataset(client, ["ais://speech/en/001.wav"])
    recorded.requests.clear()
    assert len(mixed.__getitems__([1, len(first)])[1]) > 0
    assert recorded.requests == [2]


def test_a_pickled_dataset_is_small_and_reads(tokens: Bucket) -> None:
    dataset = TokenWindows(tokens.client.url, "ais://tokens/train/", 64, dtype="uint16")
    assert pickle.loads(pickle.dumps(dataset))[5].tolist() == windows(64)[5]
    assert len(pickle.dumps(dataset)) < 4000  # of files, not of windows


@pytest.mark.slow
def test_spawned_workers_read(tokens: Bucket) -> None:
    dataset = TokenWindows(tokens.client.url, "ais://tokens/train/", 64, dtype="uint16")
    loader = DataLoader(dataset, batch_size=2000, num_workers=1, multiprocessing_context="spawn")
    assert torch.cat(list(loader)).tolist() == windows(64)


def test_a_replaced_array_is_never_other_tokens(tokens: Bucket) -> None:
    dataset = TokenWindows(tokens.client, "ais://tokens/train/", 64, dtype="uint16")
    tokens.put("train/b.bin", ARRAYS["b.bin"][::-1].tobytes())
    at = 1000 // 64
    with pytest.raises(errors.ObjectNotFound, match=r"b\.bin"):
        dataset[at]
    assert dataset[at - 1].tolist() == windows(64)[at - 1]
    skipping = TokenWindows(tokens.client, "ais://tokens/train/", 64, dtype="uint16", on_error="placeholder")
    tokens.put("train/b.bin", ARRAYS["b.bin"].tobytes())
    assert skipping[at] is None


FORTRAN = npy(np.asfortranarray(np.zeros((2, 3), np.uint16)))


@table(
    ("name", "data", "message"),
    [
        ("odd.bin", bytes(7), "odd.bin: its 7 bytes are no multiple of the 2 bytes of a uint16 token"),
        ("f.npy", FORTRAN, "f.npy: in Fortran order"),
        ("two.npy", npy(np.zeros((2, 3), np.uint16)), "two.npy: an array of shape (2, 3)"),
        ("none.npy", npy(np.array(5, np.uint16)), "none.npy: an array of shape ()"),
        ("object.npy", npy(np.array([None, 1]), allow_pickle=True), "object.npy: an array of |O"),
        ("float.npy", npy(np.zeros(9, np.float32)), "float.npy: an array of <f4; need dtype='<u2'"),
        ("signed.npy", npy(np.zeros(9, np.int16)), "signed.npy: an array of <i2; need dtype='<u2'"),
        ("short.npy", npy(np.zeros(9, np.uint16))[:-1], "short.npy: 145 bytes; its header says 128 and 9 tokens"),
        ("long.npy", npy(np.zeros(9, np.uint16)) + b"12", "long.npy: 148 bytes; its header says"),
        ("cut.npy", npy(np.zeros(9, np.uint16))[:50], "cut.npy: not an .npy file with a header that can be read"),
        ("text.npy", b"these are no tokens", "text.npy: not an .npy file"),
        ("empty.npy", b"", "empty.npy: not an .npy file"),
        ("fields.npy", npy(np.zeros(9, [(f"field{at}", "u2") for at in range(40)])), "fields.npy: not an .npy file"),
        ("new.npy", b"\x93NUMPY\x09\x00" + bytes(200), "new.npy: not an .npy file with a header that can be read"),
        ("many.npz", bytes(8), "many.npz: an .npz file is an archive"),
    ],
)
def test_an_object_that_is_no_array_of_tokens_is_named(tokens: Bucket, name: str, data: bytes, message: str) -> None:
    tokens.put(f"bad/{name}", data)
    with pytest.raises(errors.InvalidRequest, match=re.escape(f"ais://tokens/bad/{message}")):
        TokenWindows(tokens.client, ["train/a.npy", f"bad/{name}"], 4, dtype="uint16", bucket="tokens")


RAW = _draw.integers(0, 50_000, 1000, np.uint16).tobytes()
FOREIGN = {
    "a.idx": (b"MMIDIDX\0\0" + bytes(300), "an index of Megatron"),
    "a.jsonl.gz": (gzip.compress(b"text" * 100), "gzip"),
    "a.zst": (zstandard.compress(b"text" * 100), "zstd"),
    "a.parquet": (b"PAR1" + bytes(300), "Parquet"),
    "README": (b"# Tokens\n\nThey were made by the tokenizer \xc2\xab x \xc2\xbb.\n" * 40, "text"),
    "a.tar": (packed_tar({"a": RAW}), "tar"),
    "a.zip": (in_zip({"a": RAW}), "zip"),
    "a.wav": (b"RIFF\0\0\0\0WAVEfmt " + RAW, "WAV"),
}


@table("name", FOREIGN)
def test_a_foreign_file_is_refused_with_the_pattern_to_use_by_both_datasets(local_store: Client, name: str) -> None:
    bucket = local_store.create_bucket("foreign")
    try:
        data, found = FOREIGN[name]
        bucket.put_many([("t/a.bin", RAW), ("t/b.bin", RAW), (f"t/{name}", data + bytes(len(data) % 2))])
        message = f"ais://foreign/t/{name}: {found}, and not an array of uint16 tokens; .*pattern='\\*.bin'"
        with pytest.raises(errors.InvalidRequest, match=message):
            TokenWindows(local_store, "ais://foreign/t/", 100, dtype="uint16")
        chosen = TokenWindows(local_store, bucket.entries("t/", pattern="*.bin"), 100, dtype="uint16")
        assert [chosen[10].tobytes(), len(chosen)] == [RAW[:200], 20]
        bucket.put_many([("l/a.txt", b"line\n"), (f"l/{name}", data)])
        if found == "text":
            assert Lines(local_store, "ais://foreign/l/")[0] == b"# Tokens"
        elif found != "an index of Megatron":
            with pytest.raises(errors.InvalidRequest, match=rf"foreign/l/{name}: ({found}, and not lines|compressed)"):
                Lines(local_store, "ais://foreign/l/")
    finally:
        local_store.delete_bucket("foreign", force=True)


def test_lines_are_not_what_their_name_says(local_store: Client) -> None:
    bucket = local_store.create_bucket("foreign")
    try:
        for data, found in [*FOREIGN.values(), ("two\nlines\n".encode("utf-16"), "UTF-16")]:
            bucket.put("a.txt", data)
            if found == "text":
                assert len(Lines(local_store, "ais://foreign/")) == 80
                continue
            with pytest.raises(errors.InvalidRequest, match=rf"a\.txt: {found}, and not lines of text; .*jsonl"):
                Lines(local_store, "ais://foreign/")
        bucket.put("a.txt", b"PAR1 BZh %PDF-like\nsecond line, which is text\n")
        assert len(Lines(local_store, "ais://foreign/")) == 2
    finally:
        local_store.delete_bucket("foreign", force=True)


def test_a_header_is_skipped_and_bytes_decide_what_a_file_is(tokens: Bucket) -> None:
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, 1000
    tokens.put("llm.bin", head.tobytes() + RAW)
    with pytest.raises(errors.InvalidRequest, match=r"llm\.bin: a file of llm\.c \(header_bytes=1024\), and not"):
        TokenWindows(tokens.client, ["llm.bin"], 100, dtype="uint16", bucket="tokens")
    tokens.put("named.bin", npy(np.frombuffer(RAW, np.uint16)))
    out = io.BytesIO()
    np.lib.format.write_array(out, np.frombuffer(RAW, np.uint16), version=(3, 0))
    tokens.put("third.npy", out.getvalue())
    names = ["llm.bin", "named.bin", "third.npy"]
    dataset = TokenWindows(tokens.client, names, 1000, dtype="uint16", bucket="tokens", header_bytes=1024)
    assert [sample.tobytes() for sample in dataset[:]] == [RAW] * 3
    with pytest.raises(errors.InvalidRequest, match="header_bytes=-1: need at least 0"):
        TokenWindows(tokens.client, names, 1000, dtype="uint16", bucket="tokens", header_bytes=-1)
    tokens.put("texts.bin", b"a header in words, and then numbers\n" * 2 + RAW)
    assert len(TokenWindows(tokens.client, ["texts.bin"], 500, dtype="uint16", bucket="tokens", header_bytes=72)) == 2
    tokens.put("README", b"nothing but words, and many of them\n" * 100)
    with pytest.raises(errors.InvalidRequest, match="README: text, and not"):
        TokenWindows(tokens.client, ["README"], 500, dtype="uint16", bucket="tokens", header_bytes=1024)
    tokens.put("short.bin", bytes(100))
    with pytest.raises(errors.InvalidRequest, match="its 100 bytes behind a header of 1,024 are no multiple"):
        TokenWindows(tokens.client, ["short.bin"], 4, dtype="uint16", bucket="tokens", header_bytes=1024)
    tokens.put("bytes.bin", b"text of a model that reads bytes" * 4)
    assert len(TokenWindows(tokens.client, ["bytes.bin"], 8, dtype="uint8", bucket="tokens")) == 16


@table(
    ("call", "message"),
    [
        ("TokenWindows(client, url, 0, dtype='u2')", "InvalidRequest: window=0: need at least 1"),
        ("TokenWindows(client, url, -4, dtype='u2')", "InvalidRequest: window=-4: need at least 1"),
        ("TokenWindows(client, url, 4, dtype='u2', stride=0)", "InvalidRequest: stride=0: need at least 1"),
        ("TokenWindows(client, url, 4.0, dtype='u2')", "TypeError: window is a float"),
        ("TokenWindows(client, url, 4, dtype='word')", "InvalidRequest: dtype='word'"),
        ("TokenWindows(client, url, 4, dtype='f4')", "InvalidRequest: dtype='f4': need an integer type"),
        ("TokenWindows(client, url, 4, dtype=object)", "need an integer type"),
        ("TokenWindows(client, url, 4, dtype=None)", "InvalidRequest: dtype=None: need an integer type"),
        ("TokenWindows(client, ['ais://tokens/none'], 4, dtype='u2')", "ObjectNotFound: tokens/none does not exist"),
        ("TokenWindows(client, ['ais://none/none'], 4, dtype='u2')", "BucketNotFound: bucket 'none' does not exist"),
        (
            "TokenWindows(client, [Entry('tokens', 'x', length=8)], 4, dtype='u2')",
            "InvalidRequest: tokens/x: need whole",
        ),
        (
            "TokenWindows(client, ['ais://tokens/s.tar/a.npy'], 4, dtype='u2')",
            "InvalidRequest: tokens/s.tar: need whole",
        ),
        ("TokenWindows(client, [('ais://tokens/a', 'ais://tokens/b')], 4, dtype='u2')", "TypeError: need an Entry"),
        ("TokenWindows(client, 'ais://tokens/nothing/', 4, dtype='u2')", "InvalidRequest: 'ais://tokens/nothing/'"),
        (
            "TokenWindows(client, [Entry('tokens', 'train/a.npy', version='1.1.1')], 4, dtype='u2')",
            "ObjectNotFound: tokens/train/a.npy: not in version 1.1.1",
        ),
    ],
)
def test_bad_arguments(tokens: Bucket, call: str, message: str) -> None:
    names = {"TokenWindows": TokenWindows, "Entry": Entry, "client": tokens.client, "url": "ais://tokens/train/"}
    kind, _, text = message.rpartition(": ")
    with pytest.raises((errors.LoaderError, TypeError), match=re.escape(text)) as raised:
        eval(call, names)
    assert f"{type(raised.value).__name__}: {raised.value}".startswith(kind)


def test_no_windows(tokens: Bucket) -> None:
    assert len(TokenWindows(tokens.client, ["train/c.npy", "train/e.bin"], 64, dtype="uint16", bucket="tokens")) == 0
    assert len(TokenWindows(tokens.client, [], 64, dtype="uint16")) == 0


def test_windows_may_be_tensors_that_embeddings_take(tokens: Bucket) -> None:
    tokens.put("few.bin", np.array([1, 2, 70000, 4], ">u4").tobytes())
    dataset = TokenWindows(
        tokens.client,
        ["few.bin"],
        3,
        dtype=">u4",
        stride=1,
        bucket="tokens",
        as_tensor=True,
        transform=lambda one: one + 1,
    )
    assert [(one.dtype, one.tolist()) for one in dataset] == [
        (torch.int64, [2, 3, 70001]),
        (torch.int64, [3, 70001, 5]),
    ]
