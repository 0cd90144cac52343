"""Throwaway stores for the length of one test or one experiment, and bytes to fill them with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from ais_loader.client import Client, connect
from ais_loader.testing.folders import throwaway_folder
from ais_loader.testing.node import NodeProcess


def seeded_bytes(size_bytes: int, seed: int = 0) -> bytes:
    """Incompressible bytes, the same in every run."""
    return np.random.Generator(np.random.PCG64(seed)).bytes(size_bytes)


@contextmanager
def throwaway_store(objects: Mapping[str, bytes] | None = None, *, bucket: str = "data") -> Iterator[Client]:
    """A client of an embedded store that vanishes at the end; with `objects`, by name, in `bucket`."""
    with throwaway_folder() as folder, connect(folder / "store") as client:
        _fill(client, bucket, objects)
        yield client


@contextmanager
def throwaway_node(objects: Mapping[str, bytes] | None = None, *, bucket: str = "data") -> Iterator[NodeProcess]:
    """A node process whose store vanishes at the end; with `objects`, by name, in `bucket`."""
    with throwaway_folder() as folder, NodeProcess(folder / "store") as node:
        with connect(node.url) as client:
            _fill(client, bucket, objects)
        yield node


def _fill(client: Client, bucket: str, objects: Mapping[str, bytes] | None) -> None:
    if objects is not None:
        client.create_bucket(bucket, exist_ok=True).put_many(objects.items())
