"""Settings of a node in groups: fields with their ranges, defaults and meanings.

A field's unit is the end of its name. Commands and their help read this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from storage_node.settings.host_patterns import check_host_patterns
from storage_node.settings.setting_types import (
    Address,
    Advertised,
    Commands,
    Finite,
    NotNegative,
    Port,
    Positive,
    Range,
    Seconds,
    Setting,
    Share,
    Weights,
    absolute_paths,
    declared,
)


def _absolute_or_empty(name: str, path: str) -> None:
    if path:
        absolute_paths("an absolute path")(name, (path,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsGroup:
    """Settings that belong together. Raises ValueError if one is out of range."""

    prefix: ClassVar[str] = ""
    """Prefix of the settings' names, which their fields lack."""

    def __post_init__(self) -> None:
        for setting in declared(type(self)):
            object.__setattr__(self, setting.field, setting.checked(getattr(self, setting.field)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings(SettingsGroup):
    """Addresses, ports, and the secret of callers."""

    host: str = "127.0.0.1"
    """The address to listen on. The default is loopback, because there is no authentication; any other address needs
    --insecure."""
    port: Port = 7480
    """The port for clients. 0 picks a free port."""
    advertise: Advertised = ""
    """The name or address at which clients reach this node: HOST, which implies the port that the node listens on, or
    HOST:PORT if a proxy or a container maps the port. Defaults to `host`. If `host` means every address, as 0.0.0.0
    does, the default is unknown and the node does not change its endpoint in the cluster map."""
    lane_port: Port = 0
    """The TCP port on `host` for clients' lanes; 0 picks a free port. Clients on the same machine do not need it."""
    peer_host: Address = "127.0.0.1"
    """The address to listen on for other nodes of the cluster and for operators' commands, which may do things that
    clients may not. Use loopback or the cluster's network; any address other than loopback needs --insecure and
    `peer_secret_file`."""
    peer_port: Port = 0
    """The port for other nodes and operators. 0 picks the port that the cluster map has for this node, or else a free
    port."""
    peer_lane_port: Port = 0
    """The port on `peer_host` for lanes of nodes on other machines; 0 picks a free port."""
    peer_advertise: Advertised = ""
    """The same as `advertise`, for other nodes and operators."""
    peer_secret_file: str = ""
    """A file with one line that every node of the cluster and every operator must know. Callers prove that they know
    it, and do not send it. If empty, `ais-loader serve` uses the file `peer-secret` in its first drive, which it
    creates, and `ais-loader cluster up` the file `.cluster/peer-secret` below the root. `peer_host` must be a loopback
    address if a node has no secret, or one of its own."""
    cert_file: str = ""
    """A certificate in PEM, followed by its chain: with it, all listeners of clients and nodes use TLS. It names the
    hosts at which the node is reached, and the node's uuid as the URI `ais-loader:node:UUID`. It needs `key_file` and
    `ca_file`. `--secure` makes these files. They are read again when they change."""
    key_file: str = ""
    """The key of `cert_file` in PEM, without a password."""
    ca_file: str = ""
    """The certificates in PEM of the authorities that vouch for other nodes and for operators."""

    metrics_port: Annotated[int | None, Range("0 to 65535, or None", 0, 65535)] = None
    """The port on `host` for Prometheus metrics; 0 picks a free port, and None disables metrics."""
    token_key_file: str = ""
    """A file with the public key of the tokens that clients need, as `ais-loader token key` makes it; see
    docs/access.md. If empty, clients need no tokens. Use the same file on all nodes of a cluster."""

    def __post_init__(self) -> None:
        SettingsGroup.__post_init__(self)
        files = {"cert_file": self.cert_file, "key_file": self.key_file, "ca_file": self.ca_file}
        if any(files.values()) and (missing := [name for name, path in files.items() if not path]):
            raise ValueError(f"{' and '.join(missing)}: TLS needs all of cert_file, key_file and ca_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(SettingsGroup):
    """Durability of writes, files that drives keep open, and drives that fail, move data or are scrubbed."""

    durability: Literal["process", "power"] = "process"
    """Durability of an acknowledged write: it survives the end of the process ("process"), or also a power failure
    ("power")."""
    promote_roots: Annotated[tuple[str, ...], absolute_paths("absolute paths of folders")] = ()
    """Folders on this machine whose files clients may promote into buckets. If empty, no file can be promoted."""
    open_shards: Annotated[int | None, Range("at least 1, or None", 1)] = None
    """The number of archives kept open on each drive for reading their members; each takes a descriptor, or two
    if its index takes over 1 MiB. None: an eighth of the descriptors that the process may have, for all drives
    together, but 128 to 4,096 for each."""
    shard_index_bytes: NotNegative = 256 << 20
    """Memory for indexes of archives, for each drive: about 40 bytes and the name for each member. Indexes beyond it
    are read again when they are needed."""
    shard_copy_bytes: NotNegative = 4 << 30
    """Limit, for each drive, on decompressed copies of archives whose members cannot be read piece by piece. The copies
    are files that disappear with the process. Members of an archive that unpacks to more than this are refused."""
    drive_errors: Positive = 10
    """A drive is disabled after this many I/O errors within `drive_error_window_s`."""
    drive_error_window_s: Finite = 60.0
    """The time window for `drive_errors`. Objects on a disabled drive are read from their other copies."""
    drive_grace_s: Seconds = 600.0
    """A drive that is missing, or disabled because of errors, is given up after this time if other nodes have copies of
    everything that may have been on it. These copies are then copied to this node's other drives. 0 means that a drive
    is given up only on an operator's command."""
    drive_move_bytes_per_s: Finite = 256 << 20
    """Maximum rate at which the node moves data between its own drives after a drive was added or while one retires."""
    scrub_interval_s: Seconds = 7 * 86400.0
    """How often every drive is searched for objects whose bytes differ from what was put, from the start of one search
    to the start of the next, and every name is compared with the other owners' whatever the digests say. 0 disables
    both."""
    scrub_bytes_per_s: Finite = 32 << 20
    """Maximum rate at which the node reads data for this search."""
    compact_bytes_per_s: NotNegative = 32 << 20
    """Maximum rate at which small objects move out of segments that are less than half live. An object counts as 4 KiB
    at least. 0 disables compaction: the space of overwritten and deleted small objects is then reclaimed later, or
    by `ais-loader doctor --compact`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings(SettingsGroup):
    """Batches: how they are read from this node's drives, and gathered from other nodes."""

    read_threads: Positive = 4
    """Threads that read from the drives. They release the interpreter lock while they read."""
    archive_threads: Positive = 4
    """Threads that open archives whose members are requested. The first time, this takes as long as reading the whole
    archive. One tenant uses at most all but one of these threads. Reads from the drives do not wait for them."""
    readahead_bytes: NotNegative = 64 << 20
    """The amount of page cache that the drives may be asked to fill ahead of the frames being read, for all batches
    together; 0 disables read-ahead."""
    readahead_threads: Positive = 4
    """Threads that request read-ahead."""
    memory_bytes: Positive = 256 << 20
    """Limit on frames that have been read but not yet handed to the network, for all sessions together. At this limit,
    readers wait."""
    assembly_bytes: Positive = 256 << 20
    """Limit on bytes that peers have sent or may send for batches that this node gathers, for all batches together.
    Above it, only the peer whose entry is due next may continue, one frame at a time, and further batches are rejected
    and can be retried."""
    peer_window_bytes: Positive = 4 << 20
    """The number of bytes that each peer may send ahead for one batch."""
    peer_timeout_s: Finite = 10.0
    """How long a peer may be silent before its entries are requested from the next holder, or given up as
    unavailable."""
    peer_idle_s: Finite = 60.0
    """A session to a peer is closed if it has not been used for this time."""
    hedge_budget: Share = 0.05
    """The share of the entries of gathered batches that may also be requested from a second holder if the first is
    unusually slow; 0 disables this. The share of up to 20,000 entries can be spent at once."""
    max_recoveries: NotNegative = 20_000
    """Maximum number of entries of one batch that may be requested again from another holder; a batch that needs more
    fails. With the default, no batch fails for this reason while each entry has lost at most two copies."""
    max_soft_errors: NotNegative = 10_000
    """Maximum number of entries of one gathered batch that may fail without ending it. With the default, no batch ends
    for this reason."""
    slow_batch_s: Finite = 5.0
    """A batch that waited at least this long on the node gets a line in the log, with its request id and what it waited
    for; 0 disables this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings(SettingsGroup):
    """Limits on what clients may use at once, and shares of tenants."""

    max_active_batches: Positive = 512
    """Maximum number of batches served at once. Further batches are rejected and can be retried."""
    max_sessions: Positive = 8192
    """Maximum number of open sessions of clients and other nodes, including idle ones. One tenant gets at
    most `tenant_share` of them. If there are too many, the session that has been idle the longest, and for at least
    `still_s`, is closed; its owner opens another one with its next batch. If there is none, the new session is rejected
    and can be retried."""
    max_request_bytes: Positive = 256 << 20
    """Limit on the requests of all batches being served. A request that does not fit beside the others is rejected and
    can be retried."""
    max_lanes: Positive = 8192
    """Maximum number of open lanes of clients, and of other nodes. If there are too many, the lane that has been idle
    the longest is closed; if none is idle, the new one is refused, and its client uses gRPC. Lanes also leave a quarter
    of the process's file descriptors to everything else."""
    max_lanes_per_peer: Positive = 1024
    """Maximum number of these lanes from one process on this machine, or from one address of another machine."""
    max_connections: Positive = 8192
    """Maximum number of gRPC connections of clients, and of other nodes; at most half of the process's file
    descriptors. Further connections are closed at once."""
    message_timeout_s: Finite = 20.0
    """Time limit for a message that a client has begun to send over a lane, and for the request of a gRPC call that
    has only one. Otherwise the lane is closed, or the call fails."""
    still_s: Finite = 10.0
    """A call whose client has neither received nor sent a significant amount for this time gives up its place and its
    memory to a call that waits for them. While there is enough for all calls, none is interrupted."""
    max_streams: Positive = 512
    """Maximum number of objects that are being put or read in calls of their own (each holds a descriptor), together
    with pages of listings and of deletions. Further calls are rejected and can be retried. Small objects are read as
    batches and do not count."""
    stall_timeout_s: Finite = 120.0
    """A call counted by `max_streams` is ended if its client has neither sent nor received a byte for this time."""
    max_message_bytes: Positive = 256 << 20
    """Limit on object data that clients have sent and that is being stored, for all calls together. The same limit
    applies separately to data from other nodes, including small objects that they have not committed yet. A call whose
    message does not fit is rejected and can be retried."""
    max_buffered_bytes: Positive = 128 << 20
    """Limit on answers that are collected before they are sent (streaming=False), for all sessions together. An answer
    that does not fit beside the others is rejected and can be retried; a larger one is refused."""
    reject_retry_after_ms: Positive = 100
    """The minimum delay before a rejected batch is retried."""
    tenant_share: Share = 0.875
    """The largest part that one tenant may have of sessions, lanes, batches and other calls at once, and of the bytes
    of their requests, messages and collected answers (`max_sessions`, `max_lanes`, `max_active_batches`, `max_streams`,
    `max_request_bytes`, `max_message_bytes`, `max_buffered_bytes`). What exceeds it is rejected and can be retried."""
    tenant_requests_per_s: NotNegative = 0
    """Maximum number of batches and other calls that one tenant may make in a second at this node, also by lanes. What
    exceeds it is rejected and can be retried. 0 for no limit."""
    tenant_bytes_per_s: NotNegative = 0
    """Maximum number of bytes in batches, and of small objects, that one tenant may read in a second at this node.
    Bytes that a node gathers from others count at both. They are counted when they are read: a tenant that has read
    more is rejected until the rate is kept. 0 for no limit."""
    tenant_weights: Weights = field(default_factory=dict, hash=False)
    """Tenants with waiting batches are served in proportion to these weights. The default weight is 1; the tenant ""
    stands for clients that name none."""
    critical_memory_bytes: NotNegative = 0
    """New batches are rejected while the process uses more memory than this. 0 means four fifths of the memory that the
    machine, or the process's cgroup, has when the node starts."""
    throttle_cpu_lag_s: Seconds = 0.1
    """How late the event loop may run before batches pause between their frames."""
    throttle_drive_wait_s: Seconds = 0.1
    """How long reads may wait for a reader thread before batches pause between their frames."""
    max_throttle_s: Seconds = 0.05
    """The longest pause between two frames of a batch while the processor or the drives cannot keep up; 0 disables
    pauses."""
    idle_exit_s: Seconds = 0.0
    """The node exits after this time without use: no client has a session, lane or call open, and no job runs. 0
    disables this. Not for nodes of a cluster. A node that a `node:///` URL has started exits after 600 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(SettingsGroup):
    """Agreement with other nodes, and repair of copies."""

    reach_timeout_s: Finite = 3.0
    """How long another node has to accept a write before the next host takes its place."""
    reconcile_patience_s: Seconds = 30.0
    """After a node starts, it does not serve copies that may be outdated until it has compared them with all other
    nodes. If some nodes do not respond within this time, it serves what it has and reports this."""
    max_clock_offset_s: Seconds = 60.0
    """The maximum difference between the clocks of nodes. Writes are ordered by time when nodes cannot reach each
    other; a write that involves a clock with a larger difference is refused. Use the same value on all nodes."""
    read_lease_s: Seconds = 3.0
    """In a cluster of three or more nodes, a node that has not been in touch with a majority of them for this time
    serves no objects with several copies. If a node cannot be told about a write, the write waits for at most this
    time. With more than 32 nodes, the time grows in proportion. Use the same value on all nodes. 0 disables leases: a
    node that is cut off from writers but not from readers then serves objects that have since been replaced."""
    repair_interval_s: Finite = 60.0
    """The time from the end of one comparison of this node's objects with the other owners', which finds missing and
    outdated copies, to the next. While the cluster map is changing, or work is left, they follow each other within
    seconds."""
    repair_bytes_per_s: Finite = 256 << 20
    """Maximum rate at which this node sends data to make copies equal."""
    repair_transfers: Positive = 2
    """The number of such transfers that run at once."""
    tombstone_grace_s: Seconds = 3600.0
    """A deletion is remembered for at least this time, and until every node of the cluster has confirmed that it has
    nothing older."""
    coding_delay_s: Seconds = 60.0
    """In a bucket with redundancy=rs:K+M, the age from which an object is coded. Until then it is kept as copies."""
    coding_bytes_per_s: Finite = 128 << 20
    """Maximum rate at which this node codes objects."""
    coding_grace_s: Finite = 3600.0
    """The time for which fragments stay after no object is in them any more, for readers that looked an object up
    before. Several times `max_clock_offset_s`, and the same on all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtlSettings(SettingsGroup):
    """Transforms."""

    prefix: ClassVar[str] = "etl_"

    code: bool = False
    """Whether clients may run their own Python code and commands on this node, in worker processes. See docs/etl.md for
    how they are isolated."""
    commands: Commands = field(default_factory=dict, hash=False)
    """Commands that clients may run on objects, by name, with typed arguments, such as `wav = "ffmpeg -v error -i
    {input} -ar {rate:int(8000,48000)} {output}.wav"`. Commands that clients write themselves need `etl_code`."""
    command_paths: Annotated[tuple[str, ...], absolute_paths("absolute paths")] = ()
    """Files and folders that commands may read in their sandbox, besides the system's programs and libraries: programs
    in other places, models, fonts."""
    sandbox: Literal["best_effort", "required", "off"] = "best_effort"
    """How commands are contained: as far as the kernel can ("best_effort"), fully or not run at all ("required"), or no
    more than Python code is ("off")."""
    servers: tuple[str, ...] = ()
    """Transform servers to which this node may send objects, such as http://127.0.0.1:9000; if empty, none are
    allowed."""
    http_host: Address = "127.0.0.1"
    """The address at which transform servers fetch inputs (hpull) and put results (direct put). The node listens on it
    when it is first needed."""
    http_port: Annotated[int, Range("a port, or 0 for any", 0, 65535)] = 0
    """The port for `etl_http_host`; 0 picks a free port."""
    http_advertise: Advertised = ""
    """HOST:PORT at which transform servers on other machines reach that address. If empty, the address on which the
    node listens."""
    python: str = ""
    """The interpreter that runs clients' code. If empty, the interpreter of this process."""
    install: bool = False
    """On a node that Ray runs, whether packages that clients' code requires and this process's interpreter lacks are
    installed for it, in a Ray runtime environment. Code that these packages bring then runs as Ray's user, without
    isolation."""
    workers: NotNegative = 0
    """The number of objects transformed at once; 0 means the number of CPU cores."""
    worker_memory_bytes: Positive = 2 << 30
    """Memory limit of one worker."""
    timeout_s: Finite = 300.0
    """Time limit for one object in one transform."""
    output_bytes: Positive = 8 << 30
    """Limit on the output of a transform for one object."""
    memory_bytes: Positive = 256 << 20
    """Limit on inputs and outputs held in memory, for all transforms together. An object that does not fit waits."""
    spool_bytes: Positive = 16 << 30
    """Limit on inputs and outputs held in files."""
    cache_bytes: NotNegative = 256 << 20
    """Limit on outputs that are kept for repeated requests; 0 disables this cache."""
    user: str = ""
    """The user that workers run as, if this process may switch users. If empty, the user of this process. The node must
    have a peer secret that this user cannot read, or `etl_network` must be false."""
    network: bool = True
    """Whether workers may use the network. If false, they run in a network namespace of their own, or do not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings(SettingsGroup):
    """Remote buckets: credentials, and requests to their remote storage."""

    prefix: ClassVar[str] = "remote_"

    profiles: str = ""
    """A TOML file of credentials, readable only by the node's user. Each section is a profile that remote buckets name.
    If empty, there are no profiles, and the node's environment or the role of its machine has the credentials."""
    hosts: Annotated[tuple[str, ...], check_host_patterns] = ()
    """Servers to which this node sends requests because clients name them, in https:// URLs and endpoints: HOST,
    HOST:PORT, a pattern such as `*.example.org`, or a network such as 10.0.0.0/8, which addresses that are not public
    need. If empty, the clouds' own hosts alone. `any`: all, and with the environment's credentials, for a node whose
    clients are its operators. The endpoints of the environment and of profiles need no entry."""
    file_roots: Annotated[tuple[str, ...], absolute_paths("absolute paths of folders")] = ()
    """Folders on this machine that may be remote storage of buckets (file:///folder). If empty, none may."""
    max_requests: Positive = 64
    """Maximum number of requests in flight to one host of remote storage, for all buckets together."""
    prefetch_requests: NotNegative = 32
    """How many of these may be for objects that a loader has announced and no reader waits for yet, and how many of
    these objects are fetched at once. Readers come first. 0: nothing is fetched ahead."""
    timeout_s: Finite = 30.0
    """How long remote storage may take to answer, and to send the next bytes of an answer, before the request fails."""
    retry_s: Finite = 30.0
    """How long a request that fails or is throttled is repeated, from its first failure. A read that is interrupted
    has this time again whenever bytes have come."""
    fetch_timeout_s: Finite = 60.0
    """How long a reader waits for a cold object of which nothing comes. The fetch goes on for others that want it."""
    large_object_bytes: Positive = 32 << 20
    """Objects larger than this are fetched in ranges, several at once."""
    range_bytes: Positive = 8 << 20
    """The size of these ranges, and of the parts in which larger objects are put."""
    ranges_per_object: Positive = 4
    """The number of these ranges that are fetched at once for one object, and held in memory."""
    hedge_budget: Share = 0.05
    """The share of reads that may be requested a second time if the first answer is unusually slow; 0 disables this."""
    min_free_bytes: NotNegative = 1 << 30
    """Copies of remote objects are evicted from a drive that has less free space than this. 0 disables this; a drive
    that is full has copies evicted in any case."""
    write_back_bytes: Positive = 16 << 30
    """Bytes that may be pending on a node: put into buckets with write="back", and not uploaded yet. Beyond that, PUTs
    wait. One object may be larger."""
    write_back_wait_s: Finite = 30.0
    """How long a PUT waits for that before it fails with Overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(SettingsGroup):
    """The audit log: who changed what, and who read what."""

    prefix: ClassVar[str] = "audit_"

    level: Literal["off", "changes", "reads"] = "changes"
    """The calls that are logged, with who made them: none ("off"), those that change something ("changes"),
    or also every batch and every object that is read ("reads"). See docs/access.md."""
    names: bool = False
    """Whether lines have the names of objects, which may be personal or licensed data. Otherwise, they have digests."""
    folder: Annotated[str, _absolute_or_empty] = ""
    """An absolute path. The log is then in a folder below it that has the node's uuid as its name. If empty, it is in
    the folder `audit` of the node's first drive."""
    file_bytes: Positive = 64 << 20
    """Size from which a file of the log is full, and another one begins."""
    files: Annotated[int, Range("at least 2", 2)] = 16
    """The number of files that are kept. Older ones are removed."""

    @property
    def logs_reads(self) -> bool:
        """Whether reads are logged."""
        return self.level == "reads"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(SettingsGroup):
    """The gateway for clients of S3 beside the node, in a process of its own."""

    prefix: ClassVar[str] = "gateway_"

    port: Annotated[int | None, Range("0 to 65535, or None", 0, 65535)] = None
    """The port on `host` for clients of S3 and AIStore; 0 picks a free one, and without a port there is no gateway. It
    uses the node's certificate, if the node has one. In a cluster, a node takes that port, or one of the next that is
    free."""
    keys_file: Annotated[str, _absolute_or_empty] = ""
    """An absolute path: the file with the access keys. See docs/gateway.md."""
    processes: Annotated[int, Range("1 to 256", 1, 256)] = 1
    """The number of processes that share the port."""
    metrics_port: Annotated[int | None, Range("0 to 65535, or None", 0, 65535)] = None
    """The port on `host` for the gateway's Prometheus metrics; 0 picks a free port, and None disables them."""
    access_log: Annotated[str, _absolute_or_empty] = ""
    """An absolute path: the file to which the gateway appends a line for each request. If empty, there is none."""

    def __post_init__(self) -> None:
        SettingsGroup.__post_init__(self)
        if self.port is not None and not self.keys_file:
            raise ValueError("gateway_port: need gateway_keys_file, a file with access keys")


GROUPS: Mapping[str, type[SettingsGroup]] = {
    "listen": ListenSettings,
    "store": StoreSettings,
    "reads": ReadSettings,
    "limits": LimitSettings,
    "cluster": ClusterSettings,
    "etl": EtlSettings,
    "remote": RemoteSettings,
    "audit": AuditSettings,
    "gateway": GatewaySettings,
}
SETTINGS: Mapping[str, Setting] = {one.name: one for group in GROUPS.values() for one in declared(group)}
"""All settings, by the names that users write."""
