"""URL parsing: `ais://bucket/name` and `ais://bucket/shard.tar/member`, and where stores are: nodes and folders.

The rest of the URL is taken literally: `#`, `?` and `%` are ordinary characters of object names.
"""

from __future__ import annotations

import os

from ais_loader.errors import InvalidRequest

SCHEME = "ais://"
ARCHIVE_EXTENSIONS = (".tar", ".tar.gz", ".tgz", ".tar.lz4", ".tlz4", ".tar.zst", ".tzst", ".zip")
"""Of objects whose members a node indexes, in any case of letters."""


def split_url(url: str) -> tuple[str, str]:
    """Bucket and everything after it. Raises InvalidRequest."""
    if not url.startswith(SCHEME):
        raise InvalidRequest(f"{url!r}: need an Entry, or a URL like ais://bucket/name")
    bucket, slash, name = url[len(SCHEME) :].partition("/")
    if not bucket or not slash or not name:
        raise InvalidRequest(f"{url!r}: need both a bucket and a name, as in ais://bucket/name")
    return bucket, name


def split_member(name: str) -> tuple[str, str | None]:
    """Object and member: the name is cut after the first component that ends in an archive's extension."""
    at = name.find("/")
    while at != -1:
        component = name[name.rfind("/", 0, at) + 1 : at]
        if component.lower().endswith(ARCHIVE_EXTENSIONS) and at + 1 < len(name):
            return name[:at], name[at + 1 :]
        at = name.find("/", at + 1)
    return name, None


def is_host_port(text: str) -> bool:
    """Whether it is HOST:PORT, with a port that there can be."""
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in text and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16


def store_folders(url: str) -> list[str]:
    """The folders that a URL of an embedded store names, with `~` as the home folder that it stands for.

    Raises InvalidRequest for an empty path, for an unknown user's home, and for HOST:PORT, which is a node's address
    and would be a folder of that name.
    """
    parts = url.split(",")
    if any(is_host_port(part.rstrip("/")) for part in parts):
        nodes = "grpc://" + ",".join(part.rstrip("/") for part in parts)
        raise InvalidRequest(f"{url!r} has no scheme: need {nodes}; a folder of that name is {os.path.abspath(url)}")
    folders = [os.path.expanduser(part.removeprefix("file://")) for part in parts]
    if not all(folders):
        raise InvalidRequest(f"{url!r} names an empty path")
    for folder in folders:
        if folder.startswith("~"):
            user = folder.partition("/")[0]
            raise InvalidRequest(
                f"{folder!r}: there is no home folder {user!r}; a folder of that name is {os.path.abspath(folder)}"
            )
    return folders
