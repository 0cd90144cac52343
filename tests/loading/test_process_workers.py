"""Process workers: the batches of threads, in their order, with views of shared memory, and nothing left behind."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from process_kit import (
    BATCH,
    COUNT,
    EXPECTED,
    PLAN,
    Samples,
    collate,
    limit_memory,
    loader,
    nothing_left,
    numbers_of,
    processes_of,
    raise_lookup,
    raise_unpicklable,
)

from ais_loader import Client, MapDataset
from ais_loader.errors import InvalidRequest, LoaderError, Unsupported
from ais_loader.loading.batch_loader import BatchLoader
from ais_loader.plans import ShufflePlan


@pytest.mark.slow
@pytest.mark.parametrize("workers, in_flight", [(1, 1), (2, 3), (3, 8)])
def test_batches_are_those_of_threads(tmp_path: Path, workers: int, in_flight: int) -> None:
    with nothing_left():
        batches = loader(tmp_path, workers=workers, in_flight=in_flight)
        assert numbers_of(batches) == EXPECTED == numbers_of(loader(tmp_path, workers=0))
        second = numbers_of(batches)
    assert second != EXPECTED
    assert sorted(number for batch in second for number in batch) == list(range(COUNT))


@pytest.mark.slow
def test_an_interpreter_that_was_built_for_an_older_c_library(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; del os.memfd_create, os.pidfd_open; from process_kit import *; "
        "print(numbers_of(loader(pathlib.Path(sys.argv[1]), context='fork')) == EXPECTED)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=450, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods(tmp_path: Path, context: str) -> None:
    assert numbers_of(loader(tmp_path, context=context)) == EXPECTED


@pytest.mark.slow
def test_a_trainer_that_keeps_all_batches_gets_all_of_them(tmp_path: Path) -> None:
    with nothing_left():
        assert numbers_of(list(loader(tmp_path))) == EXPECTED


@pytest.mark.slow
def test_batches_outlive_their_loader(tmp_path: Path) -> None:
    with nothing_left():
        batches = loader(tmp_path)
        running = iter(batches)
        held = [next(running) for _ in range(3)]
        batches.close()
        assert numbers_of(held) == EXPECTED[:3]
        del held, running


@pytest.mark.slow
def test_two_loaders_at_once(tmp_path: Path) -> None:
    with nothing_left():
        pairs = list(zip(loader(tmp_path), loader(tmp_path), strict=True))
        assert numbers_of(one for one, _ in pairs) == numbers_of(other for _, other in pairs) == EXPECTED
        del pairs


@pytest.mark.slow
def test_an_abandoned_iteration_leaves_nothing_and_the_next_begins_again(tmp_path: Path) -> None:
    with nothing_left():
        batches = loader(tmp_path)
        running = iter(batches)
        next(running)
        del running
        assert numbers_of(batches) == EXPECTED


@pytest.mark.slow
def test_a_state_with_processes_continues_with_threads(tmp_path: Path) -> None:
    batches = loader(tmp_path)
    running = iter(batches)
    before = numbers_of(next(running) for _ in range(5))
    state = batches.state_dict()
    batches.close()
    other = loader(tmp_path, workers=0)
    other.load_state_dict(state)
    assert before + numbers_of(other) == EXPECTED


@pytest.mark.slow
def test_an_error_keeps_its_type_and_brings_its_traceback(tmp_path: Path) -> None:
    with nothing_left():
        with pytest.raises(LookupError, match="number 50 is not here") as raised:
            numbers_of(loader(tmp_path, raise_lookup))
        notes = "\n".join(raised.value.__notes__)
        assert "raised in worker" in notes and "process_kit.py" in notes and "in raise_lookup" in notes
        del raised


@pytest.mark.slow
def test_an_error_that_cannot_be_pickled_brings_its_text(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"Local: of a local class") as raised:
        numbers_of(loader(tmp_path, raise_unpicklable))
    assert "in raise_unpicklable" in "\n".join(raised.value.__notes__)


class _FailsToUnpickle:
    """A dataset that a spawned worker cannot unpickle, such as one whose module it does not find."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return numbers

    def __setstate__(self, state: dict[str, Any]) -> None:
        (state["folder"] / f"{os.getpid()}").touch()
        raise ModuleNotFoundError("no module of mine")


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_worker_that_cannot_begin_names_its_error_and_is_started_once(tmp_path: Path, context: Any) -> None:
    with pytest.raises(LoaderError, match=r"worker 0 .* ModuleNotFoundError: no module of mine before its first batch"):
        list(BatchLoader(_FailsToUnpickle(tmp_path), PLAN, workers=1, context=context))
    assert len(list(tmp_path.iterdir())) == 1


