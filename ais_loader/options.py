"""Options of a connection, one frozen value for each kind of store: what is wrong is told when the value is made."""

from __future__ import annotations

import numbers
import reprlib
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ais_loader.errors import InvalidRequest

MAX_TENANT = 128
"""Characters of a tenant's name; nodes refuse longer ones."""
Durability: TypeAlias = Literal["process", "power"]
LaneChoice: TypeAlias = Literal["auto", "grpc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """Of a store in this process; of a node the same are settings, see docs/settings.md. Raises InvalidRequest."""

    durability: Durability = "process"
    """What an acknowledged write survives: the end of this process, or a power cut too."""
    open_shards: int = 128
    """Archives of each drive that are kept open for their members to be read."""
    shard_copy_bytes: int = 4 << 30
    """For each drive, decompressed copies of archives whose members cannot be read piece by piece."""

    def __post_init__(self) -> None:
        if self.durability not in get_args(Durability):
            raise InvalidRequest(f"durability={self.durability!r}: need 'process' or 'power'")
        for name, least in (("open_shards", 1), ("shard_copy_bytes", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidRequest(f"{name}={value!r}: need a whole number, {least} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Of storage nodes, a single one or a cluster. Raises InvalidRequest."""

    retry_s: float = 10.0
    """How long to go on trying to reach a node that does not answer, in seconds."""
    verify_payload: bool = False
    """Compare every entry with its checksum again where it arrives."""
    tenant: str = ""
    """For whom batches are fetched, at most 128 characters. Nodes that have not enough for all serve tenants by weight,
    however many clients and batches each has."""
    lane: LaneChoice = "auto"
    """By what batches and small objects come, and PUTs go: "auto" takes a plain socket beside gRPC where the node can
    be reached by one, which moves bytes faster; "grpc" never does."""
    hedge_budget: float = 0.05
    """Of what is asked for, the share that may be asked of a second node as well when the first is unusually slow; 0:
    none. Of a single node nothing is."""

    def __post_init__(self) -> None:
        if not isinstance(self.retry_s, numbers.Real) or not 0 <= self.retry_s < float("inf"):
            raise InvalidRequest(f"retry_s={self.retry_s!r}: need a number of seconds, 0 or more")
        if not isinstance(self.tenant, str) or len(self.tenant) > MAX_TENANT or not _is_text(self.tenant):
            raise InvalidRequest(f"tenant={reprlib.repr(self.tenant)}: need at most {MAX_TENANT} characters of text")
        if self.lane not in get_args(LaneChoice):
            raise InvalidRequest(f"lane={self.lane!r}: need 'auto' or 'grpc'")
        if not isinstance(self.hedge_budget, numbers.Real) or not 0 <= self.hedge_budget <= 1:
            raise InvalidRequest(f"hedge_budget={self.hedge_budget!r}: need a share, 0 to 1")


def _is_text(text: str) -> bool:
    """Whether it has a UTF-8 form: lone surrogates have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
