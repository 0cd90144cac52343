"""Workers: what they make, and every way in which a transform can fail without more than its object being lost.

Long because each way needs a transform that fails so, written out beside its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ais_loader.errors import (
    TransformError,
    TransformFailed,
    TransformGone,
    TransformNotFound,
    TransformRefused,
    TransformTimeout,
)
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.backoff import Backoff
from storage_node.etl.values import Content, Origin, Spool
from storage_node.etl.worker import stage
from tests.etl.worker_kit import ORIGIN, call, of_command, of_function, run_one, transforms_of

MiB = 1 << 20


def upper(data: memoryview) -> bytes:
    return bytes(data).upper()


# -- what they make


@pytest.mark.slow
def test_bytes_of_any_size_pass_through(tmp_path: Path) -> None:
    async def run() -> None:
        async with transforms_of(tmp_path, of_function(lambda data: bytes(data)[::-1])) as transforms:
            for size in (0, 1, 64 << 10, (64 << 10) + 1, 3 * MiB, 9 * MiB):
                data = seeded_bytes(size, seed=size)
                made = await transforms.run(call(), ORIGIN, Content.of(data))
                assert bytes(made.read(0, made.size_bytes)) == data[::-1], size
                made.close()

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
def test_an_input_that_is_a_file_is_read_from_where_it_begins(tmp_path: Path) -> None:
    data = seeded_bytes(6 * MiB, seed=1)
    (tmp_path / "object").write_bytes(b"head" + data + b"tail")

    async def run(function: Any, **fields: Any) -> bytes:
        async with transforms_of(tmp_path, of_function(function, **fields)) as transforms:
            fd = os.open(tmp_path / "object", os.O_RDONLY)
            content = Content(len(data), 0, fd=fd, offset=4)
            made = await transforms.run(call(), ORIGIN, content)
            assert content.fd == -1  # closed
            return bytes(made.read(0, made.size_bytes))

    def by_path(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    assert asyncio.run(run(lambda data: bytes(data))) == data
    assert asyncio.run(run(lambda chunks: (bytes(chunk) for chunk in chunks), streaming=True)) == data
    assert asyncio.run(run(by_path, path=True)) == data


def test_arguments_the_origin_and_anything_with_a_buffer(tmp_path: Path) -> None:
    def told(data: memoryview, *, times: int, origin: str) -> Any:
        import array

        return array.array("B", origin.encode() + bytes(data) * times)

    assert run_one(tmp_path, of_function(told), b"ab", times=3) == b"b/en/a.wavababab"


@pytest.mark.parametrize("streaming", [False, True])
def test_an_array_without_elements_is_an_empty_output(tmp_path: Path, streaming: bool) -> None:
    def boxes(data: Any) -> Any:
        import numpy as np

        found = np.zeros((0, 4), np.float32)
        return iter([found, b"no", found]) if streaming else found

    assert run_one(tmp_path, of_function(boxes, streaming=streaming), b"ab") == (b"no" if streaming else b"")


class Counter:
    """Made once in a worker."""

    def __init__(self) -> None:
        self.made_by = os.getpid()
        self.calls = 0

    def transform(self, data: memoryview) -> bytes:
        self.calls += 1
        return f"{self.made_by == os.getpid()} {self.calls}".encode()


def test_a_class_is_made_once_for_each_worker(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with transforms_of(tmp_path, of_function(Counter), etl_workers=1) as transforms:
            return [bytes((await transforms.run(call(), ORIGIN, Content.of(b""))).read(0, 99)) for _ in range(3)]

    assert asyncio.run(run()) == [b"True 1", b"True 2", b"True 3"]


def test_a_pipeline_passes_each_output_on(tmp_path: Path) -> None:
    async def run() -> bytes:
        shout = of_function(lambda data: bytes(data) + b"!", name="shout")
        async with transforms_of(tmp_path, of_function(upper, name="upper"), shout) as transforms:
            made = await transforms.run(call("upper", "shout", "shout"), ORIGIN, Content.of(b"ab"))
            counts = transforms.counts("shout")
            assert (counts.objects, counts.input_bytes, counts.output_bytes) == (2, 5, 7)
            return bytes(made.read(0, 99))

    assert asyncio.run(run()) == b"AB!!"


@pytest.mark.slow
def test_several_run_at_once_and_no_more_than_there_are_workers(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def where(data: memoryview, marks: str) -> bytes:
        """Wait until two run, the second of which may take its time to start."""
        import time

        open(f"{marks}/{os.getpid()}", "w").close()
        while len(os.listdir(marks)) < 2:
            time.sleep(0.01)
        return str(os.getpid()).encode()

    async def run() -> set[bytes]:
        async with transforms_of(tmp_path, of_function(where), etl_workers=2) as transforms:
            asked = call(marks=str(marks))
            made = await asyncio.gather(*(transforms.run(asked, ORIGIN, Content.of(b"")) for _ in range(6)))
            assert transforms.counts("f").workers == 2
            return {bytes(one.read(0, 99)) for one in made}

    assert len(asyncio.run(asyncio.wait_for(run(), 180))) == 2
    assert len(os.listdir(marks)) == 2


@pytest.mark.slow
def test_what_streams_needs_no_more_memory_for_more_bytes(tmp_path: Path) -> None:
    """In a file system in memory the file would be counted."""

    def grow(chunks: Iterator[memoryview], times: int) -> Iterator[bytes]:
        for chunk in chunks:
            for _ in range(times):
                yield bytes(chunk)

    (tmp_path / "large").write_bytes(bytes(64 * MiB))

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(grow, streaming=True, memory_bytes=80 * MiB)) as transforms:
            content = Content(64 * MiB, 0, fd=os.open(tmp_path / "large", os.O_RDONLY))
            made = await transforms.run(call(times=4), ORIGIN, content)
            assert made.size_bytes == 256 * MiB and made.fd >= 0
            made.close()

    asyncio.run(run())


# -- commands


@pytest.mark.slow
def test_a_command_reads_stdin_and_writes_stdout(tmp_path: Path) -> None:
    data = seeded_bytes(300_000, seed=3)
    assert run_one(tmp_path, of_command("cat"), data) == data
    assert run_one(tmp_path, of_command("tr", "a-z", "{args.to:A-Z}"), b"abc") == b"ABC"
    assert run_one(tmp_path, of_command("tr", "a-z", "{args.to:A-Z}"), b"abc", to="b-za") == b"bcd"


@pytest.mark.slow
def test_a_command_by_files_has_their_suffixes(tmp_path: Path) -> None:
    command = of_command("cp", "{input}", "{output}", input_suffix=".flac", output_suffix=".wav")
    assert run_one(tmp_path, command, b"sound") == b"sound"
    shown = run_one(tmp_path, of_command("echo", "{input}", input_suffix=".flac"), b"sound")
    assert shown.rstrip().endswith(b".flac")


@pytest.mark.parametrize(
    ("words", "args", "what"),
    [
        (("tr", "{args.set}", "x"), {}, "'set' is missing"),
        (("tr", "{args.set}", "x"), {"set": "-d"}, "would be taken for an option"),
        (("tr", "a", "b"), {"other": 1}, "this command takes no argument 'other'"),
        (("tr", "{args.set}", "x"), {"set": ["a"]}, "need text or a number"),
        (("false",), {}, "ended with 1"),
        (("sh", "-c", "echo it is broken >&2; exit 3"), {}, "ended with 3: it is broken"),
        (("true", "{output}"), {}, "wrote no {output}"),
    ],
)
def test_a_command_that_fails_says_what_is_wrong(tmp_path: Path, words: tuple[str, ...], args: Any, what: str) -> None:
    with pytest.raises(TransformFailed, match=what.replace("{", r"\{")):
        run_one(tmp_path, of_command(*words), b"abc", **args)


@pytest.mark.slow
def test_an_argument_is_one_word_whatever_is_in_it(tmp_path: Path) -> None:
    made = run_one(tmp_path, of_command("printf", "%s|", "{args.word}", "x={args.word}"), b"", word="a b; rm $HOME")
    assert made == b"a b; rm $HOME|x=a b; rm $HOME|"


# -- what is refused


@pytest.mark.slow
def test_a_node_runs_nothing_that_its_operator_has_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(TransformRefused, match="etl_code"):
        run_one(tmp_path, of_function(upper), b"", {"etl_code": False})
    with pytest.raises(TransformRefused, match=r"no commands that clients write.*it has none"):
        run_one(tmp_path, of_command("cat"), b"", {"etl_code": False})
    assert run_one(tmp_path, of_command("cat"), b"x") == b"x"
    for words, what in [
        (("no-such",), "there is no program 'no-such'"),
        (("tr", "{nonsense}", "b"), "is none of"),
        (("tr", "{args.set"), "not closed"),
        ((), "without words"),
    ]:
        with pytest.raises(TransformRefused, match=what):
            run_one(tmp_path, of_command(*words), b"")
    with pytest.raises(TransformRefused, match=r"suffix '/\.\./x'"):
        run_one(tmp_path, of_command("cp", "{input}", "{output}", output_suffix="/../x"), b"")


@pytest.mark.slow
def test_code_of_another_python_and_without_its_requirements_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TransformFailed, match=r"pickled by Python 2\.7"):
        run_one(tmp_path, of_function(upper, python="2.7"), b"")
    with pytest.raises(TransformFailed, match=r"no-such-package.*not installed.*numpy<1.*there is"):
        run_one(tmp_path, of_function(upper, requirement=["no-such-package>=1", "numpy<1"]), b"")
    assert run_one(tmp_path, of_function(upper, requirement=["numpy>=1"]), b"a") == b"A"


def test_what_is_not_there_or_stopped_is_said(tmp_path: Path) -> None:
    stopped = of_function(upper)
    stopped.stopped = True
    with pytest.raises(TransformGone, match="is stopped"):
        run_one(tmp_path, stopped, b"")

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(upper)) as transforms:
            with pytest.raises(TransformNotFound, match="there is no transform 'g'"):
                await transforms.run(call("g"), ORIGIN, Content.of(b""))
            with pytest.raises(TransformGone, match="replaced"):
                await transforms.run(call(), ORIGIN, Content.of(b""), [b"another version"])

    asyncio.run(run())


# -- process_limits


def raises(data: memoryview) -> bytes:
    raise ValueError(f"not {bytes(data)!r}")


def hangs(data: memoryview) -> bytes:

    if data:
        threading.Event().wait()
    return b"quick"


def leaks(data: memoryview) -> bytes:
    held = []
    while True:
        held.append(bytearray(b"x" * (8 << 20)))


def leaks_slowly(data: memoryview) -> bytes:
    """In shared memory, which no limit of the kernel counts."""
    import mmap

    held = mmap.mmap(-1, 400 << 20)
    for at in range(0, 400 << 20, 4096):
        held[at] = 1
    threading.Event().wait()
    return b""


def fills(data: memoryview) -> bytes:
    """Its folder, by files none of which is too large."""

    for at in range(100):
        with open(f"{at}", "wb") as file:
            file.write(bytes(1 << 20))
    threading.Event().wait()
    return b""


def dies(data: memoryview) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def exits(data: memoryview) -> bytes:
    os._exit(3)


def closes(data: memoryview) -> bytes:

    os.closerange(3, 200)
    threading.Event().wait()
    return b""


def babbles(data: memoryview) -> bytes:
    for fd in range(3, 4096):
        with contextlib.suppress(OSError):
            os.write(fd, b"\xff" * 100)
    return b""


def lies(data: memoryview) -> bytes:
    """Says that the output file has more than is written to it."""
    import sys

    worker = sys.modules["__main__"]
    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), worker.Worker):  # type: ignore[attr-defined]
        frame = frame.f_back  # type: ignore[assignment]
    real = frame.f_locals["self"]
    real.write = lambda parts: 1 << 20
    return bytes(100 << 10)


def inflates(data: memoryview) -> bytes:
    return bytes(data) * 100


def floods(chunks: Iterator[memoryview]) -> Iterator[bytes]:
    while True:
        yield bytes(1 << 20)


def returns_text(data: memoryview) -> Any:
    return "text"


QUICK_FENCES = {"raises", "is killed", "returns no bytes"}
FENCES: dict[str, tuple[Any, dict[str, Any], type[TransformError], str]] = {
    "raises": (raises, {}, TransformFailed, r"ValueError: not b'abc' \(raises, line"),
    "hangs": (hangs, {"timeout_s": 0.5}, TransformTimeout, "took too long"),
    "leaks": (leaks, {"memory_bytes": 300 << 20}, TransformFailed, "MemoryError|bytes in memory"),
    "leaks where no limit counts": (leaks_slowly, {"memory_bytes": 200 << 20}, TransformFailed, "bytes in memory"),
    "fills its folder": (fills, {"output_bytes": 2 << 20}, TransformFailed, "bytes in the files of its folder"),
    "is killed": (dies, {}, TransformFailed, "ended by signal 9"),
    "exits": (exits, {}, TransformFailed, "ended with 3"),
    "closes its socket": (closes, {}, TransformFailed, "closed its socket"),
    "writes to the socket": (babbles, {}, TransformFailed, "makes no sense"),
    "lies about its size": (lies, {}, TransformFailed, "said 1,048,576 bytes, and wrote 0"),
    "inflates": (inflates, {"inflation": 50.0}, TransformFailed, "it made 300 bytes, at most 150"),
    "makes too much": (inflates, {"output_bytes": 299}, TransformFailed, "it made 300 bytes, at most 299"),
    "returns no bytes": (returns_text, {}, TransformFailed, "it returned str"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK_FENCES else pytest.mark.slow) for case in FENCES]
)
def test_a_transform_that(tmp_path: Path, case: str) -> None:
    """Fails its object, typed and named, and the next one is served."""
    function, limits, error, what = FENCES[case]
    good = of_function(upper, name="good")

    async def run() -> None:
        async with transforms_of(
            tmp_path, of_function(function, retries=1, **limits), good, etl_workers=1
        ) as transforms:
            for _ in range(2):
                with pytest.raises(error, match=what) as raised:
                    await transforms.run(call(), ORIGIN, Content.of(b"abc"))
                assert str(raised.value).startswith("f: b/en/a.wav: ")
                made = await transforms.run(call("good"), ORIGIN, Content.of(b"abc"))
                assert bytes(made.read(0, 9)) == b"ABC"
            assert transforms.counts("f").failed == 2 and error.kind in transforms.counts("f").errors[0]

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
def test_what_short_work_leaves_behind_ends_its_worker_before_it_fills_the_drive(tmp_path: Path) -> None:
    def leaves(data: memoryview) -> bytes:
        import tempfile

        file, _ = tempfile.mkstemp()
        os.write(file, bytes(1 << 20))
        os.close(file)
        return str(os.getpid()).encode()

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(leaves, output_bytes=2 << 20), etl_workers=1) as transforms:
            found = set()
            deadline_s = time.monotonic() + 180
            while len(found) < 2 and time.monotonic() < deadline_s:
                made = await transforms.run(call(), ORIGIN, Content.of(b""))
                found.add(bytes(made.read(0, 99)))
            assert len(found) == 2 and transforms.counts("f").failed == 0 and transforms.counts("f").restarts > 0

    asyncio.run(run())


@pytest.mark.slow
def test_a_flood_is_stopped_by_the_size_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(TransformFailed, match=r"File too large|signal 25"):
        run_one(tmp_path, of_function(floods, streaming=True, output_bytes=4 * MiB), b"abc")


@pytest.mark.slow
def test_a_worker_that_has_died_is_tried_once_more_and_then_the_object_fails(tmp_path: Path) -> None:
    marks = tmp_path / "marks"

    def dies_once(data: memoryview, marks: str) -> bytes:
        with open(marks, "ab") as file:
            file.write(b"x")
        if os.stat(marks).st_size == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"the second time"

    assert run_one(tmp_path, of_function(dies_once), b"", marks=str(marks)) == b"the second time"
    assert marks.read_bytes() == b"xx"


@pytest.mark.slow
def test_children_of_a_worker_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def forks(data: memoryview, pids: str) -> bytes:
        import subprocess

        child = subprocess.Popen(["sleep", "600"])
        with open(pids, "w") as file:
            file.write(str(child.pid))
        threading.Event().wait()
        return b""

    def has_begun() -> bool:
        """A busy machine may take longer than the time limit to start the child."""
        with pytest.raises(TransformTimeout):
            run_one(tmp_path, of_function(forks, timeout_s=1.0), b"x", pids=str(pids))
        return pids.exists() and bool(pids.read_text())

    eventually(has_begun)
    pid = int(pids.read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100 << 10])
def test_a_child_that_returns_too_never_answers_for_another_object(tmp_path: Path, size: int) -> None:
    def forks(data: memoryview) -> bytes:
        os.fork()
        return bytes(data) * 3

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(forks), etl_workers=1) as transforms:
            for letter in (b"a", b"b", b"c", b"d"):
                made = await transforms.run(call(), ORIGIN, Content.of(letter * size))
                assert bytes(made.read(0, made.size_bytes)) == letter * size * 3

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
def test_an_answer_that_comes_twice_is_never_taken_for_another_objects(tmp_path: Path) -> None:
    def answers_twice(data: memoryview) -> bytes:
        import sys

        frame = sys._getframe()
        while "source" not in frame.f_locals or not hasattr(frame.f_locals.get("self"), "_reply"):
            frame = frame.f_back  # type: ignore[assignment]
        frame.f_locals["self"]._reply(1, bytes(data))
        return bytes(data)

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(answers_twice), etl_workers=1) as transforms:
            for letter in (b"a", b"b", b"c", b"d"):
                assert bytes((await transforms.run(call(), ORIGIN, Content.of(letter))).read(0, 9)) == letter
            assert transforms.counts("f").restarts

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["hangs", "dies"])
def test_a_child_that_keeps_the_socket_holds_up_nothing(tmp_path: Path, dies: bool) -> None:
    """In a session of its own, forked without Python's knowledge: neither killed with its group nor told to let go."""

    def leaves_one(data: memoryview, dies: bool, pids: str) -> bytes:
        import ctypes

        libc = ctypes.CDLL(None)
        pid = libc.fork()
        if pid == 0:
            libc.setsid()
            libc.sleep(600)
            libc._exit(0)
        with open(pids, "a") as file:  # one of each try
            file.write(f"{pid}\n")
        if not dies:
            threading.Event().wait()
        os._exit(3)

    limits = {"timeout_s": 60.0, "retries": 1} if dies else {"timeout_s": 1.0}
    pids = tmp_path / "pids"

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(leaves_one, **limits)) as transforms:
            with pytest.raises(TransformFailed if dies else TransformTimeout, match="ended with 3" if dies else "long"):
                await transforms.run(call(dies=dies, pids=str(pids)), ORIGIN, Content.of(b"x"))

    def has_begun() -> bool:
        """A busy machine may take longer than the time limit to start the child."""
        asyncio.run(asyncio.wait_for(run(), 180))
        return pids.exists()

    try:
        eventually(has_begun)
    finally:
        for pid in pids.read_text().split() if pids.exists() else ():
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
def test_a_program_that_a_transform_starts_inherits_no_socket(tmp_path: Path) -> None:
    def lists(data: memoryview) -> bytes:
        import subprocess

        return subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True).stdout

    assert b"socket:" not in run_one(tmp_path, of_function(lists), b"x")


