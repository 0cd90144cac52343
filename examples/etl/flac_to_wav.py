"""Audio to WAV with so many channels at such a rate, by FFmpeg where it is installed and by PyAV otherwise.

As a function:   client.etl.init("wav", flac_to_wav)
As a command:    ais-loader serve --etl-command "wav=$(python -m examples.etl.flac_to_wav --command)" ...,
                 and client.etl.init("wav", NodeCommand("wav"))
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

FFMPEG = (
    "ffmpeg -v error -i pipe:0 -ac {channels:int(1,2)=2} -ar {rate:int(8000,192000)=44100} -c:a pcm_s16le {output}.wav"
)
"""The same as a command for the nodes' operator to list. Into a file: on a pipe WAV has no size in its header."""


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
    parser.add_argument("--command", action="store_true", help="print the command that does the same")
    chosen = parser.parse_args()
    if chosen.command:
        print(FFMPEG)
        parser.exit()
    FlacToWav().start("127.0.0.1", chosen.port, workers=chosen.workers)
