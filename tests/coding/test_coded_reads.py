"""Reads of coded objects on six nodes: whole ones, ranges, members, under faults of up to two of them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ais_loader import Entry, connect, errors
from ais_loader.objects.client import Client
from ais_loader.testing import eventually
from ais_loader.wire.frame import decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.batch import fast_path
from storage_node.batch.gather.fragments import GatheredFragments
from storage_node.cluster.coding import group_reader
from storage_node.cluster.coding.group import Manifest
from storage_node.store.checksum import crc32c
from storage_node.store.read import batch as batch_module
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import BUCKET, Answer
from tests.node.node_kit import PLENTY, RawSession
from tests.patience import PATIENT_CLIENT
from tests.store.store_kit import file_of, flip_a_byte
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

DRAW = random.Random(7)
SMALL = {f"small/{at:03}": DRAW.randbytes(DRAW.randrange(1, 40_000)) for at in range(120)} | {"empty": b""}
LARGE = {"large": DRAW.randbytes(9_000_001), "middle": DRAW.randbytes(1_500_000)}
MEMBERS = {f"{at}.txt": DRAW.randbytes(5000) for at in range(20)}
OBJECTS = SMALL | LARGE
NAMES = list(OBJECTS)
DRAW.shuffle(NAMES)


class Made(NamedTuple):
    cluster: CodedCluster
    groups: list[Manifest]

    def holders(self) -> list[int]:
        """The nodes with the data fragments of the small objects, in their order."""
        return [self.cluster.holder(name) for name in self.groups[0].fragments]

    def fragments(self) -> Iterator[tuple[int, str]]:
        for group in self.groups:
            for name in group.fragments:
                yield self.cluster.holder(name), name


def made(cluster: CodedCluster) -> Made:
    groups = cluster.put_coded(SMALL)
    for name, data in LARGE.items():
        groups += cluster.put_coded({name: data})
    return Made(cluster, groups)


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Nobody damages it."""
    with CodedCluster(tmp_path_factory.mktemp("coded")) as cluster:
        cluster.put({"plain": b"plain bytes", "shard.tar": packed_tar(MEMBERS)})
        found = made(cluster)
        found.groups.extend(cluster.code(["shard.tar"]))
        yield found


