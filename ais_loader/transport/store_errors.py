"""Translation of the embedded store's errors into the client's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ais_loader import errors


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the store's errors into the client's, by kind."""
    from storage_node.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        raise errors.from_kind(error.kind, str(error)) from error
