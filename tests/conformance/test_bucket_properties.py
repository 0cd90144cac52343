"""What a bucket is made with, and what of that can be changed. The same on every transport."""

from __future__ import annotations

import pickle

import pytest

from ais_loader import Bucket, Client, connect, errors
from ais_loader.testing.cluster import ClusterProcesses


def properties(bucket: Bucket) -> tuple[int, int, bool]:
    found = bucket.info()
    listed = next(one for one in bucket.client.buckets() if one.name == bucket.name)
    assert listed == found == pickle.loads(pickle.dumps(found))
    return found.copies, found.min_copies, found.reframe


def test_a_bucket_has_one_copy_and_no_other_wishes_unless_told(client: Client, bucket: Bucket) -> None:
    assert properties(bucket) == (1, 1, False)


def test_what_can_be_changed_is_changed_and_the_rest_stays(client: Client, bucket_name: str) -> None:
    bucket = client.create_bucket(bucket_name, reframe=True)
    uuid = bucket.info().uuid
    bucket.put("a", b"1")
    assert properties(bucket) == (1, 1, True)
    assert bucket.set() == bucket.info()
    assert bucket.set(reframe=False, copies=1, min_copies=1) == bucket.info()
    assert properties(bucket) == (1, 1, False)
    assert bucket.set(reframe=True).reframe
    assert properties(client.create_bucket(bucket_name, exist_ok=True)) == (1, 1, True)
    assert (bucket.info().uuid, bucket.get("a")) == (uuid, b"1")
    client.delete_bucket(bucket_name, force=True)
    assert properties(client.create_bucket(bucket_name)) == (1, 1, False)


def test_changes_that_cannot_be_are_refused_and_change_nothing(client: Client, bucket: Bucket) -> None:
    for wrong in ({"copies": 2}, {"min_copies": 2, "reframe": True}, {"copies": 0}, {"min_copies": -1}):
        with pytest.raises(errors.InvalidRequest, match="copies="):
            bucket.set(**wrong)  # type: ignore[arg-type]
    for wrong in ({"min_copies": 2}, {"min_copies": 0}, {"copies": 0}):
        with pytest.raises(errors.InvalidRequest, match="copies="):
            client.create_bucket(bucket.name + "-2", **wrong)  # type: ignore[arg-type]
    assert properties(bucket) == (1, 1, False)
    assert bucket.name + "-2" not in [one.name for one in client.buckets()]


def test_a_bucket_that_is_not_there_has_no_properties(client: Client, bucket_name: str) -> None:
    missing = client.bucket(bucket_name)
    for call in (missing.info, lambda: missing.set(reframe=True), missing.set):
        with pytest.raises(errors.BucketNotFound):
            call()


def test_in_a_cluster_copies_are_chosen_for_good_and_how_many_a_write_needs_is_not(
    shared_cluster: ClusterProcesses, bucket_name: str
) -> None:
    with connect(shared_cluster.url) as client:
        bucket = client.create_bucket(bucket_name, copies=3, min_copies=2)
        assert properties(bucket) == (3, 2, False)
        assert bucket.set(min_copies=3, copies=3).min_copies == 3
        with pytest.raises(errors.InvalidRequest, match="for good"):
            bucket.set(copies=2)
        with pytest.raises(errors.InvalidRequest, match="min_copies=4"):
            bucket.set(min_copies=4)
        assert properties(bucket) == (3, 3, False)
        bucket.put("a", b"1")
        for node in shared_cluster.nodes:  # every node knows
            with connect(node.url) as other:
                assert properties(other.bucket(bucket_name)) == (3, 3, False)
        client.delete_bucket(bucket_name, force=True)
