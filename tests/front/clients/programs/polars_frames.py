"""Polars: Parquet and CSV through open files, and a lazy scan of a pyarrow data set.

Differs: Polars opens URLs with a library of its own, which knows no `ais://`, so it is given open files. A lazy scan
goes through pyarrow, which reads the columns and row groups that are needed.
"""

import sys

import fsspec
import polars as pl
import pyarrow.dataset

PACKAGES = ("polars", "pyarrow")
FOLDER = "ais://tables/polars"  # change


def work(folder: str) -> list[object]:
    frame = pl.DataFrame({"at": range(1000), "text": [f"line {at}" for at in range(1000)]})
    with fsspec.open(f"{folder}/t.parquet", "wb") as file:  # change
        frame.write_parquet(file)
    with fsspec.open(f"{folder}/t.csv", "wb") as file:
        frame.write_csv(file)
    with fsspec.open(f"{folder}/t.parquet") as file:  # change
        whole = pl.read_parquet(file)
    with fsspec.open(f"{folder}/t.csv") as file:
        lines = pl.read_csv(file)
    filesystem, path = fsspec.url_to_fs(f"{folder}/t.parquet")
    scan = pl.scan_pyarrow_dataset(pyarrow.dataset.dataset(path, filesystem=filesystem))  # change
    few = scan.filter(pl.col("at") > 990).select("text").collect()
    assert whole.equals(frame) and lines.equals(frame)
    return [whole.to_dicts(), few.to_dicts()]


assert work(FOLDER) == work(sys.argv[1])
