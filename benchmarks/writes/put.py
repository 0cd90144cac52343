"""PUT and PutMany by object size: embedded, over a lane, over gRPC to one node, against files and a grpcio echo.

    python -m benchmarks.writes.put  # writes the table beside this file

Durability is the same on all sides. With "process", what is acknowledged survives `kill -9` of the node; files are
written and renamed. With "power", it survives a power failure; files are also synced, and so is the directory after the
rename, one after another. "echo" is a server that takes the bytes of one unary call and discards them. The node's PUTs
also compute checksums and make entries in a catalog. There is one client, with one PUT at a time; PutMany is one call
for the whole round.

Prediction, written before the first run: at "process", PutMany of 10 KiB objects is 5 to 8 times as fast as single
PUTs, since a single PUT costs about 0.8 ms, most of it in grpcio, and an object of a group costs 0.1 ms, which the
store takes. At "power", the factor is the ratio of syncs: three for a single PUT, and little more than two for an
object of a group, unless a group syncs all at the same time. From 1 MiB on, the bytes dominate the cost, and PutMany
gains little. Files are 2 to 4 times as fast as PutMany.

With one file for each object, the result for 10 KiB was 14.5 and 3.8 at "process", in two runs half an hour apart, and
2.6 and 2.8 at "power". On the same quiet machine, the file system took 0.08 ms to create an empty file in some runs and
0.8 ms in others, and no PutMany that creates a file for each object is faster than that. Small objects (at most 128
KiB) of a group therefore share one file now. The prediction for that, written before it was measured: for 10 KiB, at
least 10 times at "process", and at least 15 at "power", where a group of a hundred needs three syncs instead of two
hundred.

Prediction for a store in this process, and for a node over a lane, with one native call to write and check, written
before they were measured: an embedded PUT of 1 MiB reaches 0.6 of files (a PUT costs about 0.4 ms in addition to its
bytes, which cost 0.35 ms), and PutMany of 100 KiB exceeds files. Over a lane, a PUT of 1 MiB reaches 0.45 of files and
at least 1.5 times gRPC. PutMany of 100 KiB to a node reaches 0.45 of files. A PUT of 10 KiB over a lane reaches at
least 1.3 times gRPC, since it has as many thread hops but fewer wake-ups.

Prediction for three changes: directories follow the generation, so that a young store creates one in 256 PUTs instead
of one or two in each; a PUT over a lane visits a thread of the node only once, and that thread takes the bytes from the
socket piece by piece; and groups take their numbers, and write their intent, once. Together, they should remove 130 to
260 of the 750 µs of an embedded PUT of 1 MiB, halve the time of a PUT over a lane, and reduce the processor time of
PutMany of 10 KiB embedded from 70 to 35 µs.

PutMany uses gRPC for small objects even where there is a lane. Nodes do accept it over a lane, but client and node
together then spent 570 µs on an object of 100 KiB, compared with 545 µs over gRPC. Either way, its groups are packed
into messages, and that is what costs time. PutMany of 1 MiB objects therefore took 3.4 ms of processor time for each
object, and a single PUT over a lane 1.8 (medians of a trial on a busy machine).

Prediction for PutMany that puts objects from 256 KiB on over lanes, four at a time, from these figures: for 1 MiB, at
least as fast as single PUTs over a lane, and 0.7 of embedded PutMany, as client and node work at the same time. Found
at "process", in two runs: 1.0 and 1.1 times single PUTs, where it was 0.7, and 0.74 and 0.57 of embedded PutMany, where
it was 0.4. Client and node share the two cores, and take 1.3 ms of processor time together, where embedded takes 0.5.

With threads that wake the event loop once for what ends together, and without an executor's locks, a visit to a thread
takes 23 µs instead of 31 alone, and 6 instead of 12 among others (`Node.read` of an empty function, by turns
with the tree before). A PUT of 10 KiB over a lane makes one such visit, so it saves 8 of the 470 to 550 µs that the
node takes, which three turns on a machine with load 50 do not resolve (0.83 – 1.19). Its profile is flat: of the
interpreter's time, 82 % is the loop's, half of that in the call's path (rights, counts, slots, log), an eighth in the
store, and no function has 7 %. PutMany of 1 MiB in the same hour: 0.98 and 1.1 of single PUTs over a lane (medians of
nine rounds, before and after), 1.25 ms of the node and 0.44 of the client, against 0.65 embedded. Two cores that do
nothing else would give 0.77 of embedded at best; the ratio in such an hour, 0.03 – 15, says nothing.
"""

from __future__ import annotations

import cProfile
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import click
import grpc

