"""Gathered batches: the work of a designated target.

In reading order: `assemble` (the response to the client), `gather` (what the owners send), `routing` (which owner is
asked for which entry), `senders` and `hedging`, `failures`, `resumed`.
"""
