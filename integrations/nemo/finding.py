"""Finding: what a run would stumble over, and on which line of which manifest."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    manifest: str
    line: int
    """From 1."""
    url: str
    """Of the recording; empty where the line does not say which."""
    kind: str
    """missing, unreadable, empty, sampling-rate, duration, offset, field, language or line."""
    message: str

    def fields(self) -> dict[str, str | int]:
        """For --json."""
        return asdict(self)