@pytest.mark.slow
def test_a_worker_inherits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def sees(data: memoryview) -> bytes:
        import json

        links = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
        told = {
            "fds": links,
            "env": dict(os.environ),
            "cwd": os.listdir("."),
            "nice": os.nice(0),
            "sid": os.getsid(0) == os.getpid(),
        }
        return json.dumps(told).encode()

    with open(tmp_path / "open-file", "w") as held:
        os.set_inheritable(held.fileno(), True)
        told = json.loads(run_one(tmp_path, of_function(sees), b""))
    assert not [link for link in told["fds"] if "open-file" in link]
    assert sum("socket:" in link for link in told["fds"]) == 1
    assert "AWS_SECRET_ACCESS_KEY" not in told["env"] and told["env"]["HOME"].startswith(str(tmp_path / "spool"))
    assert told["cwd"] == [] and told["nice"] >= 5 and told["sid"]


@pytest.mark.slow
def test_without_a_network_there_is_none_or_nothing_starts(tmp_path: Path) -> None:
    def reaches(data: memoryview) -> bytes:
        import socket

        try:
            socket.create_connection(("127.0.0.1", int(bytes(data))), timeout=2)
        except OSError as error:
            return type(error).__name__.encode()
        return b"reached"

    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1]).encode()
        assert run_one(tmp_path, of_function(reaches), port) == b"reached"
        try:
            assert run_one(tmp_path, of_function(reaches), port, {"etl_network": False}) != b"reached"
        except TransformRefused as error:
            assert "no network namespace can be made here" in str(error)


