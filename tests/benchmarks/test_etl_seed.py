"""Clips to WAV: whichever way they go, the same bytes come out."""

from __future__ import annotations

import pytest

from benchmarks.etl_seed import CLIENTS, FUNCTION, PACE, measured


@pytest.mark.slow
def test_a_server_a_function_and_clients_make_the_same() -> None:
    rates = measured(1, only=("FastAPI ws fqn direct", FUNCTION))  # raises where results differ
    assert set(rates) >= {PACE, CLIENTS, FUNCTION, "FastAPI ws fqn direct", "FastAPI ws fqn direct, nothing"}
    assert all(rate > 0 for of in rates.values() for rate in of)
