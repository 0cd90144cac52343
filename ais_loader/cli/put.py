"""`ais-loader put`: stores files as objects, many at a time; a failed file does not stop the others."""

from __future__ import annotations

import itertools
import json
import os
import stat
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import click

from ais_loader.cli.new_bucket import bucket_to_fill, copies_option, require_creation
from ais_loader.cli.options import parse_metadata, wanted_options
from ais_loader.cli.show import OutputLines, count_text, fail, info_fields, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, takes_store
from ais_loader.errors import BucketNotFound, LoaderError, StoreNotFound, VersionConflict
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.folder_walk import FileToStore, PutPlan, add_file, identity_of, walk_folder, without_equal
from ais_loader.objects.folders import chooser
from ais_loader.values.entry import ObjectInfo

if TYPE_CHECKING:
    from tqdm import tqdm


_SMALL_BYTES = 4 << 20
"""Smaller files are read completely and sent together; the others are streamed one by one."""
_MAX_LINES_PER_REASON = 20

Stored: TypeAlias = tuple[FileToStore, ObjectInfo | LoaderError | OSError]


@dataclass(frozen=True, slots=True)
class PutHow:
    """Metadata and condition of every object."""

    metadata: dict[str, str] = field(default_factory=dict)
    if_absent: bool = False


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, type=click.Path(allow_dash=True))
@click.argument("dest", metavar="BUCKET[/NAME]", **named_by(parse_target))
@click.option("-r", "--recursive", is_flag=True, help="Store the files in folders; names are relative to each folder.")
@click.option("--follow-links", is_flag=True, help="With -r: follow symbolic links; by default, they are skipped.")
@click.option(
    "--skip-equal",
    is_flag=True,
    help="Skip files already stored with the same bytes; use it to resume an interrupted put.",
)
@click.option(
    "--if-absent", is_flag=True, help="Skip files whose object exists, whatever it contains; nothing is replaced."
)
@click.option(
    "--metadata",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_metadata,
    help="Metadata to store with each object; repeatable. `ls --json` and `get --head` show it.",
)
@click.option("--hidden", is_flag=True, help="With -r: include files and folders whose names begin with a dot.")
@wanted_options
@click.option(
    "-n", "--dry-run", is_flag=True, help="Store nothing; show which files would be stored, and under which names."
)
@click.option("--create-bucket", is_flag=True, help="Create the bucket (and the store) if it does not exist.")
@copies_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file: what was stored, or the error.")
@takes_store
def put(
    sources: tuple[str, ...],
    dest: Target,
    recursive: bool,
    follow_links: bool,
    skip_equal: bool,
    if_absent: bool,
    metadata: dict[str, str],
    hidden: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    dry_run: bool,
    create_bucket: bool,
    copies: int | None,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Store files as objects, replacing objects of the same name.

    \b
    put a.wav speech            stores speech/a.wav
    put a.wav speech/en/        stores speech/en/a.wav
    put a.wav speech/b.wav      stores speech/b.wav
    put - speech/b.wav          stores standard input
    put -r corpus speech/en     stores corpus/x/y.wav as speech/en/x/y.wav

    Files and folders in folders are skipped if their names begin with a dot, unless you pass --hidden. A file that
    cannot be stored is reported, and the others are stored.
    """
    if not sources:
        raise click.UsageError("only one name was given: need a file and BUCKET[/NAME]")
    plan = plan_put(
        sources,
        dest,
        recursive=recursive,
        follow_links=follow_links,
        store_folders=store.folders(),
        hidden=hidden,
        include=include,
        exclude=exclude,
    )
    require_creation(copies, create_bucket=create_bucket)
    if dry_run:
        show_plan(
            plan, dest, store, may_create=create_bucket, skip_equal=skip_equal, if_absent=if_absent, as_json=as_json
        )
        return
    with (
        store.writing(create=create_bucket) as client,
        bucket_to_fill(client, dest.bucket, create=create_bucket, copies=copies) as bucket,
    ):
        skipped = 0
        if skip_equal:
            plan.files, skipped = without_equal(bucket._transport, bucket.name, plan.files)
        ok = _run(bucket, plan, PutHow(metadata, if_absent), as_json=as_json)
        if skipped:
            note(f"already there with the same bytes: {count_text(skipped, 'file')}")
    if not ok:
        raise click.exceptions.Exit(1)


def _run(bucket: Bucket, plan: PutPlan, how: PutHow, *, as_json: bool) -> bool:
    """Store the planned files and report on them. Returns False if anything failed."""
    began = time.monotonic()
    stored = stored_bytes = present = 0
    failed = len(plan.failures)
    try:
        with OutputLines() as lines, ExitStack() as held:
            telling = _Failures(lines if as_json else None)
            held.callback(telling.close)
            for path, reason in plan.failures:
                telling.add(path, reason)
            total_bytes = sum(file.size_bytes for file in plan.files)
            with progress(total_bytes or None, unit="B") as bar:
                for file, result in store_files(bucket, plan.files, how, bar):
                    if isinstance(result, ObjectInfo):
                        stored += 1
                        stored_bytes += result.size_bytes
                        if as_json:
                            lines.add(json.dumps({"source": file.path, **info_fields(result)}))
                    elif how.if_absent and isinstance(result, VersionConflict):
                        present += 1
                        if as_json:
                            lines.add(json.dumps({"source": file.path, "skipped": "there already"}))
                    else:
                        failed += 1
                        telling.add(file.path, _reason(result))
    finally:
        _summarize(plan, bucket.name, stored, stored_bytes, present, failed, time.monotonic() - began)
    return not failed


def _reason(error: LoaderError | OSError) -> str:
    """Return why a file was not stored, without its name, which is shown beside it."""
    return str(error) if isinstance(error, LoaderError) else error.strerror or str(error)


class _Failures:
    """Reports files that could not be stored, but only some of many with the same reason, such as a full drive."""

    def __init__(self, lines: OutputLines | None) -> None:
        """`lines`: destination of JSON reports, instead of standard error."""
        self._lines = lines
        self._of_reason: Counter[str] = Counter()

    def add(self, path: str, reason: str) -> None:
        self._of_reason[reason] += 1
        if self._lines is not None:
            self._lines.add(json.dumps({"source": path, "error": reason}))
        elif self._of_reason[reason] <= _MAX_LINES_PER_REASON:
            fail(f"{printable(path)}: {printable(reason)}")

    def close(self) -> None:
        for reason, count in self._of_reason.items():
            if self._lines is None and (more := count - _MAX_LINES_PER_REASON) > 0:
                fail(f"and {count_text(more, 'file')} more (--json lists them all): {printable(reason)}")


def _summarize(
    plan: PutPlan, bucket: str, stored: int, stored_bytes: int, present: int, failed: int, took_s: float
) -> None:
    rate = f", {size_text(stored_bytes / took_s)}/s" if took_s > 1 else ""
    done = f"{size_text(stored_bytes)} in {took_s:.2f} s{rate}"
    note(f"stored {count_text(stored, 'object')} in bucket {bucket} ({done})")
    if left := len(plan.files) + len(plan.failures) - stored - present - failed:
        note(f"not attempted: {count_text(left, 'file')}")
    if present:
        note(f"already there, not replaced: {count_text(present, 'object')}")
    if failed:
        note(f"failed: {count_text(failed, 'file')}")
    note_left_out(plan)


def store_files(bucket: Bucket, files: Sequence[FileToStore], how: PutHow, bar: tqdm[Any]) -> Iterator[Stored]:
    """Yield each file with its object or its error, in order. Raises LoaderError if the store itself cannot go on."""
    for is_small, run in itertools.groupby(files, key=_is_small):
        if is_small:
            yield from _store_together(bucket, run, how, bar)
        else:
            for file in run:
                yield file, _store_alone(bucket, file, how, bar)


def _is_small(file: FileToStore) -> bool:
    return not file.is_stream and file.size_bytes < _SMALL_BYTES


def _store_together(bucket: Bucket, files: Iterator[FileToStore], how: PutHow, bar: tqdm[Any]) -> Iterator[Stored]:
    """Store small files. Unreadable files are not sent; the others share requests."""
    sent: deque[tuple[FileToStore, OSError | None]] = deque()

    def contents() -> Iterator[tuple[str, bytes, dict[str, str]]]:
        for file in files:
            try:
                with open(file.path, "rb") as opened:
                    data = opened.read()
            except OSError as error:
                sent.append((file, error))
                continue
            sent.append((file, None))
            bar.update(len(data))
            yield file.name, data, how.metadata

    def unreadable() -> Iterator[Stored]:
        while sent and (error := sent[0][1]) is not None:
            yield sent.popleft()[0], error

    for result in bucket.iter_put_many(contents(), if_absent=how.if_absent, on_error="yield"):
        yield from unreadable()
        yield sent.popleft()[0], result
    yield from unreadable()


def _store_alone(bucket: Bucket, file: FileToStore, how: PutHow, bar: tqdm[Any]) -> ObjectInfo | LoaderError | OSError:
    options: dict[str, Any] = {"metadata": how.metadata, "if_absent": how.if_absent}
    try:
        if file.path == STDIN:
            if sys.stdin.isatty():
                note("reading from the terminal; Ctrl-D ends the object")
            return bucket.put(file.name, sys.stdin.buffer, **options)
        with open(file.path, "rb") as opened:
            source: Any = opened if file.is_stream else _ProgressFile(opened, bar)
            return bucket.put(file.name, source, **options)
    except (LoaderError, OSError) as error:
        if isinstance(error, LoaderError) and error.retryable:
            raise  # it has been retried already: the next file would fail too
        return error


class _ProgressFile:
    """A file whose reads advance a progress bar. A retry, which reads it again, moves the bar back."""

    def __init__(self, file: IO[bytes], bar: tqdm[Any]) -> None:
        self._file = file
        self._bar = bar

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._bar.update(len(data))
        return data

    def seekable(self) -> bool:
        return self._file.seekable()

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> int:
        self._bar.n -= self._file.tell() - position
        return self._file.seek(position)


STDIN = "-"
_NAMES_PER_CALL = 1000


def plan_put(
    sources: Sequence[str],
    dest: Target,
    *,
    recursive: bool,
    follow_links: bool,
    store_folders: Sequence[str] = (),
    hidden: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> PutPlan:
    """Plan all sources, walking folders. Raises click.UsageError for contradictory arguments."""
    if (hidden or include or exclude) and not recursive:
        raise click.UsageError("--hidden, --include and --exclude need -r")
    many = recursive or len(sources) > 1
    prefix = dest.name
    wanted = chooser(include, exclude)
    if many and prefix and not prefix.endswith("/"):
        if not recursive:
            raise click.UsageError(
                f"with several sources, DEST must be a bucket or a folder: {dest}/ instead of {dest}"
            )
        prefix += "/"
    names_whole = bool(prefix) and not prefix.endswith("/")
    plan = PutPlan()
    own = {identity for folder in store_folders if (identity := identity_of(folder))}
    for source in sources:
        if source == STDIN:
            if not names_whole:
                raise click.UsageError(f"standard input has no name: give the object's, as in {dest.bucket}/NAME")
            plan.files.append(FileToStore(STDIN, prefix, 0, is_stream=True))
            continue
        try:
            found = os.stat(source)
        except OSError as error:
            plan.failures.append((source, error.strerror or str(error)))
            continue
        if stat.S_ISDIR(found.st_mode):
            if not recursive:
                raise click.UsageError(f"{printable(source)} is a folder; -r stores the files in it")
            if (found.st_dev, found.st_ino) in own:
                raise click.UsageError(f"{printable(source)} is the store itself")
            walk_folder(source, prefix, plan, own, follow_links=follow_links, hidden=hidden, wanted=wanted)
            continue
        is_stream = not stat.S_ISREG(found.st_mode)
        if is_stream and not names_whole:
            raise click.UsageError(f"{printable(source)} is not a regular file: give the object's whole name")
        name = prefix if names_whole else prefix + os.path.basename(source)
        add_file(plan, FileToStore(source, name, 0 if is_stream else found.st_size, is_stream))
    _refuse_collisions(plan.files)
    return plan


def _refuse_collisions(files: Sequence[FileToStore]) -> None:
    path_of: dict[str, str] = {}
    for file in files:
        other = path_of.setdefault(file.name, file.path)
        if other is not file.path:
            raise click.UsageError(
                f"{printable(other)} and {printable(file.path)} would both become {printable(file.name)!r}; "
                "with -r on their common folder, names begin below it"
            )


def show_plan(
    plan: PutPlan,
    dest: Target,
    store: StoreChoice,
    *,
    may_create: bool,
    skip_equal: bool,
    if_absent: bool,
    as_json: bool,
) -> None:
    """Print one line per file to standard output. Exits with 1 if the command would fail without --dry-run."""
    skipped = present = 0
    made = ""
    try:
        with store.reading() as client:
            bucket = client.bucket(dest.bucket)
            bucket.info()
            if skip_equal:
                plan.files, skipped = without_equal(bucket._transport, bucket.name, plan.files)
            if if_absent:
                present = _without_present(bucket, plan)
    except (StoreNotFound, BucketNotFound) as error:
        if not may_create:
            if isinstance(error, BucketNotFound):
                raise type(error)(f"bucket {dest.bucket!r} does not exist; use --create-bucket to create it") from None
            raise
        made = ", which would be made"
    with OutputLines() as lines:
        for file in plan.files:
            if as_json:
                planned = {"source": file.path, "bucket": dest.bucket, "name": file.name, "size_bytes": file.size_bytes}
                lines.add(json.dumps(planned))
            else:
                source = "standard input" if file.path == STDIN else printable(file.path)
                lines.add(f"{source} -> {printable(f'{dest.bucket}/{file.name}')}")
    for path, reason in plan.failures:
        fail(f"{printable(path)}: {printable(reason)}")
    size = size_text(sum(file.size_bytes for file in plan.files))
    count = count_text(len(plan.files), "object")
    note(f"would store {count} in bucket {dest.bucket}{made} ({size}); nothing was stored")
    if skipped:
        note(f"already there with the same bytes: {count_text(skipped, 'file')}")
    if present:
        note(f"already there, not replaced: {count_text(present, 'object')}")
    note_left_out(plan)
    if plan.failures:
        raise click.exceptions.Exit(1)


def _without_present(bucket: Bucket, plan: PutPlan) -> int:
    """Remove files whose objects exist from the plan. Return their number."""
    left = []
    for first in range(0, len(plan.files), _NAMES_PER_CALL):
        files = plan.files[first : first + _NAMES_PER_CALL]
        found = bucket.exists_many([file.name for file in files])
        left += [file for file, exists in zip(files, found, strict=True) if not exists]
    present, plan.files = len(plan.files) - len(left), left
    return present


_LEFT_OUT = {
    "symbolic link": ("symbolic link", "; --follow-links follows them"),
    "hidden file or folder": ("hidden name", "; --hidden includes them"),
    "file that is not wanted": ("file", " by --include and --exclude"),
}


def note_left_out(plan: PutPlan) -> None:
    """Report what a walk skipped on purpose, and the option that would include it."""
    for what, count in plan.left_out.items():
        noun, remark = _LEFT_OUT.get(what, (what, ""))
        note(f"skipped: {count_text(count, noun)}{remark}")
