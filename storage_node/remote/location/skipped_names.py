"""SkippedNames: keys of remote storage that a listing left out, as they cannot be names of objects here."""

from __future__ import annotations

from dataclasses import dataclass, field

_KEPT = 10


@dataclass(slots=True)
class SkippedNames:
    """Keys that a listing left out."""

    count: int = 0
    names: list[str] = field(default_factory=list)
    """The first of them, printable."""
    markers: int = 0
    """Number of directory markers: empty objects whose keys end in a slash. They are no objects here."""

    def note(self, key: str) -> None:
        self.count += 1
        if len(self.names) < _KEPT:
            self.names.append(key if key.isprintable() else ascii(key)[1:-1])

    def add(self, others: SkippedNames) -> None:
        """Add what another listing left out."""
        self.count += others.count
        self.names += others.names[: _KEPT - len(self.names)]
        self.markers += others.markers
