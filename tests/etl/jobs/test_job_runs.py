"""Runs of jobs over one store: each source version once, one result each, failures by name, restarts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from job_kit import OneStore, ended, job_of

from ais_loader.errors import (
    BucketNotFound,
    InvalidRequest,
    JobNotFound,
    NodeUnavailable,
    TransformExists,
    TransformFailed,
    TransformNotFound,
)
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.jobs import manager as manager_module
from storage_node.etl.jobs.job_store import OwnStore
from storage_node.etl.jobs.manager import JobManager
from storage_node.etl.jobs.shares import Division
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Origin
from tests.node.loop_kit import until

DONE, STOPPED, FAILED = pb.TransformJob.DONE, pb.TransformJob.STOPPED, pb.TransformJob.FAILED
NAMES = {f"d/{at:04d}.txt": b"text %d" % at for at in range(300)}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneStore]:
    made = OneStore(tmp_path)
    yield made
    made.store.close()


def results(sources: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data.upper() for name, data in sources.items()}


def test_each_source_becomes_one_result_that_names_both_versions(one: OneStore) -> None:
    one.put("a", NAMES)
    info = one.run()
    assert (info.job.state, info.counts.seen, info.counts.transformed, info.counts.failed) == (DONE, 300, 300, 0)
    assert info.counts.input_bytes == info.counts.output_bytes == sum(map(len, NAMES.values()))
    assert one.contents("b") == results(NAMES)
    assert set(one.upper.runs.values()) == {1}
    metadata = one.metadata("b", "d/0001.txt")
    assert metadata["ais.etl-source"] == "a/d/0001.txt"
    assert metadata["ais.etl-source-version"] == str(one.store.head("a", "d/0001.txt").version)
    assert one.upper.version.hex() in metadata["ais.etl-stages"]


def test_what_happens_on_the_node_itself_is_seen_without_a_pause(
    one: OneStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses are longer than a run of the kit may take."""
    monkeypatch.setattr(manager_module, "SHORTEST_S", 60.0)
    monkeypatch.setattr(manager_module, "LONGEST_S", 60.0)
    one.put("a", NAMES)
    assert one.run().job.state == DONE

    def refuse(origin: Origin, data: bytes) -> bytes:
        raise TransformFailed("refused")

    one.upper.answer = refuse
    one.put("a", {"x": b"x"})
    assert one.run(continue_on_error=False).job.state == FAILED


def test_a_second_run_makes_only_what_has_changed(one: OneStore) -> None:
    one.put("a", NAMES)
    one.run()
    one.upper.runs.clear()
    one.put("a", {"d/0007.txt": b"other", "new": b"new"})
    info = one.run()
    assert (info.counts.transformed, info.counts.skipped) == (2, 299)
    assert sorted(name for name, _ in one.upper.runs) == ["d/0007.txt", "new"]
    assert one.contents("b") == results(NAMES | {"d/0007.txt": b"other", "new": b"new"})


def test_other_arguments_or_another_version_make_all_anew(one: OneStore) -> None:
    one.put("a", {"x": b"x"})
    one.run()
    one.run(stage=[pb.JobStage(name="upper", args='{"n":1}')])
    one.upper.version = b"v" * 16
    one.run(stage=[pb.JobStage(name="upper", args='{"n":1}')])
    assert sum(one.upper.runs.values()) == 3


def test_one_that_is_interrupted_goes_on_where_it_was(one: OneStore) -> None:
    one.put("a", NAMES)

    async def first() -> None:
        async with one.manager() as manager:
            await manager.start(pb.StartJobRequest(job=job_of(name="j", concurrency=1)))
            await until(lambda: len(one.contents("b")) >= 30, 0.01)

    async def second() -> pb.JobInfo:
        async with asyncio.timeout(180), one.manager() as manager:
            return await ended(manager, "j")

    asyncio.run(first())
    before = set(one.contents("b"))
    info = asyncio.run(second())
    assert (info.job.state, info.counts.transformed, info.counts.skipped) == (DONE, 300, 0)
    assert one.contents("b") == results(NAMES)
    assert {count for (name, _), count in one.upper.runs.items() if name in before} == {1}


