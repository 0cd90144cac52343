"""Real clients against a gateway: `make test-doors`. A client that cannot be installed is skipped with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.doors import gateways
from tests.doors.environments import FOLDER

RESULTS = FOLDER / "clients.json"


class Gateways:
    """Gateways by kind of store. One that nobody has asked for is not started."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._urls: dict[tuple[str, bool], str] = {}

    def url(self, store: str, *, with_keys: bool = True) -> str:
        """Return the URL of the gateway over a store of this kind."""
        if (store, with_keys) not in self._urls:
            started = self._stack.enter_context(gateways.gateway(store, with_keys=with_keys))
            self._urls[store, with_keys] = started
        return self._urls[store, with_keys]


@pytest.fixture(scope="session")
def doors() -> Iterator[Gateways]:
    with ExitStack() as stack:
        yield Gateways(stack)


@pytest.fixture(scope="session")
def results() -> Iterator[dict[str, dict[str, str]]]:
    """What each client did, by its name and the kind of store. It is kept for the pages."""
    found: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    yield found
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1))
