"""Cluster map as one node has it. In reading order: `membership` (the map in force), `open` (at start), `sync` (kept up
to date), `mutations` and `snapshot_mutations` (edits of it), `buckets` (calls that edit it), `lease` (version pins).
"""
