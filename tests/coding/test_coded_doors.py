"""Coded objects through every door of a store: the same bytes in the same order, with all nodes and with two of six
killed."""

from __future__ import annotations

import io
import random
import tarfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from ais_loader import Client, Entry, connect
from ais_loader.integrations.gateway.clients import Clients
from ais_loader.testing import eventually, throwaway_folder
from tests.cluster_processes import ClusterProcesses
from tests.coding.test_coding_kills import progress
from tests.faults.fault_kit import serve_all, take_snapshot
from tests.gateway.aistore.conftest import Ais
from tests.gateway.command_kit import s3_at
from tests.gateway.conftest import ACCOUNT
from tests.gateway.gateway_thread import GatewayThread
from tests.patience import PATIENT_CLIENT
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow  # real processes, killed

BUCKET, NODES = "b", 6
DRAW = random.Random(11)
SMALL = {f"s/{at:03}": DRAW.randbytes(DRAW.randrange(1, 60_000)) for at in range(250)} | {"empty": b""}
MEMBERS = {f"m{at:02}": DRAW.randbytes(DRAW.randrange(1, 300_000)) for at in range(20)}
PART_BYTES = 5 << 20
PARTS = [DRAW.randbytes(PART_BYTES), DRAW.randbytes(PART_BYTES), DRAW.randbytes(100_001)]
OBJECTS = SMALL | {"large": DRAW.randbytes(9_000_001), "s.tar": packed_tar(MEMBERS), "parts": b"".join(PARTS)}
FAR = {f"f{at}": DRAW.randbytes(5000) for at in range(80)}
"""Objects of a remote bucket. Each door and state reads cold ones."""
REPLACED = ["s/000", "s/001", "large"]
"""They have other bytes now than in the snapshot."""
NOW = OBJECTS | {name: b"new " + name.encode() for name in REPLACED}


class Served(NamedTuple):
    cluster: ClusterProcesses
    client: Client
    node_url: str
    gateway: str
    read: set[str]
    """Objects of the remote bucket that were read."""

    def s3(self) -> Any:
        return s3_at(self.gateway, ACCOUNT.access_key, ACCOUNT.secret_key)

    def ais(self) -> Ais:
        return Ais(int(self.gateway.rpartition(":")[2]))


@pytest.fixture(scope="module")
def whole() -> Iterator[Served]:
    """Six nodes, and a gateway, with all objects put and coded, but for less than a group on each node."""
    with ExitStack() as held:
        folder, far = (held.enter_context(throwaway_folder()) for _ in range(2))
        words = {"coding_delay_s": 0.0, "etl_code": "true", "repair_interval_s": 1.0, "remote_file_roots": far}
        arguments = [word for key, value in words.items() for word in ("--set", f"{key}={value}")]
        cluster = held.enter_context(ClusterProcesses(folder, NODES, arguments=arguments))
        client = held.enter_context(connect(cluster.url, options=PATIENT_CLIENT))
        bucket = client.create_bucket(BUCKET, redundancy="rs:4+2")
        clients = Clients(cluster.url, [ACCOUNT])
        held.callback(clients.close)
        gateway = held.enter_context(GatewayThread(clients, {ACCOUNT.access_key: ACCOUNT})).url
        served = Served(cluster, client, f"node://{folder}/node-0/drive-0", gateway, set())
        for name, data in FAR.items():
            (far / name).write_bytes(data)
        client.create_bucket("far", remote=f"file://{far}", copies=3)
        upload(served.s3())
        bucket.put_many((name, data) for name, data in OBJECTS.items() if name != "parts")
        least_bytes = sum(map(len, OBJECTS.values())) - NODES * 4 * (64 << 10)
        eventually(lambda: sum(progress(node).bytes_coded for node in cluster.nodes) > least_bytes)
        take_snapshot(bucket, "then")
        bucket.put_many((name, NOW[name]) for name in REPLACED)
        client.etl.init("turned", lambda data: bytes(data)[::-1])
        yield served


@pytest.fixture(scope="module", params=["all nodes", "two killed"])
def served(request: pytest.FixtureRequest, whole: Served) -> Iterator[Served]:
    serve_all(whole.cluster)  # on a busy machine a write may have missed owners
    if request.param == "two killed":
        whole.cluster.kill([2, 4])  # not node 0, which `node://` reaches
    yield whole
    whole.cluster.start()


