"""The number of examples that hypothesis draws: at most 50 in the quick set, all in the others (TESTS_EXAMPLES=all)."""

from __future__ import annotations

import os

QUICK_EXAMPLES = 50
_ALL = os.environ.get("TESTS_EXAMPLES", "") == "all"


def examples(count: int = 100) -> int:
    """Return this number of examples, or 50 if it is larger and the quick set runs."""
    return count if _ALL else min(count, QUICK_EXAMPLES)
