"""Takedowns under faults: bytes of denied objects are on no drive, nodes that return do not serve them, and a process
that dies in the middle leaves nothing of them behind after its next start.

Each object has bytes of its own, which are searched for in every file of the drives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, EmbeddedOptions, Entry, Status, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.testing import eventually, throwaway_folder
from ais_loader.wire.cluster_map import ClusterView
from storage_node.store.files import segments
from storage_node.store.files.segment_file import SegmentFile
from storage_node.store.files.segment_format import HEAD_BYTES, STATE_BYTES, row_offset
from storage_node.store.fsck.fsck import check
from storage_node.store.store import Store
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all, take_snapshot
from tests.patience import PATIENT_CLIENT
from tests.store.segment_kit import head_of
from tests.store.snapshot_kit import reap
from tests.store.store_kit import flip_a_byte
from tests.table import table

SIZES = {"tiny": 300, "page": 5000, "large": 300_000}
"""Objects that share pages, that have pages in a segment, and that have files."""


def mark(name: str, version: int = 1) -> bytes:
    return f"<{name}:{version}>".encode()


def data_of(name: str, version: int = 1) -> bytes:
    size = SIZES[name.split("-")[0]]
    return (mark(name, version) * size)[:size]


def metadata_of(name: str) -> dict[str, str]:
    return {"speaker": f"speaker-of-{name}"}


NAMES = [f"{kind}-{number:02}" for kind in SIZES for number in range(8)]


def fill(bucket: Bucket) -> None:
    """Put each object twice, with a snapshot in between, and some of them together."""
    bucket.put_many([(name, data_of(name), metadata_of(name)) for name in NAMES])
    take_snapshot(bucket, "kept")
    bucket.put_many([(name, data_of(name, 2), metadata_of(name)) for name in NAMES if name.endswith(("1", "3"))])


def left_on(folders: Iterable[Path], name: str) -> list[Path]:
    """The files that have bytes or metadata of an object."""
    wanted = mark(name), mark(name, 2), metadata_of(name)["speaker"].encode()
    files = [Path(root) / file for folder in folders for root, _, found in os.walk(folder) for file in found]
    return [file for file in files if any(one in _bytes_of(file) for one in wanted)]


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:  # removed meanwhile
        return b""


@pytest.fixture
def folder() -> Iterator[Path]:
    with throwaway_folder() as found:
        yield found


def test_nothing_of_denied_objects_is_on_the_drives(folder: Path) -> None:
    drives = [folder / f"drive-{number}" for number in range(2)]
    with connect("file://" + ",".join(map(str, drives))) as client:
        bucket = client.create_bucket("b")
        fill(bucket)
        denied = [name for name in NAMES if name.endswith(("0", "1"))]
        assert all(left_on(drives, name) for name in NAMES)
        found = bucket.deny(denied, reason="order")
        assert found.is_purged
        for name in NAMES:
            assert bool(left_on(drives, name)) == (name not in denied), name
        copies = {one.name: [copy.kind for copy in one.copies] for one in found.names}
        assert copies["large-00"] == ["file"]
        assert copies["large-01"] == ["file of a snapshot", "file"]
        assert copies["tiny-01"][0] == "segment of a snapshot"
        others = [name for name in NAMES if name not in denied]
        for of in ("b", "b@kept"):
            versions = [2 if of == "b" and name.endswith("3") else 1 for name in others]
            items = list(client.bucket(of).get_batch(others))
            assert [bytes(item.data) for item in items] == list(map(data_of, others, versions))
    with connect("file://" + ",".join(map(str, drives)), mode="r") as reader:
        items = list(reader.bucket("b@kept").get_batch(denied, on_error="placeholder"))
        assert {item.status for item in items} == {Status.OBJECT_DENIED}
        assert {one.name for one in reader.bucket("b").denied().names} == set(denied)


@pytest.mark.parametrize("punches", [True, False])
def test_nothing_is_left_of_versions_that_were_replaced_or_deleted_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, punches: bool
) -> None:
    """Neither of their bytes nor of their metadata, also if the last version has none, or none is left."""

    def cannot(*_: int) -> int:
        segments.ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    if not punches:
        monkeypatch.setattr(segments, "_fallocate", cannot)
    denied = [name for name in NAMES if name.endswith(("1", "3", "4", "5"))]
    with Store.open([folder]) as store:
        store.create_bucket("b")

        def put(names: Iterable[str], version: int, metadata: bool) -> list[object]:
            staged = [
                store.stage("b", name, [data_of(name, version)], metadata_of(name) if metadata else {}, grouped=True)
                for name in names
            ]
            return list(store.commit_many(staged))

        put(NAMES, 1, True)
        put(NAMES[1::4], 2, False)
        for name in NAMES[3::8]:
            put([name], 2, False)
        store.delete_many("b", NAMES[4::8])
        reap(store)
        store.snapshots.create("b", "kept")
        put(NAMES[5::8], 3, False)
        reap(store)
        assert store.denied.deny("b", denied, "order") == [None] * len(denied)
        for name in NAMES:
            assert bool(left_on([folder], name)) == (name not in denied), name
        found = put([*denied, "tiny-new", "page-new"], 2, True)
        assert [type(one) for one in found[: len(denied)]] == [errors.ObjectDenied] * len(denied)
        for name in [*NAMES, "tiny-new", "page-new"]:
            assert bool(left_on([folder], name)) == (name not in denied), name
    assert not check([folder], checksums=True).findings


def test_nothing_is_left_of_a_version_that_was_being_freed_when_the_process_died(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Store.open([folder]) as store:
        store.create_bucket("b")
        for version, names in ((1, NAMES), (2, NAMES[::2])):
            store.commit_many(
                [store.stage("b", name, [data_of(name, version)], metadata_of(name), grouped=True) for name in names]
            )
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "wipe", dies)  # the slots are marked as freed by then
            with contextlib.suppress(errors.DriveFailed):
                reap(store)
    with Store.open([folder]) as store:
        store.denied.deny("b", NAMES[::2], "order")
        for name in NAMES:
            assert bool(left_on([folder], name)) == (name not in NAMES[::2]), name


def flip(file: Path, *places: int) -> None:
    for place in places:
        flip_a_byte(file, place)


@table(
    ("damage", "is_told"),
    [
        (lambda file, copy, row: flip(file, 0, file.stat().st_size - HEAD_BYTES), False),
        (lambda file, copy, row: flip(file, row + STATE_BYTES, copy + row + STATE_BYTES), False),
        (lambda file, copy, row: os.truncate(file, row), False),
        (lambda file, copy, row: flip(file, row, copy + row), True),
        (lambda file, copy, row: flip(file, row + STATE_BYTES, copy + row), True),
        (lambda file, copy, row: flip(file, 0), True),
    ],
)
def test_bytes_are_reported_as_removed_only_where_the_index_of_their_segment_tells_where_they_are(
    tmp_path: Path, damage: Callable[[Path, int, int], object], is_told: bool
) -> None:
    names = [f"page-{number:02}" for number in range(12)]
    folder = tmp_path / "store"
    with connect(f"file://{folder}") as client:
        bucket = client.create_bucket("b")
        bucket.put_many([(name, data_of(name), metadata_of(name)) for name in names])
        [segment] = [file for file in left_on([folder], names[3]) if "segment" in file.name]
        damage(segment, head_of(segment).copy_at, row_offset(3))
        bucket.deny(names[:6], reason="order")
    for _ in range(2):  # the second start has nothing in memory of what was left
        with connect(f"file://{folder}") as client:
            found = client.bucket("b").denied()
            assert [one.name for one in found.names] == names[:6]
            assert found.is_purged == is_told
            for one in found.names:
                assert not (one.is_purged and left_on([folder], one.name)), one.name


def test_nothing_is_left_while_objects_move_between_drives(folder: Path) -> None:
    drives = [folder / "first", folder / "second"]
    with Store.open(drives[:1]) as store:
        store.create_bucket("b")
        for name in NAMES:
            store.stage("b", name, [data_of(name)], metadata_of(name), grouped=name < "large-04").commit()
        drives[1].mkdir()
        store.pool.add_drive(drives[1])
        assert store.pool.moving
        denied = NAMES[::3]
        assert store.denied.deny("b", denied, "order") == [None] * len(denied)
        for name in NAMES:
            assert bool(left_on(drives, name)) == (name not in denied), name
        while store.pool.moving:
            store.pool.move_some()
        assert [one.name for one in store.denied.names("b")] == sorted(denied)
        for name in denied:
            assert not left_on(drives, name)
            with pytest.raises(errors.ObjectDenied):
                store.stage("b", name, [b"new"], {}).commit()
    assert not check(drives, checksums=True).findings


POINTS = ("delete.committed", "deny.committed", "reap.unlinked", "deny.purged", "record.one_drive")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_in_a_takedown_leaves_all_or_none_of_it(folder: Path, point: str, durability: str) -> None:
    url = f"file://{folder / 'store'}"
    with connect(url, options=EmbeddedOptions(durability=durability)) as client:
        bucket = client.create_bucket("b")
        bucket.put_many([(name, data_of(name, 2), metadata_of(name)) for name in NAMES])  # and nothing sees these
        fill(bucket)
        digest = bucket.head("page-05").digest
    program = f"""
