"""Metric counters of promotions since the node started; read by `storage_node.metrics.exporter`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from ais_loader.errors import InvalidName, SourceChanged, SourceRefused, SourceUnreadable
from storage_node.promote.job import Outcome
from storage_node.store.files.clone_or_copy import Taken


class PromoteMetrics:
    """Counters, written on the node's event loop only."""

    def __init__(self) -> None:
        # Present from the start: a rate needs the zero before the first event.
        self.files: dict[str, int] = dict.fromkeys(get_args(Taken), 0)
        """Files by the way in which their bytes were taken."""
        self.taken_bytes = dict(self.files)
        self.skipped = 0
        """Files whose objects existed already."""
        self.errors = {kind.kind: 0 for kind in (SourceRefused, SourceUnreadable, SourceChanged, InvalidName)}
        """Files without an object, or that could not be removed, by the error's kind."""

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.stored is None:
                kind = outcome.error.kind if outcome.error is not None else "internal"
                self.errors[kind] = self.errors.get(kind, 0) + 1
            elif outcome.skipped:
                self.skipped += 1
            else:
                self.files[outcome.taken] += 1
                self.taken_bytes[outcome.taken] += outcome.stored.size_bytes
