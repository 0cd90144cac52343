"""Lines: text by line number, one request per batch, with indexes that are kept and never apply to other bytes."""

from __future__ import annotations

import json
import pickle
import random
import re
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from datasets_kit import RecordingTransport
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Bucket, Client, Lines, errors
from ais_loader.plans import ShufflePlan
from ais_loader.training import lines as line_index
from ais_loader.wire.line_index import decode_index, encode_index, index_name
from tests.example_count import examples
from tests.table import table

_draw = random.Random(11)
TEXTS = {
    "a.jsonl": b"".join(
        json.dumps({"at": at, "text": "x" * _draw.randrange(300)}).encode() + b"\n" for at in range(200)
    ),
    "b.jsonl": b'{"at": 1}\r\n\r\n\n{"at": 2}\r\n{"at": 3}',
    "c.jsonl": b"",
    "d.jsonl": b"\n\n\n",
    "e.jsonl": "\n\u00e9\u2028in one line\x0b\n  \nlast".encode(),
    "large.jsonl": b"".join(b'{"at": %d}\n' % at for at in range(60_000)),  # of several blocks of the checksums
}


def lines_of(text: bytes) -> list[bytes]:
    """The lines by an independent definition."""
    return [line for line in text.replace(b"\r\n", b"\n").split(b"\n") if line]


EXPECTED = [line for text in TEXTS.values() for line in lines_of(text)]


