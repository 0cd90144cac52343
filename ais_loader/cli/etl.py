"""`ais-loader etl`: creates, shows, stops and deletes transforms, and runs them over buckets."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ais_loader import errors
from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.options import arguments_of
from ais_loader.cli.show import OutputLines, count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, store_of_commands, takes_store
from ais_loader.transforms.transform_job import JobCounts, TransformJob
from ais_loader.values.pipeline import Stage

if TYPE_CHECKING:
    from ais_loader.transforms.etl import Command, TransformInfo


def _pair(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        before, equals, after = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r}: need OLD=NEW, as flac=wav")
        found[before] = after
    return found


@click.group(cls=HintingGroup)
@store_of_commands
def etl(store: str | None) -> None:
    """Manage transforms, which run where the data is stored, and run them over buckets."""


@etl.command()
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


@etl.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per job.")
@takes_store
def jobs(as_json: bool, store: StoreChoice) -> None:
    """List jobs, including those that have ended."""
    with store.reading() as client, OutputLines() as lines:
        for one in client.etl.jobs():
            _show(one, lines, as_json=as_json)


@etl.command()
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


@etl.command()
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


@etl.command()
@click.argument("name")
@click.option("--python", metavar="FILE.py:NAME", help="A function or class of this file. The file is run to get it.")
@click.option(
    "--node-command",
    metavar="COMMAND",
    help="A command that the nodes' operator has listed; `etl commands` lists them.",
)
@click.option(
    "--args", "arguments", metavar="JSON", help='With --node-command: its arguments, as {"rate": 16000}.', default=""
)
@click.option("--command", metavar="WORDS", help="A program and its words, as 'tr a-z A-Z'; no shell runs it.")
@click.option("--server", metavar="ADDRESS", help="A server of yours, as http://HOST:PORT.")
@click.option("--requirement", multiple=True, metavar="SPEC", help="With --python: a package it needs; repeatable.")
@click.option("--streaming", is_flag=True, help="With --python: it takes and yields chunks.")
@click.option("--path", is_flag=True, help="With --python: it takes a file's path instead of bytes.")
@click.option(
    "--input-suffix", default="", metavar="SUFFIX", help="With --command: the suffix of {input}, such as .flac."
)
@click.option(
    "--output-suffix", default="", metavar="SUFFIX", help="With --command: the suffix of {output}, such as .wav."
)
@click.option(
    "--communication",
    type=click.Choice(["hpush", "hpull", "ws"]),
    help="With --server: how objects reach it.  [default: hpush]",
)
@click.option("--fqn", is_flag=True, help="With --server: send it file paths instead of bytes.")
@click.option("--direct-put", is_flag=True, help="With --server: it stores the results of jobs itself.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Time limit for one object."
)
@click.option("--memory-mib", type=click.IntRange(min=0), default=0, metavar="MIB", help="Memory limit of one worker.")
@click.option(
    "--output-mib", type=click.IntRange(min=0), default=0, metavar="MIB", help="Largest output for one object."
)
@click.option(
    "--inflation", type=click.FloatRange(min=0), default=0.0, help="Most bytes of output for each byte of input."
)
@click.option("--retries", type=click.IntRange(min=0), default=0, help="Retries when a worker dies.")
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Most processes on each node.")
@click.option("--replace", is_flag=True, help="Replace an existing transform of this name.")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@takes_store
def init(
    name: str,
    python: str | None,
    node_command: str | None,
    arguments: str,
    command: str | None,
    server: str | None,
    requirement: tuple[str, ...],
    streaming: bool,
    path: bool,
    input_suffix: str,
    output_suffix: str,
    communication: Any,
    fqn: bool,
    direct_put: bool,
    timeout: float,
    memory_mib: int,
    output_mib: int,
    inflation: float,
    retries: int,
    workers: int,
    replace: bool,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Create the transform NAME from a Python function, a command, or a server.

    Nodes run only what their operator has allowed: the commands of `serve --etl-command`, the servers of --etl-server,
    and with --etl-code also Python functions and any --command.
    """
    if sum(one is not None for one in (python, node_command, command, server)) != 1:
        raise click.UsageError("need one of --python, --node-command, --command and --server")
    _require_only(
        {
            "--python": (python, {"--requirement": requirement, "--streaming": streaming, "--path": path}),
            "--node-command": (node_command, {"--args": arguments}),
            "--command": (command, {"--input-suffix": input_suffix, "--output-suffix": output_suffix}),
            "--server": (server, {"--communication": communication, "--fqn": fqn, "--direct-put": direct_put}),
        }
    )
    from ais_loader.transforms.etl import NodeCommand, Server

    transform: Any
    if python is not None:
        transform = _loaded(python)
    elif node_command is not None:
        transform = NodeCommand(node_command, arguments_of(arguments or "{}"))
    elif command is not None:
        transform = _command_of(command, input_suffix, output_suffix)
    else:
        transform = Server(server or "", communication or "hpush", fqn=fqn, direct_put=direct_put)
    with store.writing(create=False) as client:
        made = client.etl.init(
            name,
            transform,
            requirements=requirement,
            streaming=streaming,
            path=path,
            timeout_s=timeout,
            memory_bytes=memory_mib << 20,
            output_bytes=output_mib << 20,
            inflation=inflation,
            retries=retries,
            workers=workers,
            replace=replace,
        )
    if as_json:
        click.echo(json.dumps(_fields(made)))
    else:
        note(f"made {printable(made.name)}, version {made.version}")


