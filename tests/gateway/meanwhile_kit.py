"""Changes that others make in the middle of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def just_before(owner: Any, name: str, change: Callable[[], object], *, times: int = 1) -> Iterator[None]:
    """Make a change before each of the first calls of a method. Raises AssertionError if there are fewer calls."""
    call, left = getattr(owner, name), times

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            change()
        return call(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        yield
    assert not left
