"""Cold objects without latency: what a node adds to a cloud that is near and fast.

    python -m benchmarks.remote.small_objects  # writes the table beside this file

Each object is read once, by ordered batches of 128, four in flight, from a node on demand (`node:///`) that has none of
them; and by obstore, the node's client of S3, with 64 requests in flight and nothing stored. "warm" is the same with
`Bucket.warm`, which stores the objects and sends none. Rounds take turns. The server answers from memory, in a process
of its own; all processes share the cores, so that the node's processor time for an object is the firmer figure.

Prediction, written before the node stored cold objects in groups: 0.15 of obstore's rate for 50 KB and 0.25 for 1 MB,
with 7 ms of the node for an object of 50 KB, most of it in hand-overs between threads and in one commit for each
object. With groups: 0.6 and 1 ms for 50 KB. An object of 1 MB has a file of its own, which groups do not change: 0.4.

Found before groups: 0.18 for 50 KB, with 2.6 ms of the node, and 0.30 for 1 MB, with 4.5 ms. An object of 50 KB went
through about ten tasks and seven switches to a thread, and had a file and a commit of its own. Found with groups: 0.66
(0.30 on a machine that others used), with 1.04 ms (1.15), and 0.26, with 2.2 ms.

All of these are from a server that sent headers and content as two packets, the second after 40 ms (Nagle's algorithm
and a delayed acknowledgement): 64 requests in flight were 1,450 objects a second at most. Without that delay, obstore
read 5,000 to 7,000 objects of 50 KB a second, and the node 1,000: 0.17.

Estimated before obstore was called in threads, and before an object had three tasks instead of five: 0.54 ms of the
node for 50 KB. Found, by turns with the tree before on a machine that others used: 0.73 ms instead of 1.03. Without the
delay, 0.6 of obstore is out of reach: obstore alone takes 0.2 ms, and storing what came costs more than receiving it.

Of the 1.04 ms, garbage collections took an eighth: each looked at all that the node has had since its start. obstore's
own threads took a third. They hand each of two answers to the event loop, and wait for the interpreter; a blocking call
returns in the thread that made it, for less than half of that. Of 1 MB, most is the kernel's: pages are copied, and
ext4 looks at each inode that was deleted in the last minutes before it finds another one (`recently_deleted` in a
profile), here those of the previous rounds.

Prediction for a node that does less for each object, from a profile of 0.74 ms (event loop 0.33, threads that wait for
drives 0.26, obstore's calls 0.11): 0.5 ms. Results of threads wake the loop together, a request has no task of its own,
cold objects of one moment are looked up together, a frame opens a file of many objects once, and garbage is collected
after 50,000 new objects instead of 700. Found, by turns with the tree before on a machine that others used (load 40 to
60; eight rounds): 0.76 of its processor time for "node" (0.72 – 0.85; 0.58 to 0.65 ms instead of 0.78 to 0.80), and
0.89 for "warm" (0.84 – 0.96). Collections took 115 µs of an object and take 32; each fetch had left 13 objects in
cycles. The loop was woken 1.04 times for an object, and is 0.14 to 0.32 times. The table is of the tree before.

What is left is flat: the loop's 0.27 ms are about a hundred steps of the interpreter, none above a twentieth. Of the
0.20 ms of the threads that wait for drives, half is the kernel's, which copies pages and makes files; of the 0.12 ms of
obstore's calls and threads, more than half is. Bytes are still sent from the drive after their commit: memory of its
own for each object in a batch would take three more system calls, and the look-up that it saves is done for many at
once. So with obstore at 0.18 ms, 0.6 of it is out of reach for a node that stores what it fetches.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

import ais_loader
from ais_loader import Client, Entry, Remote
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, page, rates_table, run_rounds
from benchmarks.kit.processor_time import ProcessorTime
from benchmarks.remote import clients

SHAPES = ((50_000, 3000, 0.6), (10**6, 300, 0.7))
"""Bytes of an object, objects of a round, and the wanted ratio."""
BATCH, IN_FLIGHT, REQUESTS = 128, 4, 64


def _read_by_batches(client: Client, bucket: str, names: Sequence[str], size_bytes: int) -> None:
    def read(first: int) -> None:
        entries = [Entry(bucket, name) for name in names[first : first + BATCH]]
        for item in client.get_batch(entries):
            assert len(item.data) == size_bytes

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(read, range(0, len(names), BATCH)))


def _read_by_obstore(url: str, names: Sequence[str], size_bytes: int) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(clients.BUCKET, endpoint=url, client_options={"allow_http": True})

    async def read() -> None:
        turns = asyncio.Semaphore(REQUESTS)

        async def one(name: str) -> None:
            async with turns:
                assert len(await (await obstore.get_async(store, name)).bytes_async()) == size_bytes

        await asyncio.gather(*map(one, names))

    asyncio.run(read())


def _measure(
    url: str, client: Client, spent: ProcessorTime, size_bytes: int, count: int, rounds: int
) -> dict[str, list[float]]:
    numbers = itertools.count()
    remote = Remote(f"s3://{clients.BUCKET}")

    def contestant(kind: str, read: Callable[[str, Sequence[str]], object], wanted: int) -> Callable[[], float]:
        def round_() -> float:
            number = next(numbers)
            bucket = client.create_bucket(f"cold-{size_bytes}-{number}", remote=remote)
            names = [f"{number}/{at:05}/{size_bytes}" for at in range(wanted)]

            def timed() -> float:
                began_s = time.perf_counter()
                read(bucket.name, names)
                return wanted / (time.perf_counter() - began_s)

            rate = spent.of(kind, timed, wanted)()
            bucket.evict(pattern="*")
            return rate

        return round_

    found: dict[str, Callable[[str, Sequence[str]], object]] = {
        "node": lambda bucket, names: _read_by_batches(client, bucket, names, size_bytes),
        "warm": lambda bucket, names: client.bucket(bucket).warm(names),
        "obstore": lambda _, names: _read_by_obstore(url, names, size_bytes),
    }
    run_rounds({kind: contestant(kind, read, BATCH) for kind, read in found.items()}, 1)
    spent.forget()
    return run_rounds({kind: contestant(kind, read, count) for kind, read in found.items()}, rounds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", type=int, help="bytes of the objects")
    options.add_argument("--no-table", action="store_true")
    asked = options.parse_args()
    server = subprocess.Popen(
        [sys.executable, clients.__file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None and server.stdin is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    os.environ.update(AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s", AWS_REGION="us-east-1", AWS_ENDPOINT_URL_S3=url)
    parts, reached = [], True
    with tempfile.TemporaryDirectory(prefix="ais-loader-cold-") as folder:
        client = ais_loader.connect(f"node://{folder}")
        pid = int((Path(folder) / "node" / "pid").read_text())
        try:
            for size_bytes, count, wanted in SHAPES:
                if asked.only not in (None, size_bytes):
                    continue
                spent = ProcessorTime(pid)
                rates = _measure(url, client, spent, size_bytes, count, asked.rounds)
                outcomes = judge(rates, [Claim("node", "obstore", wanted), Claim("warm", "obstore", wanted)])
                reached = reached and all(outcome.reached for outcome in outcomes)
                parts += [
                    f"## {count:,} objects of {size_bytes // 1000:,} KB",
                    rates_table(rates, "objects/s"),
                    claims_table(outcomes),
                    spent.table("an object"),
                ]
        finally:
            client.close()
            psutil.Process(pid).terminate()
            psutil.wait_procs([psutil.Process(pid)], 60)
            server.stdin.close()
            server.wait(60)
    text = page("Cold objects without latency", __doc__ or "", f"{asked.rounds} rounds.", *parts) + "\n"
    print(text)
    conclude(text, None if asked.no_table else Path(__file__).with_suffix(".md"), reached=reached)


if __name__ == "__main__":
    main()
