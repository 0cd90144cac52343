"""What setup.cfg cannot say: where the packages lie, the two native modules, and the text for an index's page.

A wheel has the modules, which keep to CPython's limited API of 3.11: one wheel serves that version and all later ones.
A free-threaded interpreter has no such API, so its wheel is for its own version. From the source distribution, and in a
checkout, the modules need a C compiler.
"""

import re
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

INTEGRATIONS = "ais_loader.integrations"
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
NATIVE = {
    "py_limited_api": LIMITED,
    "define_macros": [("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
    "extra_compile_args": ["-O3", "-std=gnu11", "-Wall", "-Wextra"],
}


class BuildNative(build_ext):
    """Compilation that says what to do where it fails."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as error:
            raise SystemExit(
                f"{ext.name} cannot be compiled ({error}): install a C compiler and Python's headers (Debian: apt-get "
                "install gcc python3-dev), or a wheel of ais-loader"
            ) from error


def index_page(readme: str) -> str:
    """README without what an index's page cannot show: comments, and pictures and links of the repository."""
    readme = re.sub(r"<!--.*?-->\n?", "", readme, flags=re.S)
    readme = re.sub(r"^!\[[^]]*\]\((?![a-z]+:)[^)]*\)\n+", "", readme, flags=re.M)
    return re.sub(r"\[([^]]+)\]\((?![a-z]+:)([^)#]*)[^)]*\)", _spelled_out, readme)


def _spelled_out(link: "re.Match[str]") -> str:
    """A link as its text and the path that it leads to."""
    return f"`{link[2]}`" if link[1] == link[2] or not link[2] else f"{link[1]} (`{link[2]}`)"


setup(
    long_description=index_page(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    # Two names and no other: a package called `integrations` or `protos` in site-packages would be in the way of
    # anybody's own folder of that name.
    packages=[
        *find_packages(include=["ais_loader*", "storage_node*"]),
        INTEGRATIONS,
        *(f"{INTEGRATIONS}.{name}" for name in find_packages("integrations")),
    ],
    package_dir={INTEGRATIONS: "integrations"},
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
    ext_modules=[
        Extension(
            "ais_loader.wire._crc32c",
            sources=["ais_loader/wire/_crc32c.c"],
            depends=["ais_loader/wire/_crc32c.h"],
            **NATIVE,
        ),
        Extension(
            "storage_node.store._native",
            sources=["storage_node/store/_native.c"],
            depends=[
                "ais_loader/wire/_crc32c.h",
                "storage_node/store/_batch_read.h",
                "storage_node/store/_counted_write.h",
                "storage_node/store/_locations.h",
                "storage_node/store/_mapped_read.h",
            ],
            include_dirs=["ais_loader/wire"],
            **NATIVE,
        ),
    ],
)
