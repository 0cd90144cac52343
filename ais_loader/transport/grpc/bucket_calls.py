"""Bucket calls over gRPC, to one node. For a cluster, see cluster/transport.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ais_loader import errors
from ais_loader.transport.base import BucketChange, BucketInfo
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.waiting import answered
from ais_loader.transport.validation import require_bucket, require_text
from ais_loader.wire.generated import ais_objects_pb2 as pb

T = TypeVar("T")


class BucketCalls(ABC):
    """The part of a transport to one node that makes these calls."""

    @abstractmethod
    def _call(self, call: Callable[[Connection], T], *, retry: bool = True) -> T: ...

    def create_bucket(
        self, name: str, *, copies: int, exist_ok: bool, min_copies: int = 1, reframe: bool = False
    ) -> BucketInfo:
        require_text(name, errors.InvalidName, "bucket name")
        request = pb.CreateBucketRequest(
            name=name,
            copies=copies,
            exist_ok=exist_ok,
            min_copies=min_copies,
            reframe=reframe,
        )
        return _bucket_info(self._call(lambda here: here.buckets.CreateBucket(request, timeout=CALL_TIMEOUT_S)))

    def bucket(self, name: str, *, has_others: bool = False) -> BucketInfo:
        """`has_others`: whether another node can be asked if this one does not answer."""
        require_bucket(name)
        request = pb.GetBucketRequest(name=name)
        return _bucket_info(
            self._call(lambda here: answered(here, here.buckets.GetBucket, request, has_others=has_others))
        )

    def buckets(self, *, has_others: bool = False) -> list[BucketInfo]:
        request = pb.ListBucketsRequest()
        answer = self._call(lambda here: answered(here, here.buckets.ListBuckets, request, has_others=has_others))
        return [_bucket_info(bucket) for bucket in answer.bucket]

    def set_bucket(self, name: str, change: BucketChange) -> BucketInfo:
        require_bucket(name)
        request = pb.SetBucketRequest(name=name)
        if change.reframe is not None:
            request.reframe = change.reframe
        if change.copies is not None:
            request.copies = change.copies
        if change.min_copies is not None:
            request.min_copies = change.min_copies
        return _bucket_info(self._call(lambda here: here.buckets.SetBucket(request, timeout=CALL_TIMEOUT_S)))

    def delete_bucket(self, name: str, *, force: bool) -> int:
        require_bucket(name)
        request = pb.DeleteBucketRequest(name=name, force=force)
        # No deadline: the duration depends on the number of objects. A lost answer leaves the bucket deleted.
        return int(self._call(lambda here: here.buckets.DeleteBucket(request), retry=False).deleted_objects)


def _bucket_info(bucket: pb.Bucket) -> BucketInfo:
    return BucketInfo(
        bucket.name, bucket.uuid.hex(), bucket.copies, bucket.min_copies or 1, bucket.reframe, bucket.settling
    )
