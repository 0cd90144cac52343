"""Anti-entropy: makes replicas equal.

In reading order: `repair` (passes over a node's objects) with `plan`, `transfers`, `peers` and `finish_change`;
`reconcile` (a returning node); `source_reader` (reads with failover); `usage`.
"""
