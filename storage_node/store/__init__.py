"""Store of one machine: no network, no Ray. ../FORMAT.md describes every byte on a drive.

In reading order: `names` (naming rules), `format` (catalog keys and values), `files/` (the bytes of objects), `drive/`
(the catalog, and the write protocol of one drive), `pool/` (several drives), `store_record` with `record_keeper` and
`buckets`, `write` (uploads, and changes on the drives that own the names), `store` (the interface), `read/` (GetBatch),
`archives/` (members of shards), `snapshots`, `replica_state` (a node's part in a cluster); then
`fsck/`, which checks, repairs and rebuilds.
"""
