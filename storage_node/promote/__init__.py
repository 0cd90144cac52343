"""Promotion: files that this machine sees become objects without passing through a client. In reading order: `walk`
(finds them) over `beneath` and `source`, `job` (what to do with each), then `here` (into this store) or `cluster`.
"""
