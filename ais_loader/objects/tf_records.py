"""TFRecord files: where their records begin, and a record's own checksums.

A record is its length in 8 bytes, the masked CRC-32C of the length, the data, and the masked CRC-32C of the data.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveDamaged
from ais_loader.objects.client import Client
from ais_loader.objects.kept_index import Piece, bounds_index, kept_indexes, object_pieces
from ais_loader.objects.range_table import place
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.line_index import TF_RECORDS

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def tf_record_bounds(client: Client, objects: Sequence[ObjectInfo], *, timeout_s: float) -> list[npt.NDArray[np.int64]]:
    """Return where the records of each object begin and, last, its size. Like the indexes of lines, they are kept.

    Raises ArchiveDamaged for an object that is truncated or no TFRecord file, and the errors of `Client.get_batch`.
    """

    def made(absent: Sequence[ObjectInfo]) -> Iterator[npt.NDArray[np.int64]]:
        for info, pieces in object_pieces(client, absent, timeout_s=timeout_s):
            yield _bounds_of(info, pieces)

    return kept_indexes(client, objects, bounds_index(TF_RECORDS), made, timeout_s=timeout_s)


def tf_record_data(framed: memoryview) -> memoryview:
    """Return the data of a record with its frame. Raises ArchiveDamaged if a checksum does not match."""
    data = framed[_HEADER.size : -_FOOTER.size]
    if len(framed) < _HEADER.size + _FOOTER.size or _length(framed) != len(data):
        raise ArchiveDamaged("a TFRecord whose length is damaged, or does not match its checksum")
    if _masked(crc32c(data)) != _FOOTER.unpack(framed[-_FOOTER.size :])[0]:
        raise ArchiveDamaged("a TFRecord whose data do not match their checksum: it was damaged before it was stored")
    return data


def is_tf_record(head: bytes) -> bool:
    """Whether a file that begins with these bytes begins with the length of a record, and its checksum."""
    return len(head) >= _HEADER.size and _length(head) is not None


def _length(framed: bytes | memoryview) -> int | None:
    """Return the length of the record that begins here; None if its checksum does not match."""
    length, checksum = _HEADER.unpack(framed[: _HEADER.size])
    return length if checksum == _masked(crc32c(framed[:8])) else None


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bounds_of(info: ObjectInfo, pieces: Iterator[Piece]) -> npt.NDArray[np.int64]:
    bounds = [0]
    rest, begin = b"", 0
    """Bytes that are not parsed, and where they begin in the object."""
    for piece in pieces:
        rest += piece.tobytes()
        while (at := bounds[-1] - begin) + _HEADER.size <= len(rest):
            length = _length(rest[at : at + _HEADER.size])
            if length is None:
                raise ArchiveDamaged(
                    f"{place(info)}: no record at byte {bounds[-1]:,}: its length does not match its "
                    "checksum; the file is damaged, compressed (store it unpacked), or no TFRecord file"
                )
            bounds.append(bounds[-1] + _HEADER.size + length + _FOOTER.size)
        cut = min(at, len(rest))
        rest, begin = rest[cut:], begin + cut
    if bounds[-1] != info.size_bytes:
        raise ArchiveDamaged(
            f"{place(info)}: truncated: record {max(0, len(bounds) - 2)}, from byte "
            f"{bounds[-2] if len(bounds) > 1 else 0:,}, does not end with the file's {info.size_bytes:,} bytes"
        )
    return np.array(bounds, np.int64)
