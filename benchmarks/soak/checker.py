"""Checker of a run's history: from what clients asked and were told, what cannot be.

Pure; nothing of the product is imported. Kinds of operations, with their arguments and results:

| kind | arguments | result |
|---|---|---|
| put | key, value, expected: `*`, a value, or None for "nothing" | version, or error |
| put_many | objects: [key, value] each | items: [outcome, version or error] each |
| delete | key, expected | error |
| delete_many | keys, no key twice | items: [outcome, error] each |
| read | keys, start, length, snapshot, copy, quiet | items: [state, value, size, crc, version] each, or error |
| list | prefix, snapshot | items: [name, value, version] each, or error |
| snapshot, delete_snapshot | name | error |
| fault | what was done to nodes or processes | |

A read's state is "ok", "absent", or "" for what was not answered. `copy` names whose drives were read, after the end;
`quiet` says that nothing was wrong with any node, so that there had to be an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.content import size_of, sum_of
from benchmarks.soak.history import FOREVER, Operation
from benchmarks.soak.register import ANY, Conflict, Model, Read, Register, Violation, Write

EXPECTED_ERRORS = frozenset(
    {
        "object-not-found",
        "object-deleted",
        "object-replaced",
        "version-conflict",
        "snapshot-not-found",
        "snapshot-exists",
        "node-unavailable",
        "outcome-unknown",
        "overloaded",
        "timeout",
        "unavailable",
        "clock-offset",
        "stale-map",
        "write-too-late",
        "drive-full",
        "drive-failed",
        "unsupported",
    }
)
"""Permitted answers to a client; any other answer is a violation of its own."""
UNTOLD = "?"
"""Value of a listed object where the listing does not tell it."""
NOTHING_THERE = ("object-not-found", "object-deleted")
ANSWERS = frozenset({*NOTHING_THERE, "object-replaced", "snapshot-not-found", "overloaded", "timeout"})
"""How a read may end where all nodes are up and an intact copy of everything exists: a version that it asked for may
have been replaced, and a machine may be busy."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Guarantees of a run."""

    model: Model
    deadline_s: float = 120.0
    """Every call ends within it."""
    slack_s: float = 0.0
    """Maximum delay of readers beside a writer."""
    listed_beside: bool = True
    """This delay is that of listings beside a writer, too. Otherwise they show what is stored, however old it is."""
    copies: int = 1
    """How many copies there are of each object after quiescence."""
    also_allowed: frozenset[str] = frozenset()
    """Further kinds of errors."""
    versions: bool = True
    """An object keeps its version. Otherwise, versions are ignored, and a refused condition says nothing of the object:
    a copy that is fetched again has another version."""
    answers: bool = False
    """Every read is answered: no node is down, and each object has an intact copy."""


@dataclass(slots=True)
class Verdict:
    violations: list[Violation] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """Keys whose search for an order came to no end."""
    counts: Counter[str] = field(default_factory=Counter)
    """Operations by kind and outcome."""
    errors: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.violations


class _ByKey(defaultdict[str, Register]):
    def __missing__(self, key: str) -> Register:
        self[key] = made = Register(key)
        return made


