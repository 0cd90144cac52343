"""Object groups: actions on many objects that a list or a template names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ais_loader import errors
from ais_loader.objects.bucket import Bucket

from ..request import Response, check_prefix, name_of
from .copies import Copying, copied, places, require_apart, synchronized, target_named
from .jobs import JobOutcome, Stopping, answer_when_done
from .request import AISError, AisRequest

MAX_NAMES = 10_000_000
_GROUP = 1000
_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})(?:\.\.([0-9]{1,18}))?\}")


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of an action: a list of names, the names of a template, or all names with a prefix."""

    names: Callable[[], Iterator[str]] | None
    prefix: str = ""
    is_list: bool = False
    """Whether the client listed the names. A listed object that is missing is a failure; others are left out."""

    def of(self, bucket: Bucket) -> Iterator[str]:
        """Yield the names. Only those selected by a prefix certainly exist."""
        if self.names is not None:
            return self.names()
        return (info.name for info in bucket.objects(self.prefix))


def selection(request: AisRequest) -> Selection:
    """Return what a request selects. Raises Refusal."""
    value = request.value
    listed, template = value.get("objnames"), value.get("template")
    if listed:
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise AISError(400, "objnames: need a list of names")
        names = [name_of(name) for name in listed]
        return Selection(lambda: iter(names), is_list=True)
    if template is None and "objnames" in value:
        raise AISError(400, "objnames: need at least one name")
    if not isinstance(template, str):
        raise AISError(400, "need objnames or a template")
    if "{" not in template:
        return Selection(None, check_prefix(template))
    expanded = expand(template)
    return Selection(lambda: map(name_of, expanded()))


def expand(template: str) -> Callable[[], Iterator[str]]:
    """Return a function that yields the names of a template such as `a-{00..99..2}-b-{0..3}`, in order.

    Numbers have as many digits as the first of their range. Raises AISError for any other template, and for too many.
    """
    texts: list[str] = []
    numbers: list[tuple[range, int]] = []
    total, at = 1, 0
    for match in _RANGE.finditer(template):
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if first > last or not step:
            raise AISError(400, f"template {template[:200]!r}: need ranges from low to high")
        values = range(first, last + 1, step)
        total *= len(values)
        if total > MAX_NAMES:
            raise AISError(400, f"template {template[:200]!r}: more than {MAX_NAMES:,} names")
        texts.append(template[at : match.start()])
        numbers.append((values, len(match[1])))
        at = match.end()
    texts.append(template[at:])
    if any(brace in text for text in texts for brace in "{}"):
        raise AISError(400, f"template {template[:200]!r}: need ranges such as {{000..127}} or {{0..9..3}}")

    def names() -> Iterator[str]:
        for chosen in itertools.product(*(values for values, _ in numbers)):
            parts = [
                f"{text}{number:0{width}}" for text, number, (_, width) in zip(texts, chosen, numbers, strict=False)
            ]
            yield "".join((*parts, texts[-1]))

    return names


def delete_objects(request: AisRequest) -> Response:
    """Answer `delete-listrange`. Objects that are not there are no failures. Raises Refusal."""
    bucket, chosen = _bucket(request), selection(request)

    def action(stopping: Stopping) -> JobOutcome:
        return JobOutcome.of_results(bucket.iter_delete_many(stopping.until(chosen.of(bucket)), on_error="yield"))

    return answer_when_done(request.recent_jobs, request.action, action)


def copy_objects(request: AisRequest) -> Response:
    """Answer `copy-listrange`. Raises Refusal."""
    bucket, chosen, copying = _bucket(request), selection(request), Copying.of(request)
    to = places(request, *target_named(request), create=not copying.is_dry)
    if chosen.names is None:
        require_apart(bucket, to, chosen.prefix, copying)

    def action(stopping: Stopping) -> JobOutcome:
        names = stopping.until(chosen.of(bucket))
        outcome = copied(bucket, to, names, copying, missing_fails=chosen.is_list and not copying.goes_on)
        if chosen.is_list:  # as in AIStore, only what a template selects is synchronized
            return outcome
        if chosen.names is None:
            return synchronized(outcome, bucket, to, replace(copying, prefix=chosen.prefix), stopping)
        return synchronized(outcome, bucket, to, copying, stopping, chosen.names())

    return answer_when_done(request.recent_jobs, request.action, action)


def prefetch_objects(request: AisRequest) -> Response:
    """Answer `prefetch-listrange`: remote objects are stored before they are read. Raises Refusal."""
    bucket, chosen = _remote(request), selection(request)

    def action(stopping: Stopping) -> JobOutcome:
        names = None if chosen.names is None else stopping.until(chosen.names())
        summary = bucket.warm(names, prefix=chosen.prefix, on_error="return", progress=lambda _: stopping.check())
        failures = [
            one.error for one in summary.failures if chosen.is_list or not isinstance(one.error, errors.ObjectNotFound)
        ]
        return JobOutcome.of(summary.warmed, summary.size_bytes, next(iter(failures), None))

    return answer_when_done(request.recent_jobs, request.action, action)


def evict_objects(request: AisRequest) -> Response:
    """Answer `evict-listrange`: stored copies of remote objects are removed. Raises Refusal."""
    bucket, chosen = _remote(request), selection(request)

    def action(stopping: Stopping) -> JobOutcome:
        names = None if chosen.names is None else stopping.until(chosen.names())
        summary = bucket.evict(names, prefix=chosen.prefix)
        return JobOutcome(summary.copies, summary.size_bytes)

    return answer_when_done(request.recent_jobs, request.action, action)


def evict_bucket(request: AisRequest) -> Response:
    """Answer `evict-remote-bck`. The bucket itself stays, whatever `keep_bck_md` says: it has no other description.

    Raises Refusal.
    """
    _remote(request).evict()
    return Response()


def _bucket(request: AisRequest) -> Bucket:
    return request.named_bucket(request.bucket, request.provider, must_exist=True)


def _remote(request: AisRequest) -> Bucket:
    bucket = _bucket(request)
    if bucket.info().remote is None:
        raise AISError(400, f"{request.bucket_url}: {request.action} is for remote buckets")
    return bucket