@pytest.fixture(scope="module")
def client(coded: Made) -> Iterator[Client]:
    with connect(coded.cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        yield client


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with CodedCluster(tmp_path_factory.mktemp("own"), linked=True, peer_timeout_s=15.0) as cluster:
        yield made(cluster)


def assert_read(answer: Answer, names: list[str]) -> None:
    assert answer.order[: len(names)] == list(range(len(names)))
    for at, name in enumerate(names):
        assert answer.status[at] == pb.OK, (name, answer.faults.get(at))
        assert answer.data[at] == OBJECTS[name], name


def test_a_batch_has_the_bytes_in_its_order_and_each_failure_in_its_place(coded: Made) -> None:
    names = [*NAMES, "small/000", "missing", "plain"]
    answer = coded.cluster.ask(names)
    assert_read(answer, NAMES)
    assert answer.data[len(NAMES)] == SMALL["small/000"]
    assert answer.status[len(NAMES) + 1] == pb.NOT_FOUND
    assert answer.data[len(NAMES) + 2] == b"plain bytes"
    coded.cluster.settle()


@pytest.mark.parametrize("how", [{"buffered": True}, {"verify_ranges": True}, {"receiver_checks": True}])
def test_a_batch_is_the_same_however_it_is_requested(coded: Made, how: dict[str, bool]) -> None:
    assert_read(coded.cluster.ask(NAMES, **how), NAMES)
    coded.cluster.settle()


def test_only_the_node_that_gathers_a_batch_reads_fragments(own: Made) -> None:
    cluster = own.cluster
    cluster.put({"plain": b"plain bytes"})
    names = [*NAMES, "plain", "missing"]
    for how in ({}, {"start": [1] * len(names), "length": [0] * len(names)}):
        answer = cluster.ask(names, **how)
        assert [at for at, status in answer.status.items() if status] == (
            [len(names) - 1] if not how else [NAMES.index("empty"), len(names) - 1]
        )
    assert_read(cluster.ask(NAMES), NAMES)
    readers = [cluster.batches(number).resources.coded.groups for number in range(6)]
    assert [bool(reader._known) for reader in readers] == [True] + [False] * 5
    cluster.settle()


def test_entries_that_one_node_cannot_read_are_read_by_another(own: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    read, unable = group_reader.GroupReader.read, list[group_reader.GroupReader]()

    async def failing(self: group_reader.GroupReader, bucket: Any, wanted: Any, **more: Any) -> Any:
        unable[:] = unable or [self]
        found = await read(self, bucket, wanted, **more)
        return [errors.NodeUnavailable("no way")] * len(found) if self in unable else found

    monkeypatch.setattr(group_reader.GroupReader, "read", failing)
    with connect(own.cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        for assembly in ("auto", "direct"):
            unable.clear()
            found = client.bucket(BUCKET).get_batch(NAMES, assembly=assembly)
            assert [item.tobytes() for item in found] == [OBJECTS[name] for name in NAMES]
            assert unable
    own.cluster.settle()


def test_an_entry_whose_place_has_changed_is_read_at_the_new_one(own: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the answer of its owner and the read of its fragments, each object is coded again or has a file."""
    cluster, read, changed = own.cluster, group_reader.GroupReader.read, list[bool]()

    async def late(self: group_reader.GroupReader, bucket: Any, wanted: Any, **more: Any) -> Any:
        if not changed:
            changed.append(True)
            await asyncio.to_thread(change)
            self.forget(group.group for group in own.groups)
        return await read(self, bucket, wanted, **more)

    def change() -> None:
        old = list(own.groups)
        cluster.put({"small/000": SMALL["small/000"]})
        cluster.code(list(SMALL)[1:])
        for group in old[:-2]:
            for name in group.fragments[:3]:
                cluster.store(cluster.holder(name)).delete(cluster.companion, name)

    monkeypatch.setattr(group_reader.GroupReader, "read", late)
    assert_read(cluster.ask(NAMES), NAMES)
    assert changed
    cluster.settle()


def test_an_object_that_is_replaced_while_it_is_got_is_got_in_one_version(
    own: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its first window has come, the rest is of a newer version, and no fragment of the old one is left."""
    cluster, read, windows, newer = own.cluster, group_reader.GroupReader.read, list[bool](), LARGE["large"][::-1]

    async def replaced(self: group_reader.GroupReader, bucket: Any, wanted: Any, **more: Any) -> Any:
        windows.append(True)
        if len(windows) == 1:
            return await read(self, bucket, wanted, **more)
        if len(windows) == 2:
            await asyncio.to_thread(cluster.put, {"large": newer})
        return [errors.NodeUnavailable("its fragments are gone")] * len(wanted)

    monkeypatch.setattr(group_reader.GroupReader, "read", replaced)
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        assert client.bucket(BUCKET).get("large") == newer
    assert len(windows) >= 2
    cluster.settle()


def test_an_owner_that_is_slow_to_say_where_its_entries_are_delays_no_batch(own: Made) -> None:
    assert_read(own.cluster.ask(NAMES), NAMES)
    slow = next(number for number in range(1, 6) if any(own.cluster.owners(name)[0] == number for name in NAMES))
    own.cluster.links[slow].stall()
    assert_read(own.cluster.ask(NAMES), NAMES)
    own.cluster.links[slow].flow()
    own.cluster.settle()


def test_lost_fragments_are_no_failed_entries(tmp_path: Path) -> None:
    with CodedCluster(tmp_path, max_soft_errors=0, repair_interval_s=3600.0) as cluster:
        found = made(cluster)
        for group in found.groups:
            for fragment in (group.fragments[0], group.fragments[4]):
                cluster.store(cluster.holder(fragment)).delete(cluster.companion, fragment)
        assert_read(cluster.ask(NAMES), NAMES)
        with pytest.raises(errors.EntryFailed, match=r"max_soft_errors.*'missing'"):
            cluster.ask(["missing", *NAMES])


def resumed(url: str, request: pb.BatchRequest) -> Answer:
    """Send a request as it is, and return what comes until END."""
    answer = Answer()
    with RawSession(url) as session:
        session.send(1, request)
        while True:
            response = decode_response(next(session.call))
            assert response.reject is None
            if response.frame is not None:
                answer.take(response.frame)
            if response.end is not None:
                assert response.end.outcome == pb.End.COMPLETE, response.end
                return answer


@pytest.mark.parametrize("local", [False, True])
def test_a_batch_goes_on_in_the_middle_of_its_first_entry(coded: Made, local: bool) -> None:
    for name in ("large", "middle"):
        owners, begin = coded.cluster.owners(name), 700_001
        number = owners[0] if local else next(number for number in range(6) if number not in owners)
        request = pb.BatchRequest(bucket=[BUCKET], name=[name, name], ordered=True, local=local)
        request.initial_credit_bytes, request.resume_offset = PLENTY, begin
        request.resume_checksum = crc32c(OBJECTS[name][:begin])
        request.resume_version = str(coded.cluster.entry(owners[0], name).version)
        answer = resumed(coded.cluster.nodes[number].url, request)
        assert answer.status == {0: pb.OK, 1: pb.OK}, answer.faults
        assert (answer.data[0], answer.data[1]) == (OBJECTS[name][begin:], OBJECTS[name])
        request.resume_version = "1.0.1"
        answer = resumed(coded.cluster.nodes[number].url, request)
        assert (answer.data[0], answer.data[1]) == (OBJECTS[name], OBJECTS[name])  # it was replaced: from its beginning
        request.version.extend([request.resume_version, ""])
        assert resumed(coded.cluster.nodes[number].url, request).status[0] == pb.NOT_FOUND
        del request.version[:]
        request.resume_version = "9.1.1"
        assert resumed(coded.cluster.nodes[number].url, request).status[0] == pb.NOT_FOUND
    coded.cluster.settle()


@pytest.mark.parametrize("local", [False, True])
def test_a_batch_that_goes_on_at_the_end_of_an_entry_or_behind_it_ends(coded: Made, local: bool) -> None:
    owners = coded.cluster.owners("large")
    number = owners[0] if local else next(number for number in range(6) if number not in owners)
    for start, length in ((0, len(OBJECTS["large"])), (1000, 5_000_000)):
        for behind_bytes, status in ((0, pb.OK), (1, pb.NOT_FOUND), (20_000_000, pb.NOT_FOUND)):
            request = pb.BatchRequest(bucket=[BUCKET], name=["large", "large"], ordered=True, local=local)
            request.start.extend([start, 7])
            request.length.extend([length, 11])
            request.initial_credit_bytes, request.resume_offset = PLENTY, length + behind_bytes
            request.resume_checksum = crc32c(OBJECTS["large"][start : start + length])
            request.resume_version = str(coded.cluster.entry(owners[0], "large").version)
            answer = resumed(coded.cluster.nodes[number].url, request)
            assert answer.status == {0: status, 1: pb.OK}, answer.faults
            assert (answer.data[0], answer.data[1]) == (b"", OBJECTS["large"][7:18])
    coded.cluster.settle()


def test_an_entry_beyond_what_a_batch_carries_fails_alone(coded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batch_module, fast_path):
        monkeypatch.setattr(module, "MAX_ITEM_BYTES", 1 << 20)
    names = ["small/001", "large", "middle"]
    for local in (False, True):
        mine = [name for name in names if not local or 0 in coded.cluster.owners(name)]
        answer = coded.cluster.ask(mine, local=local)
        for at, name in enumerate(mine):
            if name == "small/001":
                assert answer.data[at] == SMALL[name]
            else:
                assert answer.faults[at].kind == "item-too-large"
    starts, lengths = [0, 8_000_000, 5], [-1, 1000, 2]
    answer = coded.cluster.ask(names, start=starts, length=lengths)
    assert answer.data == {0: SMALL["small/001"], 1: LARGE["large"][8_000_000:8_001_000], 2: LARGE["middle"][5:7]}


def test_ranges_are_those_of_the_objects(client: Client) -> None:
    drawn = random.Random(3)
    wanted: list[tuple[str, int, int | None]] = [("large", 0, 0), ("large", 9_000_001, None), ("empty", 0, None)]
    for name in NAMES[:60] + ["large"] * 20:
        start = drawn.randrange(len(OBJECTS[name]) + 1)
        wanted.append((name, start, drawn.choice([None, drawn.randrange(len(OBJECTS[name]) - start + 1)])))
    found = client.get_batch([Entry(BUCKET, name, start=start, length=length) for name, start, length in wanted])
    for item, (name, start, length) in zip(found, wanted, strict=True):
        stop = None if length is None else start + length
        assert item.tobytes() == OBJECTS[name][start:stop], (name, start, length)
    with pytest.raises(errors.RangeError):
        client.bucket(BUCKET).get("large", start=1, length=9_000_001)
    bucket = client.bucket(BUCKET)
    assert bucket.get("large", start=4_000_000, length=3_000_000) == LARGE["large"][4_000_000:7_000_000]


def test_single_objects_and_their_descriptions_are_those_that_were_put(client: Client) -> None:
    bucket = client.bucket(BUCKET)
    for name in ["large", "middle", "empty", "small/007"]:
        info = bucket.head(name)
        assert info.size_bytes == len(OBJECTS[name])
        assert bucket.get(name) == OBJECTS[name]
        with bucket.open(name) as file:
            file.seek(len(OBJECTS[name]) // 2)
            assert file.read() == OBJECTS[name][len(OBJECTS[name]) // 2 :]
    listed = {info.name for info in bucket.objects()}
    assert listed >= {*OBJECTS, "plain", "shard.tar"} and not any(name.startswith("/") for name in listed)


def test_an_owner_stores_an_archive_again_for_its_members(
    coded: Made, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = set[int](), os.fsync

    def noting(fd: int) -> None:
        fsync(fd)
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    wanted = [Entry(BUCKET, "shard.tar", name) for name in MEMBERS] + [Entry(BUCKET, "shard.tar", "none.txt")]
    found = list(client.get_batch(wanted, on_error="placeholder"))
    assert [item.tobytes() for item in found[:-1]] == list(MEMBERS.values())
    assert found[-1].status.name == "MEMBER_NOT_FOUND"
    version = client.bucket(BUCKET).head("shard.tar").version
    cluster, manifest = coded.cluster, coded.groups[-1]
    entries = [cluster.entry(number, "shard.tar") for number in cluster.owners("shard.tar")]
    assert {str(entry.version) for entry in entries} == {version}
    again = [number for number, entry in zip(cluster.owners("shard.tar"), entries, strict=True) if entry.has_file]
    assert again
    for number in again:  # whatever the durability: the group, which was on disks, may be given up now
        assert file_of(cluster.store(number), "shard.tar", BUCKET).stat().st_ino in synced
    cluster.code_again("shard.tar", manifest)
    assert {one.name for one in client.bucket(BUCKET).members("shard.tar")} == set(MEMBERS)


def test_an_object_made_of_a_coded_one_has_its_bytes(coded: Made, client: Client) -> None:
    bucket = client.bucket(BUCKET)
    coded.cluster.put_coded({"source": LARGE["middle"]})
    bucket.set_metadata("source", {"who": "x"})
    assert bucket.head("source").metadata == {"who": "x"}
    assert bucket.get("source") == LARGE["middle"]
    bucket.delete("source")


def test_an_overwritten_or_deleted_object_is_coded_no_more(coded: Made, client: Client) -> None:
    bucket = client.bucket(BUCKET)
    coded.cluster.put_coded({"again": b"old bytes", "gone": b"deleted"})
    bucket.put("again", b"new")
    bucket.delete("gone")
    assert bucket.get("again") == b"new"
    [again, gone] = client.get_batch([Entry(BUCKET, "again"), Entry(BUCKET, "gone")], on_error="placeholder")
    assert again.tobytes() == b"new" and gone.status.name == "NOT_FOUND"
    bucket.delete("again")


def test_a_damaged_file_that_was_coded_is_damaged_no_more(coded: Made) -> None:
    cluster = coded.cluster
    for name in ("large", "small/003"):
        number = cluster.owners(name)[1]
        marks = cluster.store(number).damaged
        marks.note(cluster.map.bucket[0].uuid, name, cluster.entry(number, name).version)
        eventually(lambda marks=marks: not len(marks))


@pytest.fixture
def without_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node asks for the first two fragments of a group before others have failed."""
    monkeypatch.setattr(
        GatheredFragments, "failing", lambda _, bucket, names: {one for one in names if one[32:35] in ("/0/", "/1/")}
    )


@pytest.mark.usefixtures("without_two")
def test_what_is_decoded_from_parity_has_the_same_bytes(coded: Made) -> None:
    groups = [coded.cluster.batches(number).resources.coded.groups for number in range(6)]
    before = sum(one.decoded for one in groups)

    def are_decoded() -> bool:
        """Where others are slow, the first two are asked as well."""
        assert_read(coded.cluster.ask(NAMES), NAMES)
        return sum(one.decoded for one in groups) > before + len(NAMES) // 4

    eventually(are_decoded)


@pytest.mark.usefixtures("without_two")
def test_a_node_without_the_codec_says_what_to_install(coded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(data: int, parity: int) -> None:
        raise errors.Unsupported("pip install it")

    monkeypatch.setattr(group_reader, "codec_of", missing)
    # Where others are slow, the first two are asked as well, and nothing is decoded.
    answer = eventually(lambda: found if (found := coded.cluster.ask(["large"])).status != {0: pb.OK} else None)
    assert answer is not None and answer.status == {0: pb.UNAVAILABLE}
    assert "pip install it" in answer.faults[0].message


def test_one_object_many_times_and_many_tiny_ones_are_one_batch(coded: Made) -> None:
    tiny = {f"tiny/{at:04}": b"%d" % at for at in range(2000)}
    coded.cluster.put_coded(tiny)
    names = [*tiny, *["small/004"] * 500]
    answer = coded.cluster.ask(names)
    assert [answer.data[at] for at in range(len(names))] == [*tiny.values(), *[SMALL["small/004"]] * 500]


def test_two_of_six_nodes_may_be_gone(own: Made) -> None:
    """Not node 0, which is asked; its own fragments are lost as well in the next test."""
    gone = [number for number in own.holders() if number != 0][:2]
    for number in gone:
        own.cluster.stop(number)
    for _ in range(2):
        assert_read(own.cluster.ask(NAMES), NAMES)


def test_a_frozen_node_is_waited_for_only_once(own: Made) -> None:
    frozen = next(number for number in own.holders() if number != 0)
    assert_read(own.cluster.ask(NAMES), NAMES)
    own.cluster.links[frozen].stall()
    assert_read(own.cluster.ask(NAMES), NAMES)
    reader = own.cluster.batches(0).resources.coded.groups
    decoded = reader.decoded
    own.cluster.links[frozen].flow()
    eventually(lambda: not own.cluster.batches(0).resources.peers.is_failing(endpoint_of(own.cluster, frozen)))
    assert decoded > 0
    assert_read(own.cluster.ask(NAMES), NAMES)


def endpoint_of(cluster: CodedCluster, number: int) -> str:
    return str(cluster.view.nodes[number].peer_endpoint)


def test_flipped_bits_in_two_fragments_of_each_group_reach_nobody(own: Made) -> None:
    for group in own.groups:
        for name in group.fragments[1:3]:
            path = file_of(own.cluster.store(own.cluster.holder(name)), name, own.cluster.companion)
            for at in range(0, path.stat().st_size, 5000):
                flip_a_byte(path, at)
    assert_read(own.cluster.ask(NAMES), NAMES)
    ranges = [("large", 3_000_000, 500), ("small/003", 5, 10)]
    with connect(own.cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        found = client.get_batch(
            [Entry(BUCKET, name, start=at, length=size) for name, at, size in ranges], verify_ranges=True
        )
        assert [item.tobytes() for item in found] == [OBJECTS[name][at : at + size] for name, at, size in ranges]


def test_three_lost_fragments_of_a_group_are_an_error_for_its_objects_alone(own: Made) -> None:
    for name in own.groups[-1].fragments[:3]:
        own.cluster.store(own.cluster.holder(name)).delete(own.cluster.companion, name)
    answer = own.cluster.ask(["middle", "large"])
    assert answer.status == {0: pb.UNAVAILABLE, 1: pb.OK}
    assert "3 of 6 fragments can be read, 4 are needed" in answer.faults[0].message
    assert answer.data[1] == LARGE["large"]


def test_a_fragment_that_was_written_elsewhere_is_found_by_its_new_manifest(own: Made) -> None:
    assert_read(own.cluster.ask(NAMES), NAMES)  # knows all manifests
    cluster, group = own.cluster, own.groups[0]
    names = list(group.fragments)
    for number in range(3):  # more than can be decoded
        holder = cluster.holder(names[number])
        content = cluster.bytes_in(cluster.companion, names[number], holder)
        cluster.store(holder).delete(cluster.companion, names[number])
        names[number] = cluster.write_fragment(group.group, number, content, (holder + 3) % 6)
    cluster.write_manifest(group._replace(fragments=tuple(names)))
    assert_read(cluster.ask(NAMES), NAMES)


def test_a_snapshot_has_the_coded_versions_that_it_saw(own: Made) -> None:
    cluster = own.cluster
    cluster.put_coded({"s.tar": packed_tar(MEMBERS)})
    owner = cluster.owners("s.tar")[0]
    before = cluster.entry(owner, "s.tar")
    cut = max(cluster.store(number).replicas.clock for number in range(6)) + 1
    cluster.map.bucket[0].snapshot.add(name="s", cut=cut)
    cluster.learn()
    cluster.await_compared()
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket, pinned = client.bucket(BUCKET), client.bucket(f"{BUCKET}@s")
        bucket.put("large", b"new")
        newer = packed_tar({name: data[::-1] for name, data in MEMBERS.items()})
        cluster.put_coded({"s.tar": newer})
        now, uuid, node = cluster.entry(owner, "s.tar"), cluster.map.bucket[0].uuid, cluster.batches(owner).node

        async def recalled() -> None:
            assert node.recall is not None
            await asyncio.gather(*(node.recall(uuid, [("s.tar", one)]) for one in (before, now)))

        assert before.is_coded and now.is_coded
        asyncio.run_coroutine_threadsafe(recalled(), cluster.nodes[owner]._loop).result(180)
        assert cluster.entry(owner, "s.tar").has_file
        bucket.delete("small/001")
        assert pinned.get("large") == LARGE["large"]
        assert pinned.get("small/001") == SMALL["small/001"]
        found = client.get_batch([Entry(pinned.name, name) for name in ("large", "small/001", "middle")])
        assert [item.tobytes() for item in found] == [LARGE["large"], SMALL["small/001"], LARGE["middle"]]
        both = [Entry(one, "s.tar", name) for one in (pinned.name, BUCKET) for name in MEMBERS]
        members = client.get_batch(both)
        assert [item.tobytes() for item in members] == [*MEMBERS.values(), *(data[::-1] for data in MEMBERS.values())]
        assert pinned.get("s.tar") == packed_tar(MEMBERS)
        assert bucket.get("s.tar") == newer
