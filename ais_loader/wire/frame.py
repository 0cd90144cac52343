"""Frames: the message of the hot path, built and read without copying its payload.

On the wire a frame is ordinary protobuf (`Frame` in ais_batch.proto, inside a `SessionResponse`), so any gRPC client
can read it. Its packed fixed-width arrays are little-endian memory, and its payload is the last field: Python can
therefore compute everything that stands before the payload, let the batch reader put the bytes right behind it, and on
the other side slice arrays and payload out of the received buffer.

    08 <batch_id>  [1A end]  7A <length of the frame>
        0A <4n> index...   12 <4n> size...   1A <4n> checksum...   22 <n> status...   2A <n> checksum_kind...
        [32 piece]  [3A error]...  7A <payload length> payload

Source of the encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.node_waits import NodeWaits

U32: TypeAlias = npt.NDArray[np.uint32]
U8: TypeAlias = npt.NDArray[np.uint8]

WIRE_U32 = np.dtype("<u4")
MAX_PAYLOAD_BYTES = 4 << 20
"""Largest payload of a frame where it costs no copy and the receiver has room for an entry of that size."""
TARGET_PAYLOAD_BYTES = 1 << 20
"""A frame is closed when its payload reaches this size: large enough that the cost per message vanishes, small enough
that several fit in flight and a consumer that keeps one small view keeps little alive. What a lane sends from files may
be larger (storage_node/store/read/frame_plan.py)."""

_TAG_BATCH_ID, _TAG_END, _TAG_FRAME = 0x08, 0x1A, 0x7A
_TAG_END_OBJECT = 0x52
_TAG_INDEX, _TAG_SIZE, _TAG_CHECKSUM, _TAG_STATUS, _TAG_KIND, _TAG_PIECE, _TAG_ERROR, _TAG_PAYLOAD = (
    0x0A,
    0x12,
    0x1A,
    0x22,
    0x2A,
    0x32,
    0x3A,
    0x7A,
)
_FRAME_TAGS = frozenset(
    (_TAG_INDEX, _TAG_SIZE, _TAG_CHECKSUM, _TAG_STATUS, _TAG_KIND, _TAG_PIECE, _TAG_ERROR, _TAG_PAYLOAD)
)


class FrameError(ValueError):
    """The bytes are not a frame; the connection that delivered them cannot be trusted any further."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The position of a frame that carries a part of one large entry."""

    offset: int
    entry_size: int
    version: str


@dataclass(frozen=True, slots=True)
class EntryFault:
    """The reason why one entry failed; `kind` is a stable name of ais_loader.errors, or empty."""

    message: str
    kind: str = ""


@dataclass(slots=True)
class Frame:
    """n entries, or one piece of one entry. Arrays have shape (n,)."""

    index: U32
    size: U32
    checksum: U32
    status: U8
    checksum_kind: U8
    content: memoryview | list[memoryview]
    """The entries end to end; if they came from several senders, the n entries at their separate locations."""
    piece: Piece | None = None
    errors: dict[int, EntryFault] = field(default_factory=dict)
    """Errors by index, for failed entries with more information than their status."""

    @property
    def payload(self) -> memoryview:
        """The entries end to end; copied together once if they are separate."""
        if isinstance(self.content, list):
            self.content = memoryview(b"".join(self.content))
        return self.content

    @property
    def payload_bytes(self) -> int:
        content = self.content
        return sum(map(len, content)) if isinstance(content, list) else len(content)

    def entries(self) -> list[memoryview]:
        """Return the bytes of each entry without a copy."""
        content = self.content
        if isinstance(content, list):
            return content
        start, found = 0, []
        for stop in self.size.cumsum(dtype=np.int64).tolist():
            found.append(content[start:stop])
            start = stop
        return found

    @property
    def completes_entry(self) -> bool:
        """False while more pieces of this frame's only entry are to come."""
        piece = self.piece
        return piece is None or self.status[0] != pb.OK or piece.offset + self.payload_bytes == piece.entry_size

    @property
    def begins_again(self) -> bool:
        """Whether this is the first piece of an entry. It replaces earlier pieces."""
        return self.piece is not None and not self.piece.offset

    def continues(self, before: Frame | None, due_bytes: int = 0) -> bool:
        """Return whether this piece continues `before`, the piece before it; without one, whether it begins at
        `due_bytes`.

        A whole entry in its place fits only if it is a failure, which may replace what is still to come. An entry may
        begin again: its object was replaced and no holder has the rest of that version, or its transform has produced
        other bytes.
        """
        piece = self.piece
        if piece is None:
            return bool(len(self.status)) and bool(self.status[0] != pb.OK)
        if self.begins_again:
            return True
        if before is None or before.piece is None:
            return piece.offset == due_bytes
        due_bytes = before.piece.offset + len(before.payload)
        return (piece.offset, piece.entry_size, piece.version) == (
            due_bytes,
            before.piece.entry_size,
            before.piece.version,
        )


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise FrameError("varint longer than 64 bits")


