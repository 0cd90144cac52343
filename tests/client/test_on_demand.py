"""Nodes on demand: one for a folder, however many processes ask, and started again whenever it is gone."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import ais_loader
from ais_loader import connect, errors
from ais_loader.testing import NodeProcess, eventually, seeded_bytes
from ais_loader.wire.node_folder import NodeAddress, NodeFolder, host_id
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.patience import PATIENT_CLIENT
from tests.table import table

TIMEOUT_S = 180.0
OBJECTS = {f"{at:02}": seeded_bytes(1000 + at, seed=at) for at in range(12)}


def stop(drive: Path, number: int = signal.SIGKILL) -> None:
    """Stop the node of a drive, if there is one. Returns when nothing is left of it."""
    folder = NodeFolder([drive])

    def lock() -> int | None:
        if (found := folder.lock()) is None and (pid := folder.pid()) is not None:
            os.kill(pid, number)  # a node that is just starting has no id yet
        return found

    os.close(eventually(lock, TIMEOUT_S, interval_s=0.02))


@contextmanager
def stopped(drive: Path) -> Iterator[str]:
    """The URL of a drive, whose node is stopped at the end."""
    try:
        yield f"node://{drive}"
    finally:
        if (drive / "node").exists():
            stop(drive)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with stopped(tmp_path / "drive") as url:
        yield url


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store with OBJECTS in the bucket `data`. Tests may kill its node."""
    with stopped(tmp_path_factory.mktemp("on demand") / "Düsseldorf %20 #1" / "données") as url:
        with connect(url) as client:
            client.create_bucket("data").put_many(OBJECTS.items())
        yield url


def drive_of(url: str) -> Path:
    return Path(url.removeprefix("node://"))


def pid_of(url: str) -> int:
    pid = NodeFolder([drive_of(url)]).pid()
    assert pid is not None
    return pid


