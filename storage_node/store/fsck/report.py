"""Report of a check: findings about drives, files and objects, as values that convert to JSON.

The `kind` of a finding is for programs: kinds are added, never renamed. Its message is for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]
Progress: TypeAlias = Callable[[str, int], None]
"""Called with the current activity and the number of objects or files processed."""
PROGRESS_EVERY = 1000

KINDS: dict[str, Severity] = {
    # Errors that readers can encounter.
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
    "not-journaled": "error",
    # Problems that take space, or would cause losses after the next failure.
    "orphan": "warning",
    "segment-damaged": "warning",
    "segment-copy": "warning",
    "no-identity": "warning",
    "file-identity": "warning",
    "foreign-file": "warning",
    "staging": "warning",
    "record-differs": "warning",
    "wrong-count": "warning",
    "no-xattr": "warning",
    "open-permissions": "warning",
    # States that are in order, and completed actions.
    "in-motion": "note",
    "moving": "note",
    "left-out": "note",
    "catalog-kept": "note",
    "catalog-rebuilt": "note",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `repaired` says what was done about it; None if nothing was."""

    kind: str
    drive: str
    """The drive's folder; "" if the finding is about the whole store."""
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
    """Counts of one drive. `problem` is None if it could be examined."""

    uuid: str
    path: str
    problem: str | None = None
    objects: int = 0
    object_bytes: int = 0
    files: int = 0
    waiting: int = 0
    """Files named by intents or garbage keys: in flight, or due for removal."""
    staged: int = 0
    keeps_identity: bool = False
    """Whether the file system stores extended attributes, so that a lost catalog can be rebuilt."""
    held_by: str | None = None
    """Process that has the drive open for writing."""


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
    """Whether a writer had the store open meanwhile. Counts may then be inconsistent with each other."""

    def of(self, *kinds: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind in kinds)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Errors that were not repaired."""
        return tuple(f for f in self.findings if f.severity == "error" and f.repaired is None)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "warning" and f.repaired is None)

    @property
    def healthy(self) -> bool:
        return not self.errors and not self.warnings

    def to_json(self) -> dict[str, object]:
        """Convert to dicts, lists, strings, numbers, booleans and None."""
        fields = asdict(self)
        fields["drives"] = [asdict(drive) for drive in self.drives]
        fields["findings"] = [{"severity": f.severity, **asdict(f)} for f in self.findings]
        return {**fields, "healthy": self.healthy}
