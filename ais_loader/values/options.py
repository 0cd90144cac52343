"""Options of a connection: one frozen class for each kind of store, checked when an instance is created."""

from __future__ import annotations

import numbers
import reprlib
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ais_loader.errors import InvalidRequest
from ais_loader.values.token_source import TokenSource

MAX_TENANT = 128
"""The most characters in a tenant's name. Nodes refuse longer names."""
Durability: TypeAlias = Literal["process", "power"]
LaneChoice: TypeAlias = Literal["auto", "grpc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """Options of an embedded store. For a node, the same options are settings; see docs/settings.md. Raises
    InvalidRequest.
    """

    durability: Durability = "process"
    """Durability of an acknowledged write: it survives the end of this process ("process"), or also a power failure
    ("power")."""
    open_shards: int | None = None
    """How many archives per drive to keep open for reading their members. None: an eighth of the descriptors that the
    process may have, for all drives together, but 128 to 4,096 for each."""
    shard_index_bytes: int = 256 << 20
    """Memory per drive for indexes of archives: about 40 bytes and the name for each member."""
    shard_copy_bytes: int = 4 << 30
    """Space per drive for decompressed copies of archives whose members cannot be read individually."""
    compact_bytes_per_s: int = 32 << 20
    """Maximum rate, while the store is open for writing, at which small objects move out of segments that are less than
    half live. 0 disables compaction."""

    def __post_init__(self) -> None:
        if self.durability not in get_args(Durability):
            raise InvalidRequest(f"durability={self.durability!r}: need 'process' or 'power'")
        for name, least in (
            ("open_shards", 1),
            ("shard_index_bytes", 0),
            ("shard_copy_bytes", 0),
            ("compact_bytes_per_s", 0),
        ):
            value = getattr(self, name)
            if value is None and name == "open_shards":
                continue
            if not isinstance(value, int) or value < least:
                raise InvalidRequest(f"{name}={value!r}: need a whole number, {least} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options for storage nodes, one or a cluster. Raises InvalidRequest."""

    retry_s: float = 10.0
    """How long to keep trying to reach a node that does not answer, in seconds."""
    verify_payload: bool = False
    """Verify the checksum of every entry again when it arrives."""
    tenant: str = ""
    """The name under which batches are fetched, at most 128 characters. Nodes that cannot serve everybody at once share
    their capacity between tenants by weight, regardless of how many clients and batches each tenant has.
    """
    lane: LaneChoice = "auto"
    """How batches and small objects are read and objects are stored: "auto" uses a plain socket beside gRPC if the node
    can be reached through one, which is faster; "grpc" never does. A client of `node:///` reads from the folder itself
    only with "auto".
    """
    hedge_budget: float = 0.05
    """The share of entries that may also be requested from a second node when the first is unusually slow. 0 disables
    this. Requests to a single node are never hedged.
    """
    ca: str = ""
    """The file with the certificates, in PEM, of the CAs that nodes at `grpcs://` are trusted by. If empty, those that
    this system trusts."""
    proxy: bool = False
    """Whether nodes may be reached through the web proxy that the environment names, as `http_proxy`."""
    tls: bool = False
    """Whether nodes are called with TLS. The URL decides it: `grpcs://` or `grpc://`."""

    token: TokenSource | str | None = None
    """The token that nodes ask for. It is kept in this process alone: neither shown nor pickled. By default, the one in
    the file or the variable that AIS_LOADER_TOKEN_FILE or AIS_LOADER_TOKEN names.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.ca, str) or "\0" in self.ca:
            raise InvalidRequest(f"ca={self.ca!r}: need the path of a file")
        if isinstance(self.token, str):
            object.__setattr__(self, "token", TokenSource.value(self.token))
        if not isinstance(self.retry_s, numbers.Real) or not 0 <= self.retry_s < float("inf"):
            raise InvalidRequest(f"retry_s={self.retry_s!r}: need a number of seconds, 0 or more")
        if not isinstance(self.tenant, str) or len(self.tenant) > MAX_TENANT or not _is_text(self.tenant):
            raise InvalidRequest(f"tenant={reprlib.repr(self.tenant)}: need at most {MAX_TENANT} characters of text")
        if self.lane not in get_args(LaneChoice):
            raise InvalidRequest(f"lane={self.lane!r}: need 'auto' or 'grpc'")
        if not isinstance(self.hedge_budget, numbers.Real) or not 0 <= self.hedge_budget <= 1:
            raise InvalidRequest(f"hedge_budget={self.hedge_budget!r}: need a share, 0 to 1")


def token_of(options: ClusterOptions) -> TokenSource | None:
    """Return where the token of a client comes from; None if it has none."""
    assert not isinstance(options.token, str)
    return options.token or TokenSource.from_environment()


def _is_text(text: str) -> bool:
    """Whether the text has a UTF-8 form, which lone surrogates lack."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
