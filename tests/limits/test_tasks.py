"""What a node does beside its calls goes on after an error that nobody expected."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ais_loader.wire.backoff import Backoff
from storage_node.limits import tasks
from storage_node.limits.tasks import keep_going
from tests.node.loop_kit import settle


def test_work_that_fails_begins_anew_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "BACKOFF", Backoff(0.001, 0.002, jitter=0))
    tries: list[int] = []

    async def work() -> None:
        tries.append(len(tries))
        if len(tries) < 4:
            raise AttributeError(f"try {len(tries)}")

    with caplog.at_level(logging.ERROR, "storage_node"):
        asyncio.run(asyncio.wait_for(keep_going("counting", work), timeout=180))
    assert tries == [0, 1, 2, 3]
    assert [f"try {number}" in (record.exc_text or "") for number, record in enumerate(caplog.records, 1)] == [True] * 3
    assert all("counting failed" in record.getMessage() for record in caplog.records)


def test_work_that_is_cancelled_is_over() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(keep_going("waiting", asyncio.Event().wait))  # type: ignore[arg-type]
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancelled(), timeout=180))
