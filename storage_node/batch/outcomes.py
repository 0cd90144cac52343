"""Exceptions that end the work on a batch without an answer: the client is gone, or is sent away for now."""

from __future__ import annotations


class Gone(Exception):
    """The client cannot be written to any more."""


class Busy(Exception):
    """The batch has to be asked for again, later. `reason` is what the node counts it under."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
