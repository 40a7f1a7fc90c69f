"""SmolLM2-135M with its block drafter end to end: token identity in float32, eager and in replayed steps.

With the trained weights where the plugin has them. Without, the same module with random ones: drafts are
then refused nearly always, and tokens must be the same all the more.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify import session as sessions
from adaverify.bench.whole import RerunBackend
from adaverify.prompts import human_eval_prompts
from adaverify_contracts import DrafterDescriptor, Seen
from adaverify_engine import Sampling
from adaverify_engine.compare import compare
from adaverify_runtime import PlannerSettings, Settings, load_plugins
from adaverify_smollm2.drafter import BlockDrafterModel, DrafterConfig, weights_present
from adaverify_smollm2.drafter.block import open_block_drafter
from adaverify_smollm2.drafter.weights import FOLDER, save_block_drafter
from adaverify_verification import CostTable

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(900)]

K = 7
PLUGINS = ("capability", "engine", "graphs", "reference", "smollm2", "verification")


def installed(settings):
    points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in PLUGINS]
    return load_plugins(settings, points)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The folder with the drafter's weights: trained where there are any, else random."""
    if weights_present():
        return FOLDER
    torch.manual_seed(0)
    config = DrafterConfig(
        block=K,
        hidden=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        intermediate=256,
        table=64,
        rank=32,
        vocabulary=49152,
        draft_vocabulary=4096,
        feature_layers=(10, 20, 30),
        cross_layers=(20, 29),
        norm_eps=1e-5,
        rope_base=1e5,
        target="smollm2-135m",
    )
    folder = tmp_path_factory.mktemp("weights")
    save_block_drafter(BlockDrafterModel(config, torch.arange(4096)), folder)
    return folder


@pytest.fixture(scope="module")
def real(weights):
    """SmolLM2 in float32 with the block drafter; a planner that warms up fast and keeps its prices."""
    drafter = DrafterDescriptor(
        "smollm2-block",
        Seen.PREFIX,
        deterministic=True,
        factory=lambda limits, device: open_block_drafter(limits, device, weights),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "load_plugins", installed)
        planner = PlannerSettings(warmup_steps=2, online=False)
        patch.setattr(sessions, "read_settings", lambda: Settings(planner=planner))
        choice = sessions.Choice(drafter="n-gram", device="cpu", dtype="float32", draft_tokens=K, seed=0)
        return replace(sessions.open_session(choice), drafter=drafter)


@pytest.fixture(scope="module")
def prompts(real):
    """Token ids of the 16 shortest HumanEval prompts."""
    texts = sorted(human_eval_prompts(), key=len)[:16]
    return [real.model.tokenizer.encode(text) for text in texts]


def steep(session):
    """Return made-up prices at which a likely rejection never pays, so that trimming has to happen."""
    points = [
        (tokens, requests, context, 0.001 + 0.0002 * tokens)
        for tokens in (1, 2, 4, 8, 16, 32, 64, 128)
        for requests in (1, 4, 16)
        for context in (16, 512)
    ]
    return CostTable.from_points(session.fingerprint, points)


@pytest.mark.parametrize(
    ("concurrency", "count", "tokens", "replayed"),
    [(1, 2, 24, False), (4, 4, 24, False), (16, 16, 12, False), (4, 4, 16, True)],
)
def test_the_three_modes_emit_the_same_tokens(real, prompts, concurrency, count, tokens, replayed):
    """Greedy in float32, whatever the drafter proposes and however much of it is verified."""
    chosen = prompts[:count]
    session = real.sized(concurrency, max(map(len, chosen)) + tokens, engines=3)
    if replayed and not any(entry.owner == "bench-rerun" for entry in session.plugins.graph_backends()):
        session.plugins.register(RerunBackend(), "bench-rerun")
    engines = {mode: session.engine(mode, steep(session)) for mode in ("none", "fixed", "adaptive")}
    try:
        assert all((engine.pipeline is not None) is replayed for engine in engines.values())
        result = compare(engines, chosen, Sampling(max_tokens=tokens), rounds=1, warmup=0)
    finally:
        for engine in engines.values():
            engine.verifier.close()
    assert result.identical, result.failures
    assert result.near_ties <= 1
    fixed, adaptive = (result.results[mode].stats for mode in ("fixed", "adaptive"))
    assert fixed["verified"] == fixed["drafted"] > 0
    assert adaptive["verified"] <= fixed["verified"]
    for engine in engines.values():
        assert "drafter-raised" not in engine.verifier.counters
    if weights_present():
        assert fixed["accepted"] > 0
        assert adaptive["verified"] < fixed["verified"], "nothing was trimmed, so nothing is compared"
