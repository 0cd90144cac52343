"""The short form: a data set named by its place in the cloud, read through a node that is started on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Remote, connect, errors
from ais_loader.testing.node import NodeProcess
from ais_loader.training.process_client import split_place
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of, filled
from tests.table import table


@pytest.fixture
def node_url(remote_bucket: RemoteBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A node that is started on demand, whose environment leads to the test's proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", remote_bucket.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", remote_bucket.endpoint)
    yield f"node://{tmp_path}/cache"
    pid = tmp_path / "cache" / "node" / "pid"
    if pid.exists() and (text := pid.read_text().strip()):
        os.kill(int(text), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.fresh_process
def test_a_dataset_is_named_by_its_place(node_url: str, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    from torch.utils.data import DataLoader

    from ais_loader import MapDataset

    names = filled(remote_bucket, 24)
    filled(remote_bucket, 3, "fr/")
    dataset = MapDataset(node_url, f"{remote_bucket.url}/en/")
    loader = DataLoader(dataset, batch_size=5, num_workers=2, shuffle=True, collate_fn=list)
    for _ in range(2):
        samples = [sample for batch in loader for sample in batch]
        assert sorted(samples) == sorted(data_of(at) for at in range(24))
    assert all(proxy.count("GET", remote_bucket.path(name)) for name in names)
    with connect(node_url) as client:
        # A busy machine is slow to answer some, which are requested a second time.
        assert sum(row.requests.get("get", 0) - row.hedged for row in client.remote_usage()) == 24
        (info,) = client.buckets()
        assert info.name == f"s3-{remote_bucket.name}" and info.remote is not None
        assert info.remote.url == remote_bucket.url
    again = MapDataset(node_url, f"{remote_bucket.url}/fr/")
    assert [again[at] for at in range(3)] == [data_of(at) for at in range(3)]


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_fetches_is_started_again(
    node_url: str, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    from ais_loader import MapDataset

    names = filled(remote_bucket, 6)
    dataset = MapDataset(node_url, f"{remote_bucket.url}/en/")
    assert dataset[0] == data_of(0)
    with proxy.held("GET", remote_bucket.path(names[3]), times=1) as held, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [dataset[at] for at in range(6)])
        held.wait_for(1)
        os.kill(int((Path(node_url.removeprefix("node://")) / "node" / "pid").read_text()), signal.SIGKILL)
        assert reading.result(180) == [data_of(at) for at in range(6)]
    counts = [proxy.count("GET", remote_bucket.path(name)) for name in names]
    assert all(counts) and counts[3] >= 2  # a busy machine may have one requested a second time


@pytest.mark.slow
def test_a_client_with_other_keys_or_another_endpoint_gets_a_node_that_has_them(
    node_url: str, remote_bucket: RemoteBucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = filled(remote_bucket, 1)
    folder = Path(node_url.removeprefix("node://")) / "node"

    def pid() -> int:
        return int((folder / "pid").read_text())

    with FaultProxy(remote_bucket.s3.endpoint) as former, former.on("GET", "*", Fault(status=403)):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", former.url)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "former-secret")
        with connect(node_url) as client:
            with pytest.raises(errors.RemoteDenied):
                client.create_bucket("corpus", remote=Remote(remote_bucket.url)).get(name)
            first = pid()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", remote_bucket.endpoint)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "new-secret")
        with connect(node_url) as client:
            bucket = client.bucket("corpus")
            assert bucket.get(name) == data_of(0)
            assert (second := pid()) != first
            with bucket.get_batch([name]) as batch:
                assert [bytes(item.data) for item in batch] == [data_of(0)]
                with monkeypatch.context() as third:
                    third.setenv("AWS_REGION", "eu-central-1")
                    third.setenv("AWS_SECRET_ACCESS_KEY", "third-secret")
                    with pytest.raises(errors.Unsupported) as refused:
                        connect(node_url).buckets()
                    third.delenv("AWS_REGION")
                    third.delenv("AWS_SECRET_ACCESS_KEY")
                    with connect(node_url) as other:  # without any, it uses the node's
                        assert other.bucket(bucket.name).get(name) == data_of(0)
        assert "AWS_REGION, AWS_SECRET_ACCESS_KEY: " in str(refused.value) and f"`kill {second}`" in str(refused.value)
    known = (folder / "address").read_text() + (folder / "log").read_text() + str(refused.value)
    assert not [secret for secret in ("former-secret", "new-secret", "third-secret") if secret in known]


_TRAINER = """
import sys
from ais_loader import Entry, connect
with connect(sys.argv[1]) as client:
    print("reads", flush=True)
    list(client.get_batch([Entry("train", name) for name in sys.argv[2:]]))
"""


@pytest.mark.slow
def test_a_trainer_that_is_killed_while_objects_are_fetched_leaves_the_node_to_others(
    s3: object, remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    names = filled(remote_bucket, 4)
    with NodeProcess(tmp_path / "drive", arguments=ANY_HOST) as node, connect(node.url) as client:
        bucket = client.create_bucket("train", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        command = [sys.executable, "-c", _TRAINER, node.url, *names]
        with proxy.held("GET", remote_bucket.path(names[1])) as held:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
                assert trainer.stdout is not None and trainer.stdout.readline() == "reads\n"
                held.wait_for(1)
                trainer.kill()
            held.release()
        assert [bucket.get(name) for name in names] == [data_of(at) for at in range(4)]
        for name in names:
            assert proxy.count("GET", remote_bucket.path(name)) <= 2
        assert [info.is_stored for info in bucket.objects()] == [True] * 4


def test_an_embedded_store_is_refused_with_the_way_out(tmp_path: Path) -> None:
    from ais_loader import MapDataset

    with pytest.raises(errors.InvalidRequest, match="node:///"):
        MapDataset(tmp_path / "store", "s3://corpus/en/")


@table(
    ("url", "place", "name", "prefix"),
    [
        ("s3://corpus/v3/en/", "s3://corpus", "s3-corpus", "v3/en/"),
        ("gs://corpus", "gs://corpus", "gs-corpus", ""),
        ("https://host.example:8443/a/", "https://host.example:8443", None, "a/"),
        ("file:///data/x", "file:///data/x", None, ""),
    ],
)
def test_a_place_is_split(url: str, place: str, name: str | None, prefix: str) -> None:
    remote, found, rest = split_place(url)
    assert (remote.url, rest) == (place, prefix)
    assert found == name or ((name is None and len(found) <= 63 and found != split_place(url + "y")[1]) or prefix)
