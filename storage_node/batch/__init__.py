"""GetBatch on a node: `session` speaks the wire protocol, `admission` bounds what it may hold."""