@pytest.fixture
def corpus(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("corpus")
    for name, text in TEXTS.items():
        bucket.put(f"train/{name}", text)
    yield bucket
    store.delete_bucket("corpus", force=True)


def kept(bucket: Bucket) -> list[str]:
    found = bucket.client._transport.objects(bucket.name, prefix="/.lines/", page_size=100)
    return [info.name.removeprefix("/.lines/") for info in found]


@pytest.fixture
def recorded(local_store: Client) -> Iterator[RecordingTransport]:
    bucket = local_store.create_bucket("corpus")
    for name, text in TEXTS.items():
        bucket.put(f"train/{name}", text)
    transport = RecordingTransport(local_store.url.removeprefix("file://"))
    yield transport
    transport.close()
    local_store.delete_bucket("corpus", force=True)


def test_lines_by_number(corpus: Bucket) -> None:
    lines = Lines(corpus.client, "ais://corpus/train/")
    assert len(lines) == len(EXPECTED)
    drawn = _draw.choices(range(-len(EXPECTED), len(EXPECTED)), k=300)
    assert lines.__getitems__(drawn) == [EXPECTED[at] for at in drawn]
    assert lines[190:215] == EXPECTED[190:215]
    assert lines[len(EXPECTED) - 1] == EXPECTED[-1]
    with pytest.raises(IndexError):
        lines[len(EXPECTED)]
    decoded = Lines(corpus.client, ["train/a.jsonl", "train/b.jsonl"], json.loads, bucket="corpus")
    assert [sample["at"] for sample in decoded.__getitems__(range(198, 203))] == [198, 199, 1, 2, 3]


@table(
    ("text", "expected"),
    [
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"one\r\n\r\n\ntwo\n\n", [b"one", b"two"]),
        (b"\r\n\n one \n", [b" one "]),
        (b"\n\r", []),
        (b"\r", []),
        (b"a\rb\n", [b"a\rb"]),
        (b"a\r\r\nb\r", [b"a\r", b"b"]),
        (b"", []),
        (b"\n", []),
    ],
)
def test_what_a_line_is(local_store: Client, text: bytes, expected: list[bytes]) -> None:
    bucket = local_store.create_bucket("text", exist_ok=True)
    bucket.put("t.txt", text)
    assert Lines(local_store, ["ais://text/t.txt"])[:] == expected


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(text=st.text("ab\r\n").map(str.encode), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_lines_do_not_depend_on_the_pieces_that_are_read(text: bytes, sizes: list[int]) -> None:
    pieces, at = [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(np.frombuffer(text[at : at + size], np.uint8))
        at += size
    bounds = line_index._bounds_of(iter(pieces), len(text)) if text else np.zeros(1, np.int64)
    found = [text[start:stop].partition(b"\n")[0] for start, stop in pairwise(bounds)]
    assert found == [line for line in text.split(b"\n") if line not in (b"", b"\r")]
    again = decode_index(encode_index("1.2.3", bounds), "1.2.3", len(text))
    assert again is not None
    assert again.tolist() == bounds.tolist()


def test_an_index_applies_to_its_version_alone_and_may_be_damaged() -> None:
    bounds = np.array([1, 5, 2**32 + 9], np.int64)
    data = encode_index("1.2.3", bounds)
    found = decode_index(data, "1.2.3", 2**32 + 9)
    assert found is not None
    assert found.tolist() == bounds.tolist()
    assert decode_index(data, "1.2.4", 2**32 + 9) is None
    assert decode_index(data, "1.2.3", 2**32 + 8) is None
    for damaged in (b"", data[:20], data[:-1], b"x" + data[1:], data + b"x"):
        assert decode_index(damaged, "1.2.3", 2**32 + 9) is None


@pytest.mark.slow
def test_a_batch_is_one_request_and_indexes_are_kept(recorded: RecordingTransport, local_store: Client) -> None:
    reader = Client(recorded)
    Lines(reader, "ais://corpus/train/")
    assert kept(local_store.bucket("corpus")) == []  # it may not write
    assert recorded.requests == [6, 5]  # the indexes, and the objects that are not empty
    Lines(local_store, "ais://corpus/train/")
    assert kept(local_store.bucket("corpus")) == [f"train/{name}" for name in sorted(TEXTS)]
    reader.refresh()
    recorded.requests.clear()
    lines = Lines(reader, "ais://corpus/train/")
    assert recorded.requests == [6]
    drawn = _draw.sample(range(len(EXPECTED)), 1200)
    batches = list(DataLoader(lines, batch_size=500, sampler=drawn, collate_fn=list))
    assert [line for batch in batches for line in batch] == [EXPECTED[at] for at in drawn]
    assert recorded.requests == [6, 500, 500, 200]
    both = Lines(reader, ["ais://corpus/train/a.jsonl"], json.loads) + Lines(reader, ["ais://corpus/train/b.jsonl"])
    recorded.requests.clear()
    assert both.__getitems__([3, -1, 4])[1] == b'{"at": 3}'
    assert recorded.requests == [3]


def test_indexes_are_hidden_and_go_with_their_objects(corpus: Bucket) -> None:
    before = corpus.summary()
    Lines(corpus.client, "ais://corpus/train/")
    assert len(kept(corpus)) == len(TEXTS)
    assert list(corpus) == [f"train/{name}" for name in sorted(TEXTS)]
    assert (corpus.summary().objects, corpus.summary().size_bytes) == (before.objects, before.size_bytes)
    with pytest.raises(errors.InvalidName, match="indexes of lines"):
        corpus.put("/.lines/train/a.jsonl", b"forged")
    corpus.delete("train/a.jsonl")
    corpus.put("train/new.jsonl", b"new\n")
    assert len(Lines(corpus.client, "ais://corpus/train/")) == len(EXPECTED) - 200 + 1
    assert "train/a.jsonl" not in kept(corpus)
    assert "train/new.jsonl" in kept(corpus)
    corpus.delete_many(list(corpus))
    corpus.client.delete_bucket("corpus")  # empty but for the indexes
    corpus.client.create_bucket("corpus")
    assert kept(corpus) == []


def test_a_replaced_object_is_never_other_lines(corpus: Bucket) -> None:
    lines = Lines(corpus.client, ["train/b.jsonl"], bucket="corpus")
    corpus.put("train/b.jsonl", b"x" * len(TEXTS["b.jsonl"]))
    with pytest.raises(errors.ObjectNotFound, match=r"b\.jsonl"):
        lines[1]
    assert Lines(corpus.client, ["train/b.jsonl"], bucket="corpus")[:] == [b"x" * len(TEXTS["b.jsonl"])]
    placeholder = Lines(corpus.client, ["train/b.jsonl"], json.loads, bucket="corpus", on_error="placeholder")
    corpus.put("train/b.jsonl", b"other")
    assert placeholder[0] is None


def test_a_damaged_index_is_made_anew(corpus: Bucket) -> None:
    assert Lines(corpus.client, ["train/b.jsonl"], bucket="corpus")[1] == b'{"at": 2}'
    corpus.client._transport.delete("corpus", index_name("train/b.jsonl"))
    lines = Lines(corpus.client, ["train/b.jsonl", "train/b.jsonl"], bucket="corpus")
    assert lines[:] == lines_of(TEXTS["b.jsonl"]) * 2


def test_a_snapshot_has_its_own_lines(corpus: Bucket) -> None:
    Lines(corpus.client, "ais://corpus/train/")
    corpus.snapshot("v1")
    try:
        corpus.put("train/b.jsonl", b"other")
        old = Lines(corpus.client, ["ais://corpus@v1/train/b.jsonl"])
        assert old[:] == lines_of(TEXTS["b.jsonl"])
        corpus.put("train/b.jsonl", TEXTS["b.jsonl"])
        assert old[:] == lines_of(TEXTS["b.jsonl"])
    finally:
        corpus.delete_snapshot("v1")


def test_the_path_of_an_embedded_store_is_only_read(corpus: Bucket) -> None:
    url = corpus.client.url
    lines = Lines(url, "ais://corpus/train/")
    assert lines[5] == EXPECTED[5]
    assert bool(kept(corpus)) == url.startswith("grpc://")
    again = pickle.loads(pickle.dumps(lines))
    assert again[-1] == EXPECTED[-1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_plan_draws_lines_and_resumes(corpus: Bucket) -> None:
    def loader() -> BatchLoader:
        lines = Lines(corpus.client.url, ["train/a.jsonl", "train/b.jsonl"], json.loads, bucket="corpus")
        return BatchLoader(lines, ShufflePlan(203, 30, seed=3))

    plan = ShufflePlan(203, 30, seed=3)
    first = loader()
    running = iter(first)
    head = [next(running), next(running)]
    again = loader()
    again.load_state_dict(first.state_dict())
    expected = [json.loads(line) for line in EXPECTED[:203]]
    assert [*head, *again] == [[expected[at] for at in plan.batch(0, step)] for step in range(plan.steps(0) or 0)]
    state = first.state_dict()
    corpus.put("train/b.jsonl", TEXTS["b.jsonl"])
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader().load_state_dict(state)


@pytest.mark.slow
def test_a_line_costs_eight_bytes(corpus: Bucket) -> None:
    corpus.put("many.txt", b"12345\n" * 1_000_000)
    Lines(corpus.client, ["many.txt"], bucket="corpus")
    tracemalloc.start()
    try:
        lines = Lines(corpus.client, ["many.txt"], bucket="corpus")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines[999_999] == b"12345"
    assert held < 16_000_000  # with buffers of the client
    assert peak < 60_000_000
    assert len(pickle.dumps(lines)) < 8_100_000


def test_an_error_of_decode_names_the_object(corpus: Bucket) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        Lines(corpus.client, "ais://corpus/train/", json.loads).__getitems__([0, 203])
    assert any("ais://corpus/train/e.jsonl" in note for note in raised.value.__notes__)


@table(
    ("call", "message"),
    [
        ("Lines(client, ['ais://corpus/train/z.jsonl.gz'])", "InvalidRequest: corpus/train/z.jsonl.gz: compressed"),
        ("Lines(client, ['ais://corpus/none'])", "ObjectNotFound: corpus/none does not exist"),
        ("Lines(client, 'ais://corpus/nothing/')", "InvalidRequest: 'ais://corpus/nothing/'"),
        ("Lines(client, ['ais://corpus/s.tar/m.jsonl'])", "InvalidRequest: corpus/s.tar: need whole objects"),
        ("Lines(client, ['ais://corpus/train/a.jsonl'], 5)", "TypeError: decode is a int"),
        ("Lines(client, [], shuffle=True)", "TypeError: shuffle"),
    ],
)
def test_bad_arguments(corpus: Bucket, call: str, message: str) -> None:
    corpus.put("train/z.jsonl.gz", b"packed")
    kind, _, text = message.partition(": ")
    with pytest.raises((errors.LoaderError, TypeError), match=re.escape(text)) as raised:
        eval(call, {"Lines": Lines, "client": corpus.client})
    assert type(raised.value).__name__ == kind
