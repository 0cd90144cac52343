"""Audit log of a node: who changed what, and, if it is set, who read what."""
