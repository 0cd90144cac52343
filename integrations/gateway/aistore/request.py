"""Requests of AIStore's API, independent of the HTTP server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ais_loader.errors import BucketNotFound

from ..names import name_of
from ..request import RequestHead, Response
from .errors import AISError, bucket_not_found
from .providers import provider_of
from .recent_jobs import RecentJobs, recent_jobs

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket

    from .bodies import AisBody


@dataclass(slots=True)
class AisRequest(RequestHead):
    """A request that has been verified, and whose body has arrived."""

    base_url: str
    """The address at which the client has reached the gateway, such as `http://127.0.0.1:9000`."""
    rest: tuple[str, ...] = ()
    """Other components of the path, decoded."""
    provider: str = "ais"
    """The provider that the client named, in AIStore's longest form, or "ais"."""
    body: AisBody | None = None
    """None if the call takes none."""
    json: Any = None
    """The body of a call that takes JSON; None if there was none."""
    spool: str | None = None
    """Folder of temporary files; None for that of the system."""
    access_key: str = ""
    """The access key that the request comes from; "" for a token, and if everything is open."""
    needs_token: bool = False
    """Whether the gateway asks for a key or token."""

    @property
    def action(self) -> str:
        """The action that the body asks for; "" for none."""
        action = self.json.get("action") if isinstance(self.json, dict) else None
        return action if isinstance(action, str) else ""

    @property
    def value(self) -> dict[str, Any]:
        """The value of the action; empty if there was none. Raises AISError for one that is no object."""
        value = self.json.get("value") if isinstance(self.json, dict) else None
        if value is None or value == "":
            return {}
        if not isinstance(value, dict):
            raise AISError(400, f"{self.action}: the value must be an object")
        return value

    @property
    def recent_jobs(self) -> RecentJobs:
        """The jobs of this process that the client may list and stop."""
        return recent_jobs(self.client, self.access_key)

    @property
    def bucket_url(self) -> str:
        """The bucket in texts of errors; "" if the request names none."""
        return f"{self.provider}://{self.bucket}" if self.bucket else ""

    @property
    def url(self) -> str:
        """The object in texts of errors."""
        return f"{self.bucket_url}/{self.key}"

    @property
    def name(self) -> str:
        """The object's name in the store. Raises Refusal for one that no object can have."""
        return name_of(self.key)

    def open_bucket(self) -> Bucket:
        """Return the bucket. One that is named with a remote provider must have its place there. Raises AISError."""
        return self.named_bucket(self.bucket, self.provider)

    def named_bucket(self, name: str, provider: str = "ais", *, must_exist: bool = False) -> Bucket:
        """Return any bucket. Raises AISError if there is none of this name and provider, as far as that is checked."""
        bucket = self.client.bucket(name)
        if provider != "ais" or must_exist:
            try:
                info = bucket.info()
            except BucketNotFound:
                raise bucket_not_found(f"{provider}://{name}") from None
            if provider not in ("ais", provider_of(info)):
                raise bucket_not_found(f"{provider}://{name}")
        return bucket


def text_response(text: str, status: int = 200) -> Response:
    return Response(status, {"content-type": "text/plain; charset=utf-8"}, text.encode())


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(value).encode())