def run(script: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
def test_everything_works_as_with_any_node(shared: str) -> None:
    with connect(shared) as client:
        bucket = client.bucket("data")
        bucket.put("new", b"new")
        assert bucket.get("new") == b"new"
        bucket.delete("new")
        assert [bytes(item.data) for item in bucket.get_batch(list(OBJECTS))] == list(OBJECTS.values())
        assert list(bucket) == list(OBJECTS)
        assert client.url == shared
        described = client.describe()
        assert described["pid"] == pid_of(shared)
        assert described["limits"]["idle_exit_s"] == "600"  # type: ignore[index]
        assert described["drives"][0]["path"] == str(drive_of(shared))  # type: ignore[index]


def test_a_client_pickles_as_its_folder(shared: str) -> None:
    with connect(shared) as client, pickle.loads(pickle.dumps(client)) as copy:
        assert copy.url == shared
        assert copy.bucket("data").get("03") == OBJECTS["03"]


def test_a_reader_writes_nothing(shared: str) -> None:
    with connect(shared, mode="r") as client:
        assert client.bucket("data").get("01") == OBJECTS["01"]
        with pytest.raises(errors.StoreReadOnly):
            client.bucket("data").put("01", b"")


def test_a_reader_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(errors.StoreNotFound, match=str(tmp_path)):
        connect(f"node://{tmp_path}/none", mode="r")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_killed_node_is_started_again(shared: str) -> None:
    with connect(shared, options=PATIENT_CLIENT) as client:
        bucket, before = client.bucket("data"), pid_of(shared)
        bucket.put("kept", b"kept")
        with bucket.get_batch(list(OBJECTS) * 1000) as batch:
            first = next(batch)
            os.kill(before, signal.SIGKILL)
            assert [bytes(item.data) for item in (first, *batch)] == list(OBJECTS.values()) * 1000
        assert bucket.get("kept") == b"kept"
        bucket.delete("kept")
        assert pid_of(shared) != before


@pytest.mark.slow
def test_each_kind_of_call_starts_it_again(shared: str) -> None:
    with connect(shared, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("data")
        calls = (
            lambda: bucket.get("03") == OBJECTS["03"],
            lambda: bucket.head("03").size_bytes == len(OBJECTS["03"]),
            lambda: bucket.put("03", OBJECTS["03"]).size_bytes == len(OBJECTS["03"]),
        )
        for call in calls:
            assert call()
            stop(drive_of(shared), signal.SIGTERM)
            assert call()


@pytest.mark.slow
def test_a_stale_address_is_not_used(url: str) -> None:
    folder = NodeFolder([drive_of(url)])
    lock = folder.lock()
    assert lock is not None
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        ended = subprocess.Popen(["true"])
        ended.wait()
        port = foreign.getsockname()[1]
        folder.publish(lock, NodeAddress(f"127.0.0.1:{port}", ended.pid, ais_loader.__version__, host_id()))
        os.close(lock)
        with connect(url) as client:
            client.create_bucket("b").put("a", b"a")
            assert client.bucket("b").get("a") == b"a"
        foreign.settimeout(0)
        with pytest.raises(BlockingIOError):
            foreign.accept()  # nobody has connected


@table(
    ("changed", "error", "message"),
    [
        ({"version": "0.0.9"}, errors.Unsupported, r"runs ais-loader 0.0.9.*`kill \d+`"),
        ({"host": "another"}, errors.StoreError, "another host or container"),
        ({"version": "99.0.0"}, None, ""),
    ],
)
def test_other_versions_and_hosts(
    shared: str, changed: dict[str, str], error: type[Exception] | None, message: str
) -> None:
    connect(shared).close()
    folder = NodeFolder([drive_of(shared)])
    address = folder.address()
    assert address is not None
    try:
        (folder.path / "address").write_text(json.dumps(asdict(replace(address, **changed))))
        if error is None:
            connect(shared).close()
        else:
            with pytest.raises(error, match=message):
                connect(shared)
    finally:
        (folder.path / "address").write_text(json.dumps(asdict(address)))


@pytest.mark.slow
def test_it_cannot_start_beside_a_writer(tmp_path: Path, url: str) -> None:
    with connect(tmp_path / "drive") as writer:
        writer.create_bucket("b").put("a", b"a")
        with pytest.raises(errors.StoreLocked, match=rf"process {os.getpid()}.*{tmp_path}/drive/node/log"):
            connect(url)
        second = f"import ais_loader, sys; ais_loader.connect({str(tmp_path / 'drive')!r})"
        assert "StoreLocked" in run(second).stderr  # the attempt has not cost the writer its lock
        assert writer.bucket("b").get("a") == b"a"
    with connect(url) as client:
        assert client.bucket("b").get("a") == b"a"


def test_it_cannot_start_in_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(errors.StoreFormatError, match=r"not a store, and not empty either \(notes.txt\)"):
        connect(f"node://{tmp_path}")
    assert os.listdir(tmp_path) == ["notes.txt"]
    with pytest.raises(errors.DriveFailed, match="Not a directory"):
        connect(f"node://{tmp_path}/notes.txt/store")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told(tmp_path: Path, url: str) -> None:
    connect(tmp_path / "drive").close()
    tmp_path.chmod(0o755)
    script = (
        "import ais_loader.transport.cluster.transport, os, sys\n"
        "connect = ais_loader.connect  # imported on first use\n"
        "os.setgroups([]), os.setegid(65534), os.seteuid(65534)\n"
        "connect(sys.argv[1])"
    )
    reason = f"{tmp_path}/drive: Permission denied: a node on demand is for the processes of the user who owns"
    assert f"DriveFailed: {reason}" in run(script, url).stderr
    tmp_path.chmod(0o700)
    assert "Permission denied: a node on demand is for" in run(script, url).stderr


def test_a_failure_shows_the_log(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ais_loader.transport.on_demand._MODULE", "no_such_module")
    with pytest.raises(errors.StoreError, match=r"No module named no_such_module \(see .*/drive/node/log\)"):
        connect(url)


@pytest.mark.slow
def test_the_log_is_bounded(tmp_path: Path) -> None:
    script = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from storage_node.ops import node_log\n"
        "node_log._MAX_BYTES = 5000\n"
        "node_log.log_to(Path(sys.argv[1]), with_stderr=True)\n"
        "for at in range(1000):\n"
        "    logging.getLogger('another').warning('line %d', at)\n"
        "print('the end', file=sys.stderr)"
    )
    with (tmp_path / "log").open("ab") as log:
        command = [sys.executable, "-c", script, str(tmp_path / "log")]
        subprocess.run(command, stderr=log, check=True, timeout=TIMEOUT_S)
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    assert (tmp_path / "log").read_text().endswith("line 999\nthe end\n")
    assert all(5100 > (tmp_path / name).stat().st_size > 0 for name in ("log", "log.1"))


@pytest.mark.slow
def test_several_drives_in_any_order(tmp_path: Path) -> None:
    drives = [tmp_path / "b", tmp_path / "a"]
    try:
        with connect(",".join(f"node://{drive}" for drive in drives)) as client:
            client.create_bucket("b").put_many(OBJECTS.items())
            with connect(f"node://{drives[1]},{drives[0]}") as other:
                assert {name: other.bucket("b").get(name) for name in OBJECTS} == OBJECTS
                assert other.describe()["pid"] == client.describe()["pid"]
    finally:
        stop(tmp_path / "a")


def test_wrong_urls() -> None:
    with pytest.raises(errors.InvalidRequest, match="need node:///data/cache"):
        connect("node:/data/cache")
    with pytest.raises(errors.InvalidRequest, match="empty path"):
        connect("node://")
    with pytest.raises(errors.InvalidRequest, match="it takes ClusterOptions"):
        connect("node:///data/cache", options=ais_loader.EmbeddedOptions())


@pytest.mark.slow
def test_commands(shared: str) -> None:
    command = [sys.executable, "-m", "ais_loader.cli", "ls", "data", "--store", shared]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout.split()) == (0, [f"data/{name}" for name in OBJECTS])


@pytest.mark.slow
def test_a_script_that_starts_it_ends_at_once(url: str) -> None:
    # The pipes of its output are closed, although the node is running.
    done = run("import ais_loader, sys; print(ais_loader.connect(sys.argv[1]).url)", url)
    assert (done.returncode, done.stdout.strip()) == (0, url)
    pid = pid_of(url)
    os.kill(pid, 0)
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)


