"""The transforms of examples/etl over real recordings, photographs and texts."""

from __future__ import annotations

import io
import shutil
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from ais_loader.errors import TransformFailed
from examples.etl.flac_to_wav import FFMPEG, FlacToWav, by_pyav, flac_to_wav
from examples.etl.image_resize import resized
from examples.etl.tar_features import features_of
from examples.etl.text_tokens import Tokens
from storage_node.etl.values import Content
from storage_node.settings.command_template import parse_text
from tests.data import EMPTY_WAV, IMAGES, utterances
from tests.etl.servers.server_kit import HPUSH, ORIGIN, WS, bytes_of, open_stage, run
from tests.etl.worker_kit import of_template, run_one

SPEECH = utterances()[::17]
OPERATOR = {"etl_code": False, "etl_commands": {"wav": FFMPEG}}


def pcm(wav: bytes) -> tuple[Any, int]:
    import soundfile

    samples, rate = soundfile.read(io.BytesIO(wav), dtype="int16", always_2d=True)
    if wav[:4] == b"RIFF":  # readers that go by the header find as many
        with wave.open(io.BytesIO(wav)) as file:
            assert file.getnframes() == len(samples)
    return samples, rate


def test_flac_becomes_wav_with_the_channels_and_the_rate_asked_for() -> None:
    for utterance in SPEECH:
        flac = utterance.path.read_bytes()
        original, rate = pcm(flac)
        for made in (flac_to_wav(flac, 1, rate), by_pyav(flac, 1, rate)):
            samples, found = pcm(made)
            assert found == rate and np.array_equal(samples, original)
        samples, found = pcm(flac_to_wav(flac))
        assert found == 44100 and samples.shape[1] == 2
        assert len(samples) == pytest.approx(utterance.duration_s * 44100, abs=64)
        assert np.array_equal(samples[:, 0], samples[:, 1]) and np.abs(samples).max() > 1000
    with pytest.raises(Exception, match=r"Invalid data|invalid"):
        flac_to_wav(b"this is no audio")


def test_ffmpeg_is_used_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "ffmpeg"
    stand_in.write_text(
        '#!/bin/sh\ncase "$6" in 9) echo "no such channels" >&2; exit 1;; esac\n'
        # Writes only where it is told by a full path: `pipe:1` would become a file in the working directory.
        'for made; do :; done\ncase "$made" in /*) ;; *) echo "no file: $made" >&2; exit 1;; esac\n'
        '(echo "$@"; cat) > "$made"\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words, _, data = flac_to_wav(b"flac", channels=1, rate=16000).partition(b"\n")
    assert data == b"flac"
    wanted = " ".join(parse_text(FFMPEG).fill({"channels": 1, "rate": 16000}, {"output": "-f wav -y "}))
    assert f"ffmpeg {words.decode()}".startswith(wanted.removesuffix(".wav"))
    with pytest.raises(ValueError, match="no such channels"):
        flac_to_wav(b"flac", channels=9)


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="FFmpeg is not installed")
def test_ffmpeg_as_a_command_makes_the_same_of_it(tmp_path: Path) -> None:
    for utterance in SPEECH[:1]:
        flac = utterance.path.read_bytes()
        for args in ({}, {"channels": 1, "rate": 16000}):
            samples, rate = pcm(run_one(tmp_path, of_template("wav"), flac, OPERATOR, **args))
            wanted, wanted_rate = pcm(flac_to_wav(flac, **args))
            assert rate == wanted_rate and np.array_equal(samples, wanted)
    with pytest.raises(TransformFailed, match=r"ended with 1: .*Invalid data"):
        run_one(tmp_path, of_template("wav"), b"this is no audio", OPERATOR)


@pytest.mark.parametrize("communication", [HPUSH, WS])
def test_a_server_makes_wav_of_what_it_is_sent(communication: Any) -> None:
    async def main(address: str) -> None:
        async with open_stage(address, communication) as (stage, _):
            for utterance in SPEECH:
                flac = utterance.path.read_bytes()
                made = await stage.run(ORIGIN, Content.of(flac), '{"channels": 1, "rate": 16000}')
                assert bytes_of(made) == flac_to_wav(flac, channels=1, rate=16000)

    with FlacToWav().running() as address:
        run(main(address))


def test_an_image_is_fitted_into_its_new_size() -> None:
    for path in IMAGES:
        with PIL.Image.open(io.BytesIO(resized(path.read_bytes(), width=96, height=64))) as small:
            assert (small.size, small.format, small.mode) == ((96, 64), "JPEG", "RGB")
            with PIL.Image.open(path) as original:
                wanted = np.asarray(original.convert("RGB").resize((96, 64)), int)
            assert np.abs(np.asarray(small, int) - wanted).mean() < 12  # the same picture, cut 640 × 427 to 3:2


def test_texts_become_tokens_and_the_same_word_the_same_one() -> None:
    tokens = Tokens()
    for utterance in utterances():
        found = np.load(io.BytesIO(tokens(utterance.text.encode(), vocabulary=5000)))
        assert found.dtype == np.uint32 and len(found) >= len(utterance.text.split())
        assert found.min() >= 1 and found.max() < 5000
        again = np.load(io.BytesIO(Tokens()(utterance.text.upper().encode("utf-16"), 5000, "utf-16")))
        assert np.array_equal(found, again)
    a, b, c = np.load(io.BytesIO(tokens("Größe, größe".encode())))
    assert a == c != b


def test_a_tar_of_recordings_becomes_a_tar_of_features() -> None:
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for utterance in SPEECH:
            name = utterance.name.removesuffix(".flac")
            for extension, data in (("flac", utterance.path.read_bytes()), ("txt", utterance.text.encode())):
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        tar.add(EMPTY_WAV, "empty.wav")
    data = shard.getvalue()

    def chunks() -> Iterator[bytes]:
        yield from (data[at : at + 10_007] for at in range(0, len(data), 10_007))

    made = list(features_of(chunks(), bands=20))
    assert len(made) > len(SPEECH)  # while the input came
    with tarfile.open(fileobj=io.BytesIO(b"".join(made))) as tar:
        names = [Path(utterance.name).with_suffix("").as_posix() for utterance in SPEECH]
        wanted = [f"{name}.{kind}" for name in names for kind in ("npy", "txt")] + ["empty.npy"]
        assert tar.getnames() == wanted
        for utterance, name in zip(SPEECH, names, strict=True):
            array = np.load(io.BytesIO(tar.extractfile(f"{name}.npy").read()))  # type: ignore[union-attr]
            frames = (round(utterance.duration_s * 8000) - 200) // 80 + 1
            assert array.shape == (frames, 20) and array.dtype == np.float32 and array.std() > 0.5
            assert tar.extractfile(f"{name}.txt").read().decode() == utterance.text  # type: ignore[union-attr]
