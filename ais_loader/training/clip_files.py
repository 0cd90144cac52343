"""Small files of the packets of a clip, in the NUT container, for decoders that read files: torchcodec."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ais_loader.extras import needs
from ais_loader.objects.media_index import Track

with needs("av", "audio and video by time"):
    import av

_START_CODE = b"\0\0\0\1"
_HEVC_SETS = 22
"""Where the number of arrays of parameter sets is in HEVC's configuration."""


def packets_file(track: Track, numbers: range, packets: Sequence[bytes | memoryview]) -> tuple[bytes, int]:
    """Return a file of a run of packets, and when it begins, in ticks of the track: times in it count from there.

    What the decoder needs before the packets is within the first one.

    Source: ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1 (the configurations of AVC and HEVC); AV1 in ISOBMFF 1.3, 2.3.3.
    """
    head, width = _head(track)
    ticks, unit = track.ticks[numbers.start : numbers.stop], Fraction(*track.unit)
    order = np.sort(ticks)
    order -= (order - ticks).max()  # times of decoding rise, and are not behind those of showing
    begin = int(order[0])
    file = io.BytesIO()
    with av.open(file, "w", format="nut") as output:
        name: Any = av.Codec(track.codec, "r").canonical_name
        stream: Any = output.add_mux_stream(name, rate=30, width=track.width, height=track.height)
        stream.time_base = unit
        for at, data in enumerate(map(bytes, packets)):
            units = data if width is None else b"".join(_START_CODE + unit for unit in _units(data, width))
            content = units if at else head + units
            packet = av.Packet(len(content))
            packet.update(content)
            packet.pts, packet.dts, packet.time_base = int(ticks[at]) - begin, int(order[at]) - begin, unit
            packet.stream, packet.is_keyframe = stream, bool(track.flags[numbers[at]] & 1)
            output.mux(packet)
    return file.getvalue(), begin


def _head(track: Track) -> tuple[bytes, int | None]:
    """Return what precedes the first packet, and the width of the length of a packet's units, if they have lengths."""
    extra = track.extradata.tobytes()
    if track.codec == "h264" and extra[:1] == b"\1":
        first, at = _sets(extra, 6, extra[5] & 31)
        second, _ = _sets(extra, at + 1, extra[at])
        return b"".join(_START_CODE + one for one in first + second), (extra[4] & 3) + 1
    if track.codec == "hevc" and extra[:1] == b"\1":
        found, at = list[bytes](), _HEVC_SETS + 1
        for _ in range(extra[_HEVC_SETS]):
            sets, at = _sets(extra, at + 3, int.from_bytes(extra[at + 1 : at + 3], "big"))
            found += sets
        return b"".join(_START_CODE + one for one in found), (extra[21] & 3) + 1
    return extra[4:] if "av1" in track.tag + track.codec or "dav1d" in track.codec else extra, None


def _sets(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """Return parameter sets, each with two bytes of length before it, and where they end."""
    found = []
    for _ in range(count):
        stop = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if stop > len(data):
            raise IndexError("the configuration of its decoder is truncated")
        found.append(data[at + 2 : stop])
        at = stop
    return found, at


def _units(data: bytes, width: int) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        stop = at + width + int.from_bytes(data[at : at + width], "big")
        yield data[at + width : stop]
        at = stop
