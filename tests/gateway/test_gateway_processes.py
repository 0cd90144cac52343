"""Several processes of one gateway on one port: faults, metrics, the access log, and the end of all of them."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from tests.gateway.command_kit import GatewayCommand, is_running, key_file, s3_at
from tests.gateway.raw_kit import connected, parsed, received, request

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        yield node


@pytest.fixture
def gateway(node: NodeProcess, tmp_path: Path) -> Iterator[GatewayCommand]:
    keys = key_file(tmp_path, [{"access_key": "k", "secret_key": "s"}])
    options = ["--keys", str(keys), "--processes", "2", "--metrics-port", "0", "--ui"]
    with GatewayCommand(node.url, *options, "--access-log", str(tmp_path / "access.log")) as gateway:
        yield gateway


def serves(gateway: GatewayCommand) -> bool:
    """Whether a request on a connection of its own is answered, as one without a signature is."""
    try:
        with connected(gateway.port) as sock:
            sock.sendall(request("GET", "/", gateway.port, {"Connection": "close"}))
            answer = received(sock)
        return bool(answer) and parsed(answer)[0] == 403
    except ConnectionError:
        return False


def numbers(gateway: GatewayCommand) -> dict[str, float]:
    with urllib.request.urlopen(gateway.told["metrics_url"], timeout=180) as answer:
        found = re.findall(r"(ais_loader_gateway_\w+\{.*?\}) (\S+)", answer.read().decode())
    return {name: float(value) for name, value in found}


def test_both_processes_answer_and_are_told(gateway: GatewayCommand, tmp_path: Path) -> None:
    assert len(gateway.children()) == 2

    def asked(_: int) -> None:
        assert serves(gateway)

    def by_process() -> list[float]:
        found = numbers(gateway)
        label = 'call="none",process="{}",status="403"'
        return [found.get(f"ais_loader_gateway_requests_total{{{label.format(at)}}}", 0) for at in (0, 1)]

    total = 0

    def both() -> bool:
        nonlocal total
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(asked, range(50)))
        total += 50
        return all(by_process())

    eventually(both)
    eventually(lambda: sum(by_process()) >= total)  # a request counts when its answer has been sent
    assert sum(by_process()) == total
    log = tmp_path / "access.log"
    eventually(lambda: log.read_bytes().count(b"\n") >= total)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == ["403"] * total and len({line["id"] for line in lines}) == total
    with urllib.request.urlopen(gateway.told["page_url"], timeout=180) as answer:
        assert answer.status == 200


def test_a_process_that_dies_is_replaced_and_the_other_one_goes_on(gateway: GatewayCommand) -> None:
    s3 = s3_at(gateway.url, "k", "s")
    s3.create_bucket(Bucket="killed")
    s3.put_object(Bucket="killed", Key="a", Body=b"1")
    first, second = gateway.children()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not is_running(first))
    for _ in range(20):
        assert serves(gateway)  # nobody waits for the dead one
    eventually(lambda: len(gateway.children()) == 2 and first not in gateway.children())
    assert second in gateway.children()
    eventually(lambda: "another one starts" in gateway.log())
    assert f"process {first} of the gateway ended with code -9" in gateway.log()
    eventually(lambda: 'ais_loader_gateway_connections{process="0"}' in numbers(gateway))
    os.kill(second, signal.SIGKILL)
    eventually(lambda: second not in gateway.children())
    eventually(lambda: serves(gateway))
    assert s3_at(gateway.url, "k", "s").get_object(Bucket="killed", Key="a")["Body"].read() == b"1"


def test_sigterm_ends_all_and_lets_requests_finish(gateway: GatewayCommand) -> None:
    children = gateway.children()
    s3 = s3_at(gateway.url, "k", "s")
    s3.create_bucket(Bucket="ended")
    body = os.urandom(8 << 20)
    s3.put_object(Bucket="ended", Key="a", Body=body)
    answer = s3.get_object(Bucket="ended", Key="a")["Body"]
    assert answer.read(1) == body[:1]
    gateway.process.send_signal(signal.SIGTERM)
    assert answer.read() == body[1:]
    assert gateway.end() == 0
    assert not any(map(is_running, children))


def test_the_processes_end_with_a_parent_that_is_killed(gateway: GatewayCommand) -> None:
    children = gateway.children()
    assert len(children) == 2 and all(map(is_running, children))
    gateway.end(signal.SIGKILL)
    eventually(lambda: not any(map(is_running, children)))


def test_a_gateway_that_cannot_serve_says_why(node: NodeProcess, tmp_path: Path) -> None:
    url = node.url.replace("grpc://", "grpcs://")
    for processes in ("1", "2"):
        with pytest.raises(AssertionError, match="no-such-ca"):
            GatewayCommand(url, "--no-keys", "--processes", processes, "--ca", str(tmp_path / "no-such-ca"))
