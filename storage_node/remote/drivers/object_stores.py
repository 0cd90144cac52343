"""ObjectStores: obstore's stores for one remote location, each made when it is first needed.

obstore runs threads of its own, which do not survive a fork. Nothing here imports it before a location is opened.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from datetime import timedelta
from email.utils import formatdate
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ais_loader.errors import Unsupported
from ais_loader.extras import needs
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.destination import Destination

_CONNECT_S = 5.0
_WHOLE_REQUEST_S = 3600.0
"""Limit on a whole request, including the time that the reader of its answer takes."""
_PUT_FACTOR = 10
"""An answer to a PUT may take this many times longer: the client's timer starts before the content is sent."""
_PART_RETRIES = 8
_AZURE_VERSION = "2023-11-03"
"""Version of the interface for listings; obstore has its own."""


def obstore_module() -> Any:
    """Import obstore. Raises Unsupported if it is not installed."""
    with needs("obstore", "remote buckets", Unsupported):
        import obstore
        import obstore.store
    return obstore


class ObjectStores:
    """Stores of one location.

    Args:
        timeout_s: limit on the silence of the storage.
        way: obstore's options for connections; see `Destination.client_options`.

    Raises Unsupported if obstore is not installed. Its stores raise obstore's errors if the location is incomplete.
    """

    def __init__(self, remote: Remote, destination: Destination, timeout_s: float, way: Mapping[str, str]) -> None:
        self.remote = remote
        self.credentials = destination.credentials
        self.endpoint, self.region = destination.url, destination.region
        self.timeout_s = timeout_s
        self.way = way
        self._obstore = obstore_module()
        self.bucket, _, prefix = remote.url.partition("://")[2].partition("/")
        self.prefix = prefix + "/" if prefix and not remote.scheme.startswith("http") else ""
        """Prefix of keys before the names."""

    @cached_property
    def reader(self) -> Any:
        """The store for everything but puts. It does not retry, as `Backend` does."""
        return self._store(self.timeout_s, 0)

    @cached_property
    def writer(self) -> Any:
        return self._store(self.timeout_s * _PUT_FACTOR, 0)

    @cached_property
    def part_writer(self) -> Any:
        """The store for puts in parts. It retries parts by itself: only obstore has their bytes then."""
        return self._store(self.timeout_s * _PUT_FACTOR, _PART_RETRIES)

    @property
    def host(self) -> str:
        """Name of the server, by which requests are limited."""
        return urlsplit(self.endpoint).netloc

    def signed_url(self, query: str) -> str:
        """Return the URL of a GET on a bucket of S3 or Google itself, with this query, signed for some minutes.

        obstore signs the URL of an object only. The query is therefore part of the store's endpoint, and the object's
        name ends up in a parameter that the service ignores. Raises obstore's errors.
        """
        is_google = self.remote.scheme == "gs"
        bucket = f"{self.endpoint}/{self.bucket}"
        if self.credentials.is_unsigned:
            return f"{bucket}?{query}"
        padded, client, retry = f"{bucket}?{query}&x-pad=", self._client(self.timeout_s), self._retry(0)
        if is_google:
            store = self._gcs(client, retry, base_url=padded)
        else:
            store = self._s3(padded, client, retry, virtual_hosted_style_request=True)
        return str(self._obstore.sign(store, "GET", "list", timedelta(minutes=5)))

    @property
    def can_list_azure(self) -> bool:
        """Whether `azure_listing_request` has what it needs; not with tokens of roles, which only obstore has."""
        return self.credentials.is_anonymous or (
            bool(self.credentials.azure_key or self.credentials.azure_sas) and bool(self._azure_account)
        )

    def azure_listing_request(self, query: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """Return the signed URL and the headers of a GET on an Azure container itself."""
        url = f"{self.endpoint}/{self.bucket}?{urlencode(query, quote_via=quote)}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _AZURE_VERSION}
        if self.credentials.is_anonymous:
            return url, headers
        if not self.credentials.azure_key:
            return f"{url}&{self.credentials.azure_sas}", headers
        account = self._azure_account
        resource = "".join(f"\n{name}:{value}" for name, value in sorted(query.items()))
        text = "GET" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
        text += f"/{account}{urlsplit(url).path}{resource}"
        digest = hmac.digest(base64.b64decode(self.credentials.azure_key), text.encode(), "sha256")
        return url, {**headers, "Authorization": f"SharedKey {account}:{base64.b64encode(digest).decode()}"}

    @property
    def _azure_account(self) -> str:
        return self.credentials.text("account_name", "AZURE_STORAGE_ACCOUNT_NAME")

    def _client(self, silence_s: float) -> Mapping[str, Any]:
        allow_http = self.credentials.values.get("allow_http")
        client: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=min(_CONNECT_S, silence_s)),
            "read_timeout": timedelta(seconds=silence_s),
            "timeout": timedelta(seconds=max(_WHOLE_REQUEST_S, silence_s)),
            "allow_http": self.endpoint.startswith("http://") if allow_http is None else allow_http,
            **self.way,
        }
        if token := self.credentials.text("bearer_token"):
            client["default_headers"] = {"authorization": f"Bearer {token}"}
        return client

    def _retry(self, times: int) -> Mapping[str, Any]:
        return {"max_retries": times, "retry_timeout": timedelta(seconds=self.timeout_s * _PUT_FACTOR)}

    def _store(self, silence_s: float, retries: int) -> Any:
        client, retry = self._client(silence_s), self._retry(retries)
        match self.remote.scheme:
            case "s3":
                return self._s3(self.endpoint, client, retry)
            case "gs":
                return self._gcs(client, retry)
            case "az":
                return self._azure(client, retry)
            case _:
                return self._obstore.store.HTTPStore(self.remote.url, client_options=client, retry_config=retry)

    def _s3(self, endpoint: str, client: Mapping[str, Any], retry: Mapping[str, Any], **config: Any) -> Any:
        credentials = self.credentials
        provider = None
        if credentials.has_keys:
            # Not as configuration, to which obstore adds what the environment has: it might sign with the profile's
            # keys and the environment's session token.
            keys = {
                "access_key_id": credentials.text("access_key_id"),
                "secret_access_key": credentials.text("secret_access_key"),
                "token": credentials.text("session_token") or None,
                "expires_at": None,
            }
            provider = lambda: keys  # noqa: E731
        return self._obstore.store.S3Store(
            self.bucket,
            config={
                "endpoint": endpoint,
                "aws_endpoint_url_s3": endpoint,  # that of the environment would take precedence
                "region": self.region,
                "skip_signature": self.credentials.is_unsigned,
                "virtual_hosted_style_request": False,
                "disable_bulk_delete": True,
                **config,
            },
            client_options=client,
            retry_config=retry,
            credential_provider=provider,
        )

    def _gcs(self, client: Mapping[str, Any], retry: Mapping[str, Any], **changed: Any) -> Any:
        # Google inflates what is stored with Content-Encoding: gzip, unless the client says that it can.
        client = {**client, "default_headers": {"accept-encoding": "gzip"}}
        config: dict[str, Any] = {"skip_signature": self.credentials.is_anonymous, "base_url": self.endpoint}
        if path := self.credentials.text("service_account_path"):
            config["service_account"] = path
        config.update(changed)
        return self._obstore.store.GCSStore(self.bucket, config=config, client_options=client, retry_config=retry)

    def _azure(self, client: Mapping[str, Any], retry: Mapping[str, Any]) -> Any:
        credentials = self.credentials
        config: dict[str, Any] = {"skip_signature": credentials.is_anonymous, "endpoint": self.endpoint}
        if account := credentials.text("account_name"):
            config["account_name"] = account
        key: dict[str, Any] = {}
        if "account_key" in credentials.values:
            key = {"access_key": credentials.text("account_key"), "expires_at": None}
        elif "sas_token" in credentials.values:
            key = {"sas_token": credentials.text("sas_token").lstrip("?"), "expires_at": None}
        return self._obstore.store.AzureStore(
            self.bucket,
            config=config,
            client_options=client,
            retry_config=retry,
            credential_provider=(lambda: key) if key else None,
        )
