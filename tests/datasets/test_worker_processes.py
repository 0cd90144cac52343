"""Datasets in real worker processes: errors keep their type, a killed worker is told, forks and spawns both read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets_kit import (
    BUCKET,
    DEADLINE_S,
    URLS,
    DieOnce,
    Recording,
    contents,
    decode_badly,
    decode_recording,
)
from torch.utils.data import DataLoader

from ais_loader import Client, MapDataset, connect
from ais_loader.errors import ObjectNotFound

MISSING = f"ais://{BUCKET}/missing"


def map_loader(client: Client, urls: list[str], decode: Any = None) -> DataLoader[Any]:
    return DataLoader(MapDataset(client, urls, decode), batch_size=8, num_workers=1, timeout=DEADLINE_S)


class TestErrors:
    @pytest.fixture(autouse=True)
    def torch_ends_workers_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It gives the workers of a loop that an error ended 5 s, all of which pass, whatever the dataset."""
        monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)

    @pytest.mark.parametrize("store", ["grpc"], indirect=True)
    def test_a_missing_object_comes_out_of_the_worker_as_itself(self, store: Client) -> None:
        batches = iter(map_loader(store, [*URLS[:8], MISSING]))
        assert next(batches) == contents(URLS[:8])
        with pytest.raises(ObjectNotFound, match=r"(?s)worker process 0.*missing"):
            next(batches)

    def test_an_error_of_decode_keeps_its_type_and_names_the_entry(self, local_store: Client) -> None:
        with pytest.raises(ArithmeticError, match=rf"(?s)no samples in .* sample 0 of its dataset, {URLS[0]}"):
            next(iter(map_loader(local_store, URLS, decode_badly)))

    @pytest.mark.slow
    def test_a_killed_worker_ends_the_loop_with_an_error_and_a_new_loader_works(
        self, local_store: Client, tmp_path: Path
    ) -> None:
        loader = map_loader(local_store, URLS, DieOnce(tmp_path / "died"))
        with pytest.raises(RuntimeError, match=r"exited unexpectedly|is killed by signal"):
            list(loader)
        assert [sample for batch in loader for sample in batch] == contents(URLS)


@pytest.mark.every_transport
class TestFork:
    """Workers inherit a client that the parent has used, and must use nothing of it but the address."""

    @pytest.mark.slow
    def test_parent_and_workers_read_at_the_same_time(self, store: Client) -> None:
        bucket = store.bucket(BUCKET)
        own = iter(store.get_batch(URLS))
        assert next(own).tobytes() == contents(URLS[:1])[0]
        loader = DataLoader(MapDataset(store, URLS, decode_recording), 8, num_workers=2, collate_fn=list)
        seen: list[Recording] = []
        for batch in loader:
            assert bucket.get(batch[0].name) == batch[0].data
            seen += batch
        assert [sample.data for sample in seen] == contents(URLS)
        assert os.getpid() not in {sample.pid for sample in seen}
        assert [item.tobytes() for item in own] == contents(URLS[1:])

    @pytest.mark.slow
    def test_a_dataset_that_was_read_in_the_parent_by_its_url_is_read_in_workers(self, store: Client) -> None:
        dataset = MapDataset(store.url, URLS)
        assert dataset[3] == contents(URLS[3:4])[0]
        assert [sample for batch in DataLoader(dataset, 8, num_workers=2) for sample in batch] == contents(URLS)
        assert dataset[4] == contents(URLS[4:5])[0]


class TestSpawn:
    """What crosses is pickled: the address of the store, the entries, the plan, the decoder."""

    @pytest.mark.slow
    def test_a_map_dataset_reads_in_a_spawned_worker(self, node_store: Client) -> None:
        dataset = MapDataset(node_store, URLS, decode_recording)
        loader = DataLoader(dataset, 16, num_workers=1, multiprocessing_context="spawn", collate_fn=list)
        seen = [sample for batch in loader for sample in batch]
        assert [sample.data for sample in seen] == contents(URLS)
        assert os.getpid() not in {sample.pid for sample in seen}


@pytest.mark.slow
def test_a_reader_beside_the_writer_sees_what_was_put_before_its_workers_started(tmp_path: Path) -> None:
    with connect(tmp_path / "store") as writer:
        bucket = writer.create_bucket(BUCKET)
        urls = []
        for at in range(3):
            bucket.put(f"{at}", bytes([at]) * 100)
            urls.append(f"ais://{BUCKET}/{at}")
            loader = DataLoader(MapDataset(writer, urls), batch_size=2, num_workers=1)
            assert [sample for batch in loader for sample in batch] == [bytes([n]) * 100 for n in range(at + 1)]
