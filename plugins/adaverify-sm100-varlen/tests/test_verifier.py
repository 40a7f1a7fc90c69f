"""The whole plugin on a CPU with an assumed chip: selection, tokens, and the emulator behind the adapter."""

from importlib.metadata import EntryPoint

import pytest
import torch

from adaverify_capability import assume
from adaverify_contracts import DecodeBatch, KernelLevel, KernelReport, Limits
from adaverify_engine import Engine, EngineOptions, Sampling
from adaverify_engine.drafters import NgramDrafter
from adaverify_metadata import pack_pages, paged_mqa_logits_reference, relative_errors
from adaverify_runtime import PlannerSettings, PluginSettings, Settings, assemble, load_plugins
from adaverify_sm100_varlen import hooks
from adaverify_sm100_varlen.deep_gemm.adapter import PagedMqaLogits
from adaverify_sm100_varlen.deep_gemm.versions import KNOWN_VERSIONS
from adaverify_sm100_varlen.library import EmulatedLibrary
from adaverify_sm100_varlen.pages import pack_micro_scaled_pages, plain_pages
from adaverify_testing import tiny_model
from adaverify_verification import CostTable, Fingerprint

PLUGINS = ("capability", "engine", "graphs", "reference", "sm100_varlen", "verification")
POINTS = [
    (tokens, requests, context, 4e-4 + 2e-4 * tokens)
    for tokens in (1, 4, 16, 64)
    for requests in (1, 4)
    for context in (16, 128)
]


def tokens_of(capability):
    options = EngineOptions(
        max_requests=4, draft_tokens=5, max_model_len=96, page_size=4, prefill_chunk=16, dtype="float32"
    )
    points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in PLUGINS]
    plugins = load_plugins(PluginSettings(), entry_points=points)
    verifier = assemble(
        options.limits,
        device="cpu",
        plugins=plugins,
        capability=capability,
        settings=Settings(planner=PlannerSettings(warmup_steps=2, online=False)),
        drafter=plugins.drafters()[0].descriptor,
        cost_table=CostTable.from_points(Fingerprint.from_mapping({"device": "a test"}), POINTS),
    )
    engine = Engine(tiny_model(), verifier, NgramDrafter(options.limits, torch.device("cpu")), options)
    names = [engine.add([3, 5, 7, 3, 5, number], Sampling(max_tokens=30)) for number in range(4)]
    done = engine.run()
    chosen = {candidate.name for candidate in verifier.report.strategies if candidate.chosen}
    verifier.close()
    return [done[name].tokens for name in names], chosen


def test_an_assumed_chip_selects_varlen_and_gives_the_tokens_of_the_reference():
    want, there = tokens_of(assume("cpu"))
    got, here = tokens_of(assume("sm100", kernels=["triton"]))
    assert "varlen" in here and "varlen" not in there
    assert got == want


@pytest.mark.parametrize("version", sorted(KNOWN_VERSIONS))
def test_the_emulator_behind_the_adapter_scores_the_strategys_rows(version):
    """Rows with padding and a schedule of the loaded build; every query token as in the float32 reference."""
    limits = Limits(max_requests=4, draft_tokens=7, max_model_len=800, page_size=64)
    contract = KNOWN_VERSIONS[version].contract
    report = KernelReport("deep-gemm-varlen", version, KernelLevel.EXECUTED, "set by the test")
    capability = assume("sm100", ["triton", report])
    varlen, _ = hooks.adaverify_register_decode_strategies()
    made = torch.Generator().manual_seed(4)
    batch = DecodeBatch(
        query_start_loc=torch.tensor([0, 3, 3, 8, 9], dtype=torch.int32),
        seq_lens=torch.tensor([700, 0, 260, 1], dtype=torch.int32),
        block_table=torch.randperm(4 * limits.table_width, generator=made).int().view(4, -1),
        num_requests=4,
        num_tokens=9,
        padded_tokens=12,
        max_query_len=8,
    )
    rows = varlen.allocate(limits, torch.device("cpu"), capability).build(batch)
    assert len(set(rows.request_indices[9:].tolist())) == 3
    assert int(rows.request_indices[9:].min()) >= batch.requests
    options = {"heads": 64, "head_dim": 128, "page_size": 64, "device": "cpu", "backend": "torch"}
    adapter = PagedMqaLogits(EmulatedLibrary(version, capability.processors), **options)
    keys = torch.randn(4 * limits.table_width, 64, 128, generator=made)
    kv = (pack_micro_scaled_pages if contract.micro_scales else pack_pages)(keys)
    q = torch.randn(12, 1, 64, 128, generator=made).to(torch.float8_e4m3fn)
    weights = torch.rand(12, 64, generator=made).to(getattr(torch, contract.value_dtype))
    got = adapter.rows(q, kv, weights, rows, 720).float()
    plain = plain_pages(kv) if contract.micro_scales else kv
    want = paged_mqa_logits_reference(q, plain, weights.float(), rows.row_lens, rows.block_table, 720)
    assert torch.equal(got == float("-inf"), want == float("-inf"))
    assert float(relative_errors(got, want).max()) < (8e-3 if contract.micro_scales else 1e-5)
