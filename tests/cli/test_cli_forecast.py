"""`ais-loader forecast`: what it counts of a store's own objects, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest

from ais_loader import BatchLoader, Client, MapDataset, ShufflePlan
from ais_loader.errors import InvalidRequest
from ais_loader.plans import MixPlan
from ais_loader.testing import throwaway_store
from ais_loader.training.forecast import forecast
from ais_loader.training.waiting_model import Door
from tests.cli.kit import Run

pytestmark = pytest.mark.parametrize("url", ["embedded"], indirect=True)  # each command names its store
SIZES = [50 + 7 * at for at in range(20)]
LOADER = """
from ais_loader import BatchLoader, MapDataset, ShufflePlan
loader = BatchLoader(MapDataset({store!r}, "ais://speech/en/"), ShufflePlan(20, 4, seed=5))
"""
DOORS = ["--latency-ms", "1", "--rate", "1GB", "--store-latency-ms", "500", "--store-rate", "1KB"]


@pytest.fixture(scope="module")
def speech() -> Iterator[Client]:
    objects = {f"en/{at:02}": bytes(size) for at, size in enumerate(SIZES)}
    with throwaway_store(objects, bucket="speech") as client:
        yield client


@pytest.fixture
def program(speech: Client, tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(LOADER.format(store=speech.url))
    return f"{path}:loader"


def test_requests_bytes_and_waiting_are_shown(run: Run, program: str) -> None:
    shown = run("forecast", "--loader", program, "--epochs", "2", "--step-ms", "100", *DOORS)
    assert shown.exit_code == 0, shown.stderr
    rows = {line[:14].strip(): line[14:].split() for line in shown.stdout.splitlines()}
    assert rows[""] == ["epoch", "0", "epoch", "1"] and rows["steps"] == rows["requests"] == ["5", "5"]
    assert rows["payload_bytes"] == [f"{sum(SIZES):,}"] * 2 and rows["distinct_bytes"] == [f"{sum(SIZES):,}"]
    seconds = 5 * 0.5 + sum(SIZES) / 1000 - 0.4  # two threads read the embedded store
    assert all(1.3 < float(text) < seconds for text in rows["wait_s"])
    assert shown.stdout.splitlines()[-2] == "store: 500.0 ms, 1000 B/s"
    measured = json.loads(run("forecast", "--loader", program, "--json").stdout)
    assert measured["store"][0] > 0 and measured["store"][1] > 0


def test_a_state_says_where_to_begin(run: Run, speech: Client, program: str, tmp_path: Path) -> None:
    loader = BatchLoader(MapDataset(speech, "ais://speech/en/"), ShufflePlan(20, 4, seed=5), rank=0, world_size=1)
    had = sum(len(sample) for batch in islice(loader, 2) for sample in batch)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(loader.state_dict()))
    for source in (["--loader", program], ["--entries", "ais://speech/en/", "--store", speech.url]):
        found = json.loads(run("forecast", state, *source, "--json").stdout)
        (epoch,) = found["epochs"]
        assert (epoch["steps"], epoch["entries"], epoch["payload_bytes"]) == (3, 12, sum(SIZES) - had)
        assert found == json.loads(json.dumps(asdict(forecast(loader, **doors(found)))))
    compared = tmp_path / "forecast.json"
    compared.write_text(json.dumps(found))
    (tmp_path / "summary.json").write_text(json.dumps(asdict(loader.summary())))
    shown = run("forecast", "--compare", compared, "--summary", tmp_path / "summary.json", "--store", speech.url)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0] == ["forecast", "measured"] and ["entries", "12", "8"] in rows and ["gets", "0", "0"] in rows


def doors(found: dict[str, list[float]]) -> dict[str, Door]:
    return {name: Door(*found[name]) for name in ("store", "cloud")}


def test_what_cannot_be_forecast_is_refused(run: Run, speech: Client, program: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"epochs": 5}')
    for words, told in (
        (["--loader", program, "--rate", "1MB"], "--latency-ms and --rate: give both or neither"),
        (["--loader", program, "--cache", "much"], "'much' is no size"),
        (["--entries", "ais://speech/en/"], "--entries needs STATE"),
        ([], "give either --loader or --entries"),
        (["--compare", tmp_path / "other", "--store", speech.url], "no forecast as --json prints it"),
    ):
        refused = run("forecast", *words)
        assert refused.exit_code and told in refused.stderr, refused.stderr
    dataset = MapDataset(speech, "ais://speech/en/")
    endless = MixPlan({"a": 20}, {"a": 1}, batch_size=4)
    with pytest.raises(InvalidRequest, match="epoch 0 of the plan has no end; epoch_steps=N gives it one"):
        BatchLoader({"a": dataset}, endless).forecast()
    with pytest.raises(InvalidRequest, match="epochs=0"):
        BatchLoader(dataset, ShufflePlan(20, 4)).forecast(epochs=0)
    for options, told in (
        ({"store": (0.1, 0)}, "rates above 0"),
        ({"cloud": (-1, 5)}, "times of 0 or more"),
        ({"step_s": float("nan")}, "times of 0 or more"),
        ({"cache_bytes": -1}, "cache_bytes=-1"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            BatchLoader(dataset, ShufflePlan(20, 4)).forecast(**options)
    with pytest.raises(InvalidRequest, match="need a BatchLoader of a plan"):
        forecast([[1]])
    with pytest.raises(InvalidRequest, match="need datasets of ais_loader, of one store"):
        forecast(BatchLoader([1, 2, 3, 4], ShufflePlan(4, 2)))
    with pytest.raises(InvalidRequest, match="need a BatchLoader of a plan"):
        BatchLoader(dataset, [[1, 2]]).forecast()