from ais_loader import EmbeddedOptions, connect
from storage_node.store import failpoints
with connect({url!r}, options=EmbeddedOptions(durability={durability!r})) as client:
    failpoints.arm({point!r})
    client.bucket("b").deny(["tiny-00", "tiny-01", "page-00", "large-00", "large-01"], digests=[{digest!r}], reason="r")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=180, check=False)
    assert done.returncode == -9, (point, done.stderr.decode())
    with connect(url) as client:
        bucket = client.bucket("b")
        denied = {one.name for one in bucket.denied().names}
        assert bucket.denied().is_purged
        for name in NAMES:
            assert bool(left_on([folder], name)) == (name not in denied), (point, name)
            if name not in denied:
                assert bucket.get(name) == data_of(name, 2 if name.endswith(("1", "3")) else 1)
        # The call is repeated, as a caller does who has had no answer.
        found = bucket.deny(["tiny-00", "tiny-01", "page-00", "large-00", "large-01"], digests=[digest], reason="r")
        assert {one.name for one in found.names} == {"tiny-00", "tiny-01", "page-00", "page-05", "large-00", "large-01"}
        for one in found.names:
            assert not left_on([folder], one.name)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcesses]:
    with throwaway_folder() as folder, ClusterProcesses(folder, 3, drives_per_node=2, buckets={"b": 2, "c": 2}) as made:
        yield made


