"""pyarrow: a partitioned data set, written and read with a filter."""

import sys

import fsspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

PACKAGES = ("pyarrow",)
FILESYSTEM = fsspec.filesystem("ais")  # change


def work(folder: str, filesystem: object) -> list[object]:
    table = pa.table({"at": range(1000), "part": [at % 3 for at in range(1000)]})
    pyarrow.dataset.write_dataset(
        table, f"{folder}/set", format="parquet", partitioning=["part"], filesystem=filesystem
    )
    pyarrow.parquet.write_table(table, f"{folder}/one.parquet", filesystem=filesystem)
    found = pyarrow.dataset.dataset(f"{folder}/set", partitioning=["part"], filesystem=filesystem)
    rows = found.to_table(filter=pyarrow.dataset.field("part") == 1)
    footer = pyarrow.parquet.read_metadata(f"{folder}/one.parquet", filesystem=filesystem)
    whole = pyarrow.parquet.read_table(f"{folder}/one.parquet", filesystem=filesystem)
    assert whole.equals(table)
    return [sorted(rows["at"].to_pylist()), footer.num_rows]


assert work("tables/pyarrow", FILESYSTEM) == work(sys.argv[1], fsspec.filesystem("file"))
