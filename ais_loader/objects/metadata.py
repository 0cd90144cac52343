"""Metadata change of an object with the same bytes: the store copies them, so no client sends them again."""

from __future__ import annotations

from collections.abc import Mapping

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.put_spec import check_version, make_range, make_request
from ais_loader.transport.base import require_metadata
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import is_reserved

_TRIES = 100


class BucketMetadata(BucketPart):
    """Changes of metadata."""

    def set_metadata(self, name: str, metadata: Mapping[str, str], *, if_version: str | None = None) -> ObjectInfo:
        """Replace an object's metadata. This makes a new version of the object with the same bytes.

        Keys that begin with "ais." are set by the store alone: those that the object has stay. They may be
        passed as they are, such as in a changed copy of `ObjectInfo.metadata`.

        The store copies the bytes, without sending them through this process. If another writer replaces the object
        meanwhile, that writer's bytes are kept. With `if_version`, the object must have this version.

        Raises ObjectNotFound, BucketNotFound, InvalidRequest, VersionConflict, DriveFull, NodeUnavailable.
        """
        if if_version is not None:
            check_version(if_version)
        transport, bucket = self._transport, self.name
        if not isinstance(metadata, Mapping):
            raise errors.InvalidRequest(f"metadata maps str to str, got {type(metadata).__name__}")
        own = {key: value for key, value in metadata.items() if isinstance(key, str) and is_reserved(key)}
        if own:
            # The store keeps its own keys as they are, so metadata that was read may be written back with them.
            stored = transport.head(bucket, name).metadata
            metadata = {key: value for key, value in metadata.items() if key not in own or stored.get(key) != value}
        require_metadata(metadata)
        for tries_left in reversed(range(_TRIES)):
            version = if_version or transport.head(bucket, name).version
            request = make_request(bucket, name, [make_range(bucket, name, version)], metadata=dict(metadata))
            # Replace exactly the version whose bytes are copied, so that a concurrent put is not undone.
            request.object.condition.CopyFrom(pb.PutCondition(if_version=version))
            try:
                return transport.compose(request, None)
            except (errors.VersionConflict, errors.ObjectNotFound) as error:
                if if_version is not None and isinstance(error, errors.ObjectNotFound):
                    found = errors.VersionConflict(f"{bucket}/{name}: wanted version {if_version}: {error}")
                    raise found.caused_by(error) from None
                if if_version is not None or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")
