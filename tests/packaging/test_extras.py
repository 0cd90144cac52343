"""Without an optional package everything else works, and what needs the package says which extra brings it."""

from __future__ import annotations

import ast
import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
import zstandard

from ais_loader import connect
from ais_loader.extras import EXTRAS, MissingExtra, install_command, needs
from ais_loader.testing import throwaway_folder
from tests.packaging.packaging_kit import ROOT, run_without
from tests.tar_kit import packed_tar

REQUIREMENT = re.compile(r"[A-Za-z0-9_.-]+")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a store, where b/a is, and compressed shards that are in no store yet."""
    tar = packed_tar({"m": b"member" * 100})
    with throwaway_folder() as folder:
        with connect(folder / "store") as client:
            client.create_bucket("b").put("a", b"one")
        (folder / "s.tar.gz").write_bytes(packed_tar({"m": b"member" * 100}, "w:gz"))
        (folder / "s.tar.lz4").write_bytes(lz4.frame.compress(tar))
        (folder / "s.tar.zst").write_bytes(zstandard.compress(tar))
        yield folder


def assert_named(package: str, text: str) -> None:
    assert f"{package} is needed for " in text, text
    assert install_command(EXTRAS[package]) in text, text


# -- from Python: one process for each package, which tells of everything how it ended

CASES = """
import json, sys, pathlib
folder = pathlib.Path(sys.argv[1])
store = folder / "store"
ended = {}
for name, code in json.loads(sys.argv[2]).items():
    known = {"folder": folder, "store": store}
    try:
        exec(code, known)
        ended[name] = ["", repr(known.get("found"))]
    except Exception as error:
        ended[name] = [type(error).__name__, str(error)]
print(json.dumps(ended))
"""
PUBLIC_NAMES = """
import ais_loader
found = {}
of_torch = "BatchLoader", "Clip", "Clips", "Lines", "MapDataset", "MegatronTokens", "ParquetRows", "Records"
of_torch += "TokenWindows", "concat", "drop_placeholders"
for name in {*ais_loader.__all__, *of_torch}:
    try:
        getattr(ais_loader, name)
    except ModuleNotFoundError as error:
        found[name] = error.name