UNGUARDED = """
from ais_loader import BatchLoader
with open("started", "a") as file:
    file.write("x")
list(BatchLoader(list(range(8)), [[0, 1]], workers=1, context="spawn"))
"""


@pytest.mark.slow
def test_a_program_without_a_guard_is_told_so_and_starts_one_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNGUARDED)
    ended = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert re.search(r"LoaderError: worker 0 \(pid \d+\) ended with status 1 before its first batch", ended.stderr)
    assert (tmp_path / "started").read_text() == "xx"


def local_batch(samples: list[Any]) -> Any:
    return lambda: samples


@pytest.mark.slow
def test_a_batch_that_cannot_be_pickled_is_an_error_of_its_step(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="local_batch"):
        next(iter(loader(tmp_path, collate=local_batch)))


@pytest.mark.slow
def test_full_memory_is_one_warning_and_batches_go_through_sockets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), nothing_left():
        batches = BatchLoader(_Limited(tmp_path), PLAN, workers=2, in_flight=4, collate=collate)
        assert numbers_of(batches) == EXPECTED
    assert [record.message for record in caplog.records if "no shared memory" in record.message] != []
    assert len([record for record in caplog.records if "no shared memory" in record.message]) == 1


FULL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from process_kit import EXPECTED, loader, numbers_of

assert Path("/dev/shm/full").write_bytes(bytes(100 << 10)) and Path("/dev/shm").stat().st_dev != Path("/").stat().st_dev
try:
    Path("/dev/shm/more").write_bytes(bytes(100 << 10))
except OSError:
    print(numbers_of(loader(Path(sys.argv[2]))) == EXPECTED)
"""


@pytest.mark.slow
def test_a_full_shared_folder_is_not_used(tmp_path: Path) -> None:
    """In a namespace whose /dev/shm is small: that of the machine has files of others."""
    inside = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=128k none /dev/shm && exec "$@"', "-"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    program = [sys.executable, "-W", "ignore", "-c", FULL, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run([*inside, *program], capture_output=True, text=True, timeout=450)
    assert (done.stdout, done.stderr) == ("True\n", "")


class _Limited(Samples):
    def __getitems__(self, numbers: list[int]) -> list[Any]:
        limit_memory(self.folder, "before")
        return super().__getitems__(numbers)


@pytest.mark.slow
def test_workers_are_processes_of_their_own(tmp_path: Path) -> None:
    batches = loader(tmp_path)
    running = iter(batches)
    next(running)
    assert len({process.pid for process in processes_of(batches)}) == 2
    batches.close()


@pytest.mark.parametrize(
    "options, told", [({"context": "thread"}, "context='thread'"), ({"max_restarts": -1}, "max_restarts=-1")]
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        loader(tmp_path, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_pinning_needs_an_accelerator_and_processes(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no CUDA device"):
        loader(tmp_path, pin_memory=True)
    with pytest.raises(InvalidRequest, match="memory of worker processes"):
        loader(tmp_path, pin_memory=True, workers=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: page-locked slots")
def test_pinned_batches_are_page_locked(tmp_path: Path) -> None:
    with nothing_left():
        batches = list(loader(tmp_path, pin_memory=True))
        assert batches[0]["x"].is_pinned()
        assert numbers_of(batches) == EXPECTED
        del batches


@pytest.mark.sampled(1)
@pytest.mark.every_transport
@pytest.mark.slow
@pytest.mark.fresh_process
def test_workers_are_forked_while_sessions_are_open(client: Client, bucket_name: str) -> None:
    bucket = client.create_bucket(bucket_name)
    bucket.put_many((f"{at:03}", bytes([at]) * 9000) for at in range(COUNT))
    dataset = MapDataset(client, [f"ais://{bucket_name}/{at:03}" for at in range(COUNT)])
    open_batch = client.get_batch([f"ais://{bucket_name}/{at:03}" for at in range(COUNT)])
    plan = ShufflePlan(COUNT, BATCH, seed=3)
    batches = BatchLoader(dataset, plan, workers=2)
    for _ in range(2):
        got = list(batches)
        assert sorted(sample[0] for batch in got for sample in batch) == list(range(COUNT))
        assert all(len(sample) == 9000 for batch in got for sample in batch)
    assert [bytes(item.data[:1]) for item in open_batch] == [bytes([at]) for at in range(COUNT)]
