"""Bucket as the client sees it: its objects, put, read, listed and deleted by name.

Long because it is what users read: one class with signatures and what they promise; what is done is in `objects/`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from ais_loader import errors
from ais_loader.batch import Batch
from ais_loader.changes import (
    DeleteSummary,
    DownloadSummary,
    OnError,
    OnProgress,
    PromoteSummary,
    PutSummary,
    check_on_error,
)
from ais_loader.content import Content, Source
from ais_loader.entry import Entry, EntryLike, MemberInfo, ObjectInfo, to_entry
from ais_loader.object_file import READ_AHEAD_BYTES, ObjectFile, ObjectReader
from ais_loader.objects.bucket_composing import BucketComposing
from ais_loader.objects.bucket_transforming import BucketTransforming
from ais_loader.objects.delete import delete_many, delete_prefix, iter_delete_many
from ais_loader.objects.download import download
from ais_loader.objects.folders import put_folder
from ais_loader.objects.head_many import head_many
from ais_loader.objects.listed_entries import listed_entries
from ais_loader.objects.listing import Listing
from ais_loader.objects.metadata import set_metadata
from ais_loader.objects.pinned import pinned_bytes, pinned_head, pinned_member, pinned_members
from ais_loader.objects.put_many import iter_put_many, put_many
from ais_loader.objects.put_spec import ToPut, check_version, put_spec
from ais_loader.objects.transformed_file import spooled
from ais_loader.pipeline import Etl
from ais_loader.promote import Overwrite, PromoteResult, Shared, promote_all, promote_spec
from ais_loader.requests import batch_options, checked_timeout_s, request_for_transformed, requests_for_names
from ais_loader.snapshots import SnapshotInfo
from ais_loader.summary import BucketSummary
from ais_loader.transport.base import BucketChange, BucketInfo, Transport
from ais_loader.transport.validation import require_bucket, require_text

if TYPE_CHECKING:
    from ais_loader.client import Client


class Bucket(BucketComposing, BucketTransforming):
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
        """Raises BucketNotFound."""
        return self._transport.bucket(self.name)

    def set(
        self, *, copies: int | None = None, min_copies: int | None = None, reframe: bool | None = None
    ) -> BucketInfo:
        """Change properties, see `Client.create_bucket`; None: as it is. They count for what is put from now on.

        Another number of copies, of a cluster only, counts for all objects: the others' copies are made, or taken away,
        from now on, and `info().settling` says whether that is over.

        Raises BucketNotFound, StoreReadOnly; InvalidRequest for a number of copies that the store cannot have;
        NodeUnavailable while a snapshot of the bucket is being made, and its copies are to be changed.
        """
        return self._transport.set_bucket(self.name, BucketChange(copies, min_copies, reframe))

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
                except tabs and line endings in values.
            checksum: The CRC-32C that the bytes must have.
            if_absent: Store the object only if there is none of this name.
            if_version: Replace only this version (`ObjectInfo.version`). If several writers use the same condition,
                from any machine, one succeeds and the others get VersionConflict. A writer that loses its connection
                retries, and recognizes what it stored itself. For the guarantees of a cluster, see docs/cluster.md.

        Raises InvalidName, InvalidRequest, BucketNotFound, ContentMismatch, VersionConflict, DriveFull, StoreReadOnly,
        NodeUnavailable when it was not stored, OutcomeUnknown when it may have been, TypeError.
        """
        source = Source(data)
        spec = put_spec(
            self.name, name, source, metadata=metadata, checksum=checksum, if_absent=if_absent, if_version=if_version
        )
        return self._transport.put(spec, source)

    def put_many(
        self,
        objects: Iterable[ToPut],
        *,
        if_absent: bool = False,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> PutSummary:
        """Store many objects with few requests.

        Args:
            objects: N >= 0 of (name, data) or (name, data, metadata), as `put` takes them; drawn as they are needed. Of
                a name that is repeated the last one stays.
            if_absent: as for `put`, of each object by itself: VersionConflict for those that are there.
            on_error: "raise" raises the first failure: all objects before it are stored, and of the few thousand after
                it that were sent already some may be. "return" stores the others, and has the summary name those that
                failed.
            progress: called with a `Progress` after each object, in the order of `objects`, in this thread.

        Returns:
            How many objects were stored, and their infos in order where `objects` has a length, as a list has. Of an
            iterator, however long, only counts and the first 1,000 failures are kept.

        Raises:
            What `put` raises. With either `on_error`: TypeError for what is no object, NodeUnavailable when nobody
            answers any more, and whatever `objects` or `progress` raises. What was drawn until then may have been
            stored, and a note on the error says how much has been for certain.
        """
        return put_many(self._transport, self.name, objects, if_absent=if_absent, on_error=on_error, progress=progress)

    @overload
    def iter_put_many(
        self, objects: Iterable[ToPut], *, if_absent: bool = False, on_error: Literal["raise"] = "raise"
    ) -> Generator[ObjectInfo, None, None]: ...

    @overload
    def iter_put_many(
        self, objects: Iterable[ToPut], *, if_absent: bool = False, on_error: Literal["yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]: ...

    def iter_put_many(
        self, objects: Iterable[ToPut], *, if_absent: bool = False, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """`put_many` step by step: yields each object's info, in order, when it is stored. `objects` may be endless.

        Lazy: nothing is stored but by iterating. An object that is yielded is stored; up to a few thousand are drawn
        ahead, and may be stored or not when the generator is closed. With on_error="yield" an object's error comes in
        its place. Otherwise as `put_many`.
        """
        check_on_error(on_error, "raise", "yield")
        return iter_put_many(self._transport, self.name, objects, if_absent=if_absent, on_error=on_error)

    def put_folder(
        self,
        folder: str | os.PathLike[str],
        prefix: str = "",
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        hidden: bool = False,
        follow_links: bool = False,
        skip_equal: bool = True,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> PutSummary:
        """Store the files below a folder of this machine, by `put_many`: its `a/b.wav` as `prefix/a/b.wav`.

        Args:
            folder: `~` is the home folder. An embedded store's own folders below it are left out.
            prefix: a folder of the bucket; "en" and "en/" mean the same.
            include, exclude: shell patterns; of the path from `folder` if they contain a slash, else of a file's name.
            hidden: also what has a name that begins with a dot, or is in a folder that has.
            follow_links: also what symbolic links lead to.
            skip_equal: leave out files that are objects already with the same bytes, so that calling it again goes on
                where it was interrupted. They are read for it.
            if_absent, metadata, progress: as for `put_many`, of all that is stored.
            on_error: "raise": nothing is stored when a file or folder cannot be read; otherwise as `put_many`. "return"
                stores the others, and has the summary name those that failed.

        Raises InvalidRequest if there is no such folder, SourceUnreadable, OSError for a file that can be read no more,
        and what `put_many` raises.
        """
        return put_folder(
            self,
            folder,
            prefix,
            include=include,
            exclude=exclude,
            hidden=hidden,
            follow_links=follow_links,
            skip_equal=skip_equal,
            if_absent=if_absent,
            metadata=metadata,
            on_error=on_error,
            progress=progress,
        )

    def download(
        self,
        prefix: str,
        folder: str | os.PathLike[str],
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        overwrite: bool = False,
        timeout_s: float = 30.0,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> DownloadSummary:
        """Write the objects whose names begin with `prefix` to files below a folder of this machine.

        Of "en/" the object `en/a/b.wav` becomes `folder/a/b.wav`, of "e" `folder/en/a/b.wav`: what follows the last
        slash of the prefix. A file appears when all of it has come, verified. One that is there already with the same
        bytes is left alone, so that calling it again goes on where it was interrupted.

        Args:
            folder: made where it is missing; `~` is the home folder.
            include, exclude: shell patterns; of a path from `folder` if they contain a slash, else of a file's name.
            overwrite: replace files that are there with other bytes, which fail otherwise.
            timeout_s: the longest silence of the store, in seconds.
            on_error: "raise" raises the first failure; "return" goes on, and has the summary name the first 1,000.
            progress: called with a `Progress` after each object, in this thread.

        Raises BucketNotFound, OSError, NodeUnavailable, SilenceTimeout; of single objects InvalidRequest where a file
        or folder is in the way, ObjectNotFound if it was replaced or deleted since it was listed, CorruptObject.
        """
        return download(
            self,
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
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        node: str | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> PromoteSummary:
        """Have files that the store's machine sees become objects, without passing through this process.

        A folder's file `a/b.wav` becomes the object `prefix + "a/b.wav"`. What is there already is skipped, so that
        whatever was interrupted goes on when it is called again. A file that fails does not stop the others. Nodes
        promote only from the folders that they were started with (`promote_roots`); see docs/promote.md.

        Args:
            path: a file or a folder; of nodes an absolute path on their machines.
            move: give each file up when its object is stored.
            shared: of a cluster: whether all nodes see the same files at `path`; then each takes its share. "auto":
                when that is certain.
            overwrite: an object of the same name is replaced when it has other bytes ("changed"; a file with the size
                and time of change of an earlier promotion counts as equal unread), "always" or "never".
            include, exclude: shell patterns; of a path from `path` if they contain a slash, else of a file's name.
            node: of a cluster, host:port or the uuid of the node whose files are meant.
            on_error: "raise" raises PromoteIncomplete at the end when files failed; "return" leaves it to the summary.
            progress: called with a `Progress` after each file, in no particular order of files, in this thread.

        Returns:
            How many files were promoted, and the first 1,000 that were not, each with its path and the reason.

        Raises BucketNotFound, InvalidRequest, SourceRefused, SourceUnreadable, PromoteIncomplete, StoreReadOnly,
        NodeUnavailable, SilenceTimeout, and what `progress` raises, which ends the promotion.
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
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        node: str | None = None,
    ) -> Generator[PromoteResult, None, None]:
        """`promote` step by step: yields what became of each file, failed ones too, as it becomes known.

        Lazy: nothing is promoted but by iterating, and closing the generator ends the promotion. In no particular
        order. Arguments as `promote`; raises what it raises, but never PromoteIncomplete.
        """
        return self._transport.promote(
            promote_spec(
                self.name,
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
        )

    def get(
        self,
        name: str,
        *,
        start: int = 0,
        length: int | None = None,
        member: str | None = None,
        version: str | None = None,
        verify: bool = False,
        timeout_s: float = 30.0,
        etl: Etl | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> bytes:
        """An object's bytes, or `length` of them from `start` (None: to the end); with `etl` what that makes of them.

        A whole object is always compared with its stored checksum; a range when `verify` is set.
        Raises ObjectNotFound (also when it does not have this `version` any more), BucketNotFound, RangeError,
        CorruptObject, InvalidRequest, NodeUnavailable, SilenceTimeout.
        """
        timeout_s = checked_timeout_s(timeout_s)
        if etl is not None or args is not None:
            whole = start == 0 and length is None and member is None and version is None
            if etl is not None and whole and "@" not in self.name:
                request = request_for_transformed(self.name, name, etl, args)
                if (made := self._transport.get_transformed(request, timeout_s)) is not None:
                    return bytes(made)
            entry = Entry(self.name, name, member, start, length, version, etl=etl, args=args)
            return b"".join(
                item.data for item in self.client.get_batch([entry], timeout_s=timeout_s, verify_ranges=verify)
            )
        if version is not None:
            entry = Entry(self.name, name, member, start, length, version)
            return pinned_bytes(self.client, entry, verify=verify, timeout_s=timeout_s)
        chunks = self._transport.get(
            self.name, name, start=start, length=length, member=member, verify=verify, timeout_s=timeout_s
        )
        return b"".join(chunks)

    @overload
    def open(
        self,
        name: str,
        *,
        member: str | None = None,
        version: str | None = None,
        timeout_s: float = 30.0,
        verify: bool = False,
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
        verify: bool = False,
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
        verify: bool = False,
        etl: Etl | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> ObjectFile | IO[bytes]:
        """An object as a read-only, seekable binary file, of the version that it has now.

        Args:
            member: of the archive that the object is, in its place. A small one comes with fewer requests by `get`.
            version: the one that it must have.
            timeout_s: longest silence of the store while bytes are waited for.
            read_ahead_bytes: most that is asked for ahead of a reader that goes straight on; it is held in memory.
            verify: compare what is read with the stored block checksums.
            etl: what to pass it through: the file is what comes of it, all of which is fetched before this returns.
            args: of a single transform.

        Raises ObjectNotFound, BucketNotFound, MemberNotFound, NotAnArchive, InvalidRequest.
        """
        if etl is not None:
            entry = Entry(self.name, name, member, version=version, etl=etl, args=args)
            return spooled(self.client.get_batch([entry], timeout_s=timeout_s, verify_ranges=verify))
        info = pinned_head(self._transport, self.name, name, version)
        if member is not None:
            info = pinned_member(self._transport, info, member)
        return ObjectFile(
            self.client, info, timeout_s=timeout_s, read_ahead_bytes=read_ahead_bytes, verify=verify, member=member
        )

    def reader(
        self,
        name: str,
        *,
        version: str | None = None,
        timeout_s: float = 30.0,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        verify: bool = False,
    ) -> ObjectReader:
        """An object as a plain stream: forward only, in views of what arrives. Arguments and errors as `open`."""
        info = pinned_head(self._transport, self.name, name, version)
        return ObjectReader(self.client, info, timeout_s=timeout_s, read_ahead_bytes=read_ahead_bytes, verify=verify)

    def head(self, name: str) -> ObjectInfo:
        """Raises ObjectNotFound, BucketNotFound."""
        return self._transport.head(self.name, name)

    def head_many(self, names: Iterable[str]) -> list[ObjectInfo | None]:
        """What each of these objects is, in order, with None for those that are not there; 1,000 with one request.

        Raises BucketNotFound; DriveFailed, NodeUnavailable, SilenceTimeout where it cannot be known; InvalidRequest for
        what is no name.
        """
        return head_many(self._transport, self.name, names)

    def exists_many(self, names: Iterable[str]) -> list[bool]:
        """Return whether each of these objects exists, in order. Otherwise like `head_many`."""
        return [info is not None for info in self.head_many(names)]

    def exists(self, name: str) -> bool:
        """Return whether an object of this name exists. Otherwise like `head_many`."""
        return self.exists_many([name])[0]

    def set_metadata(self, name: str, metadata: Mapping[str, str], *, if_version: str | None = None) -> ObjectInfo:
        """Give an object these metadata in place of those that it has: a new version of it, with the same bytes.

        The store copies the bytes for it; they do not pass through this process. What others put meanwhile keeps its
        bytes. `if_version`: only if it has this version.

        Raises ObjectNotFound, BucketNotFound, InvalidRequest, VersionConflict, DriveFull, NodeUnavailable.
        """
        if if_version is not None:
            check_version(if_version)
        return set_metadata(self._transport, self.name, name, metadata, if_version)

    def delete(self, name: str, *, if_version: str | None = None) -> None:
        """`if_version`: delete it only if it has this version.

        While a node of a cluster that may have it is away, deleting what is not there succeeds: the node learns of it
        when it comes back.

        Raises ObjectNotFound, BucketNotFound, StoreReadOnly, VersionConflict, NodeUnavailable, OutcomeUnknown.
        """
        if if_version is not None:
            check_version(if_version)
        self._transport.delete(self.name, name, if_version=if_version)

    def delete_many(
        self, names: Iterable[str], *, on_error: OnError = "raise", progress: OnProgress | None = None
    ) -> DeleteSummary:
        """Delete many objects, thousands with one request.

        Args:
            names: N >= 0; drawn as they are needed. One that is repeated is not found the second time.
            on_error: "raise" raises the first failure: all objects before it are deleted, and of the up to 4,000 that
                were sent with it others may be. "return" deletes the others; the summary names those that failed.
            progress: called with a `Progress` after each object, in the order of `names`, in this thread.

        Raises what `delete` raises; TypeError for what is no name. Of an error that `names` raises, or `progress`, a
        note says how much was deleted before it.
        """
        return delete_many(self._transport, self.name, names, on_error=on_error, progress=progress)

    @overload
    def iter_delete_many(
        self, names: Iterable[str], *, on_error: Literal["raise"] = "raise"
    ) -> Generator[str, None, None]: ...

    @overload
    def iter_delete_many(
        self, names: Iterable[str], *, on_error: Literal["yield"]
    ) -> Generator[str | errors.LoaderError, None, None]: ...

    def iter_delete_many(
        self, names: Iterable[str], *, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """`delete_many` step by step: yields each name, in order, when its object is gone. `names` may be endless.

        Lazy: nothing is deleted but by iterating, and then up to 4,000 with one request, before the first of them is
        yielded. With on_error="yield" a name's error comes in its place. Otherwise as `delete_many`.
        """
        check_on_error(on_error, "raise", "yield")
        return iter_delete_many(self._transport, self.name, names, on_error=on_error)

    def delete_prefix(
        self, prefix: str, *, everything: bool = False, on_error: OnError = "raise", progress: OnProgress | None = None
    ) -> DeleteSummary:
        """Delete the objects whose names begin with `prefix`. Memory is that of one page of 1,000.

        It may be run again when it has failed half-way. Objects that are put meanwhile may stay.

        Args:
            everything: needed for an empty prefix, which all names begin with.
            on_error: an object that cannot be deleted does not stop the others. "raise" raises the first one's error
                at the end; "return" leaves it to the summary.
            progress: called with a `Progress` after each object, in the order of names, in this thread.

        Raises InvalidRequest, BucketNotFound, StoreReadOnly, NodeUnavailable, which end it; others, such as
        DriveFailed, at the end.
        """
        if not prefix and not everything:
            raise errors.InvalidRequest("an empty prefix means all objects of the bucket: say everything=True")
        return delete_prefix(self._transport, self.name, prefix, on_error=on_error, progress=progress)

    def summary(self, prefix: str = "", *, depth: int = 1) -> BucketSummary:
        """How many objects there are whose names begin with `prefix`, and how large, counted where they are.

        In a cluster each counts once, however many copies it has and wherever they are. What is put or deleted while
        names are counted may count or not.

        Args:
            depth: up to how many folders below the last "/" of `prefix` are told apart; 0: none.

        Raises BucketNotFound, InvalidRequest for more than 100,000 folders, NodeUnavailable, SilenceTimeout.
        """
        require_bucket(self.name)
        require_text(prefix, errors.InvalidRequest, "prefix")
        if not 0 <= depth < 1 << 32:
            raise errors.InvalidRequest(f"depth={depth}: need at least 0")
        return self._transport.summary(self.name, prefix=prefix, depth=depth)

    def objects(self, prefix: str = "", *, start_after: str = "", page_size: int = 1000) -> Listing:
        """Objects whose name begins with `prefix`, in the order of their names' UTF-8 bytes; fetched page by page.

        Args:
            start_after: list only what comes after it in that order; it need not be an object's name.

        Lazy: BucketNotFound and what else is raised comes with the page that is taken.
        """
        if page_size < 1:
            raise errors.InvalidRequest(f"page_size={page_size}: need at least 1")
        listed = functools.partial(
            self._transport.objects, self.name, prefix=prefix, page_size=page_size, start_after=start_after
        )
        return Listing(f"ais://{self.name}/{prefix}", listed)

    def entries(
        self, prefix: str = "", *, pattern: str | Sequence[str] | None = None, pinned: bool = False
    ) -> Sequence[Entry]:
        """What fetches each object whose name begins with `prefix`, in the order of names, as the bucket is now.

        Args:
            pattern: a shell pattern, or several of which one must fit: "*.wav". One with a slash is of the whole name,
                another of what follows its last slash.
            pinned: in the version that each has now, and no other.

        Returns:
            n >= 0 entries, for MapDataset, ShufflePlan and get_batch: an `EntryTable`, of some bytes each, unless
            `pinned`.

        Raises BucketNotFound, InvalidRequest for a prefix that no name has, and what else `objects` raises.
        """
        if isinstance(prefix, str) and prefix.startswith("/"):
            raise errors.InvalidRequest(
                f"entries({prefix!r}): no object's name begins with '/'; did you mean {prefix.lstrip('/')!r}?"
            )
        return listed_entries(self.objects(prefix), self.name, pattern=pattern, pinned=pinned)

    def __iter__(self) -> Iterator[str]:
        """The names of all objects, in their order; fetched page by page. Raises BucketNotFound."""
        return (info.name for info in self.objects())

    def __contains__(self, name: object) -> bool:
        """As `exists`; what is no str is not in it."""
        return isinstance(name, str) and self.exists(name)

    def members(
        self, name: str, prefix: str = "", *, page_size: int = 1000, version: str | None = None
    ) -> Iterator[MemberInfo]:
        """The members of an archive whose names begin with `prefix`, in its order; fetched page by page, lazily.

        Args:
            version: the one that the archive must have.

        Raises ObjectNotFound (also when the archive is replaced meanwhile), BucketNotFound, NotAnArchive, ArchiveError.
        """
        if page_size < 1:
            raise errors.InvalidRequest(f"page_size={page_size}: need at least 1")
        if version is not None:
            return pinned_members(self._transport, self.name, name, prefix, page_size, version)
        return self._transport.list_members(self.name, name, prefix=prefix, page_size=page_size)

    def snapshot(self, name: str) -> SnapshotInfo:
        """Keep the bucket as it is now, to be read as `client.bucket(bucket, snapshot=name)`, until it is deleted.

        Every write and deletion acknowledged before the call is in it, none that begins after its return; of those in
        between each object's is in it whole or not at all. No data is copied: what is replaced or deleted later keeps
        its space on the drives for as long as a snapshot sees it.

        Raises BucketNotFound, InvalidName, SnapshotExists, Unsupported while nodes or drives come or go, StoreReadOnly,
        DriveFailed, and NodeUnavailable when a node of a cluster does not answer. After that it may have been made.
        """
        return self._transport.snapshots("create", self.name, name)[0]

    def snapshots(self) -> list[SnapshotInfo]:
        """The bucket's snapshots, oldest first. Raises BucketNotFound."""
        return self._transport.snapshots("list", self.name)

    def delete_snapshot(self, name: str) -> None:
        """Let go of a snapshot and of what it alone sees. Raises SnapshotNotFound, BucketNotFound, StoreReadOnly."""
        self._transport.snapshots("delete", self.name, name)

    def get_batch(
        self,
        names: Iterable[EntryLike],
        *,
        etl: Etl | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Batch:
        """The columnar short form of `Client.get_batch`: whole objects of this bucket, no Entry per item.

        What `objects`, `entries` and `members` list is taken in place of names, and fetched as by `Client.get_batch`.
        With `etl` they are what that makes of them. `options` are those of `Client.get_batch`: on_error, timeout_s,
        ordered, streaming, assembly, colocation, verify_ranges.
        """
        if etl is not None or args is not None:
            entries = [replace(to_entry(name, self.name), etl=etl, args=args) for name in names]
            batch: Batch = self.client.get_batch(entries, **options)
            return batch
        chosen = batch_options("get_batch", options)
        wanted: Sequence[Any] = names if isinstance(names, (str, Sequence)) else list(names)
        if not isinstance(wanted, str) and len(wanted) and isinstance(wanted[0], (Entry, ObjectInfo, MemberInfo)):
            listed: Batch = self.client.get_batch(wanted, bucket=self.name, **options)
            return listed
        return self.client._batch(wanted, requests_for_names(self.name, wanted, chosen), chosen, self.name)
