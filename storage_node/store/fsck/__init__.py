"""Checks and repairs of a store, as `ais-loader doctor` runs them.

In reading order: `fsck` (check, repair), `scan` (one drive's catalog against its files), `rebuild` (a catalog from
files), `report`.
"""
