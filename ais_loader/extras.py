"""Optional packages: by which extra of the installation each one comes, told where one is missing.

`pip install ais-loader` brings what a trainer needs to read from storage nodes; setup.cfg lists the extras.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "rocksdict": "store",
    "prometheus_client": "store",
    "indexed_gzip": "archives",
    "lz4": "archives",
    "zstandard": "archives",
    "torch": "torch",
    "fsspec": "fsspec",
    "lhotse": "lhotse",
    "webdataset": "webdataset",
    "ray": "store,ray",
    "pyarrow": "store,ray-data",
    "matplotlib": "demo",
    "PIL": "images",
    "soundfile": "audio",
    "braceexpand": "nemo",
    "aiohttp": "etl",
    "cloudpickle": "etl",
    "fastapi": "etl",
    "flask": "etl",
    "packaging": "etl",
    "uvicorn": "etl",
    "websockets": "etl",
    "hdrh": "bench",
}
"""What to ask pip for, by the name under which a package is imported."""


class MissingExtra(ModuleNotFoundError):
    """A package that is optional is needed here and cannot be imported; the message says what to install."""


@contextmanager
def needs(
    package: str, purpose: str, raising: type[Exception] = MissingExtra, *, extra: str | None = None
) -> Iterator[None]:
    """Around the import of an optional package, where it is used for `purpose`, a noun.

    `extra` is the one that brings it for this purpose, where that is not the one in `EXTRAS`.

    Raises `raising` with the command that installs the package, when it cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        install = f"pip install 'ais-loader[{extra or EXTRAS[package]}]'"
        missing = raising(f"{package} is needed for {purpose} and cannot be imported: {install} ({error})")
        if isinstance(missing, ImportError):
            missing.name = package
        raise missing from error
