"""Tenant of a call, noted for whatever is done for it: tenants take turns at the threads that read from the drives."""

from __future__ import annotations

import grpc

from storage_node.limits.streams import named_in
from storage_node.limits.turns import ASKING


def note_tenant(details: grpc.HandlerCallDetails) -> None:
    """Of the server that clients call, in a call's own task; a batch names its own tenant."""
    ASKING.set(named_in(details.invocation_metadata))
