"""Decoding of parts of audio and video tracks.

A decoder gets the packets of a part as they are, without their container, from the last packet at which decoding can
begin. It returns the frames that decoding the whole file returns.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest, MediaError
from ais_loader.extras import needs
from ais_loader.objects.media_index import Track
from ais_loader.training.clip_files import packets_file
from ais_loader.training.clip_parts import Part
from ais_loader.training.sample_parts import mapped
from ais_loader.values.entry import Item

with needs("av", "audio and video by time"):
    import av
    from av.video.reformatter import VideoReformatter
with needs("torch", "datasets"):
    import torch


class VideoFrames(NamedTuple):
    """Frames of a video."""

    data: Any
    """An array of shape (n, channels, height, width), or (n, height, width) if a pixel is one number, of uint8 for
    "rgb24". With a `device`, a tensor."""
    times_s: npt.NDArray[np.float64]
    """When each frame is shown, in seconds from the beginning of the file, shape (n,)."""


class AudioSamples(NamedTuple):
    """Samples of audio."""

    data: npt.NDArray[np.float32]
    """Shape (channels, n), from -1 to 1."""
    rate_hz: int


class PartDecoder:
    """Decoder of items whose entries carry parts of tracks, alone or in tuples and dicts. Items that failed are None.

    Raises MediaError for what cannot be decoded.
    """

    def __init__(self, pixel_format: str = "rgb24", device: str | None = None) -> None:
        """`device`: that to which torchcodec decodes video; None for PyAV. Raises InvalidRequest."""
        try:
            av.VideoFormat(pixel_format)
        except ValueError:
            raise InvalidRequest(f"pixel_format={pixel_format!r}: FFmpeg has no such format") from None
        if device is not None and pixel_format != "rgb24":
            raise InvalidRequest(f"pixel_format={pixel_format!r}: torchcodec, which device={device!r} takes, has RGB")
        self._pixel_format, self._device = pixel_format, device

    def __call__(self, sample: Any) -> Any:
        return mapped(sample, lambda item: self._decoded(item) if item.ok else None)

    def _decoded(self, item: Item) -> VideoFrames | AudioSamples:
        part: Part = item.entry.opaque
        try:
            if part.track.rate_hz:
                return _samples(part, item)
            if self._device is None:
                return _frames(part, item, self._pixel_format)
            return _tensor_frames(part, item, self._device)
        except (av.error.FFmpegError, MediaError) as error:
            raise MediaError(f"ais://{item.entry.bucket}/{item.entry.name}: {error}").caused_by(error) from None


def _frames(part: Part, item: Item, pixel_format: str) -> VideoFrames:
    track, numbers = part.track, np.asarray(part.wanted)
    ticks = track.ticks[track.shown[numbers]]
    missing = set(ticks.tolist())
    reformatter, data = VideoReformatter(), None
    for frame in _decoded(part, item):
        if frame.pts not in missing:
            continue
        missing.remove(frame.pts)
        if frame.is_corrupt:
            raise MediaError(f"the frame at {track.seconds(frame.pts):.3f} s is damaged")
        pixels = reformatter.reformat(frame, format=pixel_format).to_ndarray()
        if data is None:
            data = np.empty((len(ticks), *pixels.shape), pixels.dtype)
        if data.shape[1:] != pixels.shape:
            raise MediaError(f"frames of shape {data.shape[1:]} and {pixels.shape}; need one size")
        data[ticks == frame.pts] = pixels
    if missing or data is None:
        raise MediaError(
            f"{len(missing)} of {len(ticks)} frames cannot be decoded, at {track.seconds(min(missing)):.3f} s"
        )
    return VideoFrames(data if data.ndim == 3 else data.transpose(0, 3, 1, 2), track.times_s[numbers])


def _tensor_frames(part: Part, item: Item, device: str) -> VideoFrames:
    with needs("torchcodec", f"device={device!r}"):
        from torchcodec.decoders import VideoDecoder
    track, numbers = part.track, np.asarray(part.wanted)
    if len(track.head):  # torchcodec does not begin in the middle of a transport stream
        found = _frames(part, item, "rgb24")
        return found._replace(data=torch.from_numpy(found.data).to(device))
    wanted, data = track.shown[numbers], None
    for run, _, packets in _runs(part, item):
        own = np.flatnonzero((wanted >= run.start) & (wanted < run.stop))
        try:
            content, begin = packets_file(track, run, packets)
            # A time within the frame, whichever way it is rounded.
            times_s = (track.ticks[wanted[own]] - begin + 0.25) * track.unit[0] / track.unit[1]
            decoder = VideoDecoder(content, device=device, num_ffmpeg_threads=1)
            frames = decoder.get_frames_played_at(times_s.tolist()).data
        except (RuntimeError, ValueError, IndexError) as error:
            raise MediaError(f"torchcodec: {error}") from error
        if data is None:
            data = torch.empty((len(wanted), *frames.shape[1:]), dtype=frames.dtype, device=frames.device)
        data[torch.from_numpy(own)] = frames
    return VideoFrames(data, track.times_s[numbers])


def _samples(part: Part, item: Item) -> AudioSamples:
    track, first_wanted, stop_wanted = part.track, part.wanted[0], part.wanted[-1] + 1
    origin = Fraction(*track.origin)
    slack = math.ceil(Fraction(*track.unit) * track.rate_hz)
    data, at, reached = None, None, first_wanted
    for frame in _decoded(part, item):
        if frame.pts is None or frame.sample_rate != track.rate_hz:
            raise MediaError(f"samples at {frame.sample_rate} Hz without a time; need {track.rate_hz}")
        exact = round((frame.pts * frame.time_base - origin) * track.rate_hz)
        if at is None:
            following = track.ticks[track.ticks > frame.pts][:1].tolist()
            ends = [round((tick * frame.time_base - origin) * track.rate_hz) for tick in following]
            # A decoder that drops the samples of its own start leaves the time of the frame as it is.
            at = max([exact, *(end - frame.samples for end in ends)])
            if frame.pts <= track.ticks[0]:  # before the track begins, there is silence
                reached = min(max(first_wanted, at), stop_wanted)
        elif abs(exact - at) > slack:
            at = exact
        if data is None:
            data = np.zeros((frame.layout.nb_channels, stop_wanted - first_wanted), np.float32)
        first, stop = max(at, first_wanted), min(at + frame.samples, stop_wanted)
        if first < stop:
            data[:, first - first_wanted : stop - first_wanted] = _floats(frame)[:, first - at : stop - at]
            reached = stop if first <= reached else reached
        at += frame.samples
    if data is None or reached != stop_wanted:
        raise MediaError(f"samples {reached:,} to {stop_wanted:,} cannot be decoded")
    return AudioSamples(data, track.rate_hz)


def _floats(frame: Any) -> npt.NDArray[np.float32]:
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        values = values.astype(np.int16) - 128 << 8
    scale = -np.iinfo(values.dtype).min if values.dtype.kind == "i" else 1
    return np.asarray(values / np.float32(scale), np.float32)


def _decoded(part: Part, item: Item) -> Iterator[Any]:
    """Yield the frames of the runs, and others that come with them. Packets that cannot be decoded have none."""
    track, context = part.track, None
    for run, data, packets in _runs(part, item):
        if len(track.head):
            with av.open(io.BytesIO(data)) as container:
                yield from container.decode(container.streams[track.stream])
            continue
        if context is None:
            context = _new_decoder(track)
        else:
            context.flush_buffers()
        for number, content in zip(run, packets, strict=True):
            packet = av.Packet(len(content))  # not of the bytes themselves, behind which decoders may read
            packet.update(content)
            packet.pts, packet.time_base = int(track.ticks[number]), Fraction(*track.unit)
            packet.is_keyframe = bool(track.flags[number] & 1)
            with contextlib.suppress(av.error.InvalidDataError):
                yield from context.decode(packet)
        with contextlib.suppress(av.error.InvalidDataError, av.error.EOFError):
            yield from context.decode(None)


def _runs(part: Part, item: Item) -> Iterator[tuple[range, bytes, list[memoryview]]]:
    """Yield each run with its packets or, if the file divides them, its bytes behind the first ones of the file."""
    track, used = part.track, 0
    for run, ranges in part.plan:
        firsts, lengths = np.array(ranges, np.int64).T
        begins, first = used + np.cumsum(lengths) - lengths, used
        used += int(lengths.sum())
        if len(track.head):
            yield run, track.head.tobytes() + item.data[first:used], []
            continue
        starts = track.starts[run.start : run.stop]
        at = np.searchsorted(firsts, starts, "right") - 1
        offsets = (begins[at] + starts - firsts[at]).tolist()
        sizes = track.sizes[run.start : run.stop].tolist()
        yield run, b"", [item.data[one : one + size] for one, size in zip(offsets, sizes, strict=True)]


def _new_decoder(track: Track) -> Any:
    context: Any = av.CodecContext.create(track.codec, "r")
    if len(track.extradata):
        context.extradata = track.extradata.tobytes()
    context.codec_tag = track.tag
    if track.rate_hz:
        context.sample_rate, context.layout = track.rate_hz, track.layout
    else:
        context.width, context.height = track.width, track.height
    context.thread_count = 1  # workers decode beside each other
    return context
