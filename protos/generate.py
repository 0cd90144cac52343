"""Write the generated protobuf modules, or check that the committed ones are in step.

`python -m protos.generate` writes ais_loader/wire/generated; `--check` compares and exits 1 on a difference. Commit
only modules generated with the version of grpcio-tools that setup.cfg pins: it decides the oldest protobuf runtime that
can import them. With another version, `--check` compares nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ais_loader.wire.generated"


def other_version() -> str:
    """Says which version of grpcio-tools is installed instead of the pinned one; "" if the pinned one is installed."""
    pinned = re.search(r"^ *grpcio-tools==([\d.]+)", (ROOT / "setup.cfg").read_text(), flags=re.MULTILINE)
    assert pinned is not None
    installed = importlib.metadata.version("grpcio-tools")
    if installed == pinned[1]:
        return ""
    return f"grpcio-tools {installed} is installed, and the committed modules are generated with {pinned[1]}"


def generate() -> dict[Path, bytes]:
    """Compile every .proto below protos/; returns the modules by their paths relative to the repository.

    protoc names a module after the folder of its .proto; a package called `protos` would be in the way of anybody's
    own, so the modules import each other from where they are installed.
    """
    from grpc_tools import protoc

    sources = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").glob("*.proto"))
    with tempfile.TemporaryDirectory() as output:
        options = [f"--{kind}={output}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        if protoc.main(["protoc", f"--proto_path={ROOT}", *options, *sources]) != 0:
            raise SystemExit("protoc failed")
        return {
            Path(*PACKAGE.split("."), path.name): _without_static_calls(_imported_from_package(path.read_bytes()))
            for path in sorted(Path(output).glob("protos/*_pb2*"))
        }


def _imported_from_package(module: bytes) -> bytes:
    return re.sub(rb"^from protos import ", f"from {PACKAGE} import ".encode(), module, flags=re.MULTILINE)


_STATIC_CALLS = re.compile(rb"\n\n # This class is part of an EXPERIMENTAL API\.\nclass .*?(?=\n\n\nclass |\Z)", re.S)


def _without_static_calls(module: bytes) -> bytes:
    """Leave out the classes that gRPC marks as experimental: half of each module of services. Nothing calls them."""
    return _STATIC_CALLS.sub(b"", module)


def stale_files() -> list[str]:
    """Names of committed modules that differ from what their .proto says now."""
    return [
        path.as_posix()
        for path, module in generate().items()
        if not (ROOT / path).exists() or (ROOT / path).read_bytes() != module
    ]


def write() -> list[Path]:
    """Write all modules; returns their paths, relative to the repository."""
    modules = generate()
    for path, module in modules.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_bytes(module)
    return list(modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed modules, write nothing")
    other = other_version()
    if parser.parse_args().check:
        if other:
            print(f"generated protobuf modules are not compared: {other}")
            return
        if stale := stale_files():
            sys.exit(f"out of step with their .proto, run `make protos`: {', '.join(stale)}")
        print("generated protobuf modules are in step")
    else:
        print("\n".join(map(str, write())))
        if other:
            print(f"do not commit these: {other}", file=sys.stderr)


if __name__ == "__main__":
    main()
