"""Members of large cold archives: only their bytes leave the cloud, and what it takes to find them."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from tests.remote.backend_kit import Asked, DecidedServer, Reply, content
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.s3_server import S3Server
from tests.tar_kit import packed_tar

MiB = 1 << 20
NAME = "en/shard-000.tar"
COUNT = 24
"""Members of most archives here: few and large, because the S3 server takes as long for a range as for an object."""


def members_of(count: int, size_bytes: int, seed: int = 0) -> dict[str, bytes]:
    drawn = random.Random(seed)
    return {f"{at:04}.wav": drawn.randbytes(size_bytes + at) for at in range(count)}


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    return members_of(COUNT, 3 * MiB // 2)


@pytest.fixture(scope="module")
def tar(members: dict[str, bytes]) -> bytes:
    return packed_tar(members)


def read(client: Client, bucket: Bucket, wanted: Sequence[str], name: str = NAME) -> list[bytes]:
    return [item.tobytes() for item in client.get_batch([Entry(bucket.name, name, member) for member in wanted])]


def nodes_of(client: Client) -> int:
    """Return how many nodes may each find the members for themselves."""
    return 2 if "," in client.url else 1


def sent_bytes(proxy: FaultProxy, path: str) -> int:
    return sum(one.sent_bytes for one in proxy.requests if one.matches("GET", path))


def is_stored(bucket: Bucket, name: str = NAME) -> bool:
    return bucket.head(name).is_stored


@pytest.mark.slow
def test_members_of_a_tar_cost_a_small_share_of_it(s3: S3Server, client: Client, bucket_name: str) -> None:
    members = members_of(640, 102_000)
    tar, names = packed_tar(members), list(members)

    def answer(asked: Asked) -> Reply:
        return content(asked, tar) if asked.path.endswith(f"/{NAME}") else Reply(404)

    with DecidedServer(answer) as server, FaultProxy(server.url) as proxy:
        cold = client.create_bucket(bucket_name, remote=Remote("s3://corpus", endpoint=proxy.url))

        def cost(wanted: Sequence[str]) -> tuple[float, int]:
            proxy.forget()
            assert read(client, cold, wanted) == [members[name] for name in wanted]
            return sent_bytes(proxy, NAME) / len(tar), proxy.count("GET", NAME)

        share, requests = cost(random.Random(1).sample(names, 5))
        assert share < 0.05 * nodes_of(client) and requests < 800 * nodes_of(client)  # and all that finds them
        if nodes_of(client) == 1:
            share, requests = cost([names[70]])
            assert share < 0.004 and requests <= 2  # a slow answer is requested a second time
            share, requests = cost([names[at] for at in (300, 9, 301, 5, 302, 7, 303, 8, 304, 6)])
            assert share < 0.02 and requests <= 5  # two runs of five neighbours
        assert not is_stored(cold)
        share, _ = cost(names)
        assert share < 1.3 and is_stored(cold)
        assert cost(names) == (0, 0)
        client.delete_bucket(bucket_name, force=True)


@pytest.mark.slow
def test_members_keep_their_places_and_bytes(
    client: Client,
    cold: Bucket,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    tar: bytes,
    members: dict[str, bytes],
) -> None:
    etag = remote_bucket.put(NAME, tar)
    remote_bucket.put("plain", b"plain")
    remote_bucket.put("small.tar", packed_tar({"a": b"in a small one"}))
    entries = [
        Entry(cold.name, NAME, "0007.wav"),
        Entry(cold.name, "plain"),
        Entry(cold.name, NAME, "none.wav"),
        Entry(cold.name, NAME, "0003.wav", 1000, 50),
        Entry(cold.name, "small.tar", "a"),
        Entry(cold.name, NAME, "0003.wav", 10_000_000, 5),
        Entry(cold.name, NAME, "0001.wav", version=f"etag:{etag}"),
        Entry(cold.name, NAME, "0001.wav", version="etag:other"),
        Entry(cold.name, NAME, "0007.wav"),
        Entry(cold.name, NAME, "0023.wav", 1_500_000),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    expected = [
        members["0007.wav"],
        b"plain",
        b"",
        members["0003.wav"][1000:1050],
        b"in a small one",
        b"",
        members["0001.wav"],
        b"",
        members["0007.wav"],
        members["0023.wav"][1_500_000:],
    ]
    assert [item.tobytes() for item in items] == expected
    statuses = ["OK"] * 2 + ["MEMBER_NOT_FOUND", "OK", "OK", "RANGE", "OK", "NOT_FOUND", "OK", "OK"]
    assert [item.status.name for item in items] == statuses
    assert isinstance(items[2].error, errors.MemberNotFound) and isinstance(items[7].error, errors.ObjectNotFound)
    assert {one.version for one in cold.members(NAME)} == {f"etag:{etag}"}
    assert cold.get(NAME, member="0010.wav") == members["0010.wav"]
    assert cold.get(NAME, member="0010.wav", start=7, length=9) == members["0010.wav"][7:16]
    with pytest.raises(errors.MemberNotFound):
        cold.get(NAME, member="none.wav")
    assert not is_stored(cold)
    assert sent_bytes(proxy, remote_bucket.path(NAME)) < 0.25 * nodes_of(client) * len(tar)


@pytest.mark.slow
def test_an_error_is_that_of_a_stored_archive(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, tar: bytes
) -> None:
    remote_bucket.put(NAME, tar)
    entries = [Entry(cold.name, NAME, "none.wav"), Entry(cold.name, NAME, "0003.wav", 10_000_000, 5)]

    def failures() -> list[tuple[str, str, type]]:
        items = client.get_batch(entries, on_error="placeholder")
        return [(item.status.name, str(item.error), type(item.error)) for item in items]

    cold_ones = failures()
    assert not is_stored(cold)
    cold.get(NAME)
    assert is_stored(cold) and failures() == cold_ones


@pytest.mark.slow
def test_members_are_listed_without_the_archive(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    etag = remote_bucket.put(NAME, tar)
    listed = list(cold.members(NAME, page_size=60))
    assert [(one.name, one.size_bytes) for one in listed] == [(name, len(data)) for name, data in members.items()]
    assert {one.version for one in listed} == {f"etag:{etag}"} and {one.checksum for one in listed} == {0}
    assert [one.name for one in cold.members(NAME, "001", version=f"etag:{etag}")] == [
        f"{at:04}.wav" for at in range(10, 20)
    ]
    assert sent_bytes(proxy, remote_bucket.path(NAME)) < 0.1 * len(tar) and not is_stored(cold)
    cold.get(NAME)
    stored = list(cold.members(NAME, version=f"etag:{etag}"))
    assert [one.name for one in stored] == list(members) and all(one.checksum for one in stored)
    remote_bucket.put("plain.bin", b"x")
    with pytest.raises(errors.NotAnArchive):
        list(cold.members("plain.bin"))
    with pytest.raises(errors.ObjectNotFound):
        list(cold.members("none.tar"))


@pytest.mark.slow
def test_an_archive_is_stored_when_much_of_it_was_read(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    remote_bucket.put(NAME, tar)
    names = list(members)
    for at in range(0, 9 * nodes_of(client), 3):
        assert read(client, cold, names[at : at + 3]) == [members[name] for name in names[at : at + 3]]
    assert is_stored(cold)

    def read_without_a_request() -> bool:
        proxy.forget()
        assert read(client, cold, names) == list(members.values())
        return proxy.count("GET") == 0

    # Each node counts the reads that it answered, so each may read members by range; on a busy machine, several times.
    eventually(read_without_a_request)


@pytest.mark.slow
def test_an_index_is_kept_over_an_eviction(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    remote_bucket.put(NAME, tar)
    assert cold.get(NAME) == tar
    assert len(list(cold.members(NAME))) == COUNT
    cold.evict()
    proxy.forget()
    assert read(client, cold, ["0015.wav", "0002.wav"]) == [members["0015.wav"], members["0002.wav"]]
    if nodes_of(client) == 1:  # in a cluster, another owner may answer, whose copy had no index yet
        assert proxy.count("GET", remote_bucket.path(NAME)) <= 3
        assert all(one.checksum for one in cold.members(NAME))
    # The remote object is another one now: nothing of the old index is used.
    other = members_of(COUNT - 1, 1_600_000, seed=7)
    remote_bucket.put(NAME, packed_tar(other))
    assert read(client, cold, ["0015.wav"]) == [other["0015.wav"]]


@pytest.mark.slow
def test_readers_of_one_archive_share_one_walk(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    remote_bucket.put(NAME, tar)
    proxy.latency_s = 0.02
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: cold.get(NAME, member=f"{at % 20:04}.wav"), range(0, 40, 5)))
    assert found == [members[f"{at % 20:04}.wav"] for at in range(0, 40, 5)]
    # Each header about once, and each member.
    assert proxy.count("GET", remote_bucket.path(NAME)) < 2 * COUNT * nodes_of(client)


@pytest.mark.parametrize("skip", [2, 14], ids=["early", "late"])
@pytest.mark.slow
def test_an_archive_that_is_replaced_while_it_is_walked(
    client: Client,
    cold: Bucket,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    tar: bytes,
    members: dict[str, bytes],
    skip: int,
) -> None:
    remote_bucket.put(NAME, tar)
    other = members_of(COUNT, 1_550_000, seed=3)
    with proxy.held("GET", remote_bucket.path(NAME), skip=skip, times=1) as held, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, client, cold, ["0015.wav", "0020.wav"])
        held.wait_for(1)
        remote_bucket.put(NAME, packed_tar(other))
        held.release()
        assert reading.result(180) == [other["0015.wav"], other["0020.wav"]]
    assert [one.size_bytes for one in cold.members(NAME)] == [len(data) for data in other.values()]


@pytest.mark.slow
def test_an_archive_that_is_replaced_after_it_was_walked(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, tar: bytes, members: dict[str, bytes]
) -> None:
    etag = remote_bucket.put(NAME, tar)
    assert read(client, cold, ["0000.wav"]) == [members["0000.wav"]]
    other = members_of(COUNT + 1, 1_450_000, seed=4)
    remote_bucket.put(NAME, packed_tar(other))
    assert [one.name for one in cold.members(NAME)] == list(other)
    remote_bucket.put(NAME, tar)
    assert [one.name for one in cold.members(NAME)] == list(members)
    remote_bucket.put(NAME, packed_tar(other))  # the member that is new is not missing
    assert read(client, cold, ["0024.wav"]) == [other["0024.wav"]]
    pinned = Entry(cold.name, NAME, "0001.wav", version=f"etag:{etag}")
    [item] = client.get_batch([pinned], on_error="placeholder")
    assert item.status.name == "NOT_FOUND" and isinstance(item.error, errors.ObjectNotFound)
    assert read(client, cold, ["0024.wav"]) == [other["0024.wav"]]


@pytest.mark.parametrize("cut", ["in a member", "in a header"])
@pytest.mark.slow
def test_a_truncated_tar_is_fetched_and_refused_as_ever(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, tar: bytes, cut: str
) -> None:
    last = tar.rindex(b"0023.wav")
    remote_bucket.put(NAME, tar[: last + (100_000 if cut == "in a member" else 200)])
    [item] = client.get_batch([Entry(cold.name, NAME, "0003.wav")], on_error="placeholder")
    assert item.status.name == "CORRUPT" and isinstance(item.error, errors.ArchiveDamaged)
    assert is_stored(cold)


@pytest.mark.slow
def test_a_damaged_header_is_left_to_the_stored_archive(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, tar: bytes
) -> None:
    at = tar.index(b"0010.wav")
    remote_bucket.put(NAME, tar[: at + 130] + b"7" + tar[at + 131 :])  # its size
    with pytest.raises(errors.ArchiveDamaged):
        cold.get(NAME, member="0003.wav")
    with pytest.raises(errors.ArchiveDamaged):
        list(cold.members(NAME))


@pytest.mark.slow
def test_members_of_a_zip_are_read_by_range(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    members = members_of(60, 600 << 10) | {"grüße/text.txt": b"many words " * 50_000, "empty": b""}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        for name, data in members.items():
            made.writestr(name, data, zipfile.ZIP_STORED if name < "0058" else zipfile.ZIP_DEFLATED, 1)
        made.writestr("packed", b"otherwise", zipfile.ZIP_BZIP2)
    remote_bucket.put("a.zip", packed.getvalue())
    wanted = ["0001.wav", "0059.wav", "grüße/text.txt", "empty", "0012.wav"]
    assert read(client, cold, wanted, "a.zip") == [members[name] for name in wanted]
    assert cold.get("a.zip", member="grüße/text.txt", start=110, length=11) == b"many words "
    assert [one.name for one in cold.members("a.zip")] == [*members, "packed"]
    [item] = client.get_batch([Entry(cold.name, "a.zip", "packed")], on_error="placeholder")
    assert isinstance(item.error, errors.ArchiveUnsupported) and item.status.name == "FAILED"
    path = remote_bucket.path("a.zip")
    assert sent_bytes(proxy, path) < 2.2 * MiB and proxy.count("GET", path) <= 8 and not is_stored(cold, "a.zip")
    # A byte of a member is wrong, which its CRC-32 tells: the stored archive is refused, and so is the member.
    at = packed.getvalue().index(members["0001.wav"][:100])
    damaged = bytearray(packed.getvalue())
    damaged[at + 5] ^= 1
    remote_bucket.put("b.zip", bytes(damaged))
    assert read(client, cold, ["0012.wav"], "b.zip") == [members["0012.wav"]]
    [item] = client.get_batch([Entry(cold.name, "b.zip", "0001.wav")], on_error="placeholder")
    assert isinstance(item.error, errors.ArchiveDamaged) and item.status.name == "CORRUPT"


def test_compressed_tars_are_fetched_as_a_whole(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a.tar.gz", packed_tar(members_of(3, 5000), "w:gz"))
    assert read(client, cold, ["0002.wav"], "a.tar.gz") == [members_of(3, 5000)["0002.wav"]]
    assert is_stored(cold, "a.tar.gz")


@pytest.mark.slow
def test_a_cloud_that_fails_for_a_moment_is_asked_again(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    remote_bucket.put(NAME, tar)
    proxy.on("GET", remote_bucket.path(NAME), Fault(status=503), skip=3, times=2)
    proxy.on("GET", remote_bucket.path(NAME), Fault(cut_after=100), skip=9, times=2)
    assert read(client, cold, ["0005.wav", "0019.wav"]) == [members["0005.wav"], members["0019.wav"]]
    assert not is_stored(cold)


@pytest.mark.slow
def test_an_index_of_lhotse_beside_a_tar_is_asked_for_once(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    offsets = [tar.index(name.encode()) for name in members][::2]
    for name, shift in (("right.tar", 0), ("wrong.tar", 512)):
        remote_bucket.put(name, tar)
        written = [*(offset + shift for offset in offsets[1:]), len(tar)]
        remote_bucket.put(f"{name}.idx", struct.pack(f"<{len(written)}Q", *written))
        assert read(client, cold, ["0019.wav", "0004.wav"], name) == [members["0019.wav"], members["0004.wav"]]
        assert proxy.count("GET", remote_bucket.path(f"{name}.idx")) <= 2 * nodes_of(client)
    for name in ("en/a.tar", "en/b.tar"):
        remote_bucket.put(name, tar)
        assert read(client, cold, ["0004.wav"], name) == [members["0004.wav"]]
    asked = [proxy.count("GET", remote_bucket.path(f"en/{name}.tar.idx")) for name in "ab"]
    assert asked[0] and (nodes_of(client) > 1 or not asked[1])  # where one has none, the others have none


@pytest.mark.slow
def test_a_map_dataset_reads_members(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, tar: bytes, members: dict[str, bytes]
) -> None:
    from ais_loader import MapDataset

    remote_bucket.put(NAME, tar)
    entries = [one.entry() for one in cold.members(NAME)]
    dataset = MapDataset(client, entries)
    found = dataset.__getitems__([5, 15, 4])
    assert [bytes(one) for one in found] == [members[f"{at:04}.wav"] for at in (5, 15, 4)]
    assert not is_stored(cold)


@pytest.mark.slow
def test_samples_of_webdataset_shards_are_read_alone(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    webdataset = pytest.importorskip("ais_loader.integrations.webdataset")
    parts = {f"{at:03}": data for at, data in enumerate(members_of(COUNT, 3 * MiB // 2, seed=11).values())}
    fields = {f"{key}.{field}": text for key, data in parts.items() for field, text in (("bin", data), ("cls", b"7"))}
    remote_bucket.put(NAME, packed_tar(fields))
    samples = webdataset.ShardSamples(f"ais://{cold.name}/{NAME}", store=client)
    assert len(samples) == COUNT
    found = samples.__getitems__([20, 3])
    assert [(one["__key__"], one["bin"], one["cls"]) for one in found] == [
        (key, parts[key], b"7") for key in ("020", "003")
    ]
    assert not is_stored(cold)


@pytest.mark.slow
def test_an_index_survives_a_restart(
    tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy, tar: bytes, members: dict[str, bytes]
) -> None:
    remote_bucket.put(NAME, tar)
    for restart in range(2):
        with connect(tmp_path / "store", mode="a") as client:
            remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
            bucket = client.create_bucket("b", remote=remote, exist_ok=True)
            proxy.forget()
            assert read(client, bucket, [f"000{restart}.wav"]) == [members[f"000{restart}.wav"]]
            assert (proxy.count("GET", remote_bucket.path(NAME)) <= 2) is bool(restart)
    [kept] = (tmp_path / "store" / "cold-members").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")  # a damaged one is not used
    with connect(tmp_path / "store", mode="a") as client:
        assert read(client, client.bucket("b"), ["0009.wav"]) == [members["0009.wav"]]
