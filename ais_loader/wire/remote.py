"""Remote: where the objects of a remote bucket live, and how fresh its local copies are.

A bucket with a `Remote` is a cache of that place: an object is *cold* until the store has it. The first read of a cold
object fetches and stores it; later reads come from the drives. Credentials are never part of this value: a node takes
them from its environment, from the role of its machine, or from a profile in a file of its operator.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_objects_pb2 as pb

SCHEMES = ("s3", "gs", "az", "http", "https", "file")
ALWAYS: Final = "always"
NEVER: Final = "never"
THROUGH: Final = "through"
BACK: Final = "back"
_NEVER_S = -1.0
_PROFILE = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_INVENTORY = re.compile(r"(?:[0-9a-f]{16})?")
_REGION = re.compile(r"[A-Za-z0-9-]{0,64}")
MAX_URL = 2048
MAX_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Remote:
    """Place of a remote bucket's objects, and the rule by which copies are validated.

    Raises InvalidRequest for a URL of another scheme, with credentials, a query or a fragment, and for invalid values.
    """

    url: str
    """`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `http://host/prefix`, `https://host/prefix`
    (both read-only) or `file:///folder`. An object's name follows the prefix and a slash."""
    endpoint: str = ""
    """URL of an S3-compatible service; empty: the one of the environment or the profile, otherwise AWS. A node has to
    list another one (`remote_hosts`), and sends it credentials of a profile alone that names it."""
    region: str = ""
    """Region of an S3 bucket; empty: that of the environment or the profile."""
    profile: str = ""
    """Name of a profile in the operator's file (`remote_profiles`); empty: the node's environment."""
    validate: Literal["always", "never"] | float = NEVER
    """When a stored copy is compared with the remote object before it is read: "always"; "never"; or an age in seconds,
    after which a copy is compared again."""
    cache_bytes: int = 0
    """The most bytes of copies that one node keeps, or an embedded store; beyond that, copies are evicted. 0 for no
    limit."""
    write: Literal["through", "back"] = THROUGH
    """When a PUT or a deletion is acknowledged: "through" when the remote storage has it as well; "back" when the store
    has it, which uploads it afterwards. "back" is for s3, gs and az."""
    max_requests_per_s: float = 0.0
    """The most requests in a second that one node sends, or an embedded store; further ones wait. 0 for no limit."""
    max_bytes_per_day: int = 0
    """The most bytes of objects that one node receives in a day, or an embedded store. Then fetches are refused with
    RemoteLimitReached until midnight UTC; those in progress go on. 0 for no limit."""
    inventory: str = ""
    """Id of the bucket's inventory, which `Bucket.refresh_inventory` sets; empty: listings ask the place."""
    verify_md5: bool = False
    """Whether fetched objects are compared with ETags that are MD5 digests: those of 32 hexadecimal digits. Not for
    objects encrypted by SSE-KMS or SSE-C, whose ETags only look like digests."""

    def __post_init__(self) -> None:
        for what, value in (("url", self.url), ("endpoint", self.endpoint)):
            if not isinstance(value, str):
                raise InvalidRequest(f"remote {what} {value!r}: need a str, got {type(value).__name__}")
        object.__setattr__(self, "url", _checked_url(self.url))
        object.__setattr__(self, "endpoint", _checked_endpoint(self.endpoint, self.scheme))
        for what, value, allowed in (("region", self.region, _REGION), ("profile", self.profile, _PROFILE)):
            if not isinstance(value, str) or allowed.fullmatch(value) is None:
                raise InvalidRequest(f"remote {what} {value!r}: need at most 64 letters, digits, '-', '_' or '.'")
        if not isinstance(self.verify_md5, bool):
            raise InvalidRequest(f"verify_md5={self.verify_md5!r}: need True or False")
        if self.write not in (THROUGH, BACK):
            raise InvalidRequest(f'write={self.write!r}: need "through" or "back"')
        if self.write == BACK and self.scheme not in ("s3", "gs", "az"):
            raise InvalidRequest(
                f'write="back" needs an s3, gs or az URL; {self.scheme}:// keeps no metadata of objects'
            )
        for what, limit in (("cache_bytes", self.cache_bytes), ("max_bytes_per_day", self.max_bytes_per_day)):
            if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_BYTES:
                raise InvalidRequest(f"{what}={limit!r}: need a number of bytes, at least 0")
        rate = self.max_requests_per_s
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
            raise InvalidRequest(f"max_requests_per_s={rate!r}: need a number of requests, at least 0")
        object.__setattr__(self, "max_requests_per_s", float(rate))
        if not isinstance(self.inventory, str) or _INVENTORY.fullmatch(self.inventory) is None:
            raise InvalidRequest(f"inventory={self.inventory!r}: is set by `Bucket.refresh_inventory` alone")
        if self.validate in (ALWAYS, NEVER):
            return
        age_s = self.validate
        if isinstance(age_s, bool) or not isinstance(age_s, (int, float)) or not math.isfinite(age_s) or age_s < 0:
            raise InvalidRequest(f'validate={age_s!r}: need "always", "never", or an age in seconds')
        object.__setattr__(self, "validate", float(age_s) or ALWAYS)

    @property
    def scheme(self) -> str:
        """The scheme of the URL, such as "s3"."""
        return self.url.partition(":")[0]

    @property
    def place(self) -> tuple[str, str]:
        """The URL and the endpoint: remotes for which they are equal have the same objects."""
        return self.url, self.endpoint

    @property
    def is_writable(self) -> bool:
        """Whether objects can be put and deleted there."""
        return self.scheme not in ("http", "https")

    @property
    def can_list(self) -> bool:
        """Whether the objects there can be listed; a web server lists nothing."""
        return self.scheme not in ("http", "https")

    @property
    def is_write_back(self) -> bool:
        """Whether writes are acknowledged before they are uploaded."""
        return self.write == BACK

    @property
    def validate_after_s(self) -> float:
        """Age in seconds after which a copy is validated; 0 for always, infinite for never."""
        if isinstance(self.validate, float):
            return self.validate
        return 0.0 if self.validate == ALWAYS else math.inf

    @classmethod
    def of(cls, remote: Remote | str) -> Remote:
        """Return the value itself, or the one for a URL."""
        return remote if isinstance(remote, cls) else cls(remote)  # type: ignore[arg-type]

    def to_wire(self) -> pb.Remote:
        """Return the message that carries this value."""
        after_s = self.validate_after_s
        return pb.Remote(
            url=self.url,
            endpoint=self.endpoint,
            region=self.region,
            profile=self.profile,
            validate_after_s=_NEVER_S if math.isinf(after_s) else after_s,
            cache_bytes=self.cache_bytes,
            write_back=self.is_write_back,
            max_requests_per_s=self.max_requests_per_s,
            max_bytes_per_day=self.max_bytes_per_day,
            inventory=self.inventory,
            verify_md5=self.verify_md5,
        )

    @classmethod
    def from_wire(cls, message: pb.Remote) -> Self:
        """Return the value of a message. Raises InvalidRequest."""
        after_s = message.validate_after_s
        validate: Literal["always", "never"] | float = NEVER if after_s < 0 else after_s
        write: Literal["through", "back"] = BACK if message.write_back else THROUGH
        return cls(
            message.url,
            message.endpoint,
            message.region,
            message.profile,
            validate,
            message.cache_bytes,
            write,
            message.max_requests_per_s,
            message.max_bytes_per_day,
            message.inventory,
            message.verify_md5,
        )