import ais_loader
from ais_loader import Bucket, ClusterOptions, EmbeddedOptions
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.echo import ServerProcess, channel_to, serve
from benchmarks.kit.harness import Claim, Outcome, claims_table, conclude, judge, label, load, machine, run_rounds

SIZES_BYTES = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20)
CLAIM_BYTES = 10 << 10
TIMES = 5.0
LARGE_BYTES, MEDIUM_BYTES = 1 << 20, 100 << 10
TABLE = Path(__file__).with_suffix(".md")

Durability = Literal["process", "power"]
FILES, ECHO, PUT, PUT_MANY = "files", "echo", "PUT", "PutMany"
LANE_PUT = "lane PUT"
HERE_PUT, HERE_PUT_MANY = "embedded PUT", "embedded PutMany"
ALL = (FILES, ECHO, PUT, PUT_MANY, LANE_PUT, HERE_PUT, HERE_PUT_MANY)
Rates = dict[str, list[float]]


# -- the echo


def _forget(_: None, ready: Connection) -> None:
    """A server that takes bytes and answers how many."""
    serve({"Put": grpc.unary_unary_rpc_method_handler(lambda request, context: b"%d" % len(request))}, ready)


# -- contestants; each returns objects per second


def names_without_end(kind: str) -> Iterator[str]:
    """New ones each time: what replaces an object also has to remove one."""
    number = 0
    while True:
        number += 1
        yield f"{kind}/{number:09d}"


