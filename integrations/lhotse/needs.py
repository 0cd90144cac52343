"""Needs of cuts: finds, without I/O, what a set of cuts has in the store, and fills the cuts with it.

The same walk does both, so that exactly what was found is filled. `walked` passes each manifest of a cut to a visitor,
and copies only what the visitor replaces. It visits all tracks of a mixed cut, the recording with all of its sources,
features, and custom fields, including inner arrays and images.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lhotse.array import Array, TemporalArray
from lhotse.audio.recording import Recording
from lhotse.cut import MixedCut, PaddingCut
from lhotse.features.base import Features
from lhotse.image import Image
from lhotse.utils import compute_num_samples

from ais_loader import Entry
from ais_loader.values.urls import SCHEME

from .failures import AISBatchLoaderError, FailedArrayReader, FailedSource
from .layouts import HEADER_BYTES, Layout, NpyLayout, WavLayout
from .shar_pointers import SharPointer, SharPointerError
from .windows import WindowReader, WindowSource, requested_rows, requested_seconds, shallow

MEMORY_TYPES = {
    "lilcom_files": "memory_lilcom",
    "lilcom_url": "memory_lilcom",
    "numpy_files": "memory_npy",
    "pillow_files": "pillow_memory",
}
"""Lhotse's storage types for bytes in memory, by those for files of the same format. `memory_raw` unpickles."""
SHAR_POINTER, SHAR_POINTER_ARRAY = "shar_ptr", "shar_ptr_array"
MIN_WINDOWED_BYTES = 8 * HEADER_BYTES
"""A file that may be smaller is fetched whole."""
MAX_WINDOW_SHARE = 0.5
"""If a batch needs a larger share of a file, the file is fetched whole, once."""

Visit = Callable[[Any, Any, str], Any]


def walked(cut: Any, visit: Visit) -> Any:
    """Return the cut with each manifest replaced by `visit(manifest, cut, field)`, or itself if none changed."""
    if isinstance(cut, MixedCut):
        return _walked_tracks(cut, visit)
    if isinstance(cut, PaddingCut):
        return cut
    changed: dict[str, Any] = {}
    for field in ("recording", "features"):
        manifest = getattr(cut, field)
        if manifest is not None and (new := visit(manifest, cut, field)) is not manifest:
            changed[field] = new
    custom: dict[str, Any] = {}
    for field, value in (cut.custom or {}).items():
        if isinstance(value, (Recording, Features, Array, TemporalArray, Image)):
            new = visit(value, cut, field)
            if new is not value:
                custom[field] = new
    if custom:
        changed["custom"] = {**cut.custom, **custom}
    return _with(cut, changed) if changed else cut


def _walked_tracks(cut: Any, visit: Visit) -> Any:
    cuts = [walked(track.cut, visit) for track in cut.tracks]
    if all(new is track.cut for new, track in zip(cuts, cut.tracks, strict=True)):
        return cut
    return _with(cut, {"tracks": [_with(track, {"cut": new}) for new, track in zip(cuts, cut.tracks, strict=True)]})


def _with(value: Any, changes: dict[str, Any]) -> Any:
    copy = shallow(value)
    copy.__dict__.update(changes)
    return copy


@dataclass(slots=True)
class Need:
    """One item that a cut has in the store."""

    url: str
    entry: Entry
    """The entire item."""
    cut_index: int
    pointer: SharPointer | None = None
    seconds: tuple[float, float] | None = None
    """The offset and duration that are needed of a recording, if that is less than half of a large one."""
    rows: tuple[int, int] | None = None
    """The first row and the stop that are needed of an array, under the same condition."""
    share: float = 1.0
    """The share of the entire item that is needed."""


def needs_of(cuts: Sequence[Any], *, windows: bool = True) -> list[Need]:
    """Return what these cuts have in the store, in the order of the walk.

    Raises AISBatchLoaderError for data in a form that cannot be fetched, InvalidRequest for a wrong URL.
    """
    found: list[Need] = []
    at = 0

    def note(manifest: Any, cut: Any, field: str) -> Any:
        if isinstance(manifest, Recording):
            found.extend(_of_recording(manifest, cut, field, at, windows))
        else:
            need = _of_array(manifest, cut, at, windows)
            if need is not None:
                found.append(need)
        return manifest

    for at, cut in enumerate(cuts):  # noqa: B007 - `note` reads it
        walked(cut, note)
    return found


