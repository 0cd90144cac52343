"""Client: connects to a store, and names what is wanted from it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, overload

from ais_loader import errors
from ais_loader.archive import ArchiveFormat, ArchiveNames, BatchArchive, check_names, check_options
from ais_loader.batch import Batch
from ais_loader.bucket import Bucket
from ais_loader.entry import Entry, EntryLike
from ais_loader.errors import InvalidRequest
from ais_loader.etl import Transforms
from ais_loader.joined_ranges import JoinedRanges, of_one_version
from ais_loader.object_file import ObjectFile
from ais_loader.options import ClusterOptions, EmbeddedOptions
from ais_loader.requests import BatchOptions, batch_options, requests_for_entries, to_entries
from ais_loader.snapshots import pinned_name
from ais_loader.transport.base import BucketInfo, Transport
from ais_loader.transport.fork_safety import GATE
from ais_loader.urls import split_url, store_folders

URL_VARIABLE = "AIS_LOADER_URL"


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    mode: Literal["a", "r"] = "a",
    options: EmbeddedOptions | ClusterOptions | None = None,
) -> Client:
    """A client of the store at `url`.

    Args:
        url: `file:///data/store` or a plain path, in which `~` is the home folder: an embedded store, made there if
            `mode` is "a", which the log tells (a WARNING: it may be a mistyped path). Several folders, comma separated,
            are its drives. `grpc://host:7480`: a storage node; several endpoints, comma separated, are tried in turn.
            Of a cluster any endpoint will do: the others are learnt from it. Without `url`, the environment variable
            AIS_LOADER_URL says.
        mode: "a" reads and writes: an embedded store is held alone. "r" only reads, beside any writer, locks nothing
            and makes nothing; whatever would change the store raises StoreReadOnly. It sees at once what this process
            writes, and what another process has replaced or deleted one second later at the latest, or at once after
            `Client.refresh()`; names that are new are found at once.
        options: EmbeddedOptions or ClusterOptions, whichever `url` asks for.

    Raises:
        InvalidRequest: no URL, or one that says nothing, such as host:7480 without grpc://; options for another kind of
            store; another mode.
        StoreNotFound, StoreLocked, StoreFormatError, DriveFailed: from an embedded store, at once. A gRPC connection is
            made at the first call.
    """
    if url is not None and (isinstance(url, bytes) or not isinstance(url, (str, os.PathLike))):
        raise TypeError(f"a store's URL is a str or a path, got {type(url).__name__}")
    text = os.fspath(url) if url is not None else os.environ.get(URL_VARIABLE, "")
    if "\0" in text:
        raise errors.InvalidRequest(f"{text!r}: no path and no address has a NUL character")
    if mode not in ("a", "r"):
        raise errors.InvalidRequest(f'mode={mode!r}: need "a", to read and write, or "r", to read')
    if not text:
        raise errors.InvalidRequest(f"no store named: pass a URL or a path, or set {URL_VARIABLE}")
    if text.startswith("grpc://"):
        chosen = _options_for(text, options, ClusterOptions)
        with GATE.call():  # a child would wait for ever for a module that another thread was importing
            from ais_loader.transport.cluster.discovery import ClusterTransport
            from ais_loader.transport.read_only import ReadOnlyTransport

        nodes = ClusterTransport(text, chosen)
        return Client(cast(Transport, ReadOnlyTransport(nodes)) if mode == "r" else nodes)
    folders = store_folders(text)
    embedded = _options_for(text, options, EmbeddedOptions)
    with GATE.call():
        from ais_loader.transport.embedded import EmbeddedTransport

    return Client(EmbeddedTransport(folders, mode=mode, options=embedded))


_Options = TypeVar("_Options", EmbeddedOptions, ClusterOptions)


def _options_for(url: str, options: EmbeddedOptions | ClusterOptions | None, kind: type[_Options]) -> _Options:
    """Raises InvalidRequest for those of the other kind of store, TypeError for what is none."""
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
    """Entries of a batch for `Client.get_batches`, and a value of yours that rides with it."""

    entries: Sequence[EntryLike]
    opaque: Any


class Client:
    """One store. Thread-safe; pickles as its address; after a fork it connects anew by itself."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.closed = False

    @property
    def url(self) -> str:
        """What `connect` was given, or found in the environment."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"ais_loader.connect({self.url!r})"

    @property
    def etl(self) -> Transforms:
        """The transforms that run beside the data."""
        return Transforms(self._transport)

    # -- buckets

    def create_bucket(
        self, name: str, *, exist_ok: bool = False, copies: int = 1, min_copies: int = 1, reframe: bool = False
    ) -> Bucket:
        """Make a bucket; one that exists keeps its properties.

        Args:
            copies: on different hosts of a cluster. See `Bucket.set` for another number later.
            min_copies: a write is refused, to be tried again, when fewer copies than this can be written. With fewer
                than `copies`, others are made later.
            reframe: what is put as a .tar.zst or .tar.lz4 of which a member can only be had by unpacking all before it
                is stored in many frames instead, see docs/settings.md.

        Raises BucketExists (unless `exist_ok`), InvalidName, InvalidRequest, StoreReadOnly.
        """
        self._transport.create_bucket(name, copies=copies, exist_ok=exist_ok, min_copies=min_copies, reframe=reframe)
        return Bucket(self, name)

    def bucket(self, name: str, *, snapshot: str | None = None) -> Bucket:
        """A bucket by name, or as it was when a snapshot of it was made: then its name is `name@snapshot`.

        Nothing is asked of the store: a missing one shows at its first use.
        """
        return Bucket(self, name if snapshot is None else pinned_name(name, snapshot))

    def buckets(self) -> list[BucketInfo]:
        """All buckets, by name."""
        return self._transport.buckets()

    def delete_bucket(self, name: str, *, force: bool = False) -> int:
        """Delete an empty bucket, or with `force` its objects too. Returns how many objects went.

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
            entries: N >= 0 Entry values, ais:// URLs, or what `objects` and `members` list, of any buckets. Repeated
                ones are delivered each time. More than 10,000 are sent in parts; the answer is one all the same.
            bucket: what entries that are mere names are of.
            on_error: "raise" (the default) stops at the first entry that fails; "placeholder" delivers every entry in
                its place, with its status.
            timeout_s: the longest silence between two arrivals, 30 seconds by default; no limit for the whole batch.
            ordered: False lets items come as they arrive, each with its index.
            streaming: False has the node collect the whole answer before it sends any of it.
            assembly: of a cluster: "direct" asks each node for its entries, "target" one node for all, "auto" chooses.
            colocation: which node a "target" is: "none", "owner" or "shard".
            verify_ranges: compare byte ranges with the stored checksums, which reads whole blocks.
            options: these seven, the fields of `BatchOptions`, and no others.
            archive: "tar", "tar.gz", "tar.lz4", "tar.zst" or "zip": have the batch as one archive instead.
            archive_names: of its members: "bucket" for bucket/object, "object" without the bucket.
            opaque: yours: it stays in this process and is the Batch's `opaque`.

        Returns:
            A Batch that yields N Items, in exactly this order unless ordered=False. It is lazy: a slow consumer slows
            the store down instead of filling memory. With `archive` a BatchArchive, to be written to a file.

        Raises:
            InvalidRequest, TypeError: here; InvalidName for an entry whose member of an archive would be named like a
            path that leads elsewhere; NodeUnavailable, DriveFailed where entries have several ranges. Errors of entries
            and of the connection come while iterating: with on_error="raise" ObjectNotFound, BucketNotFound,
            RangeError, CorruptObject, NodeUnavailable, EntryFailed; always NodeUnavailable, SilenceTimeout, Overloaded
            when the batch itself cannot go on.
        """
        chosen = batch_options("get_batch", options)
        if archive is not None:
            check_options(archive, archive_names)
        parsed = to_entries(entries, bucket)
        if any(entry.etl is not None and entry.ranges is not None for entry in parsed):
            raise InvalidRequest("an entry of several ranges cannot pass through a transform: ask for each of them")
        joined: JoinedRanges | None = None
        if any(entry.ranges is not None for entry in parsed):
            parsed = of_one_version(parsed, lambda bucket, names: self.bucket(bucket).head_many(names))
            joined = JoinedRanges(parsed)
        _, requests = requests_for_entries(parsed if joined is None else joined.asked, chosen)
        if archive is not None:
            check_names(parsed, archive_names)
        batch = self._batch(parsed, requests, chosen, joined=joined, opaque=opaque)
        return batch if archive is None else BatchArchive(batch, archive, archive_names)

    def _batch(
        self,
        entries: Sequence[Entry | str],
        requests: list[Any],
        options: BatchOptions,
        bucket: str | None = None,
        joined: JoinedRanges | None = None,
        opaque: Any = None,
    ) -> Batch:
        transport, timeout_s = self._transport, options.timeout_s
        return Batch(
            entries,
            requests,
            lambda request: transport.open_batch(
                request, timeout_s=timeout_s, assembly=options.assembly, colocation=options.colocation
            ),
            options.on_error,
            bucket,
            joined,
            opaque,
        )

    def _long_batch(
        self, entries: Sequence[Entry], *, timeout_s: float, verify_ranges: bool, window_bytes: int
    ) -> Batch | None:
        """See `Transport.open_long_batch`; for at most as many entries as one request carries."""
        parsed, requests = requests_for_entries(entries, BatchOptions(timeout_s=timeout_s, verify_ranges=verify_ranges))
        stream = self._transport.open_long_batch(requests[0], timeout_s=timeout_s, window_bytes=window_bytes)
        return None if stream is None else Batch(parsed, requests, lambda _: stream, "raise")

    def get_batches(
        self,
        batches: Iterable[Sequence[EntryLike] | WithOpaque],
        *,
        in_flight: int = 3,
        **options: Any,
    ) -> Generator[Batch, None, None]:
        """One Batch after another, with the next ones already under way on the same session.

        A `WithOpaque(entries, value)` in place of its entries gives its batch that value, as `batch.opaque`.

        Lazy: the first are asked for when the first is taken. `batches` may be endless: it is drawn `in_flight` ahead.
        A batch that fails, or is dropped half-read, does no harm to the others. Arguments and errors as `get_batch`.
        """
        if in_flight < 1:
            raise errors.InvalidRequest(f"in_flight={in_flight}: need at least 1")
        return self._pipelined(batches, in_flight, options)

    def _pipelined(
        self, batches: Iterable[Sequence[EntryLike] | WithOpaque], in_flight: int, options: dict[str, Any]
    ) -> Generator[Batch, None, None]:
        under_way: deque[Batch] = deque()
        try:
            for entries in batches:
                if isinstance(entries, WithOpaque):
                    under_way.append(self.get_batch(entries.entries, opaque=entries.opaque, **options))
                else:
                    under_way.append(self.get_batch(entries, **options))
                if len(under_way) >= in_flight:
                    yield under_way.popleft()
            while under_way:
                yield under_way.popleft()
        finally:
            for batch in under_way:
                batch.close()

    def open(self, url: str, **options: Any) -> ObjectFile:
        """`ais://bucket/name` as a read-only, seekable binary file; options as `Bucket.open`."""
        bucket, name = split_url(url)
        file: ObjectFile = self.bucket(bucket).open(name, **options)
        return file

    # -- life

    def refresh(self) -> None:
        """See now what others have committed by now: ends the delay that `connect` speaks of.

        Of an embedded store that is open for reading, in this process; nodes answer by what is committed anyway. Raises
        Closed.
        """
        self._transport.refresh()

    def describe(self) -> dict[str, object]:
        """What is at the other end: drives and their state, the batch reader in use. For people; JSON-able."""
        return self._transport.describe()

    def close(self) -> None:
        """Let go of the store or the connection. Batches in flight end with an error; may be called again."""
        self.closed = True
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
