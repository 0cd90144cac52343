"""Erasure coding: objects of a bucket as fragments on more nodes, which take less space than copies.

Objects lie in groups (group.py), which are coded into fragments (codec.py). A node reads objects from fragments, and
from parity where some cannot be read (group_reader.py). The coder takes objects from copies to groups, and the keeper
mends groups and gives them up; `coding` runs both.
"""
