"""Nodes as one cluster: what they agree on, and how they find each other."""
