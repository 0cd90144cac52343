"""What setup.cfg cannot say: where the packages lie, and the two native modules.

They are optional: where no compiler is found the installation succeeds, and checksums and reads go by
their Python references (ais_loader/checksum.py, storage_node/store/read/batch_reader.py), with the same
answers.
"""

from setuptools import Extension, find_packages, setup

INTEGRATIONS = "ais_loader.integrations"

setup(
    # Two names and no other: a package called `integrations` or `protos` in site-packages would be in the way of
    # anybody's own folder of that name.
    packages=[
        *find_packages(include=["ais_loader*", "storage_node*"]),
        INTEGRATIONS,
        *(f"{INTEGRATIONS}.{name}" for name in find_packages("integrations")),
    ],
    package_dir={INTEGRATIONS: "integrations"},
    ext_modules=[
        Extension(
            "ais_loader._crc32c",
            sources=["ais_loader/_crc32c.c"],
            depends=["ais_loader/_crc32c.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wextra"],
            optional=True,
        ),
        Extension(
            "storage_node.store._native",
            sources=["storage_node/store/_native.c"],
            depends=["ais_loader/_crc32c.h", "storage_node/store/_batch_read.h"],
            include_dirs=["ais_loader"],
            extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wextra"],
            optional=True,
        ),
    ],
)
