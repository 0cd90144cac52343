"""Single GETs over streams that their caller drives: the same by grpcio's native module and by its public API."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import SeededObjects, eventually, throwaway_folder
from ais_loader.transport.session import raw_stream as direct
from storage_node.server import NodeServer
from tests.faulty_link import FaultyLink
from tests.node.node_kit import bucket_of, serving
from tests.patience import PATIENT_CLIENT
from tests.table import table

OBJECTS = SeededObjects(
    {"empty": (0, 0), "small": (10_000, 1), "one frame": (3 << 20, 2), "pieces": ((9 << 20) + 17, 3)}
)


@pytest.fixture(scope="module")
def filled() -> Iterator[NodeServer]:
    with throwaway_folder() as folder, serving(folder) as node, bucket_of(node, "data") as bucket:
        bucket.put_many(OBJECTS.items())
        yield node


@pytest.fixture(params=["native", "public"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "public":
        monkeypatch.setattr(direct, "cygrpc", None)
    return str(request.param)


@pytest.fixture
def client(filled: NodeServer, kind: str) -> Iterator[Client]:
    with connect(filled.url, options=ClusterOptions(verify_payload=True, retry_s=240.0)) as client:
        yield client


def test_the_installed_grpcio_offers_the_native_stream() -> None:
    with grpc.insecure_channel("127.0.0.1:9") as channel:
        stream = direct.open_stream(channel, "/ais_loader.v1.GetBatch/Session")
        assert isinstance(stream, direct.DirectStream)
        with pytest.raises(EOFError):  # nobody listens there
            stream.exchange(b"")
        stream.close()


def test_objects_of_every_size_arrive_whole_again_and_again(client: Client) -> None:
    bucket = client.bucket("data")
    for _ in range(3):
        assert {name: bucket.get(name) for name in OBJECTS} == OBJECTS


def test_an_object_that_is_missing_is_an_error_and_harms_no_later_get(client: Client) -> None:
    bucket = client.bucket("data")
    for _ in range(3):
        with pytest.raises(errors.ObjectNotFound):
            bucket.get("nowhere")
        assert bucket.get("small") == OBJECTS["small"]


@pytest.mark.slow
def test_many_threads_get_their_own_answers(client: Client) -> None:
    bucket = client.bucket("data")
    names = ["empty", "small", "one frame"] * 60
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(bucket.get, names, timeout=180)) == [OBJECTS[name] for name in names]


@pytest.mark.slow
def test_a_silent_node_is_a_timeout_and_the_next_get_works(filled: NodeServer, kind: str) -> None:
    with FaultyLink(filled.url) as link, connect(link.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("data")
        assert bucket.get("small") == OBJECTS["small"]
        link.stall()
        with pytest.raises(errors.SilenceTimeout, match=r"0\.4 s"):
            bucket.get("small", timeout_s=0.4)
        link.flow()
        assert bucket.get("small") == OBJECTS["small"]


@pytest.mark.slow
@table("after_bytes", [1, 500, 5_000, 1 << 20, 6 << 20])
def test_a_connection_cut_in_the_answer_is_made_good(filled: NodeServer, kind: str, after_bytes: int) -> None:
    with FaultyLink(filled.url) as link, connect(link.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("data")
        assert bucket.get("small") == OBJECTS["small"]
        link.cut_after(after_bytes)
        assert bucket.get("pieces") == OBJECTS["pieces"]
        assert link.connections_made >= 2


def test_closing_the_client_ends_a_get_that_waits(filled: NodeServer, kind: str) -> None:
    with (
        FaultyLink(filled.url) as link,
        connect(link.url, options=PATIENT_CLIENT) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        bucket = client.bucket("data")
        bucket.get("small")
        link.stall()
        waiting = pool.submit(bucket.get, "one frame", timeout_s=60.0)
        before = link.bytes_to_node
        eventually(lambda: waiting.running() and link.bytes_to_node >= before)
        client.close()
        with pytest.raises(errors.Closed):
            waiting.result(timeout=180)


PROGRAM = """
import os, signal, sys, threading
from ais_loader import connect
from ais_loader.transport.session import raw_stream as direct
from ais_loader.transport.fork_safety import wait_for_shutdown
if sys.argv[2] == "public":
    direct.cygrpc = None
client = connect(sys.argv[1])
bucket = client.bucket("data")
"""


def run(program: str, node: NodeServer, kind: str) -> str:
    command = [sys.executable, "-c", PROGRAM + program, node.url, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.slow
def test_a_closed_client_leaves_nothing_of_grpc_behind(filled: NodeServer, kind: str) -> None:
    program = """
threads = [threading.Thread(target=lambda: [bucket.get("small") for _ in range(50)]) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
try:
    bucket.get("nowhere")
except Exception:
    pass
client.close()
print(wait_for_shutdown(120.0))
"""
    assert run(program, filled, kind) == "True"


@pytest.mark.slow
def test_an_interrupt_ends_a_get_and_not_the_client(filled: NodeServer, kind: str) -> None:
    program = """
from ais_loader.testing import eventually
from tests.faulty_link import FaultyLink
with FaultyLink(sys.argv[1]) as link:
    with connect(link.url) as client:
        bucket = client.bucket("data")
        bucket.get("small")
        link.stall()
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            bucket.get("small", timeout_s=50.0)
        except KeyboardInterrupt:
            print("interrupted")
        link.flow()
        print(len(bucket.get("small")))
client.close()
"""
    assert run(program, filled, kind).split() == ["interrupted", "10000"]
