"""Parts of audio and video tracks: the packets that decode to what is wanted, and their byte ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ais_loader.objects.media_index import Numbers, Track
from ais_loader.objects.range_table import pin_of
from ais_loader.values.entry import Entry, ObjectInfo

_LOSSLESS = ("pcm_", "flac", "alac")
_BEFORE_S = 0.5
"""Audio that is decoded before what is wanted, because a decoder's output depends on packets before."""
_JOINED = 8
"""Ranges are joined if that adds at most an eighth to the bytes of the packets."""

Ranges = list[tuple[int, int]]


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
    first = max(0, first)
    return range(first, max(first + 1, int(np.searchsorted(track.ticks, math.ceil(stop_tick)))))


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
