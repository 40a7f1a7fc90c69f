"""Registration."""

from __future__ import annotations

import subprocess
import sys

import pluggy

from adaverify_contracts import PROJECT_NAME, ModelDescriptor
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


def test_registration_imports_nothing_heavy():
    """Start-up lists the model without loading torch, gguf or the tokenizer library."""
    program = (
        "import sys, adaverify_smollm2.hooks as hooks; hooks.adaverify_register_models();"
        "print([m for m in ('torch', 'numpy', 'gguf', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
