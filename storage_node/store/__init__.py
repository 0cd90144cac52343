"""One machine's storage: no network, no Ray. Every byte on a drive is described in ../FORMAT.md.

Read in this order: `names` (what may be stored under which name), `format` (catalog values), `raw_files` (object
bytes), `catalog` (RocksDB), `drive` (the write protocol), `store` (several drives as one), `batch_table` and `batch`
(GetBatch); then `doctor`, which checks, repairs and rebuilds.
"""