def _section(tag: int, content: bytes) -> bytes:
    return b"" if not content else bytes((tag,)) + encode_varint(len(content)) + content


def _message(tag: int, message: pb.Piece | pb.EntryError | pb.End) -> bytes:
    """Encode a submessage, even an empty one: its presence has a meaning."""
    content = message.SerializeToString()
    return bytes((tag,)) + encode_varint(len(content)) + content


def encode_prefix(
    batch_id: int,
    *,
    index: U32,
    size: U32,
    checksum: U32,
    status: U8,
    checksum_kind: U8,
    payload_bytes: int,
    piece: Piece | None = None,
    errors: dict[int, EntryFault] | None = None,
    end: pb.End | None = None,
) -> tuple[bytes, int]:
    """Encode everything of a SessionResponse that precedes the payload.

    With `end`, the message is the last one of its batch.

    Returns the bytes, and the position of the checksum array in them. A reader that learns the checksums only while it
    reads overwrites them there (four bytes each, little-endian).
    """
    before = _section(_TAG_INDEX, index.astype(WIRE_U32, copy=False).tobytes()) + _section(
        _TAG_SIZE, size.astype(WIRE_U32, copy=False).tobytes()
    )
    raw_checksums = checksum.astype(WIRE_U32, copy=False).tobytes()
    checksums = _section(_TAG_CHECKSUM, raw_checksums)
    after = _section(_TAG_STATUS, status.tobytes()) + _section(_TAG_KIND, checksum_kind.tobytes())
    if piece is not None:
        after += _message(_TAG_PIECE, pb.Piece(offset=piece.offset, entry_size=piece.entry_size, version=piece.version))
    for at, fault in (errors or {}).items():
        after += _message(_TAG_ERROR, pb.EntryError(index=at, message=fault.message, kind=fault.kind))
    after += bytes((_TAG_PAYLOAD,)) + encode_varint(payload_bytes)
    frame_bytes = len(before) + len(checksums) + len(after) + payload_bytes
    head = bytes((_TAG_BATCH_ID,)) + encode_varint(batch_id)
    if end is not None:
        head += _message(_TAG_END, end)
    head += bytes((_TAG_FRAME,)) + encode_varint(frame_bytes) + before
    return head + checksums + after, len(head) + len(checksums) - len(raw_checksums)


def without_end(message: bytes | memoryview) -> bytes:
    """Return a SessionResponse, or its `encode_prefix`, without the END that it was encoded with."""
    _, at = _decode_varint(message, 1)
    length, after = _decode_varint(message, at + 1)
    return b"".join((message[:at], message[after + length :]))


def encode_frame(batch_id: int, frame: Frame, end: pb.End | None = None) -> bytes:
    """Encode a SessionResponse with one copy of the payload. Raises FrameError for an inconsistent frame."""
    return b"".join(encode_parts(batch_id, frame, end))


def encode_parts(batch_id: int, frame: Frame, end: pb.End | None = None) -> list[bytes | memoryview]:
    """Encode a SessionResponse without a copy: the bytes before the payload, then the payload in one or more parts."""
    checked(frame)
    prefix, _ = encode_prefix(
        batch_id,
        index=frame.index,
        size=frame.size,
        checksum=frame.checksum,
        status=frame.status,
        checksum_kind=frame.checksum_kind,
        payload_bytes=frame.payload_bytes,
        piece=frame.piece,
        errors=frame.errors,
        end=end,
    )
    return [prefix, *frame.content] if isinstance(frame.content, list) else [prefix, frame.content]


