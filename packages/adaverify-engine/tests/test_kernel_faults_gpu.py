"""A kernel library that is absent, broken or wrong costs no token: named, counted, and the others serve."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from adaverify_capability import probe
from adaverify_contracts import KernelLevel, LoadedModel
from adaverify_engine import Engine, Sampling
from adaverify_runtime import PluginSettings, assemble, load_plugins

pytestmark = [
    pytest.mark.sm90,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# The library's three functions in plain torch: right, so that a test can spoil one thing.
RIGHT = """
import torch
from adaverify_metadata import schedule_tail_heavy
from adaverify_metadata.paged_logits import paged_mqa_logits_reference

__version__ = "2.5.0.post20260629"

def get_num_sms():
    return torch.cuda.get_device_properties(0).multi_processor_count

def get_paged_mqa_logits_metadata(lens, page_size, processors):
    return schedule_tail_heavy(lens, processors)

def fp8_fp4_paged_mqa_logits(q, kv, weights, lens, table, schedule, width, *rest):
    there = q[0].device
    whole = lens[:, -1:].expand_as(lens)
    moved = [part.cpu() for part in (q[0], kv, weights, whole, table)]
    return paged_mqa_logits_reference(*moved, width).to(there)
"""
FAULTS = {
    "absent": ("raise ModuleNotFoundError('No module named deep_gemm')", KernelLevel.ABSENT, "deep_gemm"),
    "another torch's build": (
        "raise ImportError('undefined symbol: _ZN3c105ErrorC2E')",
        KernelLevel.ABSENT,
        "undefined symbol",
    ),
    "does not compile": (
        RIGHT.replace("    there =", "    raise RuntimeError('NVCC compilation failed')\n    there ="),
        KernelLevel.IMPORTED,
        "NVCC compilation failed",
    ),
    "wrong values": (RIGHT.replace(".to(there)", ".to(there) * 1.01"), KernelLevel.IMPORTED, "wrong values"),
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that puts a made-up ``deep_gemm`` before the real one, child processes included."""

    def install(source):
        (tmp_path / "deep_gemm").mkdir()
        (tmp_path / "deep_gemm" / "__init__.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        for name in [name for name in sys.modules if name.split(".")[0] == "deep_gemm"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()

    yield install
    for name in [name for name in sys.modules if name.split(".")[0] == "deep_gemm"]:
        del sys.modules[name]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_library_that_fails_is_named_and_the_tokens_are_right(library, tiny, fault):
    """Probed for real on this card; the engine then runs captured steps with what is left."""
    source, level, word = FAULTS[fault]
    library(source)
    options = tiny.options(device="cuda", page_size=16, max_requests=4)
    plugins = load_plugins(PluginSettings())
    descriptor = next(one.descriptor for one in plugins.drafters() if one.descriptor.name == "n-gram")
    # Results are cached by process, and every fault is a process's own.
    capability = probe(torch.device("cuda"), [one.descriptor for one in plugins.probes()], refresh=True)
    verifier = assemble(
        options.limits,
        device="cuda",
        capability=capability,
        settings=tiny.settings(),
        plugins=plugins,
        drafter=descriptor,
        cost_table=tiny.steep(),
    )
    report = verifier.capability.kernel("deep-gemm")
    assert report.level is level and word in report.reason
    assert verifier.counters["kernel-unproven:deep-gemm"] == 1
    model = tiny.Decoder()
    drafter = descriptor.factory(options.limits, verifier.device)
    engine = Engine(LoadedModel(tiny.Decoder().to("cuda"), tiny.Tokenizer()), verifier, drafter, options)
    assert engine.capture().captured
    prompts = tiny.prompts(6)
    ids = [engine.add(prompt, Sampling(max_tokens=20)) for prompt in prompts]
    done = engine.run()
    for request, prompt in zip(ids, prompts, strict=True):
        tokens, expected = done[request].tokens, tiny.greedy(model, prompt, 20)
        same = [one == two for one, two in zip(tokens, expected, strict=True)]
        assert all(same) or done[request].gaps[same.index(False)] < 1e-4
    assert verifier.counters["graph replayed"] > 5
    verifier.close()
