"""Samples of several entries: one request per batch, Items in the form of the sample, errors that name both."""

from __future__ import annotations

import pickle
import re
import traceback
from typing import Any, NamedTuple

import pytest
from datasets_kit import BUCKET, CORPUS, URLS, RecordingTransport, contents
from torch.utils.data import DataLoader

from ais_loader import (
    BatchLoader,
    BatchTiming,
    Client,
    Entry,
    MapDataset,
    concat,
    drop_placeholders,
    errors,
)
from ais_loader.plans import ShufflePlan
from tests.table import table

PAIRS = list(zip(URLS[::2], URLS[1::2], strict=False))
DICTS = [{"audio": first, "text": second} for first, second in PAIRS]
MISSING = f"ais://{BUCKET}/none"


class Clip(NamedTuple):
    audio: Any
    text: Any


def pair(at: int) -> tuple[bytes, bytes]:
    first, second = contents(PAIRS[at])
    return first, second


def lengths(items: dict[str, Any]) -> dict[str, int]:
    return {key: len(item.data) if item.ok else -1 for key, item in items.items()}


def decode_badly(items: Any) -> Any:
    raise ArithmeticError("no samples")


def test_bytes_come_in_the_form_of_the_sample(store: Client) -> None:
    tuples, dicts = MapDataset(store, PAIRS), MapDataset(store, DICTS)
    mixed = MapDataset(store, [PAIRS[0], URLS[5], DICTS[1], Clip(*PAIRS[2])])
    assert tuples[:] == [pair(at) for at in range(len(PAIRS))]
    assert dicts[3] == dict(zip(("audio", "text"), pair(3), strict=True))
    assert mixed[:] == [pair(0), contents(URLS[5:6])[0], dict(zip(("audio", "text"), pair(1), strict=True)), pair(2)]
    assert isinstance(mixed[3], Clip)


def test_entries_of_every_kind_are_parts(store: Client) -> None:
    bucket = store.bucket(BUCKET)
    info = bucket.head("en/001.wav")
    sample = {"info": info, "name": "en/002.wav", "url": URLS[3], "range": Entry(BUCKET, "en/large.wav", None, 7, 20)}
    [got] = MapDataset(store, [sample], bucket=BUCKET)[:]
    assert got == {
        "info": CORPUS["en/001.wav"],
        "name": CORPUS["en/002.wav"],
        "url": contents(URLS[3:4])[0],
        "range": CORPUS["en/large.wav"][7:27],
    }


@pytest.mark.parametrize("how", ["map", "sum", "plan"])
def test_a_batch_is_one_request(recording: RecordingTransport, how: str) -> None:
    client = Client(recording)
    whole = MapDataset(client, DICTS, decode=lengths)
    parts = [MapDataset(client, DICTS[:9], decode=lengths), MapDataset(client, DICTS[9:])]
    if how == "plan":
        plan = ShufflePlan(len(DICTS), 10, shuffle=False)
        got = [sample for batch in BatchLoader(whole, plan) for sample in batch]
    else:
        dataset = whole if how == "map" else concat(parts)
        got = [sample for batch in DataLoader(dataset, batch_size=10, collate_fn=list) for sample in batch]
    assert sorted(recording.requests) == [6, 20, 20]  # threads may send them in another order
    expected: list[Any] = [
        dict(zip(("audio", "text"), map(len, pair(at)) if how != "sum" or at < 9 else pair(at), strict=True))
        for at in range(len(PAIRS))
    ]
    assert got == expected


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_plan_draws_samples_and_resumes(store: Client) -> None:
    plan = ShufflePlan(len(PAIRS), 4, seed=5)
    loader = BatchLoader(MapDataset(store, PAIRS), plan)
    expected = [[pair(at) for at in plan.batch(0, step)] for step in range(plan.steps(0) or 0)]
    running = iter(loader)
    assert [next(running) for _ in range(3)] == expected[:3]
    state = loader.state_dict()
    again = BatchLoader(MapDataset(store, PAIRS), plan)
    again.load_state_dict(state)
    assert list(again) == expected[3:]
    other = BatchLoader(MapDataset(store, [*PAIRS[:-1], PAIRS[0]]), plan)
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        other.load_state_dict(state)
    renamed = BatchLoader(MapDataset(store, DICTS), plan)
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        renamed.load_state_dict(state)