"""
STAR = "from ais_loader import *; found = connect('grpc://127.0.0.1:1').url"
DIR = "import ais_loader; found = {'BatchLoader', 'MapDataset', 'concat'} - {*dir(ais_loader)}"
CLIENT_OF_A_NODE = "import ais_loader; found = ais_loader.connect('grpc://127.0.0.1:1').url"
READ = "import ais_loader; found = ais_loader.connect(store, mode='r').get_batch(['ais://b/a'])"
PUT = (
    "import ais_loader; bucket = ais_loader.connect(folder / f'{NAME}.store').create_bucket('b'); "
    "bucket.put(NAME, folder / NAME)"
)
OF_PACKAGE = {
    "torch": {
        "MapDataset": "from ais_loader import MapDataset",
        "BatchLoader": "from ais_loader import BatchLoader",
        "its module": "import ais_loader.loading.batch_loader",
        "PackedBatch.torch": f"{READ}.packed().torch()",
        "PackedBatch.pin_memory": f"{READ}.packed().pin_memory()",
        "the speech example": "import examples.speech.train",
    },
    "rocksdict": {
        "connect": "import ais_loader; ais_loader.connect(folder / 'other')",
        "connect for reading": READ,
        "a dataset": "from ais_loader import MapDataset; MapDataset(store, ['ais://b/a'])[0]",
        "ais:// in fsspec": "import fsspec; fsspec.filesystem('ais', store=store).ls('b')",
        "a node": "import storage_node.server",
    },
    "prometheus_client": {},
    "indexed_gzip": {
        "a member": f"NAME = 's.tar.gz'; {PUT}; bucket.get(NAME, member='m')",
    },
    "lz4": {
        "a member": f"NAME = 's.tar.lz4'; {PUT}; bucket.get(NAME, member='m')",
        "a batch as an archive": f"{READ[:-1]}, archive='tar.lz4').write_to(folder / 'packed')",
    },
    "zstandard": {
        "a member": f"NAME = 's.tar.zst'; {PUT}; bucket.get(NAME, member='m')",
        "a batch as an archive": f"{READ[:-1]}, archive='tar.zst').write_to(folder / 'packed')",
    },
    "cryptography": {
        "a CA": (
            "from storage_node.security.identity.identity_folder import IdentityFolder; "
            "IdentityFolder(folder / 'ca').make()"
        ),
    },
    "jwt": {
        "a token": (
            "from storage_node.security.rights.keys import make_key, read_private_key\n"
            "from storage_node.security.rights.tokens import create_token\n"
            "make_key(folder / 'token.key')\n"
            "create_token(\n"
            "    read_private_key(folder / 'token.key'), tenant='t', scopes=['*:read'], lifetime_s=9, audience='a'\n"
            ")"
        ),
    },
    "obstore": {
        "a remote bucket": (
            "import ais_loader; "
            "ais_loader.connect(folder / 'of-remote').create_bucket('b', remote='http://127.0.0.1:1/').get('none')"
        ),
    },
    "fsspec": {"AISFileSystem": "from ais_loader.integrations.fsspec import AISFileSystem"},
    "lhotse": {"install": "from ais_loader.integrations.lhotse import install"},
    "webdataset": {
        "install": "from ais_loader.integrations.webdataset import install",
        "ShardSamples": "import ais_loader.integrations.webdataset.shard_samples",
    },
    "multistorageclient": {"AISBundle": "from ais_loader.integrations.msc import AISBundle"},
    "ray": {"read_ais": "from ais_loader.integrations.ray_data import read_ais"},
    "pyarrow": {"read_ais": "from ais_loader.integrations.ray_data import read_ais"},
    "matplotlib": {
        "the speech example": "import examples.speech.train",
        "a picture": "from benchmarks.kit.plots import new_figure; new_figure(1)",
    },
    "braceexpand": {
        "a manifest": "from ais_loader.integrations.nemo.manifests import expanded; expanded(['a'])",
    },
    "soundfile": {
        "the speech example": "import examples.speech.train",
        "decoders.audio": f"{READ}; from ais_loader import decoders; [decoders.audio(item) for item in found]",
    },
    "av": {
        "Clips": f"{READ}; ais_loader.Clips(store, ['ais://b/a'])",
        "LeRobotDataset": "import ais_loader.integrations.lerobot",
    },
    "torchcodec": {},
    "hdrh": {"a measurement": "from ais_loader.bench.tally import BenchTally; BenchTally()"},
    "PIL": {"decoders.image": f"{READ}; from ais_loader import decoders; [decoders.image(item) for item in found]"},
}
SERVER = (
    "from storage_node.etl.webserver import FastAPIServer, FlaskServer\n"
    "class Upper(KIND):\n"
    "    def transform(self, data, path, args): return data.upper()\n"
    "Upper()"
)
OF_PACKAGE |= {
    "aiohttp": {
        "the HTTP side of a node": (
            "import asyncio; from storage_node.etl.transform_http import TransformHttp\n"
            "async def started(): await TransformHttp().start()\n"
            "asyncio.run(started())"
        ),
        "a server's stage": (
            "import asyncio; from storage_node.etl.servers.http_channel import HttpChannel\n"
            "async def made(): HttpChannel('http://127.0.0.1:1', None)\n"
            "asyncio.run(made())"
        ),
    },
    "botocore": {"signatures": "import ais_loader.integrations.gateway.signature"},
    "msgpack": {"a list": "import ais_loader.integrations.gateway.aistore.listing"},
    "re2": {
        "an expression": "from ais_loader.integrations.gateway.aistore import archive_reads as a; a._expression('a')"
    },
    "awscrt": {"a checksum": "from ais_loader.integrations.gateway.checksums import Crc; Crc('crc64nvme')"},
    "cloudpickle": {},
    "pyeclib": {},
    "packaging": {},
    "flask": {"FlaskServer": SERVER.replace("KIND", "FlaskServer")},
    **{
        package: {"FastAPIServer": SERVER.replace("KIND", "FastAPIServer")}
        for package in ("fastapi", "uvicorn", "websockets")
    },
}
RAISED = {
    "a server's stage": "TransformRefused",
    "a member": "LibraryMissing",
    "a batch as an archive": "InvalidRequest",
    "a remote bucket": "Unsupported",
}


QUICK = ("torch", "rocksdict", "ray", "lz4")
"""Each takes an interpreter of its own; the other packages are slow ones."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "package", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXTRAS]
)
@pytest.mark.sampled(1)
def test_without_a_package_what_needs_it_names_its_extra_and_all_else_works(package: str, folder: Path) -> None:
    everything = {
        "public names": PUBLIC_NAMES,
        "a client": CLIENT_OF_A_NODE,
        "import *": STAR,
        "dir": DIR,
        "reading": f"{READ}.packed()[0]",
    }
    cases = OF_PACKAGE[package] | everything
    # Importing torch takes longer than all the rest: it is there where a case needs it.
    packages = [package] if package in ("rocksdict", "av") else [package, "torch"]
    told = run_without(packages, CASES, [str(folder), json.dumps(cases)])
    assert all(line.startswith("made a new store at ") for line in told.stderr.splitlines()), told.stderr
    ended = json.loads(told.stdout)
    for case in OF_PACKAGE[package]:
        kind, text = ended[case]
        assert kind == RAISED.get(case, "MissingExtra"), f"{case}: {kind} {text}"
        assert_named(package, text)
    ranges = ["Clip", "Clips", "Lines", "MegatronTokens", "ParquetRows", "Records", "TokenWindows"]
    needing = ["BatchLoader", "MapDataset", *ranges, "concat", "drop_placeholders"] if "torch" in packages else []
    assert ast.literal_eval(ended["public names"][1]) == dict.fromkeys(needing, "torch")
    assert ended["import *"] == ["", "'grpc://127.0.0.1:1'"]
    assert ended["dir"] == ["", "set()"]
    assert ended["a client"] == ["", "'grpc://127.0.0.1:1'"]
    if package != "rocksdict":
        assert ended["reading"] == ["", repr(np.frombuffer(b"one", np.uint8))]


