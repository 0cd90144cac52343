"""Promotion: files that this machine sees become objects without passing through a client.

In reading order: `walk` (finds them) over `confined_path` and `source`, `job` (what to do with each), then `into_store`
(into this store) or `cluster`.
"""
