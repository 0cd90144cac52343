"""The speech demo: a short run as its users start it, then its promises one by one in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import ais_loader
from examples.speech.corpus import Alphabet, spoken_text
from examples.speech.features import collate, make_sample
from examples.speech.model import SpeechModel
from examples.speech.report import edit_distance
from examples.speech.train import main
from tests.data import EMPTY_WAV, utterances
from tests.table import table

ROOT = Path(__file__).resolve().parents[2]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """The demo sets how many threads torch uses, for its whole process."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def start(module: str, *options: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )


def invoke(*options: str | Path) -> Result:
    return CliRunner().invoke(main, [str(option) for option in options])


def train(*options: str | Path) -> dict[str, Any]:
    """Run the demo in this process to a successful end; returns its summary."""
    result = invoke("--json", *options)
    assert result.exit_code == 0, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


@pytest.mark.slow
def test_a_short_run_reports_its_steps_and_writes_the_plot(tmp_path: Path) -> None:
    output = tmp_path / "new folder" / "speech.png"
    options = ["--json", "--output", str(output), "--steps", "20", "--batch-size", "8"]
    finished = start("examples.speech.train", *options)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads(finished.stdout)
    assert output.read_bytes().startswith(PNG_SIGNATURE)
    assert output.stat().st_size > 10_000
    assert (summary["utterances"], summary["stored_bytes"]) == (100, 3_096_929)
    assert (summary["steps"], summary["batch_size"], summary["num_workers"]) == (20, 8, 0)
    shares = [summary["wait_share"], summary["decode_share"], summary["compute_share"]]
    assert min(shares) > 0 and sum(shares) == pytest.approx(1.0)
    assert summary["samples_per_s"] == pytest.approx(160 / summary["train_s"])
    assert summary["loss_falling"] and summary["loss_last"] < summary["loss_first"]
    assert [example["lang"] for example in summary["examples"]] == ["en", "es", "fr", "it", "ru"]
    assert summary["examples"][4]["reference"].startswith("ошибка регистрации")
    assert not Path(summary["url"]).exists(), "the temporary store is gone"


@pytest.mark.slow
def test_the_seed_decides_the_losses_whether_batches_come_through_workers_or_not(tmp_path: Path) -> None:
    size: tuple[str | Path, ...] = ("--steps", "12", "--batch-size", "8", "--output", tmp_path / "speech.png")
    first = train(*size, "--seed", "5")
    with_workers = train(*size, "--seed", "5", "--num-workers", "1", "--url", tmp_path / "store")
    other_seed = train(*size, "--seed", "6")
    assert with_workers["decode_overlaps"] and not first["decode_overlaps"]
    # Same weights and batches; the number of threads may differ, and with it the order of additions.
    assert with_workers["loss_last"] == pytest.approx(first["loss_last"], rel=1e-3)
    assert other_seed["loss_first"] != pytest.approx(first["loss_first"], rel=1e-3)


@pytest.mark.slow
def test_a_loss_that_does_not_fall_is_an_exit_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.speech.trainer.PEAK_LEARNING_RATE", 1e-12)
    output = tmp_path / "speech.png"
    result = invoke("--steps", "4", "--batch-size", "25", "--output", output)
    assert result.exit_code == 1
    assert "Error: the loss did not clearly fall" in result.stderr
    assert output.read_bytes().startswith(PNG_SIGNATURE)


