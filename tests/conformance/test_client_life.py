"""A client's life: pickling, threads, closing, and errors that cross process borders."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conformance_kit import contents, fill, samples

import ais_loader
from ais_loader import Bucket, Client, Entry, LoaderError, errors


def test_a_pickled_client_reads_what_the_client_has_put(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"before")
    with pickle.loads(pickle.dumps(client)) as other:
        assert other.bucket(bucket.name).get("a") == b"before"
        assert contents(other.get_batch([Entry(bucket.name, "a")] * 2)) == [b"before"] * 2
        bucket.put("b", b"after")
        assert other.bucket(bucket.name).get("b") == b"after"


def _read_elsewhere(client: Client, bucket: str, names: list[str]) -> list[bytes]:
    with client:
        return [item.tobytes() for item in client.bucket(bucket).get_batch(names)]


@pytest.mark.slow
def test_a_client_sent_to_a_spawned_process_works_there(client: Client, bucket: Bucket) -> None:
    objects = samples(20)
    fill(bucket, objects)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read_elsewhere, (client, bucket.name, list(objects))) == list(objects.values())
    assert contents(bucket.get_batch(list(objects))) == list(objects.values())


def test_a_bucket_pickles_with_its_client(bucket: Bucket) -> None:
    bucket.put("a", b"1")
    other = pickle.loads(pickle.dumps(bucket))
    assert other.get("a") == b"1"
    other.client.close()


def test_items_pickle_with_their_bytes_and_errors(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1" * 70_000)
    for item in bucket.get_batch(["a", "none"], on_error="placeholder"):
        other = pickle.loads(pickle.dumps(item))
        assert (other.index, other.entry, other.status, other.data) == (item.index, item.entry, item.status, item.data)
        assert (type(other.error), str(other.error)) == (type(item.error), str(item.error))
        assert other.data.readonly


@pytest.mark.slow
def test_threads_share_a_client(client: Client, bucket: Bucket) -> None:
    objects = samples(400, size_bytes=5000)
    fill(bucket, objects)
    names = list(objects)

    def work(seed: int) -> None:
        order = names[seed:] + names[:seed]
        for _ in range(3):
            assert contents(bucket.get_batch(order)) == [objects[name] for name in order]
            assert bucket.get(order[0]) == objects[order[0]]
            bucket.put(f"by-{seed}", order[0].encode())
            assert bucket.get(f"by-{seed}") == order[0].encode()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, seed * 13) for seed in range(8)]:
            done.result(timeout=180)


def test_a_closed_client_refuses_every_call_and_may_be_closed_again(url: str, client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    client.close()
    client.close()
    for call in (
        lambda: bucket.get("a"),
        lambda: bucket.put("b", b""),
        lambda: bucket.put_many([("b", b"")]),
        lambda: bucket.head("a"),
        lambda: bucket.delete("a"),
        lambda: list(bucket.objects()),
        lambda: list(bucket.get_batch(["a"])),
        client.buckets,
        client.describe,
    ):
        with pytest.raises(errors.Closed):
            call()
    with ais_loader.connect(url) as again:
        assert again.bucket(bucket.name).get("a") == b"1"


def test_items_stay_valid_after_the_client_is_closed(client: Client, bucket: Bucket) -> None:
    objects = samples(50)
    fill(bucket, objects)
    items = list(bucket.get_batch(list(objects)))
    client.close()
    assert contents(items) == list(objects.values())


def test_closing_while_batches_are_read_ends_them_with_an_error_and_never_short(client: Client, bucket: Bucket) -> None:
    objects = samples(64, size_bytes=200_000)
    fill(bucket, objects)
    names, started = list(objects), threading.Barrier(5, timeout=180)

    def read() -> int:
        batches = 0
        started.wait()
        try:
            while True:
                assert contents(bucket.get_batch(names)) == list(objects.values())
                batches += 1
        except LoaderError:
            return batches

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read) for _ in range(4)]
        started.wait()
        bucket.get(names[0])
        client.close()
        for done in reading:
            assert done.result(timeout=180) >= 0


def test_describe_is_json_able_and_says_what_is_there(client: Client) -> None:
    import json

    described = json.loads(json.dumps(client.describe()))
    assert described["drives"][0]["state"] == "ok"
    assert len(described["store_uuid"]) >= 32


def raised_by(call: object) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        call()  # type: ignore[operator]
    return caught.value


def test_errors_of_every_call_pickle_with_class_and_message(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    for call in (
        lambda: bucket.get("nope"),
        lambda: bucket.put("/", b""),
        lambda: bucket.get("a", start=5),
        lambda: list(bucket.get_batch(["a", "nope"])),
        lambda: client.create_bucket(bucket.name),
        lambda: client.bucket("nope").head("a"),
        lambda: client.get_batch(["not a url"]),
    ):
        error = raised_by(call)
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(twin), str(twin), twin.retryable) == (type(error), str(error), error.retryable)


def test_errors_of_items_pickle(bucket: Bucket) -> None:
    [item] = bucket.get_batch(["nope"], on_error="placeholder")
    twin = pickle.loads(pickle.dumps(item.error))
    assert (type(twin), str(twin)) == (errors.ObjectNotFound, str(item.error))
