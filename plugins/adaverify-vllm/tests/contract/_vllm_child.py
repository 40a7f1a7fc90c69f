"""Processes as vLLM starts them, with the installed packages alone, and the pieces of what they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap


def child(code, **environment):
    """Run a program as one of vLLM's processes: the installed packages alone, no source on the path."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("ADAVERIFY_", "PYTHONPATH"))
    }
    prelude = "import vllm.utils.platform_utils as p; p.is_pin_memory_available = lambda: False\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code)],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


LOADED = """
import json, sys
from vllm.plugins import load_general_plugins
before = set(sys.modules)
load_general_plugins()
after = set(sys.modules)
import adaverify_vllm, adaverify_vllm.plugin
from adaverify_vllm.watching import ImportWatch
"""


IDENTITY = """
import vllm.v1.worker.gpu.model_runner as runner
import vllm.v1.worker.gpu.spec_decode.adaptive_verification as adaptive
import vllm.v1.attention.backends.mla.indexer as indexer
name = "maybe_create_adaptive_verification_manager"
prepare = indexer.DeepseekV32IndexerMetadataBuilder._prepare_decode_tensors
print(json.dumps({
    "same": getattr(runner, name) is getattr(adaptive, name),
    "wraps": getattr(getattr(runner, name), "__wrapped__", None) is getattr(adaptive, name),
    "prepare": prepare.__code__.co_filename.endswith("indexer.py"),
    "watching": any(isinstance(f, ImportWatch) for f in sys.meta_path),
}))
"""

WORKER = """
import vllm.platforms
vllm.platforms.current_platform.device_type = "cpu"
from vllm.utils.import_utils import resolve_obj_by_qualname
resolve_obj_by_qualname("vllm.v1.worker.gpu_worker.Worker")
"""
