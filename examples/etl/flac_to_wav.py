"""Audio to WAV with so many channels at such a rate, by FFmpeg where it is installed and by PyAV otherwise.

As a function:   client.etl.init("wav", flac_to_wav)
As a command:    client.etl.init("wav", Command(FFMPEG))
As a server:     python -m examples.etl.flac_to_wav --port 9000, and client.etl.init("wav", Server("http://127.0.0.1:9000"))
Then:            bucket.get("a.flac", etl="wav", args={"channels": 2, "rate": 44100})
"""

import argparse
import io
import shutil
import subprocess
import tempfile
from typing import Any

from storage_node.etl.webserver import FastAPIServer

FFMPEG = "ffmpeg -v error -i pipe:0 -ac {args.channels:2} -ar {args.rate:44100} -c:a pcm_s16le -f wav {output}"
"""The same as a command of which the nodes' operator knows. Into a file: on a pipe WAV has no size in its header."""


def flac_to_wav(data: bytes, channels: int = 2, rate: int = 44100) -> bytes:
    if not shutil.which("ffmpeg"):
        return by_pyav(data, channels, rate)
    command = ["ffmpeg", "-v", "error", "-i", "pipe:0", "-ac", str(channels), "-ar", str(rate)]
    with tempfile.NamedTemporaryFile() as wav:
        command += ["-c:a", "pcm_s16le", "-f", "wav", "-y", wav.name]
        done = subprocess.run(command, input=data, capture_output=True)
        if done.returncode:
            raise ValueError(done.stderr.decode(errors="replace"))
        return wav.read()


def by_pyav(data: bytes, channels: int, rate: int) -> bytes:
    import av

    wav = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(wav, "w", format="wav") as target:
        layout = {1: "mono", 2: "stereo"}[channels]
        stream = target.add_stream("pcm_s16le", rate=rate, layout=layout)
        resampler = av.AudioResampler(format="s16", layout=layout, rate=rate)
        for frame in [*source.decode(audio=0), None]:  # None: what the resampler still holds
            for made in resampler.resample(frame):
                target.mux(stream.encode(made))
        target.mux(stream.encode(None))
    return wav.getvalue()


class FlacToWav(FastAPIServer):
    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        return flac_to_wav(data, **args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    FlacToWav().start("127.0.0.1", chosen.port, workers=chosen.workers)
