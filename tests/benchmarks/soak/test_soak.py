"""The soak itself, for a few seconds: writers that are killed over an embedded store, and nodes that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.testing import eventually, throwaway_folder, throwaway_store
from benchmarks.soak.checker import Rules, check
from benchmarks.soak.clients import WRITES, SoakClient
from benchmarks.soak.cluster import ClusterSoak, CodedSoak
from benchmarks.soak.content import BLOCK_BYTES, content, size_of
from benchmarks.soak.damage import CLIENTS, DamageSoak
from benchmarks.soak.embedded import EmbeddedSoak
from benchmarks.soak.fuzz import fuzz
from benchmarks.soak.history import Operation, Recorder, read_history
from benchmarks.soak.outcome import Outcome, judge_again
from benchmarks.soak.remote import RemoteSoak
from tests.store.store_kit import flip_a_byte

pytestmark = pytest.mark.slow


def assert_clean(outcome: Outcome) -> None:
    assert [f"{wrong.kind}: {wrong.key}: {wrong.text}" for wrong in outcome.violations[:5]] == []
    assert outcome.undecided == 0


def test_an_embedded_store_keeps_its_promises_over_lives_that_are_killed() -> None:
    with throwaway_folder() as folder:
        outcome = EmbeddedSoak(folder, seed=1, say=print).run(lives=20, duration_s=200)
        assert_clean(outcome)
        assert outcome.events["kill -9"] >= 10 and outcome.counts["put ok"] > 20 and outcome.counts["read ok"] > 20


def test_a_cluster_keeps_its_promises_while_nodes_are_killed() -> None:
    def is_enough() -> bool:
        """Clients that start slowly may have had no time for more."""
        with throwaway_folder() as folder, ClusterSoak(folder, seed=2, say=print, only={"kill": 1}) as soak:
            outcome = soak.run(events=2, duration_s=100)
        assert_clean(outcome)
        assert outcome.events["kill"] == 2
        return outcome.counts["put ok"] > 3 and outcome.counts["list ok"] > 3

    eventually(is_enough)


def test_a_coded_bucket_keeps_its_promises_while_nodes_are_killed() -> None:
    def is_enough() -> bool:
        with throwaway_folder() as folder, CodedSoak(folder, seed=1, say=print, only={"kill": 1}) as soak:
            outcome = soak.run(events=2, duration_s=100)
        assert_clean(outcome)
        assert outcome.events["kill"] == 2
        return outcome.counts["put ok"] > 3

    eventually(is_enough)


def test_a_cluster_delivers_nothing_damaged_and_everything_that_has_an_intact_copy() -> None:
    def is_enough() -> bool:
        with throwaway_folder() as folder, DamageSoak(folder, seed=1, say=print) as soak:
            outcome = soak.run(events=4, duration_s=100)
        if not outcome.figures["damaged copies that were found"]:
            return False  # of a few, all may have been overwritten in time
        assert_clean(outcome)
        assert outcome.events["bytes flipped"] == 4
        return outcome.counts["read ok"] > 20

    eventually(is_enough)


def test_readers_of_damaged_copies_ask_for_nothing_unverified(tmp_path: Path) -> None:
    """A range that is not verified may be delivered with its damage, which is no violation."""
    value = "w-1:100000"
    with throwaway_store() as client:
        client.create_bucket("data").put("r0/key", content(value), metadata={"value": value})
        [file] = [path for path in (Path(client.url.removeprefix("file://")) / "objects").rglob("*") if path.is_file()]
        for at in range(100, size_of(value), BLOCK_BYTES):  # behind the mark of each block
            flip_a_byte(file, at)
        recorder = Recorder(tmp_path / "history.jsonl")
        for kind in {kind for _, mix, _ in CLIENTS for kind, weight in mix.items() if weight} - {*WRITES}:
            reader = SoakClient(kind, client, "data", recorder, lambda: ["r0/key"], "1", {kind: 1})
            for _ in reader.run([kind] * 5):
                pass
        recorder.close()
    history = read_history([tmp_path / "history.jsonl"])
    assert any(one.arguments.get("verify") for one in history)
    torn = [found.text for found in check(history, Rules("regular")).violations if found.kind == "torn bytes"]
    assert torn == []


@pytest.mark.exhaustive
def test_a_remote_bucket_and_its_cloud_agree_after_faults_of_both() -> None:
    with throwaway_folder() as folder, RemoteSoak(folder, seed=1, say=print) as soak:
        outcome = soak.run(events=4, duration_s=100)
        assert_clean(outcome)
        assert outcome.events.total() == 4 and outcome.counts["put ok"] > 3 and outcome.counts["read ok"] > 20


def test_what_is_found_is_kept_and_found_again_in_what_was_kept() -> None:
    with throwaway_folder() as folder:
        for seed in range(2, 8):
            kept = folder / str(seed) / "round-000"
            assert_clean(EmbeddedSoak(kept.parent, seed=seed, say=print).run(lives=2, duration_s=100))
            there = [item[1] for one in read_history([kept / "end0.jsonl"]) for item in found_by(one) if item[1]]
            if there:  # on a busy machine two lives may be too short for anything to be left
                break
        value = str(there[0])
        # As if what is there in the end had never been put.
        for history in kept.glob("w*.jsonl"):
            history.write_text(history.read_text().replace(f'"{value}"', '"w-0:2000"'))
        verdict = judge_again(kept)
        assert {wrong.kind for wrong in verdict.violations} >= {"bytes of nobody"}
        assert any(value in path.read_text() for path in kept.glob("violation-*.txt"))


def found_by(one: Operation) -> list[list[str | None]]:
    return list(one.result["items"]) if one.kind == "read" else []


def test_a_node_stands_messages_of_every_kind() -> None:
    def is_enough() -> bool:
        """Not on a machine that stood still for all that time."""
        with throwaway_folder() as folder:
            outcome = fuzz(folder, seed=1, duration_s=8, say=print)
        assert_clean(outcome)
        return outcome.counts["call by client failed"] > 20 and outcome.errors["stranger: unauthenticated"] > 5

    eventually(is_enough)
