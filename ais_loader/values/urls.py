"""URL parsing: `ais://bucket/name` and `ais://bucket/shard.tar/member`, and addresses of stores: nodes and folders.

The rest of the URL is taken literally: `#`, `?` and `%` are ordinary characters of object names.
"""

from __future__ import annotations

import ipaddress
import os
import re

from ais_loader.errors import InvalidRequest
from ais_loader.name_matching import did_you_mean

SCHEME = "ais://"
SECURE_SCHEME = "grpcs://"
"""Scheme of nodes that are called with TLS."""
ENDPOINT_SCHEMES = ("grpc://", SECURE_SCHEME)
NODE_SCHEME = "node://"
"""Scheme of the folders of a store that a node of this host serves, started on demand."""
ARCHIVE_EXTENSIONS = (".tar", ".tar.gz", ".tgz", ".tar.lz4", ".tlz4", ".tar.zst", ".tzst", ".zip")
"""Extensions, in any case of letters, of objects whose members a node indexes."""


_WINDOWS_PATH = re.compile(r"[A-Za-z]:(?:[\\/].*)?|\\\\.*", re.DOTALL)
_WITH_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*)", re.DOTALL)


def split_url(url: str) -> tuple[str, str]:
    """Split into the bucket and everything after it. Raises InvalidRequest, TypeError."""
    if not isinstance(url, str):
        raise TypeError(f"need a URL like ais://bucket/name, got {type(url).__name__}")
    if not url.startswith(SCHEME):
        raise InvalidRequest(f"{url!r}: need a URL like ais://bucket/name")
    bucket, slash, name = url[len(SCHEME) :].partition("/")
    if not bucket or not slash or not name:
        raise InvalidRequest(f"{url!r}: need both a bucket and a name, as in ais://bucket/name")
    return bucket, name


def split_member(name: str) -> tuple[str, str | None]:
    """Split into object and member: the name is cut after the first component that has an archive's extension."""
    at = name.find("/")
    while at != -1:
        component = name[name.rfind("/", 0, at) + 1 : at]
        if component.lower().endswith(ARCHIVE_EXTENSIONS) and at + 1 < len(name):
            return name[:at], name[at + 1 :]
        at = name.find("/", at + 1)
    return name, None


def is_host_port(text: str) -> bool:
    """Whether the text is HOST:PORT, with a valid port."""
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in text and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16


def is_remote(url: str) -> bool:
    """Whether the store is behind nodes: `grpc://`, `grpcs://` or `node:///`."""
    return url.startswith((*ENDPOINT_SCHEMES, NODE_SCHEME))


def endpoints_of(url: str) -> list[str]:
    """Return the endpoints in the URL of nodes. Raises InvalidRequest if only some are called with TLS."""
    parts = url.split(",")
    if len({part.startswith(SECURE_SCHEME) for part in parts if part.startswith(ENDPOINT_SCHEMES)}) > 1:
        raise InvalidRequest(f"{url!r}: need grpcs:// for all endpoints, or grpc://")
    return [part.removeprefix("grpc://").removeprefix(SECURE_SCHEME) for part in parts]


def store_folders(url: str) -> list[str]:
    """Return the folders that a URL of an embedded store, or of a node on demand, names, with `~` expanded.

    Raises InvalidRequest for an empty path, for an unknown user's home, for any other scheme, and for the address of a
    machine, which would be a folder of that name.
    """
    folders = []
    scheme = NODE_SCHEME if url.startswith(NODE_SCHEME) else "file://"
    for part in url.split(","):
        folder = part.removeprefix(scheme)
        if folder == part:
            _refuse_addresses(url, part)
        elif folder and not folder.startswith(("/", "~")):
            whole = os.path.abspath(folder)
            raise InvalidRequest(f"{url!r}: a path follows the two slashes of {scheme}; need {scheme}{whole}")
        folders.append(os.path.expanduser(folder))
    if not all(folders):
        raise InvalidRequest(f"{url!r} names an empty path")
    for folder in folders:
        if folder.startswith("~"):
            user = folder.partition("/")[0]
            raise InvalidRequest(
                f"{folder!r}: there is no home folder {user!r}; a folder of that name is {os.path.abspath(folder)}"
            )
    return folders


def _refuse_addresses(url: str, part: str) -> None:
    """Reject a part of `url` that is apparently not meant as a path. Raises InvalidRequest."""
    if os.name != "nt" and _WINDOWS_PATH.fullmatch(part):
        raise InvalidRequest(
            f"{url!r} is a Windows path, and this is not Windows: need a path such as /data/store (in WSL, drive C: is "
            f"/mnt/c); to use a folder of that name, write {os.path.join(os.curdir, part)!r}"
        )
    if (parted := _WITH_SCHEME.fullmatch(part)) is not None:
        scheme, rest = parted[1], parted[2].strip("/")
        lower = scheme.lower()
        if lower in ("grpc", "grpcs", "http", "https"):
            raise InvalidRequest(f"{url!r}: a storage node's URL is grpc://{rest or 'HOST:PORT'}")
        if lower == "file":
            raise InvalidRequest(f"{url!r}: need file:///{rest}, or the path alone")
        if lower == "node":
            raise InvalidRequest(f"{url!r}: need node:///{rest}, for all drives of the store")
        if part.startswith(SCHEME):
            raise InvalidRequest(
                f"{url!r} names something in a store, not the store: connect to the store itself, by its path, "
                f"file:///path or grpc://host:port, and then use client.bucket({rest.partition('/')[0]!r})"
            )
        if lower in ("s3", "gs", "az"):
            raise InvalidRequest(
                f"{url!r} is storage outside, not a store: connect to a store, and then use client.create_bucket(NAME, "
                f"remote={url!r})"
            )
        hint = did_you_mean(lower, ("file", "node", "grpc", "grpcs"), cutoff=0.7)
        raise InvalidRequest(
            f"{url!r}: unknown scheme {scheme!r}; need file:///path, a path, node:///path, or grpc://host:port{hint}"
        )
    if part.startswith("$"):
        raise InvalidRequest(
            f"{url!r}: {part.partition('/')[0]} is a variable of the shell, which is not replaced here: pass the path "
            f"through os.path.expandvars; a folder of that name is {os.path.abspath(part)}"
        )
    bare = part.rstrip("/")
    if is_host_port(bare):
        nodes = "grpc://" + ",".join(one.rstrip("/") for one in url.split(","))
        raise InvalidRequest(f"{url!r} has no scheme: need {nodes}; a folder of that name is {os.path.abspath(url)}")
    if bare == "localhost" or _is_ip_address(bare):
        raise InvalidRequest(
            f"{url!r} is the address of a machine: need grpc://{bare}:PORT, where PORT is 7480 unless the node was "
            f"started with another; a folder of that name is {os.path.abspath(bare)}"
        )


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
