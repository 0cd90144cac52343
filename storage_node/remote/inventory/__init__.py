"""Inventories of remote buckets: made of a listing by several streams, and stored as objects."""