@table("how", ["map", "sum", "plan"])
def test_an_error_names_the_sample_and_the_entry(store: Client, how: str) -> None:
    samples = [*DICTS[:4], {"audio": URLS[0], "text": MISSING}, *DICTS[4:6]]
    dataset = MapDataset(store, samples)
    with pytest.raises(errors.ObjectNotFound) as raised:
        if how == "map":
            dataset.__getitems__([1, 4, 2])
        elif how == "sum":
            (MapDataset(store, DICTS) + dataset).__getitems__([1, len(DICTS) + 4, 2])
        else:
            list(BatchLoader(dataset, ShufflePlan(len(samples), 3, shuffle=False)))
    assert raised.value.__notes__[0] == f"sample 4 of its dataset, entry 'text': {MISSING}"


@pytest.mark.slow
def test_a_worker_tells_the_sample_and_the_entry(store: Client) -> None:
    loader = DataLoader(MapDataset(store, [PAIRS[0], (URLS[0], MISSING)]), batch_size=2, num_workers=1)
    with pytest.raises(errors.ObjectNotFound, match=re.escape(f"sample 1 of its dataset, entry 1: {MISSING}")):
        list(loader)


@pytest.mark.slow
def test_a_sample_with_a_missing_entry_is_a_placeholder(store: Client) -> None:
    samples = [PAIRS[0], (URLS[0], MISSING), (MISSING, MISSING), PAIRS[1]]
    dataset = MapDataset(store, samples, on_error="placeholder")
    assert dataset[:] == [pair(0), None, None, pair(1)]
    [batch] = DataLoader(dataset, batch_size=4, collate_fn=drop_and_count)
    assert batch == 2
    transformed = MapDataset(store, samples, transform=len, on_error="placeholder")
    assert transformed[:] == [2, None, None, 2]
    decoded = MapDataset(
        store, [{"audio": URLS[1], "text": MISSING}], decode=lengths, transform=decode_badly, on_error="placeholder"
    )
    assert decoded[:] == [{"audio": len(contents(URLS[1:2])[0]), "text": -1}]


def drop_and_count(samples: list[Any]) -> int:
    return len(drop_placeholders(samples, collate=list))


def test_an_error_of_decode_names_the_sample(store: Client) -> None:
    with pytest.raises(ArithmeticError) as raised:
        MapDataset(store, DICTS, decode=decode_badly).__getitems__([6, 2])
    told = "".join(traceback.format_exception(raised.value))
    assert f"raised by decode() for sample 6 of its dataset, {', '.join(DICTS[6].values())}" in told


def test_timings_and_pickles(store: Client) -> None:
    timings: list[BatchTiming] = []
    MapDataset(store, PAIRS, on_batch=timings.append).__getitems__([1, 2])
    assert [timing.entries for timing in timings] == [4]
    plain = pickle.loads(pickle.dumps(MapDataset(store.url, PAIRS)))
    assert plain[2:4] == [pair(2), pair(3)]


def test_pinned_parts_are_never_other_bytes(local_store: Client) -> None:
    bucket = local_store.create_bucket("pinned")
    try:
        bucket.put("a", b"first")
        bucket.put("b", b"second")
        dataset = MapDataset(local_store, [tuple(bucket.objects())], pinned=True)
        assert dataset[0] == (b"first", b"second")
        bucket.put("b", b"replaced")
        with pytest.raises(errors.ObjectNotFound):
            dataset[0]
    finally:
        local_store.delete_bucket("pinned", force=True)


@table(
    ("sample", "error"),
    [
        ((), "InvalidRequest: a sample has no entries"),
        ({}, "InvalidRequest: a sample has no entries"),
        (((URLS[0],), URLS[1]), "TypeError: the parts of a sample are entries"),
        ({"a": {"b": URLS[0]}}, "TypeError: the parts of a sample are entries"),
        ((URLS[0], 5), "TypeError: need an Entry or an ais:// URL, got int"),
        ((URLS[0], "en/001.wav"), "InvalidRequest: 'en/001.wav': need an Entry"),
    ],
)
def test_what_is_no_sample_is_refused(local_store: Client, sample: Any, error: str) -> None:
    kind, _, message = error.partition(": ")
    with pytest.raises(Exception, match=re.escape(message)) as raised:
        MapDataset(local_store, [PAIRS[0], sample])[:]
    assert type(raised.value).__name__ == kind
