"""Limits of a node: memory, call slots, reader turns, open streams, descriptors, and fairness between tenants."""
