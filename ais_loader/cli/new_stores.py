"""Message about a created store: a mistyped path becomes a new store if a command may create one."""

from __future__ import annotations

import logging

from ais_loader.cli.show import note, printable

_MAKES_STORES = logging.getLogger("storage_node.store.pool.open")


class _Notes(logging.Handler):
    """Log handler that prints to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        note(printable(record.getMessage()))


def tell_of_new_stores() -> None:
    """From now on, in this process, print one line to standard error for each store that is created."""
    if not any(isinstance(handler, _Notes) for handler in _MAKES_STORES.handlers):
        _MAKES_STORES.addHandler(_Notes())
        _MAKES_STORES.setLevel(logging.INFO)
