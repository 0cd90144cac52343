"""Object files of one drive.

In reading order: `object_files` (all files of a drive), `staged_file` (an object that is being received),
`segment_format`, `segment_file` and `segments` (small objects that share a file), `group_sync`,
`counted_write`, `clone_or_copy`, `error_counters`.
"""