@pytest.mark.slow
def test_many_processes_start_one_node(url: str) -> None:
    script = (
        "import ais_loader, sys\n"
        "client = ais_loader.connect(sys.argv[1])\n"
        "client.create_bucket('b', exist_ok=True).put(sys.argv[2], b'mine')\n"
        "print(client.describe()['pid'])"
    )
    command = [sys.executable, "-c", script, url]
    asking = [
        subprocess.Popen([*command, str(at)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for at in range(20)
    ]
    outputs = [process.communicate(timeout=TIMEOUT_S) for process in asking]
    assert {(process.returncode, *output) for process, output in zip(asking, outputs, strict=True)} == {
        (0, f"{pid_of(url)}\n", "")
    }
    log = (drive_of(url) / "node" / "log").read_text()
    assert log.count("made a new store") == 1
    assert "store-locked" not in log
    with connect(url) as client:
        assert len(list(client.bucket("b"))) == 20


@pytest.mark.slow
def test_a_starter_that_is_killed_leaves_the_node(url: str) -> None:
    script = (
        "import ais_loader, sys, time\n"
        "client = ais_loader.connect(sys.argv[1])\n"
        "client.create_bucket('b').put('a', b'a')\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    for number in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-c", script.replace("create_bucket('b')", "create_bucket('b', exist_ok=True)"), url],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as starter:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"ready\n"
            pid = pid_of(url)
            os.killpg(starter.pid, number)  # as a terminal does for Ctrl-C
            starter.wait(TIMEOUT_S)
        with connect(url) as client:
            assert client.bucket("b").get("a") == b"a"
            assert client.describe()["pid"] == pid


@pytest.mark.slow
def test_a_node_started_by_hand_is_found(tmp_path: Path, url: str) -> None:
    with NodeProcess(tmp_path / "drive") as node:
        with connect(url) as client:
            assert client.describe()["pid"] == node.pid
        node.stop()
        assert NodeFolder([tmp_path / "drive"]).address() is None
        assert NodeFolder([tmp_path / "drive"]).pid() is None


@pytest.mark.slow
def test_an_idle_node_exits_and_is_started_again(tmp_path: Path, url: str) -> None:
    with connect(tmp_path / "drive") as client:
        client.create_bucket("b").put("a", b"a")
    with NodeProcess(tmp_path / "drive", arguments=["--idle-exit-s", "1"]) as node:
        eventually(lambda: not node.alive, TIMEOUT_S)
        assert NodeFolder([tmp_path / "drive"]).address() is None
        with connect(url) as client:
            assert client.bucket("b").get("a") == b"a"


def test_what_counts_as_use(tmp_path: Path) -> None:
    with NodeServer([tmp_path / "drive"], ServerConfig().replace(port=0)) as server:
        eventually(lambda: server.idle_s() >= 0.1)
        with connect(server.url) as client:
            client.create_bucket("b").put("a", b"a")
            before_s = time.monotonic()
            server.idle_s()
            client.describe()
            assert server.idle_s() <= time.monotonic() - before_s  # a call
            assert client.bucket("b").get("a") == b"a"
            with client.bucket("b").get_batch(["a"]) as batch:
                assert [bytes(item.data) for item in batch] == [b"a"]
            for _ in range(20):
                assert server.idle_s() == 0  # a session that is open
                client.describe()
        eventually(lambda: server.idle_s() >= 0.1)


@pytest.mark.slow
@pytest.mark.fresh_process
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_share_it(shared: str, context: str) -> None:
    from torch.utils.data import DataLoader

    dataset = ais_loader.MapDataset(shared, "ais://data/")
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        multiprocessing_context=context,
        collate_fn=list,
        persistent_workers=True,
    )
    before = pid_of(shared)
    assert [data for batch in loader for data in batch] == list(OBJECTS.values())
    assert pid_of(shared) == before
    stop(drive_of(shared))
    assert [data for batch in loader for data in batch] == list(OBJECTS.values())  # read from the folder
    with connect(shared) as client:
        after = client.describe()["pid"]
        assert after != before
        assert [data for batch in loader for data in batch] == list(OBJECTS.values())
        del loader  # ends the workers
        assert client.describe()["pid"] == after
