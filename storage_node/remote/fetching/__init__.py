"""Fetches of cold objects: which node fetches, and how the object comes into the store.

In reading order: `fetch_owner` (the node that fetches), `fetches` (what readers wait for), `loads` (fetches by this
node).
"""
