"""Stored copies of remote objects: what their metadata say, the room that they have, and their eviction.

In reading order: `object_metadata`, `eviction_order`, `cache_space`, and `eviction` by name.
"""
