"""Settings of one node process: a frozen dataclass that validates itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from storage_node.store.archives.limits import ShardLimits

_WHERE = (
    "host",
    "port",
    "lane_port",
    "advertise",
    "metrics_port",
    "peer_host",
    "peer_port",
    "peer_lane_port",
    "peer_advertise",
    "peer_secret_file",
)
EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches who listens there. A name other than localhost may be any address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of one node process. Only `durability` changes what a client can rely on; the rest is speed, limits."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback unless told otherwise: there is no authentication."""
    port: int = 7480
    """0 picks a free one."""
    advertise: str = ""
    """Name or address by which clients reach this node: HOST, with the port that it listens on, or
    HOST:PORT where a proxy or a container's port stands between. By default `host`; not known when that means every
    address, as 0.0.0.0 does, and then the node leaves its endpoint in the cluster's map alone."""
    lane_port: int = 0
    """Where clients' lanes come in by TCP, on `host`; 0 picks a free port. Clients of this machine need none."""
    peer_host: str = "127.0.0.1"
    """Address to listen on for other nodes of the cluster and for operators' commands, who may do what clients may not.
    Loopback, or the cluster's network."""
    peer_port: int = 0
    """0 picks the one that the cluster's map has for this node, or else a free one."""
    peer_lane_port: int = 0
    """Where lanes of nodes on other machines come in, on `peer_host`; 0 picks a free port."""
    peer_advertise: str = ""
    """As `advertise`, for other nodes and operators."""
    peer_secret_file: str = ""
    """A file with one line that every node of the cluster and its operators know, and who calls as one of them has to
    send; none: whoever reaches the address is believed."""
    metrics_port: int | None = None
    """Where Prometheus finds the node's metrics, on the same address; 0 picks a free port, None: nowhere."""
    durability: Literal["process", "power"] = "process"
    """What an acknowledged write survives: the end of the process, or a power cut too."""
    promote_roots: tuple[str, ...] = ()
    """Folders of this machine whose files clients may have promoted into buckets; none: nothing is."""
    read_threads: int = 4
    """Threads that read from the drives; they leave the interpreter lock while they do."""
    archive_threads: int = 4
    """Threads that open archives whose members are asked for, which takes as long as reading one whole where nobody has
    before. A tenant has all but one of them at most; what is read from the drives does not wait for them."""
    readahead_bytes: int = 64 << 20
    """Page cache that the drives may be asked to fill ahead of the frames being read, all batches together; 0: none."""
    readahead_threads: int = 4
    """Threads that ask."""
    memory_bytes: int = 256 << 20
    """Frames read but not yet handed to the network, all sessions together. Readers wait at this mark."""
    open_shards: int = 128
    """Archives of each drive that are kept open for their members to be read, with two descriptors each."""
    shard_copy_bytes: int = 4 << 30
    """For each drive: decompressed copies of archives whose members cannot be read piece by piece, in files that are
    gone with the process. A member of an archive that unpacks to more is refused."""
    max_active_batches: int = 512
    """Batches being served; further ones are told to come back."""
    max_sessions: int = 8192
    """Sessions of clients and other nodes that are open at once, idle ones too. When there are too many, the one ends
    that has been idle the longest; whoever had it opens another one with the next batch."""
    max_request_bytes: int = 256 << 20
    """Requests of the batches being served, all together; one that would not fit beside the others is told to come
    back."""
    still_s: float = 10.0
    """A call whose client has neither taken nor sent anything worth speaking of for this time gives its place, and the
    memory that it holds, to another one that waits for it. While there is enough for all, nobody is disturbed."""
    max_streams: int = 512
    """Objects that are being put and got at once by calls of their own, each of which holds a descriptor, and pages of
    lists and of deletions; further ones are told to come back. Small objects are got as batches, and do not count."""
    stall_timeout_s: float = 120.0
    """Such a call is ended when its client has neither sent nor taken a byte for this time."""
    max_message_bytes: int = 256 << 20
    """What clients have sent of objects and is being stored, all together, and as much again from other nodes, with the
    small objects that they have not committed yet. A call whose message finds no room is told to come back."""
    reject_retry_after_ms: int = 100
    """The shortest time that they are told to stay away."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Tenants with batches waiting are served in proportion to these, 1 where none is given; "" is who names none."""
    critical_memory_bytes: int = 0
    """New batches are rejected while the process has more than this in memory; 0 stands for four fifths of the memory
    that the machine, or the process's cgroup, has when the node starts."""
    throttle_cpu_lag_s: float = 0.1
    """By how much the event loop may come late before batches pause between their frames."""
    throttle_drive_wait_s: float = 0.1
    """How long reads may wait for a reader thread before they do."""
    max_throttle_s: float = 0.05
    """Longest such pause; 0: none."""
    max_buffered_bytes: int = 128 << 20
    """Answers that are collected before they are sent (streaming=False), all sessions together. One that would not fit
    beside the others is told to come back, a larger one is refused."""

    assembly_bytes: int = 256 << 20
    """Bytes that peers have sent, or may send, for batches that this node gathers, all batches together. Over it only
    the peer whose entry is due next may go on, a frame at a time."""
    peer_window_bytes: int = 4 << 20
    """What each peer may send ahead, for one batch."""
    peer_timeout_s: float = 10.0
    """Longest silence of a peer before its entries are asked of the next holder, or given up as unavailable."""
    peer_idle_s: float = 60.0
    """A session to a peer that has not been used for this time is closed."""
    hedge_budget: float = 0.05
    """Share of the entries of gathered batches that may be asked of a second holder as well, when the first is
    unusually slow; 0: none. It may be spent at once for as much as 20,000 entries bring in."""
    max_recoveries: int = 20_000
    """Entries of one batch that may be asked again, of another holder; one that needs more is refused. The default ends
    no batch with up to two lost copies of each entry."""
    max_soft_errors: int = 10_000
    """Entries of one gathered batch that may fail without ending it. The default never ends one."""

    reach_timeout_s: float = 3.0
    """For another node to say that it takes a write on; after that the next host takes its place."""
    reconcile_patience_s: float = 30.0
    """A node that starts reads no copies that may be old before it has compared them with all other nodes. When some of
    them stay silent for this time, it serves what it has, and says so."""
    max_clock_offset_s: float = 60.0
    """By how much the clocks of nodes may differ. What is written is ordered by time where nodes cannot hear of each
    other: a write that involves a clock further away is refused. Keep it alike on all nodes."""
    read_lease_s: float = 3.0
    """In a cluster of three or more nodes a node that has not been in touch with a majority of them for so long reads
    out nothing of what has several copies; a write that cannot be told to a node waits for so long at most. With more
    than 32 nodes it is longer in proportion. The same for all nodes. 0: there are no leases; a node that is cut off
    from writers, and not from readers, then reads out what was replaced meanwhile."""
    repair_interval_s: float = 60.0
    """From the end of a pass over everything that this node has, in search of missing and older copies, to the next.
    While the map is changing, or something is left to do, passes follow each other within seconds."""
    repair_bytes_per_s: float = 256 << 20
    """What this node sends to make copies equal, at most."""
    repair_transfers: int = 2
    """How many such transfers run at once."""
    tombstone_grace_s: float = 3600.0
    """A deletion is remembered for this time at least, and until every node of the cluster has answered that it has
    nothing older."""

    drive_errors: int = 10
    """A drive is disabled after so many I/O errors"""
    drive_error_window_s: float = 60.0
    """within this time; what is on it is read from the other copies then."""
    drive_grace_s: float = 600.0
    """A drive that is disabled for its errors, or missing, is given up after this time, if other nodes have copies of
    all that can have been on it: they are copied to this node's other drives. 0: never without being told."""
    drive_move_bytes_per_s: float = 256 << 20
    """What the node moves between its own drives after one was added, or while one retires, at most."""

    scrub_interval_s: float = 7 * 86400.0
    """How often every drive is gone through in search of objects whose bytes are not what was put, from the beginning
    of one search to that of the next. 0: never."""
    scrub_bytes_per_s: float = 32 << 20
    """What the node reads for that, at most."""

    etl_code: bool = False
    """Clients may have Python code of theirs run here, as worker processes: see docs/etl.md for what holds it off."""
    etl_commands: tuple[str, ...] = ()
    """Programs, by name or path, that clients may have run over objects, as `ffmpeg`; none: none."""
    etl_servers: tuple[str, ...] = ()
    """Transforms' servers that this node may send objects to, as http://127.0.0.1:9000; none: none."""
    etl_http_host: str = "127.0.0.1"
    """Where transforms' servers fetch inputs (hpull) and put results (direct put); listens once it is needed."""
    etl_http_port: int = 0
    """0: any that is free."""
    etl_http_advertise: str = ""
    """HOST:PORT by which servers on other machines reach that; empty: where it listens."""
    etl_python: str = ""
    """The interpreter that runs clients' code; empty: this process's own."""
    etl_install: bool = False
    """On a node that Ray runs: packages which clients' code requires, and this process's interpreter has not got, are
    installed for it, in a runtime environment of Ray's. What they bring runs as Ray's user then, behind no fence."""
    etl_workers: int = 0
    """Objects that are transformed at once; 0: as many as there are cores."""
    etl_worker_memory_bytes: int = 2 << 30
    """Of one worker."""
    etl_timeout_s: float = 300.0
    """For one object to pass through one transform."""
    etl_output_bytes: int = 8 << 30
    """What a transform may make of one object."""
    etl_memory_bytes: int = 256 << 20
    """Inputs and outputs that are held in memory, all together; what finds no room waits."""
    etl_spool_bytes: int = 16 << 30
    """Those that are files."""
    etl_cache_bytes: int = 256 << 20
    """Outputs that are kept for those who ask again; 0: none."""
    etl_user: str = ""
    """The user that workers run as, where this process may become another one; empty: the same."""
    etl_network: bool = True
    """Workers may reach the network. Without, they have a network namespace of their own, or do not start."""

    def __post_init__(self) -> None:
        limits = (
            "read_threads",
            "archive_threads",
            "readahead_threads",
            "memory_bytes",
            "max_active_batches",
            "max_request_bytes",
            "max_sessions",
            "max_streams",
            "max_message_bytes",
            "reject_retry_after_ms",
            "max_buffered_bytes",
            "assembly_bytes",
            "peer_window_bytes",
            "repair_transfers",
            "drive_errors",
            "open_shards",
            "etl_worker_memory_bytes",
            "etl_output_bytes",
            "etl_memory_bytes",
            "etl_spool_bytes",
        )
        for name in limits:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: need at least 1")
        object.__setattr__(self, "promote_roots", tuple(self.promote_roots))
        for root in self.promote_roots:
            if not root.startswith("/") or "\0" in root or ".." in root.split("/"):
                raise ValueError(f"promote_roots: {root!r}: need absolute paths of folders, without '..'")
        for name in ("etl_commands", "etl_servers"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        # A copy: the caller's mapping may change.
        object.__setattr__(self, "tenant_weights", dict(self.tenant_weights))
        for tenant, weight in self.tenant_weights.items():
            if not 1e-6 <= weight <= 1e6:
                raise ValueError(f"tenant_weights: {tenant!r} has {weight}, need 0.000001 to 1000000")
        for name in (
            "readahead_bytes",
            "max_recoveries",
            "max_soft_errors",
            "critical_memory_bytes",
            "shard_copy_bytes",
            "etl_workers",
            "etl_cache_bytes",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: need at least 0")
        for name in (
            "still_s",
            "stall_timeout_s",
            "peer_timeout_s",
            "peer_idle_s",
            "reach_timeout_s",
            "repair_interval_s",
            "repair_bytes_per_s",
            "drive_error_window_s",
            "drive_move_bytes_per_s",
            "scrub_bytes_per_s",
            "etl_timeout_s",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: need a finite number above 0")
        for name in (
            "throttle_cpu_lag_s",
            "throttle_drive_wait_s",
            "max_throttle_s",
            "reconcile_patience_s",
            "max_clock_offset_s",
            "tombstone_grace_s",
            "drive_grace_s",
            "scrub_interval_s",
            "read_lease_s",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: need a number of seconds, at least 0")
        if not 0 <= self.hedge_budget <= 1:
            raise ValueError(f"hedge_budget={self.hedge_budget}: need a share, 0 to 1")
        for name in ("port", "lane_port", "peer_port", "peer_lane_port"):
            if not 0 <= getattr(self, name) < 65536:
                raise ValueError(f"{name}={getattr(self, name)}: need 0 to 65535")
        if not self.peer_host:
            raise ValueError("peer_host: need an address of this machine, as 127.0.0.1")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 65536:
            raise ValueError(f"metrics_port={self.metrics_port}: need 0 to 65535, or None")

        _split_advertised("advertise", self.advertise)
        _split_advertised("peer_advertise", self.peer_advertise)
        _split_advertised("etl_http_advertise", self.etl_http_advertise)
        if not 0 <= self.etl_http_port < 65536:
            raise ValueError(f"etl_http_port={self.etl_http_port}: need a port, or 0 for any")
        if self.etl_install and self.etl_python:
            raise ValueError(
                f"etl_install and etl_python={self.etl_python}: either Ray makes environments, of the interpreter that "
                "the node has, or there is one that has everything"
            )
        if not self.etl_http_host:
            raise ValueError("etl_http_host: need an address of this machine, as 127.0.0.1")

    def endpoint(self, port: int) -> str:
        """host:port by which clients reach a node that listens on `port`; empty when that is not known."""
        host, outer_port = _split_advertised("advertise", self.advertise)
        return _endpoint(host or self.host, outer_port or port)

    def peer_endpoint(self, port: int) -> str:
        """The same for other nodes. One that listens on every address is where clients find it."""
        host, outer_port = _split_advertised("peer_advertise", self.peer_advertise)
        if not host and self.peer_host in EVERY_ADDRESS:
            host = _split_advertised("advertise", self.advertise)[0] or self.host
        return _endpoint(host or self.peer_host, outer_port or port)

    @property
    def shard_limits(self) -> ShardLimits:
        """What archives may hold of each drive, as one value."""
        return ShardLimits(self.open_shards, self.shard_copy_bytes)

    def limits(self) -> dict[str, str]:
        """Everything but where the node is found: what bounds what it does, by the fields' names, as text."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _WHERE}
        values["promote_roots"] = ":".join(self.promote_roots)
        for name in ("etl_commands", "etl_servers"):
            values[name] = " ".join(getattr(self, name))
        values["tenant_weights"] = ",".join(f"{name}={weight:g}" for name, weight in self.tenant_weights.items())
        return {name: f"{value:.15g}" if isinstance(value, float) else str(value) for name, value in values.items()}


def _endpoint(host: str, port: int) -> str:
    return "" if host in EVERY_ADDRESS else f"{host}:{port}"


def _split_advertised(name: str, advertise: str) -> tuple[str, int]:
    """Host and port, 0 for none; a bare IPv6 address gets its brackets. Raises ValueError."""
    host, colon, port = advertise.rpartition(":")
    if not colon or advertise.endswith("]"):
        host, port = advertise, "0"
    elif ":" in host and not (host.startswith("[") and host.endswith("]")):
        host, port = f"[{advertise}]", "0"
    elif not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{name}={advertise!r}: need HOST or HOST:PORT, as in 10.0.0.5 or proxy.example.org:7480")
    if "/" in host or any(letter.isspace() for letter in host):
        raise ValueError(f"{name}={advertise!r}: need HOST or HOST:PORT, without grpc:// and spaces")
    return host, int(port)
