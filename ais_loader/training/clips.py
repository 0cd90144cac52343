"""Clips: a map-style dataset of parts of audio and video files, by time or by frame."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ais_loader.errors import InvalidRequest, RangeError
from ais_loader.objects.client import Client
from ais_loader.objects.media_index import MediaIndex
from ais_loader.objects.range_table import pin_of
from ais_loader.training.clip_parts import part_entry
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import RangeDataset
from ais_loader.training.sample_parts import flat_entries, mapped
from ais_loader.values.entry import Entry, EntryLike, ObjectInfo, to_entry

_FRAGMENT = re.compile(r"#(?=(?:t|track)=)")
_TIME = re.compile(r"(?:(?:(\d+):)?([0-5]?\d):)?(\d+(?:\.\d*)?|\.\d+)s?\Z")
_TRACKS = ("video", "audio")
_SLACK_S = 1e-6
"""Times are decimal fractions of other people's arithmetic."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A part of an object with audio or video.

    Times are in seconds, from when the file's first track begins. Of a video, a clip has every frame that is on screen
    at a time from `start_s` up to, and without, `end_s`; of audio, the samples from one time to the other, which are 0
    before its track begins.
    """

    source: EntryLike
    """A whole object. A plain name, in which `#` has no meaning, needs the dataset's `bucket`."""
    start_s: float = 0.0
    end_s: float | None = None
    """None, and any time behind the end, is the end of the track."""
    frames: Sequence[int] | None = None
    """The numbers of the video's frames, from 0, in the order in which they are shown, in place of times. A clip has
    them in this order, also repeatedly."""
    track: Literal["video", "audio"] | None = None
    """Which track. None is the video, if there is one."""

    @classmethod
    def from_url(cls, url: str) -> Clip:
        """Parse a name or an ais:// URL with a media fragment, such as `a.mp4#t=1.5,0:02:10&track=audio`.

        `t` is a start, a start and an end, or an end after a comma, each in seconds or as `h:m:s`; without a fragment,
        the clip is all of the track. Raises InvalidRequest for another fragment.

        Source: W3C Media Fragments URI 1.0, 4.2.1 and 4.2.3.
        """
        *_, found = [None, *_FRAGMENT.finditer(url)]
        if found is None:
            return cls(url)
        start_s, end_s, track = 0.0, None, None
        for part in url[found.end() :].split("&"):
            key, _, value = part.partition("=")
            if key == "t":
                first, comma, last = value.removeprefix("npt:").partition(",")
                start_s, end_s = _seconds(first or "0", url), _seconds(last, url) if comma else None
            elif key == "track" and value in _TRACKS:
                track = value
            else:
                raise InvalidRequest(f"{url!r}: {part!r} is no t=START,END and no track=video or track=audio")
        return cls(url[: found.start()], start_s, end_s, None, track)  # type: ignore[arg-type]  # one of _TRACKS


ClipLike: TypeAlias = Clip | str | ObjectInfo
"""A Clip, or what `Clip.from_url` parses. An ObjectInfo is all of its object."""


