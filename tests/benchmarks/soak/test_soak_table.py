"""The page of a soak's figures: made of outcomes that were written down, as of those that have just been."""

from __future__ import annotations

import json
from collections import Counter

from benchmarks.soak.outcome import Outcome
from benchmarks.soak.register import Violation
from benchmarks.soak.table import table


def test_an_outcome_that_was_written_down_makes_the_same_page() -> None:
    outcome = Outcome("node", 3, 900.0, Counter(kill=2), Counter({"put ok": 7}), tree="0123abc", note="Understood.")
    outcome.violations = [Violation("lost", f"k{at}", "nothing was found") for at in range(30)]
    outcome.series["node: MiB resident"] = [(0.0, 90.0), (1.0, 95.5)]
    again = Outcome.of_json(json.loads(json.dumps(outcome.json())))
    page = table([outcome]).splitlines()
    assert [line for line in table([again]).splitlines() if "load average" not in line] == [
        line for line in page if "load average" not in line
    ]
    assert "| node | 3 | 0123abc | 15.0 | 7 | 2 | 0.0 s | 0 | lost (30) |" in page
    assert "Understood." in page
    assert "node: MiB resident, by the minute: 90, 95.5." in page