def test_objects_that_fail_are_named_and_the_others_go_on(one: OneStore) -> None:
    one.put("a", {"bad": b"bad", "good": b"good"})
    one.upper.answer = fails_for("bad", TransformFailed("no such thing"))

    async def failures(manager: JobManager) -> None:
        await ended(manager, "j")
        found = await manager.failures("j")
        assert [(one.object, one.error.kind, one.error.message) for one in found.failure] == [
            ("bad", "transform-failed", "no such thing")
        ]
        assert not found.more

    info = one.run(failures, name="j")
    assert (info.job.state, info.counts.transformed, info.counts.failed) == (DONE, 1, 1)
    assert one.contents("b") == {"good": b"GOOD"}


def test_the_first_failure_ends_a_job_that_is_not_to_go_on(one: OneStore) -> None:
    one.put("a", {"bad": b"bad"})
    one.upper.answer = fails_for("bad", TransformFailed("no such thing"))
    info = one.run(continue_on_error=False)
    assert (info.job.state, info.job.problem) == (FAILED, "a/bad: no such thing")


def test_what_passes_is_tried_again(one: OneStore) -> None:
    one.put("a", {"x": b"x", "y": b"y"})
    times = iter([NodeUnavailable("not now")])

    def answer(origin: Origin, data: bytes) -> bytes:
        if origin.name == "x" and (error := next(times, None)):
            raise error
        return data.upper()

    one.upper.answer = answer
    info = one.run()
    assert (info.counts.seen, info.counts.transformed, info.counts.failed) == (2, 2, 0)
    assert one.contents("b") == {"x": b"X", "y": b"Y"}


def test_an_inspection_runs_all_and_writes_nothing(one: OneStore) -> None:
    one.put("a", {"bad": b"bad", "good": b"good"})
    one.upper.answer = fails_for("bad", TransformFailed("no"))
    info = one.run(inspect=True)
    assert (info.counts.transformed, info.counts.failed, one.contents("b")) == (1, 1, {})


def test_sources_whose_results_have_one_name_are_refused_but_for_the_first(one: OneStore) -> None:
    one.put("a", {"1.flac": b"flac", "1.wav": b"wav", "2.wav": b"two"})
    info = one.run(extension={"flac": "wav"})
    assert one.contents("b") == {"1.wav": b"FLAC", "2.wav": b"TWO"}
    assert (info.counts.transformed, info.counts.failed) == (2, 1)


def test_synchronizing_deletes_its_own_results_of_sources_that_are_gone_and_nothing_else(one: OneStore) -> None:
    one.put("a", {"x": b"x", "y": b"y"})
    one.put("b", {"mine": b"mine"})
    one.run()
    one.store.delete("a", "x")
    assert one.run().counts.deleted == 0
    info = one.run(synchronize=True)
    assert info.counts.deleted == 1
    assert one.contents("b") == {"y": b"Y", "mine": b"mine"}


