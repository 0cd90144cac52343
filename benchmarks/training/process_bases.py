"""Three bases of worker processes, compared: batches of one embedded store, stacked, in the order of their numbers.

python -m benchmarks.training.process_bases            # writes the table beside this file

`torch` is torch's DataLoader over the numbers, made again as a whole at the position after a death. `spdl` is SPDL's
`iterate_in_subprocess` with a SharedMemorySegmentPool, one subprocess a worker, taking turns. It is left out if SPDL is
not installed. `own` is forked children with a socket each, which write into nameless memory (memfd). BatchLoader has
workers that came of it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import ais_loader
from ais_loader.loading.batch_loader import BatchLoader
from ais_loader.training.worker_exit import exit_with_trainer
from benchmarks.kit.files import plain_files
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.load import Load, fill
from benchmarks.kit.pages import publish

BATCH = 128
EPOCHS = 3
SLOT_BYTES = 2 << 20
TABLE = Path(__file__).with_suffix(".md")
Works = list[list[int]]
Fetch = Callable[[list[int]], torch.Tensor]
FAULTS = (
    "none",
    "killed before",
    "killed during",
    "killed after",
    "stalled",
    "trainer killed",
    "full /dev/shm",
    "fork",
)


# -- torch


def torch_base(fetch: Fetch, works: Works, workers: int) -> Iterator[Any]:
    done = 0
    while done < len(works):
        loader = DataLoader(
            _Steps(fetch, works[done:]), batch_size=None, num_workers=workers, collate_fn=_same, timeout=STALL_S
        )
        try:
            for batch in loader:
                done += 1
                yield batch
        except (OSError, EOFError):  # it died with a batch whose memory it had not handed over
            continue
        except RuntimeError as error:
            if not any(text in str(error) for text in ("exited unexpectedly", "killed by signal", "timed out")):
                raise


class _Steps(Dataset[Any]):
    def __init__(self, fetch: Fetch, works: Works) -> None:
        self.fetch, self.works = fetch, works

    def __len__(self) -> int:
        return len(self.works)

    def __getitem__(self, step: int) -> Any:
        return self.fetch(self.works[step])


def _same(batch: Any) -> Any:
    return batch


# -- SPDL


def spdl_base(fetch: Fetch, works: Works, workers: int) -> Iterator[Any]:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    done = 0
    while done < len(works):
        made = [
            iter(
                iterate_in_subprocess(
                    functools.partial(_Shard, fetch, works[done + at :: workers]),
                    buffer_size=2,
                    timeout=STALL_S,
                    daemon=True,
                    mp_context="fork",
                    arena=SharedMemorySegmentPool(SLOT_BYTES, 6),
                )
            )
            for at in range(workers)
        ]
        try:
            while done < len(works):
                yield next(made[0])
                done += 1
                made.append(made.pop(0))
        except Exception as error:  # noqa: BLE001 - several types, for a death and for a stall
            print("spdl:", type(error).__name__, error, file=sys.stderr)


class _Shard:
    def __init__(self, fetch: Fetch, works: Works) -> None:
        self.fetch, self.works = fetch, works

    def __iter__(self) -> Iterator[Any]:
        return map(self.fetch, self.works)


# -- own


def own_base(fetch: Fetch, works: Works, workers: int) -> Iterator[Any]:
    made = [_Own(fetch) for _ in range(workers)]
    given, found, delivered = iter(enumerate(works)), dict[int, Any](), 0
    try:
        while delivered < len(works):
            for one in made:
                while len(one.held) < 2 and (task := next(given, None)) is not None:
                    one.give(task)
            while delivered not in found:
                waited = [end for one in made for end in (one.conn, one.process.sentinel)]
                ready = wait(waited, timeout=STALL_S)
                for at, one in enumerate(made):
                    try:
                        if one.conn in ready:
                            found.update([one.take()])
                            continue
                        dead = one.process.sentinel in ready
                    except (EOFError, OSError):
                        dead = True
                    if dead or (not ready and one.held):
                        one.process.kill()
                        made[at] = _Own(fetch)
                        for task in one.held:
                            made[at].give(task)
            yield found.pop(delivered)
            delivered += 1
    finally:
        for one in made:
            one.process.kill()


class _Own:
    def __init__(self, fetch: Fetch) -> None:
        context = multiprocessing.get_context("fork")
        self.conn, end = context.Pipe()
        self.process = context.Process(target=_own_worker, args=(end, fetch), daemon=True)
        self.process.start()
        end.close()
        self.held: list[Any] = []
        self.slots: dict[int, mmap.mmap] = {}

    def give(self, task: Any) -> None:
        self.held.append(task)
        with contextlib.suppress(OSError):  # it died; `take` finds out
            self.conn.send(task)

    def take(self) -> tuple[int, Any]:
        step, at, shape = self.conn.recv()
        if at not in self.slots:
            file = recv_handle(self.conn)
            self.slots[at] = mmap.mmap(file, SLOT_BYTES)
            os.close(file)
        self.held = [task for task in self.held if task[0] != step]
        root = np.frombuffer(self.slots[at], np.uint8, math.prod(shape), 64)
        weakref.finalize(root, self.slots[at].__setitem__, 0, 0)
        return step, torch.from_numpy(root.reshape(shape))


def _own_worker(conn: Any, fetch: Fetch) -> None:
    exit_with_trainer()
    torch.set_num_threads(1)
    slots: list[mmap.mmap] = []
    while True:
        step, work = conn.recv()
        array = fetch(work).numpy()
        at = next((at for at, slot in enumerate(slots) if not slot[0]), len(slots))
        if made := at == len(slots):
            file = os.memfd_create("slot")
            os.posix_fallocate(file, 0, SLOT_BYTES)
            slots.append(mmap.mmap(file, SLOT_BYTES))
        slots[at][0] = 1
        np.frombuffer(slots[at], np.uint8, array.nbytes, 64)[:] = array.reshape(-1)
        conn.send((step, at, array.shape))
        if made:
            send_handle(conn, file, os.getppid())
            os.close(file)


# -- what they read, and what goes wrong


class Stacked:
    """A batch of objects of one size as a tensor (n, size_bytes)."""

    def __init__(self, dataset: Any, fault: str = "none", folder: str = "") -> None:
        self.dataset, self.fault, self.folder = dataset, fault, folder

    def __call__(self, numbers: list[int]) -> torch.Tensor:
        hit = self.fault != "none" and 999 in numbers and not os.path.exists(f"{self.folder}/hit")
        if hit:
            Path(self.folder, "hit").touch()
            if self.fault == "killed before":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault in ("stalled", "trainer killed"):
                time.sleep(1000)
        batch = torch.from_numpy(np.stack([np.frombuffer(one, np.uint8) for one in self.dataset.__getitems__(numbers)]))
        if hit and self.fault == "killed during":
            os.kill(os.getpid(), signal.SIGKILL)
        if hit and self.fault == "killed after":
            threading.Timer(0.003, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return batch


class FilesDataset(Dataset[Any]):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            return np.frombuffer(file.read(), np.uint8)


def _stack(samples: list[Any]) -> torch.Tensor:
    return torch.from_numpy(np.stack(samples))


def _stack_bytes(samples: list[bytes]) -> torch.Tensor:
    return _stack([np.frombuffer(one, np.uint8) for one in samples])


BASES = {"torch": torch_base, "spdl": spdl_base, "own": own_base}
STALL_S = 3.0


def fault_run(base: str, fault: str, store: str, folder: str) -> None:
    """One run, in a process of its own: prints the seconds it took, and "wrong" if the batches were."""
    client: Any = ais_loader.connect(store, mode="r") if fault == "fork" else store
    dataset = ais_loader.MapDataset(client, Load(url=store, objects=10_000, size="10240").entries)
    works = [list(range(at * 50, at * 50 + 50)) for at in range(200)]
    if fault == "fork":
        dataset[0]
    expected = [Stacked(dataset)(work)[:, :64].clone() for work in works[:25]]
    began_s, number = time.perf_counter(), 0
    for number, batch in enumerate(BASES[base](Stacked(dataset, fault, folder), works, 2)):
        if number < 25 and not torch.equal(batch[:, :64], expected[number]):
            print("wrong", end=" ")
    print(f"{'' if number == 199 else 'incomplete '}{time.perf_counter() - began_s:.1f} s")


def outcome(base: str, fault: str, store: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        code = "from benchmarks.training.process_bases import *; "
        code += f"fault_run({base!r}, {fault!r}, {str(store)!r}, {folder!r})"
        command = [sys.executable, "-W", "ignore", "-c", code]
        shared = Path(folder, "shm")  # others on this machine have files in /dev/shm too
        shared.mkdir()
        mount = "mount -t tmpfs -o size=256k none" if fault == "full /dev/shm" else f"mount --bind {shared}"
        command = ["unshare", "-m", "sh", "-c", f'{mount} /dev/shm && exec "$@"', "-", *command]
        trainer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            if fault != "trainer killed":
                text = trainer.communicate(timeout=60)[0].decode().strip()
                return text or f"ends with {trainer.returncode}"
            deadline = time.monotonic() + 30
            while not Path(folder, "hit").exists() and trainer.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            trainer.kill()
            trainer.wait()
            killed_s = time.monotonic()
            while _alive(trainer.pid) and time.monotonic() < killed_s + 8:
                time.sleep(0.02)
            left = len(list(shared.iterdir()))
            ended = "workers live on" if _alive(trainer.pid) else f"ended in {time.monotonic() - killed_s:.1f} s"
            return f"{ended}, {left} files left" if left else ended
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trainer.pid, signal.SIGKILL)
            trainer.wait()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def faults_table(bases: list[str], store: Path) -> str:
    lines = [f"| fault | {' | '.join(bases)} |", f"|---|{'---|' * len(bases)}"]
    for fault in FAULTS:
        lines.append(f"| {fault} | {' | '.join(outcome(base, fault, store) for base in bases)} |")
    parts = {"torch": (torch_base, _Steps, _same), "spdl": (spdl_base, _Shard), "own": (own_base, _Own, _own_worker)}
    sizes = [str(sum(len(inspect.getsource(one).splitlines()) for one in parts[base])) for base in bases]
    return "\n".join([*lines, f"| lines of code | {' | '.join(sizes)} |"])


@click.command(help=__doc__)
@click.option("--objects", default=20_000, show_default=True)
@click.option("--size", "size_bytes", default=10 << 10, show_default=True, help="Object size in bytes.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(objects: int, size_bytes: int, rounds: int, write: bool) -> None:
    bases = list(BASES)
    try:
        import spdl.pipeline  # noqa: F401
    except ImportError:
        bases.remove("spdl")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        load = fill(store, objects, size_bytes)
        numbers = list(range(objects))
        random.Random(1).shuffle(numbers)
        works = [numbers[at : at + BATCH] for at in range(0, objects, BATCH)] * EPOCHS
        dataset = ais_loader.MapDataset(store, load.entries)
        files = FilesDataset(plain_files(Path(folder) / "files", objects, size_bytes))
        contestants: dict[str, Callable[[], float]] = {}

        def rate(batches: Callable[[], Any]) -> Callable[[], float]:
            def run() -> float:
                began_s = time.perf_counter()
                count = sum(int(batch[:, 0].numel()) for batch in batches())
                return count / (time.perf_counter() - began_s)

            return run

        for base in bases:
            contestants[base] = rate(functools.partial(BASES[base], Stacked(dataset), works, 2))
        ours = BatchLoader(dataset, works, workers=2, in_flight=4, collate=_stack_bytes)
        contestants["BatchLoader"] = rate(lambda: ours)
        plain = "files in torch's DataLoader"
        contestants[plain] = rate(
            lambda: DataLoader(files, batch_sampler=works, num_workers=2, collate_fn=_stack)  # type: ignore[arg-type]
        )
        rates = run_rounds(contestants, rounds)
        fill(Path(folder) / "faults", 10_000, 10 << 10)
        table = faults_table(bases, Path(folder) / "faults")
    claims = [Claim(one, plain, 1.8) for one in [*bases, "BatchLoader"]]
    setting = (
        f"{rounds} rounds of {EPOCHS} epochs with 2 workers, which are started each time; {objects:,} objects of "
        f"{size_bytes:,} bytes, in batches of {BATCH}."
    )
    publish(
        "Bases of worker processes", __doc__, setting, rates, "samples/s", claims, table, table=TABLE if write else None
    )


if __name__ == "__main__":
    main()
