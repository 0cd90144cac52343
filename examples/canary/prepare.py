"""A larger corpus: `python -m examples.canary.prepare FOLDER`, then `python -m examples.canary.train --data FOLDER`.

2,659 prompts of a telephone exchange in five languages, 1.9 hours, from the Debian packages
`asterisk-core-sounds-<lang>-g722` (55 MB): 16 kHz, one professional voice a language, with transcripts. Licences: CC
BY-SA 3.0 (en, es, fr) and CC BY 3.0 (it, ru), see tests/data/README.md. Needs apt-get and dpkg, which install nothing,
and the package `av`, which decodes G.722.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import soundfile
from tqdm import tqdm

from tests.data.build import VERSION, VOICES, is_spoken, read_transcripts

RATE_HZ = 16_000
SHORTEST_S, LONGEST_S = 0.3, 40.0


def download(folder: Path) -> None:
    """The packages into `folder/*.deb`, unpacked below `folder/root`. Raises ClickException."""
    packages = [f"asterisk-core-sounds-{lang}{kind}={VERSION}" for lang in VOICES for kind in ("", "-g722")]
    try:
        subprocess.run(["apt-get", "--quiet", "download", *packages], cwd=folder, check=True, timeout=900)
        for package in sorted(folder.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise click.ClickException(f"could not download the packages (apt-get update first?): {error}") from error


def decode_g722(path: Path) -> np.ndarray:
    """(n,) int16 samples at 16 kHz; none for an empty file."""
    import av

    if not path.stat().st_size:
        return np.zeros(0, dtype=np.int16)
    with av.open(str(path), format="g722") as container:
        parts = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)


def recordings(root: Path, target: Path) -> Iterator[dict[str, object]]:
    """Write each prompt that has words, 0.3 to 40 s long, as FLAC; yields its manifest line."""
    for lang, voice in VOICES.items():
        listed = root / "usr/share/doc" / f"asterisk-core-sounds-{lang}" / f"core-sounds-{lang}.txt.gz"
        spoken = {key: text for key, text in read_transcripts(listed).items() if is_spoken(text)}
        for key, text in tqdm(sorted(spoken.items()), desc=lang, unit="prompt", disable=None):
            source = root / "usr/share/asterisk/sounds" / voice / f"{key}.g722"
            if key.startswith("silence/") or not source.is_file():
                continue
            samples = decode_g722(source)
            if not SHORTEST_S <= len(samples) / RATE_HZ <= LONGEST_S:
                continue
            name = f"{lang}/{key}.flac"
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(target / name, samples, RATE_HZ, format="FLAC", subtype="PCM_16")
            yield {
                "name": name,
                "lang": lang,
                "key": key,
                "text": text,
                "duration_s": len(samples) / RATE_HZ,
                "sampling_rate_hz": RATE_HZ,
            }


@click.command(help="Make a corpus of five languages in FOLDER from Debian's packages of Asterisk's prompts.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise click.ClickException("decoding G.722 needs PyAV: pip install av") from error
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="canary-packages-") as packages:
        download(Path(packages))
        rows = list(recordings(Path(packages) / "root", folder))
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    seconds = sum(float(str(row["duration_s"])) for row in rows)
    click.echo(f"{len(rows)} recordings, {seconds / 3600:.2f} h, in {folder}")


if __name__ == "__main__":
    main()