class FrameStream(Protocol):
    """Frames of one batch, in request order. Iteration ends only after the answer was verified to be complete.

    `__next__` blocks, for `timeout_s` at most. Raises LoaderError; entries received before stay valid.
    """

    @property
    def retries(self) -> int:
        """Number of repeated requests."""

    @property
    def paused_s(self) -> float:
        """Time spent between a failure and the next attempt."""

    @property
    def hedged(self) -> int:
        """Number of entries that were requested from a second node because the first was slow."""

    @property
    def waits(self) -> NodeWaits:
        """Waits on the nodes that answered so far."""

    def node_of(self, index: int) -> str:
        """Name of the node that sent an entry, for messages."""

    def __iter__(self) -> Iterator[Frame]: ...
    def __next__(self) -> Frame: ...
    def read_all(self) -> list[bytes] | None:
        """Before the first frame: return all entries as separate bytes objects, if that is cheaper than frames and
        every entry is OK. Return None otherwise; no frame has been consumed then."""

    def read_whole(self) -> Frame | None:
        """Before the first frame: return all entries as one frame, if that is cheaper than several and every entry is
        OK. Return None otherwise; no frame has been consumed then."""

    def close(self) -> None:
        """Abandon the rest of the batch. Never blocks, may be called repeatedly, and from any thread."""


class FramedStream:
    """The part of a `FrameStream` that is the same wherever entries arrive in frames, as from a network."""

    def __iter__(self) -> Self:
        return self

    def read_all(self) -> list[bytes] | None:
        return None

    def read_whole(self) -> Frame | None:
        return None


@dataclass(slots=True)
class Response:
    """A SessionResponse as the client handles it."""

    batch_id: int
    frame: Frame | None = None
    end: pb.End | None = None
    reject: pb.Reject | None = None


def decode_response(data: bytes | memoryview) -> Response:
    """Decode a SessionResponse; a frame's payload and arrays are views of `data`.

    Raises FrameError on bytes that no node sends.
    """
    try:
        if data[:1] == b"\x08":
            batch_id, at = _decode_varint(data, 1)
            end: pb.End | None = None
            if at < len(data) and data[at] == _TAG_END:
                length, at = _decode_varint(data, at + 1)
                end, at = pb.End.FromString(bytes(data[at : at + length])), at + length
                if at == len(data):
                    return Response(batch_id, end=end)
            if at < len(data) and data[at] == _TAG_FRAME:
                length, at = _decode_varint(data, at + 1)
                if at + length > len(data):
                    raise FrameError(f"frame of {length:,} bytes in a message that has room for {len(data) - at:,}")
                if at + length == len(data):
                    return Response(batch_id, decode_frame(data, at), end)
        return _from_response(pb.SessionResponse.FromString(bytes(data)))
    except IndexError:
        raise FrameError("message ends in the middle of a field") from None
    except DecodeError as error:
        raise FrameError(f"not a SessionResponse: {error}") from error


def _from_response(response: pb.SessionResponse) -> Response:
    """Convert a message from an encoder that orders or splits fields differently."""
    return Response(
        response.batch_id,
        _from_message(response.frame) if response.HasField("frame") else None,
        response.end if response.HasField("end") else None,
        response.reject if response.HasField("reject") else None,
    )


_EMPTY_U32: U32 = np.empty(0, WIRE_U32)
_EMPTY_U8: U8 = np.empty(0, np.uint8)


