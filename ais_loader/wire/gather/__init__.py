"""Merging of what several senders deliver, for clients and designated targets. In reading order: `reorder` over
`claims`, `arrived`, `frame_edit` and `senders`; `replica_choice` (whom to ask), `hedging` (whom to ask as well).
"""
