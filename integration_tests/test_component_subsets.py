"""Every subset of components that a user may install works without the rest."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path

import pytest
from wheelhouse import CleanEnvironment, Wheelhouse, unpack

pytestmark = pytest.mark.slow

LIMITS = "from adaverify_contracts import Limits\nlimits = Limits(4, 3, 64, 16)\n"
# One use of each that runs code of it, not an import alone.
USES = {
    "adaverify-capability": (
        "from adaverify_capability import assume, probe\n"
        "assert assume('cpu').architecture == probe('cpu', ()).architecture == 'cpu'\n"
    ),
    "adaverify-metadata": (
        f"{LIMITS}import torch\nfrom adaverify_contracts import DecodeBatch\n"
        "from adaverify_metadata import FlattenRowBuilder\n"
        "i = lambda *values: torch.tensor(values, dtype=torch.int32)\n"
        "table = torch.zeros(2, limits.table_width, dtype=torch.int32)\n"
        "batch = DecodeBatch(i(0, 2, 3), i(5, 9), table, 2, 3, 4, 4)\n"
        "rows = FlattenRowBuilder('x', limits, torch.device('cpu'), backend='torch').build(batch)\n"
        "assert rows.row_lens.tolist() == [[4], [5], [9], [0]]\n"
    ),
    "adaverify-verification": (
        f"{LIMITS}import torch\nfrom adaverify_verification import Assigner\n"
        "i = lambda *values: torch.tensor(values, dtype=torch.int32)\n"
        "confidences = torch.tensor([[0.9, 0.8, 0.1], [0.5, 0.4, 0.3]])\n"
        "found = Assigner(limits, 'cpu').assign(confidences, i(3, 3), i(10, 20), i(3), 8)\n"
        "assert found.admitted.tolist() == [2, 1]\n"
    ),
    "adaverify-graphs": (
        f"{LIMITS}from adaverify_graphs import choose_ladder\nassert choose_ladder(limits).tiers[-1] == 16\n"
    ),
    "adaverify-replay": (
        "import tempfile\nfrom pathlib import Path\nfrom adaverify_replay import TraceWriter, read_trace\n"
        "path = Path(tempfile.mkdtemp()) / 'trace.jsonl'\n"
        "with TraceWriter(path):\n    pass\n"
        "assert read_trace(path) == []\n"
    ),
    "adaverify-testing": (
        "from adaverify_testing import fake_capability, isolated_manager\n"
        "assert fake_capability('cpu').assumed\nassert isolated_manager().get_plugins() == set()\n"
    ),
    "adaverify-engine": "from adaverify_engine import EngineOptions\nassert EngineOptions().page_size > 0\n",
}
COMPONENTS = ("adaverify-capability", "adaverify-metadata", "adaverify-verification", "adaverify-graphs")
APPLICATIONS = ("adaverify-engine", "adaverify-replay", "adaverify-testing")
CHECK = (
    "import importlib.util, sys\n"
    "present, absent, uses = (part.split(';') for part in sys.argv[1:4])\n"
    "sys.path[:0] = present\n"
    "found = [name for name in absent if name and importlib.util.find_spec(name)]\n"
    "assert not found, found\n"
    "for use in uses:\n    exec(compile(use, 'use', 'exec'), {})\n"
    "loaded = [name for name in absent if name in sys.modules]\n"
    "assert not loaded, loaded\n"
)


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return every subset that is not empty, smallest first."""
    return list(chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1)))


@pytest.fixture(scope="module")
def third_party(wheelhouse: Wheelhouse, distributions, tmp_path_factory) -> CleanEnvironment:
    """An environment with what others published, and nothing of ours."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("third-party") / "clean")
    for name in USES:
        environment.link(wheelhouse.closure(name)[1])
    return environment


@pytest.fixture(scope="module")
def folders(wheelhouse: Wheelhouse, distributions, tmp_path_factory) -> dict[str, Path]:
    """Each distribution of ours, installed into a folder of its own."""
    home = tmp_path_factory.mktemp("subsets")
    return {d.name: unpack([wheelhouse.wheel(d.name).file], home / d.name) for d in distributions}


@pytest.mark.parametrize("chosen", [*subsets(COMPONENTS), *subsets(APPLICATIONS)], ids=" ".join)
def test_a_subset_works_without_the_rest(
    wheelhouse: Wheelhouse, third_party: CleanEnvironment, folders, distributions, chosen
):
    """With what these declare on the path and nothing else of ours, each of them does its work."""
    ours = set().union(*(wheelhouse.closure(name)[0] for name in chosen))
    absent = [d.import_name for d in distributions if d.name not in ours]
    present = [str(folders[name]) for name in sorted(ours)]
    # Uses hold no semicolon, so that one argument carries them all.
    parts = (";".join(present), ";".join(absent), ";".join(USES[name] for name in chosen))
    done = third_party.call("-c", CHECK, *parts)
    assert done.returncode == 0, done.stderr


def test_the_reference_plugin_and_the_runtime_make_a_verifier(
    wheelhouse: Wheelhouse, third_party: CleanEnvironment, folders
):
    """The smallest installation that serves an engine: the runtime and one plugin, from their wheels."""
    ours = wheelhouse.closure("adaverify-runtime")[0] | wheelhouse.closure("adaverify-reference")[0]
    use = (
        f"{LIMITS}from adaverify_contracts import DrafterDescriptor, Seen\n"
        "from adaverify_runtime import assemble\n"
        "drafter = DrafterDescriptor('echo', Seen.HISTORY, True, dict)\n"
        "verifier = assemble(limits, device='cpu', mode='fixed', drafter=drafter)\n"
        "chosen = [item.name for item in verifier.report.strategies if item.chosen]\n"
        "assert chosen == ['reference', 'uniform']\n"
        "verifier.close()\n"
    )
    present = ";".join(str(folders[name]) for name in sorted(ours))
    done = third_party.call("-c", CHECK, present, "adaverify_engine", use)
    assert done.returncode == 0, done.stderr


def test_an_absent_component_is_found_out(third_party: CleanEnvironment, folders):
    """The check sees what it is there to see: a component that is missing, and one that should be."""
    path = str(folders["adaverify-contracts"])
    assert third_party.call("-c", CHECK, path, "adaverify_contracts", "pass").returncode == 1
    done = third_party.call("-c", CHECK, path, "", USES["adaverify-graphs"])
    assert "No module named 'adaverify_graphs'" in done.stderr
