"""Certificates of runs: what a run pays to be certified later, and what certifying costs.

    .venv/bin/python -m benchmarks.training.certificates  # writes the table beside this file

A run records nothing for its certificate but its state, since its plan is a pure function. It reads a snapshot, or is
pinned. All times are processor time of the process, which has the store: batches of 128 objects of 10 KiB, in one
shuffled epoch. A run of the bucket as it is, without a state, is the baseline. States are taken after each 10th batch,
more often than checkpoints are. Certifying is `leaves` and `certificate` of that epoch; verifying checks it.

Prediction, written before the first run: A state takes 20 microseconds, 0.2 % of a batch. Pins cost nothing that can be
seen, as the version of an entry is compared where it is looked up. So the ratio is within 1 % of one. Certifying costs
a fifth of reading, because the checksums of all objects are asked for, and verifying a twentieth.

The first run missed all but the state. Reading small objects of an embedded store takes so little time that whatever is
done once for each object in Python costs as much: pinned entries, which are requested one by one, took three times as
long, a certificate four times, and its check as long as the run. Snapshots were added then, as the cheaper way to fix
versions, with 2.2 times.

Since locations have the version of each object, a batch of fixed versions finds all objects at once, compares versions
as columns, and looks up only those that differ. Predicted for that: 1.05 for a snapshot, 1.3 for pinned entries, whose
versions are sent as text. The wanted figures are for the state, which is all that is recorded, for fixed versions, and
against the certificate growing dearer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ais_loader import BatchLoader, Client, MapDataset, ShufflePlan
from ais_loader.testing import throwaway_store
from ais_loader.training.certificate import certificate, check
from ais_loader.training.ledger import leaves
from benchmarks.kit.harness import conclude, page, run_rounds

TABLE = Path(__file__).with_suffix(".md")
BATCH, OBJECT_BYTES = 128, 10 << 10
EVERY = 10
PLAIN, SNAPSHOT, PINNED = "plain", "a run of a snapshot", "a run of pinned entries"
CERTIFY, VERIFY, STATES = "certify the epoch", "verify the certificate", f"a state after each {EVERY}th batch"


def loader_of(client: Client, bucket: str, *, pinned: bool = False) -> BatchLoader:
    dataset = MapDataset(client, f"ais://{bucket}/", pinned=pinned)
    return BatchLoader(dataset, ShufflePlan(len(dataset), BATCH))


def timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@click.command(help=__doc__)
@click.option("--objects", default=20_000, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(objects: int, rounds: int, write: bool) -> None:
    data = {f"{at:06}": at.to_bytes(8, "little") * (OBJECT_BYTES // 8) for at in range(objects)}
    key = Ed25519PrivateKey.generate()

    def is_signature(signature: bytes, signed: bytes) -> bool:
        key.public_key().verify(signature, signed)
        return True

    with throwaway_store(data, bucket="b") as client:
        client.bucket("b").snapshot("v1")
        plain, pinned, snapshot = loader_of(client, "b"), loader_of(client, "b", pinned=True), loader_of(client, "b@v1")
        steps = len(plain)
        state = loader_of(client, "b@v1").state_dict() | {"epoch": 1}

        def certified() -> dict[str, Any]:
            return certificate(state, leaves(snapshot, state), [], key.sign)

        made = certified()
        found = run_rounds(
            {
                PLAIN: lambda: timed(lambda: sum(1 for _ in plain)),
                SNAPSHOT: lambda: timed(lambda: sum(1 for _ in snapshot)),
                PINNED: lambda: timed(lambda: sum(1 for _ in pinned)),
                STATES: lambda: timed(lambda: [snapshot.state_dict() for _ in range(steps // EVERY)]),
                CERTIFY: lambda: timed(certified),
                VERIFY: lambda: timed(lambda: check(made, is_signature)),
            },
            rounds,
        )
        for loader in (plain, pinned, snapshot):
            loader.close()
    rows = ["| | processor time ÷ that of a run without | range | wanted |", "|---|---:|---:|---|"]
    reached = True
    for name, most in ((STATES, 0.01), (SNAPSHOT, 1.3), (PINNED, 1.5), (CERTIFY, 10), (VERIFY, 2)):
        ratios = [one / base for one, base in zip(found[name], found[PLAIN], strict=True)]
        middle = statistics.median(ratios)
        good = middle <= most
        reached &= good
        wanted = f"{'reached' if good else 'MISSED'}: ≤ {most:g}"
        rows.append(f"| {name} | **{middle:.4f}** | {min(ratios):.4f} – {max(ratios):.4f} | {wanted} |")
    setting = f"{objects:,} objects of {OBJECT_BYTES >> 10} KiB, {steps} batches of {BATCH}, {rounds} rounds."
    text = page("Certificates of runs", str(__doc__), setting, "\n".join(rows)) + "\n"
    click.echo(text)
    conclude(text, TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