def _require_only(kinds: dict[str, tuple[str | None, dict[str, Any]]]) -> None:
    for kind, (given, options) in kinds.items():
        for option, value in options.items():
            if value and given is None:
                raise click.UsageError(f"{option} goes with {kind}")


def _command_of(text: str, input_suffix: str, output_suffix: str) -> Command:
    from ais_loader.transforms.etl import Command

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="'--command'") from None
    if not words:
        raise click.BadParameter("need a program", param_hint="'--command'")
    return Command(words, input_suffix, output_suffix)


def _loaded(text: str) -> Any:
    """Load a function or class from a file, to be pickled by value, because no node has the file."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise click.BadParameter(f"{text!r}: need FILE.py:NAME", param_hint="'--python'")
    file = Path(place).expanduser().resolve()
    if not file.is_file():
        raise click.BadParameter(f"{place}: no such file", param_hint="'--python'")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{place}: not a file of Python", param_hint="'--python'")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # pickling looks up the module of a function there
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[file.stem]
        else:
            sys.modules[file.stem] = before
        raise click.ClickException(f"{place} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
    found = getattr(module, name, None)
    if not callable(found):
        raise click.BadParameter(f"{place} has no function or class {name!r}", param_hint="'--python'")
    return found


@etl.command(name="ls")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per transform.")
@takes_store
def list_(as_json: bool, store: StoreChoice) -> None:
    """List transforms."""
    with store.reading() as client, OutputLines() as lines:
        for one in client.etl.list():
            lines.add(json.dumps(_fields(one)) if as_json else _line(one))


@etl.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per command.")
@takes_store
def commands(as_json: bool, store: StoreChoice) -> None:
    """List the commands that the nodes' operator has listed, with their arguments.

    `ais-loader etl init NAME --node-command COMMAND --args JSON` makes a transform of one.
    """
    with store.reading() as client, OutputLines() as lines:
        for one in client.etl.commands():
            if as_json:
                lines.add(json.dumps(dataclasses.asdict(one)))
            else:
                lines.add(f"{printable(one.name)}  {printable(one.arguments)}  ({count_text(len(one.nodes), 'node')})")


@etl.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with the log.")
@takes_store
def show(name: str, as_json: bool, store: StoreChoice) -> None:
    """Show the transform NAME: its source, and its state, counts and latest errors on each node."""
    with store.reading() as client, OutputLines() as lines:
        found = client.etl.get(name)
        if as_json:
            lines.add(json.dumps(_fields(found)))
            return
        lines.add(_line(found))
        lines.add(f"version {found.version}")
        for node in found.nodes:
            lines.add(
                f"node {node.node or 'of this process'}  {node.state}  {count_text(node.workers, 'worker')}  "
                f"{count_text(node.objects, 'object')} ({size_text(node.input_bytes)} to "
                f"{size_text(node.output_bytes)}), {node.failed:,} failed, {node.cache_hits:,} kept results used, "
                f"{count_text(node.restarts, 'restart')}"
            )
            for problem in (node.problem, *node.errors):
                if problem:
                    lines.add(f"  {printable(problem)}")


@etl.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per node: node and log.")
@takes_store
def log(name: str, as_json: bool, store: StoreChoice) -> None:
    """Print the end of the output of the processes of NAME, from all nodes."""
    with store.reading() as client, OutputLines() as lines:
        if as_json:
            for node in client.etl.get(name).nodes:
                lines.add(json.dumps({"node": node.node, "log": node.log}))
            return
        for line in client.etl.log(name).splitlines():
            lines.add(printable(line))


_json = click.option("--json", "as_json", is_flag=True, help="The transform as it is then, as one JSON object.")


@etl.command()
@click.argument("name")
@_json
@takes_store
def stop(name: str, as_json: bool, store: StoreChoice) -> None:
    """Stop the transform NAME: running processes end, and nothing is served until `etl start`."""
    with store.writing(create=False) as client:
        found = client.etl.stop(name)
    _report("stopped", found, as_json=as_json)


@etl.command()
@click.argument("name")
@_json
@takes_store
def start(name: str, as_json: bool, store: StoreChoice) -> None:
    """Serve the transform NAME again, in the same version."""
    with store.writing(create=False) as client:
        found = client.etl.start(name)
    _report("started", found, as_json=as_json)


@etl.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="The transform as it was, as one JSON object.")
@takes_store
def rm(name: str, as_json: bool, store: StoreChoice) -> None:
    """Delete the transform NAME. Its results are kept."""
    with store.writing(create=False) as client:
        found = client.etl.get(name)
        client.etl.delete(name)
    _report("deleted", found, as_json=as_json)


def _report(what: str, found: TransformInfo, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_fields(found)))
    else:
        note(f"{what} {printable(found.name)}")


def _fields(found: TransformInfo) -> dict[str, Any]:
    return dataclasses.asdict(found)


def _line(found: TransformInfo) -> str:
    states = sorted({node.state for node in found.nodes})
    state = "stopped" if found.stopped else ", ".join(states) or "unknown"
    return f"{printable(found.name)}  {found.kind}  {state}  {printable(found.source)}"
