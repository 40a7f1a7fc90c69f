"""Values worked by hand, the requirements, and the conformance kit."""

import torch
from adaverify_contracts import DecodeBatch, Limits
from adaverify_testing import fake_capability, isolated_manager, run_conformance

from adaverify_sample import hooks

CPU = torch.device("cpu")
HERE = fake_capability("cpu", kernels=[hooks.NAME])


def strategy():
    """Return what the plugin registers."""
    ((descriptor,),) = isolated_manager(hooks).hook.adaverify_register_decode_strategies()
    return descriptor


def test_rows_of_a_ragged_batch():
    """KV lengths [10, 7, 12, 0] and query lengths [3, 1, 4, 0], worked by hand."""
    limits = Limits(max_requests=4, draft_tokens=3, max_model_len=61, page_size=8)
    batch = DecodeBatch(
        query_start_loc=torch.tensor([0, 3, 4, 8, 8], dtype=torch.int32),
        seq_lens=torch.tensor([10, 7, 12, 0], dtype=torch.int32),
        block_table=torch.arange(32, dtype=torch.int32).view(4, 8),
        num_requests=3,
        num_tokens=8,
        padded_tokens=10,
        max_query_len=4,
    )
    rows = strategy().allocate(limits, CPU, HERE).build(batch)
    assert rows.row_lens.tolist() == [[8], [9], [10], [7], [9], [10], [11], [12], [0], [0]]


def test_the_probe_executes():
    """The requirement is met by what the probe itself finds here."""
    assert hooks.probe_kernel(fake_capability("cpu")).level.name == "EXECUTED"
    assert strategy().requirements.unmet(HERE) == ()


def test_the_conformance_kit_passes():
    """The same checks as ``pytest --adaverify-conformance``, without an installation."""
    report = run_conformance(strategy(), capability=HERE)
    assert report.passed, report.text()
