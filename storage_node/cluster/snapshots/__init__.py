"""Snapshots of a cluster's buckets.

In reading order: `coordinator` (creates, lists and deletes them), `converge` with `plan` (all owners see the same),
`repair` (places retained versions where the map wants them), `sweep` (garbage collection), `node` (assembles all of
them).
"""
