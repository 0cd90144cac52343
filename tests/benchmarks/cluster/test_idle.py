"""A node without clients sleeps: what it does is counted, not timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ais_loader.testing import NodeProcess, eventually
from benchmarks.cluster.idle import Meter

MOST_WAKEUPS = 35.0
"""A second: two ticks, in each of which a drive is looked at by another thread, and gRPC's own. A node that polls wakes
up more than fifty times."""


@pytest.mark.slow
def test_a_node_that_has_nothing_to_do_hardly_wakes_up(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:

        def sleeps() -> bool:
            meter = Meter(node.pid)
            time.sleep(2.0)  # what is measured is this time
            return meter.read().wakeups < MOST_WAKEUPS

        eventually(sleeps)
