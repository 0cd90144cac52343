"""Settings of a bucket, as callers, transports, nodes and stores pass them on to create or change a bucket."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.remote import Remote


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Settings that are requested for a bucket. None leaves a setting as it is, and a new bucket at its default.

    Documented at `Client.create_bucket`.
    """

    copies: int | None = None
    min_copies: int | None = None
    remote: Remote | Literal[""] | None = None
    """An empty string removes it; the stored objects stay."""
    quota_bytes: int | None = None
    quota_objects: int | None = None
    redundancy: str | None = None

    @classmethod
    def from_wire(cls, request: pb.CreateBucketRequest | pb.SetBucketRequest) -> Self:
        """Return the settings that a request names. Raises InvalidRequest."""
        names = {field.name for field in fields(cls)}
        named: dict[str, Any] = {field.name: value for field, value in request.ListFields() if field.name in names}
        if "remote" in named:
            named["remote"] = Remote.from_wire(request.remote) if request.remote.url else ""
        return cls(**named)

    def write_to(self, request: pb.CreateBucketRequest | pb.SetBucketRequest) -> None:
        """Name these settings in a request."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "remote" and value is not None:
                request.remote.CopyFrom(value.to_wire() if value else pb.Remote())
            elif value is not None:
                setattr(request, field.name, value)
