"""Crash harness: children that work on a store until they die, and a judge of what they leave.

A worker announces each operation in a journal before it begins and acknowledges it when the store has; the journal is
a file that is only appended to, so that it survives the worker. The judge knows from it which states of each object
are possible: exactly one when nothing was under way, the old or the new one when the last operation was not
acknowledged. All bytes follow from a state's number, so that any mix of two states is recognised.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_loader.errors import BucketNotFound
from storage_node.store import failpoints
from storage_node.store.drive.bucket_usage import wrong_counts
from storage_node.store.fsck.fsck import check
from storage_node.store.quotas import Use
from storage_node.store.store import Store
from tests.store.store_kit import names, read

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = ("tests.faults.crash_tasks", "tests.faults.crash_kit", "rocksdict", "numpy", "storage_node.store.fsck.fsck")

State = int | None
"""The number of the put that an object's bytes come from; None where there is no object."""


class CrashServer:
    """See crash_server.py. Use as a context manager."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.crash_server", *MODULES],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, **(env or {})},
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, task: str, **arguments: Any) -> int:
        """Run a function of crash_tasks in a child of its own; its pid."""
        return int(self._ask({"run": f"tests.faults.crash_tasks:{task}", "with": arguments})["pid"])

    def wait(self, pid: int) -> int:
        """The child's exit code, or -N when signal N ended it."""
        return int(self._ask({"wait": pid})["status"])

    def run(self, task: str, **arguments: Any) -> int:
        return self.wait(self.start(task, **arguments))

    def __enter__(self) -> CrashServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=180)


def content(name: str, number: int, size: int) -> bytes:
    """The bytes of one state of one object; the first say which."""
    head = f"{name}:{number}:{size};".encode()
    return head + hashlib.shake_128(head).digest(max(0, size - len(head)))


def state_of(name: str, data: bytes) -> int:
    """Which state these bytes are; AssertionError when they are none, or a mix."""
    label, _, _ = data.partition(b";")
    owner, number, size = label.decode().rsplit(":", 2)
    assert owner == name, f"{name!r} has the bytes of {owner!r}"
    assert data == content(name, int(number), int(size)), f"{name!r}: damaged, or a mix of states"
    return int(number)


class Journal:
    """Announcements and acknowledgements, as lines of JSON that survive the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _note(self, what: str, **fields: Any) -> None:
        os.write(self._fd, (json.dumps({"what": what, **fields}) + "\n").encode())

    def begin(self, worker: int, changes: dict[str, State], groups: Sequence[Sequence[str]]) -> None:
        """`groups`: the names that change together or not at all."""
        self._note("begin", worker=worker, changes=changes, groups=groups)

    def done(self, worker: int) -> None:
        self._note("done", worker=worker)


class Expected:
    """What a store may hold, from the journals so far."""

    def __init__(self) -> None:
        self.sure: dict[str, State] = {}
        self.open: list[tuple[dict[str, State], list[list[str]]]] = []
        self.acknowledged = 0

    def learn(self, journal: Path) -> None:
        """Take in the journal of a worker that is dead by now."""
        begun: dict[int, tuple[dict[str, State], list[list[str]]]] = {}
        for line in journal.read_text().splitlines():
            note = json.loads(line)
            if note["what"] == "begin":
                begun[note["worker"]] = note["changes"], note["groups"]
            else:
                changes, _ = begun.pop(note["worker"])
                self.sure.update(changes)
                self.acknowledged += 1
        self.open = list(begun.values())

    def judge(self, found: Mapping[str, State]) -> None:
        """Raise AssertionError unless `found` is a possible outcome; afterwards it is the sure one."""
        allowed = dict(self.sure)
        for changes, groups in self.open:
            for group in groups:
                happened = [found.get(name) == changes[name] for name in group]
                unchanged = [found.get(name) == self.sure.get(name) for name in group]
                assert all(happened) or all(unchanged), f"half of a group: {group}, {happened}, {unchanged}"
                if all(happened):
                    allowed.update({name: changes[name] for name in group})
        expected = {name: state for name, state in allowed.items() if state is not None}
        assert found == expected, _difference(found, expected)
        self.sure, self.open = dict(allowed), []


def _difference(found: Mapping[str, State], expected: Mapping[str, State]) -> str:
    wrong = {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)}
    return "; ".join(f"{name!r} is {found.get(name)}, acknowledged was {expected.get(name)}" for name in sorted(wrong))


def holdings(store: Store, buckets: Sequence[str]) -> dict[str, State]:
    """The state of every object, and of every bucket (as `bucket/`: 1 when it is there)."""
    found: dict[str, State] = {}
    for bucket in buckets:
        try:
            listed = names(store, bucket=bucket)
        except BucketNotFound:
            continue
        found[f"{bucket}/"] = 1
        for name in listed:
            found[f"{bucket}/{name}"] = state_of(f"{bucket}/{name}", read(store, name, bucket))
    return found


def assert_counted(store: Store) -> None:
    """Exactly the buckets with a quota are counted, on every drive, and the counts are what a scan finds."""
    for drive in store.drives:
        assert drive is not None
        assert not list(wrong_counts(drive.catalog))
        for name, bucket in store.buckets().items():
            assert (drive.changes.usage.use(bucket.uuid_bytes) is not None) == bucket.has_quota, name
    for name, bucket in store.buckets().items():
        entries = [entry for _, entry in store.objects(name)]
        found = Use(len(entries), sum(entry.size_bytes for entry in entries))
        assert store.use(name) == (found if bucket.has_quota else None), name


def assert_tidy(roots: Sequence[Path]) -> None:
    """No orphan, no leftover, no damage."""
    report = check(roots, checksums=True)
    assert not report.findings, report.findings
    assert all(drive.waiting == 0 and drive.staged == 0 for drive in report.drives), report.drives


def arm(point: str) -> None:
    failpoints.arm(point)
