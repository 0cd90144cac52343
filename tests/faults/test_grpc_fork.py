"""Clients that are used before a fork work after it, in the parent and in every child.

Each case is a program of its own: what a fork inherits must be what the case has made, not what other tests left. All
of them look at the moment of every fork for threads of gRPC: a child hangs once in a hundred times that there are any.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # a process for each case, and more; datasets fork in the quick tests

FORKS = """
import atexit, contextlib, faulthandler, gc, multiprocessing, os, signal, sys, threading, warnings
def tell_stacks():  # see `run`; a file for each process, or two would write at once into one
    faulthandler.register(signal.SIGUSR1, file=open(f"{sys.argv[2]}/{os.getpid()}", "w"))
tell_stacks()
os.register_at_fork(after_in_child=tell_stacks)
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this is about
LEFT = []
def look():
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            if (name := file.read().strip()).startswith(("grpc_", "event_engine", "lifeguard")):
                LEFT.append(name)
os.register_at_fork(before=look)  # the first to be registered is the last to be called
atexit.register(lambda: LEFT and print("of gRPC at a fork:", LEFT, file=sys.stderr))
from ais_loader import ClusterOptions, connect, errors
"""

PROLOGUE = (
    FORKS
    + """
NAMES = [f"{at:03d}" for at in range(200)]
def content(name):
    return name.encode() * 20_000
EXPECTED = [content(name) for name in NAMES]
client = connect(sys.argv[1], options=ClusterOptions(retry_s=240.0))
bucket = client.bucket("b")
def read_all(names=NAMES):
    return [bytes(item.data) for item in bucket.get_batch(names, timeout_s=180.0)]
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
)


@pytest.fixture(scope="module", params=["node", "cluster"])
def filled(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder, contextlib.ExitStack() as held:
        if request.param == "node":
            url = held.enter_context(NodeProcess(folder / "drive")).url
        else:
            url = held.enter_context(ClusterProcesses(folder, 3)).url
        with connect(url, options=PATIENT_CLIENT) as client:
            bucket = client.create_bucket("b")
            bucket.put_many((name, name.encode() * 20_000) for name in (f"{at:03d}" for at in range(200)))
        yield url


CLUSTER_SLOW = pytest.mark.parametrize(
    "filled", ["node", pytest.param("cluster", marks=pytest.mark.slow)], indirect=True, scope="module"
)
"""Each case is a program, and what a cluster's client adds is more of the same connections."""


def run(url: str, program: str, *, prologue: str = PROLOGUE, timeout_s: float = 180.0) -> str:
    """What the program prints; it and its children must end by themselves, with code 0, and complain of nothing.

    What hangs says where, and is killed.
    """
    with tempfile.TemporaryDirectory() as stacks:
        command = [sys.executable, "-c", prologue + textwrap.dedent(program), url, stacks]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                printed, complaints = process.communicate(timeout=timeout_s)  # which waits for whoever may write there
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGUSR1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=12)  # every process of it writes its stacks
                os.killpg(process.pid, signal.SIGKILL)
                printed, complaints = process.communicate()
                said = "\n".join(path.read_text() for path in sorted(Path(stacks).iterdir()))
                pytest.fail(f"it hangs after {timeout_s:g} s\n{printed}\n{complaints}\n{said}")
    assert (process.returncode, complaints) == (0, ""), printed
    return printed.strip()


@CLUSTER_SLOW
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
            print(results.get(timeout=180) == [True] * 20, [bytes(first.data), *rest] == EXPECTED)
    """
    assert run(filled, program) == "True True"


@CLUSTER_SLOW
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
        codes = []
        while len(codes) < 10 or not (wrong or all(rounds)):
            codes.append(in_child(lambda: read_all(NAMES[:20]) == EXPECTED[:20]))
        stop.set()
        for thread in threads: thread.join(180)
        print(not any(codes), wrong, all(rounds))
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
        many = bucket.iter_put_many((f"many/{at:05d}", content("042")[:5000]) for at in range(4000))
        names = [next(many).name for _ in range(300)]
        putting.start()
        codes = [in_child(lambda: bucket.get("001") == content("001")) for _ in range(3)]
        names += [info.name for info in many]
        putting.join(180)
        print(codes, names == [f"many/{at:05d}" for at in range(4000)], bucket.get("large") == data, len(infos))
    """
    assert run(filled, program) == "[0, 0, 0] True True 1"


@CLUSTER_SLOW
def test_a_fork_waits_for_the_end_of_what_another_thread_has_closed(filled: str) -> None:
    program = """
        for _ in range(3):
            with connect(sys.argv[1]) as other:
                assert other.bucket("b").get("001") == content("001")
                closing = threading.Thread(target=other.close)
                closing.start()
                print(in_child(lambda: bucket.get("002") == content("002")))
                closing.join(180)
    """
    assert run(filled, program).split() == ["0"] * 3


@CLUSTER_SLOW
def test_a_fork_ends_what_dropped_clients_have_left(filled: str) -> None:
    program = """
        from ais_loader.testing import eventually
        def use():
            bucket = connect(sys.argv[1]).bucket("b")
            return bucket.get("001") == content("001") and len(list(bucket.get_batch(NAMES[:20]))) == 20
        for _ in range(2):
            assert use()
            gc.collect()
            print(in_child(use))
        for _ in range(4):
            assert use()
            gc.collect()
        def sessions():
            return [thread for thread in threading.enumerate() if thread.name.startswith("ais-loader session")]
        print(eventually(lambda: len(sessions()) <= 3))  # those of the last client, one for each node
    """
    assert run(filled, program).split() == ["0", "0", "True"]


