"""Tracks of a media file, as PyAV finds them.

Of an MP4 or QuickTime file, only the tables are read: libavformat gets zeros in place of the packets that they name.
Other containers have no complete table, so that the file is read as a whole, once.
"""

from __future__ import annotations

import errno
import io
import mmap
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np

from ais_loader.errors import MediaError
from ais_loader.extras import needs
from ais_loader.objects.client import Client
from ais_loader.objects.kept_index import IndexKind, kept_indexes
from ais_loader.objects.media_index import MediaIndex, Track, decode_tracks, encode_tracks
from ais_loader.objects.object_file import ObjectFile
from ais_loader.objects.range_table import pin_of, place
from ais_loader.values.entry import ObjectInfo

with needs("av", "audio and video by time"):
    import av

_MOV = "mov,mp4,m4a,3gp,3g2,mj2"
_PAGED = ("ogg", "mpegts")
"""Containers that divide packets into pages."""
_TIMED = ("matroska,webm", "flac", "flv")
"""Containers that say how long their tracks are, and may end anywhere."""
_REORDERED = ("h264", "hevc")
"""Codecs in whose packets libavformat does not see the order of frames."""
_SHORT_S = 0.25
"""How much less there may be."""
_BLOCK_HEAD_BYTES = 64
"""Most that a container writes between the position of a packet and its bytes."""
_AS_IN_TABLES = {"fflags": "+noparse+nofillin", "analyzeduration": "1", "protocol_whitelist": "none"}
"""libavformat returns what the tables say, whatever the packets contain, reads few packets at first, and opens no other
file or socket."""
_FRAME_BYTES = 1441
"""The largest frame of MP3."""
_CHANGED = "new_extradata"
"""The side data of a packet from which on its decoder has another configuration."""
_TAIL_PACKETS, _TAIL_S = 64, 1
"""The end of audio is decoded, to learn how many samples there are."""
_FRAGMENTED = (b"mvex", b"moof")
_AT_ONCE = 8


def media_indexes(client: Client, objects: Sequence[ObjectInfo], *, timeout_s: float) -> list[MediaIndex]:
    """Return the index of each object.

    Raises MediaError for an object that is no audio or video, or is truncated; MissingExtra without PyAV, and the
    errors of `kept_indexes`.
    """

    def made(absent: Sequence[ObjectInfo]) -> Iterable[MediaIndex | BaseException]:
        with ThreadPoolExecutor(_AT_ONCE, "ais-loader media") as pool:
            reads = [pool.submit(read_tracks, client, info, timeout_s) for info in absent]
        return [read.exception() or read.result() for read in reads]

    return kept_indexes(client, objects, IndexKind(encode_tracks, decode_tracks), made, timeout_s=timeout_s)


def read_tracks(client: Client, info: ObjectInfo, timeout_s: float) -> MediaIndex:
    """Return the tracks of an object. Raises MediaError, and the errors of reading."""
    with client.bucket(info.bucket).open(info.name, version=pin_of(info), timeout_s=timeout_s) as file:
        try:
            tables = _Tables(file)
            with av.open(tables, options=_AS_IN_TABLES) as container:
                if container.format.name == _MOV and not tables.is_fragmented:
                    return _tracks(container, info.size_bytes, tables)
            with tempfile.TemporaryFile() as copy:
                file.seek(0)
                shutil.copyfileobj(file, copy, 1 << 20)
                copy.seek(0)
                with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data, av.open(copy) as container:
                    return _tracks(container, info.size_bytes, data)
        except (av.error.FFmpegError, MediaError) as error:
            raise MediaError(f"{place(info)}: {error}").caused_by(error) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                error.filename = f"{tempfile.gettempdir()} (set TMPDIR), for a copy of {place(info)}"
            raise


