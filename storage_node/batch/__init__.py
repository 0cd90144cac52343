"""GetBatch on a node.

In reading order: `session` (the wire protocol), `local_batch` and `fast_path` (a batch from this node's drives),
`gather/` (a batch from several nodes) over `peers` and `peer_stream`. What they share is in `admission`, `resources`
(`BatchCall`: one batch) and `readahead`.
"""