@pytest.mark.slow
def test_another_user_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(TransformRefused, match="no such user"):
        run_one(tmp_path, of_function(upper), b"", {"etl_user": "nobody-of-this-name"})


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_reads_what_it_is_given_by_path_and_gains_no_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's interpreter: those of tests are often where only their user may go."""
    python, root = "/usr/bin/python3", Path(__file__).resolve().parents[2]
    probe = subprocess.run(
        [python, "-c", "import storage_node.etl.worker.program"], user="nobody", cwd="/", env={"PYTHONPATH": str(root)}
    )
    if probe.returncode:
        pytest.skip(f"nobody cannot run {python} with this tree")
    monkeypatch.setenv("PYTHONPATH", str(root))
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    config = {"etl_user": "nobody", "etl_python": python}

    async def run(network: bool, sandbox: str = "off") -> bytes:
        then = "id -un; grep NoNewPrivs /proc/self/status" if sandbox == "off" else "id -u"
        shown = of_command("sh", "-c", f"{then}; wc -c < $0", "{input}")
        async with transforms_of(folder, shown, etl_network=network, etl_sandbox=sandbox, **config) as transforms:
            content = Content(5 * MiB, 0, fd=transforms._context.spool.new_file())
            content.append(memoryview(bytes(5 * MiB)))
            made = await transforms.run(call(), ORIGIN, content)
            return bytes(made.read(0, 999))

    async def forked() -> str:
        most = of_command("sh", "-c", "for i in $(seq 200); do sleep 30 & done; wait")
        async with transforms_of(folder, most, etl_workers=1, **config) as transforms:
            with pytest.raises(TransformFailed) as raised:
                await asyncio.wait_for(transforms.run(call(), ORIGIN, Content.of(b"")), 180)
            return str(raised.value) + transforms._own("f")[0].text()

    try:
        assert "fork" in asyncio.run(forked())  # Cannot fork: the system has said so to the shell
        assert asyncio.run(run(True)).split() == [b"nobody", b"NoNewPrivs:", b"1", b"5242880"]
        assert asyncio.run(run(True, "best_effort")).split()[1:] == [b"5242880"]
        try:
            assert asyncio.run(run(False)).split()[1:] == [b"NoNewPrivs:", b"1", b"5242880"]
        except TransformRefused as error:
            assert "no network namespace can be made here" in str(error)
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_an_interpreter_that_cannot_run_workers_is_named_with_what_it_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module of that name >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(TransformFailed, match=rf"{python}: its worker ended with 1.*no module of that name"):
        run_one(tmp_path, of_function(upper), b"", {"etl_python": str(python)})


