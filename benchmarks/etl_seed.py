"""All clips as stereo WAV: by each kind of server, framework, channel and way to the result's owner, and by clients.

    python -m benchmarks.etl_seed            # writes the table and the picture beside this file

The measurement of AIStore's post on transforms, at the size of the repository's recordings: 100 utterances of 8 kHz
FLAC become stereo WAV of 44.1 kHz in another bucket (`examples/etl/flac_to_wav.py`: FFmpeg where it is installed, and
PyAV otherwise). Three nodes on one machine, buckets with one copy, one server process of each framework. "fqn" is given
a path in place of bytes, "direct" puts its result to the node that will own it. The client's way pulls by GetBatch,
transforms in as many processes as there are cores, and puts back by PutMany; "own pace" is those processes alone, with
all clips in memory and results thrown away. Each row's results are compared with those of the first, byte for byte by
their checksums. The second column of rates is the same job with a transform that gives back what it is given.

Prediction, written before the first run: a clip costs some 15 ms of a core to transform, 1 ms to be read, passed and
stored by a server, and the results of three nodes and a server that share two cores come at 0.7 to 0.9 of the cores'
own pace, whatever the channel; Flask and the standard library within a tenth of FastAPI, ws the first by a little.
Direct put changes nothing that can be seen on one machine. The function is the first of all, as its workers are as many
processes, where a server is one and holds its interpreter between two calls of the decoder. The command starts a
process for each clip: half of it.

Without FFmpeg the command is an interpreter that imports PyAV anew for each clip, and is given eight of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import click
import cloudpickle

from ais_loader import Client, connect
from ais_loader.etl import Command, Communication, Server
from ais_loader.pipeline import Stage
from benchmarks.echo import ServerProcess
from benchmarks.etl_channels import FRAMEWORKS
from benchmarks.etl_direct_put import NODES, SECRET, Cluster
from benchmarks.harness import Claim, claims_table, conclude, judge, load, machine, run_rounds
from benchmarks.plots import new_figure, save
from examples.etl.flac_to_wav import FFMPEG, flac_to_wav
from tests.data import SPEECH_DIR

TABLE = Path(__file__).with_name("etl_seed.md")
PICTURE = TABLE.with_suffix(".png")
SOURCE = "clips"
CHANNELS: dict[str, tuple[Communication, ...]] = {
    "FastAPI": ("ws", "hpush", "hpull"),
    "Flask": ("hpush", "hpull"),
    "http.server": ("hpush", "hpull"),
}
CLIENTS, PACE, FUNCTION, COMMAND = "clients", "own pace", "function", "command"
CLAIMS = [
    Claim(FUNCTION, PACE, 0.95),
    Claim(FUNCTION, CLIENTS, 1.0),
    Claim("FastAPI ws", CLIENTS, 0.95),
    Claim("FastAPI ws", "FastAPI hpush", 1.0),
    Claim("gRPC", "FastAPI ws", 1.0),
]
CORES = len(os.sched_getaffinity(0))


def to_wav(data: bytes, nothing: bool = False) -> bytes:
    return bytes(data) if nothing else flac_to_wav(bytes(data), 2, 44100)


def clips() -> dict[str, bytes]:
    return {path.relative_to(SPEECH_DIR).as_posix(): path.read_bytes() for path in sorted(SPEECH_DIR.rglob("*.flac"))}


def _serve(given: tuple[str, str], ready: Connection) -> None:
    framework, folder = given

    class ToWav(FRAMEWORKS[framework]):  # type: ignore[misc]
        file_roots = (folder,)

        def transform(self, data: bytes, path: str, args: Any) -> bytes:
            return to_wav(data, **args)

    with ToWav().running() as url:
        ready.send(int(url.rpartition(":")[2]))
        threading.Event().wait()


class Row(NamedTuple):
    """A transform of the table. `command`: it takes no arguments, and has no row without work."""

    source: Any
    command: bool = False
    clips: int | None = None
    """How many are passed through it; None: all."""


def rows(held: ExitStack, folder: Path) -> tuple[dict[str, Row], list[str]]:
    """By name, and what their nodes are to be started with."""
    found, arguments = {}, ["--etl-code"]
    for framework in (*CHANNELS, "gRPC"):
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
                    found[name] = Row(Server(address, communication=channel, fqn=fqn, direct_put=direct))
    found[FUNCTION] = Row(to_wav)
    program, template = _command(folder)
    found[COMMAND] = Row(Command(template.split()), command=True, clips=None if program == "ffmpeg" else 8)
    return found, [*arguments, "--etl-command", program]


def _command(folder: Path) -> tuple[str, str]:
    """The program, and how it is called: FFmpeg, or an interpreter with PyAV for each clip."""
    if shutil.which("ffmpeg"):
        return "ffmpeg", FFMPEG
    script = folder / "to_wav.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from examples.etl.flac_to_wav import by_pyav\n"
        "sys.stdout.buffer.write(by_pyav(sys.stdin.buffer.read(), 2, 44100))\n"
    )
    return sys.executable, f"{sys.executable} {script}"


class Bench:
    """A cluster with all clips, and what each contestant does once."""

    def __init__(self, held: ExitStack) -> None:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.rows, arguments = rows(held, folder)
        cluster = held.enter_context(
            Cluster(folder, NODES, buckets={SOURCE: 1}, arguments=[*arguments, "--set", f"peer_secret_file={secret}"])
        )
        self._client: Client = held.enter_context(connect(cluster.url))
        self._pool = held.enter_context(ProcessPoolExecutor(CORES, mp_context=get_context("spawn")))
        self.clips = clips()
        for module in (to_wav.__module__, flac_to_wav.__module__):  # workers do not have them
            cloudpickle.register_pickle_by_value(sys.modules[module])
        self._client.bucket(SOURCE).put_many(self.clips.items())
        for name, row in self.rows.items():
            self._client.etl.init(_identifier(name), row.source, timeout_s=120)
        self._buckets = iter(range(1 << 20))
        self._made: dict[bool, dict[str, int]] = {}
        """What the first of the contestants made, by whether it made nothing of it."""

    def contestants(self) -> dict[str, Callable[[], float]]:
        """Clips a second."""
        found: dict[str, Callable[[], float]] = {PACE: self._pace, CLIENTS: self._by_clients}
        for name, row in self.rows.items():
            found[name] = lambda name=name: self._job(name)  # type: ignore[misc]
            if not row.command:
                found[f"{name}, nothing"] = lambda name=name: self._job(name, nothing=True)  # type: ignore[misc]
        return found

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
        self._compare(target.name, self.clips, nothing=False)
        return rate

    def _job(self, name: str, *, nothing: bool = False) -> float:
        to_bucket = f"to-{next(self._buckets)}"
        self._client.create_bucket(to_bucket)
        stage = Stage(_identifier(name), {"nothing": True} if nothing else {})
        names = list(self.clips)[: self.rows[name].clips]
        began_s = time.perf_counter()
        self._client.bucket(SOURCE).transform(to_bucket, etl=stage, names=names)
        rate = len(names) / (time.perf_counter() - began_s)
        self._compare(to_bucket, names, nothing=nothing)
        return rate

    def _compare(self, bucket: str, names: Collection[str], *, nothing: bool) -> None:
        made = {info.name: info.checksum for info in self._client.bucket(bucket).objects()}
        first = self._made.setdefault(nothing, made)
        expected = {name: first[name] for name in names}
        if made != expected:
            raise click.ClickException(f"results differ: {set(made.items()) ^ set(expected.items())}")
        self._client.delete_bucket(bucket, force=True)


def _thrown_away(data: bytes) -> int:
    return len(to_wav(data))


def _identifier(name: str) -> str:
    return name.lower().replace(" ", "-").replace(".", "-")


def rows_table(rates: dict[str, list[float]]) -> str:
    """Fastest first."""
    clients = statistics.median(rates[CLIENTS])
    medians = {name: statistics.median(of) for name, of in rates.items() if not name.endswith(", nothing")}
    lines = ["| what | clips/s | range | ÷ clients | with nothing to do, clips/s |", "|---|---:|---:|---:|---:|"]
    for name, median in sorted(medians.items(), key=lambda pair: -pair[1]):
        idle = rates.get(f"{name}, nothing")
        lines.append(
            f"| {name} | {median:,.1f} | {min(rates[name]):,.1f} – {max(rates[name]):,.1f} | {median / clients:.2f} "
            f"| {f'{statistics.median(idle):,.0f}' if idle else ''} |"
        )
    return "\n".join(lines)


def draw(rates: dict[str, list[float]], path: Path) -> None:
    figure, axes = new_figure(1, width=7.0, rows=2)
    figure.set_size_inches(7.0, 9.0)
    for panel, ending, label in ((axes[0][0], "", "clips/s"), (axes[1][0], ", nothing", "clips/s, nothing to do")):
        chosen = {
            name.removesuffix(", nothing"): statistics.median(of)
            for name, of in rates.items()
            if name.endswith(", nothing") == bool(ending)
        }
        names = sorted(chosen, key=lambda name: chosen[name])
        colors = ["#c0392b" if name in (CLIENTS, PACE) else "#92c5de" for name in names]
        panel.barh(range(len(names)), [chosen[name] for name in names], color=colors)
        panel.set_yticks(range(len(names)), names, fontsize=6)
        panel.set(xlabel=label)
    save(figure, path)


def measured(rounds: int, only: Sequence[str] = ()) -> dict[str, list[float]]:
    with ExitStack() as held:
        bench = Bench(held)
        chosen = {
            name: run
            for name, run in bench.contestants().items()
            if not only or name.removesuffix(", nothing") in (*only, CLIENTS, PACE)
        }
        rates = run_rounds(chosen, 1 + rounds)  # in the first of them processes are started, and decoders loaded
        return {name: of[1:] for name, of in rates.items()}


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table and the picture.")
def main(rounds: int, keep: bool) -> None:
    rates = measured(rounds)
    outcomes = judge(rates, CLAIMS)
    what, _, story = (__doc__ or "").partition("\n\n")
    decoder = "FFmpeg" if shutil.which("ffmpeg") else "PyAV"
    text = "\n\n".join(
        [
            "# Clips to WAV, by every way",
            what,
            story.strip(),
            f"Machine: {machine()}; {load()}. {rounds} rounds of {len(clips())} clips by {decoder}; {NODES} nodes, "
            "servers, workers and clients share the cores.",
            rows_table(rates),
            claims_table(outcomes),
            f"![Clips a second]({PICTURE.name})",
        ]
    )
    print(text)
    if keep:
        draw(rates, PICTURE)
    conclude(text + "\n", TABLE if keep else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
