"""Entry statuses of a batch: what fails does so in its place, with a status and a fault, while the others go on."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ObjectDeleted
from ais_loader.wire.frame import U8, U32, EntryFault
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.drive.drive import Drive
from storage_node.store.read.native_reader import FailureCode
from storage_node.store.store import Store, not_found_message

MAX_ITEM_BYTES = 256 << 20


class BatchVerdicts:
    """Of n entries. Arrays have shape (n,). Belongs to one thread at a time."""

    def __init__(self, store: Store, names: list[str], first_index: int) -> None:
        self._store = store
        self._names = names
        self.n = n = len(names)
        self.first_index = first_index
        self.index: U32 = np.arange(first_index, first_index + n, dtype=np.uint32)
        self.status: U8 = np.zeros(n, np.uint8)
        self.checksum: U32 = np.zeros(n, np.uint32)
        self.kind: U8 = np.full(n, pb.STORED, np.uint8)
        self.sizes: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self.faults: dict[int, EntryFault] = {}
        """By index."""

    def _fail(self, position: int, status: int, message: str, kind: str = "") -> None:
        self.status[position] = status
        self.kind[position] = pb.NONE
        self.sizes[position] = self.checksum[position] = 0
        self.faults[self.first_index + position] = EntryFault(message, kind)

    def _fail_missing(self, position: int, bucket: str, bucket_uuid: bytes | None) -> None:
        name = self._names[position]
        if bucket_uuid is None:
            self._fail(position, pb.NOT_FOUND, not_found_message(bucket, name))
            return
        error = self._store.missing(bucket, bucket_uuid, name)
        self._fail(position, pb.NOT_FOUND, str(error), error.kind if isinstance(error, ObjectDeleted) else "")

    def _fail_too_large(self, position: int, size_bytes: int) -> None:
        self._fail(
            position,
            pb.FAILED,
            f"{self._names[position]!r}: {size_bytes:,} bytes, a batch carries at most {MAX_ITEM_BYTES:,} per entry; "
            "read it in ranges, or with bucket.open()",
            "item-too-large",
        )

    def _fail_missing_file(self, position: int, drive: Drive) -> None:
        if os.path.isdir(drive.root / "objects"):
            message = f"{self._names[position]!r}: its file or block checksums are gone from {drive.root}"
            self._fail(position, pb.CORRUPT, message)
        else:
            self._fail(position, pb.UNAVAILABLE, f"{drive.root}: the drive's folder is gone", "drive-failed")

    def _fail_reading(self, position: int, drive: Drive, code: int, number: int) -> None:
        """`code`: a FailureCode. `number`: an errno, or 0."""
        name, faults = self._names[position], drive.faults
        if code in (FailureCode.SHORT, FailureCode.CHECKSUM):
            faults.note_checksum()
        else:
            faults.note_number(number, f"reading {name!r}: {os.strerror(number)}")
        if code == FailureCode.SHORT:
            self._fail(position, pb.CORRUPT, f"{name!r}: its file is shorter than what was put")
        elif code == FailureCode.CHECKSUM:
            self._fail(position, pb.CORRUPT, f"{name!r}: the bytes on the drive do not match the stored checksum")
        else:
            self._fail(position, pb.UNAVAILABLE, f"{name!r}: {os.strerror(number)} (errno {number})")
