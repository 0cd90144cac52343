"""Parts of audio and video tracks: the byte ranges that they need, and what the ranges decode to.

A decoder gets the packets of the ranges as they are, without their container, from the last packet at which decoding
can begin. It returns the frames that decoding the whole file returns.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import MediaError
from ais_loader.extras import needs
from ais_loader.objects.media_index import Numbers, Track
from ais_loader.objects.range_table import pin_of
from ais_loader.values.entry import Entry, Item, ObjectInfo

_LOSSLESS = ("pcm_", "flac", "alac")
_BEFORE_S = 0.5
"""Audio that is decoded before what is wanted, because a decoder's output depends on packets before."""
_JOINED = 8
"""Ranges are joined if that adds at most an eighth to the bytes of the packets."""

Ranges = list[tuple[int, int]]


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


class Part(NamedTuple):
    """A part of a track, as an entry carries it."""

    track: Track
    wanted: Sequence[int]
    """The numbers of frames, in the order in which they are shown, or of audio a range of samples."""
    plan: list[tuple[range, Ranges]]
    """Runs of packets to decode, each with its byte ranges."""
    label: Any
    """A value of the caller's."""


def part_entry(info: ObjectInfo, track: Track, wanted: Sequence[int], label: Any = None) -> Entry:
    """Return the entry that fetches a part of an object's track. It carries the part as its `opaque`."""
    runs = [_audio_run(track, wanted)] if track.rate_hz else _video_runs(track, np.asarray(wanted))
    plan = [(run, _ranges(track, run, info.size_bytes)) for run in runs]
    ranges = tuple(one for _, several in plan for one in several)
    part = Part(track, wanted, plan, label)
    if len(ranges) == 1:
        return Entry(info.bucket, info.name, None, *ranges[0], pin_of(info), part)
    return Entry(info.bucket, info.name, version=pin_of(info), opaque=part, ranges=ranges)


def _video_runs(track: Track, wanted: Numbers) -> list[range]:
    """Return the packets that decode to these frames, in runs that each begin where decoding can begin."""
    keys = np.flatnonzero(track.flags & 1)
    runs: list[range] = []
    for packet in np.unique(track.shown[wanted]).tolist():
        at = int(np.searchsorted(keys, packet, "right")) - 1
        while at > 0 and track.ticks[keys[at]] > track.ticks[packet]:  # shown before that key frame, from earlier ones
            at -= 1
        first = int(keys[at]) if at >= 0 else 0
        while runs and first <= runs[-1].stop:
            first = min(first, runs.pop().start)
        runs.append(range(first, packet + 1))
    return runs


def _audio_run(track: Track, wanted: Sequence[int]) -> range:
    unit, origin = Fraction(*track.unit), Fraction(*track.origin)
    before_s = 0 if track.codec.startswith(_LOSSLESS) else _BEFORE_S
    # A tick may be longer than a sample, and was rounded.
    first_tick = (Fraction(wanted[0], track.rate_hz) + origin - before_s) / unit - 1
    stop_tick = (Fraction(wanted[-1] + 1, track.rate_hz) + origin) / unit + 1
    first = int(np.searchsorted(track.ticks, math.floor(first_tick), "right")) - 1
    return range(max(0, first), int(np.searchsorted(track.ticks, math.ceil(stop_tick))))


def _ranges(track: Track, run: range, size_bytes: int) -> Ranges:
    """Return the byte ranges of a run, as pairs of start and length."""
    starts = track.starts[run.start : run.stop]
    if len(track.head):  # from the page before, which tells the time, to the page in which the next packet begins
        pages = np.append(np.unique(track.starts), size_bytes)
        first, last = np.searchsorted(pages, (starts[0], track.starts[min(run.stop, len(track.starts) - 1)]))
        start = int(pages[max(0, first - 1)])
        return [(start, int(pages[last + 1]) - start)]
    sizes = track.sizes[run.start : run.stop]
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], (starts + sizes)[order]
    gaps = starts[1:] - stops[:-1]
    splits = np.flatnonzero(gaps > sizes.sum() // (_JOINED * int(np.count_nonzero(gaps)) or 1))
    firsts, lasts = np.append(starts[0], starts[splits + 1]), np.append(stops[splits], stops[-1])
    return list(zip(firsts.tolist(), (lasts - firsts).tolist(), strict=True))


def decoded_part(item: Item, pixel_format: str, device: str | None = None) -> Any:
    """Decode the part that an entry carries, to VideoFrames or AudioSamples. Raises MediaError.

    `device`: that to which torchcodec decodes video; None for PyAV.
    """
    part: Part = item.entry.opaque
    with needs("av", "audio and video by time"):
        import av
    try:
        if part.track.rate_hz:
            return _samples(part, item)
        return _frames(part, item, pixel_format) if device is None else _tensor_frames(part, item, device)
    except (av.error.FFmpegError, MediaError) as error:
        raise MediaError(f"ais://{item.entry.bucket}/{item.entry.name}: {error}").caused_by(error) from None


def _frames(part: Part, item: Item, pixel_format: str) -> VideoFrames:
    from av.video.reformatter import VideoReformatter

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
        import torch
        from torchcodec.decoders import VideoDecoder

        from ais_loader.training.clip_files import packets_file
    track, numbers = part.track, np.asarray(part.wanted)
    if len(track.head):  # torchcodec does not begin in the middle of a transport stream
        found = _frames(part, item, "rgb24")
        return found._replace(data=torch.from_numpy(found.data).to(device))
    wanted, data = track.shown[numbers], None
    for run, _, packets in _runs(part, item):
        own = np.flatnonzero((wanted >= run.start) & (wanted < run.stop))
        content, begin = packets_file(track, run, packets)
        # A time within the frame, whichever way it is rounded.
        times_s = (track.ticks[wanted[own]] - begin + 0.25) * track.unit[0] / track.unit[1]
        try:
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
    data, filled, at = None, 0, None
    for frame in _decoded(part, item):
        if frame.pts is None or frame.sample_rate != track.rate_hz:
            raise MediaError(f"samples at {frame.sample_rate} Hz without a time; need {track.rate_hz}")
        exact = round((frame.pts * frame.time_base - origin) * track.rate_hz)
        if at is None:
            following = track.ticks[track.ticks > frame.pts][:1].tolist()
            ends = [round((tick * frame.time_base - origin) * track.rate_hz) for tick in following]
            # A decoder that drops the samples of its own start leaves the time of the frame as it is.
            at = max([exact, *(end - frame.samples for end in ends)])
        elif abs(exact - at) > slack:
            at = exact
        if data is None:
            data = np.zeros((frame.layout.nb_channels, stop_wanted - first_wanted), np.float32)
        first, stop = max(at, first_wanted), min(at + frame.samples, stop_wanted)
        if first < stop:
            data[:, first - first_wanted : stop - first_wanted] = _floats(frame)[:, first - at : stop - at]
            filled += stop - first
        at += frame.samples
    if data is None or filled != len(part.wanted):
        raise MediaError(f"{filled:,} of {len(part.wanted):,} samples can be decoded from sample {first_wanted:,}")
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
    import av

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
    import av

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
