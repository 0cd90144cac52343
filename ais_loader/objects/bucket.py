"""Bucket as the client sees it: its objects are put, read, listed and deleted by name.

The module is long because users read it: signatures and their contracts. Methods that are more than a call of the
store stand beside their implementation, in parts of the class: see `bucket_part`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Literal, get_args, overload

from ais_loader import errors
from ais_loader.name_matching import pattern_list
from ais_loader.objects.append import BucketAppending
from ais_loader.objects.bucket_transforming import BucketTransforming
from ais_loader.objects.copy import BucketCopying
from ais_loader.objects.delete import BucketDeleting
from ais_loader.objects.deny import BucketDenying
from ais_loader.objects.download import download
from ais_loader.objects.folders import BucketFolders
from ais_loader.objects.head_many import head_many
from ais_loader.objects.listing import Listing, pinned_table, table_of_names
from ais_loader.objects.metadata import BucketMetadata
from ais_loader.objects.multipart import BucketUploads
from ais_loader.objects.object_file import READ_AHEAD_BYTES, ObjectFile, ObjectReader, opened_reader, spooled
from ais_loader.objects.opened_batch import batch_of_names
from ais_loader.objects.pinned import opened, opened_member, pinned_bytes, pinned_members
from ais_loader.objects.put_spec import check_version, put_spec
from ais_loader.objects.remote.inventory import BucketInventory, forget_inventories, kept_inventory, table_of_inventory
from ais_loader.objects.remote.warm import BucketWarming
from ais_loader.objects.sample_table import SampleTable, bucket_samples
from ais_loader.transport.base import (
    PAGE_SIZE,
    BucketInfo,
    Transport,
    checked_settings,
    require_bucket,
    require_text,
    whole_number,
)
from ais_loader.values.batch import Batch
from ais_loader.values.changes import DownloadSummary, OnError, OnProgress, PromoteSummary
from ais_loader.values.entry import Entry, EntryLike, MemberInfo, ObjectInfo, to_entry
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.pipeline import Etl
from ais_loader.values.promote import Overwrite, PromoteResult, PromoteSpec, Shared, promote_all
from ais_loader.values.requests import batch_options, checked_timeout_s, request_for_transformed, require_many
from ais_loader.values.source import Content, Source
from ais_loader.values.summary import BucketSummary, SnapshotInfo
from ais_loader.wire.remote import Remote

if TYPE_CHECKING:
    from ais_loader.objects.client import Client


class Bucket(
    BucketFolders,
    BucketMetadata,
    BucketDeleting,
    BucketDenying,
    BucketCopying,
    BucketAppending,
    BucketUploads,
    BucketTransforming,
    BucketWarming,
    BucketInventory,
):
    """A handle to the objects of one bucket. It is cheap to create and holds no resources."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"{self.client!r}.bucket({self.name!r})"

    def _repr_html_(self) -> str:
        return self.objects(page_size=21)._repr_html_()

    @property
    def _transport(self) -> Transport:
        return self.client._transport

    def info(self) -> BucketInfo:
        """Return the bucket's properties. Raises BucketNotFound."""
        return self._transport.bucket(self.name)

    def set(
        self,
        *,
        copies: int | None = None,
        min_copies: int | None = None,
        remote: Remote | str | None = None,
        quota_bytes: int | None = None,
        quota_objects: int | None = None,
        redundancy: str | None = None,
    ) -> BucketInfo:
        """Change the bucket's properties, which `Client.create_bucket` describes. None leaves a property unchanged.

        `min_copies` applies to objects that are stored from now on. `copies`, which can be changed only in a cluster,
        applies to every object: the cluster makes or removes copies in the background, and `info().settling` is True
        until it has finished. `remote` makes the bucket a remote one, or changes its place: stored copies stay
        and are validated by the new rule. `remote=""` removes it: the stored copies are then all that there is.
        `quota_bytes` and `quota_objects` apply to writes from now on, and 0 removes them. The first quota of a bucket
        takes one scan of its objects. If they exceed it already, they stay. `redundancy` applies to every object, in
        the background: "rs:K+M" codes those that have settled, and sets `copies` to M+1; "copies" brings them back.

        Raises BucketNotFound, StoreReadOnly; Unsupported for a quota in a cluster; InvalidRequest if the store cannot
        keep that number of copies; NodeUnavailable if you change `copies` while a snapshot of the bucket is being made.
        """
        place: Remote | Literal[""] | None = None if remote is None else "" if remote == "" else Remote.of(remote)
        if place:
            place = kept_inventory(self._transport, self.name, place)
        settings = checked_settings(
            copies=copies,
            min_copies=min_copies,
            remote=place,
            quota_bytes=quota_bytes,
            quota_objects=quota_objects,
            redundancy=redundancy,
        )
        info = self._transport.set_bucket(self.name, settings)
        if place is not None:
            forget_inventories(self._transport, self.name)
        return info

    def put(
        self,
        name: str,
        data: Content,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: int | None = None,
        if_absent: bool = False,
        if_version: str | None = None,
    ) -> ObjectInfo:
        """Store an object, replacing any object of the same name. Readers see all of it or none of it.

        Args:
            name: 1 to 1,024 bytes of UTF-8. See README.
            data: A bytes-like object, a path (to store the file's contents), or a binary file object. Never a str.
            metadata: String keys and values, at most 4 KiB of UTF-8 in total. Control characters are not allowed,
                except tabs and line endings in values. Keys that begin with "ais." are set by the store alone.
            checksum: The CRC-32C that the bytes must have.
            if_absent: Store the object only if there is none of this name.
            if_version: Replace only this version (`ObjectInfo.version`). If several writers use the same condition,
                from any machine, one succeeds and the others get VersionConflict. A writer that loses its connection
                retries, and recognizes what it stored itself. For the guarantees of a cluster, see docs/cluster.md.

        Raises InvalidName, InvalidRequest, BucketNotFound, ContentMismatch, VersionConflict, DriveFull, StoreReadOnly,
        NodeUnavailable when it was not stored, OutcomeUnknown and SilenceTimeout when it may have been, TypeError.
        """
        source = Source(data)
        spec = put_spec(
            self.name, name, source, metadata=metadata, checksum=checksum, if_absent=if_absent, if_version=if_version
        )
        return self._transport.put(spec, source)

    def download(
        self,
        prefix: str,
        folder: str | os.PathLike[str],
        *,
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        overwrite: bool = False,
        timeout_s: float = 30.0,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> DownloadSummary:
        """Write the objects whose names begin with `prefix` to files below a local folder.

        File names are what follows the last slash of the prefix: for the prefix "en/", the object `en/a/b.wav` becomes
        `folder/a/b.wav`, and for "e" it becomes `folder/en/a/b.wav`. A file appears only when it is complete and
        verified. A file that already exists with the same bytes is left alone, so you can call this again to resume an
        interrupted download.

        Args:
            folder: The folder, created if it does not exist. `~` is the home folder.
            include, exclude: One shell pattern, or several. A pattern with a slash is matched against the path
                relative to `folder`, any other pattern against the file name alone.
            overwrite: Replace existing files that have other bytes. Without it, they count as failures.
            timeout_s: The longest time to wait for the next data from the store, in seconds.
            on_error: "raise" raises the first failure. "return" goes on, and the summary names the first 1,000
                failures.
            progress: Called with a `Progress` after each object, in this thread.

        Raises BucketNotFound, OSError, NodeUnavailable, SilenceTimeout; for single objects, InvalidRequest if a file or
        folder is in the way, ObjectNotFound if the object was replaced or deleted after it was listed, and
        CorruptObject.
        """
        return download(
            self._transport,
            self.name,
            prefix,
            folder,
            include=include,
            exclude=exclude,
            overwrite=overwrite,
            timeout_s=checked_timeout_s(timeout_s),
            on_error=on_error,
            progress=progress,
        )

    def promote(
        self,
        path: str | os.PathLike[str],
        *,
        recursive: bool = True,
        prefix: str = "",
        move: bool = False,
        shared: Shared = "auto",
        overwrite: Overwrite = "changed",
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        node: str | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> PromoteSummary:
        """Turn files that the store's machine can read into objects, without sending them through this process.

        A folder's file `a/b.wav` becomes the object `prefix + "a/b.wav"`. Files that are already stored are skipped, so
        you can call this again to resume an interrupted promotion. A file that fails does not stop the others. Nodes
        promote only from the folders that they were started with (`promote_roots`); see
        docs/managing-objects.md.

        Args:
            path: A file or a folder. For nodes, an absolute path on their machines.
            move: Delete each source file once its object is stored.
            shared: For a cluster: whether all nodes see the same files at `path`, so that each of them promotes its
                share. "auto" shares the work only if the nodes certainly see the same files.
            overwrite: When to replace an object of the same name: "changed" if its bytes differ (without `move`, a file
                that still has the size and modification time of its last promotion counts as equal and is not read),
                "always" or "never".
            include, exclude: One shell pattern, or several. A pattern with a slash is matched against the path
                relative to `path`, any other pattern against the file name alone.
            node: For a cluster: host:port or the uuid of the node whose files to promote.
            on_error: "raise" raises PromoteIncomplete at the end if any file failed. "return" only reports failures in
                the summary.
            progress: Called with a `Progress` after each file, in no particular order, in this thread.

        Returns:
            A summary with the number of files promoted, and the first 1,000 that failed, each with its path and the
            reason.

        Raises BucketNotFound, InvalidRequest, SourceRefused, SourceUnreadable, PromoteIncomplete, StoreReadOnly,
        NodeUnavailable, SilenceTimeout, and any exception that `progress` raises, which ends the promotion.
        """
        results = self.iter_promote(
            path,
            recursive=recursive,
            prefix=prefix,
            move=move,
            shared=shared,
            overwrite=overwrite,
            include=include,
            exclude=exclude,
            node=node,
        )
        return promote_all(results, on_error=on_error, progress=progress)

    def iter_promote(
        self,
        path: str | os.PathLike[str],
        *,
        recursive: bool = True,
        prefix: str = "",
        move: bool = False,
        shared: Shared = "auto",
        overwrite: Overwrite = "changed",
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        node: str | None = None,
    ) -> Generator[PromoteResult, None, None]:
        """Yield the result of each file as it becomes known, failures included: `promote` step by step.

        The generator is lazy: nothing is promoted until you iterate, and closing it ends the promotion. Results come in
        no particular order. Arguments and errors are those of `promote`, except that it never raises PromoteIncomplete.
        """
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise errors.InvalidRequest(f"{path!r}: need the path of a file or a folder")
        if overwrite not in get_args(Overwrite):
            raise errors.InvalidRequest(f"overwrite={overwrite!r}: need {', '.join(map(repr, get_args(Overwrite)))}")
        if shared not in (True, False, "auto"):
            raise errors.InvalidRequest(f'shared={shared!r}: need True, False or "auto"')
        spec = PromoteSpec(
            bucket=self.name,
            path=text,
            prefix=prefix,
            recursive=recursive,
            move=move,
            overwrite=overwrite,
            include=pattern_list("include", include),
            exclude=pattern_list("exclude", exclude),
            shared=shared,
            node=node,
        )
        return self._transport.promote(spec)

    def get(
        self,
        name: str,
        *,
        start: int = 0,
        length: int | None = None,
        member: str | None = None,
        version: str | None = None,
        verify: bool = True,
        timeout_s: float = 30.0,
        etl: Etl | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return an object's bytes, or `length` bytes from `start` (None reads to the end).

        With `etl`, you get the result of that transform instead. What you get is verified against the stored checksums.
        `verify=False` leaves that out for a range, whose blocks are then not read as a whole.

        Raises ObjectNotFound (also if the object no longer has this `version`), BucketNotFound, RangeError,
        CorruptObject, InvalidRequest, NodeUnavailable, SilenceTimeout.
        """
        timeout_s = checked_timeout_s(timeout_s)
        entry = Entry(self.name, name, member, start, length, version, etl=etl, args=args)
        if etl is not None or args is not None:
            whole = start == 0 and length is None and member is None and version is None
            if etl is not None and whole and "@" not in self.name:
                request = request_for_transformed(self.name, name, etl, args)
                if (made := self._transport.get_transformed(request, timeout_s)) is not None:
                    return bytes(made)
            return b"".join(
                item.data for item in self.client.get_batch([entry], timeout_s=timeout_s, verify_ranges=verify)
            )
        if version is not None:
            return pinned_bytes(self._transport, entry, verify=verify, timeout_s=timeout_s)
        return b"".join(self._transport.get(entry, verify=verify, timeout_s=timeout_s))

    @overload
    def open(
        self,
        name: str,
        *,
        member: str | None = None,
        version: str | None = None,
        timeout_s: float = 30.0,
        verify: bool = True,
        etl: Etl,
        args: Mapping[str, Any] | None = None,
    ) -> IO[bytes]: ...

    @overload
    def open(
        self,
        name: str,
        *,
        member: str | None = None,
        version: str | None = None,
        timeout_s: float = 30.0,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        verify: bool = True,
        etl: None = None,
    ) -> ObjectFile: ...

    def open(
        self,
        name: str,
        *,
        member: str | None = None,
        version: str | None = None,
        timeout_s: float = 30.0,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        verify: bool = True,
        etl: Etl | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> ObjectFile | IO[bytes]:
        """Open the current version of an object as a read-only, seekable binary file.

        One request looks the object or member up and, if it has at most 128 KiB, gets all of it, so that opening and
        reading a small one costs about as much as `get`. All later reads are of the version that was opened. Bytes of a
        remote bucket that are not stored are not requested before they are read.

        Args:
            member: Open this member of the archive `name` instead.
            version: The version that the object must have.
            timeout_s: The longest time to wait for the next bytes from the store, in seconds.
            read_ahead_bytes: The most that is requested ahead of a sequential reader. It is held in memory.
            verify: Verify what is read against the stored block checksums, before it is returned. False leaves that
                out, for small random reads that should not read whole blocks of 256 KiB. They may then return damaged
                bytes.
            etl: A transform. The file then has its result, all of which is fetched before this call returns.
            args: Arguments of a single transform.

        Raises ObjectNotFound, BucketNotFound, MemberNotFound, NotAnArchive, InvalidRequest, NodeUnavailable,
        SilenceTimeout.
        """
        if etl is not None:
            entry = Entry(self.name, name, member, version=version, etl=etl, args=args)
            return spooled(self.client.get_batch([entry], timeout_s=timeout_s, verify_ranges=verify))
        timeout_s = checked_timeout_s(timeout_s)
        if member is not None:
            found = opened_member(self._transport, self.name, name, member, version, timeout_s)
        else:
            found = opened(self._transport, self.name, name, version, timeout_s)
        return ObjectFile(
            self._transport,
            found.info,
            timeout_s=timeout_s,
            read_ahead_bytes=read_ahead_bytes,
            verify=verify,
            member=member,
            content=found.content,
        )

    def reader(
        self,
        name: str,
        *,
        version: str | None = None,
        timeout_s: float = 30.0,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        verify: bool = True,
    ) -> ObjectReader:
        """Open an object as a forward-only stream that yields views of the data as it arrives.

        Arguments and errors are those of `open`.
        """
        return opened_reader(
            self._transport,
            self.name,
            name,
            version=version,
            timeout_s=checked_timeout_s(timeout_s),
            read_ahead_bytes=read_ahead_bytes,
            verify=verify,
        )

    def head(self, name: str) -> ObjectInfo:
        """Return an object's size, version, checksum and metadata. Raises ObjectNotFound, BucketNotFound."""
        return self._transport.head(self.name, name)

    def head_many(self, names: Iterable[str]) -> list[ObjectInfo | None]:
        """Return the ObjectInfo of each of these objects, in order, or None for an object that does not exist or is
        denied.

        One request covers 1,000 names.

        Raises BucketNotFound; DriveFailed, NodeUnavailable, SilenceTimeout if the answer cannot be determined;
        InvalidRequest for a value that is not a str.
        """
        return head_many(self._transport, self.name, names)

    def exists_many(self, names: Iterable[str]) -> list[bool]:
        """Return whether each of these objects exists, in order. Otherwise like `head_many`."""
        return [info is not None for info in self.head_many(names)]

    def exists(self, name: str) -> bool:
        """Return whether an object of this name exists. Otherwise like `head_many`."""
        return self.exists_many([name])[0]

    def delete(self, name: str, *, if_version: str | None = None) -> None:
        """Delete an object. With `if_version`, delete it only if it has this version.

        If a node of a cluster that may have the object is away, deleting an object that does not exist succeeds too.
        The node learns of the deletion when it comes back.

        Raises ObjectNotFound, BucketNotFound, StoreReadOnly, VersionConflict, NodeUnavailable, OutcomeUnknown,
        SilenceTimeout.
        """
        if if_version is not None:
            check_version(if_version, or_etag=True)
        self._transport.delete(self.name, name, if_version=if_version)

    def summary(self, prefix: str = "", *, depth: int = 1) -> BucketSummary:
        """Count the objects whose names begin with `prefix`, and their bytes, on the machines that store them.

        In a cluster, each object counts once, regardless of how many copies it has and where they are. Objects that are
        stored or deleted while the count is running may or may not be included.

        Args:
            depth: How many levels of folders below the last "/" of `prefix` to count separately. 0 gives one total.

        Raises BucketNotFound, InvalidRequest for more than 100,000 folders, NodeUnavailable, SilenceTimeout.
        """
        require_bucket(self.name)
        require_text(prefix, errors.InvalidRequest, "prefix")
        depth = min(whole_number("depth", depth, least=0), 2**32 - 1)
        return self._transport.summary(self.name, prefix=prefix, depth=depth)

    def objects(
        self,
        prefix: str = "",
        *,
        start_after: str = "",
        page_size: int = 1000,
        on_missing_drive: Literal["raise", "skip"] = "raise",
    ) -> Listing:
        """List the objects whose names begin with `prefix`, in the order of their names' UTF-8 bytes.

        Args:
            start_after: List only names after this one in that order. It need not be the name of an object.
            on_missing_drive: "skip" lists the objects on the other drives. By default, the listing raises DriveFailed
                if a drive is missing whose objects have no copies elsewhere, because it would lack names.

        The listing is fetched page by page as you iterate, and errors such as BucketNotFound are raised then.
        """
        page_size = whole_number("page_size", page_size, least=1)
        if on_missing_drive not in ("raise", "skip"):
            raise errors.InvalidRequest(f"on_missing_drive={on_missing_drive!r}: one of 'raise', 'skip'")
        listed = functools.partial(
            self._transport.objects,
            self.name,
            prefix=prefix,
            page_size=page_size,
            start_after=start_after,
            skip_missing_drives=on_missing_drive == "skip",
        )
        return Listing(f"ais://{self.name}/{prefix}", listed)

    def entries(
        self,
        prefix: str = "",
        *,
        pattern: str | Sequence[str] | None = None,
        pinned: bool = False,
        on_missing_drive: Literal["raise", "skip"] = "raise",
    ) -> EntryTable:
        """Return an Entry for each object whose name begins with `prefix`, in the order of names, as the bucket is now.

        Args:
            pattern: A shell pattern such as "*.wav", or several patterns, of which at least one must match. A pattern
                with a slash is matched against the whole name, any other pattern against what follows the last slash.
            pinned: Fetch the version that each object has now, and no other.
            on_missing_drive: See `objects`.

        Returns:
            n >= 0 entries, for MapDataset and get_batch, which take the bytes of their names and 8 more each. Save
            them with `EntryTable.save` if listing takes long, or if workers are spawned.

        Raises BucketNotFound, InvalidRequest for a prefix that no name can have, and the errors of `objects`.
        """
        if isinstance(prefix, str) and prefix.startswith("/"):
            raise errors.InvalidRequest(
                f"entries({prefix!r}): no object's name begins with '/'; did you mean {prefix.lstrip('/')!r}?"
            )
        listed = self.objects(prefix, on_missing_drive=on_missing_drive)
        if pinned:
            return pinned_table(listed, self.name, pattern)
        skip = on_missing_drive == "skip"
        if pattern is None:
            table = table_of_inventory(self._transport, self.name, prefix, skip_missing=skip)
            if table is not None:
                return table
        names = self._transport.names(self.name, prefix=prefix, skip_missing_drives=skip)
        return table_of_names(names, self.name, pattern)

    def samples(self, prefix: str = "", *, pattern: str | Sequence[str] | None = None) -> SampleTable:
        """Return the samples in the shards whose names begin with `prefix`, for MapDataset.

        A shard is an object with an archive's extension (see `Entry.from_url`). As in WebDataset, members with the same
        name up to the first dot after the last slash form a sample, and the rest of the name, in lower case, is the
        field. Unlike there, they need not be adjacent. Members without a dot, those that begin with one, and those
        below `__...__` and `__MACOSX` are skipped.

        Args:
            pattern: Only shards that match a shell pattern, or one of several, as for `entries`.

        Returns:
            n >= 0 samples, in the order of the shards' names and of their first members. Each is a dict from field to
            Entry, in the shard's current version: reading it raises ObjectNotFound once the shard is replaced. `keys()`
            and `sizes_bytes(field=None)` describe all of them. It takes a member's name and 16 bytes per member.

        Reads only the shards' indexes. Raises BucketNotFound, InvalidRequest for a field that occurs twice in a sample,
        ArchiveError for a shard that is no archive, has two members of one name, or is several tars joined by `cat`,
        and the errors of `objects`.
        """
        return bucket_samples(self._transport, self.name, prefix, pattern)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all objects, in order, fetched page by page. Raises BucketNotFound."""
        blocks = self._transport.names(self.name, prefix="")
        return (name.decode() for block in blocks for name in block.to_list())

    def __contains__(self, name: object) -> bool:
        """Like `exists`. A value that is not a str is not in the bucket."""
        return isinstance(name, str) and self.exists(name)

    def members(
        self, name: str, prefix: str = "", *, page_size: int = 1000, version: str | None = None
    ) -> Iterator[MemberInfo]:
        """List the members of an archive whose names begin with `prefix`, in the archive's order, lazily, page by page.

        Args:
            version: The version that the archive must have.

        Raises ObjectNotFound (also if the archive is replaced meanwhile), BucketNotFound, NotAnArchive, ArchiveError.
        """
        page_size = whole_number("page_size", page_size, least=1)
        if version is not None:
            return pinned_members(self._transport, self.name, name, prefix, page_size, version)
        return self._transport.list_members(self.name, name, prefix=prefix, page_size=page_size)

    def snapshot(self, name: str) -> SnapshotInfo:
        """Keep the bucket as it is now, until you delete the snapshot. Read it as `client.bucket(bucket,
        snapshot=name)`.

        The snapshot has every write and deletion that was acknowledged before the call, and none that begins after it
        returns. Each write or deletion in between is in it completely or not at all. No data is copied. Data that is
        replaced or deleted later keeps occupying the drives for as long as a snapshot needs it.

        Raises BucketNotFound, InvalidName, SnapshotExists, Unsupported while nodes or drives are being added or
        removed, StoreReadOnly, DriveFailed, and NodeUnavailable if a node of a cluster does not answer, in which case
        the snapshot may have been made.
        """
        return self._transport.snapshots("create", self.name, name)[0]

    def snapshots(self) -> list[SnapshotInfo]:
        """List the bucket's snapshots, oldest first. Raises BucketNotFound."""
        return self._transport.snapshots("list", self.name)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot and the data that only it needs. Raises SnapshotNotFound, BucketNotFound, StoreReadOnly."""
        self._transport.snapshots("delete", self.name, name)

    def get_batch(
        self,
        names: Iterable[EntryLike],
        *,
        etl: Etl | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Batch:
        """Fetch whole objects of this bucket by name: a short form of `Client.get_batch` that makes no Entry per item.

        Instead of names, you can pass the results of `objects`, `entries` and `members`, which are fetched as by
        `Client.get_batch`. With `etl`, you get the results of that transform. `options` are those of
        `Client.get_batch`: on_error, timeout_s, ordered, streaming, assembly, colocation, verify_ranges.
        """
        if etl is not None or args is not None:
            require_many("names", names)
            entries = [replace(to_entry(name, self.name), etl=etl, args=args) for name in names]
            batch: Batch = self.client.get_batch(entries, **options)
            return batch
        chosen = batch_options("get_batch", options, parameters=("etl", "args"))
        require_many("names", names)
        wanted: Sequence[Any] = names if isinstance(names, Sequence) else list(names)
        if len(wanted) and isinstance(wanted[0], (Entry, ObjectInfo, MemberInfo)):
            listed: Batch = self.client.get_batch(wanted, bucket=self.name, **options)
            return listed
        return batch_of_names(self._transport, self.name, wanted, chosen)


def one_level(
    bucket: Bucket,
    prefix: str = "",
    *,
    page_size: int = PAGE_SIZE,
    on_missing_drive: Literal["raise", "skip"] = "raise",
) -> Iterator[ObjectInfo | str]:
    """List the objects and folders that begin with `prefix`, up to the first slash after its last folder, sorted by
    name. Folders are names that end with a slash. Lazy, like `Bucket.objects`.

    Nothing that is in a folder is listed, but for its first names.
    """
    return bucket.client._transport.level(
        bucket.name, prefix=prefix, page_size=page_size, skip_missing_drives=on_missing_drive == "skip"
    )
