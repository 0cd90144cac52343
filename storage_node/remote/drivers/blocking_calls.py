"""Blocking calls of obstore, in threads: a GET with its content costs less than half of two answers on the event loop.

obstore hands each answer to the loop by a thread of its own, which waits for the interpreter. A blocking call returns
in the thread that made it. Nobody can cancel such a call. It ends by obstore's limits, and the threads are daemons: a
storage that is silent delays neither its readers nor the end of the process.
"""

from storage_node.limits.blocking_calls import BlockingCalls

__all__ = ["CALLS", "BlockingCalls"]
CALLS = BlockingCalls(64)
"""Those of this process."""
