"""URL parsing: `ais://bucket/name` and `ais://bucket/shard.tar/member`, and addresses of nodes.

The rest of the URL is taken literally: `#`, `?` and `%` are ordinary characters of object names.
"""

from __future__ import annotations

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
