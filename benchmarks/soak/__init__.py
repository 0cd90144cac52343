"""Soak: mixed operations while processes and nodes are killed, frozen and cut off, judged by their history alone."""
