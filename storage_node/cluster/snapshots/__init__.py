"""Snapshots of a cluster's buckets. In reading order: `coordinator` (makes, lists and deletes them), `converge` with
`plan` (all owners see the same), `repair` (retained versions kept where the map wants them), `sweep` (garbage
collection), `node` (all of them, put together).
"""
