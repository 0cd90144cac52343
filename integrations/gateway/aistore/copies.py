"""Copies and renames of objects and buckets. Their bytes stay in the store."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.copy import each_copied, each_done
from ais_loader.objects.multipart import MultipartUpload
from ais_loader.transport.base import BucketInfo
from ais_loader.values.entry import ObjectInfo

from ..request import Response, check_prefix, name_of
from .jobs import JobOutcome, Stopping, answer_when_done
from .request import (
    AISError,
    AisRequest,
    bucket_not_found,
    check_bucket_name,
    flag_of,
    keeps_copies,
    provider_named,
    text_of,
)

_DELETE_TRIES = 5
_GROUP = 1000
_SETTINGS = ("copies", "min_copies", "quota_bytes", "quota_objects")
"""Settings of a bucket that its new name keeps."""
_RENAME_MARK = "unfinished rename of a bucket"
"""Name of the upload that marks the target of a rename."""
_RENAMED_FROM = "renamed-from"


@dataclass(frozen=True, slots=True)
class Copying:
    """The options of a copy of many objects."""

    prefix: str = ""
    """Only objects whose names begin so."""
    prepend: str = ""
    is_dry: bool = False
    """Nothing is stored."""
    goes_on: bool = False
    extensions: Mapping[str, str] | None = None
    """Extensions to replace, without dots."""
    synchronizes: bool = False
    """Objects that the source lacks are deleted at the target."""
    is_latest: bool = False
    """Objects of a remote source are fetched again."""

    @classmethod
    def of(cls, request: AisRequest) -> Copying:
        """Raises AISError."""
        value = request.value
        extensions = value.get("ext") or {}
        if not isinstance(extensions, dict) or not all(isinstance(to, str) for to in extensions.values()):
            raise AISError(400, "ext: need an object of extensions")
        stripped = {before.lstrip("."): after.lstrip(".") for before, after in extensions.items()}
        synchronizes = flag_of(value, "synchronize")
        if synchronizes and stripped:
            raise AISError(400, "synchronize and ext: use one of them")
        return cls(
            check_prefix(text_of(value, "prefix")),
            check_prefix(text_of(value, "prepend")),
            flag_of(value, "dry_run"),
            flag_of(value, "coer"),
            stripped or None,
            synchronizes=synchronizes,
            is_latest=flag_of(value, "latest-ver") or synchronizes,
        )

    def name(self, name: str) -> str:
        """Return the name of a copy."""
        for before, after in (self.extensions or {}).items():
            if name.endswith(f".{before}"):
                name = f"{name[: -len(before)]}{after}"
                break
        return self.prepend + name


def target_named(request: AisRequest) -> tuple[str, str]:
    """Return the name and the provider of the bucket that an action is to fill; "" for none. Raises AISError."""
    target = request.value.get("tobck") or {}
    if not isinstance(target, dict):
        raise AISError(400, "tobck: need a bucket")
    return text_of(target, "name"), text_of(target, "provider")


def places(request: AisRequest, name: str, provider: str, *, create: bool) -> Bucket:
    """Return the bucket that copies go to. One of AIStore's own is created. Raises Refusal."""
    check_bucket_name(name)
    provider = provider_named({"provider": provider})
    if create and provider == "ais":
        return request.client.create_bucket(name, exist_ok=True)
    return request.named_bucket(name, provider, must_exist=create)


def uname(text: str) -> tuple[str, str, str]:
    """Return provider, bucket and object of `PROVIDER/@UUID#NAMESPACE/BUCKET/OBJECT`. Raises Refusal."""
    parts = text.split("/", 3)
    if len(parts) < 3:
        raise AISError(400, f"{text[:200]!r}: need PROVIDER/@#/BUCKET/OBJECT")
    provider = provider_named({"provider": parts[0], "namespace": parts[1]})
    check_bucket_name(parts[2])
    return provider, parts[2], parts[3] if len(parts) > 3 else ""


