"""POST of a form: uploads of browsers. Its fields say what is stored, and a signed policy what they may be.

A policy and its signature are verified when the file begins, before any of its bytes is kept.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from .clients import Account
from .request import S3Error, parse_json
from .signature import verify_policy

_BOUNDARY = re.compile(r'multipart/form-data\s*;\s*boundary="?([!#-~]{1,70}?)"?\s*\Z', re.IGNORECASE)
_PARAMETER = re.compile(r';[ \t]*(name|filename)="([^"]*)"', re.IGNORECASE)
_EXPIRATION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z\Z")
_FIELDS_BYTES = 20 << 10
"""Size of all that precedes the file, as in S3."""
_UNCONDITIONAL = {"awsaccesskeyid", "signature", "x-amz-signature", "policy"}
_UNCONDITIONAL_PREFIXES = ("x-ignore-", "x-amz-checksum-")


class PostForm:
    """Decoder of a form: takes its fields, and returns the bytes of its file."""

    def __init__(self, boundary: str, bucket: str, keys: Mapping[str, Account] | None) -> None:
        self.fields: dict[str, str] = {}
        """Values by names in lower case, without the file's."""
        self.account: Account | None = None
        self.on_file: Callable[[Mapping[str, str]], None] = lambda _: None
        """Called with the fields when the file begins."""
        self._bucket, self._keys = bucket, keys
        self._delimiter = f"\r\n--{boundary}".encode()
        self._rest, self._at, self._name, self._fields_bytes = b"\r\n", 0, "", 0
        self._step: Callable[[list[bytes]], bool] = self._take_field
        self._least_bytes, self._most_bytes, self._size_bytes = 0, 1 << 63, 0

    @classmethod
    def of(
        cls, method: str, bucket: str, key: str, query: str, content_type: str, keys: Mapping[str, Account] | None
    ) -> PostForm | None:
        """Return the decoder of a request that is a form; None for any other."""
        boundary = _BOUNDARY.match(content_type)
        is_form = method == "POST" and bucket and not key and not query and boundary
        return cls(boundary[1], bucket, keys) if is_form and boundary else None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bytes of the file in `data`. Raises S3Error."""
        found: list[bytes] = []
        self._rest, self._at = self._rest + data, 0
        while self._step(found):
            pass
        self._rest = self._rest[self._at :]
        self._size_bytes += sum(map(len, found))
        if self._size_bytes > self._most_bytes:
            raise S3Error("EntityTooLarge", f"the policy allows at most {self._most_bytes:,} bytes")
        return found

    def finish(self) -> dict[str, str]:
        """Raise S3Error unless the form is complete, and its file as large as the policy asks for."""
        if self._step != self._pass_over:
            raise _malformed("it ends before its file does")
        if self._size_bytes < self._least_bytes:
            raise S3Error("EntityTooSmall", f"the policy asks for at least {self._least_bytes:,} bytes")
        return {}

    def _until(self, mark: bytes, more: int = 0) -> bytes | None:
        """Take what precedes a mark, and the mark; None if it has not come with `more` bytes behind it."""
        end = self._rest.find(mark, self._at, self._at + _FIELDS_BYTES)
        taken = len(self._rest) if end < 0 else end + len(mark)
        if self._fields_bytes + taken - self._at > _FIELDS_BYTES:
            raise S3Error("MaxPostPreDataLengthExceededError", f"{_FIELDS_BYTES:,} bytes may precede the file")
        if end < 0 or len(self._rest) < taken + more:
            return None
        found = self._rest[self._at : end]
        self._fields_bytes += taken - self._at
        self._at = taken
        return found

    def _take_field(self, _: list[bytes]) -> bool:
        value = self._until(self._delimiter, 2)
        if value is None:
            return False
        if self._name:
            self.fields[self._name] = _text(value)
        if self._rest[self._at : self._at + 2] != b"\r\n":
            raise _malformed("it has no file")
        self._step = self._take_head
        return True

    def _take_head(self, _: list[bytes]) -> bool:
        head = self._until(b"\r\n\r\n")
        if head is None:
            return False
        line = next((one for one in _text(head).split("\r\n") if one.lower().startswith("content-disposition:")), "")
        named = {name.lower(): value for name, value in _PARAMETER.findall(line)}
        self._name = named.get("name", "").lower()
        if not self._name or self._name in self.fields:
            raise _malformed("a field has no name, or the name of another one")
        self._step = self._take_field
        if self._name == "file":
            self._begin_file(named.get("filename", ""))
            self._step = self._take_file
        return True

    def _begin_file(self, filename: str) -> None:
        if "key" not in self.fields:
            raise S3Error("InvalidArgument", "the form needs a field key, before its file")
        self.fields["key"] = self.fields["key"].replace("${filename}", re.split(r"[/\\]", filename)[-1])
        if self._keys is not None:
            self.account = verify_policy(self.fields, self._keys)
            values = {**self.fields, "bucket": self._bucket}
            self._least_bytes, self._most_bytes = _check_policy(self.fields["policy"], values)
        self.on_file(self.fields)

    def _take_file(self, found: list[bytes]) -> bool:
        end = self._rest.find(self._delimiter, self._at)
        sure = end if end >= 0 else max(self._at, len(self._rest) - len(self._delimiter) + 1)
        if sure > self._at:
            found.append(self._rest[self._at : sure])
        self._at = sure
        if end >= 0:
            self._step = self._pass_over
        return end >= 0

    def _pass_over(self, _: list[bytes]) -> bool:
        self._at = len(self._rest)  # what follows the file is ignored, as in S3
        return False


def _malformed(why: str) -> S3Error:
    return S3Error("MalformedPOSTRequest", f"the form is not valid: {why}")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeError:
        raise _malformed("a field is not UTF-8") from None


def _check_policy(text: str, values: Mapping[str, str]) -> tuple[int, int]:
    """Return the smallest and largest size of the file. Raises S3Error for values that the policy does not allow."""
    try:
        policy = parse_json(base64.b64decode(text, validate=True))
        expiration, conditions = policy["expiration"], policy["conditions"]
        if not (_EXPIRATION.match(expiration) and isinstance(conditions, list)):
            raise ValueError("need a list of conditions, and an expiration such as 2026-01-01T00:00:00Z")
        expires_s = datetime.fromisoformat(expiration).timestamp()
        rules = [_rule(condition) for condition in conditions]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise S3Error("InvalidPolicyDocument", f"the policy is not valid: {error}") from None
    if time.time() > expires_s:
        raise S3Error("AccessDenied", "the policy has expired")
    sizes, covered = (0, 1 << 63), _UNCONDITIONAL.copy()
    for kind, name, wanted in rules:
        covered.add(name)
        value = values.get(name, "")
        if kind == "content-length-range":
            sizes = wanted
        elif value != wanted and not (kind == "starts-with" and value.startswith(wanted)):
            raise S3Error("AccessDenied", f"the policy does not allow this value of {name[:80]!r}")
    if missing := [name for name in values if name not in covered and not name.startswith(_UNCONDITIONAL_PREFIXES)]:
        raise S3Error("AccessDenied", f"the policy has no condition for {min(missing)[:80]!r}")
    return sizes


def _rule(condition: Any) -> tuple[str, str, Any]:
    """Return kind, name and value of a condition. Raises ValueError, TypeError."""
    if isinstance(condition, dict):
        ((name, value),) = condition.items()
        kind = "eq"
    else:
        kind, name, value = condition
        kind = kind.lower()
        if kind == "content-length-range":
            least, most = int(name), int(value)
            if not 0 <= least <= most:
                raise ValueError("content-length-range: need the smallest and the largest size")
            return kind, "", (least, most)
        if kind not in ("eq", "starts-with") or not name.startswith("$"):
            raise ValueError(f"condition {kind!r}: need eq, starts-with or content-length-range, and $FIELD")
        name = name[1:]
    if not (isinstance(name, str) and isinstance(value, str)):
        raise ValueError("a condition has a field and a text")
    return kind, name.lower(), value
