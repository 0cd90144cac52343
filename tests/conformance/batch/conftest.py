"""Batches in this process, in a node by gRPC, by a lane and beside it, and from three nodes at once: all must agree."""

from __future__ import annotations

import pytest

from ais_loader.values.options import LaneChoice
from tests.conformance.conftest import url_of


@pytest.fixture(params=["embedded", "grpc", "lane", "same host", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request, request.param)


@pytest.fixture
def lane(request: pytest.FixtureRequest) -> LaneChoice:
    return "auto" if request.node.callspec.params["url"] in ("lane", "same host", "cluster") else "grpc"