def _is_ours(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(SCHEME)


def _is_remote(source: Any) -> bool:
    return source.type in ("url", SHAR_POINTER) and _is_ours(source.source)


def _pointed(text: str, at: int) -> Need:
    """Parse a Shar pointer. Raises AISBatchLoaderError."""
    try:
        pointer = SharPointer.parse(text)
    except SharPointerError as error:
        raise AISBatchLoaderError(str(error)) from error
    return Need(text, pointer.entry(), at, pointer)


def _of_recording(recording: Any, cut: Any, field: str, at: int, windows: bool) -> Iterator[Need]:
    span: tuple[float, float] | None = None
    is_known = False
    for source in recording.sources:
        if not _is_remote(source):
            continue
        url = source.source
        if source.type == SHAR_POINTER:
            yield _pointed(url, at)
            continue
        need = Need(url, Entry.from_url(url), at)
        if windows and url[-4:].lower() == ".wav" and source.video is None:
            if not is_known:
                is_known, span = True, _span(recording, cut, field)
            # Assumes 16 bits. Narrower samples are rare, and an eighth of a second of silence is as large as such a
            # file.
            if span is not None and 2 * recording.num_samples * len(source.channels) >= MIN_WINDOWED_BYTES:
                need.seconds, need.share = span, span[1] / recording.duration
        yield need


def _span(recording: Any, cut: Any, field: str) -> tuple[float, float] | None:
    """Return the part of the recording that the cut reads, or None if that is most of it."""
    if cut.duration > MAX_WINDOW_SHARE * recording.duration or (cut.custom or {}).get(f"{field}_unaligned"):
        return None
    window = requested_seconds(recording, cut.start, cut.duration)
    return None if window is None or window[1] is None else (window[0], window[1])


def _of_array(manifest: Any, cut: Any, at: int, windows: bool) -> Need | None:
    inner = manifest.array if isinstance(manifest, TemporalArray) else manifest
    if inner.storage_type == SHAR_POINTER_ARRAY:
        return _pointed(inner.storage_key, at) if _is_ours(inner.storage_key) else None
    path = inner.storage_path
    if not _is_ours(path):
        return None
    if inner.storage_type not in MEMORY_TYPES:
        raise AISBatchLoaderError(
            f"cut {cut.id}: {path} is in the store as {inner.storage_type!r}, which cannot be fetched as one object; "
            f"{', '.join(sorted(MEMORY_TYPES))} can"
        )
    url = f"{path.removesuffix('/')}/{inner.storage_key}"
    need = Need(url, Entry.from_url(url), at)
    if windows and inner.storage_type == "numpy_files" and isinstance(manifest, (Features, TemporalArray)):
        need.rows, need.share = _rows(manifest, cut)
    return need


def _rows(manifest: Any, cut: Any) -> tuple[tuple[int, int] | None, float]:
    """Return the rows of a large array that the cut reads, and their share of the whole."""
    shape = (manifest.num_frames, manifest.num_features) if isinstance(manifest, Features) else manifest.shape
    if math.prod(shape) < MIN_WINDOWED_BYTES or cut.duration > MAX_WINDOW_SHARE * manifest.duration:
        return None, 1.0
    window = requested_rows(manifest, cut.start, cut.duration)
    if window is None or window[1] is None:
        return None, 1.0
    first, stop, _ = slice(*window).indices(shape[0])
    return ((first, stop), (stop - first) / shape[0]) if stop > first else (None, 1.0)


# -- windows


def without_wide_windows(needs: Sequence[Need]) -> None:
    """Let items of which a batch needs most be fetched whole, once: by the sum of their windows."""
    shares: dict[Entry, float] = {}
    for need in needs:
        shares[need.entry] = shares.get(need.entry, 0.0) + need.share
    for need in needs:
        if shares[need.entry] > MAX_WINDOW_SHARE:
            need.seconds = need.rows = None


def entry_of(need: Need, layouts: Mapping[Entry, Layout | None]) -> Entry:
    """Return the entry to fetch for a need: the entire item, or its window in the version of its layout."""
    layout = layouts.get(need.entry)
    span = _byte_span(need, layout)
    if span is None:
        return need.entry
    assert layout is not None
    whole = need.entry
    return Entry(whole.bucket, whole.name, whole.member, span[0], span[1] - span[0], layout.version)


def _byte_span(need: Need, layout: Layout | None) -> tuple[int, int] | None:
    window = _window(need, layout)
    if window is None or layout is None:
        return None
    unit = layout.frame_bytes if isinstance(layout, WavLayout) else layout.row_bytes
    return layout.data_start + window[0] * unit, layout.data_start + window[1] * unit


def _window(need: Need, layout: Layout | None) -> tuple[int, int] | None:
    """Return the first frame or row, and the stop."""
    if isinstance(layout, WavLayout) and need.seconds is not None:
        offset, duration = need.seconds
        first = compute_num_samples(offset, layout.sampling_rate)
        stop = min(first + compute_num_samples(duration, layout.sampling_rate), layout.frames)
        return (first, stop) if first < stop else None
    if isinstance(layout, NpyLayout) and need.rows is not None:
        first, stop = need.rows[0], min(need.rows[1], layout.shape[0])
        return (first, stop) if first < stop else None
    return None


# -- filling


@dataclass(slots=True)
class NeedAnswer:
    """The answer for one need."""

    data: bytes | None
    """The bytes. None if the fetch failed."""
    why: str = ""
    layout: Layout | None = None
    """The layout of the entire item, if this is a window."""


def filled(cut: Any, needs: Iterator[Need], fetched: Iterator[NeedAnswer]) -> Any:
    """Return a shallow copy of the cut, filled with what was fetched. All cuts, in order, share the iterators."""

    def fill(manifest: Any, cut: Any, field: str) -> Any:
        if isinstance(manifest, Recording):
            if not any(map(_is_remote, manifest.sources)):
                return manifest
            sources = [
                _filled_source(source, next(needs), next(fetched)) if _is_remote(source) else source
                for source in manifest.sources
            ]
            return _with(manifest, {"sources": sources})
        inner = manifest.array if isinstance(manifest, TemporalArray) else manifest
        if not _is_remote_array(inner):
            return manifest
        new = _filled_array(inner, next(needs), next(fetched))
        return _with(manifest, {"array": new}) if isinstance(manifest, TemporalArray) else new

    return walked(cut, fill)


def _is_remote_array(inner: Any) -> bool:
    return _is_ours(inner.storage_key if inner.storage_type == SHAR_POINTER_ARRAY else inner.storage_path)


def _filled_source(source: Any, need: Need, fetched: NeedAnswer) -> Any:
    if fetched.data is None:
        return FailedSource("memory", source.channels, b"", source.video, why=fetched.why)
    layout = fetched.layout
    if isinstance(layout, WavLayout):
        window = _window(need, layout)
        assert window is not None
        return WindowSource(
            "memory",
            source.channels,
            layout.file(fetched.data),
            source.video,
            first_frame=window[0],
            frames=window[1] - window[0],
            sampling_rate=layout.sampling_rate,
            to_end=window[1] == layout.frames,
        )
    return _with(source, {"type": "memory", "source": fetched.data})


def _filled_array(inner: Any, need: Need, fetched: NeedAnswer) -> Any:
    if fetched.data is None:
        return _with(inner, {"storage_type": FailedArrayReader.name, "storage_path": "", "storage_key": fetched.why})
    layout = fetched.layout
    if isinstance(layout, NpyLayout):
        window = _window(need, layout)
        assert window is not None
        path = WindowReader.path(*window, layout.shape[0])
        return _with(
            inner,
            {"storage_type": WindowReader.name, "storage_path": path, "storage_key": layout.file(fetched.data)},
        )
    data = fetched.data
    if inner.storage_type == SHAR_POINTER_ARRAY:
        kind = "memory_npy" if data[:6] == b"\x93NUMPY" else "memory_lilcom"
    else:
        kind = MEMORY_TYPES[inner.storage_type]
    if kind == "pillow_memory":
        data = pickle.dumps(data)  # Lhotse's own form; pickled and unpickled in this process, from bytes
    return _with(inner, {"storage_type": kind, "storage_path": "", "storage_key": data})
