"""Reads of one store.

In reading order: `batch` (GetBatch), `batch_lookup` and `batch_members` over `batch_table` (the location of each
entry), `frame_plan`, `frame_reader` and `entry_reader` over `batch_reader` (the bytes); `object_reader`.
"""
