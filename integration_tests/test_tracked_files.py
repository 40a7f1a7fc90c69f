"""Searches over every file of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Names of one architecture: sm90, SM_100a, gfx950, and the marketing names.
ARCHITECTURE = re.compile(r"(?<![a-z0-9])(sm_?\d{2,3}[a-z]?|gfx\d{3,4}[a-z]?)(?![a-z0-9])", re.IGNORECASE)
# Where they may appear below packages/: what follows dispatches by capability or by a strategy's name.
ARCHITECTURE_HOME = "packages/adaverify-capability/"
# Path of a file -> why it must name an architecture. A test removes entries that no longer need to be here.
ARCHITECTURE_EXCEPTIONS: dict[str, str] = {}

# Written so that no pattern matches its own text.
HOSTS = re.compile(
    r"(?:pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|pypi[.]nvidia[.]com|npmjs[.]org|deb[.]debian[.]org"
    r"|anaconda[.]org)"
)
MACHINE_PATHS = re.compile(r"(?<![\w./~$}-])/(?:root|home|work|opt|mnt|Users|workspace)/")


def matches(pattern: re.Pattern[str], file: Path) -> list[str]:
    """Return `line: text` for each line of a text file that matches; binary files have none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    return [f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if pattern.search(line)]


def names_architecture_freely(path: str) -> bool:
    """Whether a file may name one: tests, the capability package, plugins, the workspace's own files."""
    below_packages = path.startswith("packages/") and not path.startswith(ARCHITECTURE_HOME)
    return not below_packages or "/tests/" in path


def test_architecture_words_stay_in_plugins_and_capability_tables(root, tracked):
    """A branch on an architecture outside a plugin is a branch that the next chip has to find."""
    found = {}
    for file in tracked:
        path = file.relative_to(root).as_posix()
        if names_architecture_freely(path) or path in ARCHITECTURE_EXCEPTIONS:
            continue
        if lines := matches(ARCHITECTURE, file):
            found[path] = lines
    assert found == {}


@pytest.mark.parametrize("path", sorted(ARCHITECTURE_EXCEPTIONS) or [None])
def test_an_architecture_exception_is_still_needed(root, path):
    """An exception that no longer names anything is removed from the list."""
    assert path is None or matches(ARCHITECTURE, root / path)


def test_no_registry_host_is_named(root, tracked):
    """Where packages come from is each machine's setting, not the repository's."""
    found = {str(file.relative_to(root)): lines for file in tracked if (lines := matches(HOSTS, file))}
    assert found == {}


def test_no_absolute_machine_path_is_named(root, tracked):
    """A path of one machine in a tracked file works on one machine."""
    found = {
        str(file.relative_to(root)): lines for file in tracked if (lines := matches(MACHINE_PATHS, file))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (ARCHITECTURE, "if arch == 'sm90':", True),
        (ARCHITECTURE, "from adaverify_SM_100a import x", True),
        (ARCHITECTURE, "gfx" + "950", True),
        (ARCHITECTURE, "smollm2, sm_count = 132, prism90", False),
        (HOSTS, "see pypi" + ".org/simple", True),
        (HOSTS, "the registry of packages", False),
        (MACHINE_PATHS, "open('/" + "root/x')", True),
        (MACHINE_PATHS, "/" + "home/somebody/model.gguf", True),
        (MACHINE_PATHS, "https://example.org/opt/in and packages/work/x", False),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern, text, expected):
    """Each search fails on the thing it forbids and on nothing beside it."""
    assert bool(pattern.search(text)) is expected
