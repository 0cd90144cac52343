"""A package that nobody has published: as a wheel, and as an environment that has it."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

NAME, VERSION = "ais_shouting", "1.2"
FILES = {
    f"{NAME}.py": "def shout(data):\n    return bytes(data).upper() + b'!'\n",
    f"{NAME}-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
    f"{NAME}-{VERSION}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{NAME}-{VERSION}.dist-info/RECORD": "",
}


def shouting(data: memoryview) -> bytes:
    """A transform that needs it."""
    import ais_shouting  # type: ignore[import-not-found]

    return bytes(ais_shouting.shout(data))


def wheel(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


def interpreter(folder: Path) -> Path:
    """This Python, with the package."""
    for name, text in FILES.items():
        (folder / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "packages" / name).write_text(text)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/packages:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path
