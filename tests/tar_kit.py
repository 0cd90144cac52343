"""Tar in memory, as the standard library writes it, for every folder of tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping


def packed_tar(
    members: Mapping[str, bytes] | Iterable[tuple[str, bytes]],
    mode: str = "w:",
    *,
    tar_format: int = tarfile.DEFAULT_FORMAT,
    encoding: str = "utf-8",
) -> bytes:
    """`mode`: of `tarfile.open`. Pairs, unlike a mapping, may name a member twice."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, format=tar_format, encoding=encoding) as archive:  # type: ignore[call-overload]
        for name, data in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
