"""A store with shards over each transport, and the same shards as files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Bucket
from ais_loader.integrations.webdataset import install, uninstall
from tests.tar_kit import packed_tar

SHARDS = 4
"""Of 10 samples each, and of 3 fields each."""


def members_of(shard: int) -> dict[str, bytes]:
    """With what WebDataset passes over: metadata, and names without an extension."""
    members = {"__meta__/about.txt": b"passed over", "README": b"passed over"}
    for at in range(10):
        key = f"part.0/{shard:02d}{at}" if at % 2 else f"{shard:02d}{at}"
        members[f"{key}.TXT"] = f"text {shard} {at}".encode()
        members[f"{key}.target.cls"] = str(at).encode()
        members[f"{key}.json"] = f'{{"at": {at}}}'.encode() + b" " * 700 * at
    return members


@pytest.fixture
def installed(url: str) -> Iterator[None]:
    install(url)
    yield
    uninstall()


@pytest.fixture
def shards(bucket: Bucket, installed: None, tmp_path: Path) -> list[str]:
    """URLs of shards in the store; files of the same names are in `tmp_path`."""
    for number in range(SHARDS):
        # PAX, as its long names and dotted folders are the hardest to get right
        data = packed_tar(members_of(number), tar_format=tarfile.PAX_FORMAT)
        bucket.put(f"s-{number}.tar", data)
        (tmp_path / f"s-{number}.tar").write_bytes(data)
    return [f"ais://{bucket.name}/s-{number}.tar" for number in range(SHARDS)]
