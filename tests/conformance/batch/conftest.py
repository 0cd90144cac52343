"""Batches under test in this process, in a node by gRPC and by a lane, and from three nodes at once: all must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.values.options import LaneChoice


@pytest.fixture(params=["embedded", "grpc", "lane", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param in ("grpc", "lane"):
        return str(request.getfixturevalue("node").url)
    if request.param == "cluster":
        return str(request.getfixturevalue("shared_cluster").url)
    path: Path = request.getfixturevalue("embedded_path")
    return f"file://{path}"


@pytest.fixture
def lane(request: pytest.FixtureRequest) -> LaneChoice:
    return "auto" if request.node.callspec.params["url"] in ("lane", "cluster") else "grpc"
