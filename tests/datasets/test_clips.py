"""Clips: frames and samples by time, equal to those of the whole file, from the packets that they need alone."""

from __future__ import annotations

import errno
import io
import pickle
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from datasets_kit import RecordingTransport
from media_kit import SOUNDS, VIDEOS, _tone, boxes, media, sound, video, whole_sound, whole_video

from ais_loader import BatchLoader, Bucket, Client, Clip, Clips, Entry, connect, errors
from ais_loader.objects import media_tracks
from ais_loader.objects.media_index import decode_tracks, encode_tracks
from ais_loader.plans import ShufflePlan
from ais_loader.training import clip_files
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.open_files import open_files
from tests.table import table

_draw = random.Random(3)
QUICK = ["b_frames.mp4", "vp9.webm", "with_sound.mp4", "broadcast.ts"]
QUICK_SOUNDS = ["a.wav", "a.flac", "a.mp3", "vorbis.ogg"]


def cases(names: dict[str, Any], quick: list[str]) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def films(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("films")
    yield bucket
    store.delete_bucket("films", force=True)


@pytest.fixture
def local_films(local_store: Client) -> Iterator[Bucket]:
    bucket = local_store.create_bucket("films")
    yield bucket
    local_store.delete_bucket("films", force=True)


@pytest.fixture
def recorded(local_films: Bucket) -> Iterator[RecordingTransport]:
    transport = RecordingTransport(local_films.client.url.removeprefix("file://"))
    yield transport
    transport.close()


@pytest.mark.parametrize("name", cases(VIDEOS, QUICK))
def test_a_clip_has_the_frames_of_the_whole_file(local_films: Bucket, name: str) -> None:
    times_s, frames = whole_video(name)
    ends_s = np.append(times_s[1:], np.inf)
    local_films.put(name, media(name))
    clips = [Clip(name), Clip(name, float(times_s[7])), Clip(name, frames=range(len(frames) - 1, -1, -7))]
    for _ in range(12):
        start_s = _draw.uniform(0, times_s[-1])
        clips.append(Clip(name, start_s, start_s + _draw.uniform(0.01, 1)))
        clips.append(Clip(name, frames=_draw.choices(range(len(frames)), k=3)))
    for clip, found in zip(clips, Clips(local_films.client, clips, bucket="films")[:], strict=True):
        stop_s = np.inf if clip.end_s is None else clip.end_s
        wanted = clip.frames or np.flatnonzero((ends_s > clip.start_s + 1e-6) & (times_s < stop_s - 1e-6))
        np.testing.assert_array_equal(found.data, frames[wanted], f"{clip}")
        np.testing.assert_allclose(found.times_s, times_s[wanted], atol=1e-9)


@pytest.mark.parametrize("name", cases(SOUNDS, QUICK_SOUNDS))
def test_a_clip_has_the_samples_of_the_whole_file(local_films: Bucket, name: str) -> None:
    samples, rate_hz = whole_sound(name)
    length_s = samples.shape[1] / rate_hz
    local_films.put(name, media(name))
    clips = [Clip(name), Clip(name, length_s - 0.1, length_s), Clip(name, length_s - 0.001, length_s + 1)]
    for _ in range(12):
        start_s = _draw.uniform(0, length_s - 0.01)
        clips.append(Clip(name, start_s, start_s + _draw.uniform(0.01, 1)))
    # The state of Opus, but for what it rounds, has passed after half a second.
    tolerance = 1e-6 if "opus" in name else 0
    for clip, found in zip(clips, Clips(local_films.client, clips, bucket="films")[:], strict=True):
        stop = samples.shape[1] if clip.end_s is None else round(clip.end_s * rate_hz)
        wanted = samples[:, round(clip.start_s * rate_hz) : stop]
        np.testing.assert_allclose(found.data, wanted, rtol=0, atol=tolerance, err_msg=f"{clip}")
        assert (found.data.dtype, found.rate_hz) == (np.float32, rate_hz)


def test_sound_is_what_libsndfile_reads(local_films: Bucket) -> None:
    for name in ("a.wav", "a.flac"):
        local_films.put(name, media(name))
        [found] = Clips(local_films.client, [f"{name}#t=1.25,2"], bucket="films")[:]
        expected, rate_hz = soundfile.read(io.BytesIO(media(name)), dtype="float32", always_2d=True)
        np.testing.assert_array_equal(found.data, expected[int(1.25 * rate_hz) : 2 * rate_hz].T)


@pytest.mark.every_transport
def test_a_batch_of_several_cameras_over_each_transport(films: Bucket) -> None:
    names = ["b_frames.mp4", "with_sound.mp4"]
    for name in names:
        films.put(f"drive/{name}", media(name))
    prefix = "ais://films/drive/"
    clips = Clips(
        films.client.url if films.client.url.startswith("grpc") else films.client,
        [
            {
                "front": f"{prefix}{names[0]}#t={at / 10},{at / 10 + 0.2}",
                "rear": Clip(f"{prefix}{names[1]}", frames=[at]),
                "sound": f"{prefix}{names[1]}#t={at / 10},{at / 10 + 0.1}&track=audio",
            }
            for at in range(15)
        ],
    )
    samples, rate_hz = whole_sound(names[1])
    again = pickle.loads(pickle.dumps(clips)) if films.client.url.startswith("grpc") else clips
    for at, sample in enumerate(again.__getitems__(range(15))):
        np.testing.assert_array_equal(sample["front"].data, whole_video(names[0])[1][at * 3 : at * 3 + 6])
        np.testing.assert_array_equal(sample["rear"].data, whole_video(names[1])[1][[at]])
        first = round(at / 10 * rate_hz)
        assert sample["sound"].data.shape == (2, round((at / 10 + 0.1) * rate_hz) - first)
        if not at:
            np.testing.assert_array_equal(sample["sound"].data, samples[:, : rate_hz // 10])
    films.put("drive/b_frames.mp4", media("b_frames.mp4"))
    with pytest.raises(errors.ObjectNotFound, match=r"b_frames\.mp4"):
        clips[0]


def test_a_batch_is_one_request_for_the_packets_that_it_needs(
    recorded: RecordingTransport, local_films: Bucket
) -> None:
    names = ["with_sound.mp4", "open_groups.mp4"]
    for name in names:
        local_films.put(name, media(name))
    Clips(local_films.client, names, bucket="films")  # their indexes are kept
    reader = Client(recorded)
    reader.refresh()
    recorded.requests.clear()
    samples = [tuple(Clip(name, at / 30, at / 30 + 0.2) for name in names) for at in range(45)]
    clips = Clips(reader, samples, bucket="films")
    assert recorded.requests == [2]  # the indexes
    for number, name in enumerate(names):
        with av.open(io.BytesIO(media(name))) as container:
            packets = [
                (one.pts * one.time_base, one.is_keyframe, one.size) for one in container.demux(video=0) if one.size
            ]
        keys = [at for at, (_, is_key, _) in enumerate(packets) if is_key]
        for at in range(45):
            entry = clips.wanted([at])[number]
            moved = sum(length or 0 for _, length in entry.ranges or [(0, entry.length)])
            shown = [n for n, (time_s, _, _) in enumerate(packets) if at / 30 - 1e-6 <= time_s < at / 30 + 0.2 - 1e-6]
            first = min(max(key for key in keys if key <= n and packets[key][0] <= packets[n][0]) for n in shown)
            stop = min([key for key in keys if key > max(shown)], default=len(packets))
            assert moved <= 1.2 * sum(size for _, _, size in packets[first:stop]), (name, at)
    recorded.requests.clear()
    assert len(clips.__getitems__(range(45))) == 45
    assert len(recorded.requests) == 1


def test_of_an_mp4_file_only_tables_are_read(recorded: RecordingTransport, local_films: Bucket) -> None:
    data = video("long.mp4", "mpeg4", frames=200, size=(640, 480), options={"qmin": "1", "qmax": "1"})
    local_films.put("long.mp4", data)
    assert len(data) > 3 << 20
    asked = 0
    read = recorded.open_batch

    def counted(request: Any, **options: Any) -> Any:
        nonlocal asked
        asked += sum(request.length)
        return read(request, **options)

    recorded.open_batch = counted  # type: ignore[method-assign]
    clips = Clips(Client(recorded), ["ais://films/long.mp4#t=5,5.1"])
    assert 0 < asked < len(data) // 4
    assert clips[0].data.shape == (3, 3, 480, 640)


def test_a_plan_draws_clips_and_resumes(local_films: Bucket) -> None:
    local_films.put("b_frames.mp4", media("b_frames.mp4"))
    entries = [f"ais://films/b_frames.mp4#t={at / 30:.6f},{(at + 2) / 30:.6f}" for at in range(58)]
    Clips(local_films.client, entries)

    def loader(workers: int = 0) -> BatchLoader:
        return BatchLoader(Clips(local_films.client.url, entries), ShufflePlan(58, 10, seed=4), workers=workers)

    frames = whole_video("b_frames.mp4")[1]
    plan = ShufflePlan(58, 10, seed=4)
    first = loader()
    running = iter(first)
    found = [next(running), next(running)]
    again = loader()
    again.load_state_dict(first.state_dict())
    found += list(again)
    for step, batch in enumerate(found):
        for at, sample in zip(plan.batch(0, step), batch, strict=True):
            np.testing.assert_array_equal(sample.data, frames[at : at + 2])
    state = first.state_dict()
    local_films.put("b_frames.mp4", media("b_frames.mp4"))
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader().load_state_dict(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_decode_clips(local_films: Bucket) -> None:
    local_films.put("b_frames.mp4", media("b_frames.mp4"))
    frames = whole_video("b_frames.mp4")[1]
    for kind in ("fork", "spawn"):
        clips = Clips(local_films.client.url, [Clip("b_frames.mp4", frames=[at]) for at in range(60)], bucket="films")
        with BatchLoader(clips, ShufflePlan(60, 7, seed=1), workers=2, context=kind) as loader:
            plan = ShufflePlan(60, 7, seed=1)
            for step, batch in enumerate(loader):
                for at, sample in zip(plan.batch(0, step), batch, strict=True):
                    np.testing.assert_array_equal(np.asarray(sample[0]), frames[[at]])


@pytest.mark.slow
def test_cameras_on_several_nodes_come_with_one_batch(tmp_path: Path) -> None:
    names = [f"{at}.mp4" for at in range(12)]
    with LocalCluster(tmp_path, spread=names) as cluster, connect(cluster.nodes[0].url) as client:
        bucket = client.bucket(BUCKET)
        for name in names:
            bucket.put(name, media("b_frames.mp4"))
        samples = [tuple(Clip(name, frames=[at, at + 1]) for name in names) for at in range(0, 58, 7)]
        for sample, at in zip(Clips(client, samples, bucket=BUCKET)[:], range(0, 58, 7), strict=True):
            for part in sample:
                np.testing.assert_array_equal(part.data, whole_video("b_frames.mp4")[1][at : at + 2])


@table(
    ("url", "expected"),
    [
        ("a.mp4", Clip("a.mp4")),
        ("a.mp4#t=1.5,2", Clip("a.mp4", 1.5, 2.0)),
        ("a.mp4#t=npt:10", Clip("a.mp4", 10.0)),
        ("a.mp4#t=,0:01:02.5", Clip("a.mp4", 0.0, 62.5)),
        ("a.mp4#t=1:30,2:00", Clip("a.mp4", 90.0, 120.0)),
        ("a.mp4#t=3s,4s&track=audio", Clip("a.mp4", 3.0, 4.0, None, "audio")),
        ("a.mp4#track=video", Clip("a.mp4", track="video")),
        ("take #1.mp4", Clip("take #1.mp4")),
        ("take #1.mp4#t=.5", Clip("take #1.mp4", 0.5)),
        ("a#t=1.mp4", "'1.mp4' is no time"),
        ("a.mp4#t=1,2#t=3", Clip("a.mp4#t=1,2", 3.0)),
        ("a.mp4#t=x", "'x' is no time"),
        ("a.mp4#t=1&xywh=0,0,1,1", "'xywh=0,0,1,1' is no t=START,END"),
        ("a.mp4#track=subtitles", "is no t=START,END and no track=video"),
        ("a.mp4#t=-1", "'-1' is no time"),
        ("a.mp4#t=", Clip("a.mp4")),
    ],
)
def test_media_fragments(url: str, expected: Clip | str) -> None:
    if isinstance(expected, Clip):
        assert Clip.from_url(url) == expected
        return
    with pytest.raises(errors.InvalidRequest, match=re.escape(expected)):
        Clip.from_url(url)


def test_a_fragment_is_a_part_of_the_name_elsewhere(local_films: Bucket) -> None:
    name = "a.mp4#t=1,2"
    local_films.put(name, media("b_frames.mp4"))
    assert local_films.get(name) == media("b_frames.mp4")
    assert len(Clips(local_films.client, [Clip(f"ais://films/{name}")])[0].data) == 60
    assert len(Clips(local_films.client, [Clip(local_films.head(name))])[0].data) == 60
    assert len(Clips(local_films.client, [f"{name}#t=0,0.5"], bucket="films")[0].data) == 15


@table(
    ("clip", "message"),
    [
        (Clip("a.mp4", 9.0, 10.0), "RangeError: nothing from 9.0 to 10.0 s; the video ends at 2.000 s"),
        (Clip("a.mp4", 1.0, 1.0), "InvalidRequest: 1.0 to 1.0 s: need a start from 0"),
        (Clip("a.mp4", -1.0), "InvalidRequest: -1.0 to None s"),
        (Clip("a.mp4", float("nan")), "InvalidRequest: nan to None s"),
        (Clip("a.mp4", frames=[60]), "RangeError: frames 60 to 60 of 60"),
        (Clip("a.mp4", frames=[-1]), "RangeError: frames -1 to -1"),
        (Clip("a.mp4", frames=[]), "InvalidRequest: frames=[]: need one or more"),
        (Clip("a.mp4", frames=[0.5]), "InvalidRequest: frames=[0.5]"),
        (Clip("a.mp4", 1.0, frames=[1]), "InvalidRequest: need frames or times, not both"),
        (Clip("a.mp4", track="audio"), "InvalidRequest: track='audio': its tracks are video"),
        (Clip("a.wav", frames=[1]), "InvalidRequest: frames=[1]: need one or more whole numbers, of a video"),
        (Clip("a.wav", 1.0, 1.000001), "RangeError: nothing from 1.0"),
        (Clip("none.mp4"), "ObjectNotFound: films/none.mp4 does not exist"),
        (Clip(Entry("films", "a.mp4", start=5)), "InvalidRequest: films/a.mp4: need whole objects"),
        (5, "TypeError: need an Entry or an ais:// URL, got int"),
    ],
)
def test_clips_that_there_are_not(local_films: Bucket, clip: Any, message: str) -> None:
    local_films.put("a.mp4", media("b_frames.mp4"))
    local_films.put("a.wav", media("a.wav"))
    kind, _, text = message.partition(": ")
    with pytest.raises((errors.LoaderError, TypeError), match=re.escape(text)) as raised:
        Clips(local_films.client, [clip], bucket="films")
    assert type(raised.value).__name__ == kind


def test_a_url_is_no_list_of_clips(local_films: Bucket) -> None:
    with pytest.raises(TypeError, match="clips is a str; need a sequence of clips"):
        Clips(local_films.client, "ais://films/a.mp4")


def test_files_that_are_no_media_or_are_cut(local_films: Bucket) -> None:
    data, front = media("b_frames.mp4"), media("fast_start.mp4")
    tables = boxes(data)[b"moov"]
    bad = {
        "text.mp4": (b"This is no film. " * 100, "not|Invalid data"),
        "empty.mp4": (b"", ""),
        "zeros.mp4": (bytes(5000), ""),
        "no_tables.mp4": (data[: tables.start], ""),
        "half_tables.mp4": (data[: tables.start + len(tables) // 2], ""),
        "cut.mp4": (front[:-100], "truncated"),
        "cut.flac": (media("a.flac")[:-1000], "Invalid data|truncated"),
        "cut.wav": (media("a.wav")[:-1000], "truncated"),
        "cut.avi": (media("plain.avi")[:-3000], "truncated"),
        "cut.webm": (media("vp9.webm")[:-3000], "truncated"),
        "cut.opus": (media("a.opus")[: len(media("a.opus")) * 2 // 3], "truncated"),
        "cut.ogg": (media("vorbis.ogg")[:-1], "truncated"),
        "cut.flv": (media("no_durations.flv")[: len(media("no_durations.flv")) * 2 // 3], "truncated"),
        "cut.mp3": (media("a.mp3")[: len(media("a.mp3")) * 2 // 3], "truncated"),
        "order.avi": (video("order.avi", "libx264", options={"bf": "2"}), "frames out of order"),
        "adaptive.wav": (sound("adaptive.wav", "adpcm_ima_wav"), "samples that have no time"),
        "subtitles.srt": (b"1\n00:00:00,000 --> 00:00:01,000\nHello\n", "neither audio nor video"),
    }
    for name, (content, message) in bad.items():
        local_films.put(name, content)
        with pytest.raises(errors.MediaError, match=rf"ais://films/{name}: .*({message})"):
            Clips(local_films.client, [name], bucket="films")
        assert issubclass(errors.BY_KIND["media"], errors.MediaError)


def kept(bucket: Bucket) -> list[str]:
    """The objects whose indexes are kept."""
    found = bucket.client._transport.objects("films", prefix="/.lines/", page_size=100)
    return sorted(info.name.removeprefix("/.lines/") for info in found)


def test_indexes_beside_a_bad_file_are_kept(local_films: Bucket) -> None:
    names = ["a.mp4", "bad.mp4", "c.webm", "worse.mp4", "e.wav"]
    contents = [media("b_frames.mp4"), b"text", media("vp9.webm"), b"", media("a.wav")]
    local_films.put_many(zip(names, contents, strict=True))
    with pytest.raises(errors.MediaError, match=r"ais://films/bad\.mp4: "):
        Clips(local_films.client, names, bucket="films")
    assert kept(local_films) == ["a.mp4", "c.webm", "e.wav"]


def test_a_full_folder_of_temporary_files_is_told_and_nothing_is_left(
    local_films: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a.mp4", "b.webm", "c.webm"]
    local_films.put_many((name, media("b_frames.mp4" if name == "a.mp4" else "vp9.webm")) for name in names)
    with monkeypatch.context() as patch:
        patch.setattr(media_tracks.tempfile, "TemporaryFile", partial(open, "/dev/full", "w+b"))
        with pytest.raises(
            OSError, match=r"No space left.* \(set TMPDIR\), for a copy of ais://films/b\.webm"
        ) as raised:
            Clips(local_films.client, names, bucket="films")
    assert raised.value.errno == errno.ENOSPC
    assert kept(local_films) == ["a.mp4"]
    assert "/dev/full" not in open_files().values()


@table("content", [b"", b"\x1aE\xdf\xa3" + bytes(99), media("vp9.webm")[:-3000], media("vp9.webm")])
def test_no_copy_of_a_file_is_left(
    local_films: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(media_tracks.tempfile, "tempdir", str(tmp_path))
    local_films.put("a.webm", content)
    with suppress(errors.MediaError):
        Clips(local_films.client, ["a.webm"], bucket="films")
    assert not list(tmp_path.iterdir()) and not open_files(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_packets_that_cannot_be_decoded_are_errors(local_films: Bucket) -> None:
    data = bytearray(media("b_frames.mp4"))
    packets = boxes(bytes(data))[b"mdat"]
    with av.open(io.BytesIO(bytes(data))) as container:
        [second] = [
            one
            for one in container.demux(video=0)
            if one.is_keyframe and one.pts and 0.4 < one.pts * one.time_base < 0.6
        ]
        start, size = second.pos, second.size
    assert start in packets
    data[start : start + size] = bytes(size)
    local_films.put("a.mp4", bytes(data))
    clips = Clips(local_films.client, [Clip("a.mp4", frames=[at]) for at in range(60)], bucket="films")
    assert clips[3].data.shape == (1, 3, 64, 96)
    with pytest.raises(errors.MediaError, match=r"ais://films/a\.mp4: .*(cannot be decoded|damaged)") as raised:
        clips[15]
    assert any("sample 15 of its dataset, ais://films/a.mp4" in note for note in raised.value.__notes__)
    loader = BatchLoader(clips, ShufflePlan(60, 20, seed=1), on_bad="skip")
    assert 0 < sum(len(batch) for batch in loader) < 60


def test_a_file_that_is_replaced_is_not_mixed_with_another(local_films: Bucket) -> None:
    local_films.put("a.mp4", media("b_frames.mp4"))
    clips = Clips(local_films.client, ["a.mp4#t=0,1"], bucket="films", on_error="placeholder")
    assert len(clips[0].data) == 30
    local_films.put("a.mp4", video("a.mp4", "libx264", seed=2))
    assert clips[0] is None
    with pytest.raises(errors.ObjectNotFound):
        Clips(local_films.client, [Clip(Entry("films", "a.mp4", version="1.1.0"))])
    again = Clips(local_films.client, ["a.mp4#t=0,1"], bucket="films")[0]
    assert not np.array_equal(again.data, whole_video("b_frames.mp4")[1][:30])


def test_an_index_is_that_of_one_version(local_films: Bucket) -> None:
    first = local_films.put("a.mp4", media("with_sound.mp4"))
    Clips(local_films.client, ["a.mp4"], bucket="films")
    [kept] = local_films.client._transport.objects("films", prefix="/.lines/a.mp4", page_size=10)
    [item] = local_films.client.get_batch([Entry("films", kept.name)])
    index = decode_tracks(item.data, first)
    assert index is not None
    assert sorted(index) == ["audio", "video"]
    assert encode_tracks(first, index) is not None
    assert decode_tracks(item.data, local_films.put("a.mp4", media("with_sound.mp4"))) is None
    for damaged in (b"", b"AISLINES" + bytes(40), item.tobytes()[:-30], item.tobytes()[:100]):
        assert decode_tracks(damaged, first) is None


@pytest.mark.slow
def test_torchcodec_decodes_the_same_frames(local_films: Bucket) -> None:
    if find_spec("torchcodec") is None:  # it needs the libraries of FFmpeg
        pytest.skip("no torchcodec")
    from torchcodec.decoders import VideoDecoder

    for name in VIDEOS:
        times_s, frames = whole_video(name)
        if name != "broadcast.ts":  # which PyAV decodes here, too
            frames = VideoDecoder(media(name)).get_frames_at(list(range(len(frames)))).data.numpy()
        local_films.put(name, media(name))
        clips = [Clip(name, frames=_draw.choices(range(len(frames)), k=6)), Clip(name, float(times_s[20]))]
        for clip, found in zip(clips, Clips(local_films.client, clips, bucket="films", device="cpu")[:], strict=True):
            wanted = clip.frames or range(20, len(frames))
            np.testing.assert_array_equal(found.data.numpy(), frames[wanted], err_msg=name)
            np.testing.assert_allclose(found.times_s, times_s[wanted], atol=1e-9)


def test_pixels_of_another_format(local_films: Bucket) -> None:
    local_films.put("a.mp4", media("b_frames.mp4"))
    [found] = Clips(local_films.client, [Clip("a.mp4", frames=[4, 4])], bucket="films", pixel_format="gray")[:]
    assert (found.data.shape, found.data.dtype) == ((2, 64, 96), np.uint8)
    with pytest.raises(errors.InvalidRequest, match="pixel_format='grey'"):
        Clips(local_films.client, ["a.mp4"], bucket="films", pixel_format="grey")


def test_audio_that_begins_later_is_silent_before(local_films: Bucket) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        picture, tone = output.add_stream("libx264", rate=10), output.add_stream("aac", rate=48_000)
        picture.width, picture.height, picture.pix_fmt = 96, 64, "yuv420p"
        for at in range(20):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 96, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 10)
            output.mux(picture.encode(frame))
            if at >= 10:
                output.mux(tone.encode(_tone(at * 4800, 4800, 48_000, "stereo")))
        output.mux(picture.encode(None))
        output.mux(tone.encode(None))
    local_films.put("late.mp4", file.getvalue())
    names = [f"late.mp4#t={times}&track=audio" for times in ("0,0.5", "0,1.5", "1.2,1.5")]
    before, whole, behind = Clips(local_films.client, names, bucket="films")[:]
    assert before.data.shape == (2, 24_000) and not before.data.any()
    assert not whole.data[:, :46_000].any() and np.abs(whole.data[:, 48_000:]).max() > 0.1
    np.testing.assert_array_equal(whole.data[:, 57_600:], behind.data)


def test_a_video_whose_decoder_is_configured_anew_is_refused(local_films: Bucket) -> None:
    """The second half is decoded without any error, to other colours, as the first one is."""
    options = {"bf": "0", "x264-params": "chroma-qp-offset=0"}
    first = video("a.flv", "libx264", frames=30, options=options)
    second = video("a.flv", "libx264", frames=30, options=options | {"x264-params": "chroma-qp-offset=12"}, seed=2)
    local_films.put("same.flv", joined(first, first))
    assert len(Clips(local_films.client, ["same.flv"], bucket="films")[0].data) == 60
    local_films.put("other.flv", joined(first, second))
    with pytest.raises(errors.MediaError, match=r"other\.flv: its video track changes its decoder's configuration"):
        Clips(local_films.client, ["other.flv"], bucket="films")


def joined(first: bytes, second: bytes) -> bytes:
    """One FLV file of two of a second each."""
    found = first[:13]
    for data, begin_ms in ((first, 0), (second, 1000)):
        at = 13
        while at < len(data):
            size = int.from_bytes(data[at + 1 : at + 4], "big")
            tag, at = data[at : at + 15 + size], at + 15 + size
            is_end = tag[0] == 9 and tag[12] == 2
            if tag[0] != 18 and not (is_end and data is first):  # no text, which tells how long it is
                time_ms = int.from_bytes(tag[4:7], "big") + begin_ms
                found += tag[:4] + time_ms.to_bytes(3, "big") + tag[7:]
    return found


def test_a_codec_without_a_decoder_is_named(local_films: Bucket) -> None:
    local_films.put("a.mp4", media("with_sound.mp4").replace(b"avc1", b"zzzz"))
    with pytest.raises(errors.MediaError, match=r"a\.mp4: its video is of a codec that PyAV does not decode"):
        Clips(local_films.client, ["a.mp4"], bucket="films")


def test_fragments_are_noticed_where_reads_divide_their_names(local_films: Bucket) -> None:
    local_films.put("fragments.mp4", media("fragments.mp4"))
    with local_films.open("fragments.mp4") as file:
        tables = media_tracks._Tables(file)
        at = media("fragments.mp4").index(b"mvex") + 2
        tables.read(at), tables.read(20)
    assert tables.is_fragmented


def test_a_truncated_configuration_of_a_decoder_takes_no_time(local_films: Bucket) -> None:
    local_films.put("a.mp4", media("b_frames.mp4"))
    [index] = media_tracks.media_indexes(local_films.client, [local_films.head("a.mp4")], timeout_s=180)
    cut = replace(index["video"], codec="hevc", extradata=np.frombuffer(b"\1" + b"\xff" * 40, np.uint8))
    with pytest.raises(IndexError, match="truncated"):
        clip_files.packets_file(cut, range(1), [b"data"])


def test_a_description_of_a_session_opens_no_socket(local_films: Bucket) -> None:
    text = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 45678 RTP/AVP 96\n"
    local_films.put("a.sdp", text + b"a=rtpmap:96 H264/90000\n")
    with pytest.raises(errors.MediaError, match=r"a\.sdp"):
        Clips(local_films.client, ["a.sdp"], bucket="films")
