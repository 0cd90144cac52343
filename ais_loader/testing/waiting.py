"""Waiting for a condition with a deadline, for effects of another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout_s: float = 180.0, *, interval_s: float = 0.01) -> T:
    """Call `condition()` every `interval_s` until it returns a true value, and return that value.

    Raises AssertionError, with the last value in its message, if there is none within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {condition!r} is still {value!r}")
        time.sleep(interval_s)