def decode_frame(data: bytes | memoryview, at: int) -> Frame:
    """Decode the frame that fills `data` from `at` to its end."""
    arrays: dict[int, tuple[int, int]] = {}
    piece: Piece | None = None
    errors: dict[int, EntryFault] = {}
    payload = memoryview(b"")
    begin, end = at, len(data)
    while at < end:
        tag = data[at]
        if tag not in _FRAME_TAGS or tag in arrays:
            # From another encoder or a later version: legal, and rare enough to be copied.
            return _from_message(pb.Frame.FromString(bytes(data[begin:])))
        length, at = _decode_varint(data, at + 1)
        stop = at + length
        if stop > end:
            raise FrameError(f"field with tag {tag:#x} and length {length:,} does not fit a frame")
        if tag == _TAG_PAYLOAD:
            payload = memoryview(data)[at:stop]
        elif tag == _TAG_PIECE:
            message = pb.Piece.FromString(bytes(data[at:stop]))
            piece = Piece(message.offset, message.entry_size, message.version)
        elif tag == _TAG_ERROR:
            error = pb.EntryError.FromString(bytes(data[at:stop]))
            errors[error.index] = EntryFault(error.message, error.kind)
        else:
            arrays[tag] = (at, length)
        at = stop
    return checked(
        Frame(
            index=_u32(data, arrays.get(_TAG_INDEX)),
            size=_u32(data, arrays.get(_TAG_SIZE)),
            checksum=_u32(data, arrays.get(_TAG_CHECKSUM)),
            status=_u8(data, arrays.get(_TAG_STATUS)),
            checksum_kind=_u8(data, arrays.get(_TAG_KIND)),
            content=payload,
            piece=piece,
            errors=errors,
        )
    )