def drives_of(cluster: ClusterProcesses, number: int) -> list[Path]:
    return [Path(drive) for drive in cluster.nodes[number].drives]


def all_drives(cluster: ClusterProcesses) -> list[Path]:
    return [drive for number in range(len(cluster.nodes)) for drive in drives_of(cluster, number)]


def client_of(cluster: ClusterProcesses) -> Client:
    return connect(cluster.url, options=PATIENT_CLIENT)


@pytest.mark.slow
def test_a_node_that_returns_serves_nothing_of_what_was_denied(cluster: ClusterProcesses) -> None:
    with client_of(cluster) as client:
        bucket = client.bucket("b")
        fill(bucket)
        serve_all(cluster)
        digest = bucket.head("page-05").digest
        denied = ["tiny-00", "tiny-01", "page-00", "page-01", "large-00", "large-01", "page-05"]
        view = ClusterView(cluster.map)
        away = view.owners(view.buckets["b"], denied[0])[0]
        cluster.kill([away])
        found = bucket.deny(denied[:-1], digests=[digest], reason="order")
        assert not found.is_purged
        # Another one may be silent for a moment.
        eventually(lambda: list(bucket.denied().silent) == [cluster.nodes[away].url.partition("://")[2]])
        alive = [drive for number in range(3) if number != away for drive in drives_of(cluster, number)]
        eventually(lambda: not any(left_on(alive, name) for name in denied), interval_s=0.1)
        assert left_on(drives_of(cluster, away), denied[0])
        cluster.start([away])
        entries = [Entry(of, name) for of in ("b", "b@kept") for name in denied]
        with connect(cluster.nodes[away].url, options=ClusterOptions(retry_s=0.0)) as alone:
            statuses = {Status.UNAVAILABLE}

            def is_settled() -> bool:
                try:
                    items = list(alone.get_batch(entries, on_error="placeholder"))
                except errors.NodeUnavailable:
                    return False
                statuses.update(item.status for item in items)
                assert not any(item.ok for item in items)
                return all(item.status == Status.OBJECT_DENIED for item in items)

            eventually(is_settled)
        assert Status.OK not in statuses
        eventually(lambda: not any(left_on(all_drives(cluster), name) for name in denied))
        eventually(lambda: bucket.denied().is_purged)
        others = [name for name in NAMES if name not in denied]
        for of in ("b", "b@kept"):
            versions = [2 if of == "b" and name.endswith(("1", "3")) else 1 for name in others]
            items = list(client.bucket(of).get_batch(others))
            assert [bytes(item.data) for item in items] == list(map(data_of, others, versions))
        with pytest.raises(errors.ObjectDenied):
            bucket.put("page-05", b"new")
        with pytest.raises(errors.ObjectDenied):
            bucket.put("another", data_of("page-05"))


