"""pandas: frames as Parquet, CSV and JSON lines.

Differs: A file is an object, which appears as a whole when it is closed. Nothing is appended.
"""

import sys

import pandas as pd

PACKAGES = ("pandas",)
FOLDER = "ais://tables/pandas"  # change


def work(folder: str) -> list[dict[str, object]]:
    frame = pd.DataFrame({"at": range(1000), "text": [f"line {at}" for at in range(1000)]})
    frame.to_parquet(f"{folder}/t.parquet")
    frame.to_csv(f"{folder}/t.csv.gz", index=False)
    frame.to_json(f"{folder}/t.jsonl", orient="records", lines=True)
    found = [
        pd.read_parquet(f"{folder}/t.parquet", columns=["text"], filters=[("at", ">", 990)]),
        pd.read_csv(f"{folder}/t.csv.gz"),
        pd.read_json(f"{folder}/t.jsonl", lines=True),
    ]
    return [one.to_dict() for one in found]


assert work(FOLDER) == work(sys.argv[1])
