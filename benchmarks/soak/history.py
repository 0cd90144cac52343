"""History of a run: every operation of every client, written down before it is called and when it has ended.

One append-only file for each process, a line for each beginning and each end. A line is handed to the kernel before the
call, so what a process that is killed had under way stands in its file without an end, and counts as unknown. Times are
of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["ok", "failed", "unknown"]
FOREVER = 1 << 62
"""When an operation ends that nobody saw end."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: from `begin_ns` to `end_ns`; failed: it has had no effect; unknown: it may have one, also later."""

    client: str
    number: int
    kind: str
    begin_ns: int
    end_ns: int
    outcome: Outcome
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    def told(self, start_ns: int = 0) -> str:
        """For people."""
        end = "no end" if self.end_ns == FOREVER else f"{(self.end_ns - start_ns) / 1e6:.3f}"
        said = " ".join(f"{name}={value!r}" for name, value in (*self.arguments.items(), *self.result.items()))
        begin = (self.begin_ns - start_ns) / 1e6
        return f"{begin:12.3f} .. {end:>12} ms  {self.client:>8} #{self.number} {self.kind} {self.outcome}  {said}"


class Recorder:
    """Writes the history of one process. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count()
        self.open: dict[int, tuple[str, int]] = {}
        """Operations under way, with client and beginning: what a watchdog looks at."""

    def begin(self, client: str, kind: str, **arguments: Any) -> int:
        number = next(self._numbers)
        self.open[number] = client, (now := time.monotonic_ns())
        self._write({"n": number, "c": client, "k": kind, "t": now, "a": arguments})
        return number

    def end(self, number: int, outcome: Outcome, **result: Any) -> None:
        self._write({"n": number, "o": outcome, "t": time.monotonic_ns(), "r": result})
        self.open.pop(number, None)

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_history(paths: Iterable[Path]) -> list[Operation]:
    """All operations of these files, by their beginnings. A last line that was cut is left out."""
    found: list[Operation] = []
    for path in paths:
        begun: dict[int, dict[str, Any]] = {}
        lines = path.read_bytes().split(b"\n")
        for line in lines[:-1]:
            said = json.loads(line)
            if "k" in said:
                begun[said["n"]] = said
            else:
                found.append(_operation(begun.pop(said["n"]), said["t"], said["o"], said["r"]))
        found += [_operation(one, FOREVER, "unknown", {}) for one in begun.values()]
    return sorted(found, key=lambda one: (one.begin_ns, one.client, one.number))


def _operation(begun: Mapping[str, Any], end_ns: int, outcome: Outcome, result: Mapping[str, Any]) -> Operation:
    return Operation(begun["c"], begun["n"], begun["k"], begun["t"], end_ns, outcome, begun["a"], result)
