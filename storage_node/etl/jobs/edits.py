"""Edits of the list of jobs in a cluster's map or in a store's own record. Pure functions.

A new job replaces one of the same name that has ended. Of the jobs that have ended, the latest are kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ais_loader.errors import InvalidRequest, JobNotFound, TransformExists
from ais_loader.wire.generated import ais_etl_pb2 as pb

MAX_RUNNING = 32
ENDED_KEPT = 32


def started(jobs: Sequence[pb.TransformJob], job: pb.TransformJob) -> list[pb.TransformJob]:
    """Add a job. Raises TransformExists while one of the same name runs, InvalidRequest if too many jobs run."""
    if any(other.uuid == job.uuid for other in jobs):
        return list(jobs)
    left = [other for other in jobs if other.name != job.name or other.state == pb.TransformJob.RUNNING]
    running = [other for other in left if other.state == pb.TransformJob.RUNNING]
    if any(other.name == job.name for other in running):
        raise TransformExists(f"job {job.name!r} is running: wait for it, stop it, or choose another name")
    if len(running) >= MAX_RUNNING:
        raise InvalidRequest(f"{len(running)} jobs are running, as many as may be: wait for one of them")
    ended = [other.uuid for other in left if other.state != pb.TransformJob.RUNNING]
    dropped = set(ended[: max(0, len(ended) - ENDED_KEPT + 1)])
    return [other for other in left if other.uuid not in dropped] + [job]


def ended(
    jobs: Sequence[pb.TransformJob],
    job_uuid: bytes,
    state: pb.TransformJob.State,
    problem: str,
    counts: pb.JobCounts,
) -> list[pb.TransformJob]:
    """Record the end of a job. No change if it has already ended or is unknown."""
    found = []
    for job in jobs:
        if job.uuid == job_uuid and job.state == pb.TransformJob.RUNNING:
            known, job = job, pb.TransformJob()
            job.CopyFrom(known)
            job.state, job.problem, job.ended_ns = state, problem[:1000], time.time_ns()
            job.counts.CopyFrom(counts)
            del job.object[:]  # a long list is no longer needed
            job.ClearField("token")
        found.append(job)
    return found


def deleted(jobs: Sequence[pb.TransformJob], name: str) -> list[pb.TransformJob]:
    """Remove a job. Raises JobNotFound; InvalidRequest while it runs."""
    found = next((job for job in jobs if job.name == name), None)
    if found is None:
        raise JobNotFound(f"there is no job {name!r}")
    if found.state == pb.TransformJob.RUNNING:
        raise InvalidRequest(f"job {name!r} is running: stop it first")
    return [job for job in jobs if job.name != name]