def test_a_worker_imports_next_to_nothing_before_it_begins() -> None:
    modules = "storage_node.etl.worker.program, storage_node.etl.worker.process_limits"
    program = f"import sys, {modules}; print('ais_loader' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_one_that_never_starts_is_not_started_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_PAUSES", Backoff(600.0, 600.0))
    marks = str(tmp_path / "marks")

    class Broken:
        def __init__(self) -> None:
            with open(marks, "ab") as file:
                file.write(b"x")
            raise RuntimeError("no model here")

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(Broken)) as transforms:
            for _ in range(50):
                with pytest.raises(TransformFailed, match="does not start: RuntimeError: no model here"):
                    await transforms.run(call(), ORIGIN, Content.of(b""))
            assert transforms.counts("f").workers == 0

    asyncio.run(run())
    assert Path(marks).read_bytes() == b"x", "only the first one has waited for a start"


def test_a_worker_for_which_there_is_no_file_ends_again_with_all_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drive is full, or the process has no more descriptors."""

    def no_file(spool: Spool) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(upper)) as transforms:
            await asyncio.to_thread(int)  # the loop has its thread
            before = set(os.listdir("/proc/self/fd")), children()  # other tests may have left some
            with monkeypatch.context() as full:
                full.setattr(Spool, "new_file", no_file)
                with pytest.raises(TransformFailed, match=r"no worker can be started: .*No space left"):
                    await transforms.run(call(), ORIGIN, Content.of(b"a"))
            await asyncio.to_thread(eventually, lambda: set(os.listdir("/proc/self/fd")) <= before[0])
            await asyncio.to_thread(eventually, lambda: os.listdir(tmp_path / "spool") == [])
            await asyncio.to_thread(eventually, lambda: children() <= before[1])

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
def test_one_that_is_cancelled_is_ended_and_its_worker_is_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        async with transforms_of(tmp_path, of_function(hangs), etl_workers=1) as transforms:
            running = asyncio.ensure_future(transforms.run(call(), ORIGIN, Content.of(b"x")))
            await asyncio.sleep(0.5)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            made = await transforms.run(call(), ORIGIN, Content.of(b""))
            assert bytes(made.read(0, 9)) == b"quick"

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
def test_a_version_that_is_replaced_ends_what_it_has_begun(tmp_path: Path) -> None:
    def slow(data: memoryview) -> bytes:
        import time

        time.sleep(0.5)
        return b"old"

    async def run() -> list[bytes]:
        known = {"f": of_function(slow, uuid=b"1" * 16)}
        async with transforms_of(tmp_path) as transforms:
            transforms._known = known.get
            old = asyncio.ensure_future(transforms.run(call(), ORIGIN, Content.of(b"")))
            await asyncio.sleep(0.1)
            known["f"] = of_function(lambda data: b"new", uuid=b"2" * 16)
            transforms.follow()
            new = await transforms.run(call(), ORIGIN, Content.of(b""))
            return [bytes((await old).read(0, 9)), bytes(new.read(0, 9))]

    assert asyncio.run(run()) == [b"old", b"new"]


@pytest.mark.slow
def test_nothing_is_left_of_workers_when_their_process_is_killed(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from tests.etl.test_workers import hangs
from tests.etl.worker_kit import ORIGIN, Content, call, of_function, transforms_of
async def run():
    async with transforms_of(Path(sys.argv[1]), of_function(hangs)) as transforms:
        running = asyncio.ensure_future(transforms.run(call(), ORIGIN, Content.of(b"x")))
        while not (stage := transforms._opened.get("f")) or not stage.stage._busy:
            await asyncio.sleep(0.01)
        print([worker._process.pid for worker in stage.stage._busy][0], flush=True)
        await running
asyncio.run(run())
"""
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, cwd=root, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
    assert list((tmp_path / "spool").glob("worker-*"))  # of the dead
    assert run_one(tmp_path, of_function(upper), b"a") == b"A"
    assert not list((tmp_path / "spool").glob(f"worker-{process.pid}-*"))


