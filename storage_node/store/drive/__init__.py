"""Drive: a catalog, object files, and the write protocol that keeps the two consistent.

In reading order: `identity` and `locking`, `catalog`, `transactions` with `preconditions`, `commit_files` and
`ended_versions`, `sparse_segments` and `segment_compaction`, `drive`, `upkeep`.
"""
