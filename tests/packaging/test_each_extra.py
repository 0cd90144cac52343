"""Each extra alone, in an environment that has nothing else: what it promises can be imported and works.

The packages come from uv's cache, and from the index where the cache lacks them.
"""

from __future__ import annotations

import configparser
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess, throwaway_folder
from tests.data import IMAGES, utterances
from tests.packaging.packaging_kit import ROOT, install, run, uv
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

UTTERANCE = utterances()[0]

USES = {
    "": """
batch = ais_loader.connect(url).get_batch(["ais://b/s.tar/1.txt", "ais://b/s.tar/0.txt"])
assert [item.tobytes() for item in batch] == [b"one", b"zero"]
""",
    "store": """
with ais_loader.connect("embedded") as client:
    client.create_bucket("b").put("a", b"bytes")
    assert [item.tobytes() for item in client.get_batch(["ais://b/a"])] == [b"bytes"]
from ais_loader.testing import NodeProcess
with NodeProcess("drive", metrics=True) as node:
    assert node.numbers() and list(ais_loader.connect(node.url).buckets()) == []
""",
    "archives": """
from storage_node.store.archives.archive import index_shard
from storage_node.store.archives.source import FdSource
import gzip, lz4.frame, tempfile, zstandard
client = ais_loader.connect(url)
tar = client.bucket("b").get("s.tar")
for kind, pack in (("gz", gzip.compress), ("lz4", lz4.frame.compress), ("zst", zstandard.compress)):
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(pack(tar))
        index_shard(FdSource(file.fileno()), f"s.tar.{kind}")
for kind in ("lz4", "zst"):
    client.get_batch(["ais://b/s.tar"], archive=f"tar.{kind}").write_to(f"batch.tar.{kind}")
""",
    "store,coding": """
from storage_node.cluster.coding.codec import codec_of
parity = [bytearray(3)]
codec_of(2, 1).encode([b"one", b"two"], parity)
assert codec_of(2, 1).decode({1: b"two", 2: parity[0]}, [0]) == [b"one"]
""",
    "torch": """
from torch.utils.data import DataLoader
dataset = ais_loader.MapDataset(url, ["ais://b/s.tar/0.txt", "ais://b/s.tar/1.txt"])
(batch,) = DataLoader(dataset, batch_size=2, collate_fn=list)
assert [bytes(data) for data in batch] == [b"zero", b"one"]
""",
    "store,remote": """
import functools, http.server, pathlib, threading
pathlib.Path("web").mkdir()
pathlib.Path("web", "a.txt").write_bytes(b"from afar")
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="web")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with ais_loader.connect("cache") as client:
    client.create_bucket("web", remote=f"http://127.0.0.1:{server.server_port}")
    assert [item.tobytes() for item in client.get_batch(["ais://web/a.txt"])] == [b"from afar"]
server.shutdown()
""",
    "store,secure": """
import pathlib, time
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.security.rights.keys import make_key, read_private_key, read_public_keys
from storage_node.security.rights.tokens import create_token, verify_token
folder = IdentityFolder(pathlib.Path("identity"))
folder.make()
folder.operator_files().read()
public = make_key(pathlib.Path("token.key"))
made = create_token(
    read_private_key(pathlib.Path("token.key")), tenant="t", scopes=["b:read"], lifetime_s=60, audience="a"
)[0]
assert verify_token(made, read_public_keys(public), audience="a", now_s=time.time()).tenant == "t"
""",
    "store,gateway": """
import json, pathlib, subprocess, urllib.request
keys = pathlib.Path("keys.json")
keys.touch(0o600)
keys.write_text(json.dumps([{"access_key": "k", "secret_key": "s"}]))
command = [BIN / "ais-loader", "gateway", url, "--keys", keys, "--port", "0", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
    address = json.loads(serving.stdout.readline())["url"]
    import botocore.session
    s3 = botocore.session.get_session().create_client(
        "s3", "us-east-1", endpoint_url=address, aws_access_key_id="k", aws_secret_access_key="s"
    )
    assert s3.get_object(Bucket="b", Key="0.txt")["Body"].read() == b"zero"
    serving.terminate()
assert serving.returncode == 0
""",
    "fsspec": """
import fsspec
with fsspec.open("ais://b/0.txt", store=url) as file:
    assert file.read() == b"zero"
""",
    "lhotse": """
from ais_loader.integrations.lhotse import AISBatchLoader, install
install(url)
from lhotse import CutSet, MonoCut, Recording
from lhotse.audio import AudioSource
source = AudioSource("url", [0], "ais://b/speech.flac")
recording = Recording("r", [source], 8000, round(DURATION_S * 8000), DURATION_S)
cuts = CutSet.from_cuts([MonoCut("c", 0, DURATION_S, 0, recording=recording)])
(cut,) = AISBatchLoader()(cuts)
assert cut.recording.sources[0].type == "memory" and len(cut.recording.sources[0].source) > 1000
""",
    "webdataset": """
import webdataset
from ais_loader.integrations.webdataset import ShardSamples, install
install(url)
assert [sample["txt"] for sample in webdataset.WebDataset("ais://b/s.tar", shardshuffle=False)] == [b"zero", b"one"]
assert len(ShardSamples(["ais://b/s.tar"], store=url)) == 2
""",
    "msc": """
import multistorageclient
options = {"base_path": "b", "store": url}
bundle = {"type": "ais_loader.integrations.msc.AISBundle", "options": options}
config = multistorageclient.StorageClientConfig.from_dict({"profiles": {"p": {"provider_bundle": bundle}}}, profile="p")
assert multistorageclient.StorageClient(config).read("0.txt") == b"zero"
""",
    "nemo": """
import json, subprocess
line = {"audio_filepath": "ais://b/speech.flac", "duration": DURATION_S, "sampling_rate": 8000, "text": "a"}
open("manifest.json", "w").write(json.dumps(line))
check = [sys.executable, "-m", "ais_loader.integrations.nemo", "check", "manifest.json", "--store", url]
subprocess.run(check, check=True)
""",
    "ray": """
import subprocess
import ray
up = subprocess.run([BIN / "ais-loader", "cluster", "up", "--root", "cluster"], capture_output=True, text=True)
assert up.returncode == 1 and "rocksdict is needed" in up.stderr, up
""",
    "store,ray": """
import subprocess
command = [BIN / "ais-loader", "cluster"]
try:
    subprocess.run([*command, "up", "--root", "cluster", "--nodes", "1"], check=True)
    subprocess.run([*command, "status", "--root", "cluster"], check=True)
finally:
    subprocess.run([*command, "down", "--root", "cluster"], check=True)
""",
    "ray-data": """
import ray
from ais_loader.integrations.ray_data import read_ais
ray.init(num_cpus=1, include_dashboard=False)
assert read_ais(["ais://b/s.tar/1.txt"], store=url).take_all()[0]["bytes"] == b"one"
ray.shutdown()
""",
    "images": """
from ais_loader import decoders
(item,) = ais_loader.connect(url).get_batch(["ais://b/picture.jpg"])
assert decoders.image(item).getbands() == ("R", "G", "B")
""",
    "audio": """
from ais_loader import decoders
(item,) = ais_loader.connect(url).get_batch(["ais://b/speech.flac"])
samples, rate = decoders.audio(item)
assert rate == 8000 and samples.size == round(DURATION_S * 8000)
""",
    "torch,video": """
sound, = ais_loader.Clips(url, ["ais://b/speech.flac#t=0,0.5"])[:]
assert sound.data.shape == (1, 4000) and sound.rate_hz == 8000
""",
    "torch,parquet": """
import io, pyarrow, pyarrow.parquet
file = io.BytesIO()
pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3]}), file)
ais_loader.connect(url).bucket("b").put("n.parquet", file.getvalue())
assert [row["n"] for row in ais_loader.ParquetRows(url, ["ais://b/n.parquet"])[:]] == [1, 2, 3]
""",
    "torch,lerobot": """
import av, pyarrow.parquet
from ais_loader.integrations.lerobot import LeRobotDataset
try:
    LeRobotDataset(url, "ais://b/nothing")
except ais_loader.errors.LoaderError as error:
    assert "info.json" in str(error), error
""",
    "torchcodec": """
import importlib.metadata
assert importlib.metadata.version("torchcodec")  # to import it takes FFmpeg's libraries
""",
    "ui": """
import signal, subprocess, urllib.request
with subprocess.Popen([BIN / "ais-loader", "ui", "--store", url], stdout=subprocess.PIPE, text=True) as page:
    address = page.stdout.readline().strip()
    assert b"<html" in urllib.request.urlopen(address, timeout=180).read()
    page.send_signal(signal.SIGINT)
""",
    "etl": """
import cloudpickle, packaging.requirements, urllib.request
from storage_node.etl.transform_http import TransformHttp
from storage_node.etl.webserver import FastAPIServer, FlaskServer
for kind in (FastAPIServer, FlaskServer):
    class Upper(kind):
        def transform(self, data, path, args):
            return data.upper()
    with Upper().running() as address:
        request = urllib.request.Request(f"{address}/transform", b"text", {"Ais-Etl-Path": "b/a"}, method="PUT")
        assert urllib.request.urlopen(request, timeout=180).read() == b"TEXT"
""",
    "bench": """
import subprocess
sizes = ["--objects", "20", "--duration", "0.5", "--warm-up", "0.1", "--clean"]
subprocess.run([BIN / "ais-loader", "bench", "get", "--store", url, *sizes], check=True)
""",
    "demo": """
import matplotlib, soundfile, torch
matplotlib.use("Agg")
from matplotlib import pyplot
with ais_loader.connect("embedded") as client:
    client.create_bucket("b").put("a", b"bytes")
(batch,) = torch.utils.data.DataLoader(ais_loader.MapDataset("embedded", "ais://b/"), batch_size=1, collate_fn=list)
pyplot.plot([1, 2])
pyplot.savefig("curve.png")
""",
    "test": """
import pathlib, subprocess
test = "import hypothesis, psutil, soundfile, ais_loader.testing\\ndef test_it(): pass\\n"
pathlib.Path("test_it.py").write_text(test)
subprocess.run([BIN / "pytest", "-n", "1", "--timeout", "60", "test_it.py"], check=True)
""",
    "dev": """
import subprocess
import auditwheel.main, av, grpc_tools.protoc, moto, myst_parser, nbclient, pandas, pyarrow, setuptools
import twine, webdataset
for tool in ("mypy", "ruff", "uv", "ais-loader"):
    subprocess.run([BIN / tool, "--version"], check=True)
""",
}
"""One use of each extra, and of none. `url` is a node's."""
LONG = ("store,ray", "ray-data", "torchcodec", "dev")
"""Starting Ray takes half a minute; torchcodec brings libraries of its own; `dev` is what all tests run with."""
BEGINNING = f"""
import pathlib, sys
import ais_loader
url, BIN, DURATION_S = sys.argv[1], pathlib.Path(sys.executable).parent, {UTTERANCE.duration_s}
assert pathlib.Path(ais_loader.__file__).is_relative_to(sys.prefix), ais_loader.__file__
if __name__ == "__main__":
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A node with a picture, a recording and a shard in the bucket b."""
    with throwaway_folder() as folder, NodeProcess(folder / "drive") as node:
        with connect(node.url) as client:
            bucket = client.create_bucket("b")
            bucket.put("picture.jpg", IMAGES[0])
            bucket.put("speech.flac", UTTERANCE.path)
            bucket.put("0.txt", b"zero")
            bucket.put("s.tar", packed_tar({"0.txt": b"zero", "1.txt": b"one"}))
        yield node.url


def test_every_extra_has_a_use() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert set(setup["options.extras_require"]) == {extra for use in USES for extra in use.split(",") if extra}


@pytest.mark.sampled(4)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "extra",
    [pytest.param(extra, marks=pytest.mark.exhaustive if extra in LONG else ()) for extra in USES],
    ids=lambda extra: extra or "none",
)
def test_an_extra_alone_brings_what_it_promises(extra: str, wheel: Path, url: str, tmp_path: Path) -> None:
    # On a disk: uv links the files of its cache there, gigabytes with torch, and would copy them into memory.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="extra-", dir=ROOT / "build", ignore_cleanup_errors=True) as folder:
        python = Path(folder) / "bin" / "python"
        run(uv(), "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder, cwd=tmp_path)
        install(python, f"ais-loader[{extra}] @ {wheel.as_uri()}")
        (tmp_path / "use.py").write_text(BEGINNING + "\n".join(f"    {line}" for line in USES[extra].splitlines()))
        (empty := tmp_path / "empty").mkdir()
        print(run(python, "-I", tmp_path / "use.py", url, cwd=empty))
