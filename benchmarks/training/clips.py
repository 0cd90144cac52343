"""Clips of videos from a node: by `Clips`, from whole objects, from objects as files, and from local files.

    python -m benchmarks.training.clips            # writes the table beside this file

Videos are H.264 of 640 x 360 pixels and half a minute, with a key frame each second and B-frames. A batch is 16 clips
of half a second, each at a random place of a random video, as RGB arrays. The node is a process on this machine, so
that the network costs nothing: over a real one, all but local files are further apart. All contestants decode the same
clips with PyAV in one thread, one after another in each round. The rate is by the processor time of the trainer's
process, because others use this machine's cores; most of it is decoding, which is the same for all.

- Clips: one request for the packets of a batch.
- whole objects: a batch of the clips' objects, in memory, in which PyAV seeks.
- objects as files: `Bucket.open`, in which PyAV seeks, clip after clip.
- local files: PyAV opens and seeks in a file of this machine.

Predicted before the first run: Clips at least 3 times whole objects and 1.5 times objects as files, and at least 0.9
times local files, because a decoder without its container saves what reading the packets costs; they move at most a
twentieth of the bytes of whole objects. The first was wrong: what all of them decode is most of the time.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import click
import numpy as np

import ais_loader
from ais_loader import Clip, Clips
from ais_loader.testing import throwaway_node
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, page, rates_table, run_rounds

TABLE = Path(__file__).with_suffix(".md")
VIDEOS, SECONDS, RATE = 3, 30, 30
BATCH, CLIP_S = 16, 0.5
BATCHES = 2


def video(seed: int) -> bytes:
    file = io.BytesIO()
    draw = np.random.default_rng(seed)
    scene = draw.integers(0, 255, (45, 160, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(file, "w", format="mp4") as output:
        stream: Any = output.add_stream("libx264", rate=RATE, options={"preset": "veryfast", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 640, 360, "yuv420p", 2_000_000
        stream.codec_context.gop_size = RATE
        for at in range(SECONDS * RATE):
            image = scene[:, at * 2 % 600 : at * 2 % 600 + 640].copy()
            image[::4, ::4] += draw.integers(0, 16, image[::4, ::4].shape, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def clip_of(file: Any, start_s: float) -> Any:
    """The frames of a clip, as anybody reads them with PyAV."""
    with av.open(file) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        container.seek(int(start_s / stream.time_base), stream=stream)
        frames = []
        for frame in container.decode(stream):
            if frame.pts * stream.time_base >= Fraction(start_s) + Fraction(CLIP_S):
                break
            if (frame.pts + frame.duration) * stream.time_base > start_s:
                frames.append(frame.to_ndarray(format="rgb24"))
        return np.stack(frames)


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(rounds: int, write: bool) -> None:
    videos = {f"{at}.mp4": video(at) for at in range(VIDEOS)}
    draw = random.Random(1)
    places = [
        [(draw.choice(list(videos)), (draw.randrange((SECONDS - 1) * RATE) + 0.5) / RATE) for _ in range(BATCH)]
        for _ in range(BATCHES)
    ]
    flat = [place for batch in places for place in batch]
    with (
        tempfile.TemporaryDirectory() as folder,
        throwaway_node(videos, bucket="films") as node,
        ais_loader.connect(node.url) as client,
    ):
        for name, data in videos.items():
            (Path(folder) / name).write_bytes(data)
        bucket = client.bucket("films")
        clips = Clips(client, [Clip(name, start_s, start_s + CLIP_S) for name, start_s in flat], bucket="films")

        def by_clips(at: int) -> list[Any]:
            return [one.data for one in clips.__getitems__(range(at * BATCH, (at + 1) * BATCH))]

        def by_objects(at: int) -> list[Any]:
            with bucket.get_batch([name for name, _ in places[at]]) as batch:
                return [clip_of(item.open(), start_s) for item, (_, start_s) in zip(batch, places[at], strict=True)]

        def by_open(at: int) -> list[Any]:
            found = []
            for name, start_s in places[at]:
                with bucket.open(name) as file:
                    found.append(clip_of(file, start_s))
            return found

        def by_files(at: int) -> list[Any]:
            return [clip_of(f"{folder}/{name}", start_s) for name, start_s in places[at]]

        def turn(read: Callable[[int], list[Any]]) -> Callable[[], float]:
            def run() -> float:
                began_s = time.process_time()
                for at in range(BATCHES):
                    read(at)
                return BATCHES * BATCH / (time.process_time() - began_s)

            return run

        ways = {"Clips": by_clips, "whole objects": by_objects, "objects as files": by_open, "local files": by_files}
        for one, other in zip(by_clips(0), by_files(0), strict=True):
            assert np.array_equal(one.transpose(0, 2, 3, 1), other)
        began_s = time.perf_counter()
        Clips(client, [Clip(name) for name in videos], bucket="films")
        again_s = time.perf_counter() - began_s
        rates = run_rounds({name: turn(read) for name, read in ways.items()}, rounds)
        entries = clips.wanted(range(len(flat)))
        moved = sum(length or 0 for entry in entries for _, length in entry.ranges or [(0, entry.length)])
    share = moved / sum(len(videos[name]) for name, _ in flat)
    outcomes = judge(
        rates,
        [
            Claim("Clips", "whole objects", 3),
            Claim("Clips", "objects as files", 1.5),
            Claim("Clips", "local files", 0.9),
        ],
    )
    text = page(
        "Clips of videos",
        __doc__,
        f"{rounds} rounds of {BATCHES} batches; videos of {len(videos['0.mp4']) / 1e6:.1f} MB.",
        rates_table(rates, "clips a second of processor time"),
        claims_table(outcomes),
        f"Clips moved {share:.1%} of the bytes of whole objects. A dataset of {VIDEOS} videos whose indexes are kept "
        f"is made in {again_s * 1e3:.0f} ms.",
    )
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=all(one.reached for one in outcomes) and share < 0.05)


if __name__ == "__main__":
    main()
