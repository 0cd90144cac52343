"""A cloud that takes longer than a client or a peer waits for silence: whoever waits learns that the node is alive."""

from __future__ import annotations

import threading
import time

import pytest

from ais_loader import Entry
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.test_remote_buckets import data_of, filled

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("assembly", "streaming"), [("direct", True), ("target", True), ("direct", False)])
def test_a_batch_waits_for_a_cold_entry_for_longer_than_silence_lasts(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, assembly: str, streaming: bool
) -> None:
    names = filled(remote_bucket, 8)
    cold.get(names[0])
    with proxy.held("GET", remote_bucket.path(names[3])) as held:
        threading.Timer(12.0, held.release).start()  # longer than peer_timeout_s and this timeout
        began_s = time.monotonic()
        options = {"assembly": assembly, "streaming": streaming}
        items = client.get_batch([Entry(cold.name, name) for name in names], timeout_s=8.0, **options)
        assert [item.data.tobytes() for item in items] == [data_of(at) for at in range(8)]
        assert time.monotonic() - began_s > 8.0
    assert proxy.count("GET", remote_bucket.path(names[3])) <= 2  # the second may be a hedge


def test_a_single_object_waits_as_well(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    filled(remote_bucket, 1)
    with proxy.held("GET", remote_bucket.path("en/000.bin")) as held:
        threading.Timer(7.0, held.release).start()
        assert cold.get("en/000.bin", timeout_s=5.0) == data_of(0)
