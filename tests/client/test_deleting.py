"""Deleting all below a prefix when some of it cannot be deleted: the rest goes, and then the failure is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from ais_loader import ObjectInfo, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client


class Names:
    """A store of names; `fails` says what deleting one comes to."""

    def __init__(self, names: Sequence[str], fails: Callable[[str], errors.LoaderError | None]) -> None:
        self.names = list(names)
        self._fails = fails
        self.requests = 0

    def objects(self, bucket: str, *, prefix: str, page_size: int) -> Iterator[ObjectInfo]:
        yield from (ObjectInfo(bucket, name, 1, "1.1.0", 0, 0) for name in list(self.names) if name.startswith(prefix))

    def delete_names(self, bucket: str, names: Sequence[str]) -> list[errors.LoaderError | None]:
        self.requests += 1
        results = [self._fails(name) for name in names]
        gone = {name for name, result in zip(names, results, strict=True) if result is None}
        self.names = [name for name in self.names if name not in gone]
        return results


def deleting(store: Names) -> int:
    return Bucket(cast(Client, SimpleNamespace(_transport=store)), "b").delete_prefix("a/").deleted


def test_what_fails_for_good_is_told_when_the_rest_has_gone_and_again_when_it_is_run_again() -> None:
    names = [f"a/{at:05d}" for at in range(2500)] + ["b"]
    store = Names(names, lambda name: errors.DriveFailed(f"{name}: broken") if name.endswith("500") else None)
    for deleted in (2498, 0):
        with pytest.raises(
            errors.DriveFailed, match=f"{deleted:,} objects were deleted, and 2 could not be; .*a/00500: broken"
        ):
            deleting(store)
        assert store.names == ["a/00500", "a/01500", "b"]
    assert store.requests == 4


def test_what_others_delete_meanwhile_is_no_failure_and_does_not_count() -> None:
    store = Names(["a/1", "a/2"], lambda name: errors.ObjectNotFound(name) if name == "a/1" else None)
    assert deleting(store) == 1


def test_nobody_answering_ends_it_at_once() -> None:
    store = Names([f"a/{at}" for at in range(3000)], lambda name: errors.NodeUnavailable("nobody"))
    with pytest.raises(errors.NodeUnavailable):
        deleting(store)
    assert store.requests == 1
