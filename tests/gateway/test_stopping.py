"""The end of a gateway while requests run: in time, whatever clients and nodes do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.integrations.gateway.clients import Clients
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.testing import NodeProcess
from tests.gateway.command_kit import GatewayCommand
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.raw_kit import connected, received, request

BIG_BYTES = 64 << 20


def test_clients_that_take_nothing_do_not_keep_a_gateway(tmp_path: Path) -> None:
    clients = Clients(str(tmp_path / "store"), [])
    clients.of(None).create_bucket("b").put("big", bytes(BIG_BYTES))
    gateway = GatewayThread(clients, None, limits=Limits(grace_s=1.0))
    try:
        with connected(gateway.port) as sock:
            sock.sendall(request("GET", "/b/big", gateway.port))
            assert sock.recv(100)
            began_s = time.monotonic()
            gateway.close()
            assert time.monotonic() - began_s >= 1
            assert len(received(sock)) < BIG_BYTES
    finally:
        gateway.close()
        clients.close()


def test_requests_that_end_in_time_are_answered(tmp_path: Path) -> None:
    clients = Clients(str(tmp_path / "store"), [])
    clients.of(None).create_bucket("b").put("big", bytes(BIG_BYTES))
    gateway = GatewayThread(clients, None, limits=Limits(grace_s=60.0))
    try:
        with connected(gateway.port) as sock:
            sock.sendall(request("GET", "/b/big", gateway.port))
            found = len(sock.recv(100))
            assert gateway._loop is not None
            gateway._loop.call_soon_threadsafe(gateway._stopping.set)
            found += len(received(sock))
        assert found > BIG_BYTES
    finally:
        gateway.close()
        clients.close()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_node_that_is_frozen_does_not_keep_a_gateway(tmp_path: Path, processes: int) -> None:
    with NodeProcess(tmp_path / "drive") as node:
        with connect(node.url) as client:
            client.create_bucket("bbb").put("a", b"1")
        with GatewayCommand(node.url, "--no-keys", "--processes", str(processes)) as gateway:
            with connected(gateway.port) as sock:
                sock.sendall(request("GET", "/bbb/a", gateway.port))
                assert sock.recv(10)
            node.pause()
            try:
                socks = [connected(gateway.port) for _ in range(8)]
                for sock in socks:
                    sock.sendall(request("GET", "/bbb/a", gateway.port))
                assert gateway.end() == 0
                for sock in socks:
                    sock.close()
            finally:
                node.resume()
            assert "Traceback" not in gateway.log()
