"""Credentials: how a node authenticates at remote storage, from its environment or from a profile.

[cluster-a]                     # a section is a profile
access_key_id = "..."           # S3 and services compatible with it
secret_access_key = "..."
endpoint = "https://minio.example.org:9000"
region = "eu-central-1"
buckets = ["corpus", "team-*"]  # it is for these alone

[web]
bearer_token = "..."
hosts = ["data.example.org", "http://10.0.0.7:8080"]  # who may receive it; without a scheme, by https alone

[public]
anonymous = true                # requests are not signed

The file is the setting `remote_profiles`. It is read whenever a remote location is opened, so that it can be changed
while the node runs.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader.errors import RemoteDenied
from ais_loader.wire.remote import Remote
from storage_node.store.permissions import others_access, trusted_bytes

_KEYS: Mapping[str, Mapping[str, Any]] = {
    "s3": {
        "access_key_id": str,
        "secret_access_key": str,
        "session_token": str,
        "endpoint": str,
        "hosts": list,
        "buckets": list,
        "region": str,
        "allow_http": bool,
        "anonymous": bool,
    },
    "gs": {"service_account_path": str, "endpoint": str, "buckets": list, "allow_http": bool, "anonymous": bool},
    "az": {
        "account_name": str,
        "account_key": str,
        "sas_token": str,
        "endpoint": str,
        "buckets": list,
        "allow_http": bool,
        "anonymous": bool,
    },
    "http": {"bearer_token": str, "hosts": list},
    "https": {"bearer_token": str, "hosts": list},
    "file": {},
}
"""Keys of a profile, by the scheme that uses them, and the types of their values."""
_KNOWN = {key: kind for keys in _KEYS.values() for key, kind in keys.items()}
_NEEDS = {str: "a text", bool: "true or false", list: "a list of texts"}
_SECRET_KEYS = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token", "bearer_token")
_SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
_SECRET_AT_LEAST = 4
"""Shorter values are not removed from messages: they would occur by chance."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Values of one profile, or of the environment.

    Raises RemoteDenied if the profile lacks a part of a key pair.
    """

    profile: str = ""
    values: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """The process's environment; empty if a profile is named, so that the two are never mixed."""

    def __post_init__(self) -> None:
        pair = ("access_key_id", "secret_access_key")
        if sum(key in self.values for key in pair) == 1 or ("session_token" in self.values and not self.has_keys):
            raise RemoteDenied(f"profile {self.profile!r}: need both of {' and '.join(pair)}")

    @property
    def has_keys(self) -> bool:
        return "access_key_id" in self.values and "secret_access_key" in self.values

    @property
    def is_anonymous(self) -> bool:
        return bool(self.values.get("anonymous", False))

    @property
    def is_unsigned(self) -> bool:
        """Whether requests are sent without credentials."""
        return self.is_anonymous or self.text("", "AWS_SKIP_SIGNATURE").lower() in ("true", "1")

    @property
    def has_secret(self) -> bool:
        """Whether the profile has credentials of its own."""
        return any(key in self.values for key in (*_SECRET_KEYS, "service_account_path"))

    @property
    def azure_key(self) -> str:
        names = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
        return self.text("account_key", *names)

    @property
    def azure_sas(self) -> str:
        return self.text("sas_token", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN").lstrip("?")

    def text(self, key: str, *variables: str) -> str:
        """Return a value of the profile, or else the first variable of the environment that is set; otherwise ""."""
        if key in self.values:
            return str(self.values[key])
        return next((value for name in variables if (value := self.environment.get(name, ""))), "")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no message may contain, the longest first."""
        values = {str(self.values[key]) for key in _SECRET_KEYS if key in self.values}
        values |= {os.environ.get(name, "") for name in _SECRET_VARIABLES}
        return tuple(sorted((one for one in values if len(one) >= _SECRET_AT_LEAST), key=len, reverse=True))


def credentials_of(remote: Remote, profiles: str | Path = "") -> Credentials:
    """Return the credentials for one place.

    Args:
        profiles: path of the file of profiles; "" if there is none.

    Raises RemoteDenied if the named profile cannot be used. The message names no value of the file.
    """
    if not remote.profile:
        return Credentials(environment=dict(os.environ))
    if not profiles:
        raise RemoteDenied(
            f"{remote.url}: profile {remote.profile!r}: this node has no file of profiles; set remote_profiles"
        )
    section = _read(Path(profiles)).get(remote.profile)
    if section is None:
        raise RemoteDenied(f"{remote.url}: there is no profile {remote.profile!r} in {profiles} (remote_profiles)")
    where = f"{profiles}: [{remote.profile}]"
    if not isinstance(section, dict):
        raise RemoteDenied(f"{where}: need a section")
    usable = _KEYS[remote.scheme]
    for key, value in section.items():
        if key not in _KNOWN:
            raise RemoteDenied(f"{where}: unknown key {key!r}; known are {', '.join(sorted(_KNOWN))}")
        if key not in usable:
            raise RemoteDenied(f"{where}: {key!r} is not a key for {remote.scheme}://; these are {', '.join(usable)}")
        kind = _KNOWN[key]
        if type(value) is not kind or value == "" or (kind is list and not all(isinstance(one, str) for one in value)):
            raise RemoteDenied(f"{where}: {key!r}: need {_NEEDS[kind]}")
    return Credentials(remote.profile, section)


def _read(path: Path) -> Mapping[str, Any]:
    """Read the file of profiles. Raises RemoteDenied."""
    try:
        access, text = others_access(path), trusted_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RemoteDenied(f"{path} (remote_profiles) cannot be read: {reason}") from None
    if access:
        raise RemoteDenied(f"{path} (remote_profiles): {access}; run `chmod 600 {path}`")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Its message has a line and a column, and no text of the file.
        raise RemoteDenied(f"{path} (remote_profiles) is not valid TOML: {error}") from None
