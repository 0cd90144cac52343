"""Replicated writes. In reading order: `coordinator`, `replica_set`, `replica_stream` and `replica` (both ends of a
copy), `commit`, `conditional`, `delete_many`; `fan_out` and `invalidation` (nodes that missed a write),
`listing_filter`; below them `name_locks`, `commit_barrier`, `replica_client`.
"""
