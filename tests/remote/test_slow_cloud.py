"""A cloud that takes longer than a client or a peer waits for silence: whoever waits learns that the node is alive."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from storage_node.limits import single_flight
from storage_node.limits.single_flight import SingleFlight
from storage_node.remote import embedded
from storage_node.settings.config import ServerConfig
from tests.remote.conftest import SETTINGS, RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of, filled

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("assembly", "streaming"), [("direct", True), ("target", True), ("direct", False)])
def test_a_batch_waits_for_a_cold_entry_for_longer_than_silence_lasts(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, assembly: str, streaming: bool
) -> None:
    options = {"assembly": assembly, "streaming": streaming}

    def waits(number: int) -> bool:
        names = filled(remote_bucket, 8, f"{number}/")
        cold.get(names[0])
        with released(proxy, remote_bucket.path(names[3]), 12.0):  # longer than peer_timeout_s and this timeout
            items = client.get_batch([Entry(cold.name, name) for name in names], timeout_s=8.0, **options)
            assert [item.data.tobytes() for item in items] == [data_of(at) for at in range(8)]
        return proxy.count("GET", remote_bucket.path(names[3])) <= 2  # the second may be a hedge

    succeeds_once(waits)


def test_a_single_object_waits_as_well(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    def waits(number: int) -> bool:
        (name,) = filled(remote_bucket, 1, f"{number}/")
        with released(proxy, remote_bucket.path(name), 7.0):
            return cold.get(name, timeout_s=5.0) == data_of(0)

    succeeds_once(waits)


@contextlib.contextmanager
def released(proxy: FaultProxy, path: str, after_s: float) -> Iterator[None]:
    """Hold the requests for an object until this time has passed since the first one."""
    with proxy.held("GET", path) as held, ThreadPoolExecutor(1) as pool:

        def release() -> None:
            held.wait_for(1)
            time.sleep(after_s)  # the cloud is slow
            held.release()

        releasing = pool.submit(release)
        yield
        releasing.result(180)


def succeeds_once(waits: Callable[[int], bool]) -> None:
    """On a machine that stands still for as long as a timeout, a node is silent, too; but not each time."""
    failures = []
    for number in range(4):
        try:
            assert waits(number)
            return
        except errors.LoaderError as failure:
            failures.append(failure)
    raise AssertionError(failures)


def test_a_reader_that_comes_later_does_not_get_the_failure_of_a_fetch_begun_before(
    remote_bucket: RemoteBucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    filled(remote_bucket, 1)
    has_come, outlasted = threading.Event(), SingleFlight._outlasted

    async def noted(*arguments: Any) -> None:
        has_come.set()
        await outlasted(*arguments)

    monkeypatch.setattr(single_flight, "OLD_S", 0.0)
    monkeypatch.setattr(SingleFlight, "_outlasted", noted)
    monkeypatch.setattr(embedded, "ServerConfig", partial(ServerConfig, **SETTINGS, remote_retry_s=3.0))
    with connect(tmp_path / "store") as client, ThreadPoolExecutor(2) as pool:
        bucket = client.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        # Its first failure is told when the later reader has come.
        failure = Fault(status=500, call_after=(0, lambda: has_come.wait(180)))
        with proxy.on("GET", "*", failure) as failing:
            first = pool.submit(bucket.get, "en/000.bin")
            eventually(lambda: failing.matched > 0)
            later = pool.submit(bucket.get, "en/000.bin")
            assert has_come.wait(180)
            with pytest.raises(errors.RemoteUnavailable):
                first.result(180)
        assert later.result(180) == data_of(0)
