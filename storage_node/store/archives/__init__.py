"""Members of archives: found by name, read by ranges, without unpacking the shard. No network, no buckets, no catalog.

Read in this order: `member` (what a member is, how it is named), `kinds` (which object is an archive), `tar_header` and
`tar_index` (one pass over a tar), `zip_directory` and `zip_index`, `index` (the file beside it, see FORMAT.md),
`inflating` with `frame_walk`, `zstd_frames` and `lz4_frames` (compressed streams in bounded steps), `restart` and
`gzip_points` (reading in the middle of them), `archive` (one face over all kinds), `copies` (for what has no middle),
`reframe`.
"""
