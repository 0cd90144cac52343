"""What a bucket is made with, and what of that can be changed. The same on every transport."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Event, Thread

import pytest
from click.testing import CliRunner

from ais_loader import Bucket, Client, connect, errors
from ais_loader.cli.main import main
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.generated.ais_batch_pb2 import BatchRequest
from tests.cluster_processes import ClusterProcesses
from tests.node.cluster_kit import to_one_node
from tests.patience import PATIENT_CLIENT

SETTLED_S = 180.0


def properties(bucket: Bucket) -> tuple[int, int]:
    found = bucket.info()
    listed = next(one for one in bucket.client.buckets() if one.name == bucket.name)
    assert listed == found == pickle.loads(pickle.dumps(found))
    return found.copies, found.min_copies


def test_a_bucket_has_one_copy_and_no_other_wishes_unless_told(client: Client, bucket: Bucket) -> None:
    assert properties(bucket) == (1, 1)


def test_what_can_be_changed_is_changed_and_the_rest_stays(client: Client, bucket_name: str) -> None:
    bucket = client.create_bucket(bucket_name)
    uuid = bucket.info().uuid
    bucket.put("a", b"1")
    assert bucket.set() == bucket.info()
    assert bucket.set(copies=1, min_copies=1) == bucket.info()
    assert properties(client.create_bucket(bucket_name, exist_ok=True)) == (1, 1)
    assert (bucket.info().uuid, bucket.get("a")) == (uuid, b"1")
    client.delete_bucket(bucket_name, force=True)
    assert properties(client.create_bucket(bucket_name)) == (1, 1)


def test_changes_that_cannot_be_are_refused_and_change_nothing(client: Client, bucket: Bucket) -> None:
    for wrong in ({"copies": 4}, {"min_copies": 2}, {"copies": 0}, {"min_copies": -1}):
        with pytest.raises(errors.InvalidRequest, match="copies="):
            bucket.set(**wrong)  # type: ignore[arg-type]
    for wrong in ({"min_copies": 2}, {"min_copies": 0}, {"copies": 0}):
        with pytest.raises(errors.InvalidRequest, match="copies="):
            client.create_bucket(bucket.name + "-2", **wrong)  # type: ignore[arg-type]
    assert properties(bucket) == (1, 1)
    assert bucket.name + "-2" not in [one.name for one in client.buckets()]


def test_a_bucket_that_is_not_there_has_no_properties(client: Client, bucket_name: str) -> None:
    missing = client.bucket(bucket_name)
    for call in (missing.info, lambda: missing.set(min_copies=1), missing.set):
        with pytest.raises(errors.BucketNotFound):
            call()


@pytest.mark.slow
def test_in_a_cluster_a_write_may_need_as_many_copies_as_there_are_and_those_as_many_hosts(
    shared_cluster: ClusterProcesses, bucket_name: str
) -> None:
    with connect(shared_cluster.url) as client:
        bucket = client.create_bucket(bucket_name, copies=3, min_copies=2)
        assert properties(bucket) == (3, 2)
        assert bucket.set(min_copies=3, copies=3).min_copies == 3
        with pytest.raises(errors.InvalidRequest, match="min_copies=3: need 1 to copies=2"):
            bucket.set(copies=2)
        with pytest.raises(errors.InvalidRequest, match=r"copies=4: need 1 to 3.*add hosts"):
            bucket.set(copies=4)
        with pytest.raises(errors.InvalidRequest, match="min_copies=4"):
            bucket.set(min_copies=4)
        assert properties(bucket) == (3, 3) and not bucket.info().settling
        bucket.put("a", b"1")
        for node in shared_cluster.nodes:  # every node knows
            with connect(node.url) as other:
                assert properties(other.bucket(bucket_name)) == (3, 3)
        told = CliRunner().invoke(
            main, ["bucket", "set", bucket_name, "copies=2", "min_copies=2", "--store", shared_cluster.url]
        )
        shown = dict(line.split() for line in told.stdout.splitlines())
        assert told.exit_code == 0 and (shown["copies"], shown["min_copies"], shown["settling"]) == ("2", "2", "yes")
        client.delete_bucket(bucket_name, force=True)


@contextmanager
def put_and_read(bucket: Bucket, objects: dict[str, bytes], written: dict[str, bytes]) -> Iterator[None]:
    """Beside whatever is done, again and again: all of `objects` are read, and new ones put, read and kept in mind."""
    stopping, problems, rounds = Event(), list[str](), [0]

    def work() -> None:
        while not stopping.is_set():
            try:
                name = f"new/{len(written):05}"
                bucket.put(name, data := seeded_bytes(3_000, seed=len(written)))
                written[name] = data
                for assembly in ("direct", "target"):
                    items = list(bucket.get_batch([*objects, name], assembly=assembly, on_error="placeholder"))
                    problems.extend(
                        f"{assembly}: {item.entry.name}: {item.status.name}, {item.error}"
                        for item, good in zip(items, [*objects.values(), data], strict=True)
                        if item.data != good
                    )
            except errors.LoaderError as error:
                problems.append(repr(error))
            rounds[0] += 1

    worker = Thread(target=work, daemon=True)
    worker.start()
    try:
        yield
        more = rounds[0] + 2
        eventually(lambda: rounds[0] >= more, SETTLED_S)
    finally:
        stopping.set()
        worker.join(SETTLED_S)
    assert not worker.is_alive() and problems == []


def holders(cluster: ClusterProcesses, bucket: str) -> dict[str, list[bytes]]:
    """Of each object, what every node has that has it, asked of the nodes one by one."""
    found: dict[str, list[bytes]] = {}
    for node in cluster.nodes:
        with closing(to_one_node(node.url)) as alone:
            for info in alone.objects(bucket, prefix="", page_size=1000):
                request = BatchRequest(bucket=[bucket], name=[info.name], fail_fast=True, ordered=True, local=True)
                with suppress(errors.ObjectNotFound):  # it was taken away meanwhile
                    data = alone.get_transformed(request, SETTLED_S)
                    found.setdefault(info.name, []).append(bytes(data or b""))
    return found


@pytest.mark.slow
def test_in_a_cluster_the_number_of_copies_is_raised_and_lowered_beside_readers_and_writers(
    shared_cluster: ClusterProcesses, bucket_name: str
) -> None:
    objects = {f"old/{at:04}": seeded_bytes(2_000 + at, seed=at) for at in range(300)}
    written: dict[str, bytes] = {}
    gone = [f"gone/{at:03}" for at in range(30)]
    with connect(shared_cluster.url, options=PATIENT_CLIENT) as client:
        bucket = client.create_bucket(bucket_name)
        bucket.put_many([*objects.items(), *((name, b"gone") for name in gone)])
        for copies in (3, 2, 1, 2):
            with put_and_read(bucket, objects, written):
                changed = bucket.set(copies=copies, min_copies=copies)
                assert (changed.copies, changed.min_copies, changed.settling) == (copies, copies, True)
                for name in gone:
                    bucket.delete(name)
                eventually(lambda: not bucket.info().settling, SETTLED_S)
                assert bucket.set(copies=copies).settling is False, "it is the same number"
            # A node that has stood in for a busy one may still have a copy, which one that repairs takes away.
            wanted = {name: [data] * copies for name, data in {**objects, **written}.items()}
            eventually(lambda wanted=wanted: holders(shared_cluster, bucket_name) == wanted)  # type: ignore[misc]
            assert [info.name for info in bucket.objects()] == sorted({**objects, **written})
            bucket.put_many((name, b"gone") for name in gone)
        client.delete_bucket(bucket_name, force=True)
