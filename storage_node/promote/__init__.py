"""Promotion: files on this machine become objects without passing through a client.

In reading order: `walk` (finds files) with `confined_path` and `source`, `job` (decides what to do with each), then
`into_store` (this store) or `cluster`.
"""
