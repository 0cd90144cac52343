"""Exit of a DataLoader's worker process soon after its trainer has died, also in the middle of `decode`.

PyTorch's workers look for their trainer between two batches only, so a `decode` that takes minutes keeps an orphan for
minutes. multiprocessing gives every worker a pipe whose other end the trainer holds open, with each start method
(PR_SET_PDEATHSIG would be about the thread that started the worker, or about the fork server). Two things end a worker:

- When the other end is closed, the kernel sends SIGKILL (O_ASYNC with F_SETSIG). This needs no GIL, so it also ends a
  `decode` that holds it.
- A thread waits for the pipe and for the trainer's pidfd. It is for the case that another process, which the trainer
  forked later, has inherited the other end and keeps it open. It needs the GIL once.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

_watched_by: int | None = None
"""Process that watches its parent. A forked child has to begin anew."""


def exit_with_trainer() -> None:
    """Let this worker process end within seconds after the process that created its DataLoader. Later calls do nothing.

    In a process that multiprocessing did not start, this does nothing.
    """
    global _watched_by
    trainer = multiprocessing.parent_process()
    if trainer is None or _watched_by == os.getpid():
        return
    _watched_by = os.getpid()
    sentinel: int = trainer.sentinel
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_watch, args=(sentinel, trainer.pid), name="ais-loader-watch-trainer", daemon=True).start()


def _watch(sentinel: int, trainer_pid: int) -> None:
    # A trainer that died before O_ASYNC was set is noticed here.
    ends = [sentinel]
    try:
        ends.append(os.pidfd_open(trainer_pid))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):  # this interpreter has none, or it is not permitted: the sentinel remains
        pass
    wait(ends)
    os._exit(1)
