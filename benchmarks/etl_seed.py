"""All clips as stereo WAV: by kind of server, framework, channel and path to the result's owner, and by clients.

    python -m benchmarks.etl_seed            # writes the table and the picture beside this file

This repeats the measurement of AIStore's post on transforms at the size of the repository's recordings: 100 utterances
of 8 kHz FLAC become stereo WAV of 44.1 kHz in another bucket (`examples/etl/flac_to_wav.py`: by PyAV, or by FFmpeg for
the command). There are three nodes on one machine, buckets with one copy, and one server process for each framework.
"fqn" is given a path instead of bytes, and "direct" puts its result to the node that will own it. The clients pull by
GetBatch, transform in as many processes as there are cores, and put back by PutMany. "Own pace" is those processes
alone, with all clips in memory and the results discarded. The results of each row are compared with those of the first,
byte for byte by their checksums. The command's results are compared with those of its own first run, because FFmpeg
writes a different header. "Nothing to do" is the same job with a transform that returns its input.

A clip's cost is divided by what else is measured in the same round, each part as wall time per clip. "read" is a
GetBatch of all clips. "channel" is an inspection (which writes nothing) with nothing to do, minus the read. "transform"
is an inspection minus the one with nothing to do. "write" is the job minus its inspection. Together they are the job.
In an inspection, a result that is put directly goes back to the node: what direct put saves appears in "write", which
may be negative. For clients, "transform" is their own pace, and "write" is the rest.

Prediction, written before the first run: A clip costs some 15 ms of a core to transform, and 1 ms to be read, passed
and stored by a server. Three nodes and a server that share two cores deliver results at 0.7 to 0.9 of the cores' own
pace, whatever the channel. Flask and the standard library are within a tenth of FastAPI, and ws is first by a small
margin. Direct put makes no visible difference on one machine. The function is the fastest of all, because each of its
workers is a process, whereas a server is a single process that holds its interpreter between two calls of the decoder.
The command starts a process for each clip: half of that rate.

If FFmpeg is not installed, the command is an interpreter that imports PyAV anew for each clip, and it is given eight
clips.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import click
import cloudpickle

from ais_loader import Client, connect
from ais_loader.testing.cluster import ClusterProcesses
from ais_loader.transforms.etl import Communication, NodeCommand, Server
from ais_loader.values.pipeline import Stage
from benchmarks.echo import ServerProcess
from benchmarks.etl_channels import FRAMEWORKS
from benchmarks.etl_direct_put import NODES
from benchmarks.harness import Claim, claims_table, conclude, judge, page, run_rounds
from benchmarks.plots import new_figure, save
from examples.etl.flac_to_wav import FFMPEG, by_pyav
from tests.data import SPEECH_DIR

TABLE = Path(__file__).with_name("etl_seed.md")
PICTURE = TABLE.with_suffix(".png")
SOURCE = "clips"
CHANNELS: dict[str, tuple[Communication, ...]] = {
    "FastAPI": ("ws", "hpush", "hpull"),
    "Flask": ("hpush", "hpull"),
    "http.server": ("hpush", "hpull"),
}
CLIENTS, PACE, FUNCTION, COMMAND, READ = "clients", "own pace", "function", "command", "read"
NOTHING, INSPECTED = ", nothing", ", inspected"
"""Endings of contestants' names: the transform has nothing to do; results are made and not written."""
CLAIMS = [
    Claim(FUNCTION, PACE, 0.95),
    Claim(FUNCTION, CLIENTS, 1.0),
    Claim("FastAPI ws", CLIENTS, 0.95),
    Claim("FastAPI ws", "FastAPI hpush", 1.0),
    Claim("gRPC", "FastAPI ws", 1.0),
]
CORES = len(os.sched_getaffinity(0))
Rates: TypeAlias = dict[str, list[float]]


def to_wav(data: bytes, nothing: bool = False) -> bytes:
    return bytes(data) if nothing else by_pyav(bytes(data), 2, 44100)


def clips(most: int | None) -> dict[str, bytes]:
    paths = sorted(SPEECH_DIR.rglob("*.flac"))[:most]
    return {path.relative_to(SPEECH_DIR).as_posix(): path.read_bytes() for path in paths}


