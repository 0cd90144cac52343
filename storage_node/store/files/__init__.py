"""Bytes on one drive. In reading order: `object_files` (all of a drive's files), `staged_file` (an object on its way
in), `segment_format`, `segment_file`, `segment_writer` and `segments` (small objects share a file), `folders`,
`group_sync`, `clone_or_copy`, `error_counters`.
"""
