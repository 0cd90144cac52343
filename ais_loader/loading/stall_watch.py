"""Stall watch: says where a loader waits when no batch comes, instead of waiting in silence."""

from __future__ import annotations

import faulthandler
import logging
import tempfile
import time
from typing import Literal, TypeAlias

from ais_loader.errors import SilenceTimeout

OnStall: TypeAlias = Literal["wait", "raise", "restart"]
ON_STALL = ("wait", "raise", "restart")
log = logging.getLogger(__name__)


class StallWatch:
    """The trainer's wait for one batch at a time."""

    def __init__(self, stall_s: float | None, on_stall: OnStall, rank: int) -> None:
        self._stall_s, self._on_stall, self._rank = stall_s, on_stall, rank
        self.place = "the beginning"
        """Where the wait is, in words."""
        self.has_raised = False
        self._told = False
        self._due_s = 0.0

    def begin(self) -> StallWatch:
        """Note that a wait begins."""
        self.place = f"after {self.place.removeprefix('after ')}"
        self._told = self._stall_s is None
        self._due_s = time.monotonic() + (self._stall_s or 0)
        return self

    @property
    def left_s(self) -> float | None:
        """Time to wait before it is a stall, in seconds; None to wait without an end."""
        return None if self._told else max(0.0, self._due_s - time.monotonic())

    def tell(self, where: str) -> bool:
        """Warn of a stall, with the stacks of all threads. Returns whether to restart the worker.

        Raises SilenceTimeout with on_stall="raise".
        """
        text = f"rank {self._rank}, {self.place}: no batch for {self._stall_s:g} s; {where}"
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            log.warning("%s\n%s", text, file.read().decode(errors="replace"))
        if self._on_stall == "raise":
            self.has_raised = True
            raise SilenceTimeout(text)
        if self._on_stall == "restart":
            self._due_s = time.monotonic() + (self._stall_s or 0)
            return True
        self._told = True
        return False