ON_A_NODE = pytest.mark.parametrize("filled", ["node"], indirect=True, scope="module")


@ON_A_NODE
def test_a_call_that_takes_too_long_is_ended_by_a_fork_and_made_again(filled: str) -> None:
    program = """
        from ais_loader.testing import eventually
        from tests.faulty_link import FaultyLink
        from ais_loader.transport import fork_safety
        fork_safety.WAIT_S = 0.2
        sizes, failures = [], []
        def delete():
            try:
                far.delete("none")
            except errors.ObjectNotFound:
                failures.append("not found")
        with FaultyLink(sys.argv[1]) as link, connect(link.url, options=ClusterOptions(retry_s=240.0)) as client:
            far = client.bucket("b")
            far.head("000")
            link.stall()
            asking = [threading.Thread(target=lambda: sizes.append(far.head("001").size_bytes)),
                      threading.Thread(target=delete)]
            for thread in asking: thread.start()
            eventually(lambda: len(fork_safety.GATE._inside) == 2)
            codes = [in_child(lambda: read_all(NAMES[:20]) == EXPECTED[:20]) for _ in range(2)]
            link.flow()
            for thread in asking: thread.join(180)
            print(codes, sizes, failures)
    """
    assert run(filled, program) == "[0, 0] [60000] ['not found']"


@ON_A_NODE
def test_a_fork_ends_a_listing_and_the_look_whether_its_node_is_alive(filled: str) -> None:
    program = """
        from ais_loader.testing import eventually
        from tests.faulty_link import FaultyLink
        from ais_loader.transport import fork_safety
        from ais_loader.transport.grpc import watchdog
        from ais_loader.transport.cluster.transport import RemoteTransport
        from ais_loader.values.options import ClusterOptions
        from ais_loader.wire.generated.ais_objects_pb2 import ListRequest
        fork_safety.WAIT_S, watchdog.LOOK_S = 0.2, 0.05
        found, options = [], ClusterOptions(retry_s=240.0, lane="grpc")
        with FaultyLink(sys.argv[1]) as link, contextlib.closing(RemoteTransport(link.url, options)) as far:
            def names():
                request = ListRequest(bucket="b", page_size=1000)
                return len(far._any(lambda node: node.list_page(request, has_others=True)).object)
            before = names()
            link.stall()
            asking = threading.Thread(target=lambda: found.append(names()))
            asking.start()
            eventually(lambda: len(fork_safety.GATE._inside) == 2)
            codes = [in_child(lambda: read_all(NAMES[:20]) == EXPECTED[:20]) for _ in range(2)]
            link.flow()
            asking.join(180)
            print(codes, before >= 200, found == [before])
    """
    assert run(filled, program) == "[0, 0] True True"


@ON_A_NODE
def test_where_something_else_uses_grpc_a_fork_warns_once_and_does_not_wait_for_ever(filled: str) -> None:
    program = """
        import grpc
        from ais_loader.transport import fork_safety
        fork_safety.SHUTDOWN_S = fork_safety.SHARED_S = 0.1
        assert read_all(NAMES[:20]) == EXPECTED[:20]
        with grpc.insecure_channel(sys.argv[1].removeprefix("grpc://")) as other:
            grpc.channel_ready_future(other).result(180)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(2):
                    in_child(lambda: True)  # what gRPC's own handlers begin in there may crash it
                    print(bucket.get("001") == content("001"))
        print([(warning.category.__name__, warning.filename) for warning in seen
               if warning.category is not DeprecationWarning])
        assert LEFT
        LEFT.clear()
        fork_safety.SHUTDOWN_S = fork_safety.SHARED_S = 60.0  # now it ends, on a busy machine after some time
        print(in_child(lambda: read_all() == EXPECTED))
    """
    # gRPC itself remarks that it leaves a fork alone which finds its threads at work.
    program = program.replace("import grpc\n", "import grpc; os.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n")
    assert run(filled, program).splitlines() == ["True", "True", "[('RuntimeWarning', '<string>')]", "0"]


@ON_A_NODE
def test_a_fork_waits_for_the_modules_that_another_thread_imports_to_connect(filled: str) -> None:
    program = """
        import importlib.abc
        importing, forking = threading.Event(), threading.Event()
        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "ais_loader.transport.cluster.transport":
                    importing.set()
                    forking.wait(180)
                    threading.Event().wait(0.1)  # a slow disk
        sys.meta_path.insert(0, Slow())
        def use():
            with connect(sys.argv[1]) as client:
                return client.bucket("b").get("001") == b"001" * 20_000
        used = []
        using = threading.Thread(target=lambda: used.append(use()))
        using.start()
        assert importing.wait(180)
        forking.set()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if use() else 2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        using.join(180)
        print(used)
    """
    assert run(filled, program, prologue=FORKS).split() == ["0", "[True]"]


@pytest.mark.slow
@ON_A_NODE
def test_a_child_that_hangs_is_shown_and_killed(filled: str) -> None:
    program = """
        def wait_for_nothing():
            print(os.getpid(), flush=True)
            threading.Event().wait()
        in_child(wait_for_nothing)
    """
    with pytest.raises(pytest.fail.Exception, match=r"(?s)it hangs .*in wait_for_nothing.*in in_child") as shown:
        run(filled, program, timeout_s=25.0)
    child = int(str(shown.value).splitlines()[1])
    eventually(lambda: not os.path.exists(f"/proc/{child}"))