def check(operations: Sequence[Operation], rules: Rules, killed: Callable[[str], bool] = lambda _: False) -> Verdict:
    """Judge a history. `killed` says of a client whether its process was, so that a call of its may have no end."""
    verdict = Verdict()
    wrong = verdict.violations
    registers = _ByKey()
    snapshots: dict[str, _Snapshot] = {}
    lists: list[Operation] = []
    copies: dict[str, dict[str, tuple[Any, Operation]]] = defaultdict(dict)
    for one in operations:
        _count(one, verdict)
        wrong += _life_faults(one, rules, killed)
        if one.kind == "snapshot":
            snapshots[one.arguments["name"]] = _Snapshot(one)
        elif one.kind in ("put", "put_many", "delete", "delete_many"):
            _take_writes(one, registers)
    slack_ns = int(rules.slack_s * 1e9)
    for one in operations:
        if one.outcome != "ok":
            continue
        made = None
        if name := one.arguments.get("snapshot"):
            # One that was made before this history began has nothing of it.
            before = Operation("before", 0, "snapshot", 0, 0, "ok", {"name": name})
            made = snapshots.setdefault(name, _Snapshot(before))
        if one.kind == "list":
            lists.append(one)
            wrong += _form_faults(one)
            for name, value, version in one.result["items"] if made is None else ():
                if value == UNTOLD or (one.arguments.get("beside") and not rules.listed_beside):
                    continue
                # A listing is made page by page, and each name is found at some moment of it.
                begin_ns = one.begin_ns - (slack_ns if one.arguments.get("beside") else 0)
                registers[name].reads.append(Read(one, value, begin_ns, one.end_ns, _version(version), False))
            if made is not None:
                made.take_list(one)
        elif one.kind == "read":
            for key, (state, value, size, crc, version) in zip(one.arguments["keys"], one.result["items"], strict=True):
                if not state:
                    continue
                wrong += _byte_faults(one, key, value, size, crc)
                if made is not None:
                    made.take(key, value, one)
                    continue
                if (copy := one.arguments.get("copy")) is not None:
                    copies[key][copy] = (value, version), one
                    continue
                beside = bool(one.arguments.get("beside"))
                begin_ns = one.begin_ns - (slack_ns if beside else 0)
                registers[key].reads.append(Read(one, value, begin_ns, one.end_ns, _version(version), not beside))
    for key, found_on in copies.items():
        for (value, version), one in found_on.values():
            if value is not None or all(state[0] is None for state, _ in found_on.values()):
                registers[key].reads.append(Read(one, value, one.begin_ns, one.end_ns, _version(version)))
    if not rules.versions:
        for register in registers.values():
            register.forget_versions()
    for snapshot in snapshots.values():
        wrong += snapshot.faults(registers, rules.model)
    for register in registers.values():
        found, finished = register.check(rules.model)
        wrong += found
        if not finished:
            verdict.undecided.append(register.key)
    for one in lists:
        if not one.arguments.get("snapshot"):
            wrong += _list_faults(one, registers, rules, slack_ns)
    wrong += _copy_faults(copies, registers, rules)
    return verdict


def _count(one: Operation, verdict: Verdict) -> None:
    verdict.counts[f"{one.kind} {one.outcome}"] += 1
    for error in _errors(one):
        verdict.errors[error] += 1
    if one.end_ns < FOREVER and one.kind != "fault":
        verdict.slowest_s = max(verdict.slowest_s, (one.end_ns - one.begin_ns) / 1e9)


def _errors(one: Operation) -> Iterable[str]:
    if error := one.result.get("error"):
        yield str(error)
    if one.kind in ("put_many", "delete_many"):
        yield from (str(said) for outcome, said in one.result.get("items", ()) if outcome != "ok")
    if one.kind == "read":
        yield from (str(item[1]) for item in one.result.get("items", ()) if not item[0])


def _text(one: Operation, error: str) -> str:
    """Return the message of an error, to be appended to what is said of it."""
    failed = [item[4] for item in one.result.get("items", ()) if one.kind == "read" and item[:2] == ["", error]]
    text = one.result.get("text") or (failed[0] if failed else "")
    return f": {text}" if text else ""


def _life_faults(one: Operation, rules: Rules, killed: Callable[[str], bool]) -> Iterable[Violation]:
    key = str(one.arguments.get("key", ""))
    if one.end_ns == FOREVER and not killed(one.client):
        yield Violation("hangs", key, f"{one.kind} of {one.client} has no end", (one,))
    elif one.end_ns < FOREVER and one.kind != "fault" and one.end_ns - one.begin_ns > rules.deadline_s * 1e9:
        yield Violation("hangs", key, f"{one.kind} took more than {rules.deadline_s:g} s", (one,))
    if one.arguments.get("quiet") and (unanswered := [*_errors(one)]):
        said = f"{one.kind} ended with {unanswered[0]} when all was well{_text(one, unanswered[0])}"
        yield Violation("not answered", key, said, (one,))
    if rules.answers and one.kind in ("read", "list"):
        for error in set(_errors(one)) - ANSWERS:
            said = f"{one.kind} ended with {error}, and a good copy was there{_text(one, error)}"
            yield Violation("not answered", key, said, (one,))
    for error in set(_errors(one)) - EXPECTED_ERRORS - rules.also_allowed:
        yield Violation(f"error: {error}", key, f"{one.kind} ended with {error}", (one,))


