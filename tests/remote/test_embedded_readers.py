"""Embedded stores: the writer fetches; processes that only read say what to do about a cold object."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from tests.remote.conftest import RemoteBucket
from tests.remote.test_remote_buckets import data_of, filled


def test_a_reader_beside_the_writer_reads_what_is_stored_and_names_the_way_to_the_rest(
    remote_bucket: RemoteBucket, tmp_path: Path
) -> None:
    names = filled(remote_bucket, 4)
    with connect(tmp_path / "store") as writer:
        bucket = writer.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        bucket.warm(names[:2])
        with connect(tmp_path / "store", mode="r") as reader:
            items = list(reader.get_batch([Entry("b", name) for name in names], on_error="placeholder"))
            assert [item.data.tobytes() for item in items] == [data_of(0), data_of(1), b"", b""]
            assert all(isinstance(item.error, errors.StoreReadOnly) for item in items[2:])
            assert reader.bucket("b").get(names[0]) == data_of(0)
            for call in (lambda: reader.bucket("b").get(names[2]), lambda: reader.bucket("b").get(names[2], start=1)):
                with pytest.raises(errors.StoreReadOnly, match="node:///"):
                    call()
        assert bucket.get(names[2]) == data_of(2)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_an_embedded_store_read_what_was_warmed(
    remote_bucket: RemoteBucket, tmp_path: Path, context: str
) -> None:
    from torch.utils.data import DataLoader

    from ais_loader import MapDataset

    names = filled(remote_bucket, 12)
    with connect(tmp_path / "store") as writer:
        bucket = writer.create_bucket("b", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        bucket.warm(names)
        dataset = MapDataset(tmp_path / "store", [Entry("b", name) for name in names])
        loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context, collate_fn=list)
        assert [sample for batch in loader for sample in batch] == [data_of(at) for at in range(12)]
        bucket.evict()
        # All three batches: an iterator that is dropped while a spawned worker starts takes its semaphores with it.
        batches = iter(loader)
        for _ in range(3):
            with pytest.raises(errors.StoreReadOnly, match="node:///"):
                next(batches)
