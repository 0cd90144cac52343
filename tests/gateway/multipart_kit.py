"""Completions of uploads that are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ais_loader import errors
from ais_loader.objects import multipart


@contextmanager
def only_one_part_is_removed() -> Iterator[list[str]]:
    """Removing any further part fails. Yields the names of those that were removed."""
    remove, removed = multipart.remove, list[str]()

    def first(transport: Any, bucket: str, name: str) -> None:
        if removed:
            raise errors.AccessDenied("the gateway is gone")
        remove(transport, bucket, name)
        removed.append(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "remove", first)
        yield removed
