"""Report of a check: findings about drives, files and objects, as values that turn into JSON.

The `kind` of a finding is for programs: kinds are added, never renamed. Its message is for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]
Progress: TypeAlias = Callable[[str, int], None]
"""Called with what is being done and how many objects or files are behind it by now."""
PROGRESS_EVERY = 1000

KINDS: dict[str, Severity] = {
    # What a reader can meet.
    "drive-missing": "error",
    "drive-unusable": "error",
    "identity-lost": "error",
    "record-lost": "error",
    "missing-file": "error",
    "wrong-size": "error",
    "corrupt": "error",
    "missing-blocks": "error",
    "bad-entry": "error",
    "unreadable": "error",
    "unknown-bucket": "error",
    "misplaced": "error",
    "later-epoch": "error",
    "metadata-lost": "error",
    "recoverable": "error",
    # What takes room, or would hurt after the next accident.
    "orphan": "warning",
    "segment-damaged": "warning",
    "segment-copy": "warning",
    "no-identity": "warning",
    "file-identity": "warning",
    "foreign-file": "warning",
    "staging": "warning",
    "record-differs": "warning",
    "no-xattr": "warning",
    "open-permissions": "warning",
    # What was found in order, or was done.
    "in-motion": "note",
    "moving": "note",
    "left-out": "note",
    "catalog-kept": "note",
    "catalog-rebuilt": "note",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`repaired` says what was done about it; None when nothing was."""

    kind: str
    drive: str
    """The drive's folder; "" when the finding is about the whole store."""
    message: str
    path: str = ""
    """The file, relative to the drive."""
    bucket: str = ""
    name: str = ""
    repaired: str | None = None

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class DriveSummary:
    """What was counted on one drive. `problem` is None when it could be examined."""

    uuid: str
    path: str
    problem: str | None = None
    objects: int = 0
    object_bytes: int = 0
    files: int = 0
    waiting: int = 0
    """Files that intents or garbage keys name: in flight, or due to go."""
    staged: int = 0
    keeps_identity: bool = False
    """Whether the file system stores extended attributes, so that a lost catalog can be rebuilt."""
    held_by: str | None = None
    """Who has the drive open for writing."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one examination or repair."""

    action: Literal["check", "repair", "rebuild"]
    store_uuid: str
    drives: tuple[DriveSummary, ...]
    findings: tuple[Finding, ...]
    checksums: bool
    """Whether the bytes of objects were compared with their checksums."""
    in_motion: bool
    """Whether a writer had the store open meanwhile: counts are then those of passing moments."""
    batch_reader: str
    """Which batch reader this machine uses: "native" or "python"."""
    batch_reader_reason: str | None
    """Why it is not the native one."""

    def of(self, *kinds: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind in kinds)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong and was not put right."""
        return tuple(f for f in self.findings if f.severity == "error" and f.repaired is None)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "warning" and f.repaired is None)

    @property
    def healthy(self) -> bool:
        return not self.errors and not self.warnings

    def to_json(self) -> dict[str, object]:
        """Nothing but dicts, lists, strings, numbers, booleans and None."""
        fields = asdict(self)
        fields["drives"] = [asdict(drive) for drive in self.drives]
        fields["findings"] = [{"severity": f.severity, **asdict(f)} for f in self.findings]
        return {**fields, "healthy": self.healthy}


def batch_reader() -> tuple[str, str | None]:
    """Which batch reader is in use, and why it is the slower one if it is."""
    from storage_node.store.read.batch_reader import IMPLEMENTATION

    if IMPLEMENTATION == "native":
        return IMPLEMENTATION, None
    try:
        from storage_node.store import _native  # noqa: F401
    except ImportError as error:
        return IMPLEMENTATION, f"the native module cannot be loaded ({error}); install again with a C compiler"
    return IMPLEMENTATION, "AIS_LOADER_READER=python is set"