def upload(s3: Any) -> None:
    at = {"Bucket": BUCKET, "Key": "parts"}
    at["UploadId"] = s3.create_multipart_upload(**at)["UploadId"]
    etags = [s3.upload_part(**at, PartNumber=n, Body=part)["ETag"] for n, part in enumerate(PARTS, 1)]
    made = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    s3.complete_multipart_upload(**at, MultipartUpload={"Parts": made})


def shuffled(count: int = len(NOW), seed: int = 0) -> list[str]:
    return random.Random(seed).sample(list(NOW), count)


def ranges() -> list[tuple[str, int, int]]:
    drawn = random.Random(1)
    found = [("large", 0, 5), ("parts", PART_BYTES - 3, 7), ("parts", 0, len(NOW["parts"])), ("empty", 0, 0)]
    for name in [*shuffled(60, seed=2), *["parts"] * 10]:
        start = drawn.randrange(len(NOW[name]) + 1)
        found.append((name, start, drawn.randrange(len(NOW[name]) - start + 1)))
    return found


def a_batch(served: Served, url: str = "", **options: Any) -> None:
    names = [*shuffled(), "none", *shuffled(20, seed=3)]
    with ExitStack() as held:
        client = held.enter_context(connect(url, options=PATIENT_CLIENT)) if url else served.client
        found = list(client.bucket(BUCKET).get_batch(names, on_error="placeholder", **options))
    if options.get("ordered", True):
        assert [item.index for item in found] == list(range(len(names)))
    assert sorted(item.index for item in found) == list(range(len(names)))
    for item in found:
        name = names[item.index]
        assert item.status.name == ("OK" if name in NOW else "NOT_FOUND"), item
        assert name not in NOW or item.tobytes() == NOW[name], name


def of_the_node(served: Served) -> None:
    a_batch(served, served.node_url)
    with connect(served.node_url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(BUCKET)
        assert [bucket.get(name) for name in shuffled(20)] == [NOW[name] for name in shuffled(20)]
        assert bucket.get("parts", start=PART_BYTES - 5, length=10) == NOW["parts"][PART_BYTES - 5 : PART_BYTES + 5]


def single_objects(served: Served) -> None:
    bucket = served.client.bucket(BUCKET)
    for name in [*shuffled(30, seed=4), "parts", "s.tar", "empty"]:
        assert bucket.get(name) == NOW[name], name
        assert bucket.head(name).size_bytes == len(NOW[name])
    assert {info.name: info.size_bytes for info in bucket.objects()} == {name: len(data) for name, data in NOW.items()}


def ranges_in_a_batch(served: Served, **options: Any) -> None:
    entries = [Entry(BUCKET, name, start=start, length=length) for name, start, length in ranges()]
    found = [item.tobytes() for item in served.client.get_batch(entries, **options)]
    assert found == [NOW[name][start : start + length] for name, start, length in ranges()]


def an_object_file(served: Served) -> None:
    bucket = served.client.bucket(BUCKET)
    for name, start, length in [*ranges()[:20], ("parts", PART_BYTES - 1, 2)]:
        with bucket.open(name) as file:
            file.seek(start)
            assert file.read(length) == NOW[name][start : start + length], (name, start, length)
    with bucket.open("s.tar") as file, tarfile.open(fileobj=file) as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar} == MEMBERS  # type: ignore[union-attr]


def members_and_their_ranges(served: Served, bucket: str = BUCKET) -> None:
    names = random.Random(5).sample(list(MEMBERS), len(MEMBERS))
    mixed = [entry for name in names for entry in (Entry(bucket, "s.tar", name), Entry(bucket, "s/002"))]
    found = [item.tobytes() for item in served.client.get_batch(mixed)]
    assert found == [data for name in names for data in (MEMBERS[name], NOW["s/002"])]
    cuts = {name: random.Random(name).randrange(len(MEMBERS[name])) for name in names}
    cut = [Entry(bucket, "s.tar", name, start=start, length=1) for name, start in cuts.items()]
    assert [item.tobytes() for item in served.client.get_batch(cut)] == [
        MEMBERS[name][start : start + 1] for name, start in cuts.items()
    ]


def a_snapshot(served: Served) -> None:
    names = [*REPLACED, *shuffled(50, seed=6)]
    then = served.client.bucket(f"{BUCKET}@then")
    assert [item.tobytes() for item in then.get_batch(names)] == [OBJECTS[name] for name in names]
    assert then.get("large", start=8_999_990) == OBJECTS["large"][8_999_990:]
    entries = [Entry(bucket, name) for name in names for bucket in (BUCKET, then.name)]
    found = [item.tobytes() for item in served.client.get_batch(entries)]
    assert found == [content[name] for name in names for content in (NOW, OBJECTS)]
    members_and_their_ranges(served, then.name)


