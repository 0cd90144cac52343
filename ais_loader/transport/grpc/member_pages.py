"""Paged listing of the members of one version of an archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ais_loader import errors
from ais_loader.transport.validation import require_object, require_text
from ais_loader.values.entry import MemberInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb


def listed_members(
    ask: Callable[[pb.ListMembersRequest], pb.ListMembersResponse], bucket: str, name: str, prefix: str, page_size: int
) -> Iterator[MemberInfo]:
    """Raises what `ask` raises: ObjectNotFound also when the archive is replaced between two pages."""
    require_object(bucket, name)
    require_text(prefix, errors.InvalidRequest, "prefix")
    request = pb.ListMembersRequest(bucket=bucket, name=name, prefix=prefix, page_size=min(page_size, 2**32 - 1))
    while True:
        page = ask(request)
        for member, size_bytes, checksum in zip(page.name, page.size, page.checksum, strict=True):
            yield MemberInfo(bucket, name, member, size_bytes, checksum, page.version, page.hidden)
        if not page.next:
            return
        request.first, request.version = page.next, page.version
