"""Dask: frames in partitions, written and read by threads, and read by processes.

Differs: Several processes that write to an embedded store take turns. Let threads write, or use a node.
"""

import sys

import dask.dataframe as dd
import pandas as pd

PACKAGES = ("dask",)
FOLDER = "ais://tables/dask"  # change


def work(folder: str) -> list[object]:
    frame = pd.DataFrame({"at": range(1000), "part": [at % 3 for at in range(1000)]})
    dd.from_pandas(frame, npartitions=4).to_parquet(f"{folder}/set")
    sums = [
        dd.read_parquet(f"{folder}/set").groupby("part")["at"].sum().compute(scheduler=kind).sort_index().to_dict()
        for kind in ("threads", "processes")
    ]
    return [sums, len(dd.read_parquet(f"{folder}/set", columns=["at"]))]


if __name__ == "__main__":
    assert work(FOLDER) == work(sys.argv[1])
