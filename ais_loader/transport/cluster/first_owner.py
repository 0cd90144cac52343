"""Conditional writes in a cluster: the first owner of a name decides about them, and nobody in its place.

Two nodes that each found a condition true would both be right, and one write too many would be told that it had won.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ais_loader import errors
from ais_loader.transport.backoff import Patience
from ais_loader.transport.cluster.membership import Members
from ais_loader.transport.grpc.transport import GrpcTransport

T = TypeVar("T")


def write_first(
    members: Members,
    first_owner: Callable[[], bytes],
    call: Callable[[GrpcTransport], T],
    *,
    retry_s: float,
    again: bool,
    replay: bool,
) -> T:
    """The first owner's answer; a node that is not the first owner any more sends one to look at the map again.

    Args:
        again: whether the call can be made twice, although the first may have been done.
        replay: whether it can be made twice where the first was refused.

    Raises NodeUnavailable, StaleMap when `retry_s` is over.
    """
    patience = Patience(retry_s)
    while True:
        failure: errors.LoaderError
        node = first_owner()
        try:
            return call(members.transport(node))
        except errors.StaleMap as error:
            failure = error
            if not replay:
                raise
        except errors.NodeUnavailable as error:
            members.suspect(node)
            failure = error
            if not again:
                raise
        members.refresh(force=isinstance(failure, errors.StaleMap))
        patience.pause(failure)
