"""MegatronTokens: sequences, documents and windows of Megatron's indexed files, one request per batch."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from datasets_kit import RecordingTransport
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Bucket, Client, MegatronTokens, concat, errors
from ais_loader.plans import ShufflePlan
from ais_loader.training import megatron_tokens
from tests.formats_kit import megatron
from tests.table import table

_draw = np.random.default_rng(9)
Documents = list[list[npt.NDArray[Any]]]


def drawn(documents: int, most_sequences: int, most_tokens: int) -> Documents:
    return [
        [_draw.integers(0, 2**16, _draw.integers(0, most_tokens)) for _ in range(_draw.integers(1, most_sequences + 1))]
        for _ in range(documents)
    ]


FILES = {"a": drawn(1500, 1, 40), "b": [], "c": drawn(30, 4, 300), "d": [[_draw.integers(0, 2**16, 5)]]}
SEQUENCES = [sequence.tolist() for documents in FILES.values() for document in documents for sequence in document]
DOCUMENTS = [np.concatenate(document).tolist() for documents in FILES.values() for document in documents]


def windows(documents: Documents, length: int, seed: int, epochs: int) -> list[list[int]]:
    """The samples of GPTDataset by their definition: documents are shuffled and joined, cut, and shuffled."""
    sequences = [sequence for document in documents for sequence in document]
    random = np.random.RandomState(seed)
    order = np.array(list(range(len(sequences))) * epochs, np.int32)
    random.shuffle(order)
    tokens = np.concatenate([np.zeros(0, int), *(sequences[at] for at in order)]).tolist()
    cut = [tokens[start : start + length + 1] for start in range(0, max(0, len(tokens) - length), length)]
    samples = np.arange(len(cut), dtype=np.uint32)
    random.shuffle(samples)
    return [cut[at] for at in samples]


def put(bucket: Bucket, files: dict[str, Documents] = FILES, **options: Any) -> None:
    for name, documents in files.items():
        tokens, index = megatron(documents, **options)
        bucket.put_many([(f"train/{name}.bin", tokens), (f"train/{name}.idx", index)])


def as_lists(samples: list[Any]) -> list[list[int]]:
    return [sample.tolist() for sample in samples]


@pytest.fixture
def bucket(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("tokens")
    put(bucket)
    yield bucket
    store.delete_bucket("tokens", force=True)


@table(("unit", "expected"), [("sequence", SEQUENCES), ("document", DOCUMENTS)])
def test_sequences_and_documents_by_number(bucket: Bucket, unit: Any, expected: list[list[int]]) -> None:
    dataset = MegatronTokens(bucket.client, "ais://tokens/train/", unit)
    assert len(dataset) == len(expected)
    numbers = [*_draw.integers(-len(expected), len(expected), 200).tolist(), 0, len(expected) - 1]
    assert as_lists(dataset.__getitems__(numbers)) == [expected[at] for at in numbers]
    assert as_lists(dataset[1400:1520]) == expected[1400:1520]
    sample = dataset[3]
    assert sample.dtype == np.uint16
    sample[:] = 0  # its own memory
    assert dataset[3].tolist() == expected[3]
    tensor = MegatronTokens(bucket.client, ["train/c.idx"], unit, bucket="tokens", as_tensor=True)[-1]
    assert tensor.dtype == torch.int64
    with pytest.raises(IndexError):
        dataset[len(expected)]


@table(
    ("length", "seed", "epochs"),
    [(16, 1234, 1), (100, 7, 2), (1, 5, 1), (1000, 5, 3), (10**6, 5, 1)],
)
def test_windows_are_those_of_gpt_dataset(bucket: Bucket, length: int, seed: int, epochs: int) -> None:
    dataset = MegatronTokens(bucket.client, "ais://tokens/train/", sequence_length=length, seed=seed, epochs=epochs)
    expected = [one for documents in FILES.values() for one in windows(documents, length, seed, epochs)]
    assert len(dataset) == len(expected)
    numbers = _draw.integers(0, max(1, len(expected)), 50 if expected else 0).tolist()
    assert as_lists(dataset.__getitems__(numbers)) == [expected[at] for at in numbers]
    if expected:
        assert dataset[len(expected) - 1].tolist() == expected[-1]


def test_a_batch_is_one_request_once_the_indexes_are_known(local_store: Client) -> None:
    bucket = local_store.create_bucket("tokens")
    put(bucket)
    transport = RecordingTransport(local_store.url.removeprefix("file://"))
    try:
        reader = Client(transport)
        dataset = MegatronTokens(reader, "ais://tokens/train/")
        assert transport.requests == [4]  # the headers
        numbers = [0, 3, 1200, len(SEQUENCES) - 1]
        assert as_lists(dataset.__getitems__(numbers)) == [SEQUENCES[at] for at in numbers]
        assert transport.requests == [4, 6, 4]  # three pages of lengths and of pointers, and the tokens
        dataset.__getitems__([1, 2, 1300])
        assert transport.requests == [4, 6, 4, 3]
        # `concat` reads what several datasets need of indexes together, too.
        transport.requests.clear()
        joined = concat([MegatronTokens(reader, ["ais://tokens/train/c.bin"], "document"), dataset])
        assert as_lists(joined.__getitems__([0, 29, 31])) == [DOCUMENTS[1500], DOCUMENTS[1529], SEQUENCES[1]]
        assert transport.requests == [1, 1, 2, 3]
        transport.requests.clear()
        shuffled = MegatronTokens(reader, "ais://tokens/train/", sequence_length=16)
        shuffled.__getitems__([0, 5, len(shuffled) - 1])
        assert transport.requests[:2] == [4, 2]  # the indexes of two files
        assert len(transport.requests) == 3
    finally:
        transport.close()
        local_store.delete_bucket("tokens", force=True)


def test_what_is_known_of_indexes_may_be_forgotten(local_store: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_tokens, "_MOST_BYTES", 100)
    bucket = local_store.create_bucket("tokens")
    try:
        put(bucket)
        dataset = MegatronTokens(local_store, "ais://tokens/train/")
        assert as_lists(dataset[:]) == SEQUENCES
        shuffled = MegatronTokens(local_store, "ais://tokens/train/", sequence_length=50)
        expected = [one for documents in FILES.values() for one in windows(documents, 50, 1234, 1)]
        assert as_lists(shuffled[:]) == expected
        with ThreadPoolExecutor(8) as pool:  # each makes the others forget
            assert as_lists(list(pool.map(dataset.__getitem__, range(1480, 1560)))) == SEQUENCES[1480:1560]
            assert (
                as_lists(list(pool.map(shuffled.__getitem__, range(len(expected) - 60, len(expected)))))
                == expected[-60:]
            )
    finally:
        local_store.delete_bucket("tokens", force=True)


def test_modes_come_with_their_sequences(local_store: Client) -> None:
    bucket = local_store.create_bucket("tokens")
    try:
        modes = _draw.integers(0, 2, sum(map(len, FILES["c"]))).tolist()
        put(bucket, {"m": FILES["c"]}, dtype="int32", modes=modes)
        dataset = MegatronTokens(local_store, "ais://tokens/train/")
        sequences = [one.tolist() for document in FILES["c"] for one in document]
        assert [(tokens.tolist(), mode) for tokens, mode in dataset[:]] == list(zip(sequences, modes, strict=True))
        for options in ({"unit": "document"}, {"sequence_length": 8}):
            with pytest.raises(errors.InvalidRequest, match=r"m\.idx: multimodal"):
                MegatronTokens(local_store, "ais://tokens/train/", **options)
    finally:
        local_store.delete_bucket("tokens", force=True)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_plan_draws_windows_and_resumes(bucket: Bucket) -> None:
    def loader(seed: int = 7) -> BatchLoader:
        dataset = MegatronTokens(bucket.client.url, "ais://tokens/train/", sequence_length=64, seed=seed)
        return BatchLoader(dataset, ShufflePlan(len(dataset), 100, seed=3))

    expected = [one for documents in FILES.values() for one in windows(documents, 64, 7, 1)]
    plan, first = ShufflePlan(len(expected), 100, seed=3), loader()
    running = iter(first)
    head = [next(running), next(running)]
    again, state = loader(), first.state_dict()
    again.load_state_dict(state)
    found = [as_lists(batch) for batch in [*head, *again]]
    assert found == [[expected[at] for at in plan.batch(0, step)] for step in range(plan.steps(0) or 0)]
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader(8).load_state_dict(state)
    index = megatron(FILES["a"])[1]
    bucket.put("train/a.idx", index)
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader().load_state_dict(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_read_sequences(bucket: Bucket) -> None:
    dataset = MegatronTokens(bucket.client.url, "ais://tokens/train/")
    loader = DataLoader(
        dataset, batch_size=200, num_workers=2, collate_fn=list, multiprocessing_context="spawn", timeout=180
    )
    assert as_lists([one for batch in loader for one in batch]) == SEQUENCES


def test_a_dataset_is_pickled_with_what_it_knows(bucket: Bucket) -> None:
    dataset = MegatronTokens(bucket.client.url, "ais://tokens/train/", sequence_length=16)
    first = dataset[0].tolist()
    assert pickle.loads(pickle.dumps(dataset))[0].tolist() == first


@pytest.mark.parametrize("name", ["a.bin", "a.idx"])
def test_a_replaced_file_is_never_other_tokens(bucket: Bucket, name: str) -> None:
    dataset = MegatronTokens(bucket.client, ["train/a.bin"], bucket="tokens")
    bucket.put(f"train/{name}", bytes(bucket.get(f"train/{name}")))
    with pytest.raises(errors.ObjectNotFound, match=re.escape(name)):
        dataset[1]
    put(bucket, {"a": FILES["c"]})
    absent = MegatronTokens(bucket.client, ["train/a.bin"], bucket="tokens", on_error="placeholder")
    absent[0]  # reads the index
    bucket.put("train/a.bin", b"other")
    assert absent[0] is None


TOKENS, INDEX = megatron(FILES["c"])
_COUNT = sum(map(len, FILES["c"]))
_END = 34 + 12 * _COUNT
"""Where the pointers end."""


@table(
    ("tokens", "index", "message"),
    [
        (TOKENS, INDEX[:20], "InvalidRequest: x.idx: not an index of Megatron"),
        (TOKENS, b"", "InvalidRequest: x.idx: not an index of Megatron"),
        (TOKENS, b"TNTIDX" + INDEX[6:], "InvalidRequest: x.idx: not an index of Megatron"),
        (TOKENS, INDEX[:9] + b"\2" + INDEX[10:], "InvalidRequest: x.idx: version 2, type 8"),
        (TOKENS, megatron(FILES["c"], "float32")[1], "InvalidRequest: x.idx: version 1, type 7"),
        (TOKENS, INDEX[:-1], "ArchiveDamaged: x.idx: "),
        (TOKENS, INDEX + b"\0", "ArchiveDamaged: x.idx: "),
        (TOKENS[:-2], INDEX, "ArchiveDamaged: x.idx: bytes"),
        (TOKENS, INDEX[:34] + b"\xff" * 4 * _COUNT + INDEX[34 + 4 * _COUNT :], "ArchiveDamaged: x.idx: "),
        (TOKENS, INDEX[: _END - 8] + b"\xff" * 7 + b"\x7f" + INDEX[_END:], "ArchiveDamaged: x.idx: "),
    ],
)
def test_a_damaged_index_is_told(local_store: Client, tokens: bytes, index: bytes, message: str) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    bucket.put_many([("x.bin", tokens), ("x.idx", index)])
    kind, _, text = message.partition(": ")
    for options in ({}, {"sequence_length": 8}, {"unit": "document"}):
        with pytest.raises(errors.LoaderError, match=re.escape(text)) as raised:
            MegatronTokens(local_store, ["ais://damaged/x.bin"], **options)[:]  # type: ignore[arg-type]
        assert type(raised.value).__name__ == kind


def test_a_document_of_other_sequences_is_told(local_store: Client) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    at = 34 + 12 * _COUNT + 8
    bucket.put_many([("x.bin", TOKENS), ("x.idx", INDEX[:at] + (10**6).to_bytes(8, "little") + INDEX[at + 8 :])])
    with pytest.raises(errors.ArchiveDamaged, match="document 0 has sequences 0 to 1,000,000"):
        MegatronTokens(local_store, ["ais://damaged/x.bin"], "document")[0]


@table(
    ("call", "message"),
    [
        ("MegatronTokens(client, ['ais://tokens/train/none.bin'])", "ObjectNotFound: tokens/train/none.bin"),
        ("MegatronTokens(client, ['ais://tokens/train/e.bin'])", "ObjectNotFound: tokens/train/e.idx"),
        (
            "MegatronTokens(client, ['ais://tokens/train/f.npy'])",
            "InvalidRequest: ais://tokens/train/f.npy: need files",
        ),
        ("MegatronTokens(client, 'ais://tokens/train/', 'sentence')", "InvalidRequest: unit='sentence'"),
        ("MegatronTokens(client, [], 'document', sequence_length=5)", "InvalidRequest: unit='document'"),
        ("MegatronTokens(client, [], sequence_length=0)", "InvalidRequest: sequence_length=0"),
        ("MegatronTokens(client, [], sequence_length=5, epochs=0)", "InvalidRequest: epochs=0"),
        ("MegatronTokens(client, [], sequence_length=2.5)", "TypeError: sequence_length is a float"),
        (
            "MegatronTokens(client, ['ais://tokens/train/a.bin', 'ais://tokens/g.bin'])",
            "InvalidRequest: ais://tokens/g",
        ),
        ("MegatronTokens(client, [], shuffle=True)", "TypeError: shuffle"),
    ],
)
def test_bad_arguments(bucket: Bucket, call: str, message: str) -> None:
    bucket.put_many([("train/e.bin", b"ab"), ("train/f.npy", b"ab")])
    bucket.put_many(zip(("g.bin", "g.idx"), megatron([], "int32"), strict=True))
    kind, _, text = message.partition(": ")
    with pytest.raises((errors.LoaderError, TypeError), match=re.escape(text)) as raised:
        eval(call, {"MegatronTokens": MegatronTokens, "client": bucket.client})
    assert type(raised.value).__name__ == kind
