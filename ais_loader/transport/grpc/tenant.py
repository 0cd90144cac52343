"""Tenant of calls, sent as metadata with each of them; batches within a session carry it in their requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from ais_loader.wire.reserved import TENANT_KEY


def metadata_of(tenant: str) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of a call that is made for this tenant."""
    return ((TENANT_KEY, tenant.encode()),) if tenant else ()


class _Naming(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    def __init__(self, tenant: str) -> None:
        self._metadata = metadata_of(tenant)

    def _named(self, proceed: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        return proceed(_Details(details, (*(details.metadata or ()), *self._metadata)), request)

    intercept_unary_unary = intercept_unary_stream = _named
    intercept_stream_unary = intercept_stream_stream = _named


class _Details(grpc.ClientCallDetails):  # type: ignore[misc]
    def __init__(self, details: Any, metadata: tuple[Any, ...]) -> None:
        self.method, self.timeout, self.credentials = details.method, details.timeout, details.credentials
        self.wait_for_ready, self.compression = details.wait_for_ready, details.compression
        self.metadata = metadata


def naming(channel: grpc.Channel, tenant: str) -> grpc.Channel:
    """Return the channel with the tenant added to its calls; without a tenant, the channel itself."""
    return grpc.intercept_channel(channel, _Naming(tenant)) if tenant else channel
