"""Whatever is wrong with our packages, variables or seams, vLLM comes up as if we were not there."""

from __future__ import annotations

import pytest
from _vllm_child import IDENTITY, LOADED, WORKER, child

# What somebody may have done to the environment: files on the path, and variables.
BROKEN = {
    "a switch that is neither on nor off": ({}, {"ADAVERIFY_VLLM": "perhaps"}, "on or off"),
    "settings that cannot be imported": (
        {"adaverify_runtime.py": "raise RuntimeError('half an upgrade')"},
        {},
        "RuntimeError: half an upgrade",
    ),
    "settings that end the process": (
        {"adaverify_runtime.py": "raise SystemExit(3)"},
        {},
        "SystemExit: 3",
    ),
    "a runner that was renamed": (
        {"sitecustomize.py": "import adaverify_vllm.seams as s\ns.RUNNER = s.RUNNER + '_v3'\n"},
        {},
        "has no module vllm.v1.worker.gpu.model_runner_v3",
    ),
    "a seam that was renamed": (
        {
            "sitecustomize.py": "import adaverify_vllm.seams as s, dataclasses\n"
            "s.SEAMS = (*s.SEAMS[:-1], dataclasses.replace(s.SEAMS[-1], name='GroupCoordinator.renamed'))\n"
        },
        {},
        "GroupCoordinator.renamed",
    ),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", BROKEN)
def test_whatever_is_wrong_with_us_vllm_comes_up_untouched_with_one_line(what, tmp_path):
    """In a process as vLLM starts it: its own objects, its start unharmed, one line of ours."""
    files, variables, words = BROKEN[what]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    listening = """
import logging
class Lines(logging.Handler):
    def emit(self, record):
        seen.append(record.getMessage())
seen = []
logging.getLogger("vllm.adaverify").addHandler(Lines())
"""
    before, last = IDENTITY.split("print(json.dumps({", 1)
    told = 'print(json.dumps({"lines": seen,'
    found = child(listening + LOADED + WORKER + before + told + last, PYTHONPATH=str(tmp_path), **variables)
    (line,) = found.pop("lines")
    assert words in line
    assert line.startswith("adaverify-vllm changes nothing")
    assert found == {"same": True, "wraps": False, "prepare": True, "watching": False}


@pytest.mark.timeout(400)
def test_a_bridge_that_cannot_be_imported_is_left_out_by_vllms_loader(tmp_path):
    """vLLM's loader says so itself and goes on."""
    folder = tmp_path / "adaverify_vllm"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('half an upgrade')\n")
    code = """
import json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
import vllm.v1.worker.gpu.model_runner as runner
import vllm.v1.worker.gpu.spec_decode.adaptive_verification as adaptive
name = "maybe_create_adaptive_verification_manager"
print(json.dumps(getattr(runner, name) is getattr(adaptive, name)))
"""
    assert child(code, PYTHONPATH=str(tmp_path)) is True


@pytest.mark.timeout(400)
def test_two_plugins_at_one_seam_and_two_entries_of_ours(tmp_path):
    """Another plugin wraps the factory before ours does, and we are listed twice: one wrapper of each."""
    (tmp_path / "others.py").write_text(
        "import functools, sys\n"
        "def register():\n"
        "    import vllm.v1.worker.gpu.model_runner as runner\n"
        "    original = runner.maybe_create_adaptive_verification_manager\n"
        "    @functools.wraps(original)\n"
        "    def theirs(**arguments):\n"
        "        return original(**arguments)\n"
        "    runner.maybe_create_adaptive_verification_manager = theirs\n"
    )
    for number, target in (("0", "others:register"), ("1", "adaverify_vllm.plugin:register")):
        info = tmp_path / f"aaa_plugin{number}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: aaa-plugin{number}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\nplugin{number} = {target}\n")
    code = """
import vllm.v1.worker.gpu.model_runner as runner
from adaverify_vllm import uninstall
chain, one = [], runner.maybe_create_adaptive_verification_manager
while one is not None:
    chain.append(one.__code__.co_filename.rpartition("/")[2])
    one = getattr(one, "__wrapped__", None)
uninstall()
left = runner.maybe_create_adaptive_verification_manager.__code__.co_filename.rpartition("/")[2]
print(json.dumps([chain, left]))
"""
    chain, left = child(LOADED + code, PYTHONPATH=str(tmp_path))
    assert sorted(chain) == ["adaptive_verification.py", "installation.py", "others.py"]
    assert left == "others.py"