def _serve(given: tuple[str, str], ready: Connection) -> None:
    framework, folder = given

    class ToWav(FRAMEWORKS[framework]):  # type: ignore[misc]
        file_roots = (folder,)

        def transform(self, data: bytes, path: str, args: Any) -> bytes:
            return to_wav(data, **args)

    with ToWav().running() as url:
        ready.send(int(url.rpartition(":")[2]))
        threading.Event().wait()


OUTCOME = """The first table had 1.1 to 1.4 s in every row, and 0.54 with nothing to do: nodes looked for jobs, and for
what others had done, four times per second, and so did everyone who waited. Since then, the beginning and the end of
a job are noticed when they happen. With nothing to do, the remaining time is that of three nodes that agree on a map
twice and ask each other about their progress. A clip costs 2 ms of a core and not 15, so 100 clips are too few to
show how much of the cores' own pace a job reaches. A server of one process has one core for its clips. A function's
six workers end after a minute without work, and import PyAV anew in each round of the whole table. The command is
FFmpeg, whose start takes 40 ms of each clip. For how much of the cores' own pace a job reaches, with longer utterances
on one node, see etl_pace.md. For jobs over 10,000 objects, see etl_offline.md."""


class Row(NamedTuple):
    """A transform of the table. `command`: it takes no arguments, and has no row without work."""

    source: Any
    command: bool = False
    clips: int | None = None
    """How many are passed through it; None: all."""
    said: tuple[str, str, str, str] | None = None
    """Web server, communication, fqn and direct put, as the table has them."""


def rows(held: ExitStack, folder: Path, only: Sequence[str] = ()) -> tuple[dict[str, Row], list[str]]:
    """By name, and what their nodes are to be started with."""
    found, arguments = {}, ["--etl-code"]
    for framework in (*CHANNELS, "gRPC"):
        if only and not any(name.startswith(framework) for name in only):
            continue
        server = held.enter_context(ServerProcess(_serve, (framework, str(folder))))
        address = f"{'grpc' if framework == 'gRPC' else 'http'}://127.0.0.1:{server.port}"
        arguments += ["--etl-server", address]
        channels: tuple[Communication, ...] = CHANNELS.get(framework, ("grpc",))
        for channel in channels:
            for fqn in (False, True):
                # Results go to their owners by HTTP: a gRPC server has them go through the node.
                for direct in (False, True) if framework != "gRPC" else (False,):
                    name = f"{framework}{'' if channel == 'grpc' else ' ' + channel}"
                    name += f"{' fqn' * fqn}{' direct' * direct}"
                    said = framework, channel, "fqn" * fqn, str(direct)
                    source = Server(address, communication=channel, fqn=fqn, direct_put=direct)
                    found[name] = Row(source, said=said)
    found[FUNCTION] = Row(to_wav)
    template = _command(folder)
    is_ffmpeg = template == FFMPEG
    found[COMMAND] = Row(NodeCommand("wav"), command=True, clips=None if is_ffmpeg else 8)
    chosen = {name: row for name, row in found.items() if not only or name in only}
    if not is_ffmpeg:  # an interpreter, which is rarely where commands may read
        arguments += ["--set", "etl_sandbox=off"]
    return chosen, [*arguments, "--etl-command", f"wav={template}"]


def _command(folder: Path) -> str:
    """FFmpeg, or an interpreter with PyAV for each clip."""
    if shutil.which("ffmpeg"):
        return FFMPEG
    script = folder / "to_wav.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from examples.etl.flac_to_wav import by_pyav\n"
        "sys.stdout.buffer.write(by_pyav(sys.stdin.buffer.read(), 2, 44100))\n"
    )
    return f"{sys.executable} {script}"


