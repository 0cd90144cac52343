"""Failures of obstore's requests, translated to errors for callers, without secrets.

obstore raises a few classes, and a text for everything else. The text has the status of the answer, and its body, which
S3 and services like it fill with a code and a message in XML, and Google and Azure with XML or JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ais_loader.errors import (
    InvalidName,
    InvalidRequest,
    LoaderError,
    ObjectNotFound,
    RangeError,
    RemoteDenied,
    RemoteUnavailable,
    Unsupported,
)
from storage_node.remote.drivers.driver import NotModified, PreconditionFailed, RequestFailure

MAX_MESSAGE = 300
"""Maximum length of a message, in characters."""
_STATUS = re.compile(r"non-2xx status code: (\d{3})[^:]*: ?(.*)", re.S)
_DELETION = re.compile(r"Bulk delete request failed for key .*?: (?P<said>[^:]*) \(code: (?P<status>\d{3})\)", re.S)
"""The failure of a deletion in Azure, where obstore sends deletions in batches."""
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,400})</Message>")
_QUERY = re.compile(r"\?\S*")
_AUTHORIZATION = re.compile(
    r"(?i)\b(authorization|signature|credential|x-amz-security-token)\b\s*[:=]\s*\S+|AWS4-HMAC\S*"
)
_NO_RANGE = re.compile(r'Wanted range starting at|CONTENT_RANGE header: "bytes 0--1/0"')
"""Mark of an answer to a range beyond the end of its object, from a server that does not refuse such a range."""
_IN_URL = re.compile(r"Error performing \w+ \S+ in \S+ - ")
_CREDENTIAL_URLS = (
    "169.254.169.254",
    "169.254.170.2",
    "metadata.google.internal",
    "/latest/api/token",
    "/latest/meta-data/",
    "/metadata/identity/",
)
"""Parts of URLs from which roles' credentials are requested."""
_DENIED_CODES = frozenset(
    (
        "NoSuchBucket",
        "InvalidBucketName",
        "AccessDenied",
        "AllAccessDisabled",
        "AccountProblem",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "TokenRefreshRequired",
        "AuthorizationHeaderMalformed",
        "PermanentRedirect",
        "RequestTimeTooSkewed",
        "ContainerNotFound",
        "ContainerBeingDeleted",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "InvalidAuthenticationInfo",
    )
)
_RETRIED_CODES = frozenset(["RequestTimeout", "RequestTimeoutException", "InternalError", "OperationAborted"])
_THROTTLED_CODES = frozenset(["SlowDown", "ServerBusy", "ThrottlingException", "Throttling", "TooManyRequests"])
_REGION_CODES = frozenset(("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"))
_REGION = re.compile(r"<Region>([^<]{1,40})</Region>")
_ADVICE_OF_CODE = {
    "RequestTimeTooSkewed": "the clock of this machine is wrong: correct it (NTP)",
    "ExpiredToken": "renew the credentials; a file of profiles (remote_profiles) is read again by itself",
    "TokenRefreshRequired": "renew the credentials; a file of profiles (remote_profiles) is read again by itself",
    "NoSuchBucket": "check the URL of the bucket, its endpoint and the account",
    "ContainerNotFound": "check the URL of the bucket, its endpoint and the account",
    "AccessDenied": "its credentials may not do this: grant it, or name another profile (remote_profiles)",
    "AuthorizationFailure": "its credentials may not do this: grant it, or name another profile (remote_profiles)",
    "InvalidAccessKeyId": "correct the credentials",
    "SignatureDoesNotMatch": "correct the credentials",
    "AuthenticationFailed": "correct the credentials, or the clock of this machine",
}
"""Advice by the storage's code for a failure."""
_REASON_AT_MOST = 120
"""Length of a storage's own message, in characters, if advice follows it."""
_ADVICE = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the node's environment, or name a profile "
    "(remote_profiles; anonymous = true for public buckets)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS in the node's environment, or name a profile (remote_profiles)",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the node's environment, or name a profile "
    "(remote_profiles)",
}