def require_apart(source: Bucket, target: Bucket, prefix: str, copying: Copying) -> None:
    """Raise AISError if the copies of all objects with a prefix would themselves be listed, and copied again."""
    name = copying.prepend + prefix
    if source.name == target.name and copying.prepend and name.startswith(prefix) and not copying.is_dry:
        raise AISError(400, f"ais://{source.name}: copies below {name[:80]!r} in the same bucket would be copied again")


def copied(
    source: Bucket, target: Bucket, names: Iterable[str], copying: Copying, *, missing_fails: bool
) -> JobOutcome:
    """Copy objects by their names. One that fails does not stop the others. Raises retryable errors, Stopped."""
    drops_copies = copying.is_latest and keeps_copies(source)

    def one(name: str) -> ObjectInfo:
        if copying.is_dry:
            return source.head(name)
        if drops_copies:
            source.evict([name])
        return source.copy(name, copying.name(name), to_bucket=target.name)

    with closing(each_done(one, (name for name in names if name.startswith(copying.prefix)))) as results:
        return JobOutcome.of_results((result for _, result in results), missing_fails=missing_fails)


def copy_bucket(request: AisRequest) -> Response:
    """Answer `copy-bck`. Objects that are there already, with the same bytes, are left alone. Raises Refusal."""
    source, copying = request.named_bucket(request.bucket, request.provider, must_exist=True), Copying.of(request)
    provider, name, _ = uname(request.query.get("bck_to", ""))
    target = places(request, name, provider, create=not copying.is_dry)
    require_apart(source, target, copying.prefix, copying)

    def action(stopping: Stopping) -> JobOutcome:
        if copying.is_dry or copying.extensions or (copying.is_latest and keeps_copies(source)):
            names = (info.name for info in stopping.until(source.objects(copying.prefix)))
            outcome = copied(source, target, names, copying, missing_fails=False)
        else:
            to = copying.prepend + copying.prefix
            outcome = _all_copied(source, target, copying.prefix, to, stopping, remove=False)
        return synchronized(outcome, source, target, copying, stopping)

    return answer_when_done(request.recent_jobs, request.action, action)


def synchronized(
    outcome: JobOutcome,
    source: Bucket,
    target: Bucket,
    copying: Copying,
    stopping: Stopping,
    names: Iterable[str] | None = None,
) -> JobOutcome:
    """Delete the copies of objects that the source has no more, after a copy with `synchronize` that had no error.

    Args:
        outcome: The end of the copy, which is returned unless a deletion fails.
        names: The source's names that are compared; None for all with the prefix.
    """
    if not copying.synchronizes or copying.is_dry or outcome.error or source.name == target.name:
        return outcome
    surplus = _surplus(source, target, copying) if names is None else _missing(source, names, copying)
    deleted = JobOutcome.of_results(target.iter_delete_many(stopping.until(surplus), on_error="yield"))
    return replace(outcome, error=deleted.error)


def _surplus(source: Bucket, target: Bucket, copying: Copying) -> Iterator[str]:
    """Yield the target's names that are copies of nothing. Both lists are sorted, and so are read once."""
    wanted = (copying.name(info.name) for info in source.objects(copying.prefix))
    next_wanted = next(wanted, None)
    for info in target.objects(copying.prepend + copying.prefix):
        while next_wanted is not None and next_wanted < info.name:
            next_wanted = next(wanted, None)
        if next_wanted != info.name:
            yield info.name


def _missing(source: Bucket, names: Iterable[str], copying: Copying) -> Iterator[str]:
    """Yield the names of copies whose source is missing."""
    left = (name for name in names if name.startswith(copying.prefix))
    while group := list(itertools.islice(left, _GROUP)):
        for name, info in zip(group, source.head_many(group), strict=True):
            if info is None:
                yield copying.name(name)


def _all_copied(
    source: Bucket, target: Bucket, prefix: str, to: str, stopping: Stopping, *, remove: bool
) -> JobOutcome:
    with closing(each_copied(source._transport, source.name, prefix, target.name, to, remove=remove)) as results:
        return JobOutcome.of_results((result for _, result in stopping.until(results)), missing_fails=True)


