"""Jobs: actions that have ended when the gateway answers, jobs of the store, and lists of both.

AIStore answers an action with the id of a job, and clients ask whether it has ended. The gateway answers when the
action has ended, and its id says how, so that every gateway can tell. While a long action runs, the answer arrives in
pieces, and a client that leaves ends it. Jobs that transform a bucket belong to the store, and go on by themselves.
Lists of jobs show the store's, and those of this process that run or have just ended.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from ais_loader import errors
from ais_loader.transforms.transform_job import TransformJob
from ais_loader.values.entry import ObjectInfo

from ..listing import stamp
from ..request import Response
from .cluster import TARGET
from .recent_jobs import RecentJob, RecentJobs, Stopped
from .request import AISError, AisRequest, json_response, text_of, text_response, unsupported

Thing = TypeVar("Thing")
_AT_ONCE_S = 1.0
"""An action that ends within this time has its errors told by a status."""
_ALIVE_S = 5.0
"""The time between two pieces of a longer answer. The SDK gives up after 20 seconds of silence."""
_MARK = "g"
_MAX_ID = 200
"""Longest id of the gateway, without the filler that a long action puts in front."""
_FILLER = "0"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_KINDS = (
    *("copy-bck", "move-bck", "delete-listrange", "copy-listrange", "archive", "prefetch-listrange"),
    *("evict-listrange", "promote", "lru", "cleanup-store"),
)
"""Kinds of actions. An id contains the place of its kind here, so new kinds are appended."""
_BY_ITSELF = {
    "lru": "lru",
    "cleanup": "cleanup-store",
    "cleanup-store": "cleanup-store",
    "store-cleanup": "cleanup-store",
}
"""Jobs that a client may start, and that the store does all the time."""
_NEVER = "0001-01-01T00:00:00Z"
ETL_BUCKET, ETL_OBJECTS = "etl-bck", "etl-listrange"
_MARKED = re.compile(rf"(?:{ETL_BUCKET}|{ETL_OBJECTS})-([0-9a-f]{{8}}-)[0-9a-f]{{8}}\Z")
GET_BATCH = "get-batch"
_IDLING = frozenset(("copy-listrange", "archive", GET_BATCH))
"""Kinds that AIStore lists as running for a while after their work, as idle jobs, and that clients expect there."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The end of an action."""

    objects: int = 0
    size_bytes: int = 0
    error: str = ""
    """Name of the class of the first error; "" if all went well."""

    @classmethod
    def of(cls, objects: int, size_bytes: int, error: BaseException | None) -> JobOutcome:
        return cls(objects, size_bytes, "" if error is None else type(error).__name__)

    @classmethod
    def of_results(
        cls, results: Iterable[ObjectInfo | str | errors.LoaderError | None], *, missing_fails: bool = False
    ) -> JobOutcome:
        """Count what was done to many objects; None stands for nothing to do, and a missing object fails at will."""
        done, size_bytes, failure = 0, 0, None
        for result in results:
            if not isinstance(result, errors.LoaderError):
                done += result is not None
                size_bytes += result.size_bytes if isinstance(result, ObjectInfo) else 0
            elif missing_fails or not isinstance(result, errors.ObjectNotFound):
                failure = failure or result
        return cls.of(done, size_bytes, failure)

    @property
    def ending(self) -> str:
        """The error as a job's status tells it."""
        return f"ended with {self.error}" if self.error else ""


class Stopping:
    """Tells an action that it is to end."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def stop(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raise Stopped if the action is to end."""
        if self._event.is_set():
            raise Stopped

    def until(self, items: Iterable[Thing]) -> Iterator[Thing]:
        """Yield the items. Raises Stopped once the action is to end."""
        for item in items:
            self.check()
            yield item


def answer_when_done(jobs: RecentJobs, kind: str, action: Callable[[Stopping], JobOutcome]) -> Response:
    """Run an action, and answer with an id that says how it ended. Raises what the action raises, if it does so soon.

    Args:
        jobs: Those of the client that asks for the action, which may list and stop it.
        action: A function that calls `check` of its argument again and again.
    """
    done: Future[str] = Future()
    stopping = Stopping()
    job = jobs.begin(kind, stopping.stop)

    def work() -> None:
        failure: Exception | None = None
        try:
            outcome = action(stopping)
        except Stopped as error:
            outcome = JobOutcome.of(0, 0, error)
        except Exception as error:  # noqa: BLE001 - raised where the answer is made
            failure, outcome = error, JobOutcome.of(0, 0, error)
        id = _id(kind, job.began_ms, outcome)
        job.end(outcome.objects, outcome.size_bytes, outcome.ending, id)
        if failure is None:
            done.set_result(id)
        else:
            done.set_exception(failure)

    threading.Thread(target=work, daemon=True, name="gateway-job").start()
    wait([done], _AT_ONCE_S)
    if done.done():
        return text_response(done.result())
    return Response(headers={"content-type": "text/plain; charset=utf-8"}, body=_AnswerPieces(job, done, stopping))


