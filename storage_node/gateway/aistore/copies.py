"""Copies and renames of objects and buckets. Their bytes stay in the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from ais_loader import errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.copy import IN_FLIGHT, each_copied
from ais_loader.values.entry import ObjectInfo
from storage_node.gateway.aistore.errors import AISError, bucket_not_found, unsupported
from storage_node.gateway.aistore.jobs import Outcome, Stopping, answer_when_done
from storage_node.gateway.aistore.providers import check_bucket_name, provider_named
from storage_node.gateway.aistore.request import Request
from storage_node.gateway.names import check_prefix, name_of
from storage_node.gateway.request import Response

_DELETE_TRIES = 5


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

    @classmethod
    def of(cls, request: Request) -> Copying:
        """Raises AISError."""
        value = request.value
        if value.get("synchronize"):
            raise unsupported("synchronize")
        texts = [value.get(name) or "" for name in ("prefix", "prepend")]
        flags = [value.get(name) or False for name in ("dry_run", "coer")]
        extensions = value.get("ext") or {}
        if not all(isinstance(text, str) for text in texts):
            raise AISError(400, "prefix and prepend: need strings")
        if not all(isinstance(flag, bool) for flag in flags):
            raise AISError(400, "dry_run and coer: need true or false")
        if not isinstance(extensions, dict) or not all(isinstance(to, str) for to in extensions.values()):
            raise AISError(400, "ext: need an object of extensions")
        stripped = {before.lstrip("."): after.lstrip(".") for before, after in extensions.items()}
        return cls(check_prefix(texts[0]), check_prefix(texts[1]), flags[0], flags[1], stripped or None)

    def name(self, name: str) -> str:
        """Return the name of a copy."""
        for before, after in (self.extensions or {}).items():
            if name.endswith(f".{before}"):
                name = f"{name[: -len(before)]}{after}"
                break
        return self.prepend + name


def places(request: Request, name: str, provider: object, *, create: bool) -> Bucket:
    """Return the bucket that copies go to. One of AIStore's own is created. Raises Refusal."""
    check_bucket_name(name)
    if not isinstance(provider, str):
        raise AISError(400, "provider: need a string")
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


def copied(source: Bucket, target: Bucket, names: Iterable[str], copying: Copying, *, missing_fails: bool) -> Outcome:
    """Copy objects by their names. One that fails does not stop the others. Raises retryable errors, Stopped."""
    made, size_bytes = 0, 0
    failure: errors.LoaderError | None = None
    waiting: deque[Future[ObjectInfo]] = deque()

    def one(name: str) -> ObjectInfo:
        if copying.is_dry:
            return source.head(name)
        return source.copy(name, copying.name(name), to_bucket=target.name)

    def take_first() -> None:
        nonlocal made, size_bytes, failure
        try:
            info = waiting.popleft().result()
            made, size_bytes = made + 1, size_bytes + info.size_bytes
        except errors.ObjectNotFound as error:
            failure = failure or (error if missing_fails else None)
        except errors.LoaderError as error:
            if error.retryable:
                raise
            failure = failure or error

    pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="gateway-copy")
    try:
        for name in names:
            if name.startswith(copying.prefix):
                waiting.append(pool.submit(one, name))
            if len(waiting) >= 2 * IN_FLIGHT:
                take_first()
        while waiting:
            take_first()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return Outcome.of(made, size_bytes, failure)


def copy_bucket(request: Request) -> Response:
    """Answer `copy-bck`. Objects that are there already, with the same bytes, are left alone. Raises Refusal."""
    source, copying = request.named_bucket(request.bucket, request.provider, must_exist=True), Copying.of(request)
    provider, name, _ = uname(request.query.get("bck_to", ""))
    target = places(request, name, provider, create=not copying.is_dry)

    def action(stopping: Stopping) -> Outcome:
        if copying.is_dry or copying.extensions:
            names = (info.name for info in source.objects(copying.prefix))
            return copied(source, target, _checked(names, stopping), copying, missing_fails=False)
        return _all_copied(source, target, copying.prefix, copying.prepend + copying.prefix, stopping, remove=False)

    return answer_when_done(request.action, action)


def _checked(names: Iterable[str], stopping: Stopping) -> Iterable[str]:
    for name in names:
        stopping.check()
        yield name


def _all_copied(source: Bucket, target: Bucket, prefix: str, to: str, stopping: Stopping, *, remove: bool) -> Outcome:
    done, size_bytes = 0, 0
    failure: errors.LoaderError | None = None
    transport = source._transport
    with closing(each_copied(transport, source.name, prefix, target.name, to, remove=remove)) as results:
        for _, result in results:
            stopping.check()
            if isinstance(result, errors.LoaderError):
                failure = failure or result
            elif result is not None:
                done, size_bytes = done + 1, size_bytes + result.size_bytes
    return Outcome.of(done, size_bytes, failure)


def move_bucket(request: Request) -> Response:
    """Answer `move-bck`: the objects are renamed one by one, and the empty bucket is deleted. Raises Refusal."""
    source = request.named_bucket(request.bucket, request.provider, must_exist=True)
    info = source.info()
    provider, name, _ = uname(request.query.get("bck_to", ""))
    if provider != "ais" or info.remote is not None:
        raise AISError(400, f"{request.bucket_url}: a remote bucket cannot be renamed")
    if source.snapshots():
        raise AISError(409, f"{request.bucket_url}: the bucket has snapshots")
    try:
        target = request.client.create_bucket(
            name,
            copies=info.copies,
            min_copies=info.min_copies,
            reframe=info.reframe,
            quota_bytes=info.quota_bytes,
            quota_objects=info.quota_objects,
        )
    except errors.BucketExists:
        raise AISError(409, f'bucket "ais://{name}" already exists', "ErrBucketAlreadyExists") from None

    def action(stopping: Stopping) -> Outcome:
        done, size_bytes = 0, 0
        for last in range(_DELETE_TRIES, 0, -1):
            outcome = _all_copied(source, target, "", "", stopping, remove=True)
            done, size_bytes = done + outcome.objects, size_bytes + outcome.size_bytes
            if outcome.error:
                return Outcome(done, size_bytes, outcome.error)
            try:
                request.client.delete_bucket(source.name)
                break
            except errors.BucketNotEmpty:  # an object was stored meanwhile
                if last == 1:
                    raise
        return Outcome(done, size_bytes)

    return answer_when_done(request.action, action)


def rename_object(request: Request) -> Response:
    """Answer `rename-obj`. Raises Refusal."""
    to = request.json.get("name")
    if not isinstance(to, str) or not to:
        raise AISError(400, "name: need the new name")
    bucket = request.open_bucket()
    if bucket.info().remote is not None:
        raise AISError(400, f"{request.url}: an object of a remote bucket cannot be renamed")
    bucket.rename(request.name, name_of(to))
    return Response()


def copy_object(request: Request) -> Response:
    """Answer `PUT ?object_to=`. Raises Refusal."""
    if request.query.get("synchronize", "false").lower() == "true":
        raise unsupported("synchronize")
    provider, name, key = uname(request.query["object_to"])
    source = request.open_bucket()
    try:
        source.copy(request.name, name_of(key) if key else request.name, to_bucket=name)
    except errors.BucketNotFound:
        request.named_bucket(request.bucket, request.provider, must_exist=True)
        raise bucket_not_found(f"{provider}://{name}") from None
    return Response()