def test_synchronizing_deletes_nothing_once_the_bucket_of_the_sources_is_not_known(
    one: OneStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a cluster says so for each name, when the bucket was deleted, or before it has heard of a new one."""
    one.put("a", {"x": b"x", "y": b"y"})
    one.run()
    heads, asked = OwnStore.heads, list[str]()

    async def unknown(store: OwnStore, bucket: str, names: Sequence[str]) -> list[Any]:
        asked.append(bucket)
        if bucket == "a":
            return [BucketNotFound("bucket 'a' does not exist") for _ in names]
        return await heads(store, bucket, names)

    monkeypatch.setattr(OwnStore, "heads", unknown)
    assert one.run(synchronize=True).counts.deleted == 0
    assert asked[-1] == "a" and one.contents("b") == {"x": b"X", "y": b"Y"}


def test_large_objects_pass_through_files(one: OneStore) -> None:
    data = b"ab" * (MAX_IN_MEMORY_BYTES // 2 + 1)
    one.put("a", {"large": data})
    one.run()
    assert one.contents("b") == {"large": data.upper()}


def test_names_that_are_listed_and_missing_are_failures(one: OneStore) -> None:
    one.put("a", {"x": b"x", "y": b"y"})
    info = one.run(object=["x", "gone"])
    assert (info.counts.transformed, info.counts.failed) == (1, 1)
    assert one.contents("b") == {"x": b"X"}


def test_a_job_that_is_stopped_keeps_what_is_done_and_another_goes_on(one: OneStore) -> None:
    one.put("a", NAMES)

    async def stop(manager: JobManager) -> None:
        await until(lambda: one.upper.runs, 0.01)
        assert (await manager.stop("j")).job.state == STOPPED

    info = one.run(stop, name="j", concurrency=1)
    assert info.job.state == STOPPED
    assert one.run(name="j").job.state == DONE
    assert one.contents("b") == results(NAMES)


def test_a_job_ends_when_its_transform_is_replaced(one: OneStore) -> None:
    one.put("a", {"x": b"x"})
    one.upper.answer = fails_for("x", NodeUnavailable("not now"))

    async def replace(manager: JobManager) -> None:
        one.upper.version = b"w" * 16

    info = one.run(replace)
    assert info.job.state == FAILED
    assert "was replaced" in info.job.problem


def test_jobs_that_make_no_sense_are_refused(one: OneStore) -> None:
    async def go() -> None:
        async with one.manager() as manager:
            for error, fields in (
                (InvalidRequest, {"to_bucket": "a"}),
                (InvalidRequest, {"stage": []}),
                (TransformNotFound, {"stage": [pb.JobStage(name="other")]}),
            ):
                with pytest.raises(error):
                    await manager.start(pb.StartJobRequest(job=pb.TransformJob(**{**_fields(), **fields})))
            await manager.start(pb.StartJobRequest(job=job_of(name="j")))
            with pytest.raises(TransformExists):
                await manager.start(pb.StartJobRequest(job=job_of(name="j")))
            with pytest.raises(JobNotFound):
                await manager.failures("other")
            assert [info.job.name for info in (await manager.list()).job] == ["j"]

    asyncio.run(go())


def _fields() -> dict[str, object]:
    return {"bucket": "a", "to_bucket": "b", "stage": [pb.JobStage(name="upper")]}


def test_a_single_object_is_copied_through_a_transform(one: OneStore) -> None:
    one.put("a", {"x": b"x"})

    async def go() -> pb.CopyObjectResponse:
        async with one.manager() as manager:
            request = pb.CopyObjectRequest(
                bucket="a", name="x", to_bucket="a", to_name="y", stage=[pb.JobStage(name="upper")]
            )
            return await manager.copy(request)

    info = asyncio.run(go()).info
    assert (info.name, info.size_bytes) == ("y", 1)
    assert one.contents("a") == {"x": b"x", "y": b"X"}
    assert one.metadata("a", "y")["ais.etl-source"] == "a/x"


def fails_for(name: str, error: Exception) -> Callable[[Origin, bytes], bytes]:
    def answer(origin: Origin, data: bytes) -> bytes:
        if origin.name == name:
            raise error
        return data.upper()

    return answer


def test_what_failed_for_a_node_that_left_the_division_is_tried_by_the_next_one(
    one: OneStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node dies: its answers are missing first, and three seconds later the others take its share."""
    one.put("a", {"x": b"x"})
    divisions = [Division()]
    monkeypatch.setattr(JobManager, "_division", lambda *_: divisions[-1])

    def answer(origin: Origin, data: bytes) -> bytes:
        if len(divisions) == 1:
            divisions.append(Division(without=(b"d" * 16,)))
            raise NodeUnavailable("not now")
        return data.upper()

    one.upper.answer = answer
    info = one.run(continue_on_error=False)
    assert (info.job.state, info.job.problem, info.counts.failed) == (DONE, "", 0)
    assert one.contents("b") == {"x": b"X"}
