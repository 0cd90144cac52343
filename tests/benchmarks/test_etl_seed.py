"""Clips to WAV: whichever way they go, the same bytes come out; and the table has each way's cost, divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.etl_seed import CLIENTS, FUNCTION, PACE, READ, by_rate, costs, costs_table, draw, measured, rows_table

SERVER = "FastAPI ws fqn direct"


@pytest.mark.slow
def test_a_server_a_function_and_clients_make_the_same(tmp_path: Path) -> None:
    rates, rows = measured(1, only=(SERVER, FUNCTION), most=6)  # raises where results differ
    ways = {
        name: {f"{name}{nothing}{inspected}" for nothing in ("", ", nothing") for inspected in ("", ", inspected")}
        for name in (SERVER, FUNCTION)
    }
    assert set(rates) == {PACE, CLIENTS, READ} | ways[SERVER] | ways[FUNCTION]
    assert all(rate > 0 for of in rates.values() for rate in of)
    for name in (SERVER, FUNCTION):  # of one round, the parts are the whole
        assert sum(part or 0.0 for part in costs(rates, name)) == pytest.approx(1e3 / rates[name][0])
    assert "| FastAPI | ws | fqn | True | " in rows_table(rates, rows, 6)
    assert costs_table(rates).count("\n") == 1 + len([CLIENTS, SERVER, FUNCTION])
    assert set(by_rate(rates, "")) == {PACE, CLIENTS, SERVER, FUNCTION}
    draw(rates, 6, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[1:4] == b"PNG"