class _Tables:
    """A file in which packets read as zeros while `is_hidden`."""

    def __init__(self, file: ObjectFile) -> None:
        self._file, self._last = file, b""
        self.is_hidden = self.is_fragmented = False
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        if self.is_hidden:
            count = max(0, min(count, self._file.info.size_bytes - self.tell()))
            self.seek(count, io.SEEK_CUR)
            return bytes(count)
        data = self._file.read(count)
        seen = self._last + data  # a name may begin in one read and end in the next
        self.is_fragmented |= any(box in seen for box in _FRAGMENTED)
        self._last = seen[-3:]
        return data


def _tracks(container: Any, size_bytes: int, data: _Tables | mmap.mmap) -> MediaIndex:
    """Return the tracks of a container. `data`: its file. Raises MediaError, av.error.FFmpegError."""
    streams = [one for one in container.streams if one.type in ("video", "audio") and not _is_picture(one)]
    first = {one.type: one for one in reversed(streams)}
    if not first:
        raise MediaError("it has neither audio nor video")
    if unknown := [kind for kind, one in first.items() if one.codec_context is None]:
        raise MediaError(f"its {unknown[0]} is of a codec that PyAV does not decode")
    origin = min(Fraction(one.start_time or 0) * one.time_base for one in streams)
    is_paged = container.format.name in _PAGED
    rows: dict[int, list[tuple[int, int, int, int, int]]] = {one.index: [] for one in first.values()}
    if isinstance(data, _Tables):
        data.is_hidden = True
    reached, sound = Fraction(0), first.get("audio")
    is_coarse = sound is not None and sound.time_base * sound.codec_context.sample_rate > 1
    tail: deque[Any] = deque(maxlen=_TAIL_PACKETS)
    counts: list[int] = []
    for packet in container.demux():
        if not packet.size:
            continue
        reached = max(reached, ((packet.pts or 0) + (packet.duration or 0)) * packet.time_base)
        if packet.stream.index not in rows:
            continue
        if packet.pts is None or packet.pos is None:
            raise MediaError(f"{container.format.name} with packets that have no time: convert it to MP4 or Matroska")
        changed = b""
        if not is_paged and hasattr(packet, "has_sidedata") and packet.has_sidedata(_CHANGED):  # newer PyAV has it
            changed = bytes(packet.get_sidedata(_CHANGED))
        if changed and changed != packet.stream.codec_context.extradata:
            raise MediaError(f"its {packet.stream.type} track changes its decoder's configuration: encode it anew")
        start = packet.pos if is_paged or isinstance(data, _Tables) else _found(packet, data)
        if packet.is_corrupt or start + packet.size > size_bytes:
            raise MediaError(f"truncated: it ends at byte {size_bytes:,}, within a packet")
        flags = packet.is_keyframe | packet.is_discard << 1
        rows[packet.stream.index].append((start, packet.size, packet.pts, flags, packet.duration or 0))
        if sound is not None and packet.stream.index == sound.index and not isinstance(data, _Tables):
            if is_coarse:
                counts.append(sum(frame.samples for frame in packet.decode()))
            else:
                tail.append(packet)
    if container.format.name in _TIMED and (container.duration or 0) / av.time_base - reached > _SHORT_S:
        raise MediaError(f"truncated: it ends after {float(reached):.3f} s of {container.duration / av.time_base:.3f}")
    heard = rows[sound.index] if sound is not None else []
    if isinstance(data, mmap.mmap) and _is_cut(container.format.name, data, heard):
        raise MediaError(f"truncated: it ends at byte {size_bytes:,}, before what its headers say")
    index = {}
    for kind, stream in first.items():
        starts, sizes, ticks, flags, durations = np.array(rows[stream.index], np.int64).reshape(-1, 5).T.copy()
        if not len(starts):
            raise MediaError(f"its {kind} track has no packets")
        context, is_audio = stream.codec_context, kind == "audio"
        if container.format.name == "avi" and context.codec.name in _REORDERED and context.has_b_frames:
            raise MediaError("frames out of order, whose times AVI does not tell: convert it to MP4 or Matroska")
        durations[durations == 0] = max(1, int(np.ptp(ticks)) // len(ticks))
        unit, start, samples, rate_hz = stream.time_base, origin, 0, 0
        if counts and is_audio:  # ticks of a millisecond do not say where samples are
            rate_hz = context.sample_rate
            stops = round((Fraction(stream.start_time or 0) * unit - origin) * rate_hz) + np.cumsum(counts)
            ticks = np.append(stops[0] - counts[min(1, len(counts) - 1)], stops[:-1])  # the first may be cut
            unit, start, samples = Fraction(1, rate_hz), Fraction(0), int(stops[-1])
        elif is_audio:
            for frame in _last_frames(stream, tail, int(ticks[-1]), data):
                if frame.pts is None:
                    raise MediaError("samples that have no time: convert it to WAV or FLAC")
                rate_hz = frame.sample_rate
                samples = round((frame.pts * frame.time_base - origin) * rate_hz) + frame.samples
        index[kind] = Track(
            codec=context.codec.name,
            tag=context.codec_tag,
            width=0 if is_audio else context.width,
            height=0 if is_audio else context.height,
            rate_hz=rate_hz,
            layout=context.layout.name if is_audio else "",
            samples=samples,
            unit=unit.as_integer_ratio(),
            origin=start.as_integer_ratio(),
            end=int((ticks + durations).max()),
            stream=stream.index,
            extradata=np.frombuffer(context.extradata or b"", np.uint8),
            head=np.frombuffer(data[: int(starts[0])] if is_paged and isinstance(data, mmap.mmap) else b"", np.uint8),
            starts=starts,
            sizes=sizes,
            ticks=ticks,
            flags=flags,
        )
    return index


def _is_picture(stream: Any) -> bool:
    return bool(stream.disposition & av.stream.Disposition.attached_pic)


def _is_cut(container: str, data: mmap.mmap, rows: Sequence[tuple[int, ...]]) -> bool:
    """Whether a file ends within a page of Ogg, or has fewer packets of MP3 than an encoder's first frame says.

    Source: RFC 3533, 6; http://gabriel.mp3-tech.org/mp3infotag.html.
    """
    if container == "ogg":
        at = 0
        while data[at : at + 4] == b"OggS" and at + 27 <= len(data):
            at += 27 + data[at + 26] + sum(data[at + 27 : at + 27 + data[at + 26]])
        return at != len(data) and b"OggS".startswith(data[at : at + 4])
    if container != "mp3" or not rows:
        return False
    head = data[max(0, rows[0][0] - _FRAME_BYTES) : rows[0][0]]
    tag = head[max(head.rfind(b"Xing"), head.rfind(b"Info")) :]
    flags, frames = int.from_bytes(tag[4:8], "big"), int.from_bytes(tag[8:12], "big")
    return tag[:4] in (b"Xing", b"Info") and bool(flags & 1) and frames > len(rows) + 1


def _found(packet: Any, data: mmap.mmap) -> int:
    """Return where the bytes of a packet are. Raises MediaError if they are not in one piece."""
    start = data.find(bytes(packet), packet.pos, packet.pos + packet.size + _BLOCK_HEAD_BYTES)
    if start < 0:
        raise MediaError("packets that are compressed or share a block: convert it to MP4, or to Matroska without them")
    return start


def _last_frames(stream: Any, tail: Iterable[Any], last: int, data: _Tables | mmap.mmap) -> Iterator[Any]:
    """Yield the frames at the end of a track of audio, from its last packets or, if these were hidden, its file."""
    if isinstance(data, _Tables):
        data.is_hidden = False
        data.seek(0)
        with av.open(data) as container:  # the other one has zeros in its buffers
            own = container.streams[stream.index]
            container.seek(int(last - _TAIL_S / own.time_base), stream=own)
            yield from container.decode(own)
        return
    for packet in tail:
        yield from packet.decode()
    yield from stream.decode(None)
