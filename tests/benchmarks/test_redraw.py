"""Pictures that are drawn again from the tables beside them."""

from __future__ import annotations

import pytest

from benchmarks.harness import Claim, claims_table, judge, rates_table
from benchmarks.redraw import HERE, PICTURES, SHARES, rounds_of, shares_of

RATES = {"ours": [4000.0, 1000.0, 3000.0], "theirs": [20.0, 10.0, 40.0], "0.5 ms each": [7.0, 7.0, 7.0]}


def test_a_table_says_what_its_picture_shows() -> None:
    outcomes = judge(RATES, [Claim("ours", "theirs", 1.5)])
    page = f"# Title\n\n{rates_table(RATES, 'objects/s', 1024)}\n\n{claims_table(outcomes)}\n\n![Picture](x.png)\n"
    rates, found, unit = rounds_of(page)
    assert (rates, unit) == ({"ours": [1000, 3000, 4000], "theirs": [10, 20, 40]}, "objects/s")
    assert [(one.claim, one.ratios) for one in found] == [(Claim("ours", "theirs", 1.5), (75, 100, 200))]


@pytest.mark.parametrize("name", PICTURES + SHARES)
def test_the_pages_that_are_there_can_be_drawn(name: str) -> None:
    page = (HERE / f"{name}.md").read_text()
    if name in SHARES:
        shares, limits = shares_of(page)
        assert shares.keys() == limits.keys() and all(values == sorted(values) for values in shares.values())
    else:
        rates, outcomes, _ = rounds_of(page)
        assert outcomes and {one.claim.subject for one in outcomes} <= rates.keys()
        assert all(values == sorted(values) for values in rates.values())
    assert f"]({name}.png)" in page
