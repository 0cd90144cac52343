"""The table of real clients in docs/gateway.md, from the clients that `make test-doors` runs.

    python -m tests.doors.client_page

writes it.
"""

from __future__ import annotations

import re

from tests.doors.environments import AISTORE_CLIENTS, CLIENTS, ROOT, RealClient

PAGE = ROOT / "docs" / "gateway.md"
_TABLE = re.compile(r"(?<=\| client \| version \| store \| what \|\n\|---\|---\|---\|---\|\n)(?:\|.*\n)*")


def _row(client: RealClient) -> str:
    return f"| {client.name} | {client.version} | {', '.join(client.stores)} | {client.calls} |\n"


def table() -> str:
    """Return the rows of the clients whose programs are in this tree."""
    return "".join(_row(client) for client in (*CLIENTS, *AISTORE_CLIENTS) if client.path.exists())


def written() -> str:
    """Return the rows that the page has. Raises AssertionError if it has no such table."""
    found = _TABLE.search(PAGE.read_text())
    assert found is not None
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text()))
