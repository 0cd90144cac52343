"""Calls on a bucket without remote storage run none of the code of remote storage, whatever other buckets have."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader.wire.remote import Remote
from scripts.structure import Tracer
from tests.node.node_kit import bucket_of, serving

pytestmark = [pytest.mark.slow, pytest.mark.fresh_process]

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["a", "b"]


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    yield Tracer(ROOT)
    threading.setprofile(None)
    sys.setprofile(None)


def test_a_call_on_a_plain_bucket_enters_no_file_of_remote(tracer: Tracer, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "a").write_bytes(b"cold")
    with serving(tmp_path, remote_file_roots=(str(tmp_path / "place"),)) as node, bucket_of(node) as bucket:
        cold = bucket.client.create_bucket("cold", remote=Remote(f"file://{tmp_path / 'place'}", cache_bytes=1 << 20))
        assert cold.get("a") == b"cold"
        bucket.put_many((name, bytes(50_000)) for name in NAMES)
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: bucket.put("a", bytes(50_000)),
            "put_many": lambda: bucket.put_many((name, b"x") for name in NAMES),
            "get": lambda: bucket.get("a"),
            "get of a range": lambda: bucket.get("a", start=1),
            "batch": lambda: bucket.get_batch(NAMES).tobytes(),
            "head": lambda: bucket.head("a"),
            "head_many": lambda: bucket.head_many(NAMES),
            "list": lambda: list(bucket),
            "delete": lambda: (bucket.put("d", b""), bucket.delete("d")),
            "delete_many": lambda: (bucket.put("d", b""), bucket.delete_many(["d"])),
        }
        entered = {
            name: sorted(file for file in tracer.entered(call) if "storage_node/remote/" in file)
            for name, call in calls.items()
        }
        reads_cold = tracer.entered(lambda: cold.get("a"))
    assert {name: files for name, files in entered.items() if files} == {}
    assert any("storage_node/remote/" in file for file in reads_cold)
