"""Hugging Face datasets: saved and loaded, read as a stream, and built from Parquet files.

Differs: `load_from_disk` downloads a data set of a URL into a temporary folder before it reads it.
"""

import sys

import datasets
import fsspec

PACKAGES = ("datasets",)
FOLDER = "ais://tables/datasets"  # change


def work(folder: str) -> list[object]:
    made = datasets.Dataset.from_dict({"at": list(range(1000)), "text": [f"line {at}" for at in range(1000)]})
    made.save_to_disk(f"{folder}/saved", num_shards=2)
    with fsspec.open(f"{folder}/t.parquet", "wb") as file:
        made.to_parquet(file)
    loaded = datasets.load_from_disk(f"{folder}/saved")
    files = {"data_files": f"{folder}/t.parquet", "split": "train", "cache_dir": f"{sys.argv[1]}/cache"}
    stream = datasets.load_dataset("parquet", streaming=True, **files)
    built = datasets.load_dataset("parquet", **files)
    return [loaded[990:], list(stream.take(5)), built[[3, 1]], len(built)]


datasets.disable_progress_bars()
assert work(FOLDER) == work(sys.argv[1])
