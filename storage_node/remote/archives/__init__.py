"""Members of cold archives, read by range from the remote storage: the archive itself stays cold.

`tar_walk` and `zip_walk` say which bytes to read to learn where the members are, and make no requests. `cold_index`
takes a member out of bytes, `kept_indexes` keeps indexes on the drives, and `cold_archives` makes the requests.
`cold_parts` decides whether a part of an object is read alone.
"""
