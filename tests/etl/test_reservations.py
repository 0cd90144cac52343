"""Reservations of entries that pass through transforms: memory or spool space, for an input, then for its result."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ais_loader
from ais_loader import Command, Entry
from ais_loader.errors import DriveFull
from ais_loader.testing import eventually, seeded_bytes
from storage_node.etl.run.run_state import Reservation
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Spool
from storage_node.limits.memory_budget import MemoryBudget
from tests.node.node_kit import bucket_of, serving

LARGE = MAX_IN_MEMORY_BYTES + 1


def test_what_is_in_memory_and_what_is_a_file_are_counted_apart() -> None:
    settings: Any = SimpleNamespace(memory=MemoryBudget(2 * MAX_IN_MEMORY_BYTES), spooled=MemoryBudget(2 * LARGE))
    memory, spooled = settings.memory, settings.spooled
    first, second, third = Reservation(settings), Reservation(settings), Reservation(settings)
    assert first.take(LARGE, anyway=False)
    assert (memory.held_bytes, spooled.held_bytes) == (MAX_IN_MEMORY_BYTES, LARGE)
    first.becomes(Content.of(b"x" * 7))
    assert (memory.held_bytes, spooled.held_bytes) == (7, 0)
    assert second.take(100, anyway=False)
    second.becomes(Content(3 * LARGE, 0, fd=os.open(os.devnull, os.O_RDONLY)))
    assert (memory.held_bytes, spooled.held_bytes) == (7, 3 * LARGE)
    assert not third.take(LARGE, anyway=False)  # of the spool, which is spent: nothing of memory is held for it
    assert (memory.held_bytes, spooled.held_bytes) == (7, 3 * LARGE)
    assert third.take(LARGE, anyway=True)
    for room in (first, second, third, third):
        room.release()
    assert (memory.held_bytes, spooled.held_bytes) == (0, 0)


@pytest.mark.slow
def test_without_any_room_entries_pass_one_after_another(tmp_path: Path) -> None:
    objects = {"large": seeded_bytes(LARGE, seed=1), "small": b"abc", "larger": seeded_bytes(2 * LARGE, seed=2)}
    config = {"etl_code": True, "etl_workers": 2, "etl_memory_bytes": 1, "etl_spool_bytes": 1}
    with serving(tmp_path, **config) as node, bucket_of(node) as bucket:
        for name, data in objects.items():
            bucket.put(name, data)
        bucket.client.etl.init("cat", Command(["cat"]))
        entries = [Entry("b", name, etl=etl) for name in objects for etl in ("cat", None)]
        made = bucket.client.get_batch(entries).tobytes()
        assert made == [objects[name] for name in objects for _ in range(2)]
        assert node.batches is not None and (etl := node.batches.resources.etl) is not None
        assert eventually(lambda: (etl.memory.held_bytes, etl.spooled.held_bytes) == (0, 0))


def test_without_space_for_a_large_input_its_entry_alone_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(spool: Spool) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with ais_loader.connect(tmp_path / "store") as client:
        bucket = client.create_bucket("b")
        bucket.put("large", bytes(LARGE))
        bucket.put("small", b"abc")
        client.etl.init("cat", Command(["cat"]))
        assert client.get_batch([Entry("b", "small", etl="cat")]).tobytes() == [b"abc"]  # its worker has its file
        with monkeypatch.context() as full:
            full.setattr(Spool, "new_file", no_file)
            entries = [Entry("b", name, etl="cat") for name in ("large", "small")]
            found = list(client.get_batch(entries, on_error="placeholder"))
        assert isinstance(found[0].error, DriveFull) and "'large' of 4,194,305 bytes" in str(found[0].error)
        assert found[1].data == b"abc"
