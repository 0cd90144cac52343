"""`ais-loader promote`: files on the store's machines become objects, without passing through this machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from typing import Literal

import click

from ais_loader.cli.new_bucket import bucket_to_fill, copies_option, require_creation
from ais_loader.cli.show import OutputLines, count_text, fail, info_fields, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, takes_store
from ais_loader.values.changes import PromoteSummary
from ais_loader.values.promote import Overwrite, PromoteResult, promote_all
from ais_loader.values.urls import ENDPOINT_SCHEMES

_SHARED: dict[str, bool | Literal["auto"]] = {"auto": "auto", "yes": True, "no": False}


@click.command()
@click.argument("path", metavar="PATH")
@click.argument("dest", metavar="BUCKET[/PREFIX]", **named_by(parse_target))
@click.option("-r", "--recursive", is_flag=True, help="Promote the files in a folder; names are relative to it.")
@click.option("--move", is_flag=True, help="Delete each source file after its object is stored.")
@click.option(
    "--overwrite",
    type=click.Choice(["changed", "always", "never"]),
    default="changed",
    show_default=True,
    help="Whether to replace an object of the same name.",
)
@click.option(
    "--include",
    metavar="PATTERN",
    multiple=True,
    help="Only files that match this shell pattern, by name or, if it has a slash, by path.",
)
@click.option("--exclude", metavar="PATTERN", multiple=True, help="Skip files that match this pattern.")
@click.option(
    "--shared",
    type=click.Choice(list(_SHARED)),
    default="auto",
    show_default=True,
    help="Whether all nodes see the same files at PATH, so that each can take a share. auto: only if that is certain.",
)
@click.option("--node", metavar="HOST:PORT", help="In a cluster, the node whose files to promote.")
@click.option("--create-bucket", is_flag=True, help="Create the bucket if it does not exist.")
@copies_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file, and one with the summary at the end.")
@takes_store
def promote(
    path: str,
    dest: Target,
    recursive: bool,
    move: bool,
    overwrite: Overwrite,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    shared: str,
    node: str | None,
    create_bucket: bool,
    copies: int | None,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Turn files on the store's own machines into objects.

    PATH is a file or folder as the node sees it, inside one of the folders that the node allows (`serve
    --promote-root`). With an embedded store, it can be any path. Files already in the bucket are skipped: run it again
    to resume after an interruption.

    \b
    promote -r /nfs/corpus speech/en   stores /nfs/corpus/x/y as speech/en/x/y
    promote /nfs/a.wav speech          stores speech/a.wav

    With --move, each source file is deleted once its object is on disk. A file that cannot be promoted is reported, and
    the others are promoted.
    """
    if not store.url.startswith(ENDPOINT_SCHEMES):
        if node is not None:
            raise click.UsageError("--node names a node of a cluster, and --store is a folder of this machine")
        path = os.path.abspath(path)
    prefix = dest.folder
    require_creation(copies, create_bucket=create_bucket)
    with (
        store.writing(create=create_bucket) as client,
        bucket_to_fill(client, dest.bucket, create=create_bucket, copies=copies) as bucket,
    ):
        began = time.monotonic()
        with OutputLines() as lines, progress(None, unit="B") as bar:

            def reported() -> Generator[PromoteResult, None, None]:
                for result in bucket.iter_promote(
                    path,
                    recursive=recursive,
                    prefix=prefix,
                    move=move,
                    shared=_SHARED[shared],
                    overwrite=overwrite,
                    include=include,
                    exclude=exclude,
                    node=node,
                ):
                    if result.status == "promoted" and result.info is not None:
                        bar.update(result.info.size_bytes)
                    if as_json:
                        lines.add(json.dumps(_fields(result)))
                    elif result.error is not None:
                        fail(printable(str(result.error)))
                    yield result

            summary = promote_all(reported(), on_error="return")
            if as_json:
                lines.add(json.dumps(_counts(summary)))
        _summarize(summary, dest.bucket, time.monotonic() - began)
    if not summary.complete:
        raise click.exceptions.Exit(1)


def _fields(result: PromoteResult) -> dict[str, object]:
    found: dict[str, object] = {"source": result.path, "status": result.status}
    if result.info is not None:
        return found | info_fields(result.info)
    return found | {"name": result.name, "error": str(result.error), "kind": result.error.kind if result.error else ""}


def _counts(summary: PromoteSummary) -> dict[str, object]:
    return {
        "summary": {
            "promoted": summary.promoted,
            "promoted_bytes": summary.size_bytes,
            "skipped": summary.skipped,
            "failed": summary.failed,
        }
    }


def _summarize(summary: PromoteSummary, bucket: str, took_s: float) -> None:
    rate = f", {size_text(summary.size_bytes / took_s)}/s" if took_s > 1 else ""
    done = f"{size_text(summary.size_bytes)} in {took_s:.2f} s{rate}"
    note(f"promoted {count_text(summary.promoted, 'file')} into bucket {bucket} ({done})")
    if summary.skipped:
        note(f"already there: {count_text(summary.skipped, 'file')}")
    if summary.failed:
        note(f"failed: {count_text(summary.failed, 'file')}")