# -- from the command line

COMMANDS = {
    "ls": ("rocksdict", 1, ["ls", "--store", "FOLDER/store"]),
    "serve": ("rocksdict", 1, ["serve", "--drive", "FOLDER/store", "--port", "0"]),
    "doctor": ("rocksdict", 1, ["doctor", "FOLDER/store"]),
    "serve with metrics": (
        "prometheus_client", 2, ["serve", "--drive", "FOLDER/store", "--port", "0", "--metrics-port", "0"],
    ),
    "cluster up": ("ray", 1, ["cluster", "up", "--root", "FOLDER/cluster"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.sampled(2)
def test_a_command_that_needs_a_package_names_its_extra(case: str, folder: Path) -> None:
    package, code, words = COMMANDS[case]
    told = run_without(
        [package], "from ais_loader.cli import main; main()", [word.replace("FOLDER", str(folder)) for word in words]
    )
    assert (told.returncode, told.stdout) == (code, ""), told
    message = told.stderr.splitlines()[-1]
    assert message.startswith("Error: ") and "Traceback" not in told.stderr, told.stderr
    assert_named(package, message)


# -- the mechanism


def test_a_package_that_is_broken_is_told_with_its_reason() -> None:
    reason = r"torch is needed for this .* \(libcudart.so: cannot open\)"
    with pytest.raises(MissingExtra, match=reason) as told, needs("torch", "this"):
        raise ImportError("libcudart.so: cannot open")
    assert told.value.name == "torch"
    with pytest.raises(ZeroDivisionError), needs("torch", "this"):
        _ = 1 / 0


def test_every_package_of_an_extra_is_known_by_it() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {
        extra: {found[0].lower().replace("-", "_") for line in lines.splitlines() if (found := REQUIREMENT.match(line))}
        for extra, lines in setup["options.extras_require"].items()
    }
    for named in extras.values():  # imported by another name than it is installed by
        named |= {"PIL"} if "pillow" in named else set()
        named |= {"hdrh"} if "hdrhistogram" in named else set()
        named |= {"jwt"} if "pyjwt" in named else set()
        named |= {"re2"} if "google_re2" in named else set()
        named |= {"multistorageclient"} if "multi_storage_client" in named else set()
    for package, wanted in EXTRAS.items():
        assert any(package in extras[extra] for extra in wanted.split(",")), package
    of_users = {package for extra, packages in extras.items() if extra not in ("dev", "test") for package in packages}
    imported_otherwise = {
        "ais_loader",
        "pillow",
        "hdrhistogram",
        "pyjwt",
        "multi_storage_client",
        "urllib3",
        "google_re2",
    }
    assert of_users - imported_otherwise == set(EXTRAS)


def _guards(node: ast.AST) -> set[str]:
    """The packages for which a `with needs(…)` block stands."""
    return {
        str(item.context_expr.args[0].value)
        for item in (node.items if isinstance(node, ast.With) else [])
        if isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func) == "needs"
        and isinstance(item.context_expr.args[0], ast.Constant)
    }


def _guards_of_package(path: Path) -> frozenset[str]:
    """Those of its `__init__`, which is imported before any of its modules."""
    package = path.with_name("__init__.py")
    if path == package or not package.exists():
        return frozenset()
    return frozenset().union(*map(_guards, ast.parse(package.read_text()).body))


def _optional_imports(node: ast.AST, guarded: frozenset[str] = frozenset(), inside: bool = False) -> Iterator[str]:
    """Packages of extras that are imported outside of `with needs(…)`, and whether it is in a function."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    for name in names:
        package = name.partition(".")[0]
        if package in EXTRAS and package not in guarded:
            yield f"{package} in a function" if inside else package
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        yield from _optional_imports(child, guarded | _guards(node), inside)


def record(folder: Path, **recorded: object) -> None:
    (folder / "direct_url.json").write_text(json.dumps(recorded))


def test_the_command_that_installs_an_extra_names_the_checkout_or_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path / "checkout"), str(tmp_path / "site")])
    (left := tmp_path / "checkout" / "ais_loader.egg-info").mkdir(parents=True)
    (left / "PKG-INFO").write_text("Name: ais-loader\n")
    (installed := tmp_path / "site" / "ais_loader-0.1.0.dist-info").mkdir(parents=True)
    (installed / "METADATA").write_text("Name: ais-loader\n")
    assert install_command("store,ray") == "pip install 'ais-loader[store,ray]'"  # from an index
    tree = tmp_path / "my trees"
    record(installed, url=tree.as_uri(), dir_info={"editable": True})
    assert install_command("store") == "pip install 'ais-loader[store]'"  # the tree is gone
    tree.mkdir()
    assert install_command("store") == f"pip install -e '{tree}[store]'"
    record(installed, url=tree.as_uri(), dir_info={})
    assert install_command("store") == f"pip install '{tree}[store]'"
    (wheel := tmp_path / "a.whl").write_bytes(b"")
    record(installed, url=wheel.as_uri(), archive_info={})
    assert install_command("store") == f"pip install '{wheel}[store]'"


@pytest.mark.slow
def test_no_optional_package_is_imported_but_where_its_absence_is_told() -> None:
    behind_a_check = {  # in functions that nobody gets to without it
        "ais_loader/training/parquet_rows.py": {"pyarrow in a function"},
        "storage_node/metrics/exporter.py": {"prometheus_client in a function"},
        "storage_node/security/identity/authority.py": {"cryptography in a function"},
        "storage_node/security/identity/credentials.py": {"cryptography in a function"},
        "storage_node/ops/ray_actors.py": {"ray in a function"},
        "storage_node/ops/ray_environments.py": {"ray in a function"},
        "storage_node/etl/transform_http.py": {"aiohttp in a function"},
        "storage_node/etl/worker/program.py": {"cloudpickle in a function", "packaging in a function"},
        "storage_node/etl/servers/http_channel.py": {"aiohttp in a function"},
        "storage_node/etl/servers/websocket_channel.py": {"aiohttp in a function"},
    }
    found = {
        str(path.relative_to(ROOT)): set(_optional_imports(ast.parse(path.read_text()), _guards_of_package(path)))
        for folder in ("ais_loader", "storage_node", "integrations")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert {name: packages for name, packages in found.items() if packages} == behind_a_check
