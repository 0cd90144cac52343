"""Gathered batches: what a designated target does. In reading order: `assemble` (the answer to the client), `gather`
(what the owners send), `routing` (which owner is asked for what), `senders` and `hedging`, `failures`, `resumed`.
"""