def write_files(folder: Path, data: bytes, count: int, durability: Durability) -> Callable[[], float]:
    names = names_without_end("file")
    folder.mkdir()

    def run() -> float:
        wanted = [next(names).rpartition("/")[2] for _ in range(count)]
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        start = time.perf_counter()
        for name in wanted:
            fd = os.open(f"{name}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=folder_fd)
            try:
                assert os.write(fd, data) == len(data)
                if durability == "power":
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(f"{name}.new", name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            if durability == "power":
                os.fsync(folder_fd)
        rate = count / (time.perf_counter() - start)
        for name in wanted:
            os.unlink(name, dir_fd=folder_fd)
        os.close(folder_fd)
        return rate

    return run


def echo(channel: grpc.Channel, data: bytes, count: int) -> Callable[[], float]:
    call = channel.unary_unary("/echo/Put")

    def run() -> float:
        start = time.perf_counter()
        for _ in range(count):
            assert int(call(data)) == len(data)
        return count / (time.perf_counter() - start)

    return run


def put(bucket: Bucket, data: bytes, count: int, kind: str = "one") -> Callable[[], float]:
    names = names_without_end(f"{kind}-{len(data)}")

    def run() -> float:
        wanted = [next(names) for _ in range(count)]
        start = time.perf_counter()
        for name in wanted:
            bucket.put(name, data)
        rate = count / (time.perf_counter() - start)
        forget(bucket, wanted)
        return rate

    return run


def put_many(bucket: Bucket, data: bytes, count: int) -> Callable[[], float]:
    names = names_without_end(f"many-{len(data)}")

    def run() -> float:
        wanted = [next(names) for _ in range(count)]
        start = time.perf_counter()
        stored = bucket.put_many((name, data) for name in wanted).stored
        rate = count / (time.perf_counter() - start)
        assert stored == count
        forget(bucket, wanted)
        return rate

    return run


def forget(bucket: Bucket, names: list[str]) -> None:
    """Large objects, so that a run needs little room; deleting thousands of small ones would take longer than a PUT."""
    if len(names) <= 64:
        for name in names:
            bucket.delete(name)


# -- where the time of an embedded PUT goes

LAYERS = {
    "write and checksums": ("write_counted", "_with_room"),
    "making, naming, marking of files": (
        "posix.open",
        "posix.close",
        "posix.rename",
        "posix.mkdir",
        "setxattr",
        "statvfs",
    ),
    "catalog": ("Rdict", "WriteBatch"),
}
"""Parts of the names of functions that spend time in the system; the rest is the interpreter's."""
INTERPRETER = "interpreter"


def layers(size_bytes: int, here: Path, *, many: bool) -> dict[str, float]:
    """Microseconds of processor time for one object, by layer.

    What is spent in the system is taken from a profile. The interpreter's is what is left of a run without one, which
    would make its share several times larger.
    """
    data, count = seeded_bytes(size_bytes, seed=1), max(32, min(1000, (64 << 20) // size_bytes))
    with ais_loader.connect(f"file://{here}", mode="a") as client:
        bucket = client.create_bucket("b")

        def put_all(kind: str) -> None:
            if many:
                bucket.put_many((f"{kind}/{at}", data) for at in range(count))
            else:
                for at in range(count):
                    bucket.put(f"{kind}/{at}", data)

        put_all("warm")
        began_s = time.process_time()
        put_all("plain")
        whole_s = time.process_time() - began_s
        with cProfile.Profile(time.process_time) as profile:
            put_all("profiled")
    found = dict.fromkeys(LAYERS, 0.0)
    for entry in profile.getstats():
        name = entry.code if isinstance(entry.code, str) else entry.code.co_name
        for layer, parts in LAYERS.items():
            if any(part in name for part in parts):
                found[layer] += entry.inlinetime / count * 1e6
    found[INTERPRETER] = max(0.0, whole_s / count * 1e6 - sum(found.values()))
    return found


def layers_table(here: Path) -> str:
    kinds = [(size_bytes, many) for size_bytes in (CLAIM_BYTES, MEDIUM_BYTES, LARGE_BYTES) for many in (False, True)]
    columns = [layers(size_bytes, here / f"{size_bytes}-{many}", many=many) for size_bytes, many in kinds]
    names = [f"{PUT_MANY if many else PUT} of {label(size_bytes)}" for size_bytes, many in kinds]
    lines = ["| µs of an object, embedded | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for layer in (*LAYERS, INTERPRETER):
        lines.append(f"| {layer} | " + " | ".join(f"{column[layer]:,.0f}" for column in columns) + " |")
    return "\n".join(lines)


# -- what came of it

MISSED = """An embedded PUT makes about 290 calls of the interpreter, and goes through the catalog twice: for the intent
and for the entry. Writing and checking 1 MiB takes 1.2 times as long as a bare write. What varies most is the time to
create an empty file: 16 µs where nothing has been deleted recently, and up to 1 ms beside a benchmark or a test. ext4
does not reuse an inode for a minute or more after its deletion, and looks at each such inode before it finds another
one (`recently_deleted` in a profile of the kernel). This affects files and PUTs alike, but not equally, since each
directory has its own inodes. Reserving a file's blocks before writing it saved nothing up to 1 MiB.

Ratios to files depend on what creating a file costs at that moment. With five rounds of 1 MiB alone, a quarter of an
hour before this table, an embedded PUT reached 0.59 of files and one over a lane 0.49. In shorter runs within the hour,
embedded reached 0.28 – 0.67 and a lane 0.54 – 0.78, while the previous tree reached 0.28 – 0.30 and 0.28 – 0.47 in the
same minutes. In processor time, with files that take 0.28 ms, an embedded PUT of 1 MiB takes 0.52 ms: 0.5 – 0.56 of
files. To reach 0.6, it would have to do without the interpreter, or without the catalog and half of the interpreter.

At "power", a single PUT waits for three syncs (its own, its directory's, and the catalog's), and a file for two. A PUT
therefore cannot reach more than two thirds of files, and with what a PUT costs at "process", 0.6 is out of reach.

A PUT of 1 MiB over a lane took 1.4 ms of the node's processor time (`perf record` of 300, load 12): the kernel 640 µs,
the interpreter 590, C libraries 55, checksums 47, and the catalog 35. The embedded store takes 0.5 ms for the same
object. The rest of the difference comes from taking the bytes from the socket, from waking the event loop and a thread
and going back, and from an interpreter whose code 1 MiB has evicted from the caches in between. The node switched
threads 10 times per PUT, and 23 times when header, bytes, and end were three visits to a thread."""


def measure(durability: Durability, size_bytes: int, total_bytes: int, most: int, rounds: int, here: Path) -> Rates:
    """`total_bytes` per round and contestant, in at most `most` objects; single PUTs are a quarter of them."""
    data = seeded_bytes(size_bytes, seed=size_bytes)
    count = max(4, min(most, total_bytes // size_bytes))
    few = max(4, count // 4)
    with ExitStack() as held:
        node = held.enter_context(NodeProcess([here / "drive"], arguments=["--durability", durability]))
        server = held.enter_context(ServerProcess(_forget))
        channel = held.enter_context(channel_to(server.port))
        by_grpc = ClusterOptions(lane="grpc")
        bucket = held.enter_context(ais_loader.connect(node.url, options=by_grpc)).create_bucket("b")
        by_lane = held.enter_context(ais_loader.connect(node.url, options=ClusterOptions(lane="auto"))).bucket("b")
        options = EmbeddedOptions(durability=durability)
        embedded = ais_loader.connect(f"file://{here / 'embedded'}", mode="a", options=options)
        inside = held.enter_context(embedded).create_bucket("b")
        contestants = {
            FILES: write_files(here / "files", data, few, durability),
            ECHO: echo(channel, data, few),
            PUT: put(bucket, data, few),
            PUT_MANY: put_many(by_lane, data, count),
            LANE_PUT: put(by_lane, data, few, "lane"),
            HERE_PUT: put(inside, data, few),
            HERE_PUT_MANY: put_many(inside, data, count),
        }
        for work in contestants.values():
            work()
        return run_rounds(contestants, rounds)


def rows(by_size: dict[int, Rates]) -> str:
    ratios = [(PUT, FILES), (LANE_PUT, FILES), (HERE_PUT, FILES)]
    ratios += [(PUT_MANY, FILES), (HERE_PUT_MANY, FILES), (LANE_PUT, PUT), (PUT_MANY, PUT)]
    ratios += [(PUT_MANY, LANE_PUT), (PUT_MANY, HERE_PUT_MANY)]
    lines = [
        "Objects per second:",
        "",
        "| size | " + " | ".join(ALL) + " |",
        "|---|" + "---:|" * len(ALL),
        *(
            f"| {label(size_bytes)} | " + " | ".join(f"{statistics.median(rates[name]):,.0f}" for name in ALL) + " |"
            for size_bytes, rates in by_size.items()
        ),
        "",
        "| size | " + " | ".join(f"{subject} ÷ {baseline}" for subject, baseline in ratios) + " |",
        "|---|" + "---:|" * len(ratios),
    ]
    for size_bytes, rates in by_size.items():
        found = judge(rates, [Claim(subject, baseline, 0) for subject, baseline in ratios])
        lines.append(f"| {label(size_bytes)} | " + " | ".join(f"{one.median:.2f}" for one in found) + " |")
    return "\n".join(lines)


def claims(by_size: dict[int, Rates], durability: Durability) -> list[Outcome]:
    wanted = [
        (CLAIM_BYTES, PUT_MANY, PUT, TIMES),
        (LARGE_BYTES, HERE_PUT, FILES, 0.6),
        (MEDIUM_BYTES, HERE_PUT_MANY, FILES, 0.6),
        (LARGE_BYTES, LANE_PUT, FILES, 0.45),
        (MEDIUM_BYTES, PUT_MANY, FILES, 0.45),
        (LARGE_BYTES, LANE_PUT, PUT, 1.5),
        (CLAIM_BYTES, LANE_PUT, PUT, 1.3),
        (LARGE_BYTES, PUT_MANY, LANE_PUT, 1.0),
        (LARGE_BYTES, PUT_MANY, HERE_PUT_MANY, 0.7),
    ]
    outcomes: list[Outcome] = []
    for size_bytes, subject, baseline, at_least in wanted:
        ends = f"of {label(size_bytes)}, {durability}"
        named = {f"{name} {ends}": found for name, found in by_size[size_bytes].items()}
        outcomes += judge(named, [Claim(f"{subject} {ends}", f"{baseline} {ends}", at_least)])
    return outcomes


@click.command(help=__doc__)
@click.option("--total-mib", default=32, show_default=True, help="Bytes per round and size in PutMany.")
@click.option("--most", default=2000, show_default=True, help='Objects per round in PutMany; a quarter at "power".')
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
@click.option("--size", "sizes", type=int, multiple=True, help="Bytes; may be repeated. Without claims, then.")
@click.option("--note", default="", help="A line for the table, on how it was made.")
def main(
    total_mib: int, most: int, rounds: int, folder: Path | None, write: bool, sizes: tuple[int, ...], note: str
) -> None:
    sections: list[str] = []
    outcomes: list[Outcome] = []
    kinds: tuple[Durability, ...] = ("process", "power")
    for durability in kinds:
        objects = most if durability == "process" else most // 4
        by_size: dict[int, Rates] = {}
        for size_bytes in sizes or SIZES_BYTES:
            with tempfile.TemporaryDirectory(dir=folder) as here:
                found = measure(durability, size_bytes, total_mib << 20, objects, rounds, Path(here))
            by_size[size_bytes] = found
        outcomes += claims(by_size, durability) if not sizes else []
        sections.append(f"## Durability: {durability}\n\n{rows(by_size)}")
    with tempfile.TemporaryDirectory(dir=folder) as here:
        sections.append(f"## Where the processor's time goes\n\n{layers_table(Path(here))}")
    text = (
        f"# PUT\n\n{note and note + chr(10) * 2}{(__doc__ or '').strip()}\n\nMachine: {machine()}; {load()}. "
        f"{rounds} rounds, in which all take turns; client and node share the cores. Medians of the rounds; each ratio "
        "is taken within a round.\n\n"
        + "\n\n".join([*sections, f"## Claims\n\n{claims_table(outcomes)}", MISSED])
        + "\n"
    )
    click.echo(text)
    conclude(text, TABLE if write else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