# -- several small objects with one message


def burst_of(folder: Path, function: Any, inputs: list[bytes], **fields: Any) -> tuple[list[Any], Any]:
    """Of each its output, or its error; and the transform's counts."""

    async def run() -> tuple[list[Any], Any]:
        async with transforms_of(folder, of_function(function, **fields), etl_workers=1) as transforms:
            transform = transforms.admit(call())
            (stage,) = transform.stages
            stage.burst = len(inputs)  # type: ignore[attr-defined]
            transform.release()
            origins = [Origin("b", f"{at}", "1.1.0") for at in range(len(inputs))]
            contents = [Content.of(data) for data in inputs]
            made = await transforms.run_many(call(), list(zip(origins, contents, strict=True)))
            assert all(content.data is None for content in contents)  # closed
            found = [one if isinstance(one, Exception) else bytes(one.read(0, one.size_bytes)) for one in made]
            return found, transforms.counts("f")

    return asyncio.run(asyncio.wait_for(run(), 180))


def test_small_objects_go_together_and_each_has_its_own_output(tmp_path: Path) -> None:
    inputs = [b"x" * size for size in (0, 1, 10 << 10, 64 << 10, 0, 7)] * 5
    made, counts = burst_of(tmp_path, upper, inputs)
    assert made == [data.upper() for data in inputs]
    assert (counts.objects, counts.failed, counts.restarts) == (30, 0, 0)