def a_batch_with_a_remote_bucket(served: Served, assembly: str) -> None:
    cold = [name for name in FAR if name not in served.read][:12]
    served.read.update(cold)
    pairs = list(zip(cold, shuffled(len(cold), seed=12), strict=True))
    entries = [entry for far, name in pairs for entry in (Entry("far", far), Entry(BUCKET, name))]
    found = [item.tobytes() for item in served.client.get_batch(entries, assembly=assembly)]
    assert found == [data for far, name in pairs for data in (FAR[far], NOW[name])]


def inline_transforms(served: Served) -> None:
    names = [*shuffled(30, seed=7), "parts"]
    entries = [Entry(BUCKET, name, etl=etl) for name in names for etl in ("turned", None)]
    found = [item.tobytes() for item in served.client.get_batch(entries)]
    assert found == [data for name in names for data in (NOW[name][::-1], NOW[name])]
    assert served.client.bucket(BUCKET).get("s/005", etl="turned") == NOW["s/005"][::-1]


def a_job_into_a_bucket(served: Served) -> None:
    to = served.client.create_bucket(f"to-{uuid.uuid4().hex}", copies=3)
    job = served.client.bucket(BUCKET).transform(to.name, etl="turned", prefix="s/")
    names = [name for name in NOW if name.startswith("s/")]
    assert (job.counts.seen, job.counts.failed) == (len(names), 0)
    assert [item.tobytes() for item in to.get_batch(names)] == [NOW[name][::-1] for name in names]


def the_gateway_for_s3(served: Served) -> None:
    s3 = served.s3()
    for name in [*shuffled(20, seed=8), "parts", "empty"]:
        assert s3.get_object(Bucket=BUCKET, Key=name)["Body"].read() == NOW[name], name
    for name, start, length in ranges():
        if length:
            sent = s3.get_object(Bucket=BUCKET, Key=name, Range=f"bytes={start}-{start + length - 1}")
            assert sent["Body"].read() == NOW[name][start : start + length], (name, start, length)
    tail = s3.get_object(Bucket=BUCKET, Key="parts", Range="bytes=-7")["Body"].read()
    assert tail == NOW["parts"][-7:]
    assert s3.get_object(Bucket=BUCKET, Key="parts", PartNumber=2)["Body"].read() in (PARTS[1], NOW["parts"])


def the_api_of_aistore(served: Served) -> None:
    ais = served.ais()
    for name in [*shuffled(20, seed=9), "parts"]:
        assert ais.get(BUCKET, name).body == NOW[name], name
    assert ais.get(BUCKET, "parts", {"Range": "bytes=10-19"}).body == NOW["parts"][10:20]
    assert ais.get(BUCKET, "s.tar", archpath="m07").body == MEMBERS["m07"]
    names = shuffled(40, seed=10)
    entries = [{"objname": name, "bucket": BUCKET, "provider": "ais"} for name in names]
    answer = ais("GET", "ml/moss", {"in": entries, "strm": True, "mime": ".tar"})
    assert answer.status == 200, answer
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        found = [tar.extractfile(member).read() for member in tar]  # type: ignore[union-attr]
    assert found == [NOW[name] for name in names]


DOORS: dict[str, Callable[[Served], None]] = {
    "direct": partial(a_batch, assembly="direct"),
    "target": partial(a_batch, assembly="target"),
    "auto": a_batch,
    "unordered": partial(a_batch, ordered=False),
    "buffered": partial(a_batch, streaming=False),
    "node": of_the_node,
    "single": single_objects,
    "ranges": ranges_in_a_batch,
    "ranges, direct": partial(ranges_in_a_batch, assembly="direct"),
    "ranges, verified": partial(ranges_in_a_batch, verify_ranges=True),
    "file": an_object_file,
    "members": members_and_their_ranges,
    "snapshot": a_snapshot,
    **{f"remote, {how}": partial(a_batch_with_a_remote_bucket, assembly=how) for how in ("auto", "direct", "target")},
    "transforms": inline_transforms,
    "job": a_job_into_a_bucket,
    "s3": the_gateway_for_s3,
    "aistore": the_api_of_aistore,
}


@pytest.mark.parametrize("door", DOORS)
def test_each_door_gives_the_bytes_that_were_put_in_the_order_that_was_asked(served: Served, door: str) -> None:
    DOORS[door](served)
