"""Shards: one request adds one member to a tar."""

from __future__ import annotations

import io
import tarfile

from storage_node.gateway.aistore import attributes
from storage_node.gateway.aistore.errors import AISError
from storage_node.gateway.aistore.request import Request
from storage_node.gateway.request import Response

FLAGS = "ais-pine"
MAX_MEMBER_BYTES = 64 << 20
_APPEND, _APPEND_IF_EXISTS = 1, 2


def put_member(request: Request) -> Response:
    """Add a member to a tar. Without a flag, the tar is a new one, which has only this member. Raises AISError.

    The header `Ais-Pine` is 1 if the tar must exist, and 2 if it may.
    """
    path, text = request.query["archpath"].lstrip("/"), request.headers.get(FLAGS, "0").strip()
    if not path:
        raise AISError(400, "archpath: need the name of a member")
    if text not in ("", "0", "1", "2"):
        raise AISError(400, f"{FLAGS}: need 0, 1 or 2")
    flags, bucket = int(text or "0"), request.open_bucket()
    data = request.body.read() if request.body is not None else b""
    if flags == _APPEND:
        bucket.head(request.name)
    if flags in (_APPEND, _APPEND_IF_EXISTS):
        return Response(headers=attributes.headers_of(bucket.append_members(request.name, [(path, data)])))
    if not request.key.lower().endswith(".tar"):
        raise AISError(501, f"{request.url}: members can be put only into plain tars", "ErrUnsupp")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(path)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return Response(headers=attributes.headers_of(bucket.put(request.name, packed.getvalue())))