def move_bucket(request: AisRequest) -> Response:
    """Answer `move-bck`: the objects are renamed one by one, and the empty bucket is deleted.

    An upload in the target marks a rename that has not ended, so that repeating the rename finishes it. Raises Refusal.
    """
    source = request.named_bucket(request.bucket, request.provider, must_exist=True)
    info = source.info()
    provider, name, _ = uname(request.query.get("bck_to", ""))
    if provider != "ais" or info.remote is not None:
        raise AISError(400, f"{request.bucket_url}: a remote bucket cannot be renamed")
    if name == source.name:
        raise AISError(400, f"{request.bucket_url}: need another name")
    if source.snapshots():
        raise AISError(409, f"{request.bucket_url}: the bucket has snapshots")
    target, mark = _target_of_rename(request, info, name)

    def action(stopping: Stopping) -> JobOutcome:
        done, size_bytes = 0, 0
        for last in range(_DELETE_TRIES, 0, -1):
            outcome = _all_copied(source, target, "", "", stopping, remove=True)
            done, size_bytes = done + outcome.objects, size_bytes + outcome.size_bytes
            if outcome.error:
                return JobOutcome(done, size_bytes, outcome.error)
            try:
                request.client.delete_bucket(source.name)
                break
            except errors.BucketNotEmpty:  # an object was stored meanwhile
                if last == 1:
                    raise
        mark.abort()
        return JobOutcome(done, size_bytes)

    return answer_when_done(request.recent_jobs, request.action, action)


def _target_of_rename(request: AisRequest, info: BucketInfo, name: str) -> tuple[Bucket, MultipartUpload]:
    """Return the bucket to which another is renamed, and the mark in it. Raises AISError for a bucket that is used.

    An empty bucket with the same settings is taken: it may have been made right before an interruption.
    """
    target = request.client.bucket(name)
    settings = {field: getattr(info, field) for field in _SETTINGS}
    try:
        request.client.create_bucket(name, **settings)
    except errors.BucketExists:
        mark = next((upload for upload in target.uploads() if upload.name == _RENAME_MARK), None)
        if mark is not None:
            upload = target.multipart(_RENAME_MARK, upload_id=mark.id)
            if upload.metadata.get(_RENAMED_FROM) == info.name:
                return target, upload
        found = target.info()
        is_same = found.remote is None and all(getattr(found, field) == settings[field] for field in _SETTINGS)
        if mark is not None or not is_same or next(iter(target), None) is not None:
            raise AISError(409, f'bucket "ais://{name}" already exists', "ErrBucketAlreadyExists") from None
    return target, target.multipart(_RENAME_MARK, metadata={_RENAMED_FROM: info.name})


def rename_object(request: AisRequest) -> Response:
    """Answer `rename-obj`. Raises Refusal."""
    to = request.json.get("name")
    if not isinstance(to, str) or not to:
        raise AISError(400, "name: need the new name")
    bucket = request.open_bucket()
    if bucket.info().remote is not None:
        raise AISError(400, f"{request.url}: an object of a remote bucket cannot be renamed")
    bucket.rename(request.name, name_of(to))
    return Response()


def copy_object(request: AisRequest) -> Response:
    """Answer `PUT ?object_to=`. Raises Refusal."""
    provider, name, key = uname(request.query["object_to"])
    source, target = request.open_bucket(), request.named_bucket(name, provider)
    is_latest = any(request.query.get(flag, "").lower() == "true" for flag in ("latest-ver", "synchronize"))
    try:
        if is_latest and keeps_copies(source):
            source.evict([request.name])
        source.copy(request.name, name_of(key or request.key), to_bucket=target.name)
    except errors.BucketNotFound:
        request.named_bucket(request.bucket, request.provider, must_exist=True)
        raise bucket_not_found(f"{provider}://{name}") from None
    return Response()
