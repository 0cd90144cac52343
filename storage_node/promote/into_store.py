"""Promotion into a store of this process: a group is staged on the drives that own its names, then committed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence

from ais_loader.errors import LoaderError, ObjectNotFound, SourceRefused, SourceUnreadable, StoreReadOnly
from ais_loader.wire.object_info import stored_of
from storage_node.promote.confined_path import FOLDER
from storage_node.promote.job import (
    Job,
    Outcome,
    failed,
    is_small,
    open_unless_stored,
    staging,
    stamp_metadata,
)
from storage_node.promote.source import FileStamp, SourceFile, remove
from storage_node.promote.store_folders import StoreFolders, of_store
from storage_node.promote.walk import Found, FoundFile, NotFit, OpenFolder, Walk, Wanted, groups
from storage_node.store.buckets import ReplicaStale
from storage_node.store.failpoints import failpoint
from storage_node.store.read.heads import local_heads
from storage_node.store.store import Store
from storage_node.store.write import Upload


def promote_path(
    store: Store,
    path: str,
    wanted: Wanted,
    job: Job,
    promote: Callable[[Sequence[Found]], list[Outcome]] | None = None,
) -> Iterator[Outcome]:
    """Promote the file or folder at an absolute path of this machine, by `promote` in place of `promote_group`.

    Raises SourceRefused and SourceUnreadable for the path itself, BucketNotFound, StoreReadOnly, LoaderError.
    """
    store.bucket_to_change(job.bucket)
    if not store.writable:
        raise StoreReadOnly("the store is open for reading only")
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        top, way = (path, b".") if is_folder else (os.path.dirname(path), os.fsencode(os.path.basename(path)))
        walk = Walk(OpenFolder(os.open(top, FOLDER)), way, wanted, StoreFolders(of_store(store)))
    except OSError as error:
        raise SourceUnreadable(f"{path}: cannot be opened: {error.strerror or error}") from error
    except (SourceRefused, SourceUnreadable) as error:
        raise type(error)(f"{path}: {error}") from error
    with contextlib.closing(iter(walk)) as found:
        for group in groups(found):
            yield from promote_group(store, job, group) if promote is None else promote(group)


def promote_group(store: Store, job: Job, group: Sequence[Found]) -> list[Outcome]:
    """Store these files; one outcome per file, in order. With `move`, sources are removed once their objects are
    durable."""
    outcomes: dict[int, Outcome] = {}
    names = [found.name for found in group if isinstance(found, FoundFile)]
    known = dict(zip(names, local_heads(store, job.bucket, names), strict=True))
    staged: dict[int, tuple[FoundFile, FileStamp, Upload]] = {}
    given_up: list[tuple[int, FoundFile, FileStamp]] = []
    try:
        for at, found in enumerate(group):
            if isinstance(found, NotFit):
                outcomes[at] = failed(found, found.error)
                continue
            try:
                there = known[found.name]
                if isinstance(there, LoaderError) and not isinstance(there, (ObjectNotFound, ReplicaStale)):
                    raise there
                existing = None if isinstance(there, LoaderError) else there
                source = open_unless_stored(job, found, existing)
                if source is None:
                    outcomes[at] = Outcome(found.path, found.name, existing, skipped=True)
                    continue
                with source:
                    if source.equal:
                        outcomes[at] = Outcome(found.path, found.name, existing, skipped=True)
                        given_up.append((at, found, source.stamp))
                    else:
                        staged[at] = found, source.stamp, stage(store, job, source)
            except LoaderError as error:
                outcomes[at] = failed(found, error)
        failpoint("promote.staged")
        results = store.commit_many([upload for _, _, upload in staged.values()])
    finally:
        for _, _, upload in staged.values():
            upload.abort()  # harmless after a commit
    for (at, (found, stamp, upload)), result in zip(staged.items(), results, strict=True):
        if isinstance(result, LoaderError):
            outcomes[at] = failed(found, result)
        else:
            outcomes[at] = Outcome(found.path, found.name, stored_of(result), method=upload.method)
            given_up.append((at, found, stamp))
    if job.move:
        outcomes.update(give_up(store, [(at, outcomes[at], found, stamp) for at, found, stamp in given_up]))
    return [outcomes[at] for at in range(len(group))]


def stage(store: Store, job: Job, source: SourceFile) -> Upload:
    """Stage a file. Raises LoaderError, with nothing left behind."""
    name, metadata = source.found.name, stamp_metadata(source)
    if is_small(source):
        data = source.read()
        upload = store.begin_put(job.bucket, name, metadata, grouped=True)
        upload.write(data)
        return upload
    upload = store.begin_put(job.bucket, name, metadata, stage=staging(job, source))
    upload.fill(source.fd, job.go_on)
    try:
        source.require_unchanged(upload.size_bytes, linked=upload.linked)
    except BaseException:
        upload.abort()
        raise
    return upload


def give_up(store: Store, done: Sequence[tuple[int, Outcome, FoundFile, FileStamp]]) -> dict[int, Outcome]:
    """Remove files once their objects survive a power failure; return the outcomes that have changed."""
    changed: dict[int, Outcome] = {}
    if not done:
        return changed
    try:
        for drive in store.drives:
            if drive is not None:
                drive.sync()
    except LoaderError as error:
        return {at: failed(found, error, "is stored, and left where it is: ") for at, _, found, _ in done}
    failpoint("promote.lasting")
    for at, _, found, stamp in done:
        try:
            remove(found, stamp)
        except LoaderError as error:
            changed[at] = failed(found, error)
    return changed
