"""Each real client puts, lists, reads, copies and deletes 200 objects through a gateway, and compares their bytes."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.doors.client_page import table, written
from tests.doors.conftest import Gateways
from tests.doors.environments import AISTORE_CLIENTS, CLIENTS, RealClient, Unavailable, make, program
from tests.doors.gateways import MAIN

_RUN_S = 600.0


def _cases(clients: tuple[RealClient, ...]) -> list[object]:
    cases = [(client, store) for client in clients for store in client.stores]
    return [pytest.param(client, store, id=f"{client.name}-{store}") for client, store in cases]


@pytest.mark.parametrize(("client", "store"), _cases(CLIENTS))
def test_client(doors: Gateways, results: dict[str, dict[str, str]], client: RealClient, store: str) -> None:
    _run(doors, results, client, store, with_keys=True)


@pytest.mark.parametrize(("client", "store"), _cases(AISTORE_CLIENTS))
def test_aistore_client(doors: Gateways, results: dict[str, dict[str, str]], client: RealClient, store: str) -> None:
    _run(doors, results, client, store, with_keys=False)


def _run(
    doors: Gateways, results: dict[str, dict[str, str]], client: RealClient, store: str, *, with_keys: bool
) -> None:
    """Run the client's program, which prints `ok NAME` or `FAILED NAME REASON` for each of its checks."""
    try:
        python = make(client)
        of_client = str(program(client)) if client.program else ""
    except Unavailable as error:
        results[client.name] = {"not run": str(error)}
        pytest.skip(f"{client.name}: {error}")
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": MAIN.access_key,
        "AWS_SECRET_ACCESS_KEY": MAIN.secret_key,
        "AWS_DEFAULT_REGION": "us-east-1",
        "DOORS_PROGRAM": of_client,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    command = [str(python), str(client.path), doors.url(store, with_keys=with_keys)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S, env=environment)
    print(ended.stdout)
    lines = ended.stdout.splitlines()
    passed = [line for line in lines if line.startswith("ok ")]
    failed = [line for line in lines if line.startswith("FAILED ")]
    kept = results.setdefault(client.name, {})
    kept.pop("not run", None)
    kept |= {"version": client.version, store: f"{len(passed)} of {len(passed) + len(failed)}"}
    assert not failed, "\n".join([*failed, ended.stderr[-3000:]])
    assert ended.returncode == 0 and passed, ended.stderr[-3000:]


def test_the_page_has_the_clients_that_are_run() -> None:
    assert written() == table()
