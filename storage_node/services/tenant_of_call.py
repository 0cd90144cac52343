"""Tenant of a call, recorded for all work on its behalf: tenants take turns on the threads that read from drives."""

from __future__ import annotations

import grpc

from storage_node.limits.streams import named_in
from storage_node.limits.turns import current_tenant


def note_tenant(details: grpc.HandlerCallDetails) -> None:
    """Record the tenant of a call. Runs on the server for clients, in the call's own task; a batch names its own
    tenant."""
    current_tenant.set(named_in(details.invocation_metadata))
