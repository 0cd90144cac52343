"""Zarr 3: a group with arrays, written in chunks, and read in slices."""

import sys

import numpy as np
import zarr

PACKAGES = ("zarr",)
FOLDER = "ais://tables/arrays.zarr"  # change


def work(folder: str) -> list[object]:
    values = np.arange(60 * 70, dtype="int32").reshape(60, 70)
    group = zarr.open_group(folder, mode="w")
    array = group.create_array("a", shape=values.shape, chunks=(16, 16), dtype=values.dtype)
    array[:] = values
    array[3, :] = -1
    group.attrs["about"] = "rows and columns"
    again = zarr.open_group(folder, mode="r")
    assert (again["a"][:3] == values[:3]).all()
    return [again["a"][2:20:3, 60:].tolist(), dict(again.attrs), sorted(again.array_keys())]


assert work(FOLDER) == work(f"{sys.argv[1]}/arrays.zarr")
