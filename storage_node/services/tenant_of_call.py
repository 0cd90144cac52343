"""Tenant of a call, noted for whatever is done for it: tenants take turns at the threads that read from the drives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from storage_node.streams import named_in
from storage_node.turns import ASKING


class TenantOfCall(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Of the server that clients call; a batch names its own tenant."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        ASKING.set(named_in(details.invocation_metadata))
        return await continuation(details)
