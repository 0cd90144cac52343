"""Outcome of one part of a soak: its figures, its verdict, and the evidence that a failed run leaves behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak.checker import Rules, Verdict, check
from benchmarks.soak.history import Operation, read_history
from benchmarks.soak.register import Violation

SHOWN = 20
"""Violations of which extracts are made."""
_AROUND = 400
"""Operations on a key that its extract shows at most."""


@dataclass(slots=True)
class Outcome:
    """Actions and findings of a part."""

    name: str
    seed: int
    duration_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    """Actions on processes and nodes, such as kills."""
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    undecided: int = 0
    slowest_s: float = 0.0
    evidence: str = ""
    """Where a failed run left its history."""
    tree: str = ""
    """The commit that ran, and whether anything was changed since."""
    note: str = ""
    """Note of a person who examined it, written into the outcome's file by hand."""
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Repeated measurements: minutes since the start, and the value at that time."""

    @property
    def clean(self) -> bool:
        return not self.violations

    def take(self, verdict: Verdict) -> None:
        self.counts += verdict.counts
        self.errors += verdict.errors
        self.violations += verdict.violations
        self.undecided += len(verdict.undecided)
        self.slowest_s = max(self.slowest_s, verdict.slowest_s)

    @property
    def operations(self) -> int:
        return sum(count for kind, count in self.counts.items() if not kind.startswith("fault"))

    def json(self) -> dict[str, Any]:
        said = {
            name: getattr(self, name)
            for name in ("name", "seed", "duration_s", "undecided", "slowest_s", "evidence", "tree", "note", "series")
        }
        said |= {"events": dict(self.events), "counts": dict(self.counts), "errors": dict(self.errors)}
        said |= {"operations": self.operations, "figures": self.figures}
        said["violations"] = [{"kind": wrong.kind, "key": wrong.key, "text": wrong.text} for wrong in self.violations]
        return said

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `json` wrote, without the operations that show violations."""
        plain = ("name", "seed", "duration_s", "undecided", "slowest_s", "evidence", "figures")
        made = cls(
            **{name: said[name] for name in plain},
            tree=said.get("tree", ""),
            note=said.get("note", ""),
            series=said.get("series", {}),
        )
        made.events, made.counts, made.errors = (Counter(said[name]) for name in ("events", "counts", "errors"))
        made.violations = [Violation(one["kind"], one["key"], one["text"]) for one in said["violations"]]
        return made


def judge(folder: Path, rules: Rules, killed: Iterable[str] = ()) -> Verdict:
    """Judge the history files of a folder, and keep beside them what they are judged by.

    Args:
        killed: clients whose processes were.
    """
    gone = frozenset(killed)
    told = {"rules": {**asdict(rules), "also_allowed": sorted(rules.also_allowed)}, "killed": sorted(gone)}
    (folder / "rules.json").write_text(json.dumps(told, indent=1))
    operations = read_history(sorted(folder.glob("*.jsonl")))
    verdict = check(operations, rules, gone.__contains__)
    if not verdict.clean:
        write_evidence(folder, operations, verdict.violations)
    return verdict


def judge_again(folder: Path) -> Verdict:
    """Judge what a run has left behind."""
    told = json.loads((folder / "rules.json").read_text())
    rules = {**told["rules"], "also_allowed": frozenset(told["rules"]["also_allowed"])}
    return judge(folder, Rules(**rules), told["killed"])


def write_evidence(folder: Path, operations: Sequence[Operation], violations: Sequence[Violation]) -> None:
    """For each violation a file with the operations that show it, and then all of its key that came until then."""
    start_ns = operations[0].begin_ns if operations else 0
    for at, wrong in enumerate(violations[:SHOWN]):
        lines = [f"{wrong.kind}: {wrong.key}: {wrong.text}", "", "what shows it:"]
        lines += [_told(one, wrong.key, start_ns) for one in wrong.operations[:_AROUND]]
        last_ns = max((one.begin_ns for one in wrong.operations), default=0)
        of_key = [
            one for one in operations if one.begin_ns <= last_ns and (one.kind == "fault" or _names(one, wrong.key))
        ]
        lines += ["", "the key and the faults until then:"]
        lines += [_told(one, wrong.key, start_ns) for one in of_key[-_AROUND:]]
        (folder / f"violation-{at:02}.txt").write_text("\n".join(lines) + "\n")


def _names(one: Operation, key: str) -> bool:
    arguments = one.arguments
    if one.kind == "put_many":
        return any(name == key for name, _ in arguments["objects"])
    if one.kind == "list":
        return bool(key.startswith(arguments["prefix"]))
    return key == arguments.get("key") or key in arguments.get("keys", ()) or one.kind == "snapshot"


def _told(one: Operation, key: str, start_ns: int) -> str:
    """An operation with what it has of this key alone."""
    arguments, result = dict(one.arguments), dict(one.result)
    items = result.pop("items", ())
    if one.kind == "put_many":
        arguments["objects"] = [pair for pair in arguments["objects"] if pair[0] == key]
        result["items"] = [item for item, pair in zip(items, one.arguments["objects"], strict=False) if pair[0] == key]
    elif one.kind in ("read", "delete_many"):
        names = arguments.pop("keys")
        result["items"] = [item for item, name in zip(items, names, strict=False) if name == key]
    elif one.kind == "list":
        result |= {"items": [item for item in items if item[0] == key], "names": len(items)}
    made = Operation(one.client, one.number, one.kind, one.begin_ns, one.end_ns, one.outcome, arguments, result)
    return made.told(start_ns)
