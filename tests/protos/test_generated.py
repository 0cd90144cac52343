"""The committed protobuf modules are what their .proto files say, and import with the oldest runtime we support."""

from __future__ import annotations

import re

import pytest

from protos import generate


@pytest.mark.skipif(bool(generate.other_version()), reason=generate.other_version())
def test_the_committed_modules_are_in_step_with_their_proto_files() -> None:
    assert generate.stale_files() == []


def test_a_module_that_is_out_of_step_is_found(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    root = Path(str(tmp_path))
    (root / "protos").mkdir()
    for source in (generate.ROOT / "protos").glob("*.proto"):
        (root / "protos" / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(generate, "ROOT", root)
    written = generate.write()
    assert generate.stale_files() == []
    changed = root / written[0]
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert generate.stale_files() == [written[0].as_posix()]


def test_another_version_of_the_generator_compares_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.85.1")
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    monkeypatch.setattr(generate, "stale_files", lambda: ["stale"])
    generate.main()
    assert "not compared: grpcio-tools 1.85.1 is installed" in capsys.readouterr().out


def test_the_modules_ask_for_protobuf_6_31_and_no_later() -> None:
    for path in (generate.ROOT / "ais_loader/wire/generated").glob("*_pb2.py"):
        found = re.search(r"ValidateProtobufRuntimeVersion\(\s*[\w.]+,\s*(\d+),\s*(\d+),", path.read_text())
        assert found is not None, path
        assert (int(found[1]), int(found[2])) == (6, 31)
