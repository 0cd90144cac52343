"""Jobs over remote buckets: cold sources are fetched, results are uploaded, and nothing is made twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Literal

import pytest

from ais_loader import Bucket, Client, Remote, errors
from ais_loader.testing import eventually, seeded_bytes
from tests.remote.conftest import RANGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_promotion import kept, made_bucket

pytestmark = pytest.mark.slow
DATA = {f"in/{at:02}": b"text %d" % at for at in range(30)} | {"in/large": seeded_bytes(2 * RANGE_BYTES + 9, seed=1)}


@pytest.fixture
def twice(client: Client) -> Iterator[str]:
    """A transform that fails for one source."""
    name = f"twice-{uuid.uuid4().hex[:8]}"

    def double(data: memoryview) -> bytes:
        if bytes(data) == b"bad":
            raise ValueError("too bad")
        return bytes(data) * 2

    client.etl.init(name, double)
    yield name
    client.etl.delete(name)


@pytest.fixture
def results(s3: object, remote_bucket: RemoteBucket) -> RemoteBucket:
    """Another bucket of the server, behind the same proxy."""
    return RemoteBucket(remote_bucket.s3, remote_bucket.s3.bucket(), remote_bucket.endpoint)


@pytest.mark.parametrize("write", ["through", "back"])
def test_a_remote_bucket_into_a_remote_bucket_and_again(
    client: Client,
    cold: Bucket,
    bucket_name: str,
    remote_bucket: RemoteBucket,
    results: RemoteBucket,
    proxy: FaultProxy,
    twice: str,
    write: Literal["through", "back"],
) -> None:
    for name, data in DATA.items():
        remote_bucket.put(name, data)
    to = made_bucket(client, f"{bucket_name}-to", results, write)
    job = cold.transform(to.name, etl=twice, strip_prefix="in/", to_prefix="out/")
    assert (job.counts.seen, job.counts.transformed, job.counts.failed) == (31, 31, 0)
    to.flush(timeout_s=180)
    expected = {name.replace("in/", "out/"): data * 2 for name, data in DATA.items()}
    assert kept(results) == expected
    assert {info.name: to.get(info.name) for info in to.objects()} == expected
    metadata = to.head("out/07").metadata
    assert metadata["ais.etl-source"] == f"{cold.name}/in/07"
    assert metadata["ais.etl-source-version"] == f"etag:{cold.head('in/07').metadata['ais.remote-etag']}"

    proxy.forget()
    again = cold.transform(to.name, etl=twice, strip_prefix="in/", to_prefix="out/")
    assert (again.counts.transformed, again.counts.skipped) == (0, 31)
    cold.evict(), to.evict()
    again = cold.transform(to.name, etl=twice, strip_prefix="in/", to_prefix="out/")
    assert (again.counts.transformed, again.counts.skipped) == (0, 31)
    assert proxy.count("PUT") == proxy.count("POST") == 0

    remote_bucket.put("in/07", b"new")
    remote_bucket.delete("in/08")
    again = cold.transform(to.name, etl=twice, strip_prefix="in/", to_prefix="out/", synchronize=True)
    assert (again.counts.transformed, again.counts.skipped) == (1, 29)
    to.flush(timeout_s=180)
    del expected["out/08"]
    assert kept(results) == expected | {"out/07": b"newnew"}
    client.delete_bucket(to.name, force=True)


def test_failures_are_in_their_places_and_the_rest_is_uploaded(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, twice: str
) -> None:
    for name, data in {"a": b"1", "b": b"bad", "c": b"3", "d": b"4"}.items():
        remote_bucket.put(name, data)
    with (
        proxy.on("GET", remote_bucket.path("c"), Fault(status=403)),
        proxy.on("PUT", remote_bucket.path("to/d"), Fault(status=403)),
    ):
        job = cold.transform(cold.name, etl=twice, names=list("abcd"), to_prefix="to/", wait=False)
        with pytest.raises(errors.TransformIncomplete):
            job.wait(timeout_s=180)
    assert {one.name: type(one.error) for one in job.failures()} == {
        "b": errors.TransformFailed,
        "c": errors.RemoteDenied,
        "d": errors.RemoteDenied,
    }
    assert kept(remote_bucket)["to/a"] == b"11"
    eventually(lambda: not cold.warm(["c"], on_error="return").failures)  # readers share a failure for a second
    job = cold.transform(cold.name, etl=twice, names=list("acd"), to_prefix="to/")
    assert (job.counts.transformed, job.counts.skipped) == (2, 1)
    assert cold.copy("c", "once", etl=twice).size_bytes == 2
    assert remote_bucket.get("once") == b"33"


def test_a_job_ends_that_cannot_list_its_sources_or_write_its_results(
    client: Client, cold: Bucket, bucket_name: str, proxy: FaultProxy, twice: str
) -> None:
    web = client.create_bucket(f"{bucket_name}-web", remote=Remote("https://example.org/a"))
    with pytest.raises(errors.Unsupported, match="read-only"):
        cold.transform(web.name, etl=twice)
    for source in (web, cold):
        with proxy.on("GET", "*", Fault(status=403)):
            job = source.transform(cold.name, etl=twice, to_prefix="to/", prefix="in/", wait=False)
            with pytest.raises(errors.LoaderError, match=r"no listing|told to fail"):
                job.wait(timeout_s=180)
        assert job.state == "failed"
    client.delete_bucket(web.name, force=True)
