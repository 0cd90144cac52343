"""The committed data is what the manifest says, and the check that claims so notices when it is not."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from tests.data import DATA_DIR, EMPTY_WAV, IMAGES, utterances
from tests.data.build import DataError, check, read_transcripts


@pytest.fixture
def copy_of_data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA_DIR, tmp_path / "data", ignore=shutil.ignore_patterns("__pycache__")))


def test_the_committed_files_are_the_listed_ones_and_decode_to_their_durations() -> None:
    assert check(DATA_DIR) == "100 utterances in en, es, fr, it, ru: 283.5 s, 3,096,929 bytes; all as listed"


def test_every_prompt_is_there_in_all_five_languages() -> None:
    by_lang: dict[str, list[str]] = {}
    for utterance in utterances():
        by_lang.setdefault(utterance.lang, []).append(utterance.key)
    assert set(by_lang) == {"en", "es", "fr", "it", "ru"}
    assert all(keys == by_lang["en"] and len(set(keys)) == 20 for keys in by_lang.values())


def test_the_photographs_are_jpeg_and_the_empty_recording_is_a_bare_header() -> None:
    assert [path.read_bytes()[:3] for path in IMAGES] == [b"\xff\xd8\xff", b"\xff\xd8\xff"]
    assert EMPTY_WAV.stat().st_size == 44
    assert EMPTY_WAV.read_bytes()[-4:] == b"\0\0\0\0"


def test_a_flipped_bit_a_missing_file_and_an_unlisted_file_are_each_named(copy_of_data: Path) -> None:
    first, second, *_ = utterances()
    altered = bytearray((copy_of_data / "speech" / first.name).read_bytes())
    altered[-1] ^= 1
    (copy_of_data / "speech" / first.name).write_bytes(altered)
    (copy_of_data / "speech" / second.name).unlink()
    (copy_of_data / "speech" / "en" / "extra.flac").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        check(copy_of_data)
    assert caught.value.message.splitlines() == [
        f"speech/{first.name}: SHA-256 is not {first.sha256}",
        f"speech/{second.name}: missing",
        "speech/en/extra.flac: not in the manifest",
    ]


def test_a_duration_that_the_file_does_not_have_is_named(copy_of_data: Path) -> None:
    manifest = copy_of_data / "speech" / "manifest.jsonl"
    first = utterances()[0]
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace(f'"duration_s": {first.duration_s}', '"duration_s": 1.0', 1), encoding="utf-8")
    with pytest.raises(DataError, match=f"{first.name}: decodes to 41239 samples at 8000 Hz"):
        check(copy_of_data)


def test_transcript_lists_may_hold_comments_blank_lines_colons_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "list.txt.gz"
    with gzip.open(path, "wb") as packed:
        packed.write(
            "\ufeff; a comment: not a prompt\n\nvm/hello: Ciao: come va?\n  noise : [beep]\nno colon\n".encode()
        )
    assert read_transcripts(path) == {"vm/hello": "Ciao: come va?", "noise": "[beep]"}
