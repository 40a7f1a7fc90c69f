"""Registration."""

from __future__ import annotations

import subprocess
import sys

import pluggy

from adaverify_contracts import PROJECT_NAME, DrafterDescriptor, ModelDescriptor, Seen
from adaverify_contracts import hookspecs as specs
from adaverify_smollm2 import hooks


def test_model_is_registered():
    """The hook fits the specification and returns one descriptor."""
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(specs)
    manager.register(hooks)
    manager.check_pending()
    [[descriptor]] = manager.hook.adaverify_register_models()
    assert isinstance(descriptor, ModelDescriptor)
    assert descriptor.name == "smollm2-135m"
    assert descriptor.geometry is not None and descriptor.geometry.name == descriptor.name


def test_registration_imports_nothing_heavy():
    """Start-up lists the model without loading torch, gguf or the tokenizer library."""
    program = (
        "import sys, adaverify_smollm2.hooks as hooks; hooks.adaverify_register_models();"
        "hooks.adaverify_register_drafters();"
        "print([m for m in ('torch', 'numpy', 'gguf', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_block_drafter_is_registered_for_its_model():
    """Greedy drafts are a function of the prefix, and its scores read what came before each draft."""
    (descriptor,) = hooks.adaverify_register_drafters()
    assert isinstance(descriptor, DrafterDescriptor)
    assert (descriptor.name, descriptor.target) == ("smollm2-block", "smollm2-135m")
    assert descriptor.deterministic
    assert descriptor.seen is Seen.PREFIX


def test_what_keeps_the_block_drafter_from_serving_is_said(monkeypatch, tmp_path):
    """Absent weights and a K beyond the trained block, each in words; nothing where it can serve."""
    from adaverify_smollm2 import drafter

    (descriptor,) = hooks.adaverify_register_drafters()
    monkeypatch.setattr(drafter, "weights_present", lambda: False)
    assert "weights are not in" in descriptor.refusal(7)
    monkeypatch.setattr(drafter, "weights_present", lambda: True)
    assert descriptor.refusal(7) == ""
    assert "at most 7" in descriptor.refusal(8)
