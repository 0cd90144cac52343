"""Replicated writes. In reading order: `coordinator`, `replica_set`, `replica_stream` and `replica` (both ends of a
copy), `commit`, `conditional`, `delete_many`; `nonparticipants` and `invalidation` (nodes that missed a write),
`listing_filter`; below them `name_locks`, `snapshot_barrier`, `replica_client`.
"""