class _AnswerPieces:
    """An id in pieces: zeros, which mean nothing, while the action runs, and then the id itself.

    The action is told to end when this is closed or dropped, even if no piece has been read.
    """

    def __init__(self, job: RecentJob, done: Future[str], stopping: Stopping) -> None:
        self._job, self._stopping = job, stopping
        self._done: Future[str] | None = done
        self._fillers = ""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._done is None:
            raise StopIteration
        if not wait([self._done], _ALIVE_S).done:
            self._fillers += _FILLER
            return _FILLER.encode()
        error, self._done = self._done.exception(), None
        if error is not None and not isinstance(error, errors.LoaderError):
            raise error
        rest = self._job.id.encode()
        self._job.id = self._fillers + self._job.id  # as the client has it
        return rest

    def close(self) -> None:
        self._stopping.stop()

    def __del__(self) -> None:
        self._stopping.stop()


def _id(kind: str, began_ms: int, outcome: JobOutcome) -> str:
    ended_ms = max(began_ms, time.time_ns() // 1_000_000)
    numbers = (ended_ms, ended_ms - began_ms, outcome.objects, outcome.size_bytes, secrets.randbelow(36**2))
    parts = [f"{_MARK}{_DIGITS[_KINDS.index(kind)]}{_in_36(numbers[0])}", *map(_in_36, numbers[1:])]
    return "-".join([*parts, outcome.error] if outcome.error else parts)


def _in_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


@dataclass(frozen=True, slots=True)
class AisJob:
    """A job as clients see it."""

    id: str
    kind: str
    began_ms: int
    """In milliseconds since the epoch. 0: not known."""
    ended_ms: int
    """0: it runs."""
    objects: int
    size_bytes: int
    error: str
    is_stopped: bool = False
    is_listed_as_running: bool = False

    @property
    def status(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "uuid": self.id,
            "err": self.error,
            "end_time": self.ended_ms * 1_000_000,
            "aborted": self.is_stopped,
        }

    @property
    def snapshot(self) -> dict[str, Any]:
        done = {"objs": str(self.objects), "bytes": str(self.size_bytes)}
        return {
            "id": self.id,
            "kind": self.kind,
            "start-time": _time(self.began_ms),
            "end-time": _time(self.ended_ms),
            "bck": {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}},
            "stats": {
                **{f"loc-{name}": value for name, value in done.items()},
                **{f"{way}-{name}": "0" for way in ("out", "in") for name in done},
            },
            "aborted": self.is_stopped,
            "is_idle": bool(self.ended_ms),
            "abort-err": self.error,
            "err": self.error,
            "ctlmsg": "",
            "glob.id": "0",
        }


def _time(at_ms: int) -> str:
    return stamp(at_ms * 1_000_000) if at_ms else _NEVER


def _of_id(text: str) -> AisJob | None:
    """Return the job that an id of the gateway describes."""
    id = text.lstrip(_FILLER)
    numbers = id.split("-")
    if not 5 <= len(numbers) <= 6 or not id.startswith(_MARK) or len(numbers[0]) < 3 or len(id) > _MAX_ID:
        return None
    try:
        kind = _KINDS[int(numbers[0][1], 36)]
        ended_ms, took_ms, objects, size_bytes, _ = (int(number, 36) for number in (numbers[0][2:], *numbers[1:5]))
        _time(ended_ms)
    except (ValueError, IndexError, OverflowError, OSError):
        return None
    error = numbers[5] if len(numbers) == 6 else ""
    ending = JobOutcome(error=error).ending
    return AisJob(
        *(text, kind, max(1, ended_ms - took_ms), max(1, ended_ms), objects, size_bytes, ending),
        is_stopped=error == Stopped.__name__,
    )


def _of_process(job: RecentJob) -> AisJob:
    error = "stopped" if job.is_stopped else job.error
    return AisJob(
        *(job.id, job.kind, job.began_ms, job.ended_ms, job.objects, job.size_bytes, error),
        is_stopped=job.is_stopped,
        is_listed_as_running=not job.ended_ms or (job.kind in _IDLING and not job.is_stopped),
    )


def new_store_job(request: AisRequest, kind: str) -> str:
    """Return the name of a new job of the store, with a mark of the access key that may list and stop it."""
    return f"{kind}-{_mark(request)}{secrets.token_hex(4)}"


def _mark(request: AisRequest) -> str:
    key = request.access_key
    return f"{hashlib.sha256(key.encode()).hexdigest()[:8]}-" if key else ""


def _is_of_another(request: AisRequest, name: str) -> bool:
    """Whether a job of the store is that of another access key. Nodes cannot tell keys apart that have no tokens."""
    found = _MARKED.match(name)
    return found is not None and _mark(request) not in ("", found[1])


