"""Batch readers under test, native and Python, in this process, in a node by gRPC and by a lane, and from three nodes
at once: all must agree. The Python reader is quick in this process, and slow in a node, which is quick with the native
one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.values.options import LaneChoice

_PYTHON_IN_A_NODE = pytest.param("grpc, Python reader", marks=pytest.mark.slow)


@pytest.fixture(params=["embedded", "grpc", "lane", "cluster", "embedded, Python reader", _PYTHON_IN_A_NODE])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param in ("grpc", "lane"):
        return str(request.getfixturevalue("node").url)
    if request.param == "cluster":
        return str(request.getfixturevalue("shared_cluster").url)
    if request.param == "grpc, Python reader":
        return str(request.getfixturevalue("python_reader_node").url)
    if request.param == "embedded, Python reader":
        from storage_node.store.read import batch_reader as batch_read
        from storage_node.store.read import entry_reader, frame_reader

        for module in (frame_reader, entry_reader):
            monkeypatch.setattr(module, "read_frame", batch_read.read_frame_python)
        monkeypatch.setattr(frame_reader, "read_list", batch_read.read_list_python)
    path: Path = request.getfixturevalue("embedded_path")
    return f"file://{path}"


@pytest.fixture
def lane(request: pytest.FixtureRequest) -> LaneChoice:
    return "auto" if request.node.callspec.params["url"] in ("lane", "cluster") else "grpc"
