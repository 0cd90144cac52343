"""LeRobot's format 3.0: rows, frames of cameras and offsets, as its own reader defines them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from ais_loader import BatchLoader, Bucket, Client, errors
from ais_loader.integrations.lerobot import LeRobotDataset
from ais_loader.plans import ShufflePlan
from ais_loader.testing import throwaway_node, throwaway_store
from tests.table import table

FPS = 10
LENGTHS = [12, 7, 15, 9]
CAMERAS = ["observation.images.top", "observation.images.wrist"]
TASKS = ["push the block", "lift the cup"]


def film(first: int, frames: int, color: int) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream: Any = output.add_stream("libx264", rate=FPS, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 5
        for at in range(frames):
            image = np.zeros((48, 64, 3), np.uint8)
            image[:, :, color] = (first + at) * 5 % 256
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def frames_of(data: bytes) -> list[Any]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in container.decode(video=0)]


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), file, compression="none", write_page_checksum=True)
    return file.getvalue()


def dataset_files() -> dict[str, bytes]:
    """Two data files of two episodes each; the first camera has a file for them all, the other one for each two."""
    files: dict[str, bytes] = {}
    total = sum(LENGTHS)
    episode = np.repeat(np.arange(4), LENGTHS)
    within = np.concatenate([np.arange(length) for length in LENGTHS])
    state = np.stack([np.arange(total), np.arange(total) * 2.0], 1).astype(np.float32)
    for file, own in enumerate((episode < 2, episode >= 2)):
        files[f"data/chunk-000/file-{file:03d}.parquet"] = parquet(
            **{
                "observation.state": pa.FixedSizeListArray.from_arrays(state[own].ravel(), 2),
                "action": pa.array((-state[own]).tolist(), pa.list_(pa.float32())),
                "timestamp": (within[own] / FPS).astype(np.float32),
                "frame_index": within[own],
                "episode_index": episode[own],
                "index": np.flatnonzero(own),
                "task_index": episode[own] % 2,
            }
        )
    stops = np.cumsum(LENGTHS)
    starts = stops - LENGTHS
    half = starts - np.array([0, 0, stops[1], stops[1]])
    files[f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4"] = film(0, total, 0)
    files[f"videos/{CAMERAS[1]}/chunk-000/file-000.mp4"] = film(0, int(stops[1]), 1)
    files[f"videos/{CAMERAS[1]}/chunk-000/file-001.mp4"] = film(int(stops[1]), int(total - stops[1]), 1)
    about: dict[str, Any] = {"episode_index": np.arange(4), "length": np.array(LENGTHS)}
    for of, chosen, begin in (
        ("data", [0, 0, 1, 1], None),
        (CAMERAS[0], [0] * 4, starts),
        (CAMERAS[1], [0, 0, 1, 1], half),
    ):
        name = of if begin is None else f"videos/{of}"
        about[f"{name}/chunk_index"], about[f"{name}/file_index"] = np.zeros(4, np.int64), np.array(chosen)
        if begin is not None:
            about[f"{name}/from_timestamp"] = begin / FPS
    files["meta/episodes/chunk-000/file-000.parquet"] = parquet(**about)
    files["meta/tasks.parquet"] = parquet(task_index=[0, 1], __index_level_0__=TASKS)
    scalar = {"shape": [1], "names": None}
    features = {key: {"dtype": "video", "shape": [48, 64, 3], "names": None} for key in CAMERAS} | {
        "observation.state": {"dtype": "float32", "shape": [2]},
        "action": {"dtype": "float32", "shape": [2]},
        "timestamp": {"dtype": "float32", **scalar},
        **{key: {"dtype": "int64", **scalar} for key in ("frame_index", "episode_index", "index", "task_index")},
    }
    files["meta/info.json"] = json.dumps(
        {
            "codebase_version": "v3.0",
            "fps": FPS,
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "features": features,
        }
    ).encode()
    return files


FILES = dataset_files()
TOP = frames_of(FILES[f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4"])
WRIST = [one for file in (0, 1) for one in frames_of(FILES[f"videos/{CAMERAS[1]}/chunk-000/file-00{file}.mp4"])]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with throwaway_store({f"pusht/{name}": data for name, data in FILES.items()}, bucket="robots") as client:
        yield client


@pytest.fixture
def changed(client: Client) -> Iterator[Bucket]:
    """A copy of the dataset that the test may change."""
    bucket = client.create_bucket("changed")
    for name, data in FILES.items():
        bucket.put(name, data)
    yield bucket
    client.delete_bucket("changed", force=True)


def test_a_sample_is_a_row_with_the_frames_of_its_cameras(client: Client) -> None:
    robots = LeRobotDataset(client, "ais://robots/pusht")
    assert len(robots) == sum(LENGTHS)
    assert robots.info["fps"] == FPS
    episodes = np.repeat(np.arange(4), LENGTHS)
    for at, sample in enumerate(robots[:]):
        for key, frames in zip(CAMERAS, (TOP, WRIST), strict=True):
            assert sample[key].dtype == np.float32
            np.testing.assert_array_equal(sample[key], frames[at].astype(np.float32) / 255)
        np.testing.assert_array_equal(sample["observation.state"], np.float32([at, at * 2]))
        np.testing.assert_array_equal(sample["action"], np.float32([-at, -at * 2]))
        assert (sample["index"], sample["episode_index"]) == (at, episodes[at])
        assert sample["task"] == TASKS[episodes[at] % 2]
        assert set(sample) == {*robots.info["features"], "task"}


def test_offsets_stay_within_the_episode(client: Client) -> None:
    deltas = {CAMERAS[0]: [-0.2, 0.0, 0.1], "action": [0.0, 0.1, 0.2, 0.3], "timestamp": [-0.1]}
    robots = LeRobotDataset(client, "ais://robots/pusht", delta_timestamps=deltas, return_uint8=True)
    stops = np.cumsum(LENGTHS)
    for at, sample in enumerate(robots[:]):
        episode = int(np.searchsorted(stops, at, "right"))
        first, last = stops[episode] - LENGTHS[episode], stops[episode] - 1
        for key, offsets in (CAMERAS[0], [-2, 0, 1]), ("action", [0, 1, 2, 3]), ("timestamp", [-1]):
            rows = [min(max(at + offset, first), last) for offset in offsets]
            assert sample[f"{key}_is_pad"].tolist() == [not first <= at + offset <= last for offset in offsets]
            if key == "action":
                np.testing.assert_array_equal(sample[key][:, 0], np.float32([-row for row in rows]))
            elif key == "timestamp":
                np.testing.assert_array_equal(sample[key], np.float32([(row - first) / FPS for row in rows]))
            else:
                np.testing.assert_array_equal(sample[key], [TOP[row] for row in rows])
        np.testing.assert_array_equal(sample[CAMERAS[1]], WRIST[at])


def test_some_episodes(client: Client) -> None:
    robots = LeRobotDataset(client, "ais://robots/pusht", episodes=[3, 1], delta_timestamps={"index": [-0.1, 0.1]})
    rows = [*range(12, 19), *range(34, 43)]
    assert [sample["index"].tolist() for sample in robots[:]] == [
        [max(row - 1, 12 if row < 19 else 34), min(row + 1, 18 if row < 19 else 42)] for row in rows
    ]
    np.testing.assert_array_equal(robots[7][CAMERAS[1]], WRIST[34].astype(np.float32) / 255)


def test_a_batch_is_one_request_and_a_plan_resumes(client: Client) -> None:
    robots = LeRobotDataset(client.url, "ais://robots/pusht", return_uint8=True)
    plan = ShufflePlan(len(robots), 8, seed=2)
    loader = BatchLoader(robots, plan, collate=_indices)
    running = iter(loader)
    found = [next(running), next(running)]
    again = BatchLoader(LeRobotDataset(client.url, "ais://robots/pusht", return_uint8=True), plan, collate=_indices)
    again.load_state_dict(loader.state_dict())
    assert [*found, *again] == [list(plan.batch(0, step)) for step in range(6)]
    other = LeRobotDataset(client.url, "ais://robots/pusht", episodes=[0, 1, 2, 3], delta_timestamps={"action": [0.1]})
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        BatchLoader(other, plan, collate=_indices).load_state_dict(loader.state_dict())


def test_a_state_notices_that_rows_were_replaced(changed: Bucket) -> None:
    plan = ShufflePlan(sum(LENGTHS), 8, seed=2)
    state = BatchLoader(LeRobotDataset(changed.client, "ais://changed"), plan).state_dict()
    BatchLoader(LeRobotDataset(changed.client, "ais://changed"), plan).load_state_dict(state)
    rows = pa.parquet.read_table(io.BytesIO(FILES["data/chunk-000/file-000.parquet"]))
    rows = rows.set_column(1, "action", pa.array([[0.0, 0.0]] * len(rows), rows["action"].type))
    changed.put("data/chunk-000/file-000.parquet", parquet(**{name: rows[name] for name in rows.column_names}))
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        BatchLoader(LeRobotDataset(changed.client, "ais://changed"), plan).load_state_dict(state)


def _indices(samples: list[dict[str, Any]]) -> list[int]:
    for sample in samples:
        assert np.array_equal(sample[CAMERAS[0]], TOP[sample["index"]])
    return [int(sample["index"]) for sample in samples]


@pytest.mark.slow
def test_workers_of_a_node_read_a_dataset(client: Client) -> None:
    with throwaway_node(FILES, bucket="robots") as node:
        robots = LeRobotDataset(node.url, "ais://robots", return_uint8=True)
        plan = ShufflePlan(len(robots), 8, seed=2)
        for context in ("fork", "spawn"):
            loader = BatchLoader(robots, plan, collate=_indices, workers=2, context=context)
            assert list(loader) == [list(plan.batch(0, step)) for step in range(6)]


def info_with(**changes: Any) -> dict[str, bytes]:
    return {"meta/info.json": json.dumps(json.loads(FILES["meta/info.json"]) | changes).encode()}


FEATURES = json.loads(FILES["meta/info.json"])["features"]


@table(
    ("files", "options", "message"),
    [
        (info_with(codebase_version="v2.1"), {}, "Unsupported: format v2.1 of LeRobot: need v3"),
        (info_with(features={"image": {"dtype": "image"}}), {}, "Unsupported: need cameras whose images are in videos"),
        ({}, {"episodes": [4]}, "RangeError: episodes [4]: need some of the 4"),
        ({}, {"episodes": []}, "RangeError: episodes []"),
        ({}, {"delta_timestamps": {"action": [0.05]}}, "InvalidRequest: need multiples of 1/10 s"),
        ({}, {"delta_timestamps": {"actions": [0.1]}}, "InvalidRequest: 'actions' is none of"),
        ({}, {"root": "changed"}, "InvalidRequest: need the URL of a folder"),
        ({}, {"root": "ais://changed/none"}, "ObjectNotFound: none/meta/info.json"),
        (
            {f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4": film(0, 1, 0)},
            {},
            "InvalidRequest: no frame within 0.0001 s of 4.2000 s, that of frame 42",
        ),
        (
            {f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4": film(0, 40, 0)},
            {},
            "InvalidRequest: no frame within 0.0001 s of 4.2000 s, that of frame 42",
        ),
        (
            {f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4": b"no film"},
            {},
            f"MediaError: ais://changed/videos/{CAMERAS[0]}/chunk-000/file-000.mp4",
        ),
        (
            {"data/chunk-000/file-001.parquet": FILES["data/chunk-000/file-000.parquet"]},
            {},
            "InvalidRequest: episodes have other lengths than meta/episodes says",
        ),
        ({"data/chunk-000/file-001.parquet": b"PAR1"}, {}, "InvalidRequest: data/chunk-000/file-001.parquet"),
        (
            {"meta/tasks.parquet": FILES["meta/tasks.parquet"].replace(b"push the", b"pull the", 1)},
            {},
            "InvalidRequest: ais://changed/meta/tasks.parquet: could not verify page integrity",
        ),
        ({"meta/info.json": b"{}"}, {}, "InvalidRequest: meta/: 'codebase_version' is missing"),
    ],
)
def test_datasets_that_cannot_be_read(
    changed: Bucket, files: dict[str, bytes], options: dict[str, Any], message: str
) -> None:
    for name in FILES:
        changed.put(name, (FILES | files)[name])
    kind, _, text = message.partition(": ")
    with pytest.raises(errors.LoaderError, match=re.escape(text)) as raised:
        LeRobotDataset(changed.client, **({"root": "ais://changed"} | options))
    assert type(raised.value).__name__ == kind
