"""Rebuilds, or checks, the recordings and photographs that the tests read.

The files are committed, so tests need neither this script, nor the network, nor apt. It exists so that
anyone can see where each byte came from and make it again:

    python tests/data/build.py --check              # verify what is here; offline
    python tests/data/build.py                      # download the sources and build again (about 107 MB)
    python tests/data/build.py --sources DIR        # the same from *.deb and *.whl files kept in DIR

Selection (fixed, no randomness): of the prompts that all five languages transcribe, leave out spelled digits,
letters and phonetic alphabets; keep those with three English words or more that last 1 to 6 seconds in every
language; sort, take every 7th, the first 20. Every source is refused unless its SHA-256 is the one below, and so are
the photographs and the empty recording. The bytes of a FLAC file depend on the encoder too: with another libsndfile a
new build may hold the same samples in other bytes, and its manifest then lists those.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
import wave
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import numpy as np
import soundfile

HERE = Path(__file__).resolve().parent
VERSION = "1.6.1-1"
VOICES = {
    "en": "en_US_f_Allison",
    "es": "es_MX_f_Allison",
    "fr": "fr_CA_f_June",
    "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
}
SOURCE_SHA256 = {
    "asterisk-core-sounds-en": "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
    "asterisk-core-sounds-en-wav": "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
    "asterisk-core-sounds-es": "9afdab7f559f036649fb406e625899306ca1004df8ebe39c30bfbd5912d66f74",
    "asterisk-core-sounds-es-wav": "9283a09a6d56fccdcc2bcfe86c48f0f844289cfbd46a3184d8785a6f7f569903",
    "asterisk-core-sounds-fr": "04c82c78c570c43a7136cbc5e2488d0c470b775468dff9fbce4a131b18cf1056",
    "asterisk-core-sounds-fr-wav": "8d4e1bc32ed5ba7fbda40841ca1825ed20cc6232724a473c90f8bb0e53e6073e",
    "asterisk-core-sounds-it": "3884d9457e12f21caa018c18f0d587df5d53ebea14b673d8453a134c5941ab3b",
    "asterisk-core-sounds-it-wav": "5a26638089e134b8ac39363fe249c5c93c50cd8bfdc9b2499ae61ec4a35e2fcb",
    "asterisk-core-sounds-ru": "28a61616bb0cd3345a7ea532dec4df9f071e5d0fa9f8c1a563ea9669002f39ab",
    "asterisk-core-sounds-ru-wav": "ccbfaebfa450b7a9ddf644ae0f3d1e9017d5df7c0aebe816e946345589d38201",
}
# The wheel is built for each platform, so what is pinned is the two files taken from it.
PHOTO_WHEEL = "scikit-learn==1.9.1"
FIXED_SHA256 = {
    "images/china.jpg": "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
    "images/flower.jpg": "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
    "speech/empty.wav": "4f8734c5e13ac599e168cf247a51c1dd0758537ce00bf16d7fed1a3d14d07041",
    "speech/COPYRIGHT": "38e29ae81695d05f4a8a43bfe3e8b91808ec8a36092d4834909f1a440b2f3a7c",
}
MIN_DURATION_S, MAX_DURATION_S, MIN_ENGLISH_WORDS = 1.0, 6.0, 3
EVERY, PROMPTS = 7, 20


class DataError(click.ClickException):
    """A source is missing or altered, or the data here is not what the manifest says."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def download(folder: Path) -> None:
    """Fetch every source into `folder` with apt-get and pip; neither installs anything nor needs root."""
    packages = [f"{name}={VERSION}" for name in SOURCE_SHA256]
    wheel = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PHOTO_WHEEL]
    for command in (["apt-get", "--quiet", "download", *packages], wheel):
        try:
            subprocess.run(command, cwd=folder, check=True, timeout=900)
        except (OSError, subprocess.SubprocessError) as error:
            raise DataError(f"could not download the sources: {error}") from error


def unpack(sources: Path, root: Path) -> Path:
    """Unpack the Debian packages below `root`; returns the wheel. Raises DataError for any unexpected source."""
    for name, expected in SOURCE_SHA256.items():
        package = sources / f"{name}_{VERSION}_all.deb"
        if not package.is_file():
            raise DataError(f"{package} is missing; run without --sources to download it")
        if sha256(package.read_bytes()) != expected:
            raise DataError(f"{package}: SHA-256 is not {expected}")
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, timeout=180)
    wheels = sorted(sources.glob(PHOTO_WHEEL.replace("-", "_").replace("==", "-") + "-*.whl"))
    if not wheels:
        raise DataError(f"{sources} holds no wheel of {PHOTO_WHEEL}")
    return wheels[0]


def read_transcripts(path: Path) -> dict[str, str]:
    """Prompt key -> text. UTF-8 (the Italian list with a byte-order mark), `;` starts a comment, `:` ends the key."""
    texts: dict[str, str] = {}
    with gzip.open(path, "rt", encoding="utf-8-sig") as lines:
        for line in map(str.strip, lines):
            key, colon, text = line.partition(":")
            if colon and not line.startswith(";"):
                texts[key.strip()] = text.strip()
    return texts


def is_spoken(text: str) -> bool:
    """False for prompts without words: no text, or text wholly in brackets, such as `[beep]`."""
    return bool(text) and (text[0], text[-1]) not in {("[", "]"), ("(", ")"), ("<", ">")}


