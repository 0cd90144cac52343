"""A gateway over an embedded store and over a node, and clients of S3 for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from ais_loader import Client
from ais_loader.integrations.gateway.clients import Account, Clients
from ais_loader.testing import NodeProcess, throwaway_folder
from tests.gateway.gateway_thread import GatewayThread

ACCOUNT = Account("the-key", "the-secret")
_NUMBERS = itertools.count()


class Served:
    """A running gateway and the client of its store."""

    def __init__(self, gateway: GatewayThread, clients: Clients) -> None:
        self.url, self.port = gateway.url, gateway.port
        self.clients = clients
        self.client: Client = clients.of(ACCOUNT)

    def s3(self, **config: Any) -> Any:
        """Return a client of boto3 with these settings of its `Config`."""
        import boto3
        from botocore.config import Config

        settings = {"retries": {"total_max_attempts": 1}, **config}
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCOUNT.access_key,
            aws_secret_access_key=ACCOUNT.secret_key,
            region_name="us-east-1",
            config=Config(**settings),
        )

    def empty(self, bucket: str) -> None:
        """Delete all of its objects, which another row of a table may have left."""
        for name in list(self.client.bucket(bucket)):
            self.client.bucket(bucket).delete(name)


@pytest.fixture(scope="session", params=["embedded", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store of the gateway's tests alone."""
    with throwaway_folder() as folder:
        if request.param == "embedded":
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "drive") as node:
                yield node.url


@pytest.fixture(scope="session")
def served(url: str) -> Iterator[Served]:
    clients = Clients(url, [ACCOUNT])
    try:
        with GatewayThread(clients, {ACCOUNT.access_key: ACCOUNT}, with_members=True) as gateway:
            yield Served(gateway, clients)
    finally:
        clients.close()


@pytest.fixture(scope="session")
def s3(served: Served) -> Any:
    return served.s3()


@pytest.fixture
def bucket(served: Served) -> str:
    """A new bucket's name."""
    name = f"g{next(_NUMBERS)}"
    served.client.create_bucket(name)
    return name
