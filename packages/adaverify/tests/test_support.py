"""``adaverify plugins support``: levels by architecture, by the predicate that selects a strategy."""

from __future__ import annotations

import json

import pytest

from adaverify.support import level, support_matrix
from adaverify_contracts import DecodeStrategyDescriptor, GraphSupport, Requirements, hookimpl
from adaverify_runtime import load_plugins


def strategy(name, evidence="emulated", **needs):
    """Return a strategy with these requirements."""
    return DecodeStrategyDescriptor(
        name, Requirements(**needs), GraphSupport.NEVER, True, 1, evidence, lambda *arguments: None
    )


class Chips:
    """Registers one strategy for two chips and one for a chip that no table lists."""

    @hookimpl
    def adaverify_register_decode_strategies(self):
        cuda = {"device_types": ("cuda",), "kernels": ("k",), "modules": ("no_such_module",)}
        return (
            strategy("twins", architectures=("sm100", "sm90"), **cuda),
            strategy("stranger", "compiled", architectures=("npu7",)),
        )


@pytest.mark.parametrize(
    ("needs", "word", "expected"),
    [
        ({}, "cpu", "any"),
        ({}, "sm90", "any"),
        ({"device_types": ("cpu",)}, "cpu", "emulated"),
        ({"device_types": ("cpu",)}, "sm90", "-"),
        ({"device_types": ("cuda",), "kernels": ("k",)}, "sm90", "any"),
        ({"device_types": ("cuda",)}, "gfx942", "-"),
        ({"architectures": ("sm100",), "modules": ("no_such_module",)}, "sm100", "emulated"),
        ({"architectures": ("sm100",)}, "sm103", "-"),
        ({"architectures": ("npu7",)}, "npu7", "emulated"),
        ({"architectures": ("sm90",)}, "npu7", "-"),
    ],
)
def test_the_level_on_one_architecture(needs, word, expected):
    """Named: the evidence. Admitted and not named: no proof. A neighbour: refused."""
    assert level(strategy("one", **needs), word) == expected


def test_the_columns_are_what_plugins_name_in_the_order_of_their_numbers(install, tiny, invoke):
    """An architecture that only an outsider names has a column too."""
    tiny(Chips())
    found = json.loads(invoke("plugins", "support", "--json").stdout)
    assert found["architectures"] == ["cpu", "npu7", "sm90", "sm100"]
    rows = {row["strategy"]: row for row in found["rows"]}
    assert rows["twins"]["levels"] == {"cpu": "-", "npu7": "-", "sm90": "emulated", "sm100": "emulated"}
    assert rows["stranger"]["levels"]["npu7"] == "compiled"
    assert rows["stranger"]["levels"]["sm90"] == "-"
    shown = invoke("plugins", "support").stdout
    assert "npu7" in shown
    assert "any: admitted without being named" in shown


def test_every_registered_strategy_has_a_row():
    """Of whatever is installed here."""
    plugins = load_plugins()
    names = [entry.descriptor.name for entry in plugins.decode_strategies()]
    assert names
    assert [row.strategy for row in support_matrix(plugins).rows] == names


def test_requirements_of_the_whole_plugin_count():
    """A strategy that is admitted anywhere is refused where its plugin is not used."""

    class Picky:
        ADAVERIFY_REQUIRES = Requirements(architectures=("sm90",))

        @hookimpl
        def adaverify_register_decode_strategies(self):
            return (strategy("anywhere"), strategy("twin", architectures=("sm90", "sm100")))

    plugins = load_plugins(entry_points=[])
    plugins.register(Picky(), "picky")
    rows = {row.strategy: row.levels for row in support_matrix(plugins).rows}
    assert rows["anywhere"] == {"cpu": "-", "sm90": "any", "sm100": "-"}
    assert rows["twin"] == {"cpu": "-", "sm90": "emulated", "sm100": "-"}
