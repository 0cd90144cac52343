"""Write the generated protobuf modules, or check that the committed ones are in step.

`python -m protos.generate` writes them; `--check` compares and exits 1 on a difference. Needs grpcio-tools in the
version that setup.cfg pins: it decides the oldest protobuf runtime that can import the result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generate(output: Path) -> list[Path]:
    """Compile every .proto below protos/ into `output`; returns the paths written, relative to it."""
    from grpc_tools import protoc

    sources = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").glob("*.proto"))
    options = [f"--{kind}={output}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"--proto_path={ROOT}", *options, *sources]) != 0:
        raise SystemExit("protoc failed")
    return sorted(path.relative_to(output) for path in output.glob("protos/*_pb2*"))


def stale_files() -> list[str]:
    """Names of committed modules that differ from what their .proto says now."""
    with tempfile.TemporaryDirectory() as folder:
        written = generate(Path(folder))
        return [
            path.as_posix()
            for path in written
            if not (ROOT / path).exists() or (ROOT / path).read_bytes() != (Path(folder) / path).read_bytes()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed modules, write nothing")
    if parser.parse_args().check:
        if stale := stale_files():
            sys.exit(f"out of step with their .proto, run `make protos`: {', '.join(stale)}")
        print("generated protobuf modules are in step")
    else:
        print("\n".join(str(path) for path in generate(ROOT)))


if __name__ == "__main__":
    main()
