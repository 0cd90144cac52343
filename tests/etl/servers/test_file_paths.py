"""Paths of files instead of bytes: a server on the node's machine opens the file of a large object itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Bucket, Client, Entry, Server, connect
from ais_loader.testing import seeded_bytes
from storage_node.store.drive.drive import Drive
from tests.etl.servers.server_kit import new_server
from tests.node.node_kit import serving

pytestmark = pytest.mark.slow
LARGE = seeded_bytes(5 << 20, seed=1)


class Named:
    """Says where its input is, and how many bytes that has."""

    def transform_file(self, file: str, path: str, args: Any) -> bytes:
        return f"{file} {Path(file).stat().st_size}".encode()


@contextmanager
def opened(tmp_path: Path, place: str) -> Iterator[tuple[Client, Path]]:
    if place == "embedded":
        with connect(tmp_path / "store") as client:
            yield client, tmp_path / "store"
        return
    with serving(tmp_path, etl_servers=("*",)) as node, connect(node.url) as client:
        yield client, Path(next(drive.root for drive in node.batches.node.store.drives if drive is not None))  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["embedded", "node"])
def test_a_server_of_this_machine_opens_the_file_of_a_large_object(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        opened(tmp_path, place) as (client, root),
        new_server("http", Named, file_roots=[root]).running() as address,
    ):
        bucket = client.create_bucket("paths")
        bucket.put_many([("large", LARGE), ("small", b"abc")])
        client.etl.init("where", Server(address, fqn=True))

        def where(entry: Entry) -> tuple[bool, str]:
            """Whether the input is a file of the store, and its size."""
            [item] = client.get_batch([entry])
            file, _, size = item.tobytes().decode().partition(" ")
            return Path(file).is_relative_to(root / "objects"), size

        assert where(Entry("paths", "large", etl="where")) == (True, str(len(LARGE)))
        assert where(Entry("paths", "small", etl="where")) == (False, "3")
        assert where(Entry("paths", "large", start=1, etl="where")) == (False, str(len(LARGE) - 1))
        assert made_by_job(bucket, client.create_bucket("made")).startswith(str(root / "objects"))

        monkeypatch.setattr(Drive, "own_file", lambda *_: str(root / "objects" / "gone"))  # replaced meanwhile
        bucket.put("large", LARGE[::-1])
        assert where(Entry("paths", "large", etl="where")) == (False, str(len(LARGE)))
        assert not made_by_job(bucket, client.create_bucket("again")).startswith(str(root / "objects"))


def made_by_job(bucket: Bucket, to: Bucket) -> str:
    bucket.transform(to.name, etl="where", wait=True)
    return to.get("large").decode()
