"""Audio and video files as PyAV writes them, and what PyAV itself decodes of a whole file."""

from __future__ import annotations

import functools
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

SIZE = 96, 64
VIDEOS: dict[str, dict[str, Any]] = {
    "b_frames.mp4": {"codec": "libx264", "options": {"bf": "3"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8", "deadline": "realtime"}},
    "variable.mp4": {
        "codec": "libx264",
        "ticks": [at * 33 + at % 7 * 3 + (2000 if at > 30 else 0) for at in range(60)],
    },
    "open_groups.mp4": {"codec": "libx264", "options": {"bf": "3", "x264-params": "open-gop=1:scenecut=0"}},
    "with_sound.mp4": {"codec": "libx264", "options": {"bf": "3"}, "sound": "aac"},
    "fast_start.mp4": {"codec": "libx264", "container": {"movflags": "faststart"}},
    "fragments.mp4": {"codec": "libx264", "container": {"movflags": "frag_keyframe+empty_moov"}},
    "b_frames.mkv": {"codec": "libx264", "options": {"bf": "3"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
    "b_frames.mov": {"codec": "mpeg4", "options": {"bf": "2"}},
    "plain.avi": {"codec": "mpeg4"},
    "vp8.webm": {"codec": "libvpx", "options": {"cpu-used": "8", "deadline": "realtime"}},
    "hidden_frames.webm": {
        "codec": "libvpx-vp9",
        "options": {"cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16"},
    },
    "av1.mp4": {"codec": "libsvtav1", "options": {"preset": "12"}},
    "key_frames.mov": {"codec": "mjpeg", "pixels": "yuvj420p"},
    "lossless.mov": {"codec": "png", "pixels": "rgb24"},
    "no_durations.flv": {"codec": "flv1"},
    "ten_bits.mp4": {"codec": "libx264", "pixels": "yuv420p10le"},
    "palette.gif": {"codec": "gif", "pixels": "rgb8", "rate": 10},
    "broadcast.ts": {"codec": "libx264", "options": {"bf": "3"}},
}
SOUNDS: dict[str, dict[str, Any]] = {
    "a.wav": {"codec": "pcm_s16le"},
    "a.flac": {"codec": "flac"},
    "a.mp3": {"codec": "libmp3lame", "rate_hz": 44_100},
    "bytes.wav": {"codec": "pcm_u8", "rate_hz": 8_000, "layout": "mono"},
    "a24.wav": {"codec": "pcm_s24le", "rate_hz": 16_000, "layout": "mono"},
    "low.mp3": {"codec": "libmp3lame", "rate_hz": 16_000, "layout": "mono", "bit_rate": 16_000},
    "vorbis.ogg": {"codec": "vorbis", "options": {"strict": "-2"}},
    "flac.ogg": {"codec": "flac"},
    "a.opus": {"codec": "libopus"},
    "a.m4a": {"codec": "aac", "options": {"aac_pns": "0"}},
    "a.aac": {"codec": "aac", "options": {"aac_pns": "0"}},
    "opus.webm": {"codec": "libopus"},
    "aac.mkv": {"codec": "aac", "options": {"aac_pns": "0"}},
    "law.wav": {"codec": "pcm_mulaw", "rate_hz": 8_000, "layout": "mono"},
    "linear.mov": {"codec": "pcm_s16le"},
}
_FORMATS = {"mkv": "matroska", "ts": "mpegts", "m4a": "mp4", "aac": "adts", "opus": "ogg"}


def format_of(name: str) -> str:
    ending = name.rpartition(".")[2]
    return _FORMATS.get(ending, ending)


@functools.cache
def media(name: str) -> bytes:
    """The bytes of a file of these tables."""
    if VIDEOS.get(name, {}).get("codec") == "libsvtav1":
        # Run by root, it gives its process, and all that this starts later, the highest real-time priority.
        return subprocess.run([sys.executable, __file__, name], check=True, stdout=subprocess.PIPE, timeout=180).stdout
    return video(name, **VIDEOS[name]) if name in VIDEOS else sound(name, **SOUNDS[name])


def video(
    name: str,
    codec: str,
    *,
    frames: int = 60,
    group: int = 15,
    rate: int = 30,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    pixels: str = "yuv420p",
    ticks: Sequence[int] | None = None,
    sound: str | None = None,
    size: tuple[int, int] = SIZE,
    seed: int = 1,
) -> bytes:
    """A video. `ticks`: when each frame is shown, in milliseconds."""
    unit = Fraction(1, 1000 if ticks else rate)
    base = np.random.default_rng(seed).integers(0, 255, (size[1] // 8, size[0] // 8, 3), np.uint8)
    base = base.repeat(8, 0).repeat(8, 1)
    with (
        tempfile.NamedTemporaryFile() as file,  # which a fast start needs to move the tables
        av.open(file.name, "w", format=format_of(name), container_options=container or {}) as output,
    ):
        stream: Any = output.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        stream.codec_context.gop_size, stream.codec_context.time_base = group, unit
        other: Any = output.add_stream(sound, rate=48_000) if sound else None
        for at in range(len(ticks) if ticks else frames):
            image = np.roll(base, at, 1)
            image[:8, :8] = at * 4 % 256
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = (ticks[at] if ticks else at), unit
            output.mux(stream.encode(frame))
            if other:
                output.mux(other.encode(_tone(at * 1600, 1600, 48_000, "stereo")))
        for one in (stream, other):
            if one:
                output.mux(one.encode(None))
        output.close()
        return Path(file.name).read_bytes()


def sound(
    name: str,
    codec: str,
    *,
    rate_hz: int = 48_000,
    layout: str = "stereo",
    seconds: float = 3,
    options: dict[str, str] | None = None,
    bit_rate: int | None = None,
) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=format_of(name)) as output:
        stream: Any = output.add_stream(codec, rate=rate_hz, layout=layout, options=options or {})
        if bit_rate:
            stream.bit_rate = bit_rate
        context = stream.codec_context
        converter = av.AudioResampler(context.format, layout, rate_hz, frame_size=context.frame_size or None)
        tone = _tone(0, round(seconds * rate_hz), rate_hz, layout)
        for frame in [*converter.resample(tone), *converter.resample(None)]:
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def _tone(first: int, samples: int, rate_hz: int, layout: str) -> av.AudioFrame:
    at = (np.arange(samples) + first) / rate_hz
    noise = np.random.default_rng(first).standard_normal(samples)
    wave = (0.4 * np.sin(2 * np.pi * (200 + 50 * at) * at) + 0.05 * noise).astype(np.float32)
    data = np.stack([wave, wave[::-1]]) if layout == "stereo" else wave[None]
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(data), format="fltp", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = rate_hz, first, Fraction(1, rate_hz)
    return frame


@functools.cache
def whole_video(name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    """When each frame of a file is shown, from the beginning of its first track, and the frames."""
    with av.open(io.BytesIO(media(name))) as container:
        origin = min(Fraction(one.start_time or 0) * one.time_base for one in container.streams)
        stream = container.streams.video[0]
        found = [
            (float(frame.pts * frame.time_base - origin), frame.to_ndarray(format="rgb24").transpose(2, 0, 1))
            for frame in container.decode(stream)
        ]
    return np.array([at for at, _ in found]), np.array([pixels for _, pixels in found])


@functools.cache
def whole_sound(name: str) -> tuple[npt.NDArray[np.float32], int]:
    """All samples of a file."""
    with av.open(io.BytesIO(media(name))) as container:
        parts = []
        for frame in container.decode(container.streams.audio[0]):
            values = frame.to_ndarray()
            if not frame.format.is_planar:
                values = values.reshape(-1, frame.layout.nb_channels).T
            if values.dtype == np.uint8:
                values = (values.astype(np.int16) - 128) * 256
            parts.append(values)
        rate_hz = frame.sample_rate
    samples = np.concatenate(parts, 1)
    scale = -np.iinfo(samples.dtype).min if samples.dtype.kind == "i" else 1
    return (samples / scale).astype(np.float32), rate_hz


def boxes(data: bytes) -> dict[bytes, range]:
    """Where the boxes of an MP4 file are."""
    found, at = {}, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found[data[at + 4 : at + 8]] = range(at, at + size)
        at += size
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(video(sys.argv[1], **VIDEOS[sys.argv[1]]))
