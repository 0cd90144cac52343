"""Appends that a node refuses for a reason that passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ais_loader import errors
from storage_node.services.compose import ComposeService
from tests.node.node_kit import bucket_of, serving


@pytest.mark.slow
def test_an_append_that_comes_after_a_snapshot_that_it_should_be_in_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = ComposeService._write, [errors.WriteTooLate("it comes after a snapshot that it should be in")]

    async def late(service: ComposeService, *arguments: Any) -> Any:
        if left:
            raise left.pop()
        return await write(service, *arguments)

    with serving(tmp_path) as node, bucket_of(node) as bucket:
        bucket.put("a", b"1")
        monkeypatch.setattr(ComposeService, "_write", late)
        assert bucket.append("a", b"2").size_bytes == 2
        assert not left and bucket.get("a") == b"12"