@pytest.mark.slow
@pytest.mark.parametrize("point", ["delete.committed", "deny.committed", "deny.purged"])
def test_a_node_that_dies_in_a_takedown_keeps_nothing(cluster: ClusterProcesses, point: str) -> None:
    view = ClusterView(cluster.map)

    def dying_owns(name: str) -> bool:
        return 1 in view.owners(view.buckets["c"], name)

    names = [next(filter(dying_owns, (f"{kind}-{point}-{number}" for number in range(100)))) for kind in SIZES]
    with client_of(cluster) as client:
        bucket = client.bucket("c")
        bucket.put_many([(name, data_of(name), metadata_of(name)) for name in names])
        node = cluster.nodes[1]
        node.kill()
        node._environment["AIS_LOADER_FAILPOINT"] = point
        try:
            cluster.start([1])
            eventually(lambda: not client.bucket("c").denied().silent)
            bucket.deny(names, reason="order")
        finally:
            del node._environment["AIS_LOADER_FAILPOINT"]
        eventually(lambda: not node.alive)
        cluster.start([1])
        items = list(bucket.get_batch(names, on_error="placeholder"))
        assert {item.status for item in items} == {Status.OBJECT_DENIED}
        eventually(lambda: not any(left_on(all_drives(cluster), name) for name in names))
        eventually(lambda: bucket.denied().is_purged)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2])
def test_a_put_through_nodes_that_have_not_heard_of_a_denial_does_not_end_it(folder: Path, copies: int) -> None:
    """A node was down during the denial, and one that has it is down afterwards. Of two copies, one is up then."""
    names = [f"page-{number:02}" for number in range(16)]
    objects = [(name, data_of(name), metadata_of(name)) for name in names]
    with ClusterProcesses(folder, 3, drives_per_node=1, buckets={"b": copies}) as cluster, client_of(cluster) as client:
        bucket = client.bucket("b")
        cluster.kill([2])

        def is_denied() -> bool:
            with contextlib.suppress(errors.NodeUnavailable):  # the nodes have just learned of each other
                return len(bucket.deny(names, reason="order").names) == len(names)
            return False

        eventually(is_denied)
        cluster.kill([0])
        cluster.start([2])
        with connect(cluster.url, options=ClusterOptions(retry_s=5.0)) as impatient:
            refused = impatient.bucket("b").put_many(objects, on_error="return").failures
        assert copies == 1 or [one.name for one in refused] == names
        assert all(isinstance(one.error, errors.ObjectDenied | errors.NodeUnavailable) for one in refused)
        cluster.start([0])

        def is_refused() -> bool:
            items = list(bucket.get_batch(names, on_error="placeholder"))
            return {item.status for item in items} == {Status.OBJECT_DENIED}

        eventually(is_refused)
        eventually(lambda: not any(left_on(all_drives(cluster), name) for name in names))