@pytest.mark.slow
def test_outputs_that_are_files_wait_for_each_other(tmp_path: Path) -> None:
    """One file is for the outputs of all of them: it is the next one's when the node has taken what is in it."""

    def grows(data: memoryview) -> bytes:
        return bytes(data) * (1 << 20 if data[0] in b"CD" else 100_000 if data[0] in b"EF" else 1)

    inputs = [bytes([letter]) * 6 for letter in b"ACECDBFEDA"]
    made, _ = burst_of(tmp_path, grows, inputs)
    assert made == [grows(memoryview(data)) for data in inputs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "limits", "error", "what", "restarts"),
    [
        ("raises", {}, TransformFailed, "ValueError: not this one", 0),
        ("hangs", {"timeout_s": 12.0}, TransformTimeout, "took too long", 1),
        ("dies", {"retries": 1}, TransformFailed, "ended by signal 9", 2),
        ("scribbles", {}, TransformFailed, "makes no sense", 2),
    ],
)
def test_one_that_fails_fails_alone_among_those_that_went_with_it(
    tmp_path: Path, then: str, limits: dict[str, Any], error: type[TransformError], what: str, restarts: int
) -> None:
    def only_bad(data: memoryview) -> bytes:
        if bytes(data) == b"bad":
            if then == "raises":
                raise ValueError("not this one")
            if then == "hangs":
                threading.Event().wait()
            if then == "scribbles":
                for fd in map(int, os.listdir("/proc/self/fd")):
                    if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
                        os.write(fd, b"junk" * 100)
                threading.Event().wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(data).upper()

    inputs = [b"a", b"b", b"bad", b"c", b"d"]
    made, counts = burst_of(tmp_path, only_bad, inputs, **limits)
    assert made[:2] + made[3:] == [b"A", b"B", b"C", b"D"]
    assert isinstance(made[2], error) and str(made[2]).startswith("f: b/2: ")
    assert what in str(made[2])
    assert (counts.objects, counts.failed, counts.restarts) == (4, 1, restarts)


