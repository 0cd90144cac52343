"""`ais-loader etl run, jobs, job, cancel`: jobs by which the store's nodes run transforms over buckets.

The commands have no group here: `ais-loader etl` adds them to its own.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from ais_loader import errors
from ais_loader.cli.options import arguments_of
from ais_loader.cli.show import OutputLines, count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.transforms.transform_job import JobCounts, TransformJob
from ais_loader.values.pipeline import Stage


def _pair(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        before, equals, after = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r}: need OLD=NEW, as flac=wav")
        found[before] = after
    return found


@click.command()
@click.argument("bucket")
@click.argument("to", metavar="TO")
@click.option("--etl", required=True, metavar="NAME", help="The transform to run.")
@click.option("--args", "arguments", default="{}", metavar="JSON", help='Its arguments, as {"rate": 44100}.')
@click.option("--prefix", default="", help="Only objects whose names begin with it.")
@click.option("--names", metavar="TEMPLATE", help="Only these names, such as shard-{000..127}.tar.")
@click.option("--pattern", multiple=True, help="Only objects that match this shell pattern; repeatable.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", callback=_pair, help="Change extensions, such as flac=wav.")
@click.option("--to-prefix", default="", help="Prefix added to the names of results.")
@click.option("--strip-prefix", default="", help="Prefix removed from names before that.")
@click.option("--dry-run", is_flag=True, help="Only show which objects would produce which results.")
@click.option("--inspect", is_flag=True, help="Run on every object, report failures, and write nothing.")
@click.option("--stop-on-error", is_flag=True, help="End the job at the first object that fails.")
@click.option("--concurrency", type=click.IntRange(0), default=0, help="Objects transformed at once on each node.")
@click.option("--synchronize", is_flag=True, help="Delete results whose sources are gone.")
@click.option("--name", help="Name of the job.")
@click.option("--no-wait", is_flag=True, help="Return once the job has started; `etl job NAME` shows its progress.")
@click.option("--json", "as_json", is_flag=True, help="JSON: the job, or one object per line with --dry-run.")
@takes_store
def run(
    bucket: str,
    to: str,
    etl: str,
    arguments: str,
    prefix: str,
    names: str | None,
    pattern: tuple[str, ...],
    rename: dict[str, str],
    to_prefix: str,
    strip_prefix: str,
    dry_run: bool,
    inspect: bool,
    stop_on_error: bool,
    concurrency: int,
    synchronize: bool,
    name: str | None,
    no_wait: bool,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Run a transform over BUCKET and store the results in the bucket TO.

    The job runs on the nodes: interrupting this command leaves it running. Results that already exist are skipped.
    """
    chosen: dict[str, Any] = {
        "etl": Stage(etl, arguments_of(arguments)),
        "prefix": prefix,
        "names": names,
        "pattern": pattern,
        "rename": rename,
        "to_prefix": to_prefix,
        "strip_prefix": strip_prefix,
        "inspect": inspect,
        "continue_on_error": not stop_on_error,
        "concurrency": concurrency,
        "synchronize": synchronize,
        "name": name,
    }
    with store.writing(create=False) as client, OutputLines() as lines:
        if dry_run:
            for one in client.bucket(bucket).transform(to, dry_run=True, **chosen):
                if as_json:
                    lines.add(json.dumps(dataclasses.asdict(one)))
                else:
                    refused = f"  refused: {printable(one.refused)}" if one.refused else ""
                    lines.add(f"{printable(one.source)}  {printable(one.result)}{refused}")
            return
        job = client.bucket(bucket).transform(to, wait=False, **chosen)
        if not no_wait:
            _wait(job)
        _show(job, lines, as_json=as_json, failures=inspect)
        if not no_wait and (job.state != "done" or (job.counts.failed and not inspect)):
            raise click.exceptions.Exit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job.")
@takes_store
def jobs(as_json: bool, store: StoreChoice) -> None:
    """List jobs, including those that have ended."""
    with store.reading() as client, OutputLines() as lines:
        for one in client.etl.jobs():
            _show(one, lines, as_json=as_json)


@click.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@click.option("--failures", is_flag=True, help="Name the objects that failed.")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@takes_store
def job(name: str, wait: bool, failures: bool, as_json: bool, store: StoreChoice) -> None:
    """Show the progress of the job NAME."""
    with store.reading() as client, OutputLines() as lines:
        found = client.etl.job(name)
        if wait:
            _wait(found)
        _show(found, lines, as_json=as_json, failures=failures)
        if wait and (found.state != "done" or found.counts.failed):
            raise click.exceptions.Exit(1)


@click.command()
@click.argument("name")
@click.option("--forget", is_flag=True, help="Remove a finished job from the list; results are kept.")
@click.option("--json", "as_json", is_flag=True, help="The job as it is then, or was, as one JSON object.")
@takes_store
def cancel(name: str, forget: bool, as_json: bool, store: StoreChoice) -> None:
    """Stop the job NAME.

    Objects in progress are finished, and results are kept. Running the same `etl run` again continues with the rest.
    """
    with store.writing(create=False) as client:
        found = client.etl.job(name)
        if forget:
            found.delete()
        else:
            found.stop()
    if as_json:
        with OutputLines() as lines:
            _show(found, lines, as_json=True)
        return
    note(f"{'forgot' if forget else 'stopped'} {printable(name)}")


def _wait(found: TransformJob) -> None:
    with progress(None, unit=" objects") as bar:

        def report(counts: JobCounts) -> None:
            bar.total = counts.seen
            bar.update(counts.transformed + counts.skipped + counts.failed - bar.n)

        try:
            found.wait(progress=report)
        except errors.TransformIncomplete as error:
            fail(printable(str(error)))


def _show(found: TransformJob, lines: OutputLines, *, as_json: bool, failures: bool = False) -> None:
    failed = found.failures() if failures else None
    if as_json:
        shown = ("name", "bucket", "to_bucket", "state", "problem")
        fields: dict[str, Any] = {name: getattr(found, name) for name in shown}
        fields["counts"] = dataclasses.asdict(found.counts)
        if failed is not None:
            fields["failures"] = [{"name": one.name, "kind": one.error.kind, "error": str(one.error)} for one in failed]
            fields["more_failures"] = failed.more
        lines.add(json.dumps(fields))
        return
    counts = found.counts
    lines.add(
        f"{found.name}  {found.bucket} to {found.to_bucket}  {found.state}  "
        f"{count_text(counts.transformed, 'object')} transformed ({size_text(counts.output_bytes)}), "
        f"{counts.skipped:,} there already, {counts.failed:,} failed, {counts.deleted:,} deleted"
    )
    for one in failed or ():
        lines.add(f"  {printable(one.name)}: {printable(str(one.error))}")
    if failed is not None and failed.more:
        lines.add("  … and others")
