"""Jobs of this process for lists of jobs: those that run, and those that ended within the last minute.

The lists tell what this process does, as its metrics do. No answer about a job whose id a client got from an action
depends on them. A client sees and stops only its own jobs.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from ais_loader.objects.client import Client

LISTED_S = 60.0
"""How long a job stays in the lists after its end."""
_MAX_ENDED = 1000
"""Ended jobs of a client that are kept at most."""


class Stopped(Exception):
    """The action is to end: the client has left, or has stopped the job."""


class RecentJob:
    """A job that runs or has just ended."""

    def __init__(self, kind: str, stop: Callable[[], None]) -> None:
        """`stop` is called from any thread to end the job soon."""
        self.id = f"r{secrets.token_hex(8)}"
        self.kind = kind
        self.began_ms = time.time_ns() // 1_000_000
        self.ended_ms = 0
        """0: it runs."""
        self.objects = 0
        self.size_bytes = 0
        self.error = ""
        self.is_stopped = False
        self._stop = stop

    def end(self, objects: int, size_bytes: int, error: str = "", id: str = "") -> None:
        """Say how the job ended. Only the first call counts.

        Args:
            id: The id that the client gets for the job, if that is another one.
        """
        if not self.ended_ms:
            self.objects, self.size_bytes, self.error = objects, size_bytes, error
            self.id = id or self.id
            self.ended_ms = max(self.began_ms, time.time_ns() // 1_000_000)

    def stop(self) -> None:
        """End the job. One that has ended already is marked as stopped as long as it is listed."""
        self.is_stopped = True
        self._stop()


class RecentJobs:
    """The jobs of one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[RecentJob] = []  # guarded by _lock

    def begin(self, kind: str, stop: Callable[[], None]) -> RecentJob:
        """List a job that begins."""
        job = RecentJob(kind, stop)
        with self._lock:
            if len(self._jobs) >= _MAX_ENDED:
                self._forget()
            self._jobs.append(job)
        return job

    def all(self) -> list[RecentJob]:
        """Return the jobs in the order in which they began."""
        with self._lock:
            self._forget()
            return list(self._jobs)

    def find(self, id: str) -> RecentJob | None:
        """Return the job with an id."""
        return next((job for job in self.all() if job.id == id), None)

    def _forget(self) -> None:
        since_ms = time.time_ns() // 1_000_000 - int(LISTED_S * 1000)
        ended = [job for job in self._jobs if job.ended_ms]
        dropped = {id(job) for job in ended[: max(0, len(ended) - _MAX_ENDED // 2)]}
        dropped |= {id(job) for job in ended if job.ended_ms < since_ms}
        self._jobs = [job for job in self._jobs if id(job) not in dropped]


_OF_CLIENTS: WeakKeyDictionary[Client, dict[str, RecentJobs]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def recent_jobs(client: Client, access_key: str = "") -> RecentJobs:
    """Return the jobs that this process does, or has just done, for a client and one of the keys that share it."""
    with _LOCK:
        return _OF_CLIENTS.setdefault(client, {}).setdefault(access_key, RecentJobs())