@pytest.mark.slow
def test_those_before_one_that_ends_its_worker_are_not_held_to_have_ended_it(tmp_path: Path) -> None:
    """Answers wait for each other: those of objects that are done already go with the worker."""

    def dies(data: memoryview) -> bytes:
        if bytes(data) == b"bad":
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(data)

    inputs = [b"a", b"bad", b"b", b"bad", b"c", b"bad", b"d"]
    made, counts = burst_of(tmp_path, dies, inputs)
    assert [one for one in made if isinstance(one, bytes)] == [b"a", b"b", b"c", b"d"]
    assert (counts.objects, counts.failed) == (4, 3)


@pytest.mark.slow
def test_an_output_is_what_it_was_when_it_was_returned(tmp_path: Path) -> None:
    kept = bytearray(100)

    def into_the_same(data: memoryview) -> bytearray:
        kept[:] = bytes(data)
        return kept

    inputs = [seeded_bytes(100, seed=at) for at in range(20)]
    assert burst_of(tmp_path, into_the_same, inputs)[0] == inputs


@pytest.mark.slow
def test_what_passes_between_keeps_its_size_whatever_a_transform_does(tmp_path: Path) -> None:
    """A node that read what a worker had cut off would be ended by the kernel."""

    def cuts(data: memoryview) -> bytes:
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            if os.path.exists(path) and "memfd:area" in os.readlink(path):
                try:
                    os.ftruncate(int(name), 0)
                except PermissionError:
                    return bytes(data) + b" refused"
        return bytes(data)

    assert burst_of(tmp_path, cuts, [b"a", b"b"])[0] == [b"a refused", b"b refused"]


