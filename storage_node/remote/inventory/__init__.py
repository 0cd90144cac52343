"""Inventories of remote buckets: made of a listing by several streams, or of a manifest, and stored as objects."""
