"""Options of a catalog's RocksDB, and the block cache that all catalogs of a process share."""

from __future__ import annotations

import ctypes
import os
import threading

from ais_loader.extras import needs
from storage_node.store.machine_memory import machine_memory_bytes

with needs("rocksdict", "a store on this machine"):
    from rocksdict import BlockBasedOptions, Cache, DBRecoveryMode, Options

_BLOOM_BITS = 10.0
"""Per key: a look-up reads one table in a hundred in vain."""
_MIN_CACHE_BYTES, _MAX_CACHE_BYTES = 64 << 20, 256 << 20
_SHARE_OF_MEMORY = 64
_lock = threading.Lock()
_cache: Cache | None = None


def catalog_options(log_folder: str | None = None) -> Options:
    """Return options for opening a catalog.

    RocksDB stores options of tables with the database and prefers them when it opens it again. They only apply if they
    are given for the column family, too: `column_families={"default": options}`.
    """
    options = Options(raw_mode=True)
    if log_folder is not None:
        options.set_db_log_dir(log_folder)
    options.create_if_missing(True)
    options.set_write_buffer_size(16 << 20)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(64 << 20)
    # Without this, RocksDB would silently stop reading a log at a damaged record in its middle. A truncated last
    # record, which a killed process may leave, does not count as damage.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    tables = BlockBasedOptions()
    tables.set_bloom_filter(_BLOOM_BITS, False)
    tables.set_block_cache(_block_cache())
    options.set_block_based_table_factory(tables)
    return options


def leak(handle: object) -> None:
    """Never collect this object, not even at interpreter exit."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def block_cache_bytes() -> int:
    """Return the capacity of the block cache: a share of the memory that this process may use."""
    return min(max(machine_memory_bytes() // _SHARE_OF_MEMORY, _MIN_CACHE_BYTES), _MAX_CACHE_BYTES)


def _block_cache() -> Cache:
    global _cache
    with _lock:
        if _cache is None:
            _cache = Cache(block_cache_bytes())
        return _cache


def _leave_inherited_cache() -> None:
    """Leak the cache in a forked child: a thread that does not exist there may have held one of its locks."""
    global _cache, _lock
    leak(_cache)
    _cache, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_leave_inherited_cache)