def store_job(request: AisRequest, name: str) -> TransformJob:
    """Return a job of the store. Raises JobNotFound, also for one of another access key."""
    if _is_of_another(request, name):
        raise errors.JobNotFound(f"there is no job {name!r}")
    return request.client.etl.job(name)


def _store_jobs(request: AisRequest) -> list[TransformJob]:
    return [job for job in request.client.etl.jobs() if not _is_of_another(request, job.name)]


def _of_store(job: TransformJob) -> AisJob:
    counts = job.counts
    kind = ETL_OBJECTS if job.name.startswith(f"{ETL_OBJECTS}-") else ETL_BUCKET
    is_stopped = job.state == "stopped"
    error = job.problem
    if not error and job.state == "done" and counts.failed and not job.inspect:
        error = f"{counts.failed:,} of {counts.seen:,} objects could not be transformed"
    if is_stopped:
        error = "stopped"
    ended_ms = 0 if job.state == "running" else time.time_ns() // 1_000_000
    return AisJob(
        *(job.name, kind, 0, ended_ms, counts.transformed, counts.output_bytes, error),
        is_stopped=is_stopped,
        is_listed_as_running=not ended_ms,
    )


# -- calls


def _asked(request: AisRequest) -> tuple[str, str, bool]:
    """Return the id and the kind that a request names, and whether it asks for running jobs only."""
    fields = request.json if isinstance(request.json, dict) else {}
    if isinstance(fields.get("value"), dict):
        fields = fields["value"]
    lower = {str(name).lower(): value for name, value in fields.items()}
    id = text_of(lower, "id") or request.query.get("uuid", "")
    return id, text_of(lower, "kind"), lower.get("show_active") is True


def _found(request: AisRequest, id: str, kind: str) -> AisJob:
    """Return a job. Raises AISError if there is none."""
    job = _of_id(id)
    if job is not None:
        return job
    if (recent := request.recent_jobs.find(id)) is not None:
        return _of_process(recent)
    try:
        return _of_store(store_job(request, id))
    except errors.JobNotFound:
        raise AISError(404, f"job {kind}[{id[:100]}] does not exist") from None


def _known(request: AisRequest) -> list[AisJob]:
    """Return the jobs that a request asks for by their kind: those of the store, and the client's in this process."""
    _, kind, _ = _asked(request)
    jobs = [_of_store(job) for job in _store_jobs(request)]
    jobs += [_of_process(job) for job in request.recent_jobs.all()]
    return [job for job in jobs if kind in ("", job.kind)]


def _active(request: AisRequest) -> list[AisJob]:
    """Return the known jobs, without those that have ended if the request says so."""
    is_active = _asked(request)[2]
    return [job for job in _known(request) if not (is_active and job.ended_ms)]


def status(request: AisRequest) -> Response:
    """Answer `what=status`, about one job. Raises AISError if there is no such job."""
    id, kind, _ = _asked(request)
    if not id:
        raise AISError(400, "need the id of a job")
    return json_response(_found(request, id, kind).status)


def snapshots(request: AisRequest) -> Response:
    """Answer `what=qryxstats`, about one job or all of a kind. Raises AISError if there is no such job."""
    id, kind, _ = _asked(request)
    if not id:
        found = [job.snapshot for job in _active(request)]
        return json_response({TARGET: found} if found else {})
    return json_response({TARGET: [_found(request, id, kind).snapshot]})


def statuses(request: AisRequest) -> Response:
    """Answer `what=status_all`."""
    return json_response([job.status for job in _active(request)])


def running(request: AisRequest) -> Response:
    """Answer `what=running_all`. As in AIStore, jobs of some kinds stay in this list for a while, as idle ones."""
    return json_response([f"{job.kind}[{job.id}]" for job in _known(request) if job.is_listed_as_running])


def start(request: AisRequest) -> Response:
    """Answer `start`. Raises AISError for a kind that has no meaning here."""
    _, kind, _ = _asked(request)
    if kind not in _BY_ITSELF:
        raise unsupported(f'job "{kind[:40]}"')
    return answer_when_done(request.recent_jobs, _BY_ITSELF[kind], lambda _: JobOutcome())


def stop(request: AisRequest) -> Response:
    """Answer `stop`, of one job or all of a kind. What an action has done stays. Raises AISError for an unknown job."""
    id, kind, _ = _asked(request)
    if not id:
        for recent in request.recent_jobs.all():
            if recent.kind == kind and not recent.ended_ms:
                recent.stop()
        if kind not in (ETL_BUCKET, ETL_OBJECTS):
            return Response()
    if _of_id(id) is not None:  # it has ended
        return Response()
    if (found := request.recent_jobs.find(id)) is not None:
        found.stop()
        return Response()
    try:
        jobs = [store_job(request, id)] if id else _store_jobs(request)
    except errors.JobNotFound:
        raise AISError(400, f"job {kind}[{id[:100]}] does not exist") from None
    for job in jobs:
        if job.state == "running" and (id or _of_store(job).kind == kind):
            job.stop()
    return Response()