class Bench:
    """A cluster with all clips, or so many of them, and what each contestant does once; of some rows only, if any."""

    def __init__(self, held: ExitStack, only: Sequence[str] = (), most: int | None = None) -> None:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        self.rows, arguments = rows(held, folder, only)
        cluster = held.enter_context(ClusterProcesses(folder, NODES, buckets={SOURCE: 1}, arguments=arguments))
        self._client: Client = held.enter_context(connect(cluster.url))
        self._pool = held.enter_context(ProcessPoolExecutor(CORES, mp_context=get_context("spawn")))
        self.clips = clips(most)
        for module in (to_wav.__module__, by_pyav.__module__):  # workers do not have them
            cloudpickle.register_pickle_by_value(sys.modules[module])
        self._client.bucket(SOURCE).put_many(self.clips.items())
        for name, row in self.rows.items():
            self._client.etl.init(_identifier(name), row.source, timeout_s=120)
        self._buckets = iter(range(1 << 20))
        self._made: dict[str, dict[str, int]] = {}
        """What the first of those contestants made that make the same."""

    def contestants(self) -> dict[str, Callable[[], float]]:
        """Clips a second."""
        found: dict[str, Callable[[], float]] = {PACE: self._pace, CLIENTS: self._by_clients, READ: self._read}
        for name, row in self.rows.items():
            for nothing in (False, True) if not row.command else (False,):
                for inspected in (False, True):
                    found[f"{name}{NOTHING * nothing}{INSPECTED * inspected}"] = partial(
                        self._job, name, nothing=nothing, inspected=inspected
                    )
        return found

    def _read(self) -> float:
        began_s = time.perf_counter()
        made = self._client.get_batch(list(self.clips), bucket=SOURCE).tobytes()
        rate = len(self.clips) / (time.perf_counter() - began_s)
        if made != list(self.clips.values()):
            raise click.ClickException("clips that were read differ from those that were put")
        return rate

    def _pace(self) -> float:
        began_s = time.perf_counter()
        for _ in self._pool.map(_thrown_away, self.clips.values(), chunksize=4):
            pass
        return len(self.clips) / (time.perf_counter() - began_s)

    def _by_clients(self) -> float:
        target = self._client.create_bucket(f"to-{next(self._buckets)}")
        began_s = time.perf_counter()
        batch = self._client.get_batch(list(self.clips), bucket=SOURCE)
        names, data = zip(*((item.entry.name, item.tobytes()) for item in batch), strict=True)
        target.put_many(zip(names, self._pool.map(to_wav, data, chunksize=4), strict=True))
        rate = len(self.clips) / (time.perf_counter() - began_s)
        self._compare(target.name, self.clips, "")
        return rate

    def _job(self, name: str, *, nothing: bool, inspected: bool) -> float:
        to_bucket = "none" if inspected else f"to-{next(self._buckets)}"
        self._client.create_bucket(to_bucket, exist_ok=True)
        stage = Stage(_identifier(name), {"nothing": True} if nothing else {})
        names = list(self.clips)[: self.rows[name].clips]
        began_s = time.perf_counter()
        self._client.bucket(SOURCE).transform(to_bucket, etl=stage, names=names, inspect=inspected)
        rate = len(names) / (time.perf_counter() - began_s)
        if not inspected:
            self._compare(to_bucket, names, NOTHING * nothing or COMMAND * self.rows[name].command)
        return rate

    def _compare(self, bucket: str, names: Collection[str], kind: str) -> None:
        """With the first of the same kind."""
        made = {info.name: info.checksum for info in self._client.bucket(bucket).objects()}
        first = self._made.setdefault(kind, made)
        expected = {name: first[name] for name in names}
        if made != expected:
            raise click.ClickException(f"results differ: {set(made.items()) ^ set(expected.items())}")
        self._client.delete_bucket(bucket, force=True)


def _thrown_away(data: bytes) -> int:
    return len(to_wav(data))


def _identifier(name: str) -> str:
    return name.lower().replace(" ", "-").replace(".", "-")


