"""Effects of a proposer (requests, pauses) and their outcomes: the seam between the protocol and the network."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ais_loader.wire.generated import ais_cluster_pb2 as pb

Request: TypeAlias = pb.GetMapRequest | pb.LearnRequest | pb.PrepareRequest | pb.AcceptRequest
Response: TypeAlias = pb.GetMapResponse | pb.LearnResponse | pb.PrepareResponse | pb.AcceptResponse
Edit: TypeAlias = Callable[[pb.ClusterMap | None], pb.ClusterMap]
"""Makes the next map of a copy of the committed one; of None for nodes that belong to no cluster."""


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer from an endpoint, or one that is none. Whether the request took effect is unknown."""

    reason: str


Answers: TypeAlias = Mapping[str, Response | Failure]
"""By endpoint."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send these requests, by endpoint, all at once; wait for all answers, or until `enough` says of those so far."""

    requests: Mapping[str, Request]
    enough: Callable[[Answers], bool] = lambda answers: False


@dataclass(frozen=True, slots=True)
class Pause:
    duration_s: float


Steps: TypeAlias = Generator[Ask | Pause, Answers, pb.ClusterMap]