@table(
    ("options", "message"),
    [
        (["--data", "/nowhere"], "cannot read /nowhere/manifest.jsonl: No such file or directory"),
        (["--url", "gopher://somewhere"], "gopher"),
        (["--url", "grpc://127.0.0.1:1"], "127.0.0.1:1"),
        (["--steps", "1"], "--steps"),
        (["--output", "/proc/version/speech.png"], "/proc/version"),
    ],
)
def test_a_mistake_of_the_user_ends_with_its_reason_and_no_traceback(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_trying = ais_loader.ClusterOptions(retry_s=0.2) if "grpc://127.0.0.1:1" in options else None
    monkeypatch.setattr("examples.speech.train.connect", partial(ais_loader.connect, options=kept_trying))
    result = invoke("--batch-size", "2", "--steps", "2", "--output", tmp_path / "speech.png", *options)
    assert isinstance(result.exception, SystemExit) and result.exit_code in (1, 2)
    assert result.stderr.splitlines()[-1].startswith("Error: ") and message in result.stderr


def test_the_help_names_every_option() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for option in ("--url", "--steps", "--batch-size", "--num-workers", "--seed", "--data", "--output", "--json"):
        assert option in result.stdout


@pytest.mark.slow
def test_it_says_what_it_stored_before_it_imports_what_takes_seconds() -> None:
    heavy = ("torch", "matplotlib", "soundfile")
    code = f"import sys, examples.speech.train; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow
def test_an_interrupted_run_ends_without_a_traceback_and_leaves_no_store(tmp_path: Path) -> None:
    options = ["--steps", "1000000", "--output", str(tmp_path / "speech.png")]
    with subprocess.Popen(
        [sys.executable, "-m", "examples.speech.train", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = next(line for line in process.stdout if line.startswith("put "))
        assert any("waiting for data" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=180)
    assert process.returncode == 1
    assert complaint.endswith("Aborted!\n") and "Traceback" not in complaint
    store = re.search(r"into (\S+)", said)
    assert store is not None and not Path(store[1]).exists()


@pytest.mark.slow
def test_the_other_utterances_of_a_batch_change_neither_loss_nor_transcript() -> None:
    import torch

    picked = utterances()[:100:33]
    alphabet = Alphabet(spoken_text(utterance.text) for utterance in picked)
    samples = [make_sample(u.path.read_bytes(), alphabet.encode(spoken_text(u.text))) for u in picked]
    torch.manual_seed(0)
    model = SpeechModel(len(alphabet))
    alone = [model.loss(collate([sample])).item() for sample in samples]
    assert model.loss(collate(samples)).item() == pytest.approx(sum(alone) / len(alone), rel=1e-4)
    assert model.transcribe(collate(samples)) == [model.transcribe(collate([sample]))[0] for sample in samples]


def test_a_recording_without_samples_is_refused_with_its_reason() -> None:
    with pytest.raises(ValueError, match="no audio"):
        make_sample(EMPTY_WAV.read_bytes(), [])


@table(
    ("text", "spoken"),
    [
        ("M I S D N  (emme-iessedienne)", "m i s d n"),
        ("Benvenuto nell’elenco...", "benvenuto nell'elenco"),
        ("Статус «важно» убран", "статус важно убран"),
        ("[tentativo di] Parcheggio della chiamata_x", "parcheggio della chiamata x"),
    ],
)
def test_transcripts_are_reduced_to_what_is_said(text: str, spoken: str) -> None:
    assert spoken_text(text) == spoken


@table(
    ("reference", "hypothesis", "distance"),
    [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ошибка", "ошибки", 1)],
)
def test_edit_distance_counts_the_fewest_changes(reference: str, hypothesis: str, distance: int) -> None:
    assert edit_distance(reference, hypothesis) == distance


def test_quickstart_prints_the_objects_in_the_order_asked_for() -> None:
    finished = start("examples.quickstart")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-3:] == [
        "got sample-5 b'payload 5'",
        "got sample-2 b'payload 2'",
        "got sample-7 b'payload 7'",
    ]


@pytest.mark.exhaustive
def test_a_full_run_learns_to_write_what_is_said_in_every_language(tmp_path: Path) -> None:
    output = tmp_path / "speech.png"
    finished = start("examples.speech.train", "--json", "--output", str(output), timeout_s=360.0)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads(finished.stdout)
    assert summary["loss_last_tenth"] < 0.2 * summary["loss_first_tenth"]
    assert summary["character_error_rate"] < 0.1
    for example in summary["examples"]:
        assert example["hypothesis"][:10] == example["reference"][:10]
