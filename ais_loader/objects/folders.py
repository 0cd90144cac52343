"""Folders as objects: puts the selected files of a folder below a prefix."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ais_loader import errors
from ais_loader.name_matching import Patterns, matcher, pattern_list, printable_path
from ais_loader.objects.folder_walk import PutPlan, identity_of, walk_folder, without_equal
from ais_loader.objects.put_many import BucketPutting
from ais_loader.transport.base import require_text
from ais_loader.values.changes import Failure, OnError, OnProgress, PutSummary, check_on_error
from ais_loader.values.urls import NODE_SCHEME, store_folders


def chooser(include: Patterns, exclude: Patterns) -> Callable[[str], bool]:
    """Return whether a path is wanted. Raises InvalidRequest, TypeError."""
    include, exclude = pattern_list("include", include), pattern_list("exclude", exclude)
    included, excluded = matcher(include), matcher(exclude)
    return lambda path: (not include or included(path)) and not excluded(path)


def _unreadable(plan: PutPlan) -> Iterator[tuple[str, str]]:
    """Remove files that cannot be opened from the plan, and yield them."""
    readable = []
    for file in plan.files:
        if os.access(file.path, os.R_OK):
            readable.append(file)
        else:
            yield file.path, os.strerror(errno.EACCES)
    plan.files = readable


class BucketFolders(BucketPutting):
    """Puts of folders."""

    def put_folder(
        self,
        folder: str | os.PathLike[str],
        prefix: str = "",
        *,
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        hidden: bool = False,
        follow_links: bool = False,
        skip_equal: bool = True,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> PutSummary:
        """Store the files below a local folder with `put_many`: its file `a/b.wav` becomes the object `prefix/a/b.wav`.

        Args:
            folder: The folder. `~` is the home folder. If an embedded store's own folders are below it, they are left
                out.
            prefix: A folder of the bucket. "en" and "en/" mean the same.
            include, exclude: One shell pattern, or several. A pattern with a slash is matched against the path
                relative to `folder`, any other pattern against the file name alone.
            hidden: Include files whose name begins with a dot, or that are in a folder whose name does.
            follow_links: Follow symbolic links.
            skip_equal: Skip files that are already stored as objects with the same bytes, so that you can call this
                again to resume an interrupted upload. The files are read for the comparison.
            if_absent, metadata, progress: As for `put_many`, applied to every object.
            on_error: "raise" stores nothing if a file or folder cannot be read, and otherwise works as in `put_many`.
                "return" stores the other files, and the summary names those that failed.

        Raises InvalidRequest if there is no such folder, SourceUnreadable, OSError for a file that becomes unreadable,
        and the errors of `put_many`.
        """
        transport, bucket = self._transport, self.name
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
        put = self.put_many(files, if_absent=if_absent, on_error=on_error, progress=progress)
        return dataclasses.replace(
            put, skipped=skipped, failed=put.failed + len(failures), failures=(*failures, *put.failures)
        )