def _take_writes(one: Operation, registers: _ByKey) -> None:
    if one.kind == "put_many":
        items = one.result.get("items", ())
        for at, (key, value) in enumerate(one.arguments["objects"]):
            outcome, said = items[at] if at < len(items) else ("unknown", None)
            version = _version(said) if outcome == "ok" else None
            registers[key].writes.append(Write(one, value, outcome, version))
        return
    if one.kind == "delete_many":
        items = one.result.get("items", ())
        for at, key in enumerate(one.arguments["keys"]):
            outcome, said = items[at] if at < len(items) else ("unknown", "")
            _take_deletion(one, registers[key], outcome, said, ANY)
        return
    register, error = registers[one.arguments["key"]], one.result.get("error")
    expected = one.arguments.get("expected", ANY)
    if one.kind == "delete":
        _take_deletion(one, register, one.outcome, error, expected)
        if one.outcome == "failed" and error in NOTHING_THERE:
            return
    else:
        version = _version(one.result.get("version")) if one.outcome == "ok" else None
        register.writes.append(Write(one, one.arguments["value"], one.outcome, version, expected))
    if error == "version-conflict":
        register.conflicts.append(Conflict(one, expected))
    elif expected != ANY and one.outcome == "ok":
        register.reads.append(Read(one, expected, one.begin_ns, one.end_ns))


def _take_deletion(one: Operation, register: Register, outcome: Any, error: Any, expected: str | None) -> None:
    if outcome == "failed" and error in NOTHING_THERE:
        register.reads.append(Read(one, None, one.begin_ns, one.end_ns))
    else:
        register.writes.append(Write(one, None, outcome, None, expected))


def _version(text: str | None) -> tuple[int, ...] | None:
    """Return a version that can be compared; None for that of an object that is not stored."""
    return tuple(map(int, text.split("."))) if text and not text.startswith("etag:") else None


def _byte_faults(one: Operation, key: str, value: str | None, size: int | None, crc: int | None) -> Iterable[Violation]:
    """Check that the bytes read are those of the value that they name, in the requested number."""
    if value is None or size is None:
        return
    start, length = one.arguments.get("start", 0), one.arguments.get("length")
    whole = size_of(value)
    wanted = max(0, whole - start) if length is None else min(length, max(0, whole - start))
    if size != wanted:
        yield Violation("wrong length", key, f"{size} bytes of {value} where there are {wanted}", (one,))
    elif crc is not None and sum_of(value, start, length)[1] != crc:
        yield Violation("torn bytes", key, f"what begins as {value} is not it", (one,))


# -- listings


def _form_faults(one: Operation) -> Iterable[Violation]:
    names = [item[0] for item in one.result["items"]]
    prefix = one.arguments["prefix"]
    if names != sorted(names, key=str.encode):
        yield Violation("listing without order", prefix, "names are not in the order of their bytes", (one,))
    if len(set(names)) != len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        yield Violation("listed twice", twice, "a name stands twice in one listing", (one,))
    for name in names:
        if not name.startswith(prefix):
            yield Violation("listed elsewhere", name, f"not below {prefix!r}", (one,))


def _list_faults(one: Operation, registers: _ByKey, rules: Rules, slack_ns: int) -> Iterable[Violation]:
    """Check that a listing has all objects that existed throughout it, and none that was absent throughout."""
    names = {item[0] for item in one.result["items"]}
    begin_ns = one.begin_ns - (slack_ns if one.arguments.get("beside") else 0)
    for key, register in list(registers.items()):
        if not key.startswith(one.arguments["prefix"]):
            continue
        effects = register.effects(rules.model)
        if key not in names:
            found = effects.fault(Read(one, None, begin_ns, one.end_ns))
            if found is not None:
                yield Violation("not listed", key, f"{found.text}: a listing lacks it", found.operations)


