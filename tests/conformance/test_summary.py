"""How much a bucket holds, in all and by folder. The same on every transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance_kit import fill

from ais_loader import Bucket, Client, connect, errors
from ais_loader.testing import eventually
from ais_loader.values.summary import BucketSummary
from tests.cluster_processes import ClusterProcesses

OBJECTS = {
    "a": 1,
    "en/a.wav": 10,
    "en/b.wav": 20,
    "en/x/1": 100,
    "en/x/y/2": 200,
    "english": 3,
    "es/ñ": 40,
    "es/z": 50,
    "-first": 5,
}


def sums(summary: BucketSummary) -> dict[str, tuple[int, int]]:
    """All that a summary says, checked to add up when folders are told apart."""
    found = {name: (one.objects, one.size_bytes) for name, one in summary.by_prefix.items()}
    if found:
        assert list(found) == sorted(found)
        assert sum(objects for objects, _ in found.values()) == summary.objects
        assert sum(size for _, size in found.values()) == summary.size_bytes
    return {**found, "all": (summary.objects, summary.size_bytes)}


def test_objects_count_for_the_deepest_folder_told_apart(bucket: Bucket) -> None:
    fill(bucket, {name: bytes(size) for name, size in OBJECTS.items()})
    assert sums(bucket.summary()) == {"": (3, 9), "en/": (4, 330), "es/": (2, 90), "all": (9, 429)}
    assert sums(bucket.summary(depth=2)) == {
        "": (3, 9),
        "en/": (2, 30),
        "en/x/": (2, 300),
        "es/": (2, 90),
        "all": (9, 429),
    }
    assert sums(bucket.summary("en/")) == {"en/": (2, 30), "en/x/": (2, 300), "all": (4, 330)}
    assert sums(bucket.summary("en")) == {"": (1, 3), "en/": (4, 330), "all": (5, 333)}
    assert sums(bucket.summary("en/", depth=9))["en/x/y/"] == (1, 200)
    assert sums(bucket.summary(depth=0)) == {"all": (9, 429)}
    assert sums(bucket.summary("none")) == {"all": (0, 0)}
    whole = bucket.summary()
    assert (whole.bucket, whole.prefix, whole.complete, whole.silent) == (bucket.name, "", True, ())


@pytest.mark.slow
def test_what_was_replaced_or_deleted_counts_no_more(bucket: Bucket) -> None:
    fill(bucket, {f"d/{at}": bytes(100) for at in range(300)})
    fill(bucket, {f"d/{at}": bytes(7) for at in range(100)})
    bucket.delete_many(f"d/{at}" for at in range(50, 200))
    bucket.multipart("d/later").put_part(1, bytes(5000))
    assert sums(bucket.summary()) == {"d/": (150, 50 * 7 + 100 * 100), "all": (150, 10_350)}


def test_a_wrong_summary_is_refused(client: Client, bucket: Bucket, bucket_name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="depth"):
        bucket.summary(depth=-1)
    with pytest.raises(errors.InvalidRequest, match="prefix"):
        bucket.summary("\ud800")
    with pytest.raises(errors.BucketNotFound):
        client.bucket(bucket_name + "x").summary()


# -- copies


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    root: Path = tmp_path_factory.mktemp("nodes")
    with ClusterProcesses(root, 3, buckets={"one": 1, "two": 2}) as running:
        # Nodes that have just begun may lack copies for a moment, and one is to be killed right after the writes.
        running.map.bucket[1].min_copies = 2
        running.map.version += 1
        running.teach()
        yield running


def complete(bucket: Bucket) -> BucketSummary:
    """A node that is up may be silent for a moment."""
    return eventually(lambda: found if (found := bucket.summary()).complete else None)


@pytest.mark.slow
def test_each_copy_of_an_object_counts_once_and_missing_nodes_are_named(three_nodes: ClusterProcesses) -> None:
    objects = {f"{at % 3}/{at:05d}": bytes(at % 50) for at in range(600)}
    with connect(three_nodes.url) as client:
        one, two = client.bucket("one"), client.bucket("two")
        fill(one, objects)
        fill(two, objects)
        size_bytes = sum(map(len, objects.values()))
        expected = sums(complete(one))
        assert expected["all"] == (600, size_bytes) and expected["1/"][0] == 200
        assert sums(complete(two)) == expected
        three_nodes.kill([1])
        two.delete_many(name for name in objects if name.startswith("2/"))
        half = complete(two)
        assert sums(half) == {name: expected[name] for name in ("0/", "1/")} | {
            "all": (400, expected["0/"][1] + expected["1/"][1])
        }
        gone = three_nodes.nodes[1].url.removeprefix("grpc://")
        assert half.complete and len(half.silent) == 1 and half.silent[0].startswith(gone)
        some = eventually(lambda: found if len((found := one.summary()).silent) == 1 else None)
        assert not some.complete and some.objects < 600 and gone in some.silent[0]
