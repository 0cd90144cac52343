"""Bounds of a run: a test that stands still shows where, and nothing that tests started outlives them.

A run that is slow ends late, and no machine is too slow: bounds are for what stands still. A test that is not over in
time is interrupted in its main thread, so that fixtures still stop what they started. A test that does not come back to
the interpreter is ended with its process a little later, and pytest-xdist goes on in another one. What the process that
was ended had started is ended here. A run in which no test has ended for longer than that is ended as a whole, with the
tests named that were under way and the stacks of their processes.

Processes are known by a variable that they inherit. Those that are left at the end, of whatever kind, are named and
ended, and the run fails. So is a process of pytest that does not end after its last test, with its stacks shown.

Each failure is named as soon as it is known: a run that is ended from outside never writes its summary.

A run also fails if `git status` shows changes at its end that it did not show before: a test has then written into the
checkout. Nothing is compared outside a git checkout.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Generator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest
import pytest_timeout

RUN_VARIABLE = "PYTEST_RUN_OF_AIS_LOADER"
"""Inherited by all that a run starts."""
_WORKER = "PYTEST_XDIST_WORKER"
_GRACE_S = 40.0
"""For what ends by itself when the process that has started it ends."""
_INTERRUPTED_S = 90.0
"""What an interrupted test has to stop its nodes in, before its process is ended."""
SILENCE_S = float(os.environ.get("TESTS_SILENCE_S", "1800"))
"""How long no test may end before the run is ended. Marks allow some tests 1,500 s, which may be the last ones."""
_STACKS_S = 10.0
"""For a process to show its stacks in."""
_SESSION_END_S = 300.0
"""From the last test to the end of its process."""

_POLICY = os.sched_getscheduler(0)
"""How the kernel schedules this process."""

_own_run = RUN_VARIABLE not in os.environ
_run = os.environ.setdefault(RUN_VARIABLE, uuid.uuid4().hex)
_ROOT = Path(__file__).resolve().parents[1]
_STACKS = Path(tempfile.gettempdir()) / f"ais-loader-stacks-{_run}"
_limit_s = pytest.StashKey[float]()
_stderr = pytest.StashKey[int]()
_status_before = pytest.StashKey["frozenset[str] | None"]()


# -- of one test


def pytest_configure(config: pytest.Config) -> None:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[_stderr] = os.dup(2)
    _STACKS.mkdir(exist_ok=True)
    # A file for each process: what several write to one pipe at a time, they write into each other's lines.
    faulthandler.register(signal.SIGUSR2, file=(_STACKS / str(os.getpid())).open("wb"))
    config.stash[_status_before] = git_status(_ROOT) if _own_run else None


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    item.stash[_limit_s] = settings.timeout
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    if _limit_s in item.stash:
        _watch(item, item.stash[_limit_s])
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """With a time of its own: what failed is not watched any more."""
    if _limit_s in item.stash:
        _watch(item, item.stash[_limit_s])
    try:
        yield
        if (policy := os.sched_getscheduler(0)) != _POLICY:
            os.sched_setscheduler(0, _POLICY, os.sched_param(0))
            pytest.fail(f"this process was given scheduling policy {policy}: what it starts could starve all others")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


def _watch(item: pytest.Item, limit_s: float) -> None:
    def interrupt(_: int, frame: FrameType | None) -> None:
        if not pytest_timeout.is_debugging():
            pytest.fail(f"not over after {limit_s:g} s\n{_stacks()}")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    faulthandler.dump_traceback_later(limit_s + _INTERRUPTED_S, file=item.config.stash[_stderr], exit=True)


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


# -- of all


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of pytest-xdist is gone; with `error` when that was no orderly end."""
    if error is None:
        return
    _end(_left(worker=node.gateway.id))
    pid = node.gateway._rinfo().pid
    for parent in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
        for folder in parent.glob(f"ais-loader-{pid}-*"):
            shutil.rmtree(folder, ignore_errors=True)


class _FailureNames:
    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)  # the letter comes first
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or report.longreprtext
            self._reporter.write_line(f"\n{report.nodeid} failed at {report.when}: {reason[:500]}")


class _Silence:
    """Ends a run in which no test has ended for `limit_s`, from a thread of the process that the others report to."""

    def __init__(self, config: pytest.Config, limit_s: float) -> None:
        self._stderr, self._limit_s = config.stash[_stderr], limit_s
        self._worker_pids: set[int] = set()
        self._under_way: dict[str, None] = {}  # guarded by _lock, as is the next one
        self._last_end_s = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        self._worker_pids.add(node.gateway._rinfo().pid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        with self._lock:
            self._under_way[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        with self._lock:
            self._under_way.pop(nodeid, None)
            self._last_end_s = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, self._left_s())):
            if self._left_s() > 0:
                continue
            with self._lock:
                names = "".join(f"  {name}\n" for name in self._under_way) or "  none\n"
            os.write(self._stderr, f"\nno test has ended for {self._limit_s:g} s; under way:\n{names}".encode())
            for pid in self._worker_pids or {os.getpid()}:
                os.write(self._stderr, _stacks_of(pid))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if not self._over.wait(_INTERRUPTED_S):
                os._exit(pytest.ExitCode.INTERRUPTED)

    def _left_s(self) -> float:
        with self._lock:
            return self._last_end_s + self._limit_s - time.monotonic()