# -- snapshots


class _Snapshot:
    """Reads of one snapshot, which must all show one moment of the bucket."""

    def __init__(self, made: Operation) -> None:
        self.made = made
        self._found: dict[str, tuple[str | None, Operation]] = {}
        self._wrong: list[Violation] = []
        self._first_ns = FOREVER

    @property
    def name(self) -> str:
        return str(self.made.arguments["name"])

    def take(self, key: str, value: str | None, one: Operation) -> None:
        self._first_ns = min(self._first_ns, one.end_ns)
        known = self._found.setdefault(key, (value, one))
        if known[0] != value:
            said = f"{self.name} had {known[0]}, then {value}"
            self._wrong.append(Violation("snapshot changed", key, said, (self.made, known[1], one)))

    def take_list(self, one: Operation) -> None:
        names = {item[0] for item in one.result["items"]}
        for name, value, _ in one.result["items"]:
            self.take(name, value, one)
        for key, (value, _) in list(self._found.items()):
            if value is not None and key not in names and key.startswith(one.arguments["prefix"]):
                self.take(key, None, one)

    def faults(self, registers: _ByKey, model: Model) -> Iterable[Violation]:
        """Each key as it was at one moment between beginning and end of the call; and the same moment for all: whoever
        was acknowledged before something that the snapshot has was begun is in it too.
        """
        yield from self._wrong
        if self.made.outcome == "failed" and self._found:
            yield Violation("refused, and done", self.name, "a snapshot that was refused can be read", (self.made,))
        begin_ns = self.made.begin_ns
        latest: Operation | None = None
        for key, (value, _) in self._found.items():
            write = registers[key].effects(model).by_value.get(value) if value is not None else None
            if write is not None and write.begin_ns > begin_ns:
                begin_ns, latest = write.begin_ns, write.operation
        end_ns = min(self.made.end_ns, self._first_ns)
        for key, (value, one) in self._found.items():
            effects = registers[key].effects(model)
            write = effects.by_value.get(value) if value is not None else None
            if value is not None and write is None:
                yield Violation("bytes of nobody", key, f"nobody put {value}, which is in {self.name}", (one,))
            elif write is not None and write.begin_ns > end_ns:
                said = f"{self.name} has {value}, begun after it was made"
                yield Violation("snapshot of later", key, said, (self.made, write.operation, one))
            found = effects.fault(Read(one, value, begin_ns, end_ns))
            if found is not None:
                shown = (self.made, *((latest,) if latest is not None else ()), *found.operations)
                said = f"{self.name} is not of one moment, or too old: {found.text}"
                yield Violation("snapshot is no cut", key, said, shown)


# -- copies


def _copy_faults(
    copies: dict[str, dict[str, tuple[Any, Operation]]], registers: _ByKey, rules: Rules
) -> Iterable[Violation]:
    """After quiescence all copies are equal, and there are as many as there should be.

    Without versions, the copies are those of a store and of its remote storage. They may differ in a write of unknown
    outcome: until it is repeated, one of them may have it alone.
    """
    for key, found in copies.items():
        unknown = {write.value for write in registers[key].writes if write.outcome == "unknown"}
        if not rules.versions and any(value in unknown for (value, _), _ in found.values()):
            continue
        there = {copy: state for copy, (state, _) in found.items() if state[0] is not None}
        shown = tuple(one for _, one in found.values())
        if len(set(there.values())) > 1:
            yield Violation("copies differ", key, str(there), (*_latest(registers[key]), *shown))
        elif there and len(there) < rules.copies:
            said = f"{len(there)} of {rules.copies}, on {sorted(there)}"
            yield Violation("copies missing", key, said, (*_latest(registers[key]), *shown))


def _latest(register: Register) -> tuple[Operation, ...]:
    return tuple(write.operation for write in register.writes[-2:])
