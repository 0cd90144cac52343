"""Ray Data over a store: what is read, in which version, and that a task that is run again writes nothing twice."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray.data
from ray_kit import ray_here

from ais_loader import Bucket, Entry, connect, errors
from ais_loader.integrations.ray_data import Written, read_ais, write_ais
from ais_loader.integrations.ray_data.listing import Listed, portable_url, shares
from ais_loader.integrations.ray_data.write import AISSink
from ais_loader.testing import NodeProcess, seeded_bytes, throwaway_folder
from tests.cluster_processes import ClusterProcesses
from tests.tar_kit import packed_tar

NAMES = ["a/0", "a/1 #?%20", "a/2.bin", "b/empty", "b/large"]
CORPUS = {name: seeded_bytes(size, seed=size) for name, size in zip(NAMES, (10, 20_000, 700, 0, 3 << 20), strict=True)}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="r") as folder, ray_here(Path(folder)):
        yield


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "drive") as node:
                yield node.url


@pytest.fixture
def bucket(store: str, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """In an embedded store the client that fills it is closed, or tasks could not write to it."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())[-60:].strip("-")
    with connect(store) as client:
        client.create_bucket(name).put_many(CORPUS.items())
    with connect(store, mode="r") as reader:
        yield reader.bucket(name)


def rows(dataset: Any) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = dataset.take_all()
    return sorted(taken, key=lambda row: str(row["path"]))


def test_all_objects_of_a_prefix_are_rows(bucket: Bucket, store: str) -> None:
    found = rows(read_ais(f"ais://{bucket.name}/", store=store, override_num_blocks=3))
    assert found == [{"bytes": CORPUS[name], "path": f"ais://{bucket.name}/{name}"} for name in NAMES]
    some = read_ais(f"ais://{bucket.name}/a/", store=store, include_paths=False)
    assert sorted(row["bytes"] for row in some.take_all()) == sorted(CORPUS[name] for name in NAMES[:3])
    with pytest.raises(errors.InvalidRequest, match="nothing to read"):
        read_ais(f"ais://{bucket.name}/none", store=store)
    with pytest.raises(errors.BucketNotFound):
        read_ais("ais://no-such-bucket/", store=store)


def test_a_list_is_read_in_its_order_with_ranges_members_and_why_some_failed(bucket: Bucket, store: str) -> None:
    with connect(store) as client:
        client.bucket(bucket.name).put("s.tar", packed_tar({"x.txt": b"member", "y #.txt": b"other"}))
    entries: list[Any] = [
        f"ais://{bucket.name}/b/empty",
        Entry(bucket.name, "a/2.bin", start=100, length=50),
        f"ais://{bucket.name}/s.tar/y #.txt",
        f"ais://{bucket.name}/none",
        f"ais://{bucket.name}/s.tar/none",
        f"ais://{bucket.name}/a/0",
    ]
    taken = read_ais(entries, store=store, status=True, override_num_blocks=1).take_all()
    assert [row["bytes"] for row in taken] == [b"", CORPUS["a/2.bin"][100:150], b"other", None, None, CORPUS["a/0"]]
    assert [row["status"] for row in taken] == ["OK", "OK", "OK", "NOT_FOUND", "MEMBER_NOT_FOUND", "OK"]
    members = rows(read_ais([f"ais://{bucket.name}/s.tar"], store=store, members=True))
    assert members == [
        {"bytes": b"member", "path": f"ais://{bucket.name}/s.tar/x.txt"},
        {"bytes": b"other", "path": f"ais://{bucket.name}/s.tar/y #.txt"},
    ]
    with pytest.raises(Exception, match="none"):
        read_ais(entries, store=store).take_all()


def test_what_is_replaced_after_the_list_was_made_is_never_read(bucket: Bucket, store: str) -> None:
    listed = read_ais(f"ais://{bucket.name}/a/", store=store, status=True)
    strict = read_ais(f"ais://{bucket.name}/a/", store=store)
    with connect(store) as client:
        client.bucket(bucket.name).put("a/0", b"new")
    assert [row["status"] for row in rows(listed)] == ["NOT_FOUND", "OK", "OK"]
    with pytest.raises(Exception, match="a/0"):
        strict.take_all()


