"""Bucket of a measurement: created and filled once, marked, and reused by the next run.

A bucket holds any number of fills, each in a folder named after its content. The marker of a fill is written last. A
bucket without this command's marker holds other data, and is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterator

from ais_loader.bench.plan import BenchPlan
from ais_loader.errors import BucketExists, BucketNotFound, InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client

MARKER = ".ais-loader-bench"
WRITTEN = "written/"
"""Folder of the objects that a measurement puts; emptied after it."""
_MARKER_FIELDS = {"made_by": "ais-loader bench", "format": 1}

Filled = Callable[[int, int], None]
"""Callback, called with the number of objects created so far, and in total."""


# Content of the objects that a measurement reads and writes, determined by an object's number and size alone.
#
# All objects are cut from one pool of random bytes, at different positions. Generating and comparing them costs next to
# nothing compared with storing them, and one object's bytes are never mistaken for another's.

_POOL_BYTES = 1 << 22
_STEP = 4099
"""Odd, so that 4 Mi consecutive objects begin at different positions."""


@functools.cache
def _pool() -> memoryview:
    drawn = random.Random("ais-loader bench").randbytes(_POOL_BYTES)
    return memoryview(drawn + drawn)


def content(number: int, size_bytes: int) -> memoryview | bytes:
    """Return a view of the pool, or repetitions of it if it is too short."""
    start = number * _STEP % _POOL_BYTES
    if size_bytes <= _POOL_BYTES:
        return _pool()[start : start + size_bytes]
    whole = bytes(_pool()[start : start + _POOL_BYTES])
    return (whole * (size_bytes // _POOL_BYTES + 1))[:size_bytes]


def equal(data: bytes | memoryview, number: int, size_bytes: int, start: int = 0) -> bool:
    """Whether `data` equals the object's bytes from `start` on. The caller checks the length."""
    if start + len(data) > size_bytes:
        return False
    view = memoryview(data)
    for at in range(0, len(view), _POOL_BYTES):
        piece = view[at : at + _POOL_BYTES]
        if piece != content_at(number, start + at, len(piece)):
            return False
    return True


def content_at(number: int, start: int, length: int) -> memoryview:
    """Return at most 4 MiB of an object, from byte `start` on."""
    first = (number * _STEP + start) % _POOL_BYTES
    return _pool()[first : first + length]


def own_bucket(client: Client, name: str, copies: int = 1) -> Bucket:
    """Return the bucket of this name; create it if there is none. Raises InvalidRequest for a bucket of other data."""
    try:
        bucket = client.create_bucket(name, copies=copies)
    except BucketExists:
        bucket = client.bucket(name)
        check_own(bucket)
        if (stored := bucket.info().copies) != copies:
            raise InvalidRequest(
                f"bucket {name} was made with {stored} copies, and {copies} are asked for: name another with --bucket"
            ) from None
        return bucket
    try:
        bucket.put(MARKER, json.dumps(_MARKER_FIELDS).encode())
    except Exception:
        with contextlib.suppress(LoaderError):
            client.delete_bucket(name, force=True)  # without its marker, the next run would refuse it
        raise
    return bucket


def check_own(bucket: Bucket) -> None:
    try:
        fields = json.loads(bytes(bucket.get(MARKER)))
    except (ObjectNotFound, ValueError):
        fields = None
    if not isinstance(fields, dict) or fields.get("made_by") != _MARKER_FIELDS["made_by"]:
        raise InvalidRequest(
            f"bucket {bucket.name} was not made by `ais-loader bench`, and nothing in it is touched: name another with "
            "--bucket"
        )


def fill(bucket: Bucket, plan: BenchPlan, filled: Filled | None = None) -> bool:
    """Put the data that the plan reads, unless an earlier run did. Return whether anything was put."""
    if bucket.exists(_marker(plan)):
        return False
    done = 0
    each = plan.members if plan.workload == "members" else 1
    objects = _archives(plan) if plan.workload == "members" else _objects(plan)
    for _ in bucket.iter_put_many(objects):
        done = min(plan.objects, done + each)
        if filled is not None:
            filled(done, plan.objects)
    bucket.put(_marker(plan), json.dumps(plan.fill).encode())
    return True


def forget_written(bucket: Bucket) -> None:
    """Delete the objects that measurements have put."""
    bucket.delete_prefix(WRITTEN)


def remove(client: Client, name: str) -> int:
    """Delete the bucket with all fills; return the number of objects. Raises InvalidRequest for other data."""
    try:
        check_own(client.bucket(name))
    except BucketNotFound:
        return 0
    return client.delete_bucket(name, force=True)


def _marker(plan: BenchPlan) -> str:
    return f"{MARKER}.{plan.prefix.rstrip('/')}"


def _objects(plan: BenchPlan) -> Iterator[tuple[str, memoryview | bytes]]:
    sizes = plan.sizes
    for number in range(plan.objects):
        yield plan.name(number), content(number, sizes.of(number))


def _archives(plan: BenchPlan) -> Iterator[tuple[str, bytes]]:
    sizes = plan.sizes
    for first in range(0, plan.objects, plan.members):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            for number in range(first, min(first + plan.members, plan.objects)):
                size = sizes.of(number)
                member = tarfile.TarInfo(plan.archive(number)[1])
                member.size = size
                tar.addfile(member, io.BytesIO(content(number, size)))
        yield plan.archive(first)[0], made.getvalue()
