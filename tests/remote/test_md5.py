"""verify_md5: an object whose bytes are not those of its ETag is fetched once more, and is neither stored nor sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from ais_loader import Bucket, Client, Remote, Status, errors
from ais_loader.cli.bucket import bucket as bucket_command
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.remote import Remote as WireRemote
from tests.remote.conftest import LARGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy

SIZES = [1000, 5 << 20, LARGE_BYTES + (1 << 20)]
"""One that arrives in memory, one that is streamed, and one that is fetched in ranges."""


@pytest.fixture
def compared(cold: Bucket) -> Iterator[Bucket]:
    remote = cold.info().remote
    assert remote is not None and not remote.verify_md5  # the default
    cold.set(remote=replace(remote, verify_md5=True))
    yield cold


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_changed_byte_is_fetched_again(
    compared: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, size: int, where: str
) -> None:
    data = seeded_bytes(size, seed=1)
    remote_bucket.put("a", data)
    flips = 0 if where == "first" else min(size, LARGE_BYTES) - 1  # of the first answer
    with proxy.on("GET", remote_bucket.path("a"), Fault(flips=flips), times=1) as rule:
        assert compared.get("a") == data
    assert rule.matched >= 2
    assert compared.head("a").is_stored and compared.get("a") == data


@pytest.mark.parametrize("size", SIZES)
def test_what_stays_changed_fails_in_its_place_and_is_not_stored(
    client: Client, compared: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, size: int
) -> None:
    data = seeded_bytes(size, seed=2)
    for name in ("a", "b", "c"):
        remote_bucket.put(name, data)
    with proxy.on("GET", remote_bucket.path("b"), Fault(flips=size // 3 % LARGE_BYTES)) as rule:
        items = list(client.get_batch(["a", "b", "c"], bucket=compared.name, on_error="placeholder"))
        assert [item.status for item in items] == [Status.OK, Status.UNAVAILABLE, Status.OK]
        assert "its ETag is" in str(items[1].error)
        assert [items[0].data, items[2].data] == [data, data]
        assert rule.matched == 2 or size > LARGE_BYTES or "," in client.url  # each owner tries
        if "," not in client.url:
            with pytest.raises(errors.CorruptObject, match="its ETag is"):
                compared.get("b")
        assert rule.matched >= 2
        assert not compared.head("b").is_stored

    def is_read() -> bool:  # readers share a failure for a second
        return not compared.warm(["b"], on_error="return").failures

    eventually(is_read)
    assert compared.get("b") == data


def test_tags_that_are_no_digests_are_not_compared(
    compared: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("empty", b"")
    assert compared.get("empty") == b""
    remote_bucket.put("a", b"text")
    with proxy.on("*", remote_bucket.path("a"), Fault(headers={"ETag": f'"{"0" * 32}-2"'})):
        assert compared.get("a") == b"text"
    remote_bucket.put("kms", b"text")
    with proxy.on("*", remote_bucket.path("kms"), Fault(headers={"ETag": f'"{"0" * 32}"'})):
        with pytest.raises(errors.CorruptObject, match="SSE-KMS"):
            compared.get("kms")
        remote = compared.info().remote
        assert remote is not None
        compared.set(remote=replace(remote, verify_md5=False))
        eventually(lambda: not compared.warm(["kms"], on_error="return").failures)
        assert compared.get("kms") == b"text"


def test_without_it_nothing_is_compared(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    remote_bucket.put("a", b"text")
    with proxy.on("GET", remote_bucket.path("a"), Fault(flips=0)):
        assert cold.get("a") == b"uext"


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_it_is_a_bool(value: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="need True or False"):
        Remote("s3://a", verify_md5=value)


def test_it_travels_by_wire_and_command_line(tmp_path: Any) -> None:
    remote = Remote("s3://a", verify_md5=True)
    assert WireRemote.from_wire(remote.to_wire()) == remote
    run = CliRunner().invoke
    store = ["--store", str(tmp_path / "store")]
    made = run(bucket_command, ["create", "b", "remote=s3://a", "verify_md5=true", *store])
    assert made.exit_code == 0, made.output
    assert '"verify_md5": true' in run(bucket_command, ["show", "b", "--json", *store]).output
    assert run(bucket_command, ["set", "b", "verify_md5=false", *store]).exit_code == 0
    assert '"verify_md5": false' in run(bucket_command, ["show", "b", "--json", *store]).output
    refused = run(bucket_command, ["set", "b", "verify_md5=maybe", *store])
    assert refused.exit_code and "True or False" in str(refused.exception) + refused.output
