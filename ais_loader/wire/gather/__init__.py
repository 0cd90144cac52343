"""Merging of several senders' frames, for clients and designated targets.

In reading order: `reorder` with `claims`, `arrived`, `frame_edit` and `senders`; `replica_choice` (whom to ask),
`hedging` (whom to ask in addition).
"""
