"""Exceptions that end a batch without a response: the client is gone, or must retry later."""

from __future__ import annotations


class Gone(Exception):
    """The client cannot be written to any more."""


class Busy(Exception):
    """The client must request the batch again later. `reason` is the label under which the node counts it."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
