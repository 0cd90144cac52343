"""Prefetcher: fetches the cold objects that loaders will read next, in the order in which they need them.

Its fetches are those of readers: whoever wants the object meanwhile joins the fetch, which becomes urgent. A fetch that
fails is not repeated: the reader that comes later gets the error in its place. After a failure, the bucket is left
alone for a while.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from ais_loader.errors import InvalidRequest, LoaderError, NotFound
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_remote_pb2 as pb
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.call_slots import current_tenant
from storage_node.limits.single_flight import Urgency, current_urgency
from storage_node.limits.tasks import keep_going
from storage_node.remote.ahead.plans import Expected, PlannedKey, Plans
from storage_node.remote.tier import RemoteTier
from storage_node.store.names import object_name_fault

LOADER_ID_BYTES = 16
MAX_KEYS = 10_000
"""Maximum number of names, and of steps, in one request."""
MAX_LIFETIME_S = 600.0
PAUSE = Backoff(1.0, 60.0, jitter=0.5)
"""Pauses of a bucket after fetches have failed."""
_TOGETHER = 64
"""Number of objects that are looked up together."""


class Prefetcher:
    """
    Args:
        requests: Maximum number of objects that are fetched at once. 0: nothing is fetched ahead.
    """

    def __init__(self, tier: RemoteTier, requests: int, plans: Plans) -> None:
        self._tier = tier
        self._requests = requests
        self.plans = plans
        self._slots = asyncio.Semaphore(max(1, requests))
        self._changed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._fetches: set[asyncio.Task[None]] = set()
        self._failures: dict[bytes, int] = {}
        """Failures in a row, by bucket."""
        self._paused: set[bytes] = set()
        """Uuids of buckets that are left alone now."""
        self._expiry: asyncio.TimerHandle | None = None
        self._passes: dict[bytes, dict[bytes, int]] = {}
        """For each loader, the number of its pass over each bucket."""

    def expect(self, request: pb.ExpectRequest) -> pb.ExpectResponse:
        """Take a loader's window, for the current tenant.

        Raises InvalidRequest, BucketNotFound, Overloaded. Names that no object can have are ignored.
        """
        if len(request.loader) != LOADER_ID_BYTES:
            raise InvalidRequest(f"expect: a loader's id of {len(request.loader)} bytes: need {LOADER_ID_BYTES}")
        if request.done:
            self.plans.forget(request.loader, request.position)
            self._note_passed()
            for bucket_uuid, number in self._passes.pop(request.loader, {}).items():
                self._tier.space.end_pass(bucket_uuid, number)
            return pb.ExpectResponse()
        lifetime_s = request.lifetime_ms / 1000
        if not 0 < lifetime_s <= MAX_LIFETIME_S:
            raise InvalidRequest(
                f"expect: a lifetime of {lifetime_s:g} s: need more than 0, at most {MAX_LIFETIME_S:g}"
            )
        names, steps = sum(len(step.name) for step in request.step), len(request.step)
        if max(names, steps) > MAX_KEYS:
            raise InvalidRequest(
                f"expect: {names:,} names in {steps:,} steps: at most {MAX_KEYS:,} of each in a message"
            )
        buckets = [self._tier.buckets.require(bucket) for bucket in request.bucket]
        is_known = self.plans.expect(
            request.loader,
            request.position,
            request.first_step,
            [_keys(step, buckets) for step in request.step],
            tenant=current_tenant.get(),
            lifetime_s=lifetime_s,
            now_s=asyncio.get_running_loop().time(),
        )
        self._note_passed()
        passes = self._passes.setdefault(request.loader, {})
        for bucket in buckets:
            if bucket.uuid not in passes:
                passes[bucket.uuid] = self._tier.space.begin_pass(bucket)
        self._set_expiry()
        if self._requests and self._runner is None:
            self._runner = asyncio.create_task(keep_going("prefetching", self._run), name="prefetching")
        self._changed.set()
        return pb.ExpectResponse(incomplete=not is_known)

    def _note_passed(self) -> None:
        for key in self.plans.take_passed():
            self._tier.space.note_passed(key.bucket_uuid, key.name)

    def _set_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        at_s = self.plans.next_expiry_s
        if at_s is not None:
            self._expiry = asyncio.get_running_loop().call_at(at_s, self._expire)

    def _expire(self) -> None:
        self.plans.expire(asyncio.get_running_loop().time())
        self._passes = {loader: passes for loader, passes in self._passes.items() if self.plans.knows(loader)}
        self._set_expiry()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            taken = self.plans.take(_TOGETHER, self._paused)
            if not taken:
                await self._changed.wait()
            for expected, bucket, version in await self._cold(taken):
                await self._slots.acquire()
                if self.plans.needed_at(bucket.uuid, expected.key.name) is None:
                    self._slots.release()  # its loader is done, or is past it
                    continue
                task = asyncio.create_task(self._fetch(expected, bucket, version))
                self._fetches.add(task)
                task.add_done_callback(self._fetches.discard)

    async def _cold(self, taken: Sequence[Expected]) -> list[tuple[Expected, RemoteBucket, str]]:
        """Return those objects that have to be fetched or validated: bucket, and the version of a copy."""
        wanted = []
        for expected in taken:
            bucket = self._tier.buckets.find(expected.key.bucket)
            if bucket is not None and bucket.uuid == expected.key.bucket_uuid:
                wanted.append((expected, bucket))
        versions = await self._tier.copies.versions_to_fetch(
            [(bucket, expected.key.name) for expected, bucket in wanted]
        )
        return [
            (expected, bucket, version)
            for (expected, bucket), version in zip(wanted, versions, strict=True)
            if version is not None
        ]

    async def _fetch(self, expected: Expected, bucket: RemoteBucket, version: str) -> None:
        current_tenant.set(expected.tenant)
        current_urgency.set(Urgency(False))
        try:
            await self._tier.fetches.ahead(bucket, expected.key.name, version)
            self._failures.pop(bucket.uuid, None)
        except NotFound:
            pass
        except LoaderError:
            self._pause(bucket.uuid)
        finally:
            self._slots.release()

    def _pause(self, bucket_uuid: bytes) -> None:
        if bucket_uuid in self._paused:
            return  # a fetch that began before
        failures = self._failures.get(bucket_uuid, 0)
        self._failures[bucket_uuid] = failures + 1
        self._paused.add(bucket_uuid)
        asyncio.get_running_loop().call_later(PAUSE.pause_s(failures), self._resume, bucket_uuid)

    def _resume(self, bucket_uuid: bytes) -> None:
        self._paused.discard(bucket_uuid)
        self._changed.set()

    async def close(self) -> None:
        """End what is in progress."""
        if self._expiry is not None:
            self._expiry.cancel()
        tasks = [*self._fetches, *([] if self._runner is None else [self._runner])]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _keys(step: pb.ExpectedStep, buckets: Sequence[RemoteBucket]) -> list[PlannedKey]:
    """Raises InvalidRequest."""
    if step.bucket_index and len(step.bucket_index) != len(step.name):
        raise InvalidRequest(f"expect: {len(step.name):,} names with {len(step.bucket_index):,} indices of buckets")
    if step.name and max(step.bucket_index, default=0) >= len(buckets):
        raise InvalidRequest(f"expect: bucket_index {max(step.bucket_index, default=0)} of {len(buckets)} buckets")
    keys = []
    for at, name in enumerate(step.name):
        if object_name_fault(name) is None:
            bucket = buckets[step.bucket_index[at] if step.bucket_index else 0]
            keys.append(PlannedKey(bucket.uuid, bucket.name, name))
    return keys
