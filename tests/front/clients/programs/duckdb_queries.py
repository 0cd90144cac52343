"""DuckDB: queries over Parquet files with a wildcard, and COPY into the store.

Differs: A connection registers the file system itself, each one anew.
"""

import sys

import duckdb
import fsspec

PACKAGES = ("duckdb",)
CONNECTION = duckdb.connect()
CONNECTION.register_filesystem(fsspec.filesystem("ais"))  # change


def work(folder: str) -> list[object]:
    for part in range(3):
        query = f"SELECT range AS n, {part} AS part FROM range(1000)"
        CONNECTION.execute(f"COPY ({query}) TO '{folder}/p-{part}.parquet' (FORMAT parquet)")
    CONNECTION.execute(f"COPY (SELECT 1 AS one, 'a' AS letter) TO '{folder}/t.csv' (HEADER)")
    found = f"SELECT part, sum(n), count(*) FROM '{folder}/p-*.parquet' WHERE n >= 900 GROUP BY part ORDER BY part"
    return [CONNECTION.sql(found).fetchall(), CONNECTION.sql(f"SELECT * FROM '{folder}/t.csv'").fetchall()]


CONNECTION.execute("SELECT 1")
with fsspec.open("ais://tables/duckdb/about", "wb") as about:  # makes the bucket, if it is not there
    about.write(b"DuckDB")
assert work("ais://tables/duckdb") == work(sys.argv[1])