def rows_table(rates: Rates, said: Mapping[str, Row], count: int) -> str:
    """Fastest first, as the post has it, with what there is beside; in seconds for so many clips."""
    clients = statistics.median(rates[CLIENTS])
    lines = [
        "| webserver | communication | fqn | direct put | seconds | range | ÷ clients | nothing to do, seconds |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for name in by_rate(rates, ""):
        of, idle = rates[name], rates.get(f"{name}{NOTHING}")
        columns = said[name].said if name in said and said[name].said is not None else (name, "", "", "")
        lines.append(
            f"| {' | '.join(columns)} | {count / statistics.median(of):.3f} "
            f"| {count / max(of):.3f} – {count / min(of):.3f} | {statistics.median(of) / clients:.2f} "
            f"| {f'{count / statistics.median(idle):.3f}' if idle else ''} |"
        )
    return "\n".join(lines)


def costs(rates: Rates, name: str) -> tuple[float | None, float | None, float | None, float | None]:
    """Read, channel, transform and write of a clip, in ms: medians over rounds of what was measured in the same one."""

    def median_ms(of: Callable[..., float], *names: str) -> float | None:
        if any(one not in rates for one in names):
            return None
        return 1e3 * statistics.median(
            of(*(1 / rate for rate in row)) for row in zip(*(rates[one] for one in names), strict=True)
        )

    whole, idle, read = f"{name}{INSPECTED}", f"{name}{NOTHING}{INSPECTED}", median_ms(lambda read: read, READ)
    if name == CLIENTS:
        transform = median_ms(lambda pace: pace, PACE)
        return read, None, transform, median_ms(lambda all_, read, pace: all_ - read - pace, CLIENTS, READ, PACE)
    channel = median_ms(lambda idle, read: idle - read, idle, READ)
    transform = median_ms(lambda whole, idle: whole - idle, whole, idle)
    if channel is None:  # of a command, which takes its own time to begin
        transform = median_ms(lambda whole, read: whole - read, whole, READ)
    return read, channel, transform, median_ms(lambda all_, whole: all_ - whole, name, whole)


def costs_table(rates: Rates) -> str:
    lines = ["| a clip's cost, ms | read | channel | transform | write | all |", "|---|---:|---:|---:|---:|---:|"]
    for name in by_rate(rates, ""):
        if name != PACE:
            parts = " | ".join("" if one is None else f"{one:.2f}" for one in costs(rates, name))
            lines.append(f"| {name} | {parts} | {1e3 / statistics.median(rates[name]):.2f} |")
    return "\n".join(lines)


def by_rate(rates: Rates, ending: str) -> list[str]:
    """Contestants of this ending, without it, the fastest first."""
    found = {name.removesuffix(ending): statistics.median(of) for name, of in rates.items() if name.endswith(ending)}
    return sorted((name for name in found if "," not in name and name != READ), key=lambda name: -found[name])


def draw(rates: Rates, count: int, path: Path) -> None:
    """Seconds of each way, the fastest on top; and those with nothing to do."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = new_figure(1, width=7.0, rows=2)
    figure.set_size_inches(7.0, 9.0)
    for panel, ending, label in ((axes[0][0], "", "seconds"), (axes[1][0], NOTHING, "seconds, with nothing to do")):
        names = by_rate(rates, ending)[::-1]
        seconds = [count / statistics.median(rates[f"{name}{ending}"]) for name in names]
        colors = ["#c0392b" if name in (CLIENTS, PACE) else "#92c5de" for name in names]
        panel.scatter(seconds, range(len(names)), color=colors, s=14)
        panel.set_yticks(range(len(names)), names, fontsize=6)
        # A process for each clip takes ten times what the others do: on a linear scale these would all look alike.
        panel.set(xlabel=label, xscale="log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
    save(figure, path)


def measured(rounds: int, only: Sequence[str] = (), most: int | None = None) -> tuple[Rates, dict[str, Row]]:
    """Clips a second by contestant and round; and the rows of the table. `most`: clips."""
    with ExitStack() as held:
        bench = Bench(held, only, most)
        rates = run_rounds(
            bench.contestants(), 1 + rounds
        )  # in the first of them processes are started, and decoders loaded
        return {name: of[1:] for name, of in rates.items()}, bench.rows


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
@click.option("--only", multiple=True, help='Rows to run, as "FastAPI ws fqn direct"; all of them if not given.')
@click.option("--clips", "most", type=int, help="So many of them; all if not given.")
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table and the picture.")
@click.option("--picture", type=click.Path(path_type=Path), help="Where the picture goes; beside the table if kept.")
def main(rounds: int, only: tuple[str, ...], most: int | None, keep: bool, picture: Path | None) -> None:
    if keep and (only or most):
        raise click.UsageError("a table of some rows or clips is not kept: add --no-keep")
    rates, said = measured(rounds, only, most)
    count = len(clips(most))
    outcomes = judge(rates, [claim for claim in CLAIMS if {claim.subject, claim.baseline} <= set(rates)])
    command = "FFmpeg" if shutil.which("ffmpeg") else "an interpreter with PyAV"
    text = page(
        "Clips to WAV, by every way",
        __doc__ or "",
        f"{rounds} rounds of {count} clips by PyAV, the command by {command}; {NODES} nodes, servers, workers and "
        "clients share the cores.",
        rows_table(rates, said, count),
        costs_table(rates),
        claims_table(outcomes),
        f"![Seconds of each way]({PICTURE.name})",
        OUTCOME,
    )
    print(text)
    if keep or picture is not None:
        draw(rates, count, picture or PICTURE)
    conclude(text + "\n", TABLE if keep else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