def test_rows_become_objects(bucket: Bucket, store: str) -> None:
    dataset = read_ais(f"ais://{bucket.name}/", store=store).map(
        lambda row: row | {"name": row["path"].partition("//")[2].partition("/")[2]}
    )
    written = write_ais(dataset, f"ais://{bucket.name}/copy/", store=store, name_column="name")
    assert written == Written(len(CORPUS), sum(map(len, CORPUS.values())))
    copies = {info.name: bucket.get(info.name) for info in bucket.objects("copy/")}
    assert copies == {f"copy/{name}": data for name, data in CORPUS.items()}
    with pytest.raises(Exception, match="is there already, by another write"):
        write_ais(dataset, f"ais://{bucket.name}/copy/", store=store, name_column="name")
    before = [info.version for info in bucket.objects("copy/")]
    write_ais(dataset, f"ais://{bucket.name}/copy/", store=store, name_column="name", mode="overwrite")
    assert all(info.version not in before for info in bucket.objects("copy/"))
    made = ray.data.from_arrow(pa.table({"bytes": [b"x", b"y"]}))
    write_ais(made, f"ais://{bucket.name}/made/", store=store, suffix=".bin")
    assert [info.name for info in bucket.objects("made/")] == ["made/000000-00000000.bin", "made/000000-00000001.bin"]


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_a_task_whose_process_died_half_way_writes_nothing_twice(
    mode: Any, bucket: Bucket, store: str, tmp_path: Path
) -> None:
    marker = tmp_path / "died"

    class DiesOnce(AISSink):
        """Right behind its first group of 1,000."""

        def _put_new(self, bucket: Bucket, group: Any, task_id: str) -> None:
            super()._put_new(bucket, group, task_id)
            if not marker.exists():
                marker.write_text("\n".join(f"{info.name} {info.version}" for info in bucket.objects("w/")))
                os.kill(os.getpid(), signal.SIGKILL)

    dataset = ray.data.range(3000, override_num_blocks=1).map(lambda row: {"name": str(row["id"]), "bytes": b"data"})
    sink = DiesOnce(portable_url(store), bucket.name, "w/", "bytes", "name", "", mode)
    dataset.write_datasink(sink)
    assert sink.written == Written(3000, 12_000)
    first = dict(line.split() for line in marker.read_text().splitlines())
    assert len(first) == 1000
    now = {info.name: info.version for info in bucket.objects("w/")}
    assert len(now) == 3000
    assert {name: now[name] for name in first} == first


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"name": ["x", "x"], "bytes": [b"1", b"2"]}), "two rows have the name"),
        (pa.table({"name": ["x", None], "bytes": [b"1", b"2"]}), "has None and no name"),
        (pa.table({"name": ["x", "y"], "bytes": [b"1", None]}), "is null: need a column of bytes"),
        (pa.table({"name": ["x", "y"], "text": ["1", "2"]}), "no column 'bytes' among name, text"),
        (pa.table({"name": ["x", "y/../z"], "bytes": [b"1", b"2"]}), "component"),
    ],
)
def test_rows_that_cannot_be_stored_say_why(table: Any, reason: str, bucket: Bucket, store: str) -> None:
    with pytest.raises(Exception, match=reason):
        write_ais(ray.data.from_arrow(table), f"ais://{bucket.name}/bad/", store=store, name_column="name")


def test_wrong_arguments_are_told_before_anything_runs(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ray.data.from_arrow(pa.table({"bytes": [b"x"]}))
    for url, options, error in [
        ("b/x", {}, errors.InvalidRequest),
        ("ais://b", {}, errors.InvalidRequest),
        ("ais://no-such-bucket/", {}, errors.BucketNotFound),
        ("ais://b/", {"mode": "append"}, errors.InvalidRequest),
        ("ais://b/", {"name_column": "n", "suffix": ".x"}, errors.InvalidRequest),
    ]:
        with pytest.raises(error):
            write_ais(made, url, store=store, **options)  # type: ignore[arg-type]
    monkeypatch.delenv("AIS_LOADER_URL", raising=False)
    with pytest.raises(errors.InvalidRequest, match="AIS_LOADER_URL"):
        read_ais("ais://b/")


def test_shares_keep_order_and_bounds() -> None:
    found = [Listed(Entry("b", str(at)), size) for at, size in enumerate([5, 5, 100, 0, 0, 7, 3, 80, 1])]
    for count, most_bytes, most_entries in [(1, 1000, 1000), (4, 1000, 1000), (1, 20, 1000), (3, 1000, 2), (1, 1, 1)]:
        cut = list(shares(found, count, most_bytes, most_entries))
        assert [one for share in cut for one in share] == found
        assert all(
            len(share) == 1 or (len(share) <= most_entries and sum(one.size_bytes for one in share) <= most_bytes)
            for share in cut
        )
    empty = [Listed(Entry("b", str(at)), 0) for at in range(10)]
    assert [len(share) for share in shares(empty, 5, 1000, 1000)] == [2] * 5


@pytest.mark.slow
def test_a_node_that_is_killed_while_tasks_read_and_returns_loses_no_row() -> None:
    data = {f"{at:04d}": seeded_bytes(100_000, seed=at) for at in range(600)}
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node, connect(node.url) as client:
        client.create_bucket("b").put_many(data.items())
        dataset = read_ais("ais://b/", store=node.url, override_num_blocks=6)
        came = {}
        for row in dataset.iter_rows():
            if not came:
                node.kill()
                node.start()
            came[row["path"][-4:]] = row["bytes"]
        assert came == data


@pytest.mark.slow
def test_a_cluster_is_written_to_and_read_while_one_of_its_nodes_is_dead() -> None:
    data = {f"{at:04d}": seeded_bytes(100_000, seed=at) for at in range(300)}
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, buckets={"b": 2}) as nodes:
        made = ray.data.from_arrow(pa.table({"name": list(data), "bytes": list(data.values())})).repartition(4)
        assert write_ais(made, "ais://b/", store=nodes.url, name_column="name").objects == len(data)
        dataset = read_ais("ais://b/", store=nodes.url, override_num_blocks=6)
        came = {}
        for row in dataset.iter_rows():
            if not came:
                nodes.kill([1])  # where others have a copy of all that it has
            came[row["path"][-4:]] = row["bytes"]
        assert came == data
