"""`ais-loader get -r`: the objects of a folder become files, several at a time; running it again continues."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

import click

from ais_loader.cli.show import count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice
from ais_loader.cli.targets import Target
from ais_loader.errors import LoaderError
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.download import download
from ais_loader.values.changes import DownloadSummary, Progress

_SILENCE_S = 30.0


def get_folder(
    source: Target,
    prefix: str,
    folder: str,
    store: StoreChoice,
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    force: bool,
) -> None:
    """Write the objects whose names begin with `prefix`, in the bucket of `source`, as files below `folder`.

    Exits with 1 if one of them could not be written.
    """
    began = time.monotonic()
    last = Progress()

    def show(now: Progress) -> None:
        nonlocal last
        last = now

    with store.reading() as client:
        bucket = client.bucket(source.bucket)
        bucket.info()
        total_bytes = None if include or exclude or not sys.stderr.isatty() else _total_bytes(bucket, prefix)
        moving = threading.Lock()
        with progress(total_bytes, unit="B") as bar:

            def moved(size_bytes: int) -> None:
                with moving:
                    bar.update(size_bytes)

            try:
                done = download(
                    bucket._transport,
                    bucket.name,
                    prefix,
                    folder,
                    include=include,
                    exclude=exclude,
                    overwrite=force,
                    timeout_s=_SILENCE_S,
                    on_error="return",
                    progress=show,
                    on_bytes=moved,
                )
            except BaseException as error:
                bar.close()
                if last != Progress():
                    note(f"{_counts(last.done, last.size_bytes, last.skipped)}; run this again to continue")
                elif isinstance(error, KeyboardInterrupt):  # only complete groups are counted, but files may exist
                    note("files that have been written stay; run this again to continue")
                raise
    if not done.downloaded + done.skipped + done.failed:
        which = " that are wanted" if include or exclude else ""
        raise click.ClickException(f"no objects below {printable(str(source))}{which}")
    _summarize(done, folder, time.monotonic() - began)
    if done.failed:
        raise click.exceptions.Exit(1)


def _total_bytes(bucket: Bucket, prefix: str) -> int | None:
    try:
        return bucket.summary(prefix, depth=0).size_bytes
    except LoaderError:  # a bar without a total will do
        return None


def _counts(written: int, size_bytes: int, present: int) -> str:
    """Describe the progress so far."""
    found = f"wrote {count_text(written, 'file')} ({size_text(size_bytes)})"
    return f"{found}, {present:,} were there already" if present else found


def _summarize(done: DownloadSummary, folder: str, took_s: float) -> None:
    for failure in done.failures:
        fail(printable(str(failure.error).replace("overwrite=True replaces", "--force replaces")))
    rate = f", {size_text(done.size_bytes / took_s)}/s" if took_s > 1 else ""
    size = f"{size_text(done.size_bytes)} in {took_s:.2f} s{rate}"
    note(f"wrote {count_text(done.downloaded, 'file')} below {click.format_filename(folder)} ({size})")
    if done.skipped:
        note(f"already there with the same bytes: {count_text(done.skipped, 'file')}")
    if done.failed:
        note(f"failed: {count_text(done.failed, 'object')}")
