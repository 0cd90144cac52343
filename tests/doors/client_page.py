"""The table of real clients in docs/gateway.md, from the clients that `make test-doors` runs.

    python -m tests.doors.client_page

writes it.
"""

from __future__ import annotations

from scripts.made_parts import part_of, with_part
from tests.doors.environments import AISTORE_CLIENTS, CLIENTS, ROOT, RealClient

PAGE = ROOT / "docs" / "gateway.md"
_PROGRAM = "tests/doors/client_page.py"


def _row(client: RealClient) -> str:
    return f"| {client.name} | {client.version} | {', '.join(client.stores)} | {client.calls} |\n"


def table() -> str:
    """Return the table of the clients whose programs are in this tree."""
    rows = "".join(_row(client) for client in (*CLIENTS, *AISTORE_CLIENTS) if client.path.exists())
    return f"| client | version | store | what |\n|---|---|---|---|\n{rows}"


def written() -> str:
    """Return the table that the page has. Raises ValueError if it has none."""
    return part_of(PAGE, _PROGRAM)


if __name__ == "__main__":
    PAGE.write_text(with_part(PAGE, _PROGRAM, table()))
