"""Folders as objects: puts the selected files of a folder below a prefix."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ais_loader import errors
from ais_loader.name_matching import Patterns, matcher, pattern_list, printable_path
from ais_loader.objects.equal_files import without_equal
from ais_loader.objects.folder_walk import PutPlan, identity_of, walk_folder
from ais_loader.objects.put_many import put_many
from ais_loader.transport.base import Transport, require_text
from ais_loader.values.changes import Failure, OnError, OnProgress, PutSummary, check_on_error
from ais_loader.values.urls import NODE_SCHEME, store_folders


def chooser(include: Patterns, exclude: Patterns) -> Callable[[str], bool]:
    """Return whether a path is wanted. Raises InvalidRequest, TypeError."""
    include, exclude = pattern_list("include", include), pattern_list("exclude", exclude)
    included, excluded = matcher(include), matcher(exclude)
    return lambda path: (not include or included(path)) and not excluded(path)


def put_folder(
    transport: Transport,
    bucket: str,
    folder: str | os.PathLike[str],
    prefix: str,
    *,
    include: Patterns,
    exclude: Patterns,
    hidden: bool,
    follow_links: bool,
    skip_equal: bool,
    if_absent: bool,
    metadata: Mapping[str, str] | None,
    on_error: OnError,
    progress: OnProgress | None,
) -> PutSummary:
    """See `Bucket.put_folder`."""
    check_on_error(on_error, "raise", "return")
    require_text(prefix, errors.InvalidRequest, "prefix")
    top = os.path.expanduser(os.fspath(folder))
    if not os.path.isdir(top):
        raise errors.InvalidRequest(f"{top}: {'not a folder' if os.path.exists(top) else 'no such folder'}")
    url = transport.url
    drives = store_folders(url) if url.startswith(("file://", NODE_SCHEME)) else []
    own = {found for drive in drives if (found := identity_of(drive))}
    if identity_of(top) in own:
        raise errors.InvalidRequest(f"{top} is the store itself")
    plan = PutPlan()
    start = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
    walk_folder(top, start, plan, own, follow_links=follow_links, hidden=hidden, wanted=chooser(include, exclude))
    failures = [
        Failure(
            printable_path(start + os.path.relpath(path, top)),
            errors.SourceUnreadable(f"{printable_path(path)}: {reason}"),
            path=path,
        )
        for path, reason in [*plan.failures, *_unreadable(plan)]
    ]
    if failures and on_error == "raise":
        raise failures[0].error
    transport.bucket(bucket)  # report a missing bucket even if the folder is empty
    skipped = 0
    if skip_equal:
        plan.files, skipped = without_equal(transport, bucket, plan.files)
    files = [(file.name, Path(file.path), dict(metadata or {})) for file in plan.files]
    put = put_many(transport, bucket, files, if_absent=if_absent, on_error=on_error, progress=progress)
    return dataclasses.replace(
        put, skipped=skipped, failed=put.failed + len(failures), failures=(*failures, *put.failures)
    )


def _unreadable(plan: PutPlan) -> Iterator[tuple[str, str]]:
    """Remove files that cannot be opened from the plan, and yield them."""
    readable = []
    for file in plan.files:
        if os.access(file.path, os.R_OK):
            readable.append(file)
        else:
            yield file.path, os.strerror(errno.EACCES)
    plan.files = readable
