"""Optional packages: the extra that installs each one, and the error if one is missing.

Without extras, the installation has what a trainer needs to read from storage nodes. setup.cfg lists the extras.
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

EXTRAS = {
    "rocksdict": "store",
    "prometheus_client": "store",
    "indexed_gzip": "archives",
    "lz4": "archives",
    "zstandard": "archives",
    "pyeclib": "store,coding",
    "torch": "torch",
    "fsspec": "fsspec",
    "obstore": "store,remote",
    "lhotse": "lhotse",
    "webdataset": "webdataset",
    "multistorageclient": "msc",
    "ray": "store,ray",
    "pyarrow": "store,ray-data",
    "matplotlib": "demo",
    "PIL": "images",
    "soundfile": "audio",
    "av": "video",
    "torchcodec": "torchcodec",
    "braceexpand": "nemo",
    "aiohttp": "etl",
    "cloudpickle": "etl",
    "fastapi": "etl",
    "flask": "etl",
    "packaging": "etl",
    "uvicorn": "etl",
    "websockets": "etl",
    "hdrh": "bench",
    "cryptography": "secure",
    "jwt": "secure",
    "awscrt": "gateway",
    "botocore": "gateway",
    "msgpack": "gateway",
    "re2": "gateway",
}
"""Extra to install, by the name under which a package is imported."""


class MissingExtra(ModuleNotFoundError):
    """An optional package is needed here and cannot be imported; the message says what to install."""


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, by its origin: a checkout, a wheel, an index.

    The standard file `direct_url.json` names a checkout or a wheel. An index records nothing.
    """
    # A checkout may contain another distribution of this name, left by setuptools: it has no such file.
    for distribution in importlib.metadata.distributions(name="ais-loader"):
        recorded = json.loads(distribution.read_text("direct_url.json") or "{}")
        parts = urlsplit(recorded.get("url", ""))
        path = Path(unquote(parts.path))
        if parts.scheme == "file" and path.exists():
            option = "-e " if recorded.get("dir_info", {}).get("editable") else ""
            return f"pip install {option}{shlex.quote(f'{path}[{extra}]')}"
    return f"pip install {shlex.quote(f'ais-loader[{extra}]')}"


@contextmanager
def needs(
    package: str, purpose: str, raising: type[Exception] = MissingExtra, *, extra: str | None = None
) -> Iterator[None]:
    """Wraps the import of an optional package, which is needed for `purpose`, a noun.

    `extra` is the extra to install for this purpose, if that is not the one in `EXTRAS`.

    Raises `raising` with the command that installs the package if it cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        install = install_command(extra or EXTRAS[package])
        missing = raising(f"{package} is needed for {purpose} and cannot be imported: {install} ({error})")
        if isinstance(missing, ImportError):
            missing.name = package
        raise missing from error


@contextmanager
def compiled(module: str) -> Iterator[None]:
    """Wraps the import of a module in C. Raises ImportError that says how to get it if it cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{module}, which is compiled at installation, cannot be imported ({error}): install a wheel of "
            "ais-loader, or install it again with a C compiler and Python's headers (Debian: apt-get install gcc "
            "python3-dev)",
            name=module,
        ) from error