def shown(text: str, secrets: Sequence[str]) -> str:
    """Return a text of the storage without secrets: known values, queries of URLs, and signatures."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return " ".join(_AUTHORIZATION.sub("***", _QUERY.sub("", text)).split())


def message(place: str, reason: str, secrets: Sequence[str]) -> str:
    """Return a message about an object or a bucket, of at most MAX_MESSAGE characters."""
    if len(place) > MAX_MESSAGE // 2:
        place = place[: MAX_MESSAGE // 2 - 3] + "..."
    whole = f"{place}: {shown(reason, secrets)}"
    return whole if len(whole) <= MAX_MESSAGE else whole[: MAX_MESSAGE - 3] + "..."


def failure_of(error: BaseException, place: str, scheme: str, secrets: Sequence[str]) -> Exception:
    """Return what to raise for an error of obstore: RequestFailure, NotModified or PreconditionFailed.

    Args:
        place: the object's URL, for messages.
        secrets: values that must not occur in messages.
    """
    kind = type(error).__name__
    if kind == "NotModifiedError":
        return NotModified()
    if kind in ("PreconditionError", "AlreadyExistsError"):
        return PreconditionFailed()
    text = str(error).partition("\n\nDebug source")[0]
    found = _STATUS.search(text)
    status, body = (int(found[1]), found[2]) if found else (0, "")
    if deletion := _DELETION.search(text):
        found, status, body = deletion, int(deletion["status"]), deletion["said"]
    return failure_of_answer(
        status, body, place, scheme, secrets, reason="" if found else _IN_URL.sub("", text), kind=kind, url=text
    )


def failure_of_answer(
    status: int,
    body: str,
    place: str,
    scheme: str,
    secrets: Sequence[str],
    *,
    reason: str = "",
    kind: str = "",
    url: str = "",
) -> RequestFailure:
    """Return the failure that an answer means.

    Args:
        status: HTTP status; 0 if there was no answer.
        body: content of the answer.
        reason: what is known if there was no answer.
        kind: name of obstore's exception.
        url: text that contains the URL of the request.
    """
    code, reason = _described(status, body, reason)

    def failed(cls: type[LoaderError], text: str = "", **flags: bool) -> RequestFailure:
        return RequestFailure(cls(message(place, text or reason, secrets)), **flags)

    if (
        any(one in url.partition(" - ")[0] for one in _CREDENTIAL_URLS)
        or "MissingCredential" in code
        or "credential" in reason[:80]
    ):
        advice = _ADVICE.get(scheme, "name a profile (remote_profiles)")
        return failed(RemoteDenied, f"no credentials: {advice}", is_credentials=True)
    if advice := _advice(code, body):
        said = reason if len(reason) <= _REASON_AT_MOST else f"{reason[: _REASON_AT_MOST - 3]}..."
        reason = f"{said}; {advice}"
    if code in _THROTTLED_CODES or status in (429, 503):
        return failed(RemoteUnavailable, retry=True, throttled=True)
    if code in _RETRIED_CODES or (status >= 500 and status != 501) or status in (408, 409, 425):
        return failed(RemoteUnavailable, retry=True)
    if code in _DENIED_CODES or status in (401, 403, 407):
        return failed(RemoteDenied)
    if status in (404, 410) or (kind == "FileNotFoundError" and not status):  # obstore has the same for status 405
        return failed(ObjectNotFound)
    if status == 416 or _NO_RANGE.search(reason):
        return failed(RangeError)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return failed(RemoteDenied)
    if "redirect" in reason or 300 <= status < 400:
        return failed(RemoteDenied, f"the bucket may be in another region ({reason}); set the region of its Remote")
    if code in ("InvalidMetadata", "MetadataTooLarge", "EmptyMetadataKey", "EntityTooLarge", "KeyTooLongError"):
        return failed(InvalidRequest)
    if kind in ("ValueError", "TypeError", "InvalidPathError"):
        return failed(InvalidName if "path" in reason else InvalidRequest)
    if "Content-Length Header missing" in reason:
        return failed(Unsupported, "the server does not send the size of its answers (Content-Length)")
    if kind in ("NotSupportedError", "NotImplementedError"):
        return failed(Unsupported)
    if 400 <= status <= 501:
        return failed(RemoteDenied)
    return failed(RemoteUnavailable, retry=True)


def _advice(code: str, body: str) -> str:
    """Return advice on a failure; "" if the storage's own message contains it."""
    if code in _REGION_CODES:
        found = _REGION.search(body)
        return f"set the region of the bucket's Remote{f' to {found[1]!r}' if found else ''}"
    return _ADVICE_OF_CODE.get(code, "")


def _described(status: int, body: str, reason: str) -> tuple[str, str]:
    """Return the storage's code for a failure, and a description."""
    code, said = _CODE.search(body), _MESSAGE.search(body)
    if code:
        return code[1], f"{code[1]}: {said[1] if said else f'status {status}'}"
    try:
        described = json.loads(body)["error"]
        return str(described.get("status", "")), f"status {status}: {described.get('message', '')}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    if not status:
        return "", reason or "no answer"
    text = "" if body.lstrip().startswith("<") else body.strip()[:200]
    return "", f"status {status}" + (f": {text}" if text else "")