def _checked_url(url: str) -> str:
    shown = f"remote {url!r}"
    if len(url) > MAX_URL or not url.isprintable() or "\\" in url:
        raise InvalidRequest(f"{shown}: need at most {MAX_URL:,} printable characters, without a backslash")
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES:
        raise InvalidRequest(f"{shown}: need a URL such as s3://bucket/prefix; schemes are {', '.join(SCHEMES)}")
    if "?" in rest or "#" in rest:
        bare = url.partition("?")[0].partition("#")[0]
        raise InvalidRequest(f"remote {bare!r}...: a query or fragment is not allowed")
    host, _, path = rest.partition("/")
    if "@" in host:
        raise InvalidRequest(
            f"remote {scheme}://...: credentials in the URL are not allowed; use the node's environment or a profile"
        )
    if scheme == "file":
        if host or not path:
            raise InvalidRequest(f"{shown}: need file:///folder")
    elif not host:
        raise InvalidRequest(f"{shown}: need a bucket or host after {scheme}://")
    if any(part in (".", "..") for part in path.split("/")) or "//" in path:
        raise InvalidRequest(f"{shown}: its path has an empty component, '.' or '..'")
    return url.rstrip("/")


def _checked_endpoint(endpoint: str, scheme: str) -> str:
    if not endpoint:
        return endpoint
    if scheme != "s3":
        raise InvalidRequest(f"endpoint={endpoint!r}: only s3:// takes one; use a profile for {scheme}://")
    if not endpoint.isprintable() or len(endpoint) > MAX_URL:
        raise InvalidRequest(f"endpoint: need at most {MAX_URL:,} printable characters")
    try:
        parts = urlsplit(endpoint)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InvalidRequest(f"endpoint={endpoint!r}: {error}") from None
    if "@" in parts.netloc:
        raise InvalidRequest("endpoint: credentials in the URL are not allowed")
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port or parts.query or parts.fragment:
        raise InvalidRequest(f"endpoint={endpoint!r}: need a URL such as https://minio.example.org:9000")
    return endpoint.rstrip("/")
