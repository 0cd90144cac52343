"""Cluster map as one node knows it.

In reading order: `membership` (the map in force), `open` (at start), `sync` (keeps it up to date), `mutations` and
`snapshot_mutations` (edits), `buckets` (calls that edit it), `lease` (version pins).
"""
