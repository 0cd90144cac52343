"""Finding: a problem that a run would encounter, with its manifest and line."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ManifestFinding:
    manifest: str
    line: int
    """The line number, from 1."""
    url: str
    """The recording's URL. Empty if the line does not name one."""
    kind: str
    """One of missing, unreadable, empty, sampling-rate, duration, offset, field, language and line."""
    message: str

    def fields(self) -> dict[str, str | int]:
        return asdict(self)
