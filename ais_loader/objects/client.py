"""Client: connects to a store, and names what is wanted from it."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast, overload

from ais_loader import errors
from ais_loader.name_matching import names_unknown_options
from ais_loader.objects.archive import ArchiveFormat, ArchiveNames, BatchArchive
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.object_file import ObjectFile
from ais_loader.objects.opened_batch import opened_archive, opened_batch
from ais_loader.tracebacks import short_traceback
from ais_loader.transforms.etl import Transforms
from ais_loader.transport.base import BucketInfo, PendingUploads, RemoteUsage, Transport, checked_settings, whole_number
from ais_loader.transport.fork_safety import GATE
from ais_loader.values.batch import Batch
from ais_loader.values.entry import EntryLike
from ais_loader.values.options import ClusterOptions, EmbeddedOptions
from ais_loader.values.requests import batch_options
from ais_loader.values.summary import pinned_name
from ais_loader.values.token_source import TokenSource
from ais_loader.values.urls import NODE_SCHEME, SECURE_SCHEME, is_remote, split_url, store_folders
from ais_loader.wire.closing import Closing
from ais_loader.wire.remote import Remote

URL_VARIABLE = "AIS_LOADER_URL"
CA_VARIABLE = "AIS_LOADER_CA_FILE"
_GET_BATCH_PARAMETERS = ("bucket", "archive", "archive_names", "opaque")


@short_traceback
@names_unknown_options()
def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    mode: Literal["a", "r"] = "a",
    options: EmbeddedOptions | ClusterOptions | None = None,
    ca: str | os.PathLike[str] | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> Client:
    """Return a client for the store at `url`.

    Args:
        url: For an embedded store, `file:///data/store` or a plain path, in which `~` is the home folder. If there is
            no store at the path and `mode` is "a", one is created, with a WARNING in the log in case you mistyped the
            path. Several folders, separated by commas, are the drives of one store. For a node that serves such a store
            to all processes of this host, and that is started if it is not running, `node:///data/store`. For a storage
            node, `grpc://host:7480`, or `grpcs://host:7480` if it was started with --secure. Several endpoints,
            separated by commas, are tried in turn. For a cluster, any one endpoint is enough, because the client learns
            the others from it. The default is the value of the environment variable AIS_LOADER_URL.
        mode: "a" opens the store for reading and writing, and locks an embedded store exclusively. "r" opens it for
            reading only. It takes no lock, changes nothing, and works alongside any writer. Any operation that would
            change the store raises StoreReadOnly. In mode "r", you see this process's own writes immediately. You see
            what another process replaced or deleted within one second, or immediately after `Client.refresh()`. New
            names are visible immediately.
        options: EmbeddedOptions or ClusterOptions, to match the kind of store in `url`.
        ca: For `grpcs://`, the file with the certificate of the CA that the nodes are trusted by, in PEM. The default
            is the value of AIS_LOADER_CA_FILE, and without one, the CAs that this system trusts. The client pickles
            with this path.
        token, token_file: The token that nodes ask for, or a file with it, which is read again when it changes. The
            default is AIS_LOADER_TOKEN_FILE, a path, or AIS_LOADER_TOKEN, the token itself. A token is never shown or
            pickled, and never sent without encryption to another machine; see docs/access.md.

    Raises:
        InvalidRequest: There is no URL, or it is not valid, such as host:7480 without grpc://. Also raised for options
            that are for the other kind of store, and for an unknown mode.
        StoreNotFound, StoreLocked, StoreFormatError, DriveFailed: From an embedded store, and from a node that cannot
            be started, immediately. So is StoreError for a node that fails to start for another reason, and Unsupported
            for one of an older version. A gRPC connection is not opened until the first call.
    """
    if url is not None and (isinstance(url, bytes) or not isinstance(url, (str, os.PathLike))):
        raise TypeError(f"a store's URL is a str or a path, got {type(url).__name__}")
    text = os.fspath(url) if url is not None else os.environ.get(URL_VARIABLE, "")
    if "\0" in text:
        raise errors.InvalidRequest(f"{text!r}: no path and no address has a NUL character")
    if mode not in ("a", "r"):
        raise errors.InvalidRequest(f'mode={mode!r}: need "a", to read and write, or "r", to read')
    if not text.strip():
        raise errors.InvalidRequest(f"no store named: pass a URL or a path, or set {URL_VARIABLE}")
    if is_remote(text):
        if "@" in text or "?" in text:  # URLs are logged, so the message does not show this one either
            raise errors.InvalidRequest("a node's URL has neither credentials nor parameters: use token_file=")
        chosen = with_tls(text, _options_for(text, options, ClusterOptions), ca)
        chosen = _with_token(chosen, token, token_file)
        with GATE.call():  # a forked child would wait forever for another thread's import
            from ais_loader.transport.cluster.transport import RemoteTransport
            from ais_loader.transport.grpc.channel import read_ca
            from ais_loader.transport.read_only import ReadOnlyTransport
            from ais_loader.transport.same_host import SameHostTransport
        if chosen.ca:
            read_ca(chosen.ca)
        if text.startswith(NODE_SCHEME):
            nodes: RemoteTransport = SameHostTransport(_start_node(store_folders(text), create=mode == "a"), chosen)
        else:
            nodes = RemoteTransport(text, chosen)
        return Client(cast(Transport, ReadOnlyTransport(nodes)) if mode == "r" else nodes)
    if ca is not None:
        raise errors.InvalidRequest(f"ca={os.fspath(ca)!r} goes with grpcs://host:port, not with {text!r}")
    if token is not None or token_file is not None:
        raise errors.InvalidRequest("token= and token_file= are for storage nodes; an embedded store needs no token")
    folders = store_folders(text)
    embedded = _options_for(text, options, EmbeddedOptions)
    with GATE.call():
        from ais_loader.transport.embedded import EmbeddedTransport

    return Client(EmbeddedTransport(folders, mode=mode, options=embedded))


def _with_token(
    options: ClusterOptions, token: str | None, token_file: str | os.PathLike[str] | None
) -> ClusterOptions:
    """Return the options with a token. Raises InvalidRequest."""
    if token is not None and token_file is not None:
        raise errors.InvalidRequest("token= and token_file=: give one of them")
    if token is None and token_file is None:
        return options
    source = TokenSource.file(token_file) if token_file is not None else TokenSource.value(token or "")
    return dataclasses.replace(options, token=source)


def _start_node(folders: list[str], *, create: bool) -> str:
    """Start the node of these drives if it is not running. Return its URL, which is valid in any working directory.

    Raises StoreNotFound if there is no store and it may not be created, and the errors of `OnDemandNode.endpoint`.
    """
    from ais_loader.transport.on_demand import OnDemandNode
    from ais_loader.wire.node_folder import NodeFolder

    folders = [os.path.abspath(folder) for folder in folders]
    if not create and not NodeFolder(folders).has_store:
        raise errors.StoreNotFound(f"no store at {', '.join(folders)}")
    OnDemandNode(folders).endpoint()
    return ",".join(NODE_SCHEME + folder for folder in folders)


def with_tls(url: str, options: ClusterOptions, ca: str | os.PathLike[str] | None = None) -> ClusterOptions:
    """Return the options for the nodes at a URL, with the CA from the environment if none is given. Raises
    InvalidRequest for a CA without TLS."""
    given = os.fspath(ca) if ca is not None else options.ca
    if not url.startswith(SECURE_SCHEME):
        if given:
            raise errors.InvalidRequest(f"ca={given!r} goes with grpcs://host:port, not with {url!r}")
        return replace(options, tls=False)
    path = given or os.environ.get(CA_VARIABLE, "")
    return replace(options, tls=True, ca=os.path.abspath(os.path.expanduser(path)) if path else "")


_Options = TypeVar("_Options", EmbeddedOptions, ClusterOptions)


def _options_for(url: str, options: EmbeddedOptions | ClusterOptions | None, kind: type[_Options]) -> _Options:
    """Select the options. Raises InvalidRequest for options of the other kind of store, TypeError for anything else."""
    if options is None:
        return kind()
    if isinstance(options, kind):
        return options
    if not isinstance(options, (EmbeddedOptions, ClusterOptions)):
        raise TypeError(f"options is a {type(options).__name__}: need {kind.__name__}")
    what = "storage nodes" if kind is ClusterOptions else "an embedded store"
    raise errors.InvalidRequest(f"{url!r} is {what}: it takes {kind.__name__}, not {type(options).__name__}")


@dataclass(frozen=True, slots=True)
class WithOpaque:
    """The entries of one batch for `Client.get_batches`, with a value of your own to attach to that batch."""

    entries: Sequence[EntryLike]
    """The entries of the batch, as `Client.get_batch` takes them."""
    opaque: Any
    """The value that becomes `Batch.opaque`."""


class Client(Closing):
    """A client for one store. It is thread-safe, pickles as its address, and reconnects automatically after a fork."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.closed = False

    @property
    def url(self) -> str:
        """The URL that was passed to `connect` or taken from the environment."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"ais_loader.connect({self.url!r})"

    @property
    def etl(self) -> Transforms:
        """The transforms that run where the data is stored."""
        return Transforms(self._transport)

    # -- buckets

    def create_bucket(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        copies: int | None = None,
        min_copies: int = 1,
        remote: Remote | str | None = None,
        quota_bytes: int = 0,
        quota_objects: int = 0,
        redundancy: str | None = None,
    ) -> Bucket:
        """Create a bucket. An existing bucket keeps its properties.

        Args:
            copies: The number of copies of each object, on different hosts of a cluster; 1 unless `redundancy` implies
                another. You can change it later with `Bucket.set`.
            min_copies: The smallest number of copies that a write must store. If fewer can be written, the write is
                refused and can be retried. If at least this many but fewer than `copies` are written, the store makes
                the missing copies later.
            remote: A place in S3, GCS, Azure, on an HTTP server or in a folder, as a `Remote` or its URL. The bucket's
                objects are those at that place, and the store keeps copies of what is read. See docs/remote.md.
            quota_bytes: The maximum size of all objects together; 0 for no limit. What would exceed it is refused with
                `QuotaExceeded`. Not for remote buckets, and not in a cluster. See docs/operations.md.
            quota_objects: The maximum number of objects, in the same way.
            redundancy: "rs:K+M", such as "rs:4+2", keeps objects that have settled in K data and M parity fragments,
                on as many hosts of a cluster; any M hosts may be lost. The default is "copies". See docs/cluster.md.

        Raises BucketExists (unless `exist_ok`; and if an existing bucket has another `remote`), InvalidName,
        InvalidRequest, Unsupported, StoreReadOnly.
        """
        place = None if remote is None else Remote.of(remote)
        settings = checked_settings(
            copies=copies,
            min_copies=min_copies,
            remote=place,
            quota_bytes=quota_bytes,
            quota_objects=quota_objects,
            redundancy=redundancy,
        )
        found = self._transport.create_bucket(name, settings, exist_ok=exist_ok)
        if place is not None and found.remote != place:
            raise errors.BucketExists(
                f"bucket {name!r} exists with remote={found.remote}; `Bucket.set` changes it, or choose another name"
            )
        return Bucket(self, name)

    def remote_usage(self) -> list[RemoteUsage]:
        """Return the requests that the nodes have sent to remote storage since they started.

        There is one value for each node, remote bucket and tenant. Raises NodeUnavailable if a node does not answer.
        """
        return self._transport.remote_usage()

    def pending_uploads(self) -> list[PendingUploads]:
        """Return what is still to be uploaded to remote storage, by node and bucket (see `Remote.write`).

        Raises NodeUnavailable if a node does not answer.
        """
        return self._transport.pending_uploads("", "", 0.0)

    def bucket(self, name: str, *, snapshot: str | None = None) -> Bucket:
        """Return the bucket of this name, or one of its snapshots.

        With `snapshot`, you get the bucket as it was when that snapshot was made, and its name is `name@snapshot`. The
        call does not contact the store. If the bucket does not exist, its first use raises the error.
        """
        return Bucket(self, name if snapshot is None else pinned_name(name, snapshot))

    def buckets(self) -> list[BucketInfo]:
        """List all buckets, sorted by name."""
        return self._transport.buckets()

    def delete_bucket(self, name: str, *, force: bool = False) -> int:
        """Delete an empty bucket, or with `force` a bucket and its objects. Returns the number of objects deleted.

        Raises BucketNotFound, BucketNotEmpty, StoreReadOnly.
        """
        return self._transport.delete_bucket(name, force=force)

    # -- batches

    @overload
    def get_batch(
        self,
        entries: Iterable[EntryLike],
        *,
        bucket: str | None = None,
        archive: ArchiveFormat,
        archive_names: ArchiveNames = "bucket",
        **options: Any,
    ) -> BatchArchive: ...

    @overload
    def get_batch(
        self, entries: Iterable[EntryLike], *, bucket: str | None = None, archive: None = None, **options: Any
    ) -> Batch: ...

    def get_batch(
        self,
        entries: Iterable[EntryLike],
        *,
        bucket: str | None = None,
        archive: ArchiveFormat | None = None,
        archive_names: ArchiveNames = "bucket",
        opaque: Any = None,
        **options: Any,
    ) -> Batch | BatchArchive:
        """Fetch many entries with one request.

        Args:
            entries: N >= 0 Entry values, ais:// URLs, or results of `objects` and `members`, from any buckets. A
                repeated entry is delivered each time. More than 10,000 entries are sent as several requests, but you
                still get one Batch.
            bucket: The bucket of those entries that are plain names.
            on_error: "raise" (the default) stops at the first entry that fails. "placeholder" delivers every entry in
                its place, with its status.
            timeout_s: The longest time to wait for the next data, 30 seconds by default. The batch as a whole has no
                time limit.
            ordered: False delivers items as they arrive, each with its index.
            streaming: False makes the node collect the whole response before it sends any of it.
            assembly: For a cluster: "direct" asks each node for its own entries, "target" asks one node for all of
                them, and "auto" chooses between the two.
            colocation: How to choose the node for "target": "none", "owner" or "shard".
            verify_ranges: Verify byte ranges against the stored checksums, which reads whole blocks. True by default.
            options: Only the seven arguments above, `on_error` to `verify_ranges`: the fields of `BatchOptions`.
            archive: "tar", "tar.gz", "tar.lz4", "tar.zst" or "zip", to get the batch as one archive instead.
            archive_names: How to name the members of that archive: "bucket" for bucket/object, "object" to leave out
                the bucket.
            opaque: Any value of your own. It stays in this process, as the Batch's `opaque`.

        Returns:
            A Batch that yields N Items, in exactly this order unless ordered=False. It is lazy: a slow consumer slows
            the store down instead of filling memory. With `archive`, a BatchArchive that you can write to a file.

        Raises:
            InvalidRequest, TypeError: from this call, as are InvalidName for an entry whose archive member would have
            an unsafe path, and NodeUnavailable and DriveFailed if entries have several ranges. Errors of entries and of
            the connection are raised as you iterate. With on_error="raise", a failed entry raises ObjectNotFound,
            BucketNotFound, RangeError, CorruptObject, NodeUnavailable or EntryFailed. With either setting, a batch that
            cannot continue raises NodeUnavailable, SilenceTimeout or Overloaded.
        """
        chosen = batch_options("get_batch", options, parameters=_GET_BATCH_PARAMETERS)
        if archive is None:
            return opened_batch(self._transport, entries, bucket, options=chosen, opaque=opaque)
        return opened_archive(
            self._transport,
            entries,
            bucket,
            archive=archive,
            archive_names=archive_names,
            options=chosen,
            opaque=opaque,
        )

    def get_batches(
        self, batches: Iterable[Sequence[EntryLike] | WithOpaque], *, in_flight: int = 3, **options: Any
    ) -> Generator[Batch, None, None]:
        """Yield one Batch after another, while the next ones are already in flight on the same session.

        To attach a value to a batch as `batch.opaque`, pass `WithOpaque(entries, value)` instead of the entries.

        The generator is lazy: it sends no request until you take the first batch. `batches` may be infinite, because at
        most `in_flight` are requested at a time. A batch that fails, or that you abandon half-read, does not affect the
        others. Arguments and errors are those of `get_batch`.
        """
        return self._pipelined(batches, whole_number("in_flight", in_flight, least=1), options)

    def _pipelined(
        self, batches: Iterable[Sequence[EntryLike] | WithOpaque], in_flight: int, options: dict[str, Any]
    ) -> Generator[Batch, None, None]:
        pending: deque[Batch] = deque()
        try:
            for entries in batches:
                if isinstance(entries, WithOpaque):
                    pending.append(self.get_batch(entries.entries, opaque=entries.opaque, **options))
                else:
                    pending.append(self.get_batch(entries, **options))
                if len(pending) >= in_flight:
                    yield pending.popleft()
            while pending:
                yield pending.popleft()
        finally:
            for batch in pending:
                batch.close()

    def open(self, url: str, **options: Any) -> ObjectFile:
        """Open `ais://bucket/name` as a read-only, seekable binary file. The options are those of `Bucket.open`."""
        bucket, name = split_url(url)
        file: ObjectFile = self.bucket(bucket).open(name, **options)
        return file

    # -- life

    def refresh(self) -> None:
        """Make everything that other processes have committed visible now, without the delay described in `connect`.

        This matters only for an embedded store that this process opened with mode "r". Storage nodes always answer from
        the latest committed state. Raises Closed.
        """
        self._transport.refresh()

    def describe(self) -> dict[str, object]:
        """Describe the store: its drives, their state and the batch reader in use. For people; JSON-serializable."""
        return self._transport.describe()

    def close(self) -> None:
        """Close the store or the connection. Batches in flight end with an error. You can call it more than once."""
        self.closed = True
        self._transport.close()
