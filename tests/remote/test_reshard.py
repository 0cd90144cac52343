"""Resharding: small remote objects become tar shards, each is fetched once, and a second run continues the first."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import tarfile
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from ais_loader import ReshardSummary, errors
from ais_loader.cli import main
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing import eventually
from tests.cli.kit import command, environment
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of

NODES = pytest.mark.parametrize("url", ["grpc"], indirect=True)
SHARD_BYTES = 20_000
"""Of five samples, each a file of some 1,000 bytes and a short one."""


@pytest.fixture
def shards(client: Client, bucket_name: str) -> Iterator[Bucket]:
    yield client.create_bucket(f"{bucket_name}-shards")
    with contextlib.suppress(errors.Closed, errors.NotFound):
        client.delete_bucket(f"{bucket_name}-shards", force=True)


def samples(remote_bucket: RemoteBucket, count: int, prefix: str = "en/") -> dict[str, bytes]:
    """Put pairs of files. Return their contents in the order of their names."""
    found = {}
    for number in range(count):
        found[f"{prefix}{number:03}.json"] = b'{"n": %d}' % number
        found[f"{prefix}{number:03}.seg.wav"] = data_of(number)
    for name, data in found.items():
        remote_bucket.put(name, data)
    return found


def members(bucket: Bucket) -> dict[str, list[tuple[str, bytes]]]:
    found: dict[str, list[tuple[str, bytes]]] = {}
    for info in bucket.objects():
        with tarfile.open(fileobj=io.BytesIO(bucket.get(info.name))) as tar:
            assert all((member.mtime, member.uid, member.uname) == (0, 0, "") for member in tar)
            found[info.name] = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    return found


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {info.name: bucket.get(info.name) for info in bucket.objects()}


@pytest.mark.slow
def test_shards_have_all_objects_in_order_and_each_is_fetched_once(
    client: Client, cold: Bucket, shards: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = samples(remote_bucket, 22) | samples(remote_bucket, 3, prefix="zu/")
    cold.warm(["en/001.json"])
    seen: list[int] = []
    done = cold.reshard(
        shards, prefix="en/", shard_bytes=SHARD_BYTES, progress=lambda now: seen.append(now.done + now.skipped)
    )
    packed = members(shards)
    assert list(packed) == [f"shard-{number:06}.tar" for number in range(len(packed))]
    wanted = [one for one in data.items() if one[0].startswith("en/")]
    assert [one for shard in packed.values() for one in shard] == wanted
    for shard in packed.values():  # no sample is divided
        assert [name.partition(".")[0] for name, _ in shard[::2]] == [name.partition(".")[0] for name, _ in shard[1::2]]
        assert sum(512 + len(content) + -len(content) % 512 for _, content in shard) <= SHARD_BYTES
    assert len(packed) > 3
    assert done == ReshardSummary(made=len(packed), objects=44, size_bytes=sum(len(one) for _, one in wanted))
    assert seen == list(range(1, 45))
    rows = [row for row in client.remote_usage() if row.bucket == cold.name]
    assert sum(row.requests.get("get", 0) - row.hedged for row in rows) == 44
    assert not any(proxy.count("GET", remote_bucket.path(name)) for name in data if name.startswith("zu/"))
    # What was stored before is kept, and nothing else.
    eventually(lambda: [info.name for info in cold.objects() if info.is_stored] == ["en/001.json"])


@pytest.mark.slow
def test_a_second_run_fetches_nothing_and_another_one_makes_equal_shards(
    client: Client, cold: Bucket, shards: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = samples(remote_bucket, 12)
    assert cold.reshard(shards.name, shard_bytes=SHARD_BYTES).objects == 24
    before = contents(shards)
    proxy.forget()
    again = cold.reshard(shards.name, shard_bytes=SHARD_BYTES)
    assert (again.made, again.kept, again.objects) == (0, len(before), 0)
    assert not any(proxy.count("*", remote_bucket.path(name)) for name in data)
    shards.delete("shard-000001.tar")
    cold.warm()
    again = cold.reshard(shards.name, shard_bytes=SHARD_BYTES)
    assert (again.made, again.kept) == (1, len(before) - 1)
    assert contents(shards) == before


@pytest.mark.slow
def test_a_run_that_fails_is_continued(
    cold: Bucket, shards: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    samples(remote_bucket, 12)
    with proxy.on("GET", remote_bucket.path("en/007.seg.wav"), Fault(status=403)), pytest.raises(errors.RemoteDenied):
        cold.reshard(shards, shard_bytes=SHARD_BYTES)
    assert 0 < len(contents(shards)) < 3
    first = contents(shards)

    def goes_on() -> bool:
        with contextlib.suppress(errors.RemoteDenied):  # a failure is remembered for a second
            cold.reshard(shards, shard_bytes=SHARD_BYTES)
            return True
        return False

    eventually(goes_on)
    assert contents(shards).items() > first.items()


@pytest.mark.slow
def test_shards_that_were_made_of_other_objects_are_left_alone(
    cold: Bucket, shards: Bucket, remote_bucket: RemoteBucket
) -> None:
    samples(remote_bucket, 12)
    cold.reshard(shards, shard_bytes=SHARD_BYTES)
    before = contents(shards)
    remote_bucket.put("en/002.json", b'{"n": 222}')
    with pytest.raises(errors.InvalidRequest, match=r"shard-000000\.tar exists, and was not made of these"):
        cold.reshard(shards, shard_bytes=SHARD_BYTES)
    assert contents(shards) == before
    shards.put("own.tar", b"no shard")
    with pytest.raises(errors.InvalidRequest, match=r"shard-000000\.tar exists"):
        cold.reshard(shards, pattern="*.json", shard_bytes=SHARD_BYTES)


def test_patterns_and_ordinary_buckets(bucket: Bucket, shards: Bucket) -> None:
    bucket.put_many([("a.txt", b"1"), ("b.bin", b"2"), ("c/d.txt", b"3")])
    done = bucket.reshard(shards, pattern="*.txt", shard_name="t/{:d}.tar")
    assert (done.made, done.objects) == (1, 2)
    assert members(shards) == {"t/0.tar": [("a.txt", b"1"), ("c/d.txt", b"3")]}
    assert [info.name for info in bucket.objects()] == ["a.txt", "b.bin", "c/d.txt"]


def test_what_cannot_be_is_refused(bucket: Bucket, shards: Bucket) -> None:
    for name in ("shard.tar", "shard-{:06d}.zip", "shard-{}{}.tar", "{0.a}.tar", "{"):
        with pytest.raises(errors.InvalidRequest, match="shard_name"):
            bucket.reshard(shards, shard_name=name)
    with pytest.raises(errors.InvalidRequest, match="another bucket"):
        bucket.reshard(bucket)
    with pytest.raises(errors.InvalidRequest, match="shard_bytes"):
        bucket.reshard(shards, shard_bytes=0)
    with pytest.raises(errors.BucketNotFound):
        bucket.reshard("none")
    assert list(shards.objects()) == []


@NODES
@pytest.mark.slow
def test_a_run_that_is_killed_is_continued_with_equal_shards(
    client: Client, cold: Bucket, shards: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = samples(remote_bucket, 30)
    cold.reshard(shards, shard_bytes=SHARD_BYTES)
    wanted = contents(shards)
    shards.delete_prefix("", everything=True)
    proxy.forget()
    arguments = ("warm", cold.name, "--reshard", shards.name, "--shard-size", str(SHARD_BYTES))
    with proxy.held("GET", remote_bucket.path("en/017.json")) as held:
        running = subprocess.Popen(command(*arguments), env=environment(client.url))
        try:
            held.wait_for(1, timeout_s=30.0)
            eventually(lambda: len(list(shards.objects())) >= 2)
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait(60.0)
    first = contents(shards)
    assert 2 <= len(first) < len(wanted) and first.items() <= wanted.items()
    finished = subprocess.run(command(*arguments), env=environment(client.url), capture_output=True, timeout=60.0)
    assert finished.returncode == 0, finished.stderr
    assert f"{len(first):,} were there already".encode() in finished.stderr
    assert contents(shards) == wanted
    made = {name for shard in first for name in _names_in(wanted[shard])}
    assert all(proxy.count("GET", remote_bucket.path(name)) <= 2 for name in made)  # the second may be a hedge
    assert sum(proxy.count("GET", remote_bucket.path(name)) for name in data) <= 1.5 * len(data)


def _names_in(shard: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(shard)) as tar:
        return tar.getnames()


@pytest.mark.slow
@NODES
def test_the_command_reshards_into_a_folder(
    client: Client, cold: Bucket, shards: Bucket, remote_bucket: RemoteBucket
) -> None:
    samples(remote_bucket, 6)

    def run(*arguments: str) -> Result:
        return CliRunner(env={"AIS_LOADER_URL": client.url}).invoke(main, list(arguments))

    done = run("warm", f"{cold.name}/en", "--reshard", f"{shards.name}/a{{b}}", "--shard-name", "{:02d}.tar")
    assert done.exit_code == 0, done.output
    assert "1 shard made of 12 objects" in done.stderr and "0 were there already" in done.stderr
    assert [info.name for info in shards.objects()] == ["a{b}/00.tar"]
    refused = run("warm", "--list", "-", "--reshard", shards.name)
    assert refused.exit_code == 2 and "--reshard" in refused.output
