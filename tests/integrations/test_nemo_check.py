"""`python -m ais_loader.integrations.nemo check`: what it finds in manifests, and how it says so."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import ais_loader
from ais_loader import Bucket
from ais_loader.integrations.nemo.__main__ import main
from tests.data import EMPTY_WAV, Utterance, utterances

SPOKEN = utterances()[:4]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with ais_loader.connect(tmp_path / "store") as client:
        yield client.create_bucket("b")


def line(one: Utterance, **fields: Any) -> dict[str, Any]:
    whole = {
        "audio_filepath": member(one),
        "duration": one.duration_s,
        "sampling_rate": one.sampling_rate_hz,
        "text": one.text,
        "source_lang": one.lang,
        "target_lang": one.lang,
        "lang": one.lang,
    }
    return {name: value for name, value in (whole | fields).items() if value is not None}


def member(one: Utterance) -> str:
    return one.name.replace("/", "_")


def put_tar(bucket: Bucket, name: str, files: dict[str, bytes]) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    bucket.put(name, out.getvalue())


def put_spoken(bucket: Bucket) -> None:
    """Two shards of two utterances."""
    for number in range(2):
        put_tar(bucket, f"audio_{number}.tar", {member(one): one.path.read_bytes() for one in SPOKEN[2 * number :][:2]})


def put_lines(bucket: Bucket, name: str, lines: list[dict[str, Any]]) -> None:
    bucket.put(name, "\n".join(json.dumps(one) for one in lines).encode())


def put_manifests(bucket: Bucket, lines: list[dict[str, Any]]) -> None:
    put_lines(bucket, "manifest_0.json", lines[:2])
    put_lines(bucket, "manifest_1.json", lines[2:])


def check(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", "--store", str(tmp_path / "store"), *arguments])


TARRED = ("ais://b/manifest__OP_0..1_CL_.json", "--tars", "ais://b/audio_{0..1}.tar")


def found(result: Result) -> list[tuple[str, int, str]]:
    """Manifest, line and kind of each finding."""
    assert result.exit_code in (0, 1), result.output
    return [(one["manifest"], one["line"], one["kind"]) for one in json.loads(result.stdout)["findings"]]


def test_manifests_that_tell_the_truth_pass(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    put_manifests(bucket, [line(one) for one in SPOKEN])
    result = check(tmp_path, *TARRED, "--prompt", "canary2", "--languages", "en, es")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "4 recordings looked at: as their lines say\n"


def test_every_fault_of_a_tarred_manifest_is_told_with_its_line(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    one, two, three, four = SPOKEN
    put_lines(
        bucket,
        "manifest_0.json",
        [
            line(one),
            line(one, audio_filepath="nobody.flac"),
            line(three),
            line(one, sampling_rate=None),
            line(two, sampling_rate=44_100),
            line(one, duration=one.duration_s + 0.6),
            line(one, duration=one.duration_s + 0.4),
            line(one, offset=1.0, duration=2.0),
            line(one, duration=None),
            line(one, audio_filepath=None),
            line(one, duration="long"),
            line(one, _skipme=True, audio_filepath="nobody.flac"),
            line(one, audio_filepath=member(one).replace(".flac", "-sub1.flac")),
        ],
    )
    put_lines(bucket, "manifest_1.json", [line(four)])
    first = "ais://b/manifest_0.json"
    assert found(check(tmp_path, *TARRED, "--json")) == [
        (first, 2, "missing"),
        (first, 3, "missing"),
        (first, 4, "sampling-rate"),
        (first, 5, "sampling-rate"),
        (first, 6, "duration"),
        (first, 8, "offset"),
        (first, 9, "line"),
        (first, 10, "line"),
        (first, 11, "line"),
    ]


def test_lines_for_people_say_what_nemo_does_and_what_helps(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    put_manifests(bucket, [line(SPOKEN[0], sampling_rate=None), line(SPOKEN[2]), line(SPOKEN[3])])
    result = check(tmp_path, *TARRED)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == (
        "ais://b/manifest_0.json:1: sampling-rate: ais://b/audio_0.tar/en_agent-incorrect.flac has 8,000 Hz, and the "
        "line does not say, which means 16,000 Hz to NeMo: NeMo drops it with a warning; give the line its "
        "sampling_rate"
    )
    assert second == (
        "ais://b/manifest_0.json:2: missing: ais://b/audio_0.tar has no member 'en_conf-leaderhasleft.flac', but "
        "ais://b/audio_1.tar has: the line belongs to another shard's manifest: NeMo drops it with a warning"
    )
    assert result.stderr == "3 recordings looked at: missing 1, sampling-rate 1\n"


def test_what_a_prompt_needs_is_looked_for_in_every_line(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    one, two, three, four = SPOKEN
    put_manifests(
        bucket,
        [line(one, target_lang=None), line(two, source_lang="<|en|>"), line(three, target_lang="xx"), line(four)],
    )
    arguments = (*TARRED, "--json", "--prompt", "canary2", "--languages", "en")
    assert found(check(tmp_path, *arguments)) == [
        ("ais://b/manifest_0.json", 1, "language"),
        ("ais://b/manifest_1.json", 1, "language"),
    ]
    assert {kind for *_, kind in found(check(tmp_path, *TARRED, "--json", "--prompt", "canary"))} == {
        "field",
        "language",
    }


def test_plain_manifests_name_objects_and_need_sampling_rates(bucket: Bucket, tmp_path: Path) -> None:
    one, two, three, _ = SPOKEN
    for spoken in SPOKEN:
        bucket.put(f"wavs/{member(spoken)}", spoken.path.read_bytes())
    bucket.put("wavs/empty.wav", EMPTY_WAV.read_bytes())
    bucket.put("wavs/zero.wav", b"")
    bucket.put("wavs/text.wav", b"nothing that sounds" * 100)
    whole = "ais://b/wavs/"
    put_lines(
        bucket,
        "plain.json",
        [
            line(one, audio_filepath=whole + member(one)),
            line(two, audio_filepath=f"wavs/{member(two)}"),
            line(three, audio_filepath=whole + member(three), sampling_rate=None, sample_rate=8000),
            line(three, audio_filepath=whole + member(three), sampling_rate=None),
            line(one, audio_filepath=whole + "nobody.wav"),
            line(one, audio_filepath="ais://no-bucket/x.wav"),
            line(one, audio_filepath=whole + "empty.wav"),
            line(one, audio_filepath=whole + "zero.wav"),
            line(one, audio_filepath=whole + "text.wav"),
            line(one, audio_filepath="/somewhere/here.wav"),
        ],
    )
    assert [(number, kind) for _, number, kind in found(check(tmp_path, "ais://b/plain.json", "--json"))] == [
        (4, "line"),
        (5, "missing"),
        (6, "missing"),
        (7, "empty"),
        (8, "unreadable"),
        (9, "unreadable"),
    ]


@pytest.mark.parametrize(("container", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")])
@pytest.mark.parametrize("lie_s", [0.0, 3.0])
def test_lengths_are_found_in_every_container(
    container: str, subtype: str, lie_s: float, bucket: Bucket, tmp_path: Path
) -> None:
    import soundfile

    one = SPOKEN[0]
    samples, rate_hz = soundfile.read(one.path)
    out = io.BytesIO()
    soundfile.write(out, samples, rate_hz, format=container, subtype=subtype)
    bucket.put("x", out.getvalue())
    put_lines(bucket, "plain.json", [line(one, audio_filepath="ais://b/x", duration=one.duration_s + lie_s)])
    kinds = [kind for *_, kind in found(check(tmp_path, "ais://b/plain.json", "--json"))]
    assert kinds == (["duration"] if lie_s else [])


def test_a_wav_that_is_cut_off_is_as_long_as_what_is_there(bucket: Bucket, tmp_path: Path) -> None:
    import soundfile

    one = SPOKEN[0]
    samples, rate_hz = soundfile.read(one.path)
    out = io.BytesIO()
    soundfile.write(out, samples, rate_hz, format="WAV")
    bucket.put("x.wav", out.getvalue()[: len(out.getvalue()) // 2])
    put_lines(bucket, "plain.json", [line(one, audio_filepath="ais://b/x.wav")])
    assert [kind for *_, kind in found(check(tmp_path, "ais://b/plain.json", "--json"))] == ["duration"]


@pytest.mark.parametrize("kind", ["nemo", "sharegpt"])
def test_recordings_of_conversations_are_looked_at(kind: str, bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    one = SPOKEN[0]
    turn: dict[str, Any] = {"duration": one.duration_s, "sampling_rate": 8000}
    if kind == "nemo":
        talk = {"id": "1", "conversations": [{"from": "User", "type": "audio", "value": member(one), **turn}]}
    else:
        talk = {"id": "1", "sound": member(one), "conversations": [{"from": "human", "value": "<sound>", **turn}]}
    put_lines(bucket, "manifest_0.json", [talk, json.loads(json.dumps(talk).replace("en_agent", "no"))])
    kinds = found(check(tmp_path, "ais://b/manifest_0.json", "--tars", "ais://b/audio_0.tar", "--json"))
    assert [kind for *_, kind in kinds] == (["missing"] if kind == "nemo" else ["sampling-rate", "missing"])


def test_lines_of_another_form_are_told_and_the_others_are_looked_at(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    wrong: list[dict[str, Any]] = [
        {"conversations": None},
        {"conversations": ["User: hello"]},
        {"conversations": [{"type": "audio", "value": member(SPOKEN[0]), "duration": float("nan")}]},
        {"conversations": [{"value": None}]},
        line(SPOKEN[0], duration=float("inf")),
        line(SPOKEN[0], sampling_rate=float("nan")),
        line(SPOKEN[3], shard_id=0),
    ]
    put_lines(bucket, "manifest_0.json", wrong)
    result = check(tmp_path, "ais://b/manifest_{0..0}.json", "--tars", "ais://b/audio_{0..0}.tar", "--json")
    kinds = [(number, kind) for _, number, kind in found(result)]
    assert kinds == [(1, "line"), (2, "line"), (3, "line"), (5, "line"), (6, "line"), (7, "missing")]


def test_one_manifest_for_all_shards_goes_by_shard_id(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    lines = [line(one, shard_id=number // 2) for number, one in enumerate(SPOKEN)]
    put_lines(bucket, "all.json", [*lines, line(SPOKEN[0]), line(SPOKEN[0], shard_id=7)])
    result = check(tmp_path, "ais://b/all.json", "--tars", "ais://b/audio_[0..1].tar", "--json")
    assert [(number, kind) for _, number, kind in found(result)] == [(5, "line"), (6, "line")]


def test_a_compressed_manifest_on_this_machine_is_read(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    text = json.dumps(line(SPOKEN[0], shard_id=0))
    (tmp_path / "manifest_0.json.gz").write_bytes(gzip.compress(text.encode()))
    result = check(tmp_path, str(tmp_path / "manifest_0.json.gz"), "--tars", "ais://b/audio_0.tar")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("ais://b/nobody.json",), "Error: ais://b/nobody.json: "),
        (("/nowhere/manifest.json",), "Error: /nowhere/manifest.json: No such file or directory"),
        (("ais://b/broken.json",), "Error: ais://b/broken.json, line 2 is not JSON"),
        (("ais://b/truncated.json.gz",), "Error: ais://b/truncated.json.gz: Compressed file ended"),
        (("ais://b/damaged.json.gz",), "Error: ais://b/damaged.json.gz: "),
        (
            ("ais://b/manifest_{0..1}.json", "--tars", "ais://b/audio_{1..2}.tar"),
            "Error: manifests have the numbers [0, 1], shards [1, 2]",
        ),
        (("ais://b/{x,y,z}.json", "--tars", "ais://b/{x,y}.tar"), "Error: 3 manifests and 2 shards"),
        ((), "Missing argument 'MANIFEST...'"),
    ],
)
def test_what_cannot_be_looked_at_is_told_in_a_line_and_exits_with_2(
    arguments: tuple[str, ...], reason: str, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.put("broken.json", b'{"a": 1, "duration": 1}\n{"audio_filepath"')
    packed = gzip.compress(b"{}\n" * 1000)
    bucket.put("truncated.json.gz", packed[:-9])
    bucket.put("damaged.json.gz", packed[:12] + b"\xff" * 9 + packed[21:])
    result = check(tmp_path, *arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_it_runs_as_a_module_and_loads_neither_nemo_nor_lhotse(bucket: Bucket, tmp_path: Path) -> None:
    put_spoken(bucket)
    put_manifests(bucket, [line(one) for one in SPOKEN])
    code = (
        "import runpy, sys\n"
        "try:\n"
        "    runpy.run_module('ais_loader.integrations.nemo', run_name='__main__')\n"
        "finally:\n"
        "    print([name for name in ('nemo', 'lhotse', 'torch') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code, "check", "--store", str(tmp_path / "store"), *TARRED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
