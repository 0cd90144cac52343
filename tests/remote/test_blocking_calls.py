"""Blocking calls: a GET waits in a thread while one is free, and on the event loop otherwise, for the same bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect
from storage_node.remote.drivers import cloud_driver
from storage_node.remote.drivers.cloud_driver import BlockingCalls
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.test_remote_buckets import data_of, filled

SILENT_S = 180.0


def test_objects_come_while_all_threads_wait(
    remote_bucket: RemoteBucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cloud_driver, "CALLS", BlockingCalls(1))
    names = filled(remote_bucket, 8)
    with connect(tmp_path / "store") as client:
        bucket = client.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        assert bucket.get(names[0]) == data_of(0)  # in the thread
        with proxy.held("GET", remote_bucket.path(names[1])) as held:
            first = threading.Thread(target=bucket.get, args=(names[1],))
            first.start()
            held.wait_for(1)
            items = client.get_batch([Entry("b", name) for name in names[2:]])
            assert [item.data.tobytes() for item in items] == [data_of(at) for at in range(2, 8)]
            held.release()
            first.join()
        assert [bucket.get(name) for name in names] == [data_of(at) for at in range(8)]


_SCRIPT = """
import sys, threading
from functools import partial
from ais_loader import Remote, connect
from storage_node.remote import embedded
patient = {f"remote_{name}": 3600.0 for name in ("timeout_s", "retry_s", "fetch_timeout_s")}
embedded.ServerConfig = partial(embedded.ServerConfig, **patient)
client = connect(sys.argv[1], mode="a")
bucket = client.create_bucket("b", remote=Remote(sys.argv[2], endpoint=sys.argv[3]))
threading.Thread(target=bucket.get, args=(sys.argv[4],), daemon=True).start()
sys.stdin.readline()
print("ends", flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_while_the_cloud_is_silent(
    remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    (name,) = filled(remote_bucket, 1)
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "store"), remote_bucket.url, remote_bucket.endpoint, name]
    with (
        proxy.held("GET", remote_bucket.path(name)) as held,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        held.wait_for(1)
        output, _ = process.communicate("\n", SILENT_S)  # the answer would be waited for longer
        assert (output, process.returncode) == ("ends\n", 0)
