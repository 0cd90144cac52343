"""Effects of a proposer, requests and pauses, and their outcomes: the seam between protocol and network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeAlias

from ais_loader.wire.generated import ais_cluster_pb2 as pb

Request: TypeAlias = pb.GetMapRequest | pb.LearnRequest | pb.PrepareRequest | pb.AcceptRequest
Response: TypeAlias = pb.GetMapResponse | pb.LearnResponse | pb.PrepareResponse | pb.AcceptResponse
Edit: TypeAlias = Callable[[pb.ClusterMap | None], pb.ClusterMap]
"""Makes the next map from a copy of the committed one; from None for nodes that belong to no cluster."""
P = ParamSpec("P")


def changing(change: Callable[Concatenate[pb.ClusterMap, P], None]) -> Callable[P, Edit]:
    """Return the function that makes edits of one that changes the map of a cluster in place. An edit raises ValueError
    for nodes that belong to no cluster."""

    @functools.wraps(change)
    def make(*args: P.args, **kwargs: P.kwargs) -> Edit:
        def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
            change(changed := require_cluster(map_), *args, **kwargs)
            return changed

        return edit

    return make


def require_cluster(map_: pb.ClusterMap | None) -> pb.ClusterMap:
    if map_ is None:
        raise ValueError("these nodes belong to no cluster yet; create one first")
    return map_


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer from an endpoint, or an invalid one. Whether the request took effect is unknown."""

    reason: str


Answers: TypeAlias = Mapping[str, Response | NoAnswer]
"""Answers by endpoint."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send these requests, by endpoint, at once; wait for all answers, or until `enough` is true of those so far."""

    requests: Mapping[str, Request]
    enough: Callable[[Answers], bool] = lambda answers: False


@dataclass(frozen=True, slots=True)
class Pause:
    duration_s: float


Steps: TypeAlias = Generator[Ask | Pause, Answers, pb.ClusterMap]
