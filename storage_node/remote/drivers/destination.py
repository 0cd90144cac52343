"""Destination: the server of a remote location, the credentials that it may receive, and the way to it.

A client names the location, and the operator has the credentials. So these go to the places that they are for, and to
no other: a profile's to its endpoint and its `hosts`, or to the cloud's own hosts if it names neither; those of the
environment to its endpoint and the cloud's own hosts. Requests go to these, and to what `remote_hosts` lists.
"""

from __future__ import annotations

import urllib.request
from dataclasses import replace

from ais_loader.errors import RemoteDenied
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.credentials import Credentials
from storage_node.remote.drivers.gate import Gate, Place
from storage_node.security.rights.scopes import matches
from storage_node.settings.host_patterns import ANY, HostPatterns, UrlOrigin

DEFAULT_REGION = "us-east-1"
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables of the environment, by scheme."""


class Destination:
    """Server of one location.

    Args:
        hosts: the setting `remote_hosts`.

    Raises RemoteDenied if the server may not be reached, or if a profile is named that is not for it.
    """

    def __init__(self, remote: Remote, credentials: Credentials, hosts: tuple[str, ...]) -> None:
        self._remote, self._credentials = remote, credentials
        self.region = remote.region or credentials.text("region", "AWS_REGION", "AWS_DEFAULT_REGION") or DEFAULT_REGION
        named = credentials.text("endpoint", *_ENDPOINTS.get(remote.scheme, ()))
        self.url = (remote.endpoint or named or self._default()).rstrip("/")
        """URL of the service, without the bucket; of a web server, that of the remote."""
        try:
            self.origin = UrlOrigin.of(self.url)
            self._is_named = named != "" and UrlOrigin.of(named) == self.origin
            self._of_profile = HostPatterns(tuple(credentials.values.get("hosts", ())), "https")
        except ValueError as error:
            raise RemoteDenied(f"{remote.url}: {credentials.profile}: {error}") from None
        self._is_free = hosts == (ANY,)
        self._hosts = HostPatterns(() if self._is_free else hosts)
        self.credentials = self._permitted()
        self.place = self._place()

    def _default(self) -> str:
        match self._remote.scheme:
            case "s3":
                return f"https://s3.{self.region}.amazonaws.com"
            case "gs":
                return "https://storage.googleapis.com"
            case "az":
                if account := self._credentials.text("account_name", "AZURE_STORAGE_ACCOUNT_NAME"):
                    return f"https://{account}.blob.core.windows.net"
                raise RemoteDenied(
                    f"{self._remote.url}: Account must be specified: account_name, or AZURE_STORAGE_ACCOUNT_NAME"
                )
            case _:
                return self._remote.url

    def _permitted(self) -> Credentials:
        """Return the credentials that this server may receive: those that are given, or none."""
        given, origin = self._credentials, self.origin
        none = replace(given, values={**given.values, "anonymous": True})
        if given.is_anonymous:
            return none
        if not given.profile:
            is_for = self._is_free or self._is_named or origin.is_cloud
            return given if is_for else none
        buckets = given.values.get("buckets")
        bucket = self._remote.url.partition("://")[2].partition("/")[0]
        if buckets is not None and not any(matches(one, bucket) for one in buckets):
            raise RemoteDenied(
                f"{self._remote.url}: profile {given.profile!r} is not for this bucket; see its `buckets`"
            )
        if self._remote.scheme.startswith("http"):
            is_for = "bearer_token" not in given.values or self._of_profile.has(origin)
        elif not given.has_secret:  # obstore takes those of the environment, or of the machine's role
            is_for = origin.is_cloud
        else:
            names_none = not self._of_profile.texts and "endpoint" not in given.values
            is_for = self._is_named or self._of_profile.has(origin) or (names_none and origin.is_cloud)
        if not is_for:
            shown = f"{origin.scheme}://{origin.host}:{origin.port}"
            raise RemoteDenied(
                f"{self._remote.url}: profile {given.profile!r} is not for {shown}: its credentials are sent to its "
                "endpoint and its `hosts` alone, to which the operator can add this server"
            )
        return given

    def _place(self) -> Place:
        remote, origin = self._remote, self.origin
        is_named_by_client = remote.endpoint or remote.scheme.startswith("http")
        if self._is_free or self._is_named or origin.is_cloud or not is_named_by_client:
            return Place(origin, None)
        if not self._hosts.has(origin) and not self._of_profile.has(origin):
            raise RemoteDenied(
                f"{remote.url}: no requests are sent to {origin.host}:{origin.port}: remote_hosts does not list it"
            )
        place = Place(origin, HostPatterns((*self._hosts.texts, *self._of_profile.texts)))
        try:
            place.addresses()
        except PermissionError as error:
            raise RemoteDenied(f"{remote.url}: {origin.host}: {error}") from None
        except OSError:
            pass  # the request tells what is wrong with the name
        return place

    def client_options(self, gate: Gate) -> dict[str, str]:
        """Return obstore's options for the way to the server: through the gate, or the web proxy of the environment.

        The gate costs processor time, 0.3 s for a GiB. Directly connected are the clouds' own hosts, and those that the
        operator named, unless a redirect within such a host would take a session token along; and the services from
        which obstore requests credentials, with the servers that receive these.
        """
        given = self.credentials
        has_token = not given.is_unsigned and given.text("session_token", "AWS_SESSION_TOKEN", "AWS_TOKEN") != ""
        if (self._is_free and not has_token) or self._fetches_credentials:
            return {}
        if proxy := _web_proxy(self.origin):
            return {"proxy_url": proxy}
        options = {"proxy_url": gate.url(self.place)}
        if self.origin.is_cloud or (self.place.hosts is None and not has_token):
            options["proxy_excludes"] = self.origin.host
        return options

    @property
    def _fetches_credentials(self) -> bool:
        given = self.credentials
        if given.is_unsigned:
            return False
        match self._remote.scheme:
            case "s3":
                return not given.text("access_key_id", "AWS_ACCESS_KEY_ID")
            case "az":
                return not given.azure_key and not given.azure_sas
            case scheme:
                return scheme == "gs"


def _web_proxy(origin: UrlOrigin) -> str:
    """Return the URL of the environment's proxy for a server; "" if there is none."""
    server = f"{origin.host}:{origin.port}"
    if origin.host == "localhost" or origin.host.startswith("127.") or urllib.request.proxy_bypass(server):
        return ""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(origin.scheme) or proxies.get("all", "")
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"