def _u32(data: bytes | memoryview, span: tuple[int, int] | None) -> U32:
    if span is None:
        return _EMPTY_U32
    if span[1] % 4:
        raise FrameError(f"array of 32-bit values has {span[1]:,} bytes")
    return np.frombuffer(data, WIRE_U32, span[1] // 4, span[0])


def _u8(data: bytes | memoryview, span: tuple[int, int] | None) -> U8:
    return _EMPTY_U8 if span is None else np.frombuffer(data, np.uint8, span[1], span[0])


def _from_message(message: pb.Frame) -> Frame:
    return checked(
        Frame(
            index=np.array(message.index, np.uint32),
            size=np.array(message.size, np.uint32),
            checksum=np.array(message.checksum, np.uint32),
            status=np.frombuffer(message.status, np.uint8),
            checksum_kind=np.frombuffer(message.checksum_kind, np.uint8),
            content=memoryview(message.payload),
            piece=(
                Piece(message.piece.offset, message.piece.entry_size, message.piece.version)
                if message.HasField("piece")
                else None
            ),
            errors={error.index: EntryFault(error.message, error.kind) for error in message.error},
        )
    )


def checked(frame: Frame) -> Frame:
    """Return the frame if its columns match each other and its payload. Raises FrameError.

    Every frame is checked before it is sent and after it was received: one wrong size would shift all later entries.
    """
    lengths = {len(frame.index), len(frame.size), len(frame.checksum), len(frame.status), len(frame.checksum_kind)}
    if len(lengths) != 1:
        raise FrameError(f"arrays of different lengths: {sorted(lengths)}")
    if int(frame.size.sum(dtype=np.uint64)) != frame.payload_bytes:
        raise FrameError(f"sizes add up to {int(frame.size.sum()):,}, payload has {frame.payload_bytes:,} bytes")
    if frame.piece is not None and (
        len(frame.index) != 1
        or frame.piece.entry_size >= 1 << 32
        or frame.piece.offset + frame.payload_bytes > frame.piece.entry_size
    ):
        raise FrameError(f"a piece that is not part of one entry: {frame.piece}")
    return frame


# The complete response for one small object, which a busy node writes, and clients read, thousands of times a second.
# It always has the same fields, so both ends process it as one struct. Bytes of other encoders go through
# decode_response.
_SINGLE = struct.Struct("<2s4x2sI2sI7s")
_SINGLE_BEGINS = b"\x0a\x04\0\0\0\0\x12\x04"
_SINGLE_FRAME_BYTES = _SINGLE.size + 32
"""At least the size of everything in such a message between END and the payload."""


def encode_single(
    batch_id: int,
    size_bytes: int,
    checksum: int,
    answer_digest: int,
    kind: int = pb.STORED,
    described: bytes = b"",
) -> bytes:
    """Encode everything before the payload of a complete, verified response with one entry, END included.

    `described`: a serialized ObjectInfo for END; b"" for none.
    """
    end = _single_end(size_bytes, answer_digest)
    if described:
        end += _section(_TAG_END_OBJECT, described)
    return _single_head(batch_id, end) + _single_frame(size_bytes, checksum, kind)


def _single_end(size_bytes: int, answer_digest: int) -> bytes:
    return b"".join((b"\x28\x01\x38", encode_varint(size_bytes), b"\x45", answer_digest.to_bytes(4, "little")))


def _single_head(batch_id: int, end: bytes) -> bytes:
    return b"".join((b"\x08", encode_varint(batch_id), b"\x1a", encode_varint(len(end)), end))


def _single_frame(size_bytes: int, checksum: int, kind: int) -> bytes:
    frame = _SINGLE.pack(
        b"\x0a\x04", b"\x12\x04", size_bytes, b"\x1a\x04", checksum, b"\x22\x01\x00\x2a\x01%c\x7a" % kind
    ) + encode_varint(size_bytes)
    return b"".join((b"\x7a", encode_varint(len(frame) + size_bytes), frame))


def decode_single(
    data: bytes, batch_id: int, digest_of: Callable[[int], int], kind: int = pb.STORED
) -> tuple[memoryview, int] | None:
    """Return payload and checksum of a message by encode_single; None for anything else, including entries of another
    kind.

    `digest_of` returns the digest that END must carry for an OK entry with a given checksum.
    """
    if (said := _single_said(data)) is None:
        return None
    size_bytes, checksum = said
    start = len(data) - size_bytes
    if data[:start] != encode_single(batch_id, size_bytes, checksum, digest_of(checksum), kind):
        return None
    return memoryview(data)[start:], checksum


def decode_single_parts(
    prefix: bytes, payload: bytes, batch_id: int, digest_of: Callable[[int], int], kind: int = pb.STORED
) -> int | None:
    """Return the checksum of a message received in two parts; None for anything that `decode_single` refuses, and for a
    message split elsewhere."""
    if (said := _single_said(prefix)) is None:
        return None
    size_bytes, checksum = said
    whole = size_bytes == len(payload) and prefix == encode_single(
        batch_id, size_bytes, checksum, digest_of(checksum), kind
    )
    return checksum if whole else None


def decode_opened(
    data: bytes | memoryview, batch_id: int, digest_of: Callable[[int], int], kind: int = pb.STORED
) -> tuple[memoryview, int, objects_pb.ObjectInfo] | None:
    """Like `decode_single`, for a message whose END describes the object; also return that description."""
    head = b"".join((b"\x08", encode_varint(batch_id), b"\x1a"))
    if data[: len(head)] != head:
        return None
    try:
        length, at = _decode_varint(data, len(head))
        end, at = bytes(data[at : at + length]), at + length
        described = pb.End.FromString(end)
    except (IndexError, FrameError, DecodeError):
        return None
    frame = bytes(data[at : at + _SINGLE_FRAME_BYTES])
    if (said := _single_said(frame)) is None or not described.HasField("object"):
        return None
    size_bytes, checksum = said
    start = len(data) - size_bytes
    if frame[: max(0, start - at)] != _single_frame(size_bytes, checksum, kind):
        return None
    if not end.startswith(_single_end(size_bytes, digest_of(checksum))):
        return None
    return memoryview(data)[start:], checksum, described.object


def _single_said(data: bytes) -> tuple[int, int] | None:
    """Return the size in bytes and the checksum in a message of encode_single's form; None for another form."""
    at = data.find(_SINGLE_BEGINS, 0, 64)
    if at < 0 or len(data) < at + _SINGLE.size:
        return None
    _, _, size_bytes, _, checksum, _ = _SINGLE.unpack_from(data, at)
    return size_bytes, checksum


def single_prefix_bytes(batch_id: int, message_bytes: int) -> int:
    """Return where the payload begins in a message of this size, if encode_single wrote it."""
    most = len(encode_single(batch_id, message_bytes, 0, 0))
    return len(encode_single(batch_id, max(0, message_bytes - most), 0, 0))
