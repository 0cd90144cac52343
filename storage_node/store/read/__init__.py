"""Reads of one store. In reading order: `batch` (GetBatch) over `batch_lookup` and `batch_members` (what each entry
is), `frame_plan` (how they are framed), `native_reader` (their bytes); `batch_pieces`, `batch_status`; `object_reader`.
"""