class Clips(RangeDataset):
    """A map-style dataset of parts of audio and video files, for any sampler or plan.

    A sample is a VideoFrames, a tuple `(data, times_s)` of an array of shape (frames, 3, height, width) of uint8 and
    one of the frames' times; or an AudioSamples, a tuple `(data, rate_hz)` of an array of shape (channels, samples) of
    float32 and the rate. Frames are those that PyAV decodes from the whole file. A tuple or a dict of clips is one
    sample, such as several cameras: its parts are in the same form.

    A batch is one request, whatever files its clips are in, for the packets from a key frame up to the last frame
    wanted. PyAV decodes them in the process that fetched the batch. Files are read in the version that they had when
    the dataset was made: if one is replaced later, reading it raises ObjectNotFound. All else is as in a MapDataset.

    Where packets are is read from the tables of an MP4 file, or found by reading another file once, and kept in the
    store for later datasets as the beginnings of `Lines` are.
    """

    _keeps_indexes = True

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        clips: Iterable[ClipLike | tuple[ClipLike, ...] | Mapping[str, ClipLike]],
        transform: Callable[[Any], Any] | None = None,
        *,
        pixel_format: str = "rgb24",
        device: str | None = None,
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            clips: Clip values, or names or URLs with media fragments, such as "ais://drives/front.mp4#t=12,14".
            transform: A function from a sample to a sample. It must be picklable if workers are spawned.
            pixel_format: The format of pixels in FFmpeg's terms, such as "gray" or "gray16le", that PyAV converts to.
            device: The device to which torchcodec decodes video in place of PyAV, such as "cpu" or "cuda". Frames are
                then a tensor there, of RGB.

        Raises InvalidRequest for a clip that is invalid, RangeError for one that is not within its track, MediaError
        for a file that is no audio or video or is truncated, ObjectNotFound, MissingExtra without PyAV, TypeError, and
        the errors of reading.
        """
        from ais_loader.objects.media_tracks import media_indexes
        from ais_loader.training.clip_decoding import PartDecoder

        decoder = PartDecoder(pixel_format, device)
        if isinstance(clips, (str, bytes, Mapping)):
            raise TypeError(
                f"clips is a {type(clips).__name__}; need a sequence of clips, or of tuples or dicts of them"
            )
        samples = [mapped(sample, _clip) for sample in clips]
        parts: Sequence[Clip] = flat_entries(samples)
        wanted = [to_entry(clip.source, bucket) for clip in parts]
        number_of = {source: number for number, source in enumerate(dict.fromkeys(wanted))}

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[Any, PartDecoder]:
            indexes = media_indexes(client, objects, timeout_s=timeout_s)
            return _ClipTable(objects, indexes, samples, [number_of[source] for source in wanted]), decoder

        super().__init__(
            client_or_url,
            list(number_of),
            find,
            transform=transform,
            bucket=bucket,
            timeout_s=timeout_s,
            retry_s=retry_s,
            **options,
        )

    def __repr__(self) -> str:
        return f"<Clips, {len(self):,} in all, {self._client!r}>"


class _ClipTable(Sequence[Any]):
    """The entries of samples, made when they are read."""

    def __init__(
        self,
        objects: Sequence[ObjectInfo],
        indexes: Sequence[MediaIndex],
        samples: Sequence[Any],
        numbers: Iterable[int],
    ) -> None:
        """`numbers`: the object of each clip."""
        self._objects, self._indexes, number = objects, indexes, iter(numbers)
        self._samples = [mapped(sample, lambda clip: self._part(clip, next(number))) for sample in samples]
        """Samples whose clips are a Clip's object, track, and frames or samples."""

    def _part(self, clip: Clip, number: int) -> _ClipPart:
        return _ClipPart(number, *_wanted(clip, self._objects[number], self._indexes[number]))

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        found = self._samples[index]
        return [mapped(one, self._entry) for one in found] if isinstance(index, slice) else mapped(found, self._entry)

    def _entry(self, part: _ClipPart) -> Entry:
        return part_entry(self._objects[part.number], self._indexes[part.number][part.track], part.wanted)

    def digest(self) -> str:
        """Return a digest of what the samples fetch, in their order, the same on every platform."""
        pins = [(info.bucket, info.name, pin_of(info)) for info in self._objects]
        text = repr((pins, self._samples)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _ClipPart:
    number: int
    track: str
    wanted: range | tuple[int, ...]


def _clip(given: Any) -> Clip:
    if isinstance(given, str):
        return Clip.from_url(given)
    return given if isinstance(given, Clip) else Clip(given)


def _wanted(clip: Clip, info: ObjectInfo, index: MediaIndex) -> tuple[str, range | tuple[int, ...]]:
    """Return a clip's track, and the numbers of its frames or samples. Raises InvalidRequest, RangeError."""
    place = f"ais://{info.bucket}/{info.name}"
    kind: str = clip.track or next(one for one in _TRACKS if one in index)
    if kind not in index:
        raise InvalidRequest(f"{place}: track={kind!r}: its tracks are {', '.join(index)}")
    track = index[kind]
    if clip.frames is not None:
        numbers = np.asarray(clip.frames)
        if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iu" or track.rate_hz:
            raise InvalidRequest(f"{place}: frames={clip.frames!r}: need one or more whole numbers, of a video")
        if (clip.start_s, clip.end_s) != (0.0, None):
            raise InvalidRequest(f"{place}: need frames or times, not both")
        if numbers.min() < 0 or numbers.max() >= len(track.shown):
            raise RangeError(f"{place}: frames {numbers.min():,} to {numbers.max():,} of {len(track.shown):,}")
        return kind, tuple(numbers.tolist())
    start_s, end_s = clip.start_s, track.end_s if clip.end_s is None else min(clip.end_s, track.end_s)
    if not 0 <= start_s < (np.inf if clip.end_s is None else clip.end_s):
        raise InvalidRequest(f"{place}: {start_s} to {clip.end_s} s: need a start from 0, and an end behind it")
    if track.rate_hz:
        found = range(round(start_s * track.rate_hz), min(round(end_s * track.rate_hz), track.samples))
    else:
        on_screen = int(np.searchsorted(track.times_s, start_s + _SLACK_S, "right")) - 1
        found = range(max(0, on_screen), int(np.searchsorted(track.times_s, end_s - _SLACK_S)))
    if not found or start_s >= track.end_s:
        raise RangeError(f"{place}: nothing from {start_s} to {clip.end_s} s; the {kind} ends at {track.end_s:.3f} s")
    return kind, found


def _seconds(text: str, url: str) -> float:
    found = _TIME.match(text)
    if found is None:
        raise InvalidRequest(f"{url!r}: {text!r} is no time, such as 12.5 or 0:02:10")
    return int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + float(found[3])
