"""Signatures of requests. They are verified by signing the request again.

Version 4 in headers and in queries, and version 2 in queries, with which boto3 and others presign by default. Version 2
is signed by botocore. Source of version 4: AWS, "Create a signed AWS API request", without its normalization of paths.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from ais_loader.extras import needs

from .clients import Account
from .request import S3Error, decoded, query_pairs

with needs("botocore", "ais-loader gateway"):
    from botocore.auth import HmacV1QueryAuth
    from botocore.compat import HTTPHeaders
    from botocore.credentials import Credentials

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
_SKEW_S = 15 * 60
_MAX_EXPIRES_S = 7 * 24 * 3600
_CREDENTIAL = re.compile(r"(?P<key>[^/]+)/(?P<date>[0-9]{8})/(?P<region>[A-Za-z0-9-]{1,40})/s3/aws4_request\Z")
_STAMP = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z\Z", re.ASCII)
_EMPTY_SHA256 = hashlib.sha256().hexdigest()


@functools.lru_cache(maxsize=1024)
def _signing_key(secret_key: str, date: str, region: str) -> bytes:
    """Return the key that signs all requests of a day and a region."""
    key = f"AWS4{secret_key}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


@dataclass(frozen=True, slots=True)
class _Signer:
    """Signs what an account sends in the minutes around a time, in a region."""

    account: Account
    stamp: str
    region: str

    def signature(self, kind: str, *lines: str) -> str:
        scope = f"{self.stamp[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join((f"{ALGORITHM}{kind}", self.stamp, scope, *lines))
        key = _signing_key(self.account.secret_key, self.stamp[:8], self.region)
        return hmac.digest(key, text.encode(), "sha256").hex()


class ChunkSigner:
    """Expected signatures of the chunks of one body, each of which covers the one before."""

    def __init__(self, signer: _Signer, seed: str) -> None:
        self._signer, self._previous = signer, seed

    def check_chunk(self, sha256: str, signature: str) -> None:
        """Raises S3Error unless the next chunk has this signature."""
        self._check("-PAYLOAD", [_EMPTY_SHA256, sha256], signature)

    def check_trailer(self, sha256: str, signature: str) -> None:
        """Raises S3Error unless the trailer has this signature."""
        self._check("-TRAILER", [sha256], signature)

    def _check(self, kind: str, hashes: list[str], signature: str) -> None:
        self._previous = _compare(signature, self._signer.signature(kind, self._previous, *hashes))


@dataclass(frozen=True, slots=True)
class Signed:
    """A verified signature. The body has yet to be compared with `payload`."""

    account: Account | None
    """None if requests need no signature."""
    payload: str
    """Value of `x-amz-content-sha256`."""
    chunks: ChunkSigner | None = None


def verify(
    method: str, path: str, query: str, headers: Mapping[str, str], bucket_path: str, keys: Mapping[str, Account] | None
) -> Signed:
    """Verify the signature of a request, unless there are no keys.

    Args:
        path, query: As they were sent.
        headers: By names in lower case. Repeated headers are joined by commas.
        bucket_path: The path that begins with the bucket, which version 2 signs.

    Raises S3Error.
    """
    payload = headers.get("x-amz-content-sha256", "")
    if keys is None:
        return Signed(None, payload)
    if method == "OPTIONS":
        raise S3Error("InvalidRequest", "there are no rules about origins")
    pairs = query_pairs(query)
    parameters = dict(pairs)
    if (given := headers.get("authorization")) is not None:
        fields = _header_fields(given)
        stamp = headers.get("x-amz-date", "")
        if not payload:
            raise S3Error("InvalidRequest", "the header x-amz-content-sha256 is missing")
        seconds = _seconds(stamp)
        if abs(time.time() - seconds) > _SKEW_S:
            raise S3Error("RequestTimeTooSkewed", "the request's time and the gateway's differ by more than 15 minutes")
        return _verify_v4(method, path, pairs, headers, fields, stamp, payload, keys)
    if parameters.get("X-Amz-Algorithm") is not None:
        if parameters["X-Amz-Algorithm"] != ALGORITHM:
            raise S3Error("AuthorizationQueryParametersError", f"X-Amz-Algorithm: need {ALGORITHM}")
        names = {"Credential": "X-Amz-Credential", "SignedHeaders": "X-Amz-SignedHeaders"}
        fields = {name: parameters.get(parameter, "") for name, parameter in names.items()}
        fields["Signature"] = parameters.get("X-Amz-Signature", "")
        stamp = parameters.get("X-Amz-Date", "")
        _require_unexpired(_seconds(stamp), parameters.get("X-Amz-Expires", ""))
        pairs = [pair for pair in pairs if pair[0] != "X-Amz-Signature"]
        payload = parameters.get("X-Amz-Content-SHA256", payload or UNSIGNED)
        return _verify_v4(method, path, pairs, headers, fields, stamp, payload, keys)
    if "AWSAccessKeyId" in parameters:
        return _verify_v2(method, bucket_path, query, parameters, headers, keys)
    raise S3Error("AccessDenied", "the request is not signed")


def _header_fields(header: str) -> dict[str, str]:
    algorithm, _, rest = header.partition(" ")
    if algorithm != ALGORITHM:
        raise S3Error("InvalidRequest", f"Authorization: need {ALGORITHM}")
    found = [part.strip().partition("=") for part in rest.split(",")]
    fields = {name: value for name, _, value in found}
    if fields.keys() != {"Credential", "SignedHeaders", "Signature"} or len(found) != 3:
        raise S3Error("AuthorizationHeaderMalformed", "need Credential, SignedHeaders and Signature")
    return fields


@functools.lru_cache(maxsize=128)
def _seconds(stamp: str) -> int:
    try:
        if (found := _STAMP.match(stamp)) is None:
            raise ValueError
        year, month, day, hour, minute, second = map(int, found.groups())
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        raise S3Error("AccessDenied", "x-amz-date: need a time such as 20260101T000000Z") from None


def _require_unexpired(signed_s: int, expires: str) -> None:
    if not (expires.isascii() and expires.isdigit() and len(expires) < 10 and 0 < int(expires) <= _MAX_EXPIRES_S):
        raise S3Error("AccessDenied", "X-Amz-Expires: need 1 to 604800 seconds")
    now_s = time.time()
    if signed_s - now_s > _SKEW_S:
        raise S3Error("AccessDenied", "the request is not valid yet")
    if now_s > signed_s + int(expires):
        raise S3Error("AccessDenied", "the request has expired")


def _verify_v4(
    method: str,
    path: str,
    pairs: list[tuple[str, str]],
    headers: Mapping[str, str],
    fields: Mapping[str, str],
    stamp: str,
    payload: str,
    keys: Mapping[str, Account],
) -> Signed:
    scope = _CREDENTIAL.match(fields["Credential"])
    if scope is None or scope["date"] != stamp[:8]:
        raise S3Error("AuthorizationHeaderMalformed", "Credential: need KEY/DATE/REGION/s3/aws4_request")
    account = _account(scope["key"], keys)
    names = fields["SignedHeaders"].split(";")
    must = {"host", *(name for name in headers if name.startswith("x-amz-"))}
    if missing := must.difference(names):
        raise S3Error("AccessDenied", f"headers that are not signed: {', '.join(sorted(missing))}")
    for name in names:
        if name not in headers:
            raise S3Error("SignatureDoesNotMatch", f"the signed header {name[:80]!r} is missing")
    names = sorted(set(names))
    # Paths and queries are signed in one form, whichever the client sends.
    query = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    lines = [method.upper(), quote(decoded(path), safe="/-_.~"), "&".join(f"{name}={value}" for name, value in query)]
    lines += [f"{name}:{' '.join(headers[name].split())}" for name in names]
    lines += ["", ";".join(names), payload]
    signer = _Signer(account, stamp, scope["region"])
    seed = _compare(fields["Signature"], signer.signature("", hashlib.sha256("\n".join(lines).encode()).hexdigest()))
    return Signed(account, payload, ChunkSigner(signer, seed))


def verify_policy(fields: Mapping[str, str], keys: Mapping[str, Account]) -> Account:
    """Return the account that has signed the policy of a form, in either version. Raises S3Error."""
    policy = fields.get("policy")
    if policy is None:
        raise S3Error("AccessDenied", "the form has no policy")
    if "x-amz-signature" in fields:
        scope = _CREDENTIAL.match(fields.get("x-amz-credential", ""))
        if scope is None or fields.get("x-amz-algorithm") != ALGORITHM:
            raise S3Error("InvalidArgument", f"need x-amz-algorithm {ALGORITHM}, and x-amz-credential")
        account = _account(scope["key"], keys)
        key = _signing_key(account.secret_key, scope["date"], scope["region"])
        _compare(fields["x-amz-signature"], hmac.digest(key, policy.encode(), "sha256").hex())
        return account
    if "signature" not in fields or "awsaccesskeyid" not in fields:
        raise S3Error("InvalidArgument", "the policy of the form is not signed")
    account = _account(fields["awsaccesskeyid"], keys)
    made = hmac.digest(account.secret_key.encode(), policy.encode(), "sha1")
    _compare(fields["signature"], base64.b64encode(made).decode())
    return account


def _verify_v2(
    method: str,
    bucket_path: str,
    query: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    keys: Mapping[str, Account],
) -> Signed:
    account = _account(parameters["AWSAccessKeyId"], keys)
    expires = parameters.get("Expires", "")
    if not (expires.isascii() and expires.isdigit() and len(expires) < 12):
        raise S3Error("AccessDenied", "Expires: need a time in seconds")
    if time.time() > int(expires):
        raise S3Error("AccessDenied", "the request has expired")
    signed = HTTPHeaders()
    for name, value in headers.items():
        if name in ("content-md5", "content-type") or name.startswith("x-amz-"):
            signed[name] = value
    auth = _QueryAuth(Credentials(account.access_key, account.secret_key))
    auth.expires = expires
    # botocore signs the parameters that it knows, by their plain names.
    named = (part.partition("=") for part in query.split("&") if part)
    text = "&".join(f"{quote(decoded(name, plus=True), safe='-_.~')}{equals}{value}" for name, equals, value in named)
    split = urlsplit(f"http://gateway{quote(decoded(bucket_path), safe='/-_.~')}?{text}")
    # boto3 requests /BUCKET, but signs /BUCKET/. Others sign what they request.
    paths = {split.path, f"{split.path}/" if re.match(r"/[^/]+\Z", split.path) else split.path}
    made = (auth.sign_string(auth.canonical_string(method, split, signed, auth_path=path)) for path in paths)
    _compare(parameters.get("Signature", ""), *made)
    return Signed(account, UNSIGNED)


class _QueryAuth(HmacV1QueryAuth):  # type: ignore[misc]
    """Signs the time that the query has in place of a date."""

    expires = ""

    def _get_date(self) -> str:
        return self.expires


def _account(access_key: str, keys: Mapping[str, Account]) -> Account:
    account = keys.get(access_key)
    if account is None:
        raise S3Error("InvalidAccessKeyId", "the access key is not known here")
    return account


def _compare(given: str, *made: str) -> str:
    """Return the signature that was made, in a time that does not tell where others differ.

    Raises S3Error unless it is among those that were made.
    """
    for one in made:
        if hmac.compare_digest(one.encode(), given.encode("utf-8", "surrogatepass")):
            return one
    raise S3Error("SignatureDoesNotMatch", "the signature does not match: check the secret key")
