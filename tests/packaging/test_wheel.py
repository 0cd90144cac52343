"""The wheel as somebody installs it: two names, beside whatever folders a training script has next to it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import throwaway_folder
from tests.docs.page_kit import run_page
from tests.packaging.packaging_kit import HIDING, ROOT, environment_of, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(wheel: Path) -> Iterator[Path]:
    with throwaway_folder() as folder:
        yield environment_of(wheel, folder / "venv")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of somebody's own, with packages whose names other people use too."""
    for name in ("protos", "integrations", "tests", "benchmarks", "examples"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "mine.py").write_text(f"here = {name!r}\n")
    return tmp_path


def script(python: Path, project: Path, text: str) -> str:
    (project / "train.py").write_text(text)
    return run(python, "train.py", cwd=project)


def test_a_wheel_has_two_names_and_all_their_modules(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ais_loader", "storage_node"}
    assert len(tops) == 3
    folders = {"ais_loader": "ais_loader", "storage_node": "storage_node", "integrations": "ais_loader/integrations"}
    wanted = {
        f"{installed}/{path.relative_to(ROOT / folder)}"
        for folder, installed in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".typed")
        or path.name == "FORMAT.md"
        or path.parent.name in ("dashboards", "page")
    }
    assert wanted - names == set()
    assert {name for name in names if name.endswith(".py")} - wanted == set()


def test_the_page_of_an_index_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        page = archive.read(name).decode().split("\n\n", 1)[1]
    assert page.lstrip().startswith("# ais-loader")
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert links and not [link for link in links if not link.startswith("https://")]
    assert "<!--" not in page and "![" not in page and "`docs/tutorial.md`" in page


BESIDE = """
import subprocess, sys
from pathlib import Path

import protos.mine, integrations.mine, tests.mine, benchmarks.mine, examples.mine
import ais_loader, storage_node

for package in (ais_loader, storage_node):
    assert Path(package.__file__).is_relative_to(sys.prefix), package.__file__

import fsspec
from ais_loader.integrations.fsspec import AISFileSystem
from ais_loader.testing import NodeProcess

with ais_loader.connect("embedded") as client:
    client.create_bucket("b").put("a", b"embedded")
    assert [item.tobytes() for item in client.get_batch(["ais://b/a"])] == [b"embedded"]

with NodeProcess("drive") as node, ais_loader.connect(node.url) as client:
    client.create_bucket("b").put("a", b"served")
    assert [item.tobytes() for item in client.get_batch(["ais://b/a"])] == [b"served"]
    with fsspec.open("ais://b/a", store=node.url) as file:
        assert file.read() == b"served"
    assert isinstance(fsspec.filesystem("ais", store=node.url), AISFileSystem)

with fsspec.open("ais://b/new", "wb", store="embedded") as file:
    file.write(b"written")
with fsspec.open("ais://b/new", store="embedded") as file:
    assert file.read() == b"written"
fsspec.filesystem("ais", store="embedded").release_lock()

command = Path(sys.executable).with_name("ais-loader")
listed = subprocess.run([command, "ls", "--store", "embedded", "b/"], capture_output=True, text=True, check=True)
print(listed.stdout, end="")

print([m.here for m in (protos.mine, integrations.mine)])
"""


def test_a_script_beside_folders_of_common_names_stores_and_reads_in_every_way(python: Path, project: Path) -> None:
    listed, folders = script(python, project, BESIDE).rstrip("\n").rsplit("\n", 1)
    assert [line.split()[-1] for line in listed.splitlines()] == ["b/a", "b/new"]
    assert folders == "['protos', 'integrations']"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_a_page_runs_where_only_the_wheel_is_installed(python: Path, tmp_path: Path, page: str) -> None:
    script(python, tmp_path, "import sys, ais_loader; assert ais_loader.__file__.startswith(sys.prefix)")
    run_page(ROOT / page, tmp_path, python=str(python))


NAMES = """
import importlib, sys
from pathlib import Path

hidden.add("torch")
import ais_loader
from ais_loader.extras import EXTRAS, install_command

assert Path(ais_loader.__file__).is_relative_to(sys.prefix), ais_loader.__file__
RANGES = ["Lines", "MegatronTokens", "ParquetRows", "Records", "TokenWindows"]
DATASETS = ["BatchLoader", "Clip", "Clips", "MapDataset", *RANGES, "concat", "drop_placeholders"]
# torch takes longest to import, and only once: it is missing first.
for package in sorted(EXTRAS, key=lambda package: package != "torch"):
    hidden.clear()
    hidden.add(package)
    for module in [name for name in sys.modules if name.partition(".")[0] in ("ais_loader", "storage_node", package)]:
        if not module.startswith("ais_loader.wire.generated"):  # protobuf knows these once for all
            del sys.modules[module]
    ais_loader = importlib.import_module("ais_loader")
    told = {}
    # Without torch its classes are not among what "import *" takes, and named all the same.
    for name in sorted({*ais_loader.__all__, *DATASETS, "integrations.fsspec.AISFileSystem"}):
        module, _, last = f"ais_loader.{name}".rpartition(".")
        try:
            getattr(importlib.import_module(module), last)
        except ImportError as error:
            told[name] = str(error)
    wanted = {
        "torch": DATASETS,
        "fsspec": ["integrations.fsspec.AISFileSystem"],
    }.get(package, [])
    assert sorted(told) == sorted(wanted), (package, told)
    assert all(install_command(EXTRAS[package]) in text for text in told.values()), told
    print(package)
"""


def test_every_public_name_is_there_or_names_its_extra_whatever_is_missing(python: Path, project: Path) -> None:
    from ais_loader.extras import EXTRAS

    assert set(script(python, project, HIDING + NAMES).split()) == set(EXTRAS)
