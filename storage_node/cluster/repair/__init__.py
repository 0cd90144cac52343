"""Anti-entropy: copies made equal. In reading order: `repair` (passes over what a node has) with `plan`, `transfers`,
`peers` and `finish_change`; `reconcile` (a node that returns); `source_reader` (reads with failover); `usage`.
"""
