"""Urgency of a fetch: whether a reader waits for it, or a loader will need the object later.

A fetch begins with the urgency of the task that begins it, and so do all tasks of it. When a reader joins, the fetch
becomes urgent.
"""

from __future__ import annotations

from contextvars import ContextVar


class Urgency:
    """Urgency of one fetch, which the tasks of the fetch share."""

    __slots__ = ("is_urgent",)

    def __init__(self, is_urgent: bool) -> None:
        self.is_urgent = is_urgent
        """Whether a reader waits."""


_READER = Urgency(True)
current_urgency: ContextVar[Urgency] = ContextVar("current_urgency", default=_READER)
"""Urgency of the running task."""
