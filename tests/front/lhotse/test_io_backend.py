"""`ais://` wherever Lhotse opens a path: manifests, shards, audio and arrays, read, written and resumed."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording, SupervisionSegment, serialization
from lhotse.audio import AudioSource
from lhotse.cut import MonoCut
from lhotse.dataset.input_strategies import AudioSamples
from lhotse.features.io import get_reader
from lhotse.serialization import open_best

import ais_loader
from ais_loader import Bucket, Client
from ais_loader.integrations.lhotse.io_backend import AISIOBackend, ObjectMissing, install_io_backend
from ais_loader.testing import NodeProcess, seeded_bytes, throwaway_folder
from tests.tar_kit import packed_tar

SAMPLES = np.arange(8000, dtype=np.int16)
STRANGE = "a#b?c%20 d.jsonl"


def wav(samples: np.ndarray = SAMPLES) -> bytes:
    packed = io.BytesIO()
    soundfile.write(packed, samples, 8000, format="WAV", subtype="PCM_16")
    return packed.getvalue()


def npy(array: np.ndarray) -> bytes:
    packed = io.BytesIO()
    np.save(packed, array)
    return packed.getvalue()


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "drive") as node:
                yield node.url


@pytest.fixture(autouse=True)
def installed(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIS_LOADER_URL", url)
    default, current = serialization.get_default_io_backend(), serialization.get_current_io_backend()
    backends = list(default.backends)
    install_io_backend()
    yield
    default.backends = backends
    serialization.set_current_io_backend(current)


@pytest.fixture
def bucket(url: str) -> Iterator[Bucket]:
    with ais_loader.connect(url) as client:
        made = client.create_bucket("b", exist_ok=True)
        made.put("a.bin", seeded_bytes(300_000, seed=1))
        made.put("shard.tar", packed_tar({"sub/a.wav": wav(), "lines.jsonl.gz": gzip.compress(b'{"a": 1}\n')}))
        made.put(STRANGE, b'{"id": "strange"}\n')
        yield made


def stored(client: Client, name: str) -> bytes:
    return client.bucket("b").get(name)


def test_objects_are_read_as_seekable_files(bucket: Bucket) -> None:
    with open_best("ais://b/a.bin", "rb") as file:
        assert file.seek(-5, io.SEEK_END) == 299_995
        tail = file.read()
        file.seek(100_000)
        assert file.read(10) == seeded_bytes(300_000, seed=1)[100_000:100_010]
    assert tail == seeded_bytes(300_000, seed=1)[-5:]


def test_a_path_means_the_url_that_pathlib_made_shorter(bucket: Bucket) -> None:
    with open_best(Path("ais://b/a.bin"), "rb") as file:
        assert file.read() == seeded_bytes(300_000, seed=1)


def test_members_are_read_where_lhotse_would_look_on_local_disk(bucket: Bucket) -> None:
    with open_best("ais://b/shard.tar/sub/a.wav", "rb") as file:
        file.seek(44)
        assert file.read(4) == wav()[44:48]
        file.seek(0)
        assert file.read() == wav()
    with open_best("ais://b/shard.tar/lines.jsonl.gz") as file:
        assert [json.loads(line) for line in file] == [{"a": 1}]


def test_a_member_too_large_for_a_batch_is_read_in_ranges(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object, **__: object) -> object:
        raise ais_loader.errors.ItemTooLarge("too large")

    backend = AISIOBackend()
    monkeypatch.setattr(backend.store.reader(), "get_batch", too_large)
    opened = backend.open("ais://b/shard.tar/sub/a.wav", "rb")
    monkeypatch.undo()
    with opened as file:
        file.seek(-2, io.SEEK_END)
        assert file.read() == wav()[-2:]
        file.seek(0)
        assert file.read() == wav()


def test_an_archive_itself_is_read_as_an_object(bucket: Bucket) -> None:
    with open_best("ais://b/shard.tar", "rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        assert archive.next().name == "sub/a.wav"


@pytest.mark.parametrize("name", ["cuts.jsonl", "cuts.jsonl.gz", "a#b?c%20 d.jsonl.gz", "x.target.jsonl"])
def test_manifests_are_written_and_read_back(bucket: Bucket, name: str) -> None:
    cuts = CutSet.from_cuts(MonoCut(f"ü-{at}", 0, 1, 0) for at in range(3))
    cuts.to_file(f"ais://b/{name}")
    data = stored(bucket.client, name)
    lines = gzip.decompress(data) if name.endswith(".gz") else data
    assert [json.loads(line)["id"] for line in lines.splitlines()] == ["ü-0", "ü-1", "ü-2"]
    assert list(CutSet.from_file(f"ais://b/{name}")) == list(cuts)
    assert list(CutSet.from_jsonl_lazy(f"ais://b/{name}")) == list(cuts)


def test_equal_manifests_are_equal_objects(bucket: Bucket) -> None:
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        with open_best(f"ais://b/{name}", "w") as file:
            file.write("line\n" * 1000)
    assert stored(bucket.client, "one.jsonl.gz") == stored(bucket.client, "two.jsonl.gz")


@pytest.mark.parametrize(("name", "mode"), [("w.txt", "w"), ("w.bin", "wb"), ("w.txt.gz", "wt"), ("w.bin.gz", "wb")])
def test_what_fails_or_is_dropped_while_it_is_written_stores_nothing(bucket: Bucket, name: str, mode: str) -> None:
    data: str | bytes = b"bytes" * 50_000 if "b" in mode else "words" * 50_000
    with pytest.raises(ZeroDivisionError), open_best(f"ais://b/{name}", mode) as file:
        file.write(data)
        1 // 0  # noqa: B018 - it raises
    dropped = open_best(f"ais://b/{name}", mode)
    dropped.write(data)
    del dropped
    with pytest.raises(ais_loader.errors.ObjectNotFound):
        bucket.head(name)
    with open_best(f"ais://b/{name}", mode) as file:
        file.write(data)
    with open_best(f"ais://b/{name}", mode.replace("w", "r")) as file:
        assert file.read() == data


def test_what_the_drive_did_not_take_is_not_stored(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: bytes) -> int:
            if self.tell() > 100:
                raise OSError(28, "No space left on device")
            return super().write(data)

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.SpooledTemporaryFile", lambda *_: Full())
        file = open_best("ais://b/full.txt.gz", "w")
    with pytest.raises(OSError, match="No space left"), file:
        for at in range(100_000):
            file.write(f"{at}\n")
    with pytest.raises(ais_loader.errors.ObjectNotFound):
        bucket.head("full.txt.gz")


def test_a_new_object_is_not_written_over_another(bucket: Bucket) -> None:
    with open_best("ais://b/new.txt", "x") as file:
        file.write("first")
    with pytest.raises(FileExistsError):
        AISIOBackend().open("ais://b/new.txt", "x")
    assert stored(bucket.client, "new.txt") == b"first"


@pytest.mark.parametrize("mode", ["a", "r+", "rw", "btr", ""])
def test_other_modes_say_which_there_are(bucket: Bucket, mode: str) -> None:
    with pytest.raises((io.UnsupportedOperation, ValueError), match="'r', 'w' or 'x'"):
        AISIOBackend().open("ais://b/a.bin", mode)


def test_a_member_is_not_written(bucket: Bucket) -> None:
    with pytest.raises(io.UnsupportedOperation, match="write the archive"):
        AISIOBackend().open("ais://b/shard.tar/new", "wb")


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("ais://b/nothing.wav", "nothing.wav"),
        ("ais://b/shard.tar/nothing.wav", "nothing.wav"),
        ("ais://nowhere/a.wav", "nowhere"),
        ("ais://b/nothing.jsonl.gz", "nothing.jsonl.gz"),
    ],
)
def test_what_is_missing_is_named(bucket: Bucket, missing: str, named: str) -> None:
    with open_best(missing, "rb") as file, pytest.raises(FileNotFoundError, match=named):
        file.read()
    with open_best(missing) as file, pytest.raises(ObjectMissing, match=missing):
        next(iter(file))
    error = pickle.loads(pickle.dumps(ObjectMissing("text")))
    assert (type(error), str(error)) == (ObjectMissing, "text")


def test_a_store_that_is_not_named_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_LOADER_URL")
    with (
        open_best("ais://b/a.bin", "rb") as file,
        pytest.raises(ais_loader.errors.InvalidRequest, match="AIS_LOADER_URL"),
    ):
        file.read()


@pytest.mark.parametrize("cut", [5, 20, -3])
def test_a_truncated_gzip_names_its_object(bucket: Bucket, cut: int) -> None:
    bucket.put("cut.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000)[:cut])
    with open_best("ais://b/cut.jsonl.gz") as file, pytest.raises(EOFError, match=r"ais://b/cut\.jsonl\.gz"):
        list(file)
    with open_best("ais://b/cut.jsonl.gz", "rb") as file, pytest.raises(EOFError, match=r"ais://b/cut\.jsonl\.gz"):
        file.read()


def test_what_is_no_gzip_names_its_object(bucket: Bucket) -> None:
    bucket.put("plain.jsonl.gz", b"no gzip at all")
    with (
        open_best("ais://b/plain.jsonl.gz") as file,
        pytest.raises(gzip.BadGzipFile, match=r"ais://b/plain\.jsonl\.gz"),
    ):
        list(file)


def test_arrays_load_through_the_readers_of_lhotse(bucket: Bucket) -> None:
    array = np.arange(60, dtype=np.float32).reshape(20, 3)
    bucket.put("features/one.npy", npy(array))
    reader = get_reader("numpy_files")("ais://b/features")
    np.testing.assert_array_equal(reader.read("one.npy"), array)


def cut_of(url: str, name: str = "c") -> MonoCut:
    recording = Recording(name, [AudioSource("url", [0], url)], 8000, 8000, 1.0)
    return MonoCut(name, 0, 1.0, 0, [SupervisionSegment(name, name, 0, 1.0, text="")], recording=recording)


def test_audio_loads_one_by_one_and_the_missing_is_tolerated_where_lhotse_is_told_to(bucket: Bucket) -> None:
    there, gone = cut_of("ais://b/shard.tar/sub/a.wav", "there"), cut_of("ais://b/gone.wav", "gone")
    expected = SAMPLES.astype(np.float32)[None] / 32768
    np.testing.assert_array_equal(there.load_audio(), expected)
    audio, _, kept = AudioSamples(fault_tolerant=True)(CutSet.from_cuts([gone, there]))
    assert [cut.id for cut in kept] == ["there"]
    np.testing.assert_array_equal(audio.numpy(), expected)
    with pytest.raises(FileNotFoundError, match=r"gone\.wav"):
        AudioSamples()(CutSet.from_cuts([there, gone]))


def test_local_files_are_opened_as_before(tmp_path: Path, bucket: Bucket) -> None:
    with open_best(tmp_path / "x.jsonl.gz", "w") as file:
        file.write("text")
    assert gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()) == b"text"
    assert AISIOBackend().open(tmp_path / "x.jsonl.gz", "r").read() == "text"


def test_it_stands_before_whatever_backend_is_in_use(bucket: Bucket) -> None:
    with serialization.io_backend("BuiltinIOBackend"):
        install_io_backend()
        install_io_backend()
        current = serialization.get_current_io_backend()
        assert [type(backend).__name__ for backend in current.backends] == ["AISIOBackend", "BuiltinIOBackend"]
        assert open_best("ais://b/a.bin", "rb").read(1) == seeded_bytes(300_000, seed=1)[:1]
    with serialization.io_backend("default"):
        assert open_best("ais://b/a.bin", "rb").read(1) == seeded_bytes(300_000, seed=1)[:1]


def test_the_environment_can_name_it_to_lhotse(bucket: Bucket, url: str) -> None:
    script = (
        "import ais_loader.integrations.lhotse.io_backend\n"
        "from lhotse.serialization import open_best\n"
        "print(len(open_best('ais://b/a.bin', 'rb').read()))"
    )
    environment = os.environ | {"LHOTSE_IO_BACKEND": "AISIOBackend", "AIS_LOADER_URL": url}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=180)
    assert done.stdout == "300000\n", done.stderr
