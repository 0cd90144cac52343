"""Replicated writes. In reading order: `coordinator`, `replica_set`, `replicas` and `replica` (both ends of a copy),
`commit`, `write_plan`, `conditions`; `invalidation` (nodes that missed a write), the leases, `listing_filter`.
"""
