"""Builds the one native module; all that describes the package is in setup.cfg.

The module is optional: where no compiler is found the installation succeeds and storage_node runs
on its Python reference (storage_node/store/read/native_reader.py), with the same answers.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "storage_node.store._native",
            sources=["storage_node/store/_native.c"],
            depends=["storage_node/store/_crc32c.h", "storage_node/store/_batch_read.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wextra"],
            optional=True,
        )
    ]
)