def wav_duration_s(path: Path) -> float:
    """Length of a PCM WAV file in seconds; 0 when there is no such file (some lists name prompts without audio)."""
    if not path.is_file():
        return 0.0
    with wave.open(str(path)) as audio:
        return float(audio.getnframes() / audio.getframerate())


def select_keys(texts: Mapping[str, Mapping[str, str]], sounds: Path) -> list[str]:
    """The 20 prompt keys, by the rule in this module's description."""
    usable = [
        key
        for key in sorted(set.intersection(*(set(by_key) for by_key in texts.values())))
        if not key.startswith(("digits/", "letters/", "phonetic/"))
        and len(texts["en"][key].split()) >= MIN_ENGLISH_WORDS
        and all(is_spoken(by_key[key]) for by_key in texts.values())
        and all(
            MIN_DURATION_S <= wav_duration_s(sounds / voice / f"{key}.wav") <= MAX_DURATION_S
            for voice in VOICES.values()
        )
    ]
    return usable[::EVERY][:PROMPTS]


def build_speech(root: Path, target: Path) -> Iterator[dict[str, object]]:
    """Write the FLAC files below `target`; yields one manifest row per utterance, language by language."""
    sounds = root / "usr/share/asterisk/sounds"
    documents = root / "usr/share/doc"
    texts = {
        lang: read_transcripts(documents / f"asterisk-core-sounds-{lang}" / f"core-sounds-{lang}.txt.gz")
        for lang in VOICES
    }
    keys = select_keys(texts, sounds)
    for lang, voice in VOICES.items():
        for key in keys:
            samples, rate_hz = soundfile.read(sounds / voice / f"{key}.wav", dtype="int16")
            name = f"{lang}/{key}.flac"
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, samples, rate_hz, format="FLAC", subtype="PCM_16")
            yield {
                "name": name,
                "lang": lang,
                "key": key,
                "text": texts[lang][key],
                "duration_s": len(samples) / rate_hz,
                "sampling_rate_hz": rate_hz,
                "sha256": sha256(path.read_bytes()),
            }
    (target / "empty.wav").write_bytes((sounds / VOICES["ru"] / "is.wav").read_bytes())
    (target / "COPYRIGHT").write_bytes((documents / "asterisk-core-sounds-en" / "copyright").read_bytes())


def build(sources: Path, target: Path) -> None:
    """Make every data file below `target` from the packages in `sources`, then check them."""
    with tempfile.TemporaryDirectory(prefix="speech-sources-") as folder:
        wheel = unpack(sources, Path(folder))
        speech = target / "speech"
        rows = list(build_speech(Path(folder), speech))
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (speech / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    (target / "images").mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for photo in ("china.jpg", "flower.jpg"):
            (target / "images" / photo).write_bytes(archive.read(f"sklearn/datasets/images/{photo}"))


def check(target: Path) -> str:
    """Compare the files below `target` with the manifest and the fixed checksums; returns a line of totals.

    Raises:
        DataError: naming every file that is missing, altered, unlisted, or does not decode to what its row says.
    """
    problems: list[str] = []
    speech = target / "speech"
    try:
        rows = [json.loads(line) for line in (speech / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"no manifest: {error}") from error
    expected = {f"speech/{row['name']}": row["sha256"] for row in rows} | FIXED_SHA256
    for name, digest in expected.items():
        if not (target / name).is_file():
            problems.append(f"{name}: missing")
        elif sha256((target / name).read_bytes()) != digest:
            problems.append(f"{name}: SHA-256 is not {digest}")
    listed = {target / name for name in expected}
    problems += [f"{path.relative_to(target)}: not in the manifest" for path in set(speech.rglob("*.flac")) - listed]
    if not problems:
        for row in rows:
            samples, rate_hz = soundfile.read(speech / row["name"], dtype="int16")
            if (rate_hz, len(samples) / rate_hz) != (row["sampling_rate_hz"], row["duration_s"]) or not np.any(samples):
                problems.append(f"{row['name']}: decodes to {len(samples)} samples at {rate_hz} Hz")
    if problems:
        raise DataError("\n".join(sorted(problems)))
    size_bytes = sum((speech / row["name"]).stat().st_size for row in rows)
    duration_s = sum(row["duration_s"] for row in rows)
    languages = sorted({row["lang"] for row in rows})
    return f"{len(rows)} utterances in {', '.join(languages)}: {duration_s:.1f} s, {size_bytes:,} bytes; all as listed"


@click.command(help="Rebuild the test data from its sources, or --check what is here.")
@click.option("--check", "check_only", is_flag=True, help="Verify the files against the manifest; offline.")
@click.option(
    "--sources",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the .deb and .whl files; without it they are downloaded with apt-get and pip.",
)
@click.option(
    "--target",
    type=click.Path(file_okay=False, path_type=Path),
    default=HERE,
    help="Folder to build or check; by default the one this script is in.",
)
def main(check_only: bool, sources: Path | None, target: Path) -> None:
    if not check_only and sources is not None:
        build(sources.resolve(), target)
    elif not check_only:
        with tempfile.TemporaryDirectory(prefix="speech-packages-") as folder:
            download(Path(folder))
            build(Path(folder), target)
    click.echo(check(target))


if __name__ == "__main__":
    main()