@pytest.mark.slow
def test_a_child_that_returns_too_has_no_part_in_a_burst(tmp_path: Path) -> None:
    def forks(data: memoryview) -> bytes:
        child = os.fork()
        return bytes(data) if child else b"of the child"

    inputs = [b"%d" % at for at in range(8)]
    made, counts = burst_of(tmp_path, forks, inputs)
    assert (made, counts.restarts) == (inputs, 0)


@pytest.mark.slow
def test_each_has_the_whole_time_limit_for_itself(tmp_path: Path) -> None:
    def waits(data: memoryview) -> bytes:
        time.sleep(0.6)
        return b"done"

    def are_made() -> bool:
        """A machine that stands still may take too long for one, but not each time."""
        made, counts = burst_of(tmp_path, waits, [b"x"] * 4, timeout_s=2.0)
        return made == [b"done"] * 4 and counts.restarts == 0

    eventually(are_made)


@pytest.mark.slow
def test_more_are_sent_together_while_a_worker_is_soon_done_and_one_where_it_is_not(tmp_path: Path) -> None:
    def waits(data: memoryview) -> bytes:
        time.sleep(0.2 if data == b"slow" else 0)
        return b""

    async def run() -> None:
        async with transforms_of(tmp_path, of_function(waits), etl_workers=1) as transforms:
            assert transforms.burst(call()) == 1

            async def several(data: bytes) -> int:
                count = transforms.burst(call())
                await transforms.run_many(call(), [(ORIGIN, Content.of(data)) for _ in range(count)])
                return transforms.burst(call())

            while await several(b"") < 4:  # a machine that is busy with other things takes longer about it
                pass
            while await several(b"slow") > 1:
                pass

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.slow
def test_more_than_a_socket_holds_goes_both_ways_at_once(tmp_path: Path) -> None:
    inputs = [seeded_bytes(60 << 10, seed=at) for at in range(12)]
    made, _ = burst_of(tmp_path, lambda data: bytes(data)[::-1], inputs)
    assert made == [data[::-1] for data in inputs]


@pytest.mark.slow
def test_an_interpreter_that_was_built_for_an_older_c_library(tmp_path: Path) -> None:
    lacking = "import fcntl, os\nfor at in (os, fcntl):\n"
    lacking += "    for name in [*vars(at)]:\n"
    lacking += (
        "        if name.startswith(('memfd', 'MFD_', 'O_TMPFILE', 'F_ADD_SEALS', 'F_SEAL_')): delattr(at, name)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(lacking)
    code = (
        "import os, sys; from ais_loader import Command, connect\n"
        "large, small = os.urandom(3 << 20), b'small'\n"
        "with connect(sys.argv[1]) as client:\n"
        "    bucket = client.create_bucket('b')\n"
        "    bucket.put_many([('large', large), ('small', small)])\n"
        "    client.etl.init('same', lambda data: b'' if hasattr(os, 'memfd_create') else bytes(data))\n"
        "    client.etl.init('read', lambda path: open(path, 'rb').read(), path=True)\n"
        "    client.etl.init('cat', Command(['cat']))\n"
        "    for etl in ('same', 'read', 'cat'):\n"
        "        print([item == given for item, given in zip(\n"
        "            bucket.get_batch(['large', 'small'], etl=etl).tobytes(), [large, small], strict=True)])\n"
        "print(hasattr(os, 'memfd_create'))\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout == "[True, True]\n" * 3 + "False\n", done.stderr