def _stacks_of(pid: int) -> bytes:
    """Return the stacks that a process of pytest writes to its file: all of them once the file stays as it is."""
    deadline_s, stacks = time.monotonic() + _STACKS_S, b""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR2)
        while time.monotonic() < deadline_s:
            time.sleep(_STACKS_S / 10)
            before, stacks = stacks, (_STACKS / str(pid)).read_bytes()
            if stacks and stacks == before:
                break
    return stacks or f"process {pid} did not show its stacks\n".encode()


def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if _own_run and reporter is not None:
        session.config.pluginmanager.register(_FailureNames(reporter))
        limit_s = float(session.config.getoption("timeout") or session.config.getini("timeout") or 0)
        if limit_s:
            limit_s = max(SILENCE_S, limit_s + _INTERRUPTED_S + 30.0)  # what one test may take comes first
            session.config.pluginmanager.register(_Silence(session.config, limit_s))


@pytest.hookimpl(trylast=True)  # the processes of pytest-xdist have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    watch_the_end(session.config)
    _end_servers_of_multiprocessing()
    if not _own_run:
        return
    shutil.rmtree(_STACKS, ignore_errors=True)
    _end_what_is_left(session)
    before, after = session.config.stash[_status_before], git_status(_ROOT)
    if before is not None and after is not None and (new := sorted(after - before)):
        _fail(
            session, "`git status` shows new changes since the tests began; tests may write only into `tmp_path`:", new
        )


def watch_the_end(config: pytest.Config) -> None:
    """Dump the stacks of this process, and end it, if it still runs after 300 s."""
    faulthandler.dump_traceback_later(_SESSION_END_S, file=config.stash[_stderr], exit=True)


def _fail(session: pytest.Session, reason: str, lines: list[str]) -> None:
    print(f"\n{reason}", *(f"  {line}" for line in lines), sep="\n")
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _end_what_is_left(session: pytest.Session) -> None:
    deadline_s = time.monotonic() + _GRACE_S
    while (left := _left()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if left:
        lines = [f"{process.pid}: {' '.join(process.info['cmdline'])[:200]}" for process in left]
        _end(left)
        _fail(session, "Processes were left behind by the tests, and have been ended:", lines)


def _end_servers_of_multiprocessing() -> None:
    """They serve this process until it ends: no test has left them. On a busy machine they outlive it for long.

    The tracker of resources ends only after each process that has inherited its pipe. A process that a test has left
    is such a one, so the tracker is not waited for without a limit.
    """
    tracker: Any = resource_tracker._resource_tracker
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    for pid, stop in ((server._forkserver_pid, server._stop), (tracker._pid, tracker._stop)):
        if pid is None:
            continue
        stopping = threading.Thread(target=stop, daemon=True)
        stopping.start()
        stopping.join(_GRACE_S)
        if stopping.is_alive():
            os.kill(pid, signal.SIGKILL)
            stopping.join(_GRACE_S)


def _left(worker: str | None = None) -> list[psutil.Process]:
    """Processes that this run has started, or one process of pytest-xdist, and that still are there.

    A fork shows the environment with which its parent began, so the first process knows its forks as its children.
    """
    own = psutil.Process()
    mine = {own.pid, *(parent.pid for parent in own.parents())}
    children = {child.pid for child in own.children(recursive=True)} if worker is None else set()
    found = []
    for process in psutil.process_iter(["environ", "cmdline", "status"]):
        environment = process.info["environ"] or {}
        if process.pid in mine or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if environment.get(RUN_VARIABLE) != _run and process.pid not in children:
            continue
        if worker is None or environment.get(_WORKER) == worker:
            found.append(process)
    return found


def _end(processes: list[psutil.Process]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch raises in the main thread when a worker of a loader is killed
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=_GRACE_S)


# -- of the checkout


def git_status(root: Path) -> frozenset[str] | None:
    """The lines of `git status` for the checkout at `root`; None if `root` is not the top of a checkout.

    The index is not refreshed, so that no lock gets in the way of a git command of somebody else.
    """
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
        if Path(top.strip()).resolve() != root.resolve():
            return None  # an unpacked archive below somebody's own repository
        return frozenset(_git(root, "status", "--porcelain", "--untracked-files=all").splitlines())
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *command], cwd=root, check=True, capture_output=True, text=True, timeout=180
    )
    return done.stdout
