"""Rates of tenants: what exceeds them is rejected with their names, and others are served meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ais_loader import ClusterOptions, Entry, connect, errors
from storage_node.limits.tenant_rates import TenantRates
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.patience import PATIENT_CLIENT
from tests.security.rights_kit import EVERYTHING, secure


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_tenant_makes_as_many_requests_in_a_second_as_it_may() -> None:
    clock = Clock()
    rates = TenantRates(5, 0, clock)
    assert [rates.take("a") is None for _ in range(7)] == [True] * 5 + [False] * 2
    assert "tenant 'a'" in str(rates.refusal("a")) and "tenant_requests_per_s=5" in str(rates.refusal("a"))
    assert rates.take("b") is None
    clock.now_s += 0.41
    assert [rates.take("a") is None for _ in range(3)] == [True, True, False]
    clock.now_s += 3600  # nothing is saved up beyond a second's worth
    assert sum(rates.take("a") is None for _ in range(100)) == 5


def test_bytes_are_charged_afterwards_and_waited_for() -> None:
    clock = Clock()
    rates = TenantRates(0, 1000, clock)
    assert rates.take("a") is None
    rates.spend("a", 3500)
    assert "tenant_bytes_per_s=1,000" in str(rates.take("a"))
    clock.now_s += 2.4
    assert rates.take("a") is not None
    clock.now_s += 0.2
    assert rates.take("a") is None
    assert TenantRates(0, 0, clock).take("a") is None


@pytest.mark.slow
def test_tenants_that_come_and_go_are_forgotten() -> None:
    clock = Clock()
    rates = TenantRates(5, 0, clock)
    for number in range(10_000):
        rates.take(f"{number}")
    assert len(rates._left) <= 4096


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_calls_and_batches_beyond_the_rate_are_rejected(tmp_path: Path, lane: Any) -> None:
    # So few that a slow machine exceeds them as well.
    with NodeServer([tmp_path], ServerConfig(port=0, tenant_requests_per_s=5)) as node:
        greedy = ClusterOptions(tenant="greedy", retry_s=0, lane=lane)
        modest = ClusterOptions(tenant="modest", retry_s=240.0, lane=lane)
        with connect(node.url, options=modest) as others, connect(node.url, options=greedy) as client:
            others.create_bucket("b").put("x", b"bytes")
            bucket = client.bucket("b")
            with pytest.raises(errors.Overloaded, match=r"tenant 'greedy'.*tenant_requests_per_s=5"):
                for _ in range(1000):
                    bucket.put("y", b"bytes")
            assert others.bucket("b").get("x") == b"bytes"
        patient = ClusterOptions(tenant="greedy", retry_s=240.0, lane=lane)
        with connect(node.url, options=patient) as client:
            assert node.batches is not None
            for number in range(1000):  # batches are rejected with a delay, which their client keeps to
                [item] = client.get_batch([Entry("b", "x")])
                assert item.data == b"bytes"
                if number >= 7 and node.batches.node.metrics.rejections["rate"]:
                    break  # a slow machine may not exceed the rate with the first eight
            assert node.batches.node.metrics.rejections["rate"] > 0


@pytest.mark.slow
def test_bytes_beyond_the_rate_are_rejected_until_they_are_due(tmp_path: Path) -> None:
    with secure(tmp_path, tenant_bytes_per_s=1_000_000) as node:
        with connect(node.url, token=node.token(EVERYTHING, tenant="operator")) as client:
            client.create_bucket("b").put("x", bytes(600_000))
        token = node.token("b:read", tenant="reader")
        with (
            connect(node.url, token=token, options=ClusterOptions(retry_s=0, tenant="another")) as client,
            pytest.raises(errors.Overloaded, match=r"tenant 'reader'.*tenant_bytes_per_s=1,000,000"),
        ):
            for _ in range(1000):  # a slow machine may not exceed the rate with the first ones
                client.bucket("b").get("x")
        with connect(node.url, token=token, options=PATIENT_CLIENT) as client:
            for _ in range(2):
                assert client.bucket("b").get("x") == bytes(600_000)  # after a while
