"""LeRobot's dataset format 3.0 as a map-style dataset: a frame's row, and the frames of its cameras, in one request.

Source: https://huggingface.co/docs/lerobot/lerobot-dataset-v3; lerobot 0.4, datasets/dataset_reader.py (`get_item`),
datasets/video_utils.py (`decode_video_frames`).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest, RangeError, Unsupported
from ais_loader.extras import needs
from ais_loader.objects.client import Client
from ais_loader.objects.media_tracks import media_indexes
from ais_loader.objects.range_table import described, pin_of
from ais_loader.training.clip_decoding import PartDecoder
from ais_loader.training.clip_parts import part_entry
from ais_loader.training.datasets import MapDataset
from ais_loader.training.process_client import ClientOrUrl, ProcessClient
from ais_loader.values.entry import Entry, Item
from ais_loader.values.urls import SCHEME

with needs("pyarrow", "LeRobot's Parquet files", extra="lerobot"):
    import pyarrow as pa
    import pyarrow.parquet

Columns = dict[str, npt.NDArray[Any]]


class LeRobotDataset(MapDataset):
    """A map-style dataset of the frames of a LeRobot dataset, format 3.0, for any sampler or plan.

    A sample is the dict that lerobot's own LeRobotDataset returns, of numpy arrays: each column of the frame's row,
    `task` as text, and each camera's image as float32 from 0 to 1, of shape (3, height, width). With
    `delta_timestamps`, a column or camera has a leading dimension, one for each offset, and `<key>_is_pad` says which
    of them are outside the episode, for which its first or last frame stands in.

    The Parquet files are read once and held in memory. Videos are read as `Clips` are: a batch is one request for the
    packets of all cameras. Videos are read in the version that they had when the dataset was made.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        root: str,
        *,
        episodes: Iterable[int] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        return_uint8: bool = False,
        transform: Callable[[Any], Any] | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, timeout_s, retry_s, options: See MapDataset, as for `on_error` and `on_batch`.
            root: The URL of the dataset's folder, such as "ais://robots/pusht", below which is `meta/info.json`.
            episodes: The numbers of the episodes to use; None for all.
            delta_timestamps: Offsets in seconds, by column or camera, which are multiples of a frame's duration.
            tolerance_s: How far a video's frame may be from the time that the row says, in seconds.
            return_uint8: Whether images are uint8 from 0 to 255.
            transform: A function from a sample to a sample. It must be picklable if workers are spawned.

        Raises Unsupported for another format and for images that are not videos, InvalidRequest, RangeError for an
        episode that does not exist, MediaError, ObjectNotFound, MissingExtra, and the errors of reading.
        """
        reader = ProcessClient(client_or_url, retry_s)
        with reader.opened("a" if reader.is_shared else "r") as client:
            files = _Files(client, root, timeout_s)
            try:
                table = _FrameTable(files, episodes, delta_timestamps or {}, tolerance_s)
            except KeyError as error:
                raise InvalidRequest(f"{files.url}meta/: {error} is missing, which LeRobot's format 3 has") from None
        self.info = table.info
        """Content of `meta/info.json`."""
        super().__init__(
            client_or_url,
            table,
            _FrameDecoder(table, return_uint8),
            transform=transform,
            timeout_s=timeout_s,
            retry_s=retry_s,
            **options,
        )

    def __repr__(self) -> str:
        return f"<LeRobotDataset of {len(self):,} frames, {self._client!r}>"


class _Files:
    """The files of a dataset."""

    def __init__(self, client: Client, root: str, timeout_s: float) -> None:
        self.client, self.timeout_s = client, timeout_s
        self.url = root.rstrip("/") + "/"
        self.bucket, _, self.prefix = self.url.removeprefix(SCHEME).partition("/")
        if not root.startswith(SCHEME) or not self.bucket:
            raise InvalidRequest(f"root={root!r}: need the URL of a folder, such as ais://robots/pusht")
        self.digest = hashlib.blake2b(digest_size=16)
        """The digest of all that was read."""

    def read(self, names: Sequence[str]) -> list[bytes]:
        entries = [Entry(self.bucket, self.prefix + name) for name in names]
        with self.client.get_batch(entries, timeout_s=self.timeout_s) as batch:
            found = [item.tobytes() for item in batch]
        for data in found:
            self.digest.update(data)
        return found

    def rows(self, names: Sequence[str]) -> pa.Table:
        """Return the rows of Parquet files. Raises InvalidRequest for another file."""
        tables = []
        for name, data in zip(names, self.read(names), strict=True):
            try:
                tables.append(pa.parquet.read_table(io.BytesIO(data), page_checksum_verification=True))
            except (pa.ArrowInvalid, OSError) as error:
                raise InvalidRequest(f"{self.url}{name}: {error}") from None
        return pa.concat_tables(tables, promote_options="default")


class _FrameTable(Sequence[dict[str, Entry]]):
    """The rows, and the entries of their frames."""

    def __init__(
        self, files: _Files, episodes: Iterable[int] | None, deltas: Mapping[str, Sequence[float]], tolerance_s: float
    ) -> None:
        self.info: dict[str, Any] = json.loads(files.read(["meta/info.json"])[0])
        version, features, fps = str(self.info["codebase_version"]), self.info["features"], self.info["fps"]
        if not version.startswith("v3."):
            raise Unsupported(f"format {version} of LeRobot: need v3, to which lerobot's own script converts v2.1")
        self._cameras = [key for key, feature in features.items() if feature["dtype"] == "video"]
        has_depth = any((features[key].get("info") or {}).get("video.is_depth_map") for key in self._cameras)
        if has_depth or not self._cameras or "image" in (feature["dtype"] for feature in features.values()):
            raise Unsupported(f"{files.url}: need cameras whose images are in videos, none of them of depth")
        self.offsets = {key: _offsets(key, several, features, fps, tolerance_s) for key, several in deltas.items()}
        names = [one.name for one in files.client.bucket(files.bucket).objects(f"{files.prefix}meta/episodes/")]
        about = files.rows([name.removeprefix(files.prefix) for name in names]).sort_by("episode_index")
        chosen = np.arange(len(about)) if episodes is None else np.unique(np.fromiter(episodes, np.int64))
        if not len(chosen) or chosen[0] < 0 or chosen[-1] >= len(about):
            raise RangeError(f"episodes {chosen[:5].tolist()}: need some of the {len(about):,} that there are")
        about = about.take(chosen)
        rows = files.rows(list(dict.fromkeys(_paths(about, "data", self.info["data_path"]))))
        rows = rows.filter(pa.compute.is_in(rows["episode_index"], pa.array(chosen))).sort_by("index")
        self.columns = {key: _array(rows[key], features[key]["shape"]) for key in rows.column_names if key in features}
        lengths = about["length"].to_numpy()
        self._episode = np.repeat(np.arange(len(chosen)), lengths)
        if not np.array_equal(self.columns["episode_index"], chosen[self._episode]):
            raise InvalidRequest(f"{files.url}: episodes have other lengths than meta/episodes says")
        self._stops = lengths.cumsum()
        tasks = files.rows(["meta/tasks.parquet"])
        [text] = [name for name in tasks.column_names if name != "task_index"]  # a pandas frame's index
        self.tasks = dict(zip(tasks["task_index"].to_pylist(), tasks[text].to_pylist(), strict=True))
        self._find_frames(files, about, tolerance_s)
        self._files_digest = files.digest.hexdigest()

    def _find_frames(self, files: _Files, about: pa.Table, tolerance_s: float) -> None:
        """Find each row's frame in each video. Raises InvalidRequest if one is not there."""
        paths = {key: _paths(about, f"videos/{key}", self.info["video_path"], key) for key in self._cameras}
        names = list(dict.fromkeys(path for several in paths.values() for path in several))
        number_of = {name: number for number, name in enumerate(names)}
        self._objects = described(files.client, [Entry(files.bucket, files.prefix + name) for name in names], None)
        indexes = media_indexes(files.client, self._objects, timeout_s=files.timeout_s)
        self._tracks = [index["video"] for index in indexes]
        self._videos: Columns = {}
        self._frames: Columns = {}
        for key in self._cameras:
            self._videos[key] = np.array([number_of[path] for path in paths[key]])[self._episode]
            begins_s = about[f"videos/{key}/from_timestamp"].to_numpy()[self._episode]
            times_s = begins_s + self.columns["timestamp"].astype(np.float64)
            self._frames[key] = np.zeros(len(times_s), np.int64)
            for number in np.unique(self._videos[key]).tolist():
                own = np.flatnonzero(self._videos[key] == number)
                frames, off_s = _nearest(self._tracks[number].times_s, times_s[own])
                worst = own[off_s.argmax()]
                if off_s.max() > tolerance_s:
                    raise InvalidRequest(
                        f"{files.url}{names[number]}: no frame within {tolerance_s} s of {times_s[worst]:.4f} s, that "
                        f"of frame {self.columns['index'][worst]}; pass a larger tolerance_s, or leave out the episode"
                    )
                self._frames[key][own] = frames

    def rows_of(self, key: str, row: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the rows that a sample has of a column or camera, and whether others of its episode stand in."""
        wanted = row + self.offsets.get(key, np.zeros(1, np.int64))
        stop = int(self._stops[self._episode[row]])
        first = int(self._stops[self._episode[row] - 1]) if self._episode[row] else 0
        return wanted.clip(first, stop - 1), (wanted < first) | (wanted >= stop)

    def __len__(self) -> int:
        return len(self._episode)

    @overload
    def __getitem__(self, index: int) -> dict[str, Entry]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Entry]]: ...
    def __getitem__(self, index: Any) -> Any:
        rows = range(len(self))[index]
        if isinstance(rows, range):
            return [self[row] for row in rows]
        entries = {}
        for key in self._cameras:
            number = int(self._videos[key][rows])
            wanted = self._frames[key][self.rows_of(key, rows)[0]].tolist()
            entries[key] = part_entry(self._objects[number], self._tracks[number], wanted, rows)
        return entries

    def digest(self) -> str:
        """Return a digest of what the samples have and fetch, in their order, the same on every platform."""
        pins = [(info.bucket, info.name, pin_of(info)) for info in self._objects]
        offsets = {key: several.tolist() for key, several in self.offsets.items()}
        digest = hashlib.blake2b(
            repr((pins, offsets, self._files_digest)).encode("utf-8", "surrogatepass"), digest_size=16
        )
        for column in (self.columns["index"], *self._videos.values(), *self._frames.values()):
            digest.update(np.ascontiguousarray(column, "<i8").data)
        return digest.hexdigest()


class _FrameDecoder:
    """Decoder of the items of a row's cameras to a sample."""

    def __init__(self, table: _FrameTable, return_uint8: bool) -> None:
        self._table, self._return_uint8, self._decode = table, return_uint8, PartDecoder()

    def __call__(self, items: Mapping[str, Item]) -> dict[str, Any] | None:
        if not all(item.ok for item in items.values()):
            return None
        table = self._table
        row = next(iter(items.values())).entry.opaque.label
        sample: dict[str, Any] = {}
        for key, item in items.items():
            images = self._decode(item).data
            images = images if self._return_uint8 else images.astype(np.float32) / 255
            sample[key] = images[0] if len(images) == 1 else images
        for key, column in table.columns.items():
            values = column[table.rows_of(key, row)[0]]
            sample[key] = values if key in table.offsets else values[0]
        for key in table.offsets:
            sample[f"{key}_is_pad"] = table.rows_of(key, row)[1]
        return sample | {"task": table.tasks[int(table.columns["task_index"][row])]}


def _offsets(
    key: str, deltas: Sequence[float], features: Mapping[str, Any], fps: float, tolerance_s: float
) -> npt.NDArray[np.int64]:
    """Return offsets in frames. Raises InvalidRequest."""
    if key not in features:
        raise InvalidRequest(f"delta_timestamps: {key!r} is none of {sorted(features)}")
    frames = np.asarray(deltas, np.float64) * fps
    if frames.ndim != 1 or not len(frames) or np.abs(frames - frames.round()).max() > tolerance_s * fps:
        raise InvalidRequest(f"delta_timestamps[{key!r}]={deltas!r}: need multiples of 1/{fps} s, the time of a frame")
    return frames.round().astype(np.int64)


def _paths(about: pa.Table, of: str, template: str, key: str = "") -> list[str]:
    """Return the file of each episode."""
    numbers = zip(about[f"{of}/chunk_index"].to_pylist(), about[f"{of}/file_index"].to_pylist(), strict=True)
    return [template.format(video_key=key, chunk_index=chunk, file_index=file) for chunk, file in numbers]


def _array(column: pa.ChunkedArray, shape: Sequence[int]) -> npt.NDArray[Any]:
    values, is_nested = column.combine_chunks(), False
    while hasattr(values, "flatten") and values.type.num_fields:
        values, is_nested = values.flatten(), True
    array = values.to_numpy(zero_copy_only=False)
    return np.asarray(array.reshape(len(column), *shape) if is_nested else array)


def _nearest(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return the number of the nearest of these sorted times to each one, and how far away it is."""
    after = np.searchsorted(known, wanted).clip(1, max(1, len(known) - 1))
    after = (after - (wanted - known[after - 1] <= known[after % len(known)] - wanted)).clip(0, len(known) - 1)
    return after, np.abs(known[after] - wanted)
