"""Clients that are used before a fork work after it, in the parent and in every child.

Each case is a program of its own: what a fork inherits must be what the case has made, not what other tests left.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess, throwaway_folder
from ais_loader.testing.cluster import ClusterProcesses

PROLOGUE = """
import gc, multiprocessing, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this is about
from ais_loader import connect, errors
NAMES = [f"{at:03d}" for at in range(200)]
def content(name):
    return name.encode() * 20_000
EXPECTED = [content(name) for name in NAMES]
client = connect(sys.argv[1], retry_s=20.0)
bucket = client.bucket("b")
def read_all(names=NAMES):
    return [bytes(item.data) for item in bucket.get_batch(names, timeout_s=20.0)]
def in_child(work, leave=os._exit):
    "Run work() in a forked child; its exit code, 0 when it returned True."
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            leave(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.fixture(scope="module", params=["node", "cluster"])
def filled(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder, contextlib.ExitStack() as held:
        if request.param == "node":
            url = held.enter_context(NodeProcess(folder / "drive")).url
        else:
            url = held.enter_context(ClusterProcesses(folder, 3)).url
        with connect(url) as client:
            bucket = client.create_bucket("b")
            list(bucket.put_many((name, name.encode() * 20_000) for name in (f"{at:03d}" for at in range(200))))
        yield url


CLUSTER_SLOW = pytest.mark.parametrize(
    "filled", ["node", pytest.param("cluster", marks=pytest.mark.slow)], indirect=True, scope="module"
)
"""Each case is a program, and what a cluster's client adds is more of the same connections."""


def run(url: str, program: str) -> str:
    """What the program prints; it must end by itself, with code 0, and complain of nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(program), url], capture_output=True, text=True, timeout=60
    )
    # gRPC remarks that it leaves a fork alone which finds its threads at work; connection.py sees to those itself.
    complaints = [line for line in done.stderr.splitlines() if "skipping fork() handlers" not in line]
    assert (done.returncode, complaints) == (0, []), done.stdout
    return done.stdout.strip()


def test_a_child_reads_and_writes_and_the_parent_goes_on(filled: str) -> None:
    program = """
        assert read_all() == EXPECTED
        def work():
            bucket.put(f"child/{os.getpid()}", b"x" * 100)
            return read_all() == EXPECTED and bucket.get("003") == content("003") and bucket.head("004").size_bytes > 0
        print([in_child(work) for _ in range(3)], read_all() == EXPECTED, bucket.get("005") == content("005"))
    """
    assert run(filled, program) == "[0, 0, 0] True True"


def test_a_batch_that_is_half_read_at_the_fork_goes_on_in_the_parent_and_is_closed_in_the_child(filled: str) -> None:
    program = """
        batch = bucket.get_batch(NAMES * 3)
        received = [bytes(next(batch).data) for _ in range(150)]
        def work():
            try:
                for _ in range(len(NAMES) * 3):
                    next(batch)
            except errors.Closed:
                return read_all() == EXPECTED
        print(in_child(work))
        received += [bytes(item.data) for item in batch]
        print(received == EXPECTED * 3)
    """
    assert run(filled, program).split() == ["0", "True"]


@CLUSTER_SLOW
def test_a_child_that_exits_in_the_ordinary_way_does_so_cleanly(filled: str) -> None:
    program = """
        held = bucket.get_batch(NAMES)
        first = next(held)
        def work():
            global held
            held = None
            gc.collect()
            return read_all() == EXPECTED
        pid = os.fork()
        if pid == 0:
            ok = work()
            sys.exit(0 if ok else 3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sum(1 for _ in held))
    """
    assert run(filled, program).split() == ["0", "199"]


@CLUSTER_SLOW
def test_a_forked_pool_shares_the_object_and_not_the_connection(filled: str) -> None:
    program = """
        def work(seed):
            order = NAMES[seed * 10:] + NAMES[:seed * 10]
            return read_all(order) == [content(name) for name in order] and bucket.get(order[0]) == content(order[0])
        assert read_all() == EXPECTED
        batch = bucket.get_batch(NAMES)
        first = next(batch)
        with multiprocessing.get_context("fork").Pool(4) as pool:
            results = pool.map_async(work, range(20))
            rest = [bytes(item.data) for item in batch]
            print(results.get(timeout=50) == [True] * 20, [bytes(first.data), *rest] == EXPECTED)
    """
    assert run(filled, program) == "True True"


def test_threads_read_on_while_the_process_forks_again_and_again(filled: str) -> None:
    program = """
        stop, rounds, wrong = threading.Event(), [0] * 3, []
        def keep_reading(number):
            while not stop.is_set():
                try:
                    if read_all() != EXPECTED or bucket.get("007") != content("007"):
                        wrong.append("bytes")
                except Exception as error:
                    wrong.append(repr(error))
                    return
                rounds[number] += 1
        threads = [threading.Thread(target=keep_reading, args=(number,)) for number in range(3)]
        for thread in threads: thread.start()
        codes = [in_child(lambda: read_all(NAMES[:20]) == EXPECTED[:20]) for _ in range(10)]
        stop.set()
        for thread in threads: thread.join(40)
        print(codes == [0] * 10, wrong, all(rounds))
    """
    assert run(filled, program) == "True [] True"


@CLUSTER_SLOW
def test_a_stream_that_is_half_read_at_the_fork_goes_on_in_the_parent_and_is_closed_in_the_child(filled: str) -> None:
    program = """
        data = os.urandom(30_000_000)
        bucket.put("long", data)
        with bucket.reader("long") as reader:
            first = reader.read(1_000_000)
            def work():
                try:
                    reader.read()
                except errors.Closed:
                    return bucket.get("001") == content("001")
            print([in_child(work) for _ in range(2)], first + reader.read() == data)
    """
    assert run(filled, program) == "[0, 0] True"


@CLUSTER_SLOW
def test_a_child_of_a_child_works_too(filled: str) -> None:
    program = """
        assert read_all() == EXPECTED
        def work():
            return read_all() == EXPECTED and in_child(lambda: read_all() == EXPECTED) == 0 and read_all() == EXPECTED
        print(in_child(work), read_all() == EXPECTED)
    """
    assert run(filled, program) == "0 True"


@CLUSTER_SLOW
def test_a_client_closed_before_the_fork_is_closed_in_the_child(filled: str) -> None:
    program = """
        assert read_all() == EXPECTED
        client.close()
        def work():
            try:
                bucket.get("000")
            except errors.Closed:
                return True
        print(in_child(work))
    """
    assert run(filled, program) == "0"


@CLUSTER_SLOW
def test_writes_under_way_at_the_fork_end_whole(filled: str) -> None:
    program = """
        data = os.urandom(30_000_000)
        putting = threading.Thread(target=lambda: infos.append(bucket.put("large", data)))
        infos = []
        many = bucket.put_many((f"many/{at:05d}", content("042")[:5000]) for at in range(4000))
        names = [next(many).name for _ in range(300)]
        putting.start()
        codes = [in_child(lambda: bucket.get("001") == content("001")) for _ in range(3)]
        names += [info.name for info in many]
        putting.join(50)
        print(codes, names == [f"many/{at:05d}" for at in range(4000)], bucket.get("large") == data, len(infos))
    """
    assert run(filled, program) == "[0, 0, 0] True True 1"
